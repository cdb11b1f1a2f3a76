// SPDX-License-Identifier: Apache-2.0
#include "vmglue/qemu_process.h"

#include "vmglue/qemu_args.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
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

enum { QMP_FD = 3, AGENT_FD = 4, ENV_MAX = 8 };

char *qemu_process_path(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

#if defined(__x86_64__)
static unsigned tsc_khz;

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// The counter at a time: of many tries the one that nothing came between, for the host may be busy.
static uint64_t tsc_at(uint64_t *ret_ns)
{
    uint64_t best_ns = UINT64_MAX, best = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t before = monotonic_ns(), ticks = __rdtsc(), after = monotonic_ns();
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

static void build_environment(const struct vm_config *config, struct environment *environment)
{
    set_variable(environment, "PATH", getenv("PATH"));
    set_variable(environment, "TMPDIR", config->run_dir);
    set_variable(environment, "LD_PRELOAD", config->preload_library);
    if (config->preload_library != NULL) {
        char bytes[24];
        snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)config->shape.memory_mb << 20);
        // Relative to the working directory, whatever the length of its name.
        set_variable(environment, "RAMET_PRELOAD_SOCKET", "uffd.sock");
        set_variable(environment, "RAMET_PRELOAD_IMAGE", config->memory_image);
        set_variable(environment, "RAMET_PRELOAD_RAM_BYTES", config->memory_image == NULL ? bytes : NULL);
    }
}

static void free_environment(struct environment *environment)
{
    for (unsigned i = 0; i < environment->count; i++)
        free(environment->words[i]);
}

static int spawn(const struct vm_config *config, const struct qemu_args *args, const int fds[2],
        struct qemu_process *ret_process, struct error *err)
{
    struct environment environment = {0};
    build_environment(config, &environment);
    char *log_path = qemu_process_path(config->run_dir, "vmm.log");
    int result = -ENOMEM;
    if (!environment.failed && log_path != NULL) {
        struct vm_process_spawn spawn = {.argv = args->argv,
                .env = (const char *const *)environment.words,
                .working_dir = config->run_dir,
                .log_path = log_path,
                .fds = fds,
                .fd_count = 2};
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
    struct qemu_args_host host = {
            .accel = accel, .sandbox = !no_sandbox, .qmp_fd = QMP_FD, .agent_fd = AGENT_FD};
    if (config->shape.machine == VM_MACHINE_MICROVM || strcmp(accel, "tcg") == 0)
        host.tsc_khz = qemu_process_tsc_khz();
    struct qemu_args args;
    int result = qemu_args_build(config, &host, &args, err);
    if (result < 0)
        return result;
    struct qemu_process process = {.pid_fd = -1, .preload_fd = -1};
    int fds[2] = {-1, -1};
    result = listen_in(config->run_dir, "qmp.sock", SOCK_STREAM, &fds[0], err);
    if (result == 0)
        result = listen_in(config->run_dir, "agent.sock", SOCK_STREAM, &fds[1], err);
    if (result == 0 && config->preload_library != NULL)
        result = listen_in(
                config->run_dir, "uffd.sock", SOCK_STREAM | SOCK_NONBLOCK, &process.preload_fd, err);
    if (result == 0)
        result = spawn(config, &args, fds, &process, err);
    // Ours are closed, so that a connect is refused once the VMM is gone.
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    qemu_args_free(&args);
    if (result < 0 && process.preload_fd >= 0)
        close(process.preload_fd);
    if (result == 0)
        *ret_process = process;
    return result;
}
