// SPDX-License-Identifier: Apache-2.0
// Checkpoints of simulated loops: rows that belong to a directory of the simulated disk. A commit replaces
// them all, at one moment, and is durable with it: nothing that was written before and not synced survives a
// power cut with them. If the directory's own name is lost, so are they.
//
// Not thread-safe. Memory exhaustion aborts.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "blockstore/checkpoint_db.h"
#include "tests/sim/sim_disk.h"

// struct sim_rows: one state of the rows, never changed, shared by copies of the disk.
struct sim_rows *sim_rows_create(const struct checkpoint_row *rows, size_t count);
struct sim_rows *sim_rows_share(struct sim_rows *rows); // accepts NULL
struct sim_rows *sim_rows_drop(struct sim_rows *rows);  // accepts NULL, returns NULL
size_t sim_rows_count(const struct sim_rows *rows);
const struct checkpoint_row *sim_rows_at(const struct sim_rows *rows, size_t index);
uint64_t sim_rows_bytes(const struct sim_rows *rows);

// Replaces the rows of a directory, at once and durably; takes `rows` over. -ENOSPC: no room on the disk.
int sim_checkpoint_set_rows(struct sim_disk *disk, struct sim_node *node, struct sim_rows *rows);
// For tests: damages the rows. Like a file whose checksums do not match, they cannot be opened any more:
// -EBADMSG. -ENOENT: there are none in this directory.
int sim_checkpoint_damage(struct sim_disk *disk, const char *directory);

extern const struct checkpoint_db_ops sim_checkpoint_ops;
