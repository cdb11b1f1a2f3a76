// SPDX-License-Identifier: Apache-2.0
// Clients that do everything the engine offers, chosen by seed, and tell the model what they did. Several run
// at a time, on all loops: their requests overlap, race with freezes, meet a full log.
// Requests start either from a done callback (on a loop) or from workload_poll (outside the loops).
#pragma once

#include "tests/crash/model.h"

struct workload_options {
    unsigned clients;        // at a time
    unsigned operations;     // in all
    unsigned max_volumes;    // 1..12
    uint64_t max_blocks;     // of a small volume
    unsigned shared_percent; // of writes whose blocks are copies of
    unsigned distinct;       //   so many, 1..256
    bool domains;            // put volumes into dedup domains 0..2
    unsigned chore_percent;  // of requests: seals, collections, scrubs
    bool vast;               // keep a 1 TiB volume among them
    bool faults;             // -EIO and -ESTALE are expected
    bool never_full;         // -ENOSPC is a failure
    bool rewrite_only;       // only writes, flushes and reads: what must never run out of log space
};

struct workload;

struct workload *workload_create(struct sim_world *world, struct store *store, struct model *model,
        uint64_t seed, const struct workload_options *options);
// Starts requests for idle clients. Returns false when all operations have been started.
bool workload_poll(struct workload *workload);
// No more requests start, until resumed.
void workload_pause(struct workload *workload, bool pause);
bool workload_quiet(const struct workload *workload); // nothing is unanswered
// What went wrong, or NULL.
const char *workload_failure(const struct workload *workload);
unsigned workload_started(const struct workload *workload);
uint64_t workload_progress(const struct workload *workload); // changes when a request starts or is answered
// Closes handles and frees; nothing may be unanswered.
struct workload *workload_destroy(struct workload *workload);
