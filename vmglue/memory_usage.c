// SPDX-License-Identifier: Apache-2.0
#include "vmglue/memory_usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "blockstore/clock.h"
#include "blockstore/fd.h"

enum { READER_STACK_BYTES = 256 << 10 };

// ---- the host ----

// A whole number in a file of its own; UINT64_MAX when there is none ("max", no such file).
static uint64_t number_in(const char *path)
{
    FILE *file = fopen(path, "re");
    uint64_t value = UINT64_MAX;
    if (file == NULL)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

static void read_pressure(struct memory_host *host)
{
    FILE *file = fopen("/proc/pressure/memory", "re");
    if (file == NULL)
        return;
    host->has_pressure =
            fscanf(file, "some avg10=%lf %*[^\n] full avg10=%lf", &host->some_avg10, &host->full_avg10) == 2;
    fclose(file);
}

int memory_usage_host(struct memory_host *ret_host, struct error *err)
{
    struct memory_host host = {0};
    const struct {
        const char *name;
        uint64_t *value;
    } wanted[] = {{"MemTotal:", &host.total_bytes}, {"MemAvailable:", &host.available_bytes},
            {"SwapTotal:", &host.swap_total_bytes}, {"SwapFree:", &host.swap_free_bytes}};
    char line[256], name[64];
    uint64_t kib;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return error_set(err, -errno, "/proc/meminfo cannot be read: %s", strerror(errno));
    while (fgets(line, sizeof line, file) != NULL)
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            if (sscanf(line, "%63s %" SCNu64 " kB", name, &kib) == 2 && strcmp(name, wanted[i].name) == 0)
                *wanted[i].value = kib << 10;
    fclose(file);
    if (host.total_bytes == 0)
        return error_set(err, -EPROTO, "/proc/meminfo does not say how much memory there is");
    // Inside a container the machine's total is not ours to use.
    const uint64_t limits[] = {
            number_in("/sys/fs/cgroup/memory.max"), number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i] < host.total_bytes)
            host.total_bytes = limits[i];
    read_pressure(&host);
    *ret_host = host;
    return 0;
}

// ---- one process ----

struct memory_probe {
    atomic_uint references;
    int process_fd; // /proc/PID: what is opened below it is of that process or of none
    uint64_t address, bytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reading;             // (lock)
    uint64_t asked, answered; // (lock) readings begun and ended
    bool known;               // (lock)
    struct memory_usage last; // (lock)
};

static uint64_t start_time_of(int process_fd)
{
    char text[1024];
    if (fd_read_text(process_fd, "stat", text, sizeof text) <= 0)
        return 0;
    const char *at = strrchr(text, ')'); // the name before it may hold anything
    for (unsigned field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

int memory_usage_open(pid_t pid, uint64_t start_time_ticks, uint64_t address, uint64_t bytes,
        struct memory_probe **ret_probe, struct error *err)
{
    char path[32];
    pthread_condattr_t monotonic;
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || start_time_of(fd) != start_time_ticks) {
        if (fd >= 0)
            close(fd);
        return error_set(err, -ESRCH, "process %d is gone", (int)pid);
    }
    struct memory_probe *probe = calloc(1, sizeof *probe);
    if (probe == NULL) {
        close(fd);
        return error_set(err, -ENOMEM, "no memory");
    }
    atomic_init(&probe->references, 1);
    probe->process_fd = fd;
    probe->address = address;
    probe->bytes = bytes;
    pthread_mutex_init(&probe->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&probe->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *ret_probe = probe;
    return 0;
}

struct memory_probe *memory_usage_share(struct memory_probe *probe)
{
    if (probe != NULL)
        atomic_fetch_add(&probe->references, 1);
    return probe;
}

struct memory_probe *memory_usage_close(struct memory_probe *probe)
{
    if (probe == NULL || atomic_fetch_sub(&probe->references, 1) > 1)
        return NULL;
    close(probe->process_fd);
    pthread_cond_destroy(&probe->changed);
    pthread_mutex_destroy(&probe->lock);
    free(probe);
    return NULL;
}

// Of one mapping.
struct mapping {
    bool guest;
    uint64_t rss, pss, anonymous, swap, swap_pss;
};

static void add_mapping(const struct mapping *mapping, struct memory_usage *usage)
{
    uint64_t anonymous = mapping->anonymous, rss = mapping->rss, pss = mapping->pss;
    if (!mapping->guest) {
        usage->vmm_bytes += pss + mapping->swap_pss;
        return;
    }
    usage->private_bytes += anonymous;
    usage->swapped_bytes += mapping->swap;
    usage->shared_bytes += rss > anonymous ? rss - anonymous : 0;
    usage->shared_part_bytes += pss > anonymous ? pss - anonymous : 0;
}

static bool read_mappings(struct memory_probe *probe, struct memory_usage *usage)
{
    struct mapping mapping = {0};
    const struct {
        const char *name;
        uint64_t *value;
    } wanted[] = {{"Rss", &mapping.rss}, {"Pss", &mapping.pss}, {"Anonymous", &mapping.anonymous},
            {"Swap", &mapping.swap}, {"SwapPss", &mapping.swap_pss}};
    char line[512], name[64];
    uint64_t start, end, kib;
    int fd = openat(probe->process_fd, "smaps", O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool any = false;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
            add_mapping(&mapping, usage);
            mapping = (struct mapping){
                    .guest = start >= probe->address && end <= probe->address + probe->bytes};
            any = true;
        } else if (sscanf(line, "%63[^:]: %" SCNu64 " kB", name, &kib) == 2) {
            for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
                if (strcmp(name, wanted[i].name) == 0)
                    *wanted[i].value = kib << 10;
        }
    }
    add_mapping(&mapping, usage);
    fclose(file);
    return any; // a process that has ended has no mappings
}

static void *read_thread(void *context)
{
    struct memory_probe *probe = context;
    struct memory_usage usage = {0};
    bool read = read_mappings(probe, &usage);
    pthread_mutex_lock(&probe->lock);
    if (read) {
        usage.at_ns = clock_monotonic_ns();
        probe->last = usage;
        probe->known = true;
    }
    probe->reading = false;
    probe->answered = probe->asked;
    pthread_cond_broadcast(&probe->changed);
    pthread_mutex_unlock(&probe->lock);
    memory_usage_close(probe);
    return NULL;
}

void memory_usage_begin(struct memory_probe *probe)
{
    pthread_attr_t detached;
    pthread_t thread;
    pthread_mutex_lock(&probe->lock);
    bool begin = !probe->reading;
    if (begin) {
        probe->reading = true;
        probe->asked++;
    }
    pthread_mutex_unlock(&probe->lock);
    if (!begin)
        return;
    memory_usage_share(probe); // the thread's
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, READER_STACK_BYTES);
    if (pthread_create(&thread, &detached, read_thread, probe) != 0) {
        pthread_mutex_lock(&probe->lock);
        probe->reading = false;
        probe->answered = probe->asked; // nobody should wait for it
        pthread_mutex_unlock(&probe->lock);
        memory_usage_close(probe);
    }
    pthread_attr_destroy(&detached);
}

bool memory_usage_take(struct memory_probe *probe, uint64_t deadline_ns, struct memory_usage *ret_usage)
{
    struct timespec until = clock_timespec(deadline_ns);
    int r = 0;
    pthread_mutex_lock(&probe->lock);
    while (probe->answered < probe->asked && r == 0)
        r = pthread_cond_timedwait(&probe->changed, &probe->lock, &until);
    bool known = probe->known;
    if (known)
        *ret_usage = probe->last;
    pthread_mutex_unlock(&probe->lock);
    return known;
}
