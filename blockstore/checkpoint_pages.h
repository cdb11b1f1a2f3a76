// SPDX-License-Identifier: Apache-2.0
// Reads the data file of an LMDB 0.9 environment by plain reads, and believes nothing in it.
//
// LMDB maps its file and follows what stands there: a cut or damaged file ends the process by a signal, or
// by one of its assertions. So every page that its trees reach is looked at here before LMDB may see the
// file: page numbers, kinds, bounds, order of keys, counts, and that no page is used twice or is free as
// well. Damage that is left is in the bytes of values, and those carry checksums of their own
// (checkpoint_file.h).
//
// Threads: any. Calls block. Works beside a process that commits, without a lock or a reader's slot: pages
// of the state of transaction N are not written again before transaction N + 2 is committed.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One entry of the main tree; returns < 0 to stop with that result (and words in err).
typedef int (*checkpoint_pages_callback)(void *context, const uint8_t *key, size_t key_size,
        const uint8_t *value, size_t value_size, struct error *err);

enum { CHECKPOINT_PAGES_METAS = 2, CHECKPOINT_PAGES_META_BYTES = 152 };
struct checkpoint_pages_state {
    uint64_t transaction;
    uint32_t page_bytes;
    uint8_t metas[CHECKPOINT_PAGES_METAS][CHECKPOINT_PAGES_META_BYTES]; // the meta pages, as they stood
};

// The newest state, or the one before it (`older`; with transaction 0 there is nothing in it), entry by entry
// in order. -EBADMSG: damaged, or not such a file. -EPROTO: a newer LMDB's. -ESTALE: what was read has been
// written over meanwhile, begin again.
int checkpoint_pages_read(int fd, const char *path, bool older, checkpoint_pages_callback each, void *context,
        struct checkpoint_pages_state *ret_state, struct error *err);

// Puts back the meta page that the transaction after the newest `state` was about to write, and syncs. LMDB,
// when it cannot write that page, leaves a mixture of new and old in it.
int checkpoint_pages_restore(
        int fd, const char *path, const struct checkpoint_pages_state *state, struct error *err);
