// SPDX-License-Identifier: Apache-2.0
#include "vmglue/qemu_process.h"

#include "blockstore/clock.h"
#include "vmglue/qemu_args.h"
#include "vmglue/unix_socket.h"
#include "vmglue/vm_confine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum { QMP_FD = 3, AGENT_FD = 4, CONSOLE_FD = 5, OWN_FDS = 3, FDS_MAX = 6, ENV_MAX = 10 };

// Descriptors of the VMM: number QMP_FD on, in this order.
struct vmm_fds {
    int fds[FDS_MAX]; // the first OWN_FDS are ours to close, the rest are the caller's
    unsigned count;
    int tap, origin, extents; // as the VMM numbers them; 0 = it has none
};

char *qemu_process_path(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

#if defined(__x86_64__)
static unsigned tsc_khz;

// The counter at a time: of many tries the one that nothing came between, for the host may be busy.
static uint64_t tsc_at(uint64_t *ret_ns)
{
    uint64_t best_ns = UINT64_MAX, best = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t before = clock_ns(CLOCK_MONOTONIC_RAW), ticks = __rdtsc(),
                 after = clock_ns(CLOCK_MONOTONIC_RAW);
        if (after - before >= best_ns)
            continue;
        best_ns = after - before;
        best = ticks;
        *ret_ns = before + best_ns / 2;
    }
    return best;
}

static void measure_tsc(void)
{
    uint64_t start_ns = 0, now_ns = 0, start = tsc_at(&start_ns), now;
    do
        now = tsc_at(&now_ns);
    while (now_ns - start_ns < 20000000);
    tsc_khz = (unsigned)((now - start) * 1000000u / (now_ns - start_ns));
}

unsigned qemu_process_tsc_khz(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, measure_tsc);
    return tsc_khz;
}
#else
unsigned qemu_process_tsc_khz(void)
{
    return 0;
}
#endif

// Nothing of the daemon's environment reaches the VMM, except where its programs and files are.
struct environment {
    char *words[ENV_MAX + 1];
    unsigned count;
    bool failed;
};

static void set_variable(struct environment *environment, const char *name, const char *value)
{
    if (value == NULL || environment->failed)
        return;
    if (environment->count == ENV_MAX ||
            asprintf(&environment->words[environment->count], "%s=%s", name, value) < 0) {
        environment->words[environment->count] = NULL;
        environment->failed = true;
    } else {
        environment->count++;
    }
}

// As the VMM sees it; NULL stays NULL.
static const char *seen(
        const struct vm_config *config, const char *path, char *buffer, struct environment *environment)
{
    if (path == NULL || config->confine == NULL)
        return path;
    if (vm_confine_path(config->confine, path, buffer, VM_CONFINE_PATH) < 0)
        environment->failed = true;
    return buffer;
}

static void set_number(struct environment *environment, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set_variable(environment, name, value == 0 ? NULL : text);
}

static void build_environment(
        const struct vm_config *config, const struct vmm_fds *fds, struct environment *environment)
{
    char library[VM_CONFINE_PATH] = "", image[VM_CONFINE_PATH] = "", socket[VM_CONFINE_PATH] = "";
    bool confined = config->confine != NULL;
    set_variable(environment, "PATH", confined ? NULL : getenv("PATH"));
    set_variable(environment, "TMPDIR", confined ? NULL : config->run_dir);
    set_variable(environment, "LD_LIBRARY_PATH", confined ? VM_CONFINE_LIBRARIES : NULL);
    set_variable(environment, "QEMU_MODULE_DIR", confined ? VM_CONFINE_MODULES : NULL);
    set_variable(environment, "LD_PRELOAD", seen(config, config->preload_library, library, environment));
    if (config->preload_library != NULL) {
        char bytes[24];
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)config->shape.memory_mb << 20);
        // Relative to the working directory, whatever the length of its name.
        set_variable(environment, "RAMET_PRELOAD_SOCKET",
                config->uffd_socket == NULL ? "uffd.sock"
                                            : seen(config, config->uffd_socket, socket, environment));
        set_variable(
                environment, "RAMET_PRELOAD_IMAGE", seen(config, config->memory_image, image, environment));
        set_variable(environment, "RAMET_PRELOAD_RAM_BYTES", config->memory_image == NULL ? bytes : NULL);
        set_number(environment, "RAMET_PRELOAD_ORIGIN_FD", fds->origin);
        set_number(environment, "RAMET_PRELOAD_EXTENTS_FD", fds->extents);
    }
}

static void free_environment(struct environment *environment)
{
    for (unsigned i = 0; i < environment->count; i++)
        free(environment->words[i]);
}

