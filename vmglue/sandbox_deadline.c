// SPDX-License-Identifier: Apache-2.0
// Deadlines of sandboxes: ttl and idle stop them with their memory, or remove them where that is asked for;
// retention removes those that were stopped for long.
//
// One thread looks when the next one is due, and whenever something changed; acting on one is work for a
// thread of its own, which looks again once it has its turn, since a deadline may have been moved meanwhile.
// Time is sandbox_moment.h's: a step of the wall clock fires nothing.
#include "blockstore/clock.h"
#include "vmglue/sandbox_internal.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The longest sleep: a host that was suspended, or whose clock was set, is noticed so soon.
static const uint64_t LOOK_NS = UINT64_C(5) * 1000000000, RETRY_NS = UINT64_C(60) * 1000000000;

enum deadline { DEADLINE_NONE, DEADLINE_TTL, DEADLINE_IDLE, DEADLINE_KEEP };

struct expiry {
    struct sandboxes *all;
    char id[SANDBOX_ID_SIZE];
};

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// What is due, or *ret_left_ns until the next is. Lock held. `busy`: an operation holds it, which is the
// caller's.
static enum deadline look(
        const struct sandbox *sandbox, const struct sandbox_moment *now, bool ours, uint64_t *ret_left_ns)
{
    const struct sandbox_record *record = &sandbox->record;
    uint64_t elapsed = sandbox_moment_elapsed_ns(&record->since, now);
    if (sandbox_is_live(sandbox)) {
        uint64_t ttl = record->ttl_ms * 1000000, idle = record->idle_ms * 1000000;
        bool used = sandbox->agent_users > sandbox->own_questions || (sandbox->op != NULL && !ours);
        uint64_t quiet = used || now->boot_ns < sandbox->active_ns ? 0 : now->boot_ns - sandbox->active_ns;
        if (ttl != 0 && elapsed >= ttl)
            return DEADLINE_TTL;
        if (idle != 0 && quiet >= idle)
            return DEADLINE_IDLE;
        if (ttl != 0)
            *ret_left_ns = earliest(*ret_left_ns, ttl - elapsed);
        if (idle != 0)
            *ret_left_ns = earliest(*ret_left_ns, idle - quiet);
    } else if (record->state == SANDBOX_STOPPED || record->state == SANDBOX_FAILED) {
        uint64_t keep = sandbox->all->config.keep_stopped_ms * 1000000;
        if (keep == 0 || record->persistent)
            return DEADLINE_NONE;
        if (elapsed >= keep)
            return DEADLINE_KEEP;
        *ret_left_ns = earliest(*ret_left_ns, keep - elapsed);
    }
    return DEADLINE_NONE;
}

// ---- acting on one ----

static int stop(struct sandbox *sandbox, const char *reason, struct error *err)
{
    struct sandbox_stop_how how = {.memory = true, .reason = reason};
    int r = sandbox_stop_begun(sandbox, &how, err);
    if (r == 0 || sandbox->record.state == SANDBOX_STOPPED)
        return r;
    // A guest that does not freeze is stopped as it is; its memory is kept all the same.
    sandbox_log(sandbox->all, "sandbox %s: %s; it is stopped without its processes being frozen",
            sandbox->record.name, err->text);
    how.force = true;
    return sandbox_stop_begun(sandbox, &how, err);
}

static int act(struct sandbox *sandbox, enum deadline due, struct error *err)
{
    char reason[120];
    const struct sandbox_record *record = &sandbox->record;
    switch (due) {
    case DEADLINE_TTL:
        snprintf(reason, sizeof reason, "its ttl of %g s ended", (double)record->ttl_ms / 1000);
        break;
    case DEADLINE_IDLE:
        snprintf(reason, sizeof reason, "it was idle for %g s", (double)record->idle_ms / 1000);
        break;
    case DEADLINE_KEEP:
        sandbox_log(sandbox->all, "sandbox %s: stopped for long enough, it is removed", record->name);
        return sandbox_remove_begun(sandbox, err);
    case DEADLINE_NONE:
        return 0; // moved meanwhile
    }
    if (record->delete_on_timeout) {
        sandbox_log(sandbox->all, "sandbox %s: %s, it is removed", record->name, reason);
        return sandbox_remove_begun(sandbox, err);
    }
    sandbox_log(sandbox->all, "sandbox %s: %s, it is stopped with its memory", record->name, reason);
    return stop(sandbox, reason, err);
}

