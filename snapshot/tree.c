// SPDX-License-Identifier: Apache-2.0
#include "snapshot/tree.h"

#include <stdlib.h>
#include <string.h>

struct tree_node {
    _Atomic uint64_t refs;
    uint64_t owner;
    locator_t slots[TREE_FANOUT];
};

uint64_t tree_new_owner(struct tree_space *space)
{
    return atomic_fetch_add(&space->next_owner, 1) + 1;
}

static struct tree_node *node_of(locator_t slot)
{
    return (slot & 15) == LOCATOR_POINTER ? (struct tree_node *)(uintptr_t)slot : NULL;
}

static locator_t slot_of(struct tree_node *node)
{
    return (locator_t)(uintptr_t)node;
}

static uint64_t span_of(unsigned level) // blocks under one slot of a node at this level (0 = leaf)
{
    return UINT64_C(1) << (TREE_FANOUT_BITS * level);
}

struct tree tree_empty(uint64_t blocks)
{
    struct tree tree = {.root = LOCATOR_UNMAPPED, .height = 1};
    while (tree.height < TREE_HEIGHT_MAX && span_of(tree.height) < blocks)
        tree.height++;
    return tree;
}

struct tree tree_share(struct tree tree)
{
    struct tree_node *node = node_of(tree.root);
    if (node != NULL)
        atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
    return tree;
}

static struct tree_node *node_new(struct tree_space *space, uint64_t owner)
{
    struct tree_node *node = aligned_alloc(16, sizeof *node);
    if (node == NULL)
        abort();
    atomic_init(&node->refs, 1);
    node->owner = owner;
    atomic_fetch_add_explicit(&space->nodes, 1, memory_order_relaxed);
    return node;
}

// Takes or gives back one log reference per log locator, a file's run at a time.
static void leaf_refs(struct tree_space *space, const locator_t *slots, unsigned count, bool take)
{
    if (space->log == NULL) // no references are kept
        return;
    for (unsigned i = 0; i < count;) {
        if (!locator_is_log(slots[i])) {
            i++;
            continue;
        }
        unsigned end = i + 1;
        while (end < count && locator_is_log(slots[end]) &&
                locator_log_file(slots[end]) == locator_log_file(slots[i]))
            end++;
        if (take)
            log_ref(space->log, slots[i], end - i);
        else
            log_unref(space->log, slots[i], end - i);
        i = end;
    }
}

