// SPDX-License-Identifier: Apache-2.0
// Room: what the store takes, its quota, and what must stay free so that sealing and collecting can always go
// on.
#pragma once

#include "snapshot/store_private.h"

// Whether ordinary data may take another log file: quota, and free space on the file system. Blocks that are
// in the log will once more need room as segments, so that much stays free besides the reserve. [loop 0]
bool space_may_grow(void *store);
// What the store's files take, as far as the engine counts it itself: log files, segments, catalog. [any]
uint64_t space_counted_bytes(struct store *store);
