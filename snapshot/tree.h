// SPDX-License-Identifier: Apache-2.0
// The tree: a radix tree of 512-way nodes over 4 KiB blocks. It is the only map there is: a frozen root is a
// base, a child starts from a shared root, so reading costs the same at any depth of history.
//
// A slot is 8 bytes. In a leaf it is a locator (log, segment, zero, unmapped). In an inner node it is a
// pointer to a child in memory, a segment locator of a sealed child, or zero/unmapped for the whole span, so
// that trimming 64 GiB touches a few nodes. A node in memory may have been made over a sealed one: then a
// slot may say INHERIT, and the sealed node (node_cache.h) decides. So writing never reads metadata, and
// replay needs no segment at all.
//
// Owner: each writer (a volume between two freezes) has a number of its own; a node with that number belongs
// to it alone and is changed in place, any other node is copied first. Frozen nodes never change in meaning;
// tree_patch may replace what a slot says by an equal thing (a sealed twin).
// Threads: a tree is changed by one loop's thread and looked at on loops' threads only, within one callback:
// nodes that are taken out are freed after every loop has finished its callback (tree_garbage). Slots of
// shared nodes are read and patched atomically; node counts are atomic. References: every log locator in a
// leaf in memory holds one log_ref on its file.
#pragma once

#include "blockstore/log.h"

#include <stdatomic.h>

enum { TREE_FANOUT_BITS = 9, TREE_FANOUT = 1 << TREE_FANOUT_BITS, TREE_HEIGHT_MAX = 6 };

struct node_cache;

struct tree_space {
    struct log *log;          // NULL: no references are kept (tests, a store that closes)
    struct node_cache *cache; // NULL: no sealed nodes (tests)
    _Atomic uint64_t nodes;   // alive in memory
    // Blocks written, filled, or gone with a tree: what was reached may be dead by so many at most.
    _Atomic uint64_t changed_blocks;
    _Atomic uint64_t next_owner;
};

struct tree {
    locator_t root;  // a slot
    unsigned height; // levels; it spans 512^height blocks
};

uint64_t tree_new_owner(struct tree_space *space);
struct tree tree_empty(uint64_t blocks);
struct tree tree_share(struct tree tree); // one more reference
// A copy without a reference of its own, of a tree whose root another loop may be patching (a base's).
struct tree tree_look(const struct tree *tree);
void tree_drop(struct tree_space *space, struct tree *tree); // leaves it empty
// Makes room for `blocks`; what is new is unmapped.
void tree_grow(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t blocks);
// Consecutive log blocks (or consecutive slots of a segment).
void tree_put(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t first);
// Zero or unmapped.
void tree_fill(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t with);

// Locator of `block`; *ret_count: how many blocks from there go on in the same way (at most max_count, at
// least 1). -EAGAIN: the sealed node *ret_missing must be loaded first (node_cache_load), then ask again.
int tree_get(struct tree_space *space, const struct tree *tree, uint64_t block, uint64_t max_count,
        locator_t *ret_locator, uint64_t *ret_count, locator_t *ret_missing);

// The next difference at or after `block`, before `end`: *ret_block, and *ret_count blocks from there of one
// kind (data, zero, unmapped) in `newer`; *ret_count 0: no more. Compares locators only: equal bytes in two
// places are a difference. Subtrees with one locator or pointer are stepped over. `older` may have another
// height; NULL = everything unmapped. Does a bounded amount of work: -EINPROGRESS means go on from
// *ret_block. -EAGAIN as above.
int tree_diff_next(struct tree_space *space, const struct tree *older, const struct tree *newer,
        uint64_t block, uint64_t end, uint64_t *ret_block, uint64_t *ret_count, locator_t *ret_now,
        locator_t *ret_missing);

// ---- Sealing (tree_seal.c). By a task, on a frozen tree: all its nodes have older owners than any writer.
// ----
struct tree_sealer {
    // Replaces every log locator among `count` slots of a leaf by a segment locator (or zero).
    int (*leaf)(void *context, locator_t *slots, unsigned count);
    // Loads a sealed node.
    int (*load)(void *context, locator_t node, locator_t *ret_slots);
    // Stores a node of 512 slots without INHERIT, pointers or log locators.
    int (*node)(void *context, const locator_t *slots, unsigned level, locator_t *ret_node);
    void *context;
};
// Children before parents. Nodes sealed before (by an earlier root that shares them) are not visited again:
// each remembers its twin. A node whose slots are all zero or all unmapped becomes that. *ret_root is a
// segment locator, zero or unmapped. A failure leaves the tree as it is; what was stored may be used by a
// retry.
int tree_seal(struct tree_space *space, const struct tree *tree, const struct tree_sealer *sealer,
        locator_t *ret_root);
// Forgets the twins that a seal gave nodes of this tree: for a checkpoint that was not committed.
void tree_unseal(struct tree_space *space, const struct tree *tree);

// ---- Patching, on the tree's loop, after the checkpoint is committed ----
// Nodes and log references taken out, until every loop has run once.
struct tree_garbage {
    void *list;
};
// Replaces pointers to sealed nodes by their locators, and log locators by forward(context, locator) where
// that is not 0. Works on at most *budget nodes (decremented) from block *position on; true = finished, else
// call again (the tree may have changed between).
bool tree_patch(struct tree_space *space, struct tree *tree,
        locator_t (*forward)(void *context, locator_t log), void *context, struct tree_garbage *garbage,
        uint64_t *position, unsigned *budget);
void tree_garbage_free(struct tree_space *space, struct tree_garbage *garbage);