static void *expire(void *context)
{
    struct expiry *expiry = context;
    struct sandboxes *all = expiry->all;
    struct sandbox *sandbox;
    struct error err;
    if (sandbox_begin(all, expiry->id, SANDBOX_BEING_STOPPED, &sandbox, NULL) == 0) {
        struct sandbox_moment now = sandbox_moment_now();
        uint64_t left = UINT64_MAX;
        pthread_mutex_lock(&all->lock);
        enum deadline due = look(sandbox, &now, true, &left);
        pthread_mutex_unlock(&all->lock);
        int r = act(sandbox, due, &err);
        if (r < 0)
            sandbox_log(all, "sandbox %s: its deadline passed, but: %s; it is tried again in a minute",
                    sandbox->record.name, err.text);
        pthread_mutex_lock(&all->lock);
        sandbox->retry_ns = r < 0 ? clock_boot_ns() + RETRY_NS : 0;
        sandbox->expiring = false;
        pthread_mutex_unlock(&all->lock);
        sandbox_finish_unused(sandbox); // still as idle as before, should it not be stopped
    }
    pthread_mutex_lock(&all->lock);
    for (sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (strcmp(sandbox->record.id, expiry->id) == 0)
            sandbox->expiring = false; // also when it was busy for too long: another try
    pthread_mutex_unlock(&all->lock);
    free(expiry);
    sandbox_worker_end(all);
    return NULL;
}

// Lock held.
static void begin_expiry(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    struct expiry *expiry = calloc(1, sizeof *expiry);
    if (expiry == NULL)
        return;
    expiry->all = all;
    memcpy(expiry->id, sandbox->record.id, sizeof expiry->id);
    sandbox->expiring = true;
    if (sandbox_worker_start_locked(all, expire, expiry) < 0) {
        sandbox->expiring = false;
        free(expiry);
    }
}

// ---- the thread ----

static uint64_t look_at_all(struct sandboxes *all, const struct sandbox_moment *now)
{
    uint64_t left = LOOK_NS;
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
        if (sandbox->removed || sandbox->expiring)
            continue;
        if (sandbox->retry_ns > now->boot_ns)
            left = earliest(left, sandbox->retry_ns - now->boot_ns);
        else if (look(sandbox, now, false, &left) != DEADLINE_NONE)
            begin_expiry(sandbox);
    }
    return left;
}

static void *watch(void *context)
{
    struct sandboxes *all = context;
    struct sandbox_moment last = sandbox_moment_now();
    pthread_mutex_lock(&all->lock);
    while (!all->quiesced) {
        struct sandbox_moment now = sandbox_moment_now();
        int64_t step = sandbox_moment_wall_step_ns(&last, &now);
        if (step != 0)
            sandbox_log(all,
                    "the host's clock was set by %+" PRId64 " s; deadlines go on as before and show the new "
                    "time",
                    step / 1000000000);
        last = now;
        uint64_t left = look_at_all(all, &now) + 1000000;
        sandbox_wait_changed_locked(all, clock_monotonic_ns() + left);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

int sandbox_deadline_start(struct sandboxes *all, struct error *err)
{
    int r = -pthread_create(&all->deadline_thread, NULL, watch, all);
    if (r < 0)
        return error_set(err, r, "the thread that watches deadlines cannot be started: %s", strerror(-r));
    all->deadline_runs = true;
    return 0;
}

void sandbox_deadline_stop(struct sandboxes *all)
{
    if (all->deadline_runs)
        pthread_join(all->deadline_thread, NULL);
    all->deadline_runs = false;
}

static json_t *seconds(uint64_t ms)
{
    return ms == 0          ? json_null()
           : ms % 1000 == 0 ? json_integer((json_int_t)(ms / 1000))
                            : json_real((double)ms / 1000);
}

void sandbox_deadline_describe(const struct sandbox *sandbox, json_t *json)
{
    const struct sandbox_record *record = &sandbox->record;
    struct sandbox_moment now = sandbox_moment_now();
    bool ends = sandbox_is_live(sandbox) && record->ttl_ms != 0;
    json_object_set_new(json, "ttl_secs", seconds(record->ttl_ms));
    json_object_set_new(json, "idle_secs", seconds(record->idle_ms));
    json_object_set_new(json, "persistent", json_boolean(record->persistent));
    json_object_set_new(json, "on_timeout", json_string(record->delete_on_timeout ? "delete" : "stop"));
    json_object_set_new(json, "auto_start", json_boolean(record->auto_start));
    json_object_set_new(json, "expires_at",
            ends ? json_fields_time(sandbox_moment_wall_after_ns(&record->since, record->ttl_ms, &now))
                 : json_null());
}
