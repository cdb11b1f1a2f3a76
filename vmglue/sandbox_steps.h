// SPDX-License-Identifier: Apache-2.0
// The steps of every change of a sandbox, each with a name, so that a test can end the daemon, the VMM or
// both exactly there and look at what the next daemon makes of it.
//
// RAMET_TEST_STOP_AT=STEP[:daemon|vmm|both] in the daemon's environment arms one step, once: SIGKILL for the
// daemon (the default), for the VMM of the sandbox, or for both. Unset, a step costs one comparison.
// `rametd --steps` prints the names. Threads: any.
#pragma once

struct sandbox;

enum sandbox_step {
    STEP_CREATE_RECORDED, // volumes and record are there
    STEP_CREATE_RUNNING,
    STEP_VM_SERVED, // of create, start, fork, restore and resume from a snapshot: the disk is served
    STEP_VM_STARTED,
    STEP_VM_ANSWERED,
    STEP_START_RECORDED,
    STEP_START_RUNNING,
    STEP_PAUSE_FROZEN,
    STEP_PAUSE_RECORDED,
    STEP_PAUSE_PAUSED,
    STEP_RESUME_RECORDED,
    STEP_RESUME_CONTINUED,
    STEP_CAPTURE_COPYING, // of snapshot, fork, stop and restore
    STEP_CAPTURE_FREEZING,
    STEP_CAPTURE_PAUSING,
    STEP_CAPTURE_COMMITTING,
    STEP_SNAPSHOT_TAKEN,
    STEP_FORK_CAPTURED,
    STEP_FORK_RUNNING,
    STEP_STOP_CAPTURED,
    STEP_STOP_QUIET, // without memory: file systems frozen, vCPUs stopped
    STEP_STOP_RECORDED,
    STEP_STOP_ENDED,
    STEP_RESTORE_KEPT, // what it was is written down
    STEP_RESTORE_RECORDED,
    STEP_RESTORE_RUNNING,
    STEP_PROMOTE_RECORDED,
    STEP_PROMOTE_REMOVED,
    STEP_REMOVE_RECORDED,
    STEP_REMOVE_ENDED,
    STEP_REMOVE_DELETED,
    STEP_POOL_STANDS, // of a machine for the pool: frozen, its vCPUs stopped
    STEP_POOL_PARKED,
    STEP_POOL_CONTINUED, // of a create that takes one
    STEP_POOL_WOKEN,
    STEP_REQUEST_RECORDED, // of a request with an Idempotency-Key: before its handler
    STEP_REQUEST_MADE,     // after it; the answer is not kept yet
    STEP_COUNT,
};

const char *sandbox_step_name(enum sandbox_step step);
// The sandbox whose VMM it is about; may be NULL.
void sandbox_step(struct sandbox *sandbox, enum sandbox_step step);
