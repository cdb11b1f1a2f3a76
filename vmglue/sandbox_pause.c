// SPDX-License-Identifier: Apache-2.0
// pause and resume: the VMM stays, its vCPUs stand still.
//
// User processes are frozen before, as for a snapshot, so that a snapshot of the paused machine needs nothing
// of the guest. A guest that does not freeze is paused all the same; snapshots of it are then refused unless
// best effort is asked for. The record says "paused" before the vCPUs stop and "running" before they go on,
// so that a next daemon knows which of the two was wanted.
#include "vmglue/sandbox_internal.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>

enum { FREEZE_TIMEOUT_MS = 5000, PAUSE_TIMEOUT_MS = 10000 };

static int commit(struct sandbox *sandbox, enum sandbox_state state, bool frozen, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    sandbox_record_enter(&record, state);
    record.pause_frozen = frozen;
    int r = sandbox_record_commit(sandbox, &record, 0, err);
    sandbox_record_free(&record);
    return r;
}

static void thaw(struct sandbox *sandbox)
{
    struct error err;
    if (agent_thaw(sandbox->agent, &err) < 0)
        sandbox_log(
                sandbox->all, "sandbox %s: its processes stay frozen: %s", sandbox->record.name, err.text);
}

static int pause_running(struct sandbox *sandbox, struct error *err)
{
    struct error trouble;
    bool frozen = agent_freeze(sandbox->agent, FREEZE_TIMEOUT_MS, &trouble) == 0;
    if (!frozen)
        sandbox_log(sandbox->all, "sandbox %s: it is paused without its processes being frozen: %s",
                sandbox->record.name, trouble.text);
    sandbox_step(sandbox, STEP_PAUSE_FROZEN);
    int r = commit(sandbox, SANDBOX_PAUSED, frozen, err);
    sandbox_step(sandbox, STEP_PAUSE_RECORDED);
    if (r == 0 && (r = vm_pause(sandbox->vm, PAUSE_TIMEOUT_MS, err)) < 0)
        commit(sandbox, SANDBOX_RUNNING, false, &trouble); // vm_pause has set it off again
    sandbox_step(sandbox, STEP_PAUSE_PAUSED);
    if (r < 0)
        thaw(sandbox);
    return r;
}

int sandbox_pause(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err)
{
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being paused", &sandbox, err);
    if (r < 0)
        return r;
    if (sandbox->record.state != SANDBOX_PAUSED) { // otherwise it is as asked for
        r = sandbox_check_running(sandbox, err);
        if (r == 0)
            r = pause_running(sandbox, err);
    }
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_finish(sandbox);
    return r;
}

// Since the guest's clock stood still too.
static void set_clock(struct sandbox *sandbox)
{
    struct error err;
    if (agent_set_clock(sandbox->agent, &err) < 0)
        sandbox_log(sandbox->all, "sandbox %s: its clock could not be set after a pause: %s",
                sandbox->record.name, err.text);
}

static int resume_paused(struct sandbox *sandbox, struct error *err)
{
    bool frozen = sandbox->record.pause_frozen;
    int r = commit(sandbox, SANDBOX_RUNNING, false, err);
    if (r < 0)
        return r;
    sandbox_step(sandbox, STEP_RESUME_RECORDED);
    r = vm_continue(sandbox->vm, err);
    sandbox_step(sandbox, STEP_RESUME_CONTINUED);
    if (r < 0) { // it stands still as before, and can be asked again
        struct error trouble;
        commit(sandbox, SANDBOX_PAUSED, frozen, &trouble);
        return r;
    }
    bool adopted = sandbox->agent == NULL; // by a daemon that could not reach it while it was paused
    r = sandbox_vm_reach(sandbox, err);
    if (r == 0 && (adopted ? agent_was_frozen(sandbox->agent) : frozen))
        r = agent_thaw(sandbox->agent, err);
    if (r == 0)
        set_clock(sandbox);
    return r;
}

int sandbox_resume_paused(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err)
{
    struct sandbox *sandbox;
    int r = sandbox_begin(all, name, "being resumed", &sandbox, err);
    if (r < 0)
        return r;
    if (sandbox->record.state == SANDBOX_PAUSED && sandbox->vm != NULL)
        r = resume_paused(sandbox, err);
    else if (sandbox->record.state != SANDBOX_RUNNING) // otherwise it is as asked for
        r = sandbox_wrong_state(sandbox, "paused", "ramet start", err);
    if (r == 0)
        *ret_json = sandbox_json(sandbox);
    sandbox_finish(sandbox);
    return r;
}
