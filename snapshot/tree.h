// SPDX-License-Identifier: Apache-2.0
// The live tree: a radix tree of 512-way nodes over 4 KiB blocks, path-copied in memory. It is the only map
// there is: a frozen root is a base, a child starts from a shared root, so reading costs the same at any
// depth of history.
//
// A slot is 8 bytes. In a leaf it is a locator. In an inner node it is a pointer to a child, or zero/unmapped
// for the whole span, so that trimming 64 GiB touches a few nodes. Owner: each writer (a volume between two
// freezes) has a number of its own; a node with that number belongs to it alone and is changed in place, any
// other node is copied first. Frozen nodes are never changed. Threads: a tree is changed by one thread; nodes
// are shared between threads, their counts are atomic. References: every log locator in a leaf holds one
// log_ref on its file.
#pragma once

#include "blockstore/log.h"

#include <stdatomic.h>

enum { TREE_FANOUT_BITS = 9, TREE_FANOUT = 1 << TREE_FANOUT_BITS, TREE_HEIGHT_MAX = 6 };

struct tree_space {
    struct log *log;        // NULL: no references are kept (tests, a store that closes)
    _Atomic uint64_t nodes; // alive
    _Atomic uint64_t next_owner;
};

struct tree {
    locator_t root;  // a slot
    unsigned height; // levels; it spans 512^height blocks
};

uint64_t tree_new_owner(struct tree_space *space);
struct tree tree_empty(uint64_t blocks);
struct tree tree_share(struct tree tree);                    // one more reference
void tree_drop(struct tree_space *space, struct tree *tree); // leaves it empty
// Makes room for `blocks`; what is new is unmapped.
void tree_grow(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t blocks);
// Locator of `block`; *ret_count: how many blocks from there go on in the same way (at most max_count, at
// least 1).
locator_t tree_get(const struct tree *tree, uint64_t block, uint64_t max_count, uint64_t *ret_count);
// Consecutive log blocks.
void tree_put(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t first);
// Zero or unmapped.
void tree_fill(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t with);

// Calls each() for runs of blocks that differ, ascending; `now` locates the first of the run in `newer`. Log
// blocks with equal checksums are compared equal. each() returns false to stop. Trees may differ in height.
typedef bool (*tree_diff_callback)(void *context, uint64_t block, uint64_t count, locator_t now);
void tree_diff(struct tree_space *space, const struct tree *older, const struct tree *newer,
        tree_diff_callback each, void *context);
