// SPDX-License-Identifier: Apache-2.0
// Snapshots and forks of running sandboxes.
//
// A fork is one record in the log: the machine snapshot, and every child's volumes and doc over its bases.
// The source goes on when that record is written; the children are started afterwards, side by side, each in
// a state ("creating") that a restart of the daemon removes, since nobody was told of them yet.
#include "blockstore/clock.h"
#include "vmglue/sandbox_capture.h"
#include "vmglue/sandbox_origin.h"
#include "vmglue/sandbox_steps.h"

#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STARTERS_MAX = 4 };

// The snapshot is whole, but its source did not go on as it should.
static void note_trouble(struct sandbox *sandbox, const struct capture_result *result)
{
    if (result->source_trouble.code == 0)
        return;
    sandbox_log(sandbox->all, "sandbox %s: %s", sandbox->record.name, result->source_trouble.text);
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    snprintf(record.reason, sizeof record.reason, "%.250s", result->source_trouble.text);
    sandbox_record_set(sandbox, &record);
    sandbox_record_free(&record);
}

// Running, or paused: then nothing of it has to be stopped.
static int check_source(struct sandbox *sandbox, struct error *err)
{
    if (sandbox->record.state == SANDBOX_PAUSED && sandbox->vm != NULL && sandbox->memory != NULL)
        return 0;
    return sandbox_check_running(sandbox, err);
}

int sandbox_snapshot(struct sandboxes *all, const char *name, const struct sandbox_snapshot *snapshot,
        json_t **ret_json, struct error *err)
{
    struct service *service = all->config.service;
    char made[NAMES_MAX + 1];
    const char *snapshot_name = snapshot->name;
    struct sandbox_capture capture;
    struct capture_result result;
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being snapshotted", &sandbox, err);
    if (r < 0)
        return r;
    r = check_source(sandbox, err);
    if (r < 0)
        goto out;
    if (snapshot_name != NULL) {
        r = names_reserve(&service->names, NAMES_DATA, "snapshot", snapshot_name, err);
    } else {
        r = names_make(&service->names, NAMES_DATA, "snapshot", sandbox->record.name, made, err);
        snapshot_name = made;
    }
    if (r < 0)
        goto out;
    r = sandbox_capture_begin(sandbox, snapshot->labels, NULL, &snapshot->by, &capture, err);
    if (r == 0) {
        capture.request.name = snapshot_name;
        capture.request.durable = snapshot->wait;
        capture.request.best_effort = snapshot->best_effort;
        r = sandbox_capture_run(&capture, &result, err);
        sandbox_capture_end(&capture);
    }
    if (r == 0) {
        sandbox_step(sandbox, STEP_SNAPSHOT_TAKEN);
        sandbox_tell(sandbox, "snapshot", json_pack("{s:s}", "snapshot", snapshot_name));
        note_trouble(sandbox, &result);
        if (!snapshot->wait)
            snapshot_state_written(service->snapshots, result.ids.machine);
        *ret_json = route_json_snapshot_by_id(service, result.ids.machine);
    }
    names_release(&service->names, NAMES_DATA, snapshot_name);
out:
    sandbox_finish(sandbox);
    return r;
}

// ---- fork ----

struct fork_work {
    struct sandboxes *all;
    const struct sandbox_fork *fork;
    struct sandbox *source;
    struct sandbox_origin origin; // of the children, after the capture
    struct sandbox_record records[SANDBOX_FORKS_MAX];
    struct sandbox *children[SANDBOX_FORKS_MAX];
    unsigned reserved; // names taken so far
    uint64_t started_ns;
    pthread_mutex_t lock;
    unsigned next;    // (lock) child to start
    int result;       // (lock) first failure
    struct error err; // (lock)
};

static int name_children(struct fork_work *work, struct error *err)
{
    struct names *names = &work->all->config.service->names;
    for (unsigned i = 0; i < work->fork->count; i++) {
        struct sandbox_record *record = &work->records[i];
        const char *wanted = work->fork->names[i];
        int r;
        if (wanted == NULL)
            r = names_make(names, NAMES_SANDBOX, "sandbox", work->source->record.name, record->name, err);
        else if ((r = names_reserve(names, NAMES_SANDBOX, "sandbox", wanted, err)) == 0)
            snprintf(record->name, sizeof record->name, "%s", wanted);
        if (r < 0)
            return r;
        work->reserved++;
    }
    return 0;
}

