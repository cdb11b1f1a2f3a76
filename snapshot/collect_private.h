// SPDX-License-Identifier: Apache-2.0
// Shared by collect.c (slices, commits) and collect_plan.c (what to collect, and whether to believe the
// mark).
#pragma once

#include "snapshot/collect.h"
#include "snapshot/mark.h"

struct collect_seen {
    uint64_t number;
    uint32_t live;
};

struct collect_victim {
    uint64_t number;
    uint32_t live, dead;
    uint64_t file_bytes;
    uint64_t write_bytes; // about what the new generation takes; 0: it is dropped
    int level;            // as of segment_rewrite
    unsigned frame_slots;
};

struct collection {
    const struct store_gc_result *owner;
    unsigned flags;
    bool spends; // may use the reserve
    struct mark *mark;
    uint64_t changed_blocks; // of the store's space, before its cut
    bool marked;
    bool unsealed;                  // no room: it goes by the checkpoint before
    bool again;                     // the second try after such a one
    struct collect_victim *victims; // drops, then by write_bytes
    size_t victim_count, victim_at;
    int failed; // of a victim that was passed over
    struct error failure;
    bool no_space; // for writing: only drops go on
};

// Chooses victims; counts into *result.
void collect_plan(struct collection *collection, struct store_gc_result *result);
// Whether what is live could have shrunk so far since the last collection.
int collect_plausible(struct collection *collection, struct error *err);
// Remembers what is live, for the next one.
void collect_remember(struct collection *collection);
