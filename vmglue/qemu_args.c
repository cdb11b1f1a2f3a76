// SPDX-License-Identifier: Apache-2.0
// Why each option is there is said beside it. What is left out matters as much: no default devices, no user
// configuration, no shared memory, no block backend that does DMA into guest memory.
#include "vmglue/qemu_args.h"

#include "vmglue/vm_confine.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A guest waits for its disk while the daemon is away; it must not see errors because a recovery takes long.
enum { NBD_RECONNECT_S = 24 * 3600, CONSOLE_FDSET = 1 };

// ---- Checks ----

static int check_word(const char *what, const char *text, size_t max, struct error *err)
{
    if (text == NULL || *text == 0 || strlen(text) > max)
        return error_set(err, -EINVAL, "the VM's %s must have 1 to %zu characters", what, max);
    for (const char *c = text; *c != 0; c++) {
        if (!isalnum((unsigned char)*c) && strchr("._-", *c) == NULL)
            return error_set(err, -EINVAL,
                    "the VM's %s '%s' has a character other than letters, digits, '.', '_' and '-'", what,
                    text);
    }
    return 0;
}

static int check_path(const char *what, const char *path, bool required, struct error *err)
{
    if (path == NULL)
        return required ? error_set(err, -EINVAL, "the VM's %s is not given", what) : 0;
    if (path[0] != '/')
        return error_set(err, -EINVAL, "the VM's %s '%s' must be an absolute path", what, path);
    for (const char *c = path; *c != 0; c++) {
        if (iscntrl((unsigned char)*c))
            return error_set(err, -EINVAL, "the VM's %s holds a control character: rename it", what);
    }
    return 0;
}

static int check_preload(const char *path, struct error *err)
{
    int result = check_path("preload library", path, false, err);
    if (result == 0 && path != NULL && strpbrk(path, " :") != NULL)
        return error_set(err, -EINVAL,
                "the path of the preload library, %s, holds a blank or a colon, which the loader takes for a "
                "separator: install it elsewhere",
                path);
    return result;
}

static int check_load(const struct vm_config *config, struct error *err)
{
    if (config->state != NULL && config->memory_image == NULL)
        return error_set(err, -EINVAL,
                "the VM's memory_image is not given, but a device state to load is: the two belong together");
    if (config->state == NULL && config->memory_image != NULL)
        return error_set(err, -EINVAL,
                "the VM's device state is not given, but a memory image is: the two belong together");
    if (config->state == NULL && config->kernel_path == NULL)
        return error_set(
                err, -EINVAL, "the VM's kernel is not given, and there is no device state to load instead");
    return 0;
}

int qemu_args_check(const struct vm_config *config, struct error *err)
{
    const struct vm_shape *shape = &config->shape;
    if (shape->cpus < 1 || shape->cpus > 64)
        return error_set(err, -EINVAL, "the VM's cpus must be 1 to 64, not %u", shape->cpus);
    if (shape->memory_mb < 64 || shape->memory_mb > 1048576)
        return error_set(err, -EINVAL, "the VM's memory_mb must be 64 to 1048576, not %u", shape->memory_mb);
    if (shape->machine != VM_MACHINE_Q35 && shape->machine != VM_MACHINE_MICROVM)
        return error_set(
                err, -EINVAL, "the VM's machine type is unknown: q35 and microvm are the ones there are");
    if (config->disk_count > VM_DISKS_MAX)
        return error_set(
                err, -EINVAL, "the VM has %u disks; %d is the most", config->disk_count, VM_DISKS_MAX);
    int result = check_word("id", config->id, 64, err);
    if (result == 0)
        result = check_word("tag", config->tag, 100, err);
    if (result == 0)
        result = check_path("run directory", config->run_dir, true, err);
    if (result == 0)
        result = check_path("kernel", config->kernel_path, false, err);
    if (result == 0)
        result = check_path("initramfs", config->initrd_path, false, err);
    if (result == 0)
        result = check_path("memory image", config->memory_image, false, err);
    if (result == 0)
        result = check_path("NBD socket", config->nbd_socket, false, err);
    if (result == 0)
        result = check_preload(config->preload_library, err);
    if (result == 0)
        result = check_load(config, err);
    return result;
}