static void fill_record(struct fork_work *work, struct sandbox_record *record)
{
    const struct sandbox_record *source = &work->source->record;
    sandbox_new_id(record->id);
    record->state = SANDBOX_CREATING;
    snprintf(record->from, sizeof record->from, "%s", source->name);
    record->cpus = source->cpus;
    record->memory_mb = source->memory_mb;
    record->network = json_incref(source->network);
    record->defaults = json_incref(source->defaults);
    record->by = made_by_inherit(&source->by, &work->fork->by);
    record->no_environment = source->no_environment;
    record->ttl_ms = source->ttl_ms;
    record->idle_ms = source->idle_ms;
    record->delete_on_timeout = source->delete_on_timeout;
    record->auto_start = source->auto_start;
    snprintf(record->parent_id, sizeof record->parent_id, "%s", source->id);
    record->created_wall_ns = clock_wall_ns();
    record->labels = json_deep_copy(work->fork->labels != NULL ? work->fork->labels : source->labels);
    record->env = source->env == NULL ? json_object() : json_deep_copy(source->env);
    if (work->fork->env != NULL)
        json_object_update(record->env, (json_t *)work->fork->env);
}

// Within the pause: only operations on the transaction.
static int extend_fork(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err)
{
    struct fork_work *work = context;
    struct sandbox_origin origin = {.disk = ids->disks[0],
            .memory = ids->memory,
            .memory_origin = sandbox_memory_origin(work->source)};
    sandbox_origin_take_more(&origin, &work->source->record, ids->disks + 1);
    for (unsigned i = 0; i < work->fork->count; i++) {
        snprintf(work->records[i].tree, sizeof work->records[i].tree, "tree_%" PRIu64, ids->machine.value);
        sandbox_origin_volumes(txn, &origin, 0, &work->records[i]);
        int r = sandbox_record_put(txn, &work->records[i], err);
        if (r < 0)
            return r;
    }
    return 0;
}

static void *start_children(void *context)
{
    struct fork_work *work = context;
    for (;;) {
        pthread_mutex_lock(&work->lock);
        unsigned i = work->result < 0 ? work->fork->count : work->next++;
        pthread_mutex_unlock(&work->lock);
        if (i >= work->fork->count)
            return NULL;
        struct error err;
        int r = sandbox_vm_start(
                work->children[i], work->origin.state, work->origin.state_bytes, work->origin.compat, &err);
        if (r == 0)
            r = sandbox_set_running(work->children[i], work->started_ns, "fork", 0, &err);
        if (r == 0)
            continue;
        pthread_mutex_lock(&work->lock);
        if (work->result == 0) {
            work->result = r;
            work->err = err;
        }
        pthread_mutex_unlock(&work->lock);
    }
}

static int run_children(struct fork_work *work, struct error *err)
{
    pthread_t threads[STARTERS_MAX];
    unsigned started = 0, wanted = work->fork->count < STARTERS_MAX ? work->fork->count : STARTERS_MAX;
    pthread_mutex_init(&work->lock, NULL);
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, start_children, work) == 0)
        started++;
    start_children(work);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&work->lock);
    if (work->result < 0 && err != NULL)
        *err = work->err;
    return work->result;
}

static int capture_source(struct fork_work *work, struct capture_result *ret_result, struct error *err)
{
    struct sandbox_capture capture;
    int r = sandbox_capture_begin(
            work->source, NULL, work->fork->snapshot == NULL ? "fork" : NULL, &work->fork->by, &capture, err);
    if (r < 0)
        return r;
    capture.request.name = work->fork->snapshot;
    capture.request.best_effort = work->fork->best_effort;
    capture.extend = extend_fork;
    capture.context = work;
    r = sandbox_capture_run(&capture, ret_result, err);
    sandbox_capture_end(&capture);
    return r;
}

