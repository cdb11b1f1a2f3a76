// SPDX-License-Identifier: Apache-2.0
// create, start, rm. Each writes what it is about to do before it does it, and what came of it
// afterwards; what a death of the daemon between the two leaves behind is sorted out by sandbox_recover.c.
#include "blockstore/clock.h"
#include "vmglue/disk_table.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_disks.h"
#include "vmglue/sandbox_origin.h"
#include "vmglue/sandbox_pool.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CPUS = 1, DEFAULT_MEMORY_MB = 512 };

static int check_shape(const struct sandbox_create *create, const struct sandbox_origin *origin,
        struct sandbox_record *record, struct error *err)
{
    bool resumes = origin->memory.value != 0;
    record->cpus = create->cpus != 0 ? create->cpus : resumes ? origin->cpus : DEFAULT_CPUS;
    record->memory_mb = create->memory_mb != 0 ? create->memory_mb
                        : resumes              ? origin->memory_mb
                                               : DEFAULT_MEMORY_MB;
    if (resumes && create->size_is_wish) {
        record->cpus = origin->cpus;
        record->memory_mb = origin->memory_mb;
    }
    if (resumes && record->cpus != origin->cpus)
        return error_set(err, -EINVAL,
                "snapshot \"%s\" is of a machine with %u cpus and cannot go on with %u; leave cpus "
                "out, or boot a new machine from its disk",
                create->from, origin->cpus, record->cpus);
    if (resumes && record->memory_mb != origin->memory_mb)
        return error_set(err, -EINVAL,
                "snapshot \"%s\" is of a machine with %u MiB of memory and cannot go on with %u; "
                "leave memory_mb out, or boot a new machine from its disk",
                create->from, origin->memory_mb, record->memory_mb);
    if (resumes && create->disk_count > 0)
        return error_set(err, -EINVAL,
                "snapshot \"%s\" is of a machine that has its disks; leave the field \"disks\" out, or boot "
                "a new "
                "machine from its disk",
                create->from);
    if (create->disk_bytes != 0 && create->disk_bytes < origin->disk_bytes)
        return error_set(err, -EINVAL, "\"%s\" has a disk of %" PRIu64 " bytes; it cannot shrink to %" PRIu64,
                create->from, origin->disk_bytes, create->disk_bytes);
    if (resumes && create->disk_bytes > origin->disk_bytes)
        return error_set(err, -EINVAL,
                "snapshot \"%s\" is of a machine whose disk cannot grow as it goes on; leave disk_gb out",
                create->from);
    return 0;
}

// The doc and volumes of a sandbox that never was handed out, or is being removed.
static int delete_record(struct sandbox *sandbox, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    struct txn *txn = txn_begin(all->store);
    txn_doc_delete(txn, sandbox->record.doc);
    sandbox_record_delete_volumes(txn, &sandbox->record);
    if (sandbox->record.machine.value != 0)
        txn_doc_delete(txn, sandbox->record.machine);
    int r = txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&all->lock);
    sandbox->removed = true;
    sandbox_tell(sandbox, "removed", NULL);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    return 0;
}

void sandbox_discard(struct sandbox *sandbox)
{
    struct error err;
    sandbox_vm_end(sandbox);
    if (delete_record(sandbox, &err) == 0)
        return;
    sandbox_log(sandbox->all,
            "sandbox %s: it could not be started and cannot be removed now (%s); the next start of the "
            "daemon does it",
            sandbox->record.name, err.text);
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->removed = true;
    pthread_mutex_unlock(&sandbox->all->lock);
}

int sandbox_set_running(
        struct sandbox *sandbox, uint64_t started_ns, const char *mode, unsigned flags, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    sandbox_record_enter(&record, SANDBOX_RUNNING);
    record.reason[0] = '\0';
    record.ready_ms = (clock_monotonic_ns() - started_ns + 500000) / 1000000;
    snprintf(record.start_mode, sizeof record.start_mode, "%s", mode);
    int r = sandbox_record_commit(sandbox, &record, flags, err);
    sandbox_record_free(&record);
    return r;
}

