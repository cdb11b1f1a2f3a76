// SPDX-License-Identifier: Apache-2.0
// The waiting calls of store.h for background work.
#include "snapshot/background.h"

#include <pthread.h>
#include <stdlib.h>

struct job_wait {
    struct background_job job;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool finished;
    int result;
    struct error err;
};

static void job_done(struct background_job *job, int result, const struct error *err)
{
    struct job_wait *wait = (struct job_wait *)job;
    pthread_mutex_lock(&wait->lock);
    wait->finished = true;
    wait->result = result;
    wait->err = *err;
    pthread_cond_signal(&wait->changed);
    pthread_mutex_unlock(&wait->lock);
}

static int run_job(struct store *store, struct job_wait *wait, struct error *err)
{
    if (loop_current() != NULL) // waiting on a loop would wait for itself
        abort();
    wait->job.done = job_done;
    pthread_mutex_init(&wait->lock, NULL);
    pthread_cond_init(&wait->changed, NULL);
    background_submit(store, &wait->job);
    pthread_mutex_lock(&wait->lock);
    while (!wait->finished)
        pthread_cond_wait(&wait->changed, &wait->lock);
    pthread_mutex_unlock(&wait->lock);
    pthread_cond_destroy(&wait->changed);
    pthread_mutex_destroy(&wait->lock);
    if (wait->result < 0 && err != NULL)
        *err = wait->err;
    return wait->result;
}

int store_gc(struct store *store, unsigned flags, struct store_gc_result *ret_result, struct error *err)
{
    struct job_wait wait = {.job = {.kind = BACKGROUND_GC, .flags = flags}};
    int r = run_job(store, &wait, err);
    if (r == 0)
        *ret_result = wait.job.result.gc;
    return r;
}

int store_scrub(struct store *store, void (*damaged)(void *context, const char *sentence), void *context,
        struct store_scrub_result *ret_result, struct error *err)
{
    struct job_wait wait = {.job = {.kind = BACKGROUND_SCRUB, .damaged = damaged, .context = context}};
    int r = run_job(store, &wait, err);
    if (r == 0)
        *ret_result = wait.job.result.scrub;
    return r;
}

int store_seal(struct store *store, struct error *err)
{
    struct job_wait wait = {.job.kind = BACKGROUND_SEAL};
    return run_job(store, &wait, err);
}

int store_check(struct store *store, void (*damaged)(void *context, const char *sentence), void *context,
        struct store_check_result *ret_result, struct error *err)
{
    struct job_wait wait = {.job = {.kind = BACKGROUND_CHECK, .damaged = damaged, .context = context}};
    int r = run_job(store, &wait, err);
    if (r == 0)
        *ret_result = wait.job.result.check;
    return r;
}
