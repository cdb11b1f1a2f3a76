// SPDX-License-Identifier: Apache-2.0
#include "vmglue/prefetch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// The part of a set that lies in one image.
struct part {
    struct base_id image;
    struct working_set_range *ranges;
    unsigned count, room;
};

struct working_set_job {
    struct mem_fuse *fuse;
    struct part parts[2]; // the origin's first: more of it is shared by others
    atomic_bool cancel;
    pthread_t thread;
    uint64_t stored_bytes;
};

static int add_to_part(void *context, struct base_id image, uint64_t offset, uint64_t length)
{
    struct working_set_job *job = context;
    struct part *part = image.value == job->parts[0].image.value ? &job->parts[0] : &job->parts[1];
    if (part->count == part->room) {
        unsigned room = part->room == 0 ? 64 : 2 * part->room;
        struct working_set_range *ranges = realloc(part->ranges, room * sizeof *ranges);
        if (ranges == NULL)
            return -ENOMEM;
        part->ranges = ranges;
        part->room = room;
    }
    part->ranges[part->count++] = (struct working_set_range){offset, length};
    return 0;
}

static void *run(void *context)
{
    struct working_set_job *job = context;
    for (unsigned i = 0; i < 2; i++) {
        struct part *part = &job->parts[i];
        uint64_t stored = 0;
        if (part->count > 0)
            mem_fuse_prefetch(job->fuse, part->image, part->ranges, part->count, &job->cancel, &stored, NULL);
        job->stored_bytes += stored;
    }
    return NULL;
}

static struct working_set_job *free_job(struct working_set_job *job)
{
    free(job->parts[0].ranges);
    free(job->parts[1].ranges);
    free(job);
    return NULL;
}

static bool start_thread(struct working_set_job *job)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the daemon's own threads
    int result = pthread_create(&job->thread, NULL, run, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result == 0;
}

struct working_set_job *prefetch_start(struct mem_fuse *fuse, struct memory_map *map, struct working_set *set)
{
    struct working_set_job *job = calloc(1, sizeof *job);
    if (job != NULL) {
        job->fuse = fuse;
        job->parts[0].image = map->origin;
        job->parts[1].image = map->own;
        if (memory_map_split(map, set->ranges, set->count, add_to_part, job) < 0 || !start_thread(job))
            job = free_job(job);
    }
    memory_map_free(map);
    working_set_free(set);
    return job;
}

void prefetch_cancel(struct working_set_job *job)
{
    if (job != NULL)
        atomic_store(&job->cancel, true);
}

struct working_set_job *prefetch_end(struct working_set_job *job, bool cancel, uint64_t *ret_stored_bytes)
{
    if (job == NULL)
        return NULL;
    if (cancel)
        prefetch_cancel(job);
    pthread_join(job->thread, NULL);
    if (ret_stored_bytes != NULL)
        *ret_stored_bytes = job->stored_bytes;
    return free_job(job);
}

static void add_present(void *context, uint64_t offset, uint64_t length)
{
    struct working_set *set = context;
    uint64_t left = (WORKING_SET_PAGES_MAX - set->pages) * WORKING_SET_PAGE_BYTES;
    working_set_add(set, offset, length < left || left == 0 ? length : left); // more than fits is left out
}

int prefetch_record(
        struct dirty_pages *dirty, uint64_t memory_bytes, struct working_set *ret_set, struct error *err)
{
    struct working_set set;
    int result = working_set_init(&set, memory_bytes);
    if (result < 0)
        return error_set(err, result, "no memory for a working set");
    result = dirty_pages_present(dirty, add_present, &set, err);
    if (result < 0)
        working_set_free(&set);
    else
        *ret_set = set;
    return result;
}