// The journal of a create: volumes and doc in one transaction, state "creating".
static int begin_create(struct sandboxes *all, const struct sandbox_create *create,
        const struct sandbox_origin *origin, struct sandbox_record *record, struct error *err)
{
    struct txn *txn = txn_begin(all->store);
    sandbox_origin_volumes(txn, origin, create->disk_bytes, record);
    int r = origin->memory.value != 0 ? 0 : sandbox_disks_create(all, txn, create, record, err);
    if (r == 0)
        r = sandbox_record_put(txn, record, err);
    if (r < 0) {
        txn_abort(txn);
        return r;
    }
    return txn_commit_wait(txn, 0, err);
}

static void hand_out(struct sandbox *sandbox, const char *notice, json_t **ret_json)
{
    *ret_json = sandbox_json(sandbox);
    if (notice[0] != '\0')
        json_object_set_new(*ret_json, "notice", json_string(notice));
    sandbox_step(sandbox, STEP_CREATE_RUNNING);
    sandbox_finish(sandbox);
}

static int run_create(struct sandboxes *all, const struct sandbox_create *create,
        const struct sandbox_origin *origin, struct sandbox_record *record, json_t **ret_json,
        struct error *err)
{
    uint64_t started_ns = clock_monotonic_ns();
    char notice[256] = "";
    int r = check_shape(create, origin, record, err);
    if (r == 0)
        r = sandbox_network_choose(
                all, create->network, origin->network, &record->network, notice, sizeof notice, err);
    if (r == 0 && notice[0] == '\0' && create->size_is_wish &&
            (record->cpus != create->cpus || record->memory_mb != create->memory_mb))
        snprintf(notice, sizeof notice,
                "\"%.60s\" is of a machine with %u cpus and %u MiB of memory, and goes on with these "
                "whatever "
                "size is asked for",
                create->from, record->cpus, record->memory_mb);
    struct sandbox *sandbox;
    if (r == 0 && sandbox_pool_take(all, origin, record, started_ns, &sandbox)) {
        hand_out(sandbox, notice, ret_json);
        return 0;
    }
    if (r == 0)
        r = sandbox_memory_check(all, 1, record->memory_mb, err);
    if (r == 0)
        r = begin_create(all, create, origin, record, err);
    if (r < 0) {
        sandbox_record_free(record);
        return r;
    }
    sandbox = sandbox_new(all, record);
    sandbox_step(sandbox, STEP_CREATE_RECORDED);
    sandbox->snapshot = origin->machine;
    r = sandbox_vm_start(sandbox, origin->state, origin->state_bytes, origin->compat, err);
    if (r == 0)
        r = sandbox_set_running(
                sandbox, started_ns, origin->state == NULL ? "cold" : "resume", TXN_DURABLE, err);
    if (r == 0) {
        hand_out(sandbox, notice, ret_json);
        return 0;
    }
    sandbox_discard(sandbox);
    sandbox_finish(sandbox);
    return r;
}

int sandbox_create(
        struct sandboxes *all, const struct sandbox_create *create, json_t **ret_json, struct error *err)
{
    struct names *names = &all->config.service->names;
    struct sandbox_origin origin;
    struct sandbox_record record = {.state = SANDBOX_CREATING, .created_wall_ns = clock_wall_ns()};
    int r;
    if (create->name == NULL)
        r = names_make(names, NAMES_SANDBOX, "sandbox", "box", record.name, err);
    else if ((r = names_reserve(names, NAMES_SANDBOX, "sandbox", create->name, err)) == 0)
        snprintf(record.name, sizeof record.name, "%s", create->name);
    if (r < 0)
        return r;
    r = create->disk.value != 0 ? sandbox_origin_of_disk(all, create->disk, &origin, err)
                                : sandbox_origin_find(all, create->from, &origin, err);
    if (r == 0 && origin.memory.value == 0 &&
            disk_table_is_for_4096(all->store, origin.disk_volume, origin.disk)) {
        sandbox_origin_free(&origin);
        r = error_set(err, -EINVAL, "\"%.60s\" cannot boot: %s", create->from, disk_table_notice);
    }
    if (r == 0) {
        sandbox_new_id(record.id);
        snprintf(record.from, sizeof record.from, "%.60s", create->from);
        record.labels = json_deep_copy(create->labels);
        record.defaults = json_incref(origin.defaults);
        record.env = json_deep_copy(create->env);
        record.no_environment = create->no_environment;
        record.ttl_ms = create->ttl_ms;
        record.idle_ms = create->idle_ms;
        record.persistent = create->persistent;
        record.delete_on_timeout = create->delete_on_timeout;
        record.auto_start = create->auto_start;
        record.by = create->by;
        sandbox_pool_enter(all, &origin);
        r = run_create(all, create, &origin, &record, ret_json, err);
        sandbox_pool_leave(all);
        sandbox_origin_free(&origin);
    }
    names_release(names, NAMES_SANDBOX, record.name);
    return r;
}

