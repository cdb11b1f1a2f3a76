// SPDX-License-Identifier: Apache-2.0
// The pool: parked machines of the snapshots that sandboxes are made from. A parked machine was resumed, has
// answered, done the after-fork step, run a command, and then had its processes frozen and its vCPUs
// stopped. A create takes one: its vCPUs go on, it gets fresh randomness, its identity and the right time,
// its processes are thawed, and one record gives it its name. start_mode is "pool" then.
//
// Which: templates from their first create on, other machine snapshots from their second, until nobody made
// one for ten minutes. A parked machine is a row in the catalog like any sandbox, in state "parked" and
// without a name; it is shown nowhere and can be asked for nothing. A daemon that finds one at its start ends
// it, so does one that stops; so does the pool when the snapshot is gone or was replaced, when the host is
// short of memory, and when a machine that somebody asked for has no room. One that does not wake is thrown
// away, and the create goes on as if there had been none.
//
// One thread fills it, a machine at a time, and only while no create is under way. Threads: any that is not a
// loop.
#pragma once

#include "vmglue/sandbox_origin.h"

enum { SANDBOX_POOL_MAX = 16 }; // per snapshot

int sandbox_pool_start(struct sandboxes *all, struct error *err);
// After quiesce: ends every parked machine.
void sandbox_pool_stop(struct sandboxes *all);

// A create begins and ends: the pool waits meanwhile. `machine`: what it is made from (0: boots).
void sandbox_pool_enter(struct sandboxes *all, const struct sandbox_origin *origin);
void sandbox_pool_leave(struct sandboxes *all);
// For a create whose record is filled but for its doc and volumes. True: *ret_sandbox runs, is `record`, and
// is the caller's (op); record was taken over. False: nothing has changed.
bool sandbox_pool_take(struct sandboxes *all, const struct sandbox_origin *origin,
        struct sandbox_record *record, uint64_t started_ns, struct sandbox **ret_sandbox);
// Ends one parked machine to make room; false: there is none.
bool sandbox_pool_give_way(struct sandboxes *all);
// {"size","parked","snapshots":[{"name","parked","taken","missed"}]}, a new reference.
json_t *sandbox_pool_json(struct sandboxes *all);