// ---- Building ----

__attribute__((format(printf, 2, 3))) static void add(struct qemu_args *args, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    char *text = NULL;
    if (args->count == QEMU_ARGS_MAX || vasprintf(&text, format, list) < 0)
        args->failed = true;
    else
        args->argv[args->count++] = text;
    va_end(list);
}

// Doubles commas, which is how QEMU's option parser takes them literally. The caller frees.
static char *escape(struct qemu_args *args, const char *text)
{
    char *copy = malloc(2 * strlen(text) + 1);
    if (copy == NULL) {
        args->failed = true;
        return NULL;
    }
    char *to = copy;
    for (; *text != 0; text++) {
        if (*text == ',')
            *to++ = ',';
        *to++ = *text;
    }
    *to = 0;
    return copy;
}

// The bus, and the older of virtio's two interfaces: the newer one's device state has room for 1024 queues in
// every device, 180 KB that would have to be saved in each pause (2.5 ms against 1). virtio-mmio speaks the
// older one by default.
static const char *bus(const struct vm_config *config)
{
    return config->shape.machine == VM_MACHINE_MICROVM ? "device" : "pci,disable-modern=on";
}

static void add_machine(
        struct qemu_args *args, const struct vm_config *config, const struct qemu_args_host *host)
{
    // suppress-vmdesc and send-configuration: the device state is ours to describe (compat.h) and small
    // without them. mem-merge=off: KSM would be a channel between guests, and pre-copy would never converge.
    const char *common = "memory-backend=mem,suppress-vmdesc=on,mem-merge=off,dump-guest-core=off";
    add(args, "-machine");
    if (config->shape.machine == VM_MACHINE_MICROVM)
        add(args, "microvm,acpi=on,rtc=on,%s", common);
    else // the versioned name: only such have a promise of compatibility between builds
        add(args, "pc-q35-7.2,sata=off,smbus=off,i8042=off,usb=off,%s", common);
    add(args, "-global");
    add(args, "migration.send-configuration=off");
    add(args, "-accel");
    // QEMU's default translation cache is up to 1 GiB, of which every VM would use its share.
    add(args, "%s", strcmp(host->accel, "kvm") == 0 ? "kvm" : "tcg,thread=multi,tb-size=64");
    add(args, "-cpu");
    add(args, "max");
    add(args, "-smp");
    add(args, "cpus=%u,sockets=1,cores=%u,threads=1", config->shape.cpus, config->shape.cpus);
    add(args, "-m");
    add(args, "size=%uM", config->shape.memory_mb);
}

// A path of the host as the VMM sees it.
static const char *seen(struct qemu_args *args, const struct vm_config *config, const char *path,
        char buffer[VM_CONFINE_PATH])
{
    if (config->confine == NULL || path == NULL)
        return path;
    if (vm_confine_path(config->confine, path, buffer, VM_CONFINE_PATH) < 0) {
        args->unseen = true;
        return "";
    }
    return buffer;
}

static void add_memory(struct qemu_args *args, const struct vm_config *config)
{
    char buffer[VM_CONFINE_PATH];
    add(args, "-object");
    if (config->memory_image == NULL) {
        add(args, "memory-backend-ram,id=mem,size=%uM,share=off,merge=off,dump=off", config->shape.memory_mb);
        return;
    }
    char *path = escape(args, seen(args, config, config->memory_image, buffer));
    add(args, "memory-backend-file,id=mem,size=%uM,mem-path=%s,share=off,merge=off,dump=off",
            config->shape.memory_mb, path ? path : "");
    free(path);
}