int sandbox_wrong_state(struct sandbox *sandbox, const char *wanted, const char *remedy, struct error *err)
{
    return error_set(err, -EBUSY, "sandbox \"%s\" is %s, not %s%s%s%s%s%s", sandbox->record.name,
            sandbox_state_name(sandbox->record.state), wanted, remedy == NULL ? "" : "; `",
            remedy == NULL ? "" : remedy, remedy == NULL ? "" : " ",
            remedy == NULL ? "" : sandbox->record.name, remedy == NULL ? "" : "` changes that");
}

int sandbox_check_running(struct sandbox *sandbox, struct error *err)
{
    if (sandbox->record.state == SANDBOX_PAUSED)
        return sandbox_wrong_state(sandbox, "running", "ramet resume", err);
    if (sandbox->record.state != SANDBOX_RUNNING || sandbox->vm == NULL)
        return sandbox_wrong_state(sandbox, "running", "ramet start", err);
    return sandbox_vm_reach(sandbox, err);
}

// ---- start ----

int sandbox_resume_begin(struct sandbox *sandbox, const struct sandbox_origin *origin, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    struct txn *txn = txn_begin(sandbox->all->store);
    sandbox_origin_shape(origin, &record);
    sandbox_origin_volumes(txn, origin, 0, &record);
    record.state = SANDBOX_STARTING;
    int r = sandbox_record_put(txn, &record, err);
    txn_volume_delete(txn, sandbox->record.disk);
    txn_volume_delete(txn, sandbox->record.memory);
    for (unsigned i = 0; origin->memory.value != 0 && i < sandbox->record.more_count; i++)
        txn_volume_delete(txn, sandbox->record.more[i].volume);
    return sandbox_record_end(sandbox, txn, &record, r, 0, err);
}

int sandbox_resume_end(struct sandbox *sandbox, uint64_t started_ns, const char *mode, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    struct txn *txn = txn_begin(sandbox->all->store);
    if (record.machine.value != 0)
        txn_doc_delete(txn, record.machine);
    record.machine = (struct doc_id){0};
    sandbox_record_enter(&record, SANDBOX_RUNNING);
    record.reason[0] = '\0';
    record.ready_ms = (clock_monotonic_ns() - started_ns + 500000) / 1000000;
    snprintf(record.start_mode, sizeof record.start_mode, "%s", mode);
    int r = sandbox_record_put(txn, &record, err);
    return sandbox_record_end(sandbox, txn, &record, r, TXN_DURABLE, err);
}

int sandbox_resume(struct sandbox *sandbox, uint64_t started_ns, struct error *err)
{
    struct sandbox_origin origin;
    int r = sandbox_origin_load(sandbox->all, sandbox->record.machine, &origin, err);
    if (r < 0)
        return r;
    r = sandbox_resume_begin(sandbox, &origin, err);
    sandbox->snapshot = (struct doc_id){0}; // it goes with this start
    if (r == 0) {
        sandbox_step(sandbox, STEP_START_RECORDED);
        r = sandbox_vm_start(sandbox, origin.state, origin.state_bytes, origin.compat, err);
        if (r == 0 && (r = sandbox_resume_end(sandbox, started_ns, "resume", err)) < 0)
            sandbox_vm_end(sandbox);
        if (r < 0)
            sandbox_set_state(sandbox, SANDBOX_STOPPED, err->text);
        else
            sandbox_step(sandbox, STEP_START_RUNNING);
    }
    sandbox_origin_free(&origin);
    return r;
}

static int boot(struct sandbox *sandbox, uint64_t started_ns, struct error *err)
{
    int r = sandbox_record_forget_memory(sandbox, SANDBOX_STARTING, err);
    if (r < 0)
        return r;
    sandbox_step(sandbox, STEP_START_RECORDED);
    r = sandbox_vm_start(sandbox, NULL, 0, NULL, err);
    if (r == 0 && (r = sandbox_set_running(sandbox, started_ns, "cold", TXN_DURABLE, err)) < 0)
        sandbox_vm_end(sandbox);
    if (r < 0)
        sandbox_set_state(sandbox, SANDBOX_STOPPED, err->text);
    else
        sandbox_step(sandbox, STEP_START_RUNNING);
    return r;
}

