// SPDX-License-Identifier: Apache-2.0
// stop: with memory (a machine snapshot of its own that the next start uses up), or the disks alone.
#include "vmglue/sandbox_capture.h"
#include "vmglue/sandbox_internal.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYNC_TIMEOUT_MS = 60000, PAUSE_TIMEOUT_MS = 10000 };

static int extend_stop(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err)
{
    struct sandbox_record *record = context;
    sandbox_record_enter(record, SANDBOX_STOPPED);
    record->machine = ids->machine;
    record->mapped = record->origin = (struct base_id){0}; // the machine doc keeps what a start needs
    record->pause_frozen = false;
    return sandbox_record_put(txn, record, err);
}

// The machine's state and "stopped" are one record in the log: whatever happens then, the sandbox goes on
// from there.
static int keep_memory(struct sandbox *sandbox, struct sandbox_record *record,
        const struct sandbox_stop_how *how, struct error *err)
{
    struct sandbox_capture capture;
    struct capture_result result;
    if (sandbox->memory == NULL) // a daemon that could not speak with the VMM when it took it over
        sandbox_vm_reach(sandbox, NULL);
    if (sandbox->memory == NULL)
        return error_set(err, -EIO,
                "the memory of sandbox \"%s\" cannot be read, since its VMM does not answer; stop it with "
                "its disks alone and force, or remove it",
                sandbox->record.name);
    int r = sandbox_capture_begin(sandbox, NULL, "stop", NULL, &capture, err);
    if (r < 0)
        return r;
    capture.extend = extend_stop;
    capture.context = record;
    capture.request.leave_paused = true;
    capture.request.max_pause_pages = UINT64_MAX; // nobody waits for it to go on
    // Nothing else will ever start from this state, so nothing draws the same random bytes.
    capture.request.best_effort = capture.request.best_effort || how->force;
    r = sandbox_capture_run(&capture, &result, err);
    sandbox_capture_end(&capture);
    return r; // written; the caller syncs when the VMM is gone
}

// What was done to stop the guest is undone: it goes on as if nobody had asked.
static void let_go_on(struct sandbox *sandbox)
{
    struct error err;
    if (vm_continue(sandbox->vm, &err) < 0)
        sandbox_log(sandbox->all, "sandbox %s: it cannot be continued: %s", sandbox->record.name, err.text);
    if (sandbox->agent != NULL && agent_thaw(sandbox->agent, &err) < 0)
        sandbox_log(
                sandbox->all, "sandbox %s: its file systems stay frozen: %s", sandbox->record.name, err.text);
}

static int quieten(struct sandbox *sandbox, bool force, struct error *err)
{
    int r = sandbox->agent == NULL ? error_set(err, -EPIPE, "its agent does not answer")
                                   : agent_sync(sandbox->agent, true, SYNC_TIMEOUT_MS, err);
    if (r < 0 && !force) {
        error_prefix(err, "the guest did not confirm that its file systems are clean, so it was not stopped "
                          "(force stops it as a power cut would)");
        return r;
    }
    r = vm_pause(sandbox->vm, PAUSE_TIMEOUT_MS, err);
    return force ? 0 : r;
}

static int stop_disk_only(
        struct sandbox *sandbox, struct sandbox_record *record, bool force, struct error *err)
{
    if (record->state == SANDBOX_PAUSED && !force)
        return error_set(err, -EBUSY,
                "sandbox \"%s\" is paused and cannot sync its file systems; resume it first, keep its memory "
                "too, or use force, which stops it as a power cut would",
                record->name);
    bool paused = record->state == SANDBOX_PAUSED;
    int r = paused ? 0 : quieten(sandbox, force, err);
    if (r == 0)
        sandbox_step(sandbox, STEP_STOP_QUIET);
    if (r == 0 && (r = store_flush(sandbox->all->store)) < 0)
        error_set(err, r, "the store cannot sync its log: %s", strerror(-r));
    if (r == 0) {
        sandbox_record_enter(record, SANDBOX_STOPPED);
        record->machine = (struct doc_id){0};
        record->mapped = record->origin = (struct base_id){0};
        record->pause_frozen = false;
        r = sandbox_record_commit(sandbox, record, TXN_DURABLE, err);
    }
    if (r == 0)
        sandbox_step(sandbox, STEP_STOP_RECORDED);
    else if (!paused)
        let_go_on(sandbox);
    return r;
}

static int check(struct sandbox *sandbox, const struct sandbox_stop_how *how, struct error *err)
{
    if (sandbox->record.state == SANDBOX_PAUSED && sandbox->vm != NULL)
        return 0;
    int r = sandbox_check_running(sandbox, err);
    return r < 0 && how->force && sandbox->vm != NULL && sandbox_is_live(sandbox) ? 0 : r;
}

int sandbox_stop_keep(struct sandbox *sandbox, const struct sandbox_stop_how *how, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    snprintf(record.reason, sizeof record.reason, "%s", how->reason);
    int r = check(sandbox, how, err);
    if (r == 0)
        r = how->memory ? keep_memory(sandbox, &record, how, err)
                        : stop_disk_only(sandbox, &record, how->force, err);
    if (r == 0) {
        sandbox_record_set(sandbox, &record);
        sandbox_step(sandbox, STEP_STOP_CAPTURED);
    }
    sandbox_record_free(&record);
    return r;
}

int sandbox_stop_begun(struct sandbox *sandbox, const struct sandbox_stop_how *how, struct error *err)
{
    char words[120];
    int r = sandbox_stop_keep(sandbox, how, err);
    if (r < 0)
        return r;
    snprintf(words, sizeof words, "it was stopped%s%s", how->reason[0] == '\0' ? "" : ": ", how->reason);
    sandbox_set_end(sandbox, words);
    sandbox_vm_end(sandbox);
    sandbox_step(sandbox, STEP_STOP_ENDED);
    r = store_flush(sandbox->all->store);
    return r == 0 ? 0
                  : error_set(err, r,
                            "sandbox \"%s\" is stopped and kept, but the store cannot sync its log: %s",
                            sandbox->record.name, strerror(-r));
}

int sandbox_stop(struct sandboxes *all, const char *name, bool memory, bool force, json_t **ret_json,
        struct error *err)
{
    const struct sandbox_stop_how how = {.memory = memory, .force = force, .reason = ""};
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, SANDBOX_BEING_STOPPED, &sandbox, err);
    if (r < 0)
        return r;
    if (sandbox->record.state != SANDBOX_STOPPED) // otherwise it is as asked for
        r = sandbox_stop_begun(sandbox, &how, err);
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_finish(sandbox);
    return r;
}
