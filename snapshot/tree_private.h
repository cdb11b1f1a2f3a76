// SPDX-License-Identifier: Apache-2.0
// What tree.c, tree_seal.c and tree_diff.c share: the node, and its ties to sealed nodes. The rules of
// sharing between loops are at the top of tree_seal.c.
#pragma once

#include "snapshot/node_cache.h"
#include "snapshot/tree.h"

// The level of a sealed node is kept in its locator's unused bits.
enum { UNDER_LEVEL_SHIFT = 25 };
_Static_assert(SEGMENT_SLOTS_MAX <= 1 << (UNDER_LEVEL_SHIFT - 4), "a slot number leaves room for the level");
_Static_assert(TREE_HEIGHT_MAX <= 8, "a level has three bits");
#define TREE_NOT_SEALED LOCATOR_INHERIT

// What a node was sealed as. It outlives the node: copies of it that were made before the checkpoint was
// committed still say INHERIT over what was sealed earlier, which a collection may free; tree_patch lets them
// inherit from the twin instead, which says the same.
struct tree_twin {
    _Atomic uint64_t refs;
    _Atomic locator_t sealed; // locator, zero or unmapped; TREE_NOT_SEALED
    _Atomic bool dead;        // its node is gone
    unsigned level;
    struct tree_twin *next; // of the node that this one was copied from, when that may matter as well
};

struct tree_node {
    _Atomic uint64_t refs;
    uint64_t owner;
    // Sealed node, with its level, that INHERIT slots ask: of this node's level or above it. Zero or unmapped
    // when the twin was that.
    _Atomic locator_t under;
    _Atomic(struct tree_twin *) twin;   // made when somebody needs it
    _Atomic(struct tree_twin *) source; // whose twin `under` will be; NULL: `under` is as it should be
    unsigned inherit;                   // slots that say INHERIT; changed by the owner only
    _Atomic locator_t slots[TREE_FANOUT];
};

static inline struct tree_node *node_of(locator_t slot)
{
    return (slot & 15) == LOCATOR_POINTER ? (struct tree_node *)(uintptr_t)slot : NULL;
}

static inline locator_t slot_of(struct tree_node *node)
{
    return (locator_t)(uintptr_t)node;
}

static inline uint64_t span_of(unsigned level) // blocks under one slot of a node at this level (0 = leaf)
{
    return UINT64_C(1) << (TREE_FANOUT_BITS * level);
}

static inline unsigned index_of(uint64_t block, unsigned level)
{
    return (unsigned)(block >> (TREE_FANOUT_BITS * level) & (TREE_FANOUT - 1));
}

static inline locator_t slot_load(const _Atomic locator_t *slot)
{
    return atomic_load_explicit(slot, memory_order_relaxed);
}

static inline void slot_store(_Atomic locator_t *slot, locator_t value)
{
    atomic_store_explicit(slot, value, memory_order_relaxed);
}

static inline locator_t root_load(const struct tree *tree)
{
    return __atomic_load_n(&tree->root, __ATOMIC_RELAXED);
}

static inline locator_t under_pack(locator_t sealed, unsigned level)
{
    return locator_is_segment(sealed) ? sealed | (locator_t)level << UNDER_LEVEL_SHIFT : sealed;
}

static inline locator_t under_locator(locator_t under)
{
    return locator_is_segment(under) ? under & ~((locator_t)7 << UNDER_LEVEL_SHIFT) : under;
}

static inline unsigned under_level(locator_t under)
{
    return locator_is_segment(under) ? (unsigned)(under >> UNDER_LEVEL_SHIFT & 7) : 0;
}

// tree.c
void tree_slot_drop(struct tree_space *space, locator_t slot, unsigned level); // one reference
struct tree_twin *tree_node_twin(struct tree_node *node, unsigned level);      // makes it when there is none
struct tree_twin *tree_twin_share(struct tree_twin *twin);                     // accepts NULL
void tree_twin_drop(struct tree_twin *twin);                                   // accepts NULL