static void add_kernel(
        struct qemu_args *args, const struct vm_config *config, const struct qemu_args_host *host)
{
    if (config->state != NULL || config->kernel_path == NULL)
        return; // a loaded guest has its kernel in memory
    char buffer[VM_CONFINE_PATH];
    add(args, "-kernel");
    add(args, "%s", seen(args, config, config->kernel_path, buffer));
    if (config->initrd_path != NULL) {
        add(args, "-initrd");
        add(args, "%s", seen(args, config, config->initrd_path, buffer));
    }
    // panic=-1: a panic is a reboot at once, which ends this process (-no-reboot). An emulated guest's TSC is
    // the host's, and the guest is told its rate: measured on a busy host it comes out wrong. microvm, which
    // has nothing but the PIT to measure with, then does not start; a q35 guest's clock ran up to ten times
    // too fast until its watchdog found out.
    char tsc[40] = "";
    if (host->tsc_khz != 0)
        snprintf(tsc, sizeof tsc, " tsc_early_khz=%u", host->tsc_khz);
    add(args, "-append");
    add(args, "console=ttyS0 quiet panic=-1 random.trust_cpu=on cryptomgr.notests%s%s%s", tsc,
            config->kernel_append != NULL ? " " : "",
            config->kernel_append != NULL ? config->kernel_append : "");
}

// werror=stop: a failed write (no room, a store that stopped) pauses the guest and is repeated when it is
// continued, so that nothing is lost; the daemon sees the event and decides. rerror=report: a damaged block
// is an I/O error to the guest, as on any disk, and stopping would not mend it. A daemon that is away is
// neither: requests wait.
static void add_disks(struct qemu_args *args, const struct vm_config *config)
{
    char buffer[VM_CONFINE_PATH];
    char *path = escape(
            args, config->nbd_socket != NULL ? seen(args, config, config->nbd_socket, buffer) : "nbd.sock");
    for (unsigned i = 0; i < config->disk_count; i++) {
        const struct vm_disk *disk = &config->disks[i];
        char *export = escape(args, disk->export_name != NULL ? disk->export_name : "");
        add(args, "-blockdev");
        add(args,
                "driver=nbd,node-name=disk%u,server.type=unix,server.path=%s,export=%s,reconnect-delay=%d,"
                "discard=unmap,detect-zeroes=unmap,"
                "read-only=%s",
                i, path ? path : "", export ? export : "", NBD_RECONNECT_S, disk->read_only ? "on" : "off");
        add(args, "-device");
        add(args,
                "virtio-blk-%s,id=blk%u,drive=disk%u,werror=stop,rerror=report,write-cache=on,discard_"
                "granularity=4096",
                bus(config), i, i);
        free(export);
    }
    free(path);
}

static void default_mac(const char *id, uint8_t ret_mac[6])
{
    uint64_t hash = 14695981039346656037u; // FNV-1a: an address made from a name, nothing that must be safe
    for (const char *c = id; *c != 0; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    ret_mac[0] = 0x52;
    ret_mac[1] = 0x54;
    for (int i = 2; i < 6; i++)
        ret_mac[i] = (uint8_t)(hash >> (8 * i));
}

// Whatever is behind the card, it offers the guest the same: no checksums or segments left to the host, which
// only some backends can do and which would be part of the device state. Without a tap it sends
// into the void. User-mode networking would have a state of its own, and reach the host's own services.
static void add_network(
        struct qemu_args *args, const struct vm_config *config, const struct qemu_args_host *host)
{
    static const uint8_t none[6];
    uint8_t mac[6];
    memcpy(mac, config->shape.mac, sizeof mac);
    if (memcmp(mac, none, sizeof mac) == 0)
        default_mac(config->id, mac);
    if (host->tap_fd != 0) {
        add(args, "-netdev");
        add(args, "tap,id=net0,fd=%d", host->tap_fd);
    }
    add(args, "-device");
    add(args, "virtio-net-%s,id=nic0%s,mac=%02x:%02x:%02x:%02x:%02x:%02x%s", bus(config),
            host->tap_fd != 0 ? ",netdev=net0" : "", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5],
            config->shape.machine == VM_MACHINE_MICROVM ? "" : ",romfile=");
}

