// SPDX-License-Identifier: Apache-2.0
// Marking: which slots of which segments the committed checkpoint needs. For collections, and for statistics.
// Runs in the background task, in slices: between two slices other jobs may run, checkpoints too. The
// argument why nothing else can be needed is at the top of mark.c.
#pragma once

#include "snapshot/checkpoint.h"

struct mark_segment {
    struct segment_row row;
    uint64_t *live;   // bitmap of SEGMENT_BITMAP_WORDS; NULL: nothing
    uint64_t *mapped; // NODES: by slot, blocks with data below that node
    uint32_t live_count;
};

struct mark {
    struct store *store;
    struct mark_segment *segments; // ascending by number
    size_t segment_count, segment_capacity, segment_at;
    uint64_t next_segment; // when it was finished: later segments were not looked at
    uint64_t covers;       // 1 + count of the checkpoint whose roots are in the list; 0 = none yet
    struct mark_root *roots;
    size_t root_count, root_capacity, root_at;
    struct mark_level *levels; // the way down to the node at hand
    unsigned depth;
    // Results:
    uint64_t data_slots, node_slots; // live ones
    uint64_t mapped_blocks;          // sum over volumes and bases
};

struct mark *mark_new(struct store *store);
struct mark *mark_free(struct mark *mark); // accepts NULL, returns NULL
// 0: finished, -EAGAIN: another job waits, go on later; else it failed, and the mark says nothing.
int mark_run(struct task *task, struct mark *mark, struct error *err);
// The entry of a segment, or NULL when it is not known.
struct mark_segment *mark_find(struct mark *mark, uint64_t number);
static inline bool mark_has(const struct mark_segment *segment, uint32_t slot)
{
    return segment->live != NULL && (segment->live[slot / 64] >> (slot % 64) & 1);
}