// The words may be a guest's or its VMM's, and no text: a record could not hold them.
static void take_reason(struct sandbox_record *record, const char *reason)
{
    json_t *text = json_fields_text(reason, strlen(reason));
    const char *words = text == NULL ? "" : json_string_value(text);
    size_t size = strnlen(words, sizeof record->reason - 1);
    snprintf(record->reason, sizeof record->reason, "%.*s", (int)json_fields_utf8_whole(words, size), words);
    json_decref(text);
}

void sandbox_set_state(struct sandbox *sandbox, enum sandbox_state state, const char *reason)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    struct error err;
    sandbox_record_enter(&record, state);
    take_reason(&record, reason);
    if (sandbox_record_commit(sandbox, &record, 0, &err) < 0) {
        sandbox_log(sandbox->all, "sandbox %s: its new state cannot be recorded: %s", record.name, err.text);
        sandbox_record_set(sandbox, &record);
    }
    sandbox_record_free(&record);
}

int sandbox_start(struct sandboxes *all, const char *name, bool cold, json_t **ret_json, struct error *err)
{
    uint64_t started_ns = clock_monotonic_ns();
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being started", &sandbox, err);
    if (r < 0)
        return r;
    enum sandbox_state state = sandbox->record.state;
    if (state == SANDBOX_RUNNING)
        r = 0; // it is as asked for
    else if (state == SANDBOX_PAUSED)
        r = sandbox_wrong_state(sandbox, "stopped", "ramet resume", err);
    else if (state != SANDBOX_STOPPED && state != SANDBOX_FAILED)
        r = sandbox_wrong_state(sandbox, "stopped", NULL, err);
    else if ((r = sandbox_memory_check(all, 1, sandbox->record.memory_mb, err)) < 0)
        ; // it stays as it is
    else if (sandbox->record.machine.value != 0 && !cold)
        r = sandbox_resume(sandbox, started_ns, err);
    else
        r = boot(sandbox, started_ns, err);
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_finish(sandbox);
    sandbox_runtime_collect(all); // the machine snapshot that it came from may have been the last of its
    return r;
}

int sandbox_remove_begun(struct sandbox *sandbox, struct error *err)
{
    if (sandbox->record.state != SANDBOX_REMOVING) {
        struct sandbox_record record = sandbox_record_copy(&sandbox->record);
        record.state = SANDBOX_REMOVING;
        // A store that is full takes what frees space; one that takes nothing more keeps the sandbox as it
        // is.
        int r = sandbox_record_commit(sandbox, &record, TXN_RESERVE, err);
        sandbox_record_free(&record);
        if (r < 0)
            return r;
    }
    sandbox_step(sandbox, STEP_REMOVE_RECORDED);
    sandbox_set_end(sandbox, "it was removed");
    sandbox_vm_end(sandbox); // needs no agent: a guest that hangs can be removed
    sandbox_step(sandbox, STEP_REMOVE_ENDED);
    int r = delete_record(sandbox, err);
    if (r < 0)
        sandbox_log(
                sandbox->all, "sandbox %s: it cannot be removed now: %s", sandbox->record.name, err->text);
    else
        sandbox_step(sandbox, STEP_REMOVE_DELETED);
    return r;
}

int sandbox_wake(struct sandboxes *all, const char *name, bool any, struct error *err)
{
    json_t *json = NULL;
    pthread_mutex_lock(&all->lock);
    const struct sandbox *sandbox = sandbox_find_locked(all, name);
    bool wanted = sandbox != NULL && sandbox->record.state == SANDBOX_STOPPED &&
                  (any || sandbox->record.auto_start);
    pthread_mutex_unlock(&all->lock);
    int r = wanted ? sandbox_start(all, name, false, &json, err) : 0;
    json_decref(json);
    return r;
}

int sandbox_remove(struct sandboxes *all, const char *name, struct error *err)
{
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being removed", &sandbox, err);
    if (r < 0)
        return r;
    r = sandbox_remove_begun(sandbox, err);
    sandbox_finish(sandbox);
    sandbox_runtime_collect(all);
    return r;
}
