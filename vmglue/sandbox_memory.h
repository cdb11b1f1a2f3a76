// SPDX-License-Identifier: Apache-2.0
// The host's memory among sandboxes: who may still start, what each uses, who is stopped when it gets short.
//
// Admission. The budget is what all machines together may grow to. A machine counts, from before its VMM is
// started until after it has ended, as
//     VMM_MB + the larger of (its guest memory * 100 / overcommit percent) and (what it has now: private
//     pages and swap)
// since a guest that was promised memory may touch all of it, but few do. A start that does not fit is
// refused with -ENOMEM before anything is made. A guest that reboots keeps its place, and adopted machines
// have theirs even beyond the budget.
//
// Shortage. Every CHECK_MS the host is asked. It is short when MemAvailable is below `low_bytes`, or below
// four times that while tasks waited for memory FULL_PERCENT of the last ten seconds (PSI). Then nothing new
// is admitted, and one sandbox after another is stopped with its memory, the one that was idle longest
// first, until the host is no longer short: only sandboxes that run, are not persistent, have no call into
// the guest under way and had none for `idle_ms`. The reason is in the record and in the log; `start` brings
// each back.
//
// Threads: any that is not a loop. Nothing here waits for a VMM: see memory_usage.h.
#pragma once

#include "blockstore/error.h"

#include "vmglue/json.h"
#include <stdbool.h>
#include <stdint.h>

struct sandboxes;

struct sandbox_memory_config {
    uint64_t budget_bytes;       // 0 = no limit
    unsigned overcommit_percent; // 100 to 1000; 0 = the default
    uint64_t low_bytes;          // 0 = the default: a twentieth of the host's memory, at least 256 MiB
    uint64_t idle_ms;            // 0 = the default
};
enum {
    SANDBOX_MEMORY_OVERCOMMIT_DEFAULT = 200,
    SANDBOX_MEMORY_OVERCOMMIT_MAX = 1000,
    SANDBOX_MEMORY_IDLE_DEFAULT_MS = 60000,
};

// What a budget is when nobody chose one: four fifths of the host's memory without what the daemon itself may
// take for its caches.
uint64_t sandbox_memory_default_budget(uint64_t cache_bytes);
// The answer of GET /v1/memory; a new reference.
json_t *sandbox_memory_report(struct sandboxes *all);
