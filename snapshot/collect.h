// SPDX-License-Identifier: Apache-2.0
// Collecting: finds what nobody needs (mark.h) and gives its space back. Segments in which nothing is live
// are dropped, others are written again under their number without their dead slots. The rows are committed
// before a file goes, and nothing that was committed is changed in place, so a collection can end at any
// moment.
//
// It runs in slices of the background task: between two of them other jobs run, seals above all, since
// writers wait for those when the log is full. From the end of the mark to the end of the collection what is
// dead is hidden from sealing (collect_doomed), so no new tree can come to need it.
#pragma once

#include "blockstore/task.h"
#include "snapshot/store_private.h"

struct collection; // one that is under way

// What the last collection left, and how much has changed since. The background task's; other threads read
// the numbers for statistics.
struct collect_memory {
    struct collect_seen *seen; // live slots by segment, ascending by number
    size_t seen_count;
    uint64_t changed_blocks;     // of the store's space, before the cut of that collection
    _Atomic uint64_t dead_slots; // that it found and left
    _Atomic uint64_t unique_blocks, mapped_blocks;
    _Atomic bool known;
};

// One slice. -EAGAIN: another job waits; call again with the same ret_result. Any other failure: the
// collection is over, what it had committed stays.
enum { COLLECT_OF_ITSELF = 1 << 16 }; // flag: nobody asked for it
int collect_run(struct task *task, struct store *store, unsigned flags, struct store_gc_result *ret_result,
        struct error *err);
// Whether a collection is worth its reading: by what has changed since the last one, and by how much room is
// left. [loop 0]
bool collect_wanted(struct store *store);
// A slot that the collection under way has found dead. [the task]
bool collect_doomed(struct store *store, locator_t locator);
void collect_close(struct store *store); // frees what a collection keeps
