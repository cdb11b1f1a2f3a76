// SPDX-License-Identifier: Apache-2.0
// One machine of the rig: volumes, NBD server, VM, agent, dirty pages.
#include "blockstore/clock.h"
#include "tests/e2e/rig.h"

#include "vmglue/compat.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BOOT_MS = 180000, EVENT_S = 180 };

static void on_event(void *context, enum vm_event_kind kind, const char *detail)
{
    struct machine *machine = context;
    pthread_mutex_lock(&machine->lock);
    machine->reset |= kind == VM_EVENT_GUEST_RESET;
    machine->exited |= kind == VM_EVENT_EXITED;
    if (kind == VM_EVENT_GUEST_RESET || kind == VM_EVENT_EXITED)
        snprintf(machine->detail, sizeof machine->detail, "%s", detail);
    pthread_cond_broadcast(&machine->changed);
    pthread_mutex_unlock(&machine->lock);
}

void machine_wait_event(struct machine *machine, const bool *flag, const char *what)
{
    struct timespec deadline = clock_deadline(EVENT_S * 1000);
    int waited = 0;
    pthread_mutex_lock(&machine->lock);
    while (!*flag && waited == 0)
        waited = pthread_cond_clockwait(&machine->changed, &machine->lock, CLOCK_MONOTONIC, &deadline);
    bool came = *flag;
    pthread_mutex_unlock(&machine->lock);
    if (!came)
        rig_fail("%s: waited %d s for %s", machine->id, EVENT_S, what);
}

static void resolve(void *context, const char *name, struct nbd_export *ret_export)
{
    struct machine *machine = context;
    ret_export->found = name[0] == 0;
    ret_export->volume = machine->disk;
}

static struct machine *make(struct rig *rig, const char *id, struct volume_id disk, struct volume_id memory)
{
    struct machine *machine = calloc(1, sizeof *machine);
    *machine = (struct machine){.rig = rig, .disk = disk, .memory_id = memory, .nbd_fd = -1};
    pthread_mutex_init(&machine->lock, NULL);
    pthread_cond_init(&machine->changed, NULL);
    snprintf(machine->id, sizeof machine->id, "%s", id);
    snprintf(machine->run_dir, sizeof machine->run_dir, "%s/vm/%s", rig->directory, machine->id);
    mkdir(machine->run_dir, 0700);
    int result = volume_open(rig->store, memory, &machine->memory);
    if (result < 0)
        rig_fail("%s: cannot open its memory volume: %s", id, strerror(-result));
    char path[160];
    struct error err;
    snprintf(path, sizeof path, "%s/nbd.sock", machine->run_dir);
    if (unix_socket_listen(path, SOCK_STREAM, 0600, &machine->nbd_fd, &err) < 0)
        rig_fail("%s", err.text);
    struct nbd_server_config config = {.store = rig->store,
            .loop = rig->loop,
            .listen_fd = machine->nbd_fd,
            .resolve = resolve,
            .context = machine};
    if (nbd_server_start(&config, &machine->nbd, &err) < 0)
        rig_fail("%s", err.text);
    return machine;
}

static struct vm_config vm_config_of(struct machine *machine, char paths[2][400])
{
    struct rig *rig = machine->rig;
    snprintf(paths[0], 400, "%s/vmlinux", rig->kernel_dir);
    snprintf(paths[1], 400, "%s/initramfs-%s.cpio", rig->kernel_dir, vm_machine_name(rig->shape.machine));
    return (struct vm_config){.id = machine->id,
            .tag = rig->directory + 5,
            .run_dir = machine->run_dir,
            .preload_library = rig->preload,
            .shape = rig->shape,
            .accel = VM_ACCEL_AUTO,
            .kernel_path = paths[0],
            .initrd_path = paths[1],
            .disks = {{.export_name = "", .size_bytes = rig->image_bytes}},
            .disk_count = 1,
            .start_paused = true,
            .on_event = on_event,
            .context = machine};
}

