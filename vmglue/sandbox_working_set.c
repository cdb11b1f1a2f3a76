// SPDX-License-Identifier: Apache-2.0
// What a resume of a snapshot touches: recorded once, some seconds after the first one's answer, and brought
// into the page cache by later ones while their VMM starts. And what a resumed machine's memory shares with
// its template's.
//
// The recorder is one thread with a list of sandboxes to look at, each at its time. It holds a sandbox's
// operation while it scans, since that reads the VMM's page map; a sandbox that is gone by then, or stopped,
// is left out, and the next resume of the snapshot is looked at instead.
#include "blockstore/clock.h"
#include "vmglue/sandbox_internal.h"

#include "vmglue/prefetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECORD_AFTER_MS = 4000, WAITING_MAX = 64 };

struct waiting {
    char id[SANDBOX_ID_SIZE];
    unsigned generation; // of its VMM
    struct doc_id snapshot;
    uint64_t due_ns;
};

struct working_set_recorder {
    struct sandboxes *all;
    pthread_t thread;
    pthread_mutex_t lock; // guards what follows; nothing else is taken with it held
    pthread_cond_t changed;
    struct waiting waiting[WAITING_MAX]; // by due_ns
    unsigned count;
    bool stopping;
};

// ---- Recording ----

static void record(struct sandboxes *all, const struct waiting *what)
{
    struct sandbox *sandbox;
    struct working_set set;
    struct error err;
    if (working_set_exists(all->store, what->snapshot) ||
            sandbox_begin(all, what->id, "being looked at", &sandbox, &err) < 0)
        return;
    bool same = sandbox->record.state == SANDBOX_RUNNING && sandbox->vm_generation == what->generation &&
                sandbox->dirty != NULL;
    int r = !same ? -ESRCH
                  : prefetch_record(sandbox->dirty, (uint64_t)sandbox->record.memory_mb << 20, &set, &err);
    sandbox_finish_unused(sandbox);
    if (r < 0)
        return;
    r = working_set_save(all->store, what->snapshot, &set, &err);
    if (r < 0 && r != -EEXIST && r != -ENOENT)
        sandbox_log(all, "a snapshot's working set is not kept: %s", err.text);
    working_set_free(&set);
}

static bool take_due(struct working_set_recorder *recorder, struct waiting *ret_what)
{
    pthread_mutex_lock(&recorder->lock);
    while (!recorder->stopping) {
        if (recorder->count == 0) {
            pthread_cond_wait(&recorder->changed, &recorder->lock);
            continue;
        }
        uint64_t due = recorder->waiting[0].due_ns;
        if (due <= clock_monotonic_ns()) {
            *ret_what = recorder->waiting[0];
            recorder->count--;
            memmove(recorder->waiting, recorder->waiting + 1, recorder->count * sizeof *recorder->waiting);
            break;
        }
        struct timespec until = clock_timespec(due);
        pthread_cond_clockwait(&recorder->changed, &recorder->lock, CLOCK_MONOTONIC, &until);
    }
    bool more = !recorder->stopping;
    pthread_mutex_unlock(&recorder->lock);
    return more;
}

static void *run_recorder(void *context)
{
    struct working_set_recorder *recorder = context;
    struct waiting what;
    while (take_due(recorder, &what))
        record(recorder->all, &what);
    return NULL;
}

int sandbox_working_set_start(struct sandboxes *all, struct error *err)
{
    unsigned removed = 0;
    int r = working_set_clean_up(all->store, &removed, err);
    if (r < 0)
        return r;
    if (removed > 0)
        sandbox_log(all, "%u working sets of snapshots that are gone were removed", removed);
    if (!all->config.working_sets)
        return 0;
    struct working_set_recorder *recorder = calloc(1, sizeof *recorder);
    if (recorder == NULL)
        return error_set(err, -ENOMEM, "no memory");
    recorder->all = all;
    pthread_mutex_init(&recorder->lock, NULL);
    pthread_cond_init(&recorder->changed, NULL);
    if (pthread_create(&recorder->thread, NULL, run_recorder, recorder) != 0) {
        free(recorder);
        return error_set(err, -EAGAIN, "no thread for recording working sets");
    }
    all->recorder = recorder;
    return 0;
}