static void slot_drop(struct tree_space *space, locator_t slot, unsigned level)
{
    struct tree_node *node = node_of(slot);
    if (node == NULL || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (level == 0) {
        leaf_refs(space, node->slots, TREE_FANOUT, false);
    } else {
        for (unsigned i = 0; i < TREE_FANOUT; i++)
            slot_drop(space, node->slots[i], level - 1);
    }
    atomic_fetch_sub_explicit(&space->nodes, 1, memory_order_relaxed);
    free(node);
}

void tree_drop(struct tree_space *space, struct tree *tree)
{
    slot_drop(space, tree->root, tree->height - 1);
    tree->root = LOCATOR_UNMAPPED;
}

// The node under *slot, at `level`, made the owner's own.
static struct tree_node *own_node(struct tree_space *space, locator_t *slot, unsigned level, uint64_t owner)
{
    struct tree_node *old = node_of(*slot);
    if (old != NULL && old->owner == owner)
        return old;
    struct tree_node *node = node_new(space, owner);
    if (old == NULL) {
        for (unsigned i = 0; i < TREE_FANOUT; i++)
            node->slots[i] = *slot;
    } else {
        memcpy(node->slots, old->slots, sizeof node->slots);
        if (level == 0) {
            leaf_refs(space, node->slots, TREE_FANOUT, true);
        } else {
            for (unsigned i = 0; i < TREE_FANOUT; i++) {
                struct tree_node *child = node_of(node->slots[i]);
                if (child != NULL)
                    atomic_fetch_add_explicit(&child->refs, 1, memory_order_relaxed);
            }
        }
        slot_drop(space, *slot, level);
    }
    *slot = slot_of(node);
    return node;
}

void tree_grow(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t blocks)
{
    while (tree->height < TREE_HEIGHT_MAX && span_of(tree->height) < blocks) {
        if (tree->root != LOCATOR_UNMAPPED) {
            struct tree_node *top = node_new(space, owner);
            memset(top->slots, 0, sizeof top->slots);
            top->slots[0] = tree->root;
            tree->root = slot_of(top);
        }
        tree->height++;
    }
}

// Sets [block, block + count) below *slot, whose node is at `level`. `first` is a log run, or zero/unmapped.
static void set_range(struct tree_space *space, locator_t *slot, unsigned level, uint64_t owner,
        uint64_t block, uint64_t count, locator_t first)
{
    struct tree_node *node = own_node(space, slot, level, owner);
    uint64_t span = span_of(level);
    bool log = locator_is_log(first);
    if (level == 0) {
        leaf_refs(space, node->slots + block, (unsigned)count, false);
        for (uint64_t i = 0; i < count; i++)
            node->slots[block + i] = locator_next(first, i);
        if (log && space->log != NULL)
            log_ref(space->log, first, count);
        return;
    }
    while (count > 0) {
        uint64_t index = block / span, within = block % span,
                 part = span - within < count ? span - within : count;
        locator_t *child = &node->slots[index];
        if (!log && part == span) {
            slot_drop(space, *child, level - 1);
            *child = first;
        } else if (log || *child != first) {
            set_range(space, child, level - 1, owner, within, part, first);
        }
        first = locator_next(first, part);
        block += part;
        count -= part;
    }
}

void tree_put(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t first)
{
    if (count > 0)
        set_range(space, &tree->root, tree->height - 1, owner, block, count, first);
}

void tree_fill(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t with)
{
    if (count == 0 || tree->root == with)
        return;
    if (block == 0 && count >= span_of(tree->height)) {
        tree_drop(space, tree);
        tree->root = with;
        return;
    }
    set_range(space, &tree->root, tree->height - 1, owner, block, count, with);
}

// The slot that decides about `block`, and how many blocks from it on that slot covers.
static locator_t find_slot(const struct tree *tree, uint64_t block, uint64_t *ret_covers,
        const locator_t **ret_rest, unsigned *ret_left)
{
    locator_t slot = tree->root;
    unsigned level = tree->height;
    *ret_rest = NULL;
    *ret_left = 0;
    while (level > 0 && node_of(slot) != NULL) {
        level--;
        const struct tree_node *node = node_of(slot);
        unsigned index = (unsigned)(block >> (TREE_FANOUT_BITS * level) & (TREE_FANOUT - 1));
        slot = node->slots[index];
        if (level == 0) {
            *ret_rest = &node->slots[index];
            *ret_left = TREE_FANOUT - index;
        }
    }
    uint64_t span = span_of(level);
    *ret_covers = span - (block & (span - 1));
    return slot;
}

locator_t tree_get(const struct tree *tree, uint64_t block, uint64_t max_count, uint64_t *ret_count)
{
    uint64_t covers, count = 0;
    const locator_t *rest;
    unsigned left;
    locator_t first = find_slot(tree, block, &covers, &rest, &left), slot = first;
    for (;;) {
        if (rest != NULL) {
            unsigned i = 0;
            while (i < left && rest[i] == locator_next(first, count + i))
                i++;
            count += i;
            if (i < left)
                break;
        } else {
            count += covers;
        }
        if (count >= max_count)
            break;
        slot = find_slot(tree, block + count, &covers, &rest, &left);
        if (slot != locator_next(first, count))
            break;
    }
    *ret_count = count < max_count ? count : max_count;
    return first;
}

// ---- Differences ----

struct diff {
    struct tree_space *space;
    tree_diff_callback each;
    void *context;
    bool stopped;
    uint64_t run_block, run_count; // the run being gathered
    locator_t run_first;
};

static void diff_flush(struct diff *diff)
{
    if (diff->run_count > 0 && !diff->stopped)
        diff->stopped = !diff->each(diff->context, diff->run_block, diff->run_count, diff->run_first);
    diff->run_count = 0;
}

static void diff_report(struct diff *diff, uint64_t block, uint64_t count, locator_t now)
{
    bool joins = diff->run_count > 0 && diff->run_block + diff->run_count == block &&
                 (diff->run_first & 15) == (now & 15); // a run of data may lie anywhere in the log
    if (!joins) {
        diff_flush(diff);
        diff->run_block = block;
        diff->run_first = now;
    }
    diff->run_count += count;
}

static bool same_content(struct diff *diff, locator_t a, locator_t b)
{
    if (a == b)
        return true;
    return diff->space->log != NULL && locator_is_log(a) && locator_is_log(b) &&
           log_block_sum(diff->space->log, a) == log_block_sum(diff->space->log, b);
}

static void diff_slots(struct diff *diff, locator_t a, locator_t b, unsigned level, uint64_t block)
{
    if (diff->stopped || a == b)
        return;
    const struct tree_node *x = node_of(a), *y = node_of(b);
    if (level == 0) {
        if (!same_content(diff, a, b))
            diff_report(diff, block, 1, b);
        return;
    }
    if (x == NULL && y == NULL) {
        diff_report(diff, block, span_of(level), b);
        return;
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        diff_slots(diff, x != NULL ? x->slots[i] : a, y != NULL ? y->slots[i] : b, level - 1,
                block + i * span_of(level - 1));
}

void tree_diff(struct tree_space *space, const struct tree *older, const struct tree *newer,
        tree_diff_callback each, void *context)
{
    struct diff diff = {.space = space, .each = each, .context = context};
    struct tree a = tree_share(*older), b = tree_share(*newer);
    unsigned height = a.height > b.height ? a.height : b.height;
    uint64_t owner = tree_new_owner(space);
    tree_grow(space, &a, owner, span_of(height));
    tree_grow(space, &b, owner, span_of(height));
    diff_slots(&diff, a.root, b.root, height, 0);
    diff_flush(&diff);
    tree_drop(space, &a);
    tree_drop(space, &b);
}
