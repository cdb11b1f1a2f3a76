// SPDX-License-Identifier: Apache-2.0
// /dev/kvm may be there, answer every ioctl, and yet not run a stock kernel (nested without hardware
// support). Only booting tells: the kernel must come as far as starting its first process, within a time
// limit.
#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "vmglue/json.h"
#include "vmglue/qemu_process.h"
#include "vmglue/qmp.h"
#include "vmglue/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/kvm.h>

enum { BOOT_LIMIT_MS = 20000, START_LIMIT_MS = 10000, PROBE_MEMORY_MB = 256 };
static const char marker[] = "as init process"; // the kernel's own words before it leaves for user space

static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER;
static bool answered;        // protected by answer_lock
static enum vm_accel answer; // protected by answer_lock

static bool device_answers(void)
{
    int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool good = ioctl(fd, KVM_GET_API_VERSION, 0) == KVM_API_VERSION;
    close(fd);
    return good;
}

// Reads the console (a FIFO) until the marker, the end of the process, or the limit.
static bool console_says_marker(int console_fd, int pid_fd)
{
    char text[8192];
    size_t used = 0;
    for (uint64_t end = clock_monotonic_ms() + BOOT_LIMIT_MS, now; (now = clock_monotonic_ms()) < end;) {
        struct pollfd fds[] = {{.fd = console_fd, .events = POLLIN}, {.fd = pid_fd, .events = POLLIN}};
        if (poll(fds, 2, (int)(end - now)) <= 0)
            continue;
        if ((fds[0].revents & POLLIN) == 0)
            return false;
        ssize_t got = read(console_fd, text + used, sizeof text - 1 - used);
        if (got <= 0)
            return false;
        used += (size_t)got;
        text[used] = 0;
        if (strstr(text, marker) != NULL)
            return true;
        if (used > sizeof text / 2) { // keep enough for a marker that is cut in two
            memmove(text, text + used - sizeof marker, sizeof marker);
            used = sizeof marker;
        }
    }
    return false;
}

static bool boots_under_kvm(const struct vm_config *config, const char *directory)
{
    struct vm_config probe = {.id = "probe",
            .tag = config->tag,
            .run_dir = directory,
            .vmm_path = config->vmm_path,
            .shape = {.machine = config->shape.machine, .cpus = 1, .memory_mb = PROBE_MEMORY_MB},
            .kernel_path = config->kernel_path,
            .initrd_path = config->initrd_path,
            .kernel_append = "loglevel=7"};
    char *console = qemu_process_path(directory, "console.log"),
         *socket_path = qemu_process_path(directory, "qmp.sock");
    int console_fd = -1;
    bool good = false;
    if (console != NULL && socket_path != NULL && mkfifo(console, 0600) == 0)
        console_fd =
                open(console, O_RDWR | O_NONBLOCK | O_CLOEXEC); // O_RDWR: no end of file before QEMU opens it
    struct qemu_process process;
    if (console_fd >= 0 && qemu_process_start(&probe, "kvm", &process, NULL) == 0) {
        struct qmp *qmp = NULL;
        if (qmp_connect(socket_path, START_LIMIT_MS, NULL, NULL, &qmp, NULL) == 0 &&
                qmp_execute(qmp, "cont", NULL, START_LIMIT_MS, NULL, NULL) == 0)
            good = console_says_marker(console_fd, process.pid_fd);
        vm_process_kill(process.pid_fd, START_LIMIT_MS);
        qmp_close(qmp);
        close(process.pid_fd);
    }
    if (console_fd >= 0)
        close(console_fd);
    free(console);
    free(socket_path);
    return good;
}

static void remove_directory(const char *directory)
{
    static const char *const names[] = {"console.log", "qmp.sock", "agent.sock", "vmm.log"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = qemu_process_path(directory, names[i]);
        if (path != NULL)
            unlink(path);
        free(path);
    }
    rmdir(directory);
}

// What the answer depends on: this boot of the host, this VMM's name, this kernel.
static void make_key(const struct vm_config *config, char *buffer, size_t size)
{
    char boot[64];
    fd_read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    boot[strcspn(boot, "\n")] = 0;
    struct stat kernel = {0};
    stat(config->kernel_path, &kernel);
    snprintf(buffer, size, "%s %s %s %llu.%llu", boot, config->vmm_path != NULL ? config->vmm_path : "qemu",
            config->kernel_path, (unsigned long long)kernel.st_ino,
            (unsigned long long)kernel.st_mtim.tv_sec);
}

static bool read_cache(const struct vm_config *config, const char *key, enum vm_accel *ret_accel)
{
    JSON_AUTO json_t *cached =
            config->probe_cache != NULL ? json_load_file(config->probe_cache, 0, NULL) : NULL;
    const char *cached_key = json_string_value(json_object_get(cached, "key"));
    const char *accel = json_string_value(json_object_get(cached, "accel"));
    if (cached_key == NULL || accel == NULL || strcmp(cached_key, key) != 0)
        return false;
    *ret_accel = strcmp(accel, "kvm") == 0 ? VM_ACCEL_KVM : VM_ACCEL_TCG;
    return true;
}

static void write_cache(const struct vm_config *config, const char *key, enum vm_accel accel)
{
    char *temporary = NULL;
    if (config->probe_cache == NULL || asprintf(&temporary, "%s.new", config->probe_cache) < 0)
        return;
    JSON_AUTO json_t *cached =
            json_pack("{s:s, s:s}", "key", key, "accel", accel == VM_ACCEL_KVM ? "kvm" : "tcg");
    // A cache that cannot be written only costs the next start some seconds.
    if (json_dump_file(cached, temporary, 0) != 0 || rename(temporary, config->probe_cache) != 0)
        unlink(temporary);
    free(temporary);
}

static enum vm_accel probe(const struct vm_config *config)
{
    if (!device_answers())
        return VM_ACCEL_TCG;
    char directory[] = "/tmp/ramet-probe-XXXXXX";
    if (mkdtemp(directory) == NULL)
        return VM_ACCEL_TCG;
    bool good = boots_under_kvm(config, directory);
    remove_directory(directory);
    return good ? VM_ACCEL_KVM : VM_ACCEL_TCG;
}

int vm_probe_accel(const struct vm_config *config, enum vm_accel *ret_accel, struct error *err)
{
    if (config->kernel_path == NULL || access(config->kernel_path, R_OK) != 0)
        return error_set(err, -ENOENT,
                "choosing an accelerator needs a kernel to boot, and %s cannot be read: give one, or set the "
                "accelerator",
                config->kernel_path != NULL ? config->kernel_path : "none is given");
    char key[600];
    make_key(config, key, sizeof key);
    pthread_mutex_lock(&answer_lock);
    if (!answered) {
        if (!read_cache(config, key, &answer)) {
            answer = probe(config);
            write_cache(config, key, answer);
        }
        answered = true;
    }
    *ret_accel = answer;
    pthread_mutex_unlock(&answer_lock);
    return 0;
}