static int spawn(const struct vm_config *config, const struct qemu_args *args, const struct vmm_fds *fds,
        struct qemu_process *ret_process, struct error *err)
{
    struct environment environment = {0};
    build_environment(config, fds, &environment);
    char *log_path = qemu_process_path(config->run_dir, "vmm.log");
    int result = -ENOMEM;
    if (!environment.failed && log_path != NULL) {
        struct vm_process_spawn spawn = {.argv = args->argv,
                .env = (const char *const *)environment.words,
                .working_dir = config->confine != NULL ? "/" : config->run_dir,
                .log_path = log_path,
                .fds = fds->fds,
                .fd_count = fds->count,
                .confine = config->confine,
                .netns_fd = config->netns_fd};
        result = vm_process_spawn(&spawn, &ret_process->identity, &ret_process->pid_fd, err);
    } else {
        error_set(err, result, "no memory for the environment of a VM process");
    }
    free(log_path);
    free_environment(&environment);
    return result;
}

static int listen_in(const char *run_dir, const char *name, int type, int *ret_fd, struct error *err)
{
    char *path = qemu_process_path(run_dir, name);
    if (path == NULL)
        return error_set(err, -ENOMEM, "no memory for a path");
    int result = unix_socket_listen(path, type, 0600, ret_fd, err);
    free(path);
    return result;
}

// The only socket, beside that of the disks, that the VMM itself connects to.
static int listen_for_preload(const struct vm_config *config, int *ret_fd, struct error *err)
{
    if (config->uffd_socket == NULL)
        return listen_in(config->run_dir, "uffd.sock", SOCK_STREAM | SOCK_NONBLOCK, ret_fd, err);
    int fd, result = unix_socket_listen(config->uffd_socket, SOCK_STREAM | SOCK_NONBLOCK, 0600, &fd, err);
    if (result < 0)
        return result;
    if (config->confine != NULL &&
            chown(config->uffd_socket, config->confine->uid, config->confine->gid) < 0) {
        result = error_set(
                err, -errno, "%s cannot be given to its VMM: %s", config->uffd_socket, strerror(errno));
        close(fd);
        return result;
    }
    *ret_fd = fd;
    return 0;
}

// Opened here: the VMM may write to it and nothing else. (The accelerator's probe has a FIFO of that name.)
static int open_console(const char *run_dir, int *ret_fd, struct error *err)
{
    char *path = qemu_process_path(run_dir, "console.log");
    if (path == NULL)
        return error_set(err, -ENOMEM, "no memory for a path");
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), result = 0;
    if (fd < 0)
        result = error_set(err, -errno, "cannot make the console's log %s: %s", path, strerror(errno));
    else
        *ret_fd = fd;
    free(path);
    return result;
}

static int add_fd(struct vmm_fds *fds, int fd)
{
    if (fd <= 0)
        return 0;
    fds->fds[fds->count] = fd;
    return QMP_FD + (int)fds->count++;
}

static void collect_fds(const struct vm_config *config, struct vmm_fds *ret_fds)
{
    *ret_fds = (struct vmm_fds){.fds = {-1, -1, -1}, .count = OWN_FDS};
    ret_fds->tap = add_fd(ret_fds, config->tap_fd);
    if (config->preload_library == NULL || config->memory_image == NULL || config->memory_origin_fd <= 0)
        return;
    ret_fds->origin = add_fd(ret_fds, config->memory_origin_fd);
    ret_fds->extents = add_fd(ret_fds, config->memory_extents_fd);
}

static atomic_bool no_sandbox;

bool qemu_process_leave_out_sandbox(const char *words)
{
    if (strstr(words, "sandbox") == NULL && strstr(words, "seccomp") == NULL)
        return false;
    return !atomic_exchange(&no_sandbox, true);
}

int qemu_process_start(const struct vm_config *config, const char *accel, struct qemu_process *ret_process,
        struct error *err)
{
    struct vmm_fds fds;
    collect_fds(config, &fds);
    struct qemu_args_host host = {.accel = accel,
            .sandbox = !no_sandbox,
            .qmp_fd = QMP_FD,
            .agent_fd = AGENT_FD,
            .console_fd = CONSOLE_FD,
            .tap_fd = fds.tap};
    if (config->shape.machine == VM_MACHINE_MICROVM || strcmp(accel, "tcg") == 0)
        host.tsc_khz = qemu_process_tsc_khz();
    struct qemu_args args;
    int result = qemu_args_build(config, &host, &args, err);
    if (result < 0)
        return result;
    struct qemu_process process = {.pid_fd = -1, .preload_fd = -1};
    result = listen_in(config->run_dir, "qmp.sock", SOCK_STREAM, &fds.fds[0], err);
    if (result == 0)
        result = listen_in(config->run_dir, "agent.sock", SOCK_STREAM, &fds.fds[1], err);
    if (result == 0)
        result = open_console(config->run_dir, &fds.fds[2], err);
    if (result == 0 && config->preload_library != NULL)
        result = listen_for_preload(config, &process.preload_fd, err);
    if (result == 0)
        result = spawn(config, &args, &fds, &process, err);
    // Ours are closed, so that a connect is refused once the VMM is gone.
    for (int i = 0; i < OWN_FDS; i++) {
        if (fds.fds[i] >= 0)
            close(fds.fds[i]);
    }
    qemu_args_free(&args);
    if (result < 0 && process.preload_fd >= 0)
        close(process.preload_fd);
    if (result == 0)
        *ret_process = process;
    return result;
}
