// SPDX-License-Identifier: Apache-2.0
// restore: a sandbox becomes what a snapshot holds, in place.
//
// One that is stopped takes a copy of the snapshot as what its next start goes on from: one record, nothing
// else can fail. One that runs is stopped with its memory first, exactly as `stop` would; then the snapshot
// is started in its place. Should that fail, it goes back to what was kept; should the daemon die, the record
// says "stopped" (or "starting", which a restart makes "stopped") with what was kept as its memory.
#include "blockstore/clock.h"
#include "vmglue/sandbox_origin.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find(struct sandboxes *all, const char *snapshot, struct sandbox_origin *ret_origin,
        struct doc_id *ret_doc, struct error *err)
{
    struct disks_ref ref;
    int r = disks_find(&all->config.service->disks, snapshot, &ref, err);
    if (r < 0)
        return r;
    if (ref.kind != DISKS_MACHINE && ref.kind != DISKS_SNAPSHOT)
        return error_set(err, -EINVAL,
                "\"%.60s\" is no snapshot; a sandbox can be restored to a snapshot of a machine or of a disk",
                snapshot);
    r = sandbox_origin_find(all, snapshot, ret_origin, err);
    if (r == 0)
        *ret_doc = ref.doc;
    return r;
}

// ---- stopped ----

// The snapshot's doc again, without a name: the start that uses it up deletes it.
static int copy_machine(struct sandboxes *all, struct txn *txn, struct doc_id id,
        const struct sandbox_origin *origin, struct doc_id *ret_id, struct error *err)
{
    struct doc doc = {0};
    int r = store_doc_get(all->store, id, &doc);
    if (r < 0)
        return error_set(err, r, "the snapshot is gone");
    doc.id = (struct doc_id){0};
    doc.name[0] = '\0';
    *ret_id = txn_doc_put(txn, &doc, origin->state, origin->state_bytes);
    doc_free(&doc);
    return 0;
}

// Volumes and memory in one record: whatever fails, it is as it was.
static int swap_stopped(struct sandbox *sandbox, const struct sandbox_origin *origin, struct doc_id snapshot,
        const char *from, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    struct txn *txn = txn_begin(sandbox->all->store);
    sandbox_origin_shape(origin, &record);
    sandbox_origin_volumes(txn, origin, 0, &record);
    record.mapped = record.origin = (struct base_id){0};
    record.machine = (struct doc_id){0};
    record.reason[0] = '\0';
    sandbox_record_enter(&record, SANDBOX_STOPPED);
    snprintf(record.from, sizeof record.from, "%.60s", from);
    int r = origin->memory.value == 0
                    ? 0
                    : copy_machine(sandbox->all, txn, snapshot, origin, &record.machine, err);
    if (r == 0)
        r = sandbox_record_put(txn, &record, err);
    txn_volume_delete(txn, sandbox->record.disk);
    txn_volume_delete(txn, sandbox->record.memory);
    for (unsigned i = 0; origin->memory.value != 0 && i < sandbox->record.more_count; i++)
        txn_volume_delete(txn, sandbox->record.more[i].volume);
    if (sandbox->record.machine.value != 0)
        txn_doc_delete(txn, sandbox->record.machine);
    r = sandbox_record_end(sandbox, txn, &record, r, TXN_DURABLE, err);
    if (r == 0)
        sandbox_step(sandbox, STEP_RESTORE_RECORDED);
    return r;
}

// ---- running ----

// What it was goes on. It was paused or ran; it runs now.
static void go_back(struct sandbox *sandbox, struct error *err)
{
    struct error again;
    if (sandbox->record.state != SANDBOX_STOPPED)
        sandbox_set_state(sandbox, SANDBOX_STOPPED, "");
    if (sandbox_resume(sandbox, clock_monotonic_ns(), &again) == 0)
        error_prefix(err, "the snapshot could not be started, and the sandbox goes on as it was");
    else
        error_prefix(err,
                "the snapshot could not be started, and the sandbox is stopped, with its memory and disks as "
                "they were (%.120s)",
                again.text);
}

static int start_snapshot(struct sandbox *sandbox, const struct sandbox_origin *origin, const char *from,
        uint64_t started_ns, struct error *err)
{
    int r = sandbox_resume_begin(sandbox, origin, err);
    if (r < 0)
        return r;
    sandbox_step(sandbox, STEP_RESTORE_RECORDED);
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    snprintf(record.from, sizeof record.from, "%.60s", from);
    sandbox_record_set(sandbox, &record); // committed with "running"
    sandbox_record_free(&record);
    sandbox->snapshot = origin->machine;
    r = sandbox_vm_start(sandbox, origin->state, origin->state_bytes, origin->compat, err);
    if (r == 0 && (r = sandbox_resume_end(sandbox, started_ns, "restore", err)) < 0)
        sandbox_vm_end(sandbox);
    if (r == 0)
        sandbox_step(sandbox, STEP_RESTORE_RUNNING);
    return r;
}

static int replace_live(
        struct sandbox *sandbox, const struct sandbox_origin *origin, const char *from, struct error *err)
{
    const struct sandbox_stop_how how = {.memory = true, .reason = "it is being restored to a snapshot"};
    uint64_t started_ns = clock_monotonic_ns();
    char old_from[sizeof sandbox->record.from], words[120];
    snprintf(old_from, sizeof old_from, "%s", sandbox->record.from);
    int r = sandbox_vm_check(sandbox, origin, err); // before anything is touched
    if (r == 0)
        r = sandbox_stop_keep(sandbox, &how, err);
    if (r < 0)
        return r;
    sandbox_step(sandbox, STEP_RESTORE_KEPT);
    snprintf(words, sizeof words, "it was restored to snapshot \"%.60s\"", from);
    sandbox_set_end(sandbox, words);
    sandbox_vm_end(sandbox);
    r = start_snapshot(sandbox, origin, from, started_ns, err);
    if (r < 0) {
        struct sandbox_record record = sandbox_record_copy(&sandbox->record);
        snprintf(record.from, sizeof record.from, "%s", old_from);
        sandbox_record_set(sandbox, &record);
        sandbox_record_free(&record);
        go_back(sandbox, err);
    }
    return r;
}

int sandbox_restore(
        struct sandboxes *all, const char *name, const char *snapshot, json_t **ret_json, struct error *err)
{
    struct sandbox_origin origin = {0};
    struct doc_id doc = {0};
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being restored", &sandbox, err);
    if (r < 0)
        return r;
    r = find(all, snapshot, &origin, &doc, err);
    if (r < 0) {
        if (r == -ENOENT) // what is missing is not the sandbox
            error_set(err, -EINVAL,
                    "field \"snapshot\": there is no snapshot called \"%.60s\"; `ramet snapshots` lists them",
                    snapshot);
        sandbox_finish(sandbox);
        return r == -ENOENT ? -EINVAL : r;
    }
    if (sandbox_is_live(sandbox))
        r = replace_live(sandbox, &origin, snapshot, err);
    else if (sandbox->record.state == SANDBOX_STOPPED || sandbox->record.state == SANDBOX_FAILED)
        r = swap_stopped(sandbox, &origin, doc, snapshot, err);
    else
        r = sandbox_wrong_state(sandbox, "running or stopped", NULL, err);
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_origin_free(&origin);
    sandbox_finish(sandbox);
    return r;
}
