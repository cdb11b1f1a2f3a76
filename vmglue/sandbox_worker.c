// SPDX-License-Identifier: Apache-2.0
// Threads of the sandboxes' own: nobody joins them, but sandbox_stop_all waits until none is left.
#include "blockstore/clock.h"
#include "vmglue/sandbox_internal.h"

#include <pthread.h>
#include <time.h>

int sandbox_worker_start_locked(struct sandboxes *all, void *(*run)(void *context), void *context)
{
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int r = -pthread_create(&thread, &detached, run, context);
    pthread_attr_destroy(&detached);
    all->workers += r == 0; // it cannot have ended: it needs the lock for that
    return r;
}

int sandbox_worker_start(struct sandboxes *all, void *(*run)(void *context), void *context)
{
    pthread_mutex_lock(&all->lock);
    int r = sandbox_worker_start_locked(all, run, context);
    pthread_mutex_unlock(&all->lock);
    return r;
}

void sandbox_worker_end(struct sandboxes *all)
{
    pthread_mutex_lock(&all->lock);
    all->workers--;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

int sandbox_wait_changed_locked(struct sandboxes *all, uint64_t until_ns)
{
    struct timespec until = clock_timespec(until_ns);
    return -pthread_cond_timedwait(&all->changed, &all->lock, &until);
}

bool sandbox_worker_wait(struct sandboxes *all, uint64_t wait_ms)
{
    uint64_t until_ns = clock_monotonic_ns() + wait_ms * 1000000;
    int r = 0;
    pthread_mutex_lock(&all->lock);
    while (!all->quiesced && r == 0)
        r = sandbox_wait_changed_locked(all, until_ns);
    bool go_on = !all->quiesced;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}
