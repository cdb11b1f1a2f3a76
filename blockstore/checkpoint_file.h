// SPDX-License-Identifier: Apache-2.0
// The rows of a checkpoint as they stand in LMDB's file: how keys and values are framed (FORMAT.md,
// "Catalog"), and reading all of them, checked. Knows LMDB's file (checkpoint_pages.h), not LMDB.
//
// Threads: any; calls block.
#pragma once

#include "blockstore/checkpoint_db.h"
#include "blockstore/checkpoint_pages.h"

enum {
    CHECKPOINT_KEY_BYTES = 9,
    CHECKPOINT_SUM_BYTES = 8,
    CHECKPOINT_FRAME_MAX = CHECKPOINT_VALUE_MAX + CHECKPOINT_SUM_BYTES,
    CHECKPOINT_HEADER_KEY_BYTES = 1, // the key is one byte 0, before all others
    CHECKPOINT_HEADER_BYTES = 48,
};

void checkpoint_file_key(const struct checkpoint_row *row, uint8_t ret_key[CHECKPOINT_KEY_BYTES]);
// Value and checksum; returns its size.
size_t checkpoint_file_frame(const struct checkpoint_row *row, uint8_t ret_frame[CHECKPOINT_FRAME_MAX]);
// The header that goes with these rows when transaction `transaction` writes them.
void checkpoint_file_header(
        const struct checkpoint_row *rows, size_t count, uint64_t transaction, uint8_t *ret_header);

struct checkpoint_file {
    struct checkpoint_row *rows; // ascending; values are in `chunks`
    size_t count, room;
    struct checkpoint_chunk *chunks;
    struct checkpoint_pages_state state;
};
// Reads and checks the whole file, both states in it (damage to the newest must not bring back the one
// before). All or nothing. -EAGAIN: a running owner committed too often meanwhile.
int checkpoint_file_read(int fd, const char *path, struct checkpoint_file *ret_file, struct error *err);
void checkpoint_file_done(struct checkpoint_file *file);