static void add_devices(
        struct qemu_args *args, const struct vm_config *config, const struct qemu_args_host *host)
{
    // By descriptor: a confined VMM has no folder to make a file in.
    add(args, "-add-fd");
    add(args, "fd=%d,set=%d", host->console_fd, CONSOLE_FDSET);
    add(args, "-chardev");
    add(args, "file,id=console,path=/dev/fdset/%d,append=on", CONSOLE_FDSET);
    add(args, "-serial");
    add(args, "chardev:console");
    // Listening sockets made by us: they can be connected to before QEMU runs, and again after a daemon died.
    add(args, "-chardev");
    add(args, "socket,id=qmp,fd=%d,server=on,wait=off", host->qmp_fd);
    add(args, "-mon");
    add(args, "chardev=qmp,mode=control");
    add(args, "-chardev");
    add(args, "socket,id=agent,fd=%d,server=on,wait=off", host->agent_fd);
    add(args, "-device");
    add(args, "virtio-serial-%s,id=serial0,max_ports=2", bus(config));
    add(args, "-device");
    add(args, "virtserialport,bus=serial0.0,nr=1,chardev=agent,name=agent.0");
    add(args, "-object");
    add(args, "rng-random,id=rng0,filename=/dev/urandom");
    add(args, "-device");
    add(args, "virtio-rng-%s,id=rngdev0,rng=rng0", bus(config));
}

static void add_common(struct qemu_args *args)
{
    add(args, "-nodefaults");
    add(args, "-no-user-config");
    add(args, "-display");
    add(args, "none");
    // A resumed guest has no firmware left to reboot with; the lifecycle boots a new process instead.
    add(args, "-no-reboot");
    add(args, "-S");
}

static int finish(struct qemu_args *args, struct qemu_args *ret_args, struct error *err)
{
    if (args->unseen) {
        qemu_args_free(args);
        return error_set(err, -EINVAL,
                "a file of the VM is outside of what its confined VMM sees: this is a fault of the program");
    }
    if (args->failed) {
        qemu_args_free(args);
        return error_set(err, -ENOMEM, "no memory for QEMU's command line");
    }
    *ret_args = *args;
    return 0;
}

int qemu_args_build(const struct vm_config *config, const struct qemu_args_host *host,
        struct qemu_args *ret_args, struct error *err)
{
    int result = qemu_args_check(config, err);
    if (result < 0)
        return result;
    struct qemu_args args = {0};
    char buffer[VM_CONFINE_PATH];
    add(&args, "%s",
            config->vmm_path != NULL ? seen(&args, config, config->vmm_path, buffer) : "qemu-system-x86_64");
    add(&args, "-name");
    add(&args, "%s/%s", config->tag, config->id);
    add_common(&args);
    if (config->confine != NULL) {
        add(&args, "-L");
        add(&args, "%s", VM_CONFINE_FIRMWARE);
    }
    if (host->sandbox) {
        add(&args, "-sandbox");
        add(&args, "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    }
    add_machine(&args, config, host);
    add_memory(&args, config);
    add_kernel(&args, config, host);
    add_devices(&args, config, host);
    add_disks(&args, config);
    add_network(&args, config, host);
    if (config->state != NULL) {
        add(&args, "-incoming");
        add(&args, "defer");
    }
    return finish(&args, ret_args, err);
}

int qemu_args_build_canonical(
        const struct vm_config *config, const char *accel, struct qemu_args *ret_args, struct error *err)
{
    struct vm_config plain = *config;
    struct qemu_args_host host = {.accel = accel, .qmp_fd = 3, .agent_fd = 4, .console_fd = 5};
    plain.confine = NULL;
    plain.nbd_socket = NULL;
    plain.memory_image = NULL;
    for (unsigned i = 0; i < plain.disk_count && i < VM_DISKS_MAX; i++)
        plain.disks[i].export_name = NULL;
    memset(plain.shape.mac, 2, sizeof plain.shape.mac);
    struct qemu_args args = {0};
    add_common(&args);
    add_machine(&args, &plain, &host);
    add_memory(&args, &plain);
    add_devices(&args, &plain, &host);
    add_disks(&args, &plain);
    add_network(&args, &plain, &host); // no tap: what is behind the card is no part of it
    return finish(&args, ret_args, err);
}

void qemu_args_free(struct qemu_args *args)
{
    for (unsigned i = 0; i < args->count; i++)
        free(args->argv[i]);
    *args = (struct qemu_args){0};
}
