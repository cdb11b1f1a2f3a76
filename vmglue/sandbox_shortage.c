// SPDX-License-Identifier: Apache-2.0
// A thread that looks after the host's memory, and stops idle sandboxes to disk when it gets short
// (sandbox_memory.h has the rules).
#include "blockstore/clock.h"
#include "vmglue/sandbox_memory.h"

#include "vmglue/memory_usage.h"
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_MS = 1000, MEASURE_EVERY = 10, LOW_LEAST_MB = 256, LOW_SHARE = 20, FULL_PERCENT = 10 };

static uint64_t low_bytes(const struct sandboxes *all, const struct memory_host *host)
{
    const uint64_t least = (uint64_t)LOW_LEAST_MB << 20, share = host->total_bytes / LOW_SHARE;
    if (all->config.memory.low_bytes != 0)
        return all->config.memory.low_bytes;
    return share < least ? least : share;
}

static bool is_short(const struct memory_host *host, uint64_t low)
{
    bool waits = host->has_pressure && host->full_avg10 >= FULL_PERCENT;
    return host->available_bytes < low || (waits && host->available_bytes / 4 < low);
}

// Asks the host and publishes what it said.
static bool look(struct sandboxes *all, bool *ret_changed)
{
    struct memory_host host;
    struct error err;
    if (memory_usage_host(&host, &err) < 0)
        return false;
    uint64_t low = low_bytes(all, &host);
    bool now = is_short(&host, low);
    pthread_mutex_lock(&all->lock);
    *ret_changed = now != all->memory_short;
    all->memory_short = now;
    all->host_available_bytes = host.available_bytes;
    all->low_bytes = low;
    pthread_mutex_unlock(&all->lock);
    return now;
}

// ---- stopping ----

static bool may_stop_locked(const struct sandbox *sandbox, uint64_t now_ns)
{
    const struct sandbox_memory_config *config = &sandbox->all->config.memory;
    uint64_t idle_ms = config->idle_ms == 0 ? SANDBOX_MEMORY_IDLE_DEFAULT_MS : config->idle_ms;
    return !sandbox->removed && sandbox->record.state == SANDBOX_RUNNING && !sandbox->record.persistent &&
           sandbox->vm != NULL && sandbox->agent != NULL && sandbox->agent_users == 0 &&
           sandbox->active_ns + idle_ms * 1000000 <= now_ns;
}

// Takes the operation of the one that was idle longest. NULL: there is none.
static struct sandbox *take_idlest(struct sandboxes *all)
{
    uint64_t now = clock_boot_ns();
    struct sandbox *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL && !all->quiesced; sandbox = sandbox->next)
        if (sandbox->op == NULL && may_stop_locked(sandbox, now) &&
                (found == NULL || sandbox->active_ns < found->active_ns))
            found = sandbox;
    if (found != NULL) {
        found->references++;
        found->op = SANDBOX_BEING_STOPPED;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

static void stop_idlest(struct sandboxes *all)
{
    struct sandbox *sandbox = take_idlest(all);
    char reason[160];
    struct error err;
    if (sandbox == NULL)
        return;
    pthread_mutex_lock(&all->lock);
    snprintf(reason, sizeof reason,
            "stopped since the host was short of memory (%llu MiB available) and it was idle for %llu s; "
            "start it again",
            (unsigned long long)all->host_available_bytes >> 20,
            (unsigned long long)((clock_boot_ns() - sandbox->active_ns) / 1000000000));
    pthread_mutex_unlock(&all->lock);
    const struct sandbox_stop_how how = {.memory = true, .reason = reason};
    int r = sandbox_stop_begun(sandbox, &how, &err);
    pthread_mutex_lock(&all->lock);
    all->stopped_for_memory += r == 0;
    pthread_mutex_unlock(&all->lock);
    if (r == 0)
        sandbox_log(all, "sandbox %s: %s", sandbox->record.name, reason);
    else
        sandbox_log(all, "sandbox %s: the host is short of memory, but it cannot be stopped: %s",
                sandbox->record.name, err.text);
    sandbox_finish(sandbox); // it counts as used now: others come first before it is tried again
}

// ---- the thread ----

static void *watch_thread(void *context)
{
    struct sandboxes *all = context;
    struct memory_usage sum;
    unsigned unknown;
    for (unsigned turn = 0; sandbox_worker_wait(all, CHECK_MS); turn++) {
        bool changed = false, is = look(all, &changed);
        if (changed)
            sandbox_log(all, "the host %s",
                    is ? "is short of memory; idle sandboxes are stopped" : "has memory again");
        if (is)
            stop_idlest(all);
        if (turn % MEASURE_EVERY == 0)
            sandbox_memory_measure(all, &sum, &unknown);
    }
    sandbox_worker_end(all);
    return NULL;
}

int sandbox_memory_start(struct sandboxes *all, struct error *err)
{
    bool changed;
    look(all, &changed);
    int r = sandbox_worker_start(all, watch_thread, all);
    return r < 0 ? error_set(err, r, "the thread that looks after memory cannot be started: %s", strerror(-r))
                 : 0;
}
