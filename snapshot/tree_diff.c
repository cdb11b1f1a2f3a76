// SPDX-License-Identifier: Apache-2.0
// Differences of two trees: both are descended side by side; where both say the same the whole span is
// stepped over. A call starts from the root and ends at the first run, or when it has looked at enough nodes:
// it holds nothing between calls, so the trees may be patched.
#include "snapshot/tree_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_PER_CALL = 64 };

struct side {
    locator_t root;
    unsigned height;
};

struct diff {
    struct tree_space *space;
    struct side older, newer;
    uint64_t from, end;
    uint64_t run_block, run_count; // what was found
    locator_t run_now;
    uint64_t position; // looked at up to here
    unsigned nodes;
    locator_t missing;
};

enum kind { KIND_DATA, KIND_ZERO, KIND_UNMAPPED };

static enum kind kind_of(locator_t slot)
{
    return slot == LOCATOR_UNMAPPED ? KIND_UNMAPPED : slot == LOCATOR_ZERO ? KIND_ZERO : KIND_DATA;
}

static bool has_node(const struct side *side, locator_t slot, unsigned level)
{
    if (level == 0)
        return false;
    if (level > side->height) // above this tree's root
        return slot != LOCATOR_UNMAPPED;
    return node_of(slot) != NULL || locator_is_segment(slot);
}

static bool is_twin(locator_t slot, locator_t sealed)
{
    const struct tree_node *node = node_of(slot);
    if (node == NULL || !locator_is_segment(sealed))
        return false;
    const struct tree_twin *twin = atomic_load_explicit(&node->twin, memory_order_acquire);
    return twin != NULL && atomic_load_explicit(&twin->sealed, memory_order_acquire) == sealed;
}

static bool same(const struct diff *diff, locator_t a, locator_t b, unsigned level)
{
    if (level > diff->older.height || level > diff->newer.height)
        return a == LOCATOR_UNMAPPED && b == LOCATOR_UNMAPPED;
    return a == b || (level > 0 && (is_twin(a, b) || is_twin(b, a)));
}

// The 512 slots of the sealed node at `level` below (or at) the one that `sealed` names at `from_level`.
static int expand_sealed(struct diff *diff, locator_t sealed, unsigned from_level, unsigned level,
        uint64_t block, locator_t *ret_slots)
{
    for (; locator_is_segment(sealed); from_level--) {
        const struct node_cached *node =
                diff->space->cache != NULL ? node_cache_find(diff->space->cache, sealed) : NULL;
        if (node == NULL) {
            diff->missing = sealed;
            return -EAGAIN;
        }
        bool there = from_level == level;
        if (there)
            memcpy(ret_slots, node->slots, sizeof node->slots);
        else
            sealed = node->slots[index_of(block, from_level)];
        node_cache_put(diff->space->cache, node);
        if (there)
            return 0;
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        ret_slots[i] = sealed;
    return 0;
}

// What the 512 slots of the node at `level` say, whose first block is `block`.
static int expand(struct diff *diff, const struct side *side, locator_t slot, unsigned level, uint64_t block,
        locator_t *ret_slots)
{
    struct tree_node *node = node_of(slot);
    if (level >= side->height) { // above this tree's root; all but the first path is unmapped
        memset(ret_slots, 0, TREE_FANOUT * sizeof *ret_slots);
        ret_slots[0] = slot;
        return 0;
    }
    if (node == NULL)
        return expand_sealed(diff, slot, level, level, block, ret_slots);
    locator_t under = slot_load(&node->under);
    if (node->inherit > 0) {
        int r = expand_sealed(diff, under_locator(under), under_level(under), level, block, ret_slots);
        if (r < 0)
            return r;
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        locator_t value = slot_load(&node->slots[i]);
        if (value != LOCATOR_INHERIT)
            ret_slots[i] = value;
    }
    return 0;
}

// False: the run ends before it.
static bool note(struct diff *diff, uint64_t block, uint64_t count, locator_t now)
{
    if (block < diff->from) {
        count -= diff->from - block;
        now = locator_next(now, diff->from - block);
        block = diff->from;
    }
    if (count > diff->end - block)
        count = diff->end - block;
    if (diff->run_count == 0) {
        diff->run_block = block;
        diff->run_now = now;
    } else if (diff->run_block + diff->run_count != block || kind_of(now) != kind_of(diff->run_now)) {
        return false;
    }
    diff->run_count += count;
    return true;
}

// 0: this span is done; 1: the run has ended; -EAGAIN, -EINPROGRESS.
static int walk(struct diff *diff, locator_t a, locator_t b, unsigned level, uint64_t block)
{
    diff->position = block > diff->from ? block : diff->from;
    if (same(diff, a, b, level))
        return diff->run_count > 0 ? 1 : 0;
    if (!has_node(&diff->older, a, level) && !has_node(&diff->newer, b, level))
        return note(diff, block, span_of(level), b) ? 0 : 1;
    if (diff->nodes == 0)
        return -EINPROGRESS;
    locator_t x[TREE_FANOUT], y[TREE_FANOUT];
    int r = expand(diff, &diff->older, a, level - 1, block, x);
    if (r == 0)
        r = expand(diff, &diff->newer, b, level - 1, block, y);
    if (r < 0)
        return r;
    uint64_t span = span_of(level - 1);
    unsigned i = diff->from > block ? (unsigned)((diff->from - block) / span) : 0;
    for (; r == 0 && i < TREE_FANOUT && block + i * span < diff->end; i++)
        r = walk(diff, x[i], y[i], level - 1, block + i * span);
    if (r == 0)
        diff->nodes -= diff->nodes > 0 ? 1 : 0; // on the way up: the path to where it begins is free
    return r;
}

int tree_diff_next(struct tree_space *space, const struct tree *older, const struct tree *newer,
        uint64_t block, uint64_t end, uint64_t *ret_block, uint64_t *ret_count, locator_t *ret_now,
        locator_t *ret_missing)
{
    struct diff diff = {.space = space,
            .older = {.root = older != NULL ? root_load(older) : LOCATOR_UNMAPPED,
                    .height = older != NULL ? older->height : newer->height},
            .newer = {.root = root_load(newer), .height = newer->height},
            .from = block,
            .end = end,
            .nodes = NODES_PER_CALL};
    unsigned height = diff.older.height > diff.newer.height ? diff.older.height : diff.newer.height;
    if (diff.end > span_of(height))
        diff.end = span_of(height);
    int r = block < diff.end ? walk(&diff, diff.older.root, diff.newer.root, height, 0) : 0;
    if (r < 0 && diff.run_count == 0) {
        if (r == -EAGAIN)
            *ret_missing = diff.missing;
        else
            *ret_block = diff.position;
        return r;
    }
    *ret_block = diff.run_block;
    *ret_count = diff.run_count;
    *ret_now = diff.run_now;
    return 0;
}