void sandbox_working_set_stop(struct sandboxes *all)
{
    struct working_set_recorder *recorder = all->recorder;
    if (recorder == NULL)
        return;
    pthread_mutex_lock(&recorder->lock);
    recorder->stopping = true;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
    pthread_join(recorder->thread, NULL);
    pthread_cond_destroy(&recorder->changed);
    pthread_mutex_destroy(&recorder->lock);
    free(recorder);
    all->recorder = NULL;
}

void sandbox_working_set_ready(struct sandbox *sandbox)
{
    struct working_set_recorder *recorder = sandbox->all->recorder;
    bool resumed = sandbox->record.mapped.value != 0; // what a later boot touches is not the snapshot's
    if (recorder == NULL || !resumed || sandbox->snapshot.value == 0 ||
            working_set_exists(sandbox->all->store, sandbox->snapshot))
        return;
    struct waiting what = {.generation = sandbox->vm_generation,
            .snapshot = sandbox->snapshot,
            .due_ns = clock_monotonic_ns() + RECORD_AFTER_MS * UINT64_C(1000000)};
    memcpy(what.id, sandbox->record.id, sizeof what.id);
    pthread_mutex_lock(&recorder->lock);
    if (recorder->count < WAITING_MAX)
        recorder->waiting[recorder->count++] = what; // each is due later than the one before
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

// ---- Before a resume ----

static void start_prefetch(struct sandbox *sandbox, struct memory_map *map)
{
    struct sandboxes *all = sandbox->all;
    struct working_set set;
    struct error err;
    int r = working_set_load(all->store, sandbox->snapshot, map->bytes, &set, &err);
    if (r == 0) {
        sandbox->job = prefetch_start(all->config.service->fuse, map, &set);
        return;
    }
    if (r != -ENOENT)
        sandbox_log(all, "sandbox %s: %s", sandbox->record.name, err.text);
    memory_map_free(map);
}

static int open_origin(
        struct sandbox *sandbox, const struct memory_map *map, struct vm_config *config, struct error *err)
{
    char path[160];
    int extents_fd;
    int r = memory_map_file(map, &extents_fd, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof path, "%s/mem/%llu", sandbox->all->config.run_dir,
            (unsigned long long)map->origin.value);
    int origin_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (origin_fd < 0) {
        r = error_set(err, -errno, "the memory image %s of the machine's template cannot be opened: %s", path,
                strerror(errno));
        close(extents_fd);
        return r;
    }
    config->memory_origin_fd = origin_fd;
    config->memory_extents_fd = extents_fd;
    return 0;
}

// The next snapshot is compared with this machine's own image, and the old origin need not be kept.
static void forget_origin(struct sandbox *sandbox)
{
    if (sandbox->record.origin.value == 0)
        return;
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    record.origin = (struct base_id){0};
    sandbox_record_set(sandbox, &record);
    sandbox_record_free(&record);
}

int sandbox_working_set_prepare(struct sandbox *sandbox, struct vm_config *config, struct error *err)
{
    struct memory_map map;
    sandbox_working_set_cancel(sandbox);
    if (config->memory_image == NULL)
        return 0;
    struct base_id origin = config->preload_library == NULL ? (struct base_id){0} : sandbox->record.origin;
    int r = memory_map_make(sandbox->all->store, sandbox->record.mapped, origin, &map, err);
    if (r < 0)
        return r;
    if (map.origin.value == 0)
        forget_origin(sandbox);
    else
        r = open_origin(sandbox, &map, config, err);
    if (r == 0 && sandbox->all->config.working_sets && sandbox->snapshot.value != 0)
        start_prefetch(sandbox, &map);
    else
        memory_map_free(&map);
    return r;
}

void sandbox_working_set_release(struct vm_config *config)
{
    if (config->memory_origin_fd > 0)
        close(config->memory_origin_fd);
    if (config->memory_extents_fd > 0)
        close(config->memory_extents_fd);
    config->memory_origin_fd = config->memory_extents_fd = 0;
}

void sandbox_working_set_cancel(struct sandbox *sandbox)
{
    sandbox->job = prefetch_end(sandbox->job, true, NULL);
}