// A nameless machine snapshot has done its work when the children run; a named one is the user's, unless none
// run: then nothing is left.
static json_t *finish_snapshot(struct fork_work *work, const struct capture_result *result, bool running)
{
    struct service *service = work->all->config.service;
    if (work->fork->snapshot != NULL && running) {
        snapshot_state_written(service->snapshots, result->ids.machine);
        return json_string(work->fork->snapshot);
    }
    struct txn *txn = txn_begin(work->all->store);
    txn_doc_delete(txn, result->ids.machine);
    txn_commit_wait(txn, TXN_RESERVE, NULL); // left over, it goes at the next start
    return json_null();
}

static json_t *fork_json(struct fork_work *work, const struct capture_result *result, json_t *snapshot)
{
    json_t *children = json_array();
    for (unsigned i = 0; i < work->fork->count; i++)
        json_array_append_new(children, sandbox_json(work->children[i]));
    json_t *json = json_pack("{s:o, s:s, s:o, s:o}", "tree_id",
            json_sprintf("tree_%" PRIu64, result->ids.machine.value), "parent", work->source->record.name,
            "snapshot", snapshot, "children", children);
    json_object_set_new(json, "pause_ms", json_real((double)(result->figures.pause_ns / 1000) / 1000));
    json_object_set_new(json, "frozen_ms", json_real((double)(result->figures.freeze_ns / 1000) / 1000));
    json_object_set_new(json, "new_bytes", json_integer((json_int_t)result->figures.bytes));
    return json;
}

static int fork_source(struct fork_work *work, json_t **ret_json, struct error *err)
{
    struct capture_result result;
    for (unsigned i = 0; i < work->fork->count; i++)
        fill_record(work, &work->records[i]);
    int r = capture_source(work, &result, err);
    if (r < 0) {
        for (unsigned i = 0; i < work->fork->count; i++)
            sandbox_record_free(&work->records[i]);
        return r;
    }
    sandbox_step(work->source, STEP_FORK_CAPTURED);
    note_trouble(work->source, &result);
    for (unsigned i = 0; i < work->fork->count; i++)
        work->children[i] = sandbox_new(work->all, &work->records[i]);
    r = sandbox_origin_load(work->all, result.ids.machine, &work->origin, err);
    if (r == 0)
        r = run_children(work, err);
    if (r == 0) {
        sandbox_tell(work->source, "forked",
                json_pack("{s:s, s:i}", "tree_id", work->records[0].tree, "count", (int)work->fork->count));
        sandbox_step(work->source, STEP_FORK_RUNNING);
    }
    json_t *snapshot = finish_snapshot(work, &result, r == 0);
    if (r == 0)
        *ret_json = fork_json(work, &result, snapshot);
    else
        json_decref(snapshot);
    sandbox_origin_free(&work->origin);
    for (unsigned i = 0; i < work->fork->count; i++) {
        if (r < 0)
            sandbox_discard(work->children[i]);
        sandbox_finish(work->children[i]);
    }
    return r;
}

int sandbox_fork(struct sandboxes *all, const char *name, const struct sandbox_fork *fork, json_t **ret_json,
        struct error *err)
{
    struct names *names = &all->config.service->names;
    struct fork_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(err, -ENOMEM, "no memory for the fork");
    work->all = all;
    work->fork = fork;
    work->started_ns = clock_monotonic_ns();
    int r = sandbox_begin(all, name, "being forked", &work->source, err);
    if (r < 0)
        goto out_free;
    bool keeps = false;
    r = check_source(work->source, err);
    if (r == 0)
        r = sandbox_memory_check(all, fork->count, work->source->record.memory_mb, err);
    if (r == 0 && fork->snapshot != NULL) {
        r = names_reserve(names, NAMES_DATA, "snapshot", fork->snapshot, err);
        keeps = r == 0;
    }
    if (r == 0)
        r = name_children(work, err);
    if (r == 0)
        r = fork_source(work, ret_json, err);
    for (unsigned i = 0; i < work->reserved; i++)
        names_release(names, NAMES_SANDBOX, work->records[i].name);
    if (keeps)
        names_release(names, NAMES_DATA, fork->snapshot);
    sandbox_finish(work->source);
out_free:
    free(work);
    return r;
}