static void start(struct machine *machine, const struct vm_config *config)
{
    struct error err;
    struct vm_memory memory;
    if (vm_start(&qemu_driver, config, &machine->vm, &err) < 0 ||
            vm_get_memory(machine->vm, &memory, &err) < 0 ||
            dirty_pages_open(
                    machine->vm->pid, memory.uffd, memory.address, memory.bytes, &machine->dirty, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
}

static void fill_identity(struct machine *machine, struct agent_identity *identity)
{
    *identity = (struct agent_identity){0};
    if (getrandom(identity->seed, sizeof identity->seed, 0) != sizeof identity->seed)
        rig_fail("no random bytes");
    snprintf(identity->machine_id, sizeof identity->machine_id, "%016llx%016llx",
            (unsigned long long)rig_random(), (unsigned long long)rig_random());
    snprintf(identity->hostname, sizeof identity->hostname, "%s", machine->id);
}

void machine_go(struct machine *machine, bool after_fork)
{
    struct error err;
    char path[160];
    snprintf(path, sizeof path, "%s/agent.sock", machine->run_dir);
    machine->stages.loaded_ns = clock_monotonic_ns();
    if (vm_continue(machine->vm, &err) < 0 || agent_connect(path, BOOT_MS, &machine->agent, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    machine->stages.connected_ns = clock_monotonic_ns();
    struct agent_identity identity;
    fill_identity(machine, &identity);
    if (after_fork && agent_after_fork(machine->agent, &identity, 0, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    machine->stages.ready_ns = clock_monotonic_ns();
}

struct machine *machine_boot_disk(struct rig *rig, const char *id, struct volume_id disk)
{
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    struct volume_id memory = txn_volume_create(
            txn, "", VOLUME_MEMORY, (uint64_t)rig->shape.memory_mb << 20, (struct base_id){0});
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("%s: %s", id, err.text);
    uint64_t begin = clock_monotonic_ns();
    struct machine *machine = make(rig, id, disk, memory);
    char paths[2][400];
    struct vm_config config = vm_config_of(machine, paths);
    start(machine, &config);
    machine_go(machine, false);
    machine->ready_ns = clock_monotonic_ns() - begin;
    return machine;
}

struct machine *machine_boot(struct rig *rig, const char *id)
{
    struct error err;
    struct txn *txn = txn_begin(rig->store);
    struct volume_id disk = txn_volume_create(txn, "", VOLUME_DISK, 0, rig->image);
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("%s: %s", id, err.text);
    return machine_boot_disk(rig, id, disk);
}

void machine_memory_path(const struct machine *machine, char *buffer, size_t size)
{
    if (machine->rig->own_memory_files)
        snprintf(buffer, size, "%s/memory.raw", machine->run_dir);
    else
        snprintf(buffer, size, "%s/mem/%llu", machine->rig->directory,
                (unsigned long long)machine->image.value);
}

void machine_adopt(struct machine *machine)
{
    struct error err;
    if (vm_adopt(&qemu_driver, machine->run_dir, on_event, machine, &machine->vm, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
}

// As sandbox_working_set_prepare, without its policies.
static void prepare_memory(
        struct machine *machine, struct base_id origin, struct doc_id snapshot, struct vm_config *config)
{
    struct rig *rig = machine->rig;
    struct memory_map map;
    struct working_set set;
    struct error err;
    char path[160];
    if (!rig->share)
        origin.value = 0;
    if (memory_map_make(rig->store, machine->image, origin, &map, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    machine->origin = map.origin;
    machine->extents = map.count;
    machine->own_bytes = map.own_bytes;
    if (map.origin.value != 0) {
        snprintf(path, sizeof path, "%s/mem/%llu", rig->directory, (unsigned long long)map.origin.value);
        config->memory_origin_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (config->memory_origin_fd < 0 || memory_map_file(&map, &config->memory_extents_fd, &err) < 0)
            rig_fail("%s: its memory map cannot be handed over", machine->id);
    }
    if (rig->working_sets && working_set_load(rig->store, snapshot, map.bytes, &set, &err) == 0)
        machine->prefetch = prefetch_start(rig->fuse, &map, &set);
    else
        memory_map_free(&map);
}

static void release_memory(struct vm_config *config)
{
    if (config->memory_origin_fd > 0)
        close(config->memory_origin_fd);
    if (config->memory_extents_fd > 0)
        close(config->memory_extents_fd);
}

void machine_record_working_set(struct machine *machine, struct doc_id snapshot)
{
    struct working_set set;
    struct error err;
    if (prefetch_record(machine->dirty, (uint64_t)machine->rig->shape.memory_mb << 20, &set, &err) < 0 ||
            working_set_save(machine->rig->store, snapshot, &set, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    working_set_free(&set);
}

struct machine *machine_load(struct rig *rig, const char *id, struct doc_id snapshot)
{
    struct error err;
    struct doc doc;
    struct capture_doc parsed;
    void *state = NULL;
    size_t state_bytes = 0;
    if (store_doc_get(rig->store, snapshot, &doc) < 0 || capture_doc_parse(&doc, &parsed, &err) < 0 ||
            store_doc_blob(rig->store, snapshot, &state, &state_bytes) < 0)
        rig_fail("%s: its snapshot cannot be read", id);
    struct txn *txn = txn_begin(rig->store);
    struct volume_id disk = txn_volume_create(txn, "", VOLUME_DISK, 0, parsed.disks[0]);
    struct volume_id memory = txn_volume_create(txn, "", VOLUME_MEMORY, 0, parsed.memory);
    if (txn_commit_wait(txn, 0, &err) < 0)
        rig_fail("%s: %s", id, err.text);
    struct machine *machine = make(rig, id, disk, memory);
    machine->stages.made_ns = clock_monotonic_ns();
    char paths[2][400], image[160];
    struct vm_config config = vm_config_of(machine, paths);
    machine->image = parsed.memory;
    machine_memory_path(machine, image, sizeof image);
    if (rig->own_memory_files)
        rig_export(rig, parsed.memory, image);
    prepare_memory(machine, parsed.origin, snapshot, &config);
    config.memory_image = image;
    config.state = state;
    config.state_bytes = state_bytes;
    char *compat = NULL;
    enum vm_accel accel;
    if (vm_probe_accel(&config, &accel, &err) < 0 ||
            compat_describe(&config, accel == VM_ACCEL_KVM ? "kvm" : "tcg", &compat, &err) < 0 ||
            compat_compare(parsed.compat, compat, &err) < 0)
        rig_fail("%s: %s", id, err.text);
    start(machine, &config);
    release_memory(&config);
    free(compat);
    free(state);
    capture_doc_free(&parsed);
    doc_free(&doc);
    return machine;
}

void machine_park(struct machine *machine)
{
    struct error err;
    free(machine_shell(machine, "true"));
    if (agent_freeze(machine->agent, 60000, &err) < 0 || vm_pause(machine->vm, 60000, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
}

void machine_take(struct machine *machine)
{
    struct error err;
    struct agent_identity identity;
    struct doc doc = {.kind = DOC_OTHER, .body = (char *)"{}", .body_bytes = 2};
    fill_identity(machine, &identity);
    if (vm_continue(machine->vm, &err) < 0 || agent_after_fork(machine->agent, &identity, 0, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    struct txn *txn = txn_begin(machine->rig->store);
    txn_doc_put(txn, &doc, NULL, 0);
    if (txn_commit_wait(txn, TXN_DURABLE, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
}

struct machine *machine_resume(struct rig *rig, const char *id, struct doc_id snapshot)
{
    uint64_t begin = clock_monotonic_ns();
    struct machine *machine = machine_load(rig, id, snapshot);
    machine_go(machine, true);
    machine->ready_ns = clock_monotonic_ns() - begin;
    return machine;
}

struct machine *machine_end(struct machine *machine, bool keep_disk)
{
    struct error err;
    struct store *store = machine->rig->store;
    prefetch_end(machine->prefetch, true, NULL);
    agent_disconnect(machine->agent);
    dirty_pages_close(machine->dirty);
    if (machine->vm != NULL && vm_kill(machine->vm, 30000, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    vm_close(machine->vm);
    nbd_server_stop(machine->nbd);
    close(machine->nbd_fd);
    volume_close(machine->memory);
    struct txn *txn = txn_begin(store);
    txn_volume_delete(txn, machine->memory_id);
    if (!keep_disk)
        txn_volume_delete(txn, machine->disk);
    if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
        rig_fail("%s: %s", machine->id, err.text);
    free(machine);
    return NULL;
}

struct capture_request machine_capture_request(struct machine *machine, const char *name)
{
    return (struct capture_request){.store = machine->rig->store,
            .vm = machine->vm,
            .agent = machine->agent,
            .dirty = machine->dirty,
            .memory = machine->memory,
            .origin = machine->origin.value != 0 ? machine->origin : machine->image,
            .disks = {machine->disk},
            .disk_count = 1,
            .name = name};
}

void machine_capture(const struct capture_request *request, struct capture_result *ret_result)
{
    struct error err;
    if (capture_machine(request, ret_result, &err) < 0)
        rig_fail("snapshot: %s", err.text);
    if (ret_result->source_trouble.code != 0)
        rig_fail("snapshot: %s", ret_result->source_trouble.text);
}

char *machine_shell(struct machine *machine, const char *format, ...)
{
    char *command = NULL;
    va_list list;
    va_start(list, format);
    if (vasprintf(&command, format, list) < 0)
        rig_fail("no memory");
    va_end(list);
    struct agent_exec exec = {.shell_command = command, .timeout_ms = 300000};
    struct agent_exec_result result;
    struct error err;
    if (agent_exec_run(machine->agent, &exec, &result, &err) < 0)
        rig_fail("%s: '%s': %s", machine->id, command, err.text);
    if (result.exit_code != 0)
        rig_fail("%s: '%s' ended with %d: %s%s", machine->id, command, result.exit_code, result.out,
                result.err);
    char *out = result.out;
    result.out = NULL;
    agent_exec_result_free(&result);
    free(command);
    return out;
}
