// SPDX-License-Identifier: Apache-2.0
// Room: what the store takes, its quota, and what must stay so that sealing and collecting can always go on.
//
// Three lines of defence against a full file system. Ordinary data may take another log file only while
// enough stays free to seal what is in the log, besides a reserve. Deletions write to log files that are
// there already (log.h). And the reserve is also kept as a file, STORE/reserve, in case somebody else fills
// the file system: it goes when a checkpoint or a collection finds no room, and is made again when there is
// some.
#pragma once

#include "blockstore/task.h"
#include "snapshot/store_private.h"

// Whether ordinary data may take another log file: quota, and free space on the file system. Blocks that are
// in the log will once more need room as segments, so that much stays free besides the reserve. [loop 0, and
// the background task]
bool space_may_grow(void *store);
// Whether the log file at hand may be filled with data: whether it could be sealed then. A cut makes a new
// file without asking, so that data would else come in file by file until nothing can be sealed. [loop 0]
bool space_may_fill(void *store);
// Whether file system and quota have room for so much. [any thread; blocks shortly]
bool space_has(struct store *store, uint64_t bytes);

// ---- By the background task ----

// Gives the reserve to the collection at hand if it may have it (checkpoint->spend_reserve); false: there is
// none.
bool space_reserve_spend(struct task *task, struct store *store);
// Makes it, if it is missing and there is ample room. Without it everything works, but for rescue.
void space_reserve_make(struct task *task, struct store *store, bool collected);
// Unlinks files that the segment table does not name and nobody reads any more, and lets writers look again
// whether there is room.
void space_clear(struct task *task, struct store *store);

// What `du` says of the store's directory, by kind. On a loop: as it was at the last call elsewhere. [any]
struct space_use {
    uint64_t log_bytes, segment_bytes, catalog_bytes, other_bytes;
};
void space_measure(struct store *store, struct space_use *ret_use);
uint64_t space_reserve_bytes(struct store *store); // what is kept free, by a file of that size
