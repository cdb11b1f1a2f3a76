// SPDX-License-Identifier: Apache-2.0
// Nodes, changes and lookups. Who may touch what from where: see tree_seal.c.
#include "snapshot/tree_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t tree_new_owner(struct tree_space *space)
{
    return atomic_fetch_add(&space->next_owner, 1) + 1;
}

struct tree tree_empty(uint64_t blocks)
{
    struct tree tree = {.root = LOCATOR_UNMAPPED, .height = 1};
    while (tree.height < TREE_HEIGHT_MAX && span_of(tree.height) < blocks)
        tree.height++;
    return tree;
}

static void node_share(struct tree_node *node) // accepts NULL
{
    if (node != NULL)
        atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
}

struct tree tree_share(struct tree tree)
{
    node_share(node_of(tree.root));
    return tree;
}

struct tree tree_look(const struct tree *tree)
{
    return (struct tree){.root = root_load(tree), .height = tree->height};
}

// ---- Twins ----

struct tree_twin *tree_twin_share(struct tree_twin *twin)
{
    if (twin != NULL)
        atomic_fetch_add_explicit(&twin->refs, 1, memory_order_relaxed);
    return twin;
}

void tree_twin_drop(struct tree_twin *twin)
{
    while (twin != NULL && atomic_fetch_sub_explicit(&twin->refs, 1, memory_order_acq_rel) == 1) {
        struct tree_twin *next = twin->next;
        free(twin);
        twin = next;
    }
}

// The node's source, without those that can never be sealed any more: a chain does not grow with history.
static struct tree_twin *live_source(struct tree_node *node)
{
    struct tree_twin *source = atomic_load_explicit(&node->source, memory_order_acquire);
    while (source != NULL && atomic_load_explicit(&source->dead, memory_order_acquire) &&
            atomic_load(&source->sealed) == TREE_NOT_SEALED)
        source = source->next;
    return tree_twin_share(source);
}

struct tree_twin *tree_node_twin(struct tree_node *node, unsigned level)
{
    struct tree_twin *twin = atomic_load_explicit(&node->twin, memory_order_acquire);
    if (twin != NULL)
        return twin;
    struct tree_twin *made = malloc(sizeof *made);
    if (made == NULL)
        abort();
    atomic_init(&made->refs, 1);
    atomic_init(&made->sealed, TREE_NOT_SEALED);
    atomic_init(&made->dead, false);
    made->level = level;
    made->next = live_source(node);
    if (atomic_compare_exchange_strong(&node->twin, &twin, made))
        return made;
    tree_twin_drop(made); // another loop was quicker
    return twin;
}

// ---- Nodes ----

static struct tree_node *node_new(struct tree_space *space, uint64_t owner)
{
    struct tree_node *node = aligned_alloc(16, (sizeof *node + 15) & ~(size_t)15);
    if (node == NULL)
        abort();
    atomic_init(&node->refs, 1);
    node->owner = owner;
    atomic_init(&node->under, LOCATOR_UNMAPPED);
    atomic_init(&node->twin, NULL);
    atomic_init(&node->source, NULL);
    node->inherit = 0;
    atomic_fetch_add_explicit(&space->nodes, 1, memory_order_relaxed);
    return node;
}

// Takes or gives back one log reference per log locator, a file's run at a time. (Of slots that nobody
// patches meanwhile: the caller's own, or those of a node that nobody else has.)
static void leaf_refs(struct tree_space *space, const _Atomic locator_t *slots, unsigned count, bool take)
{
    if (space->log == NULL) // no references are kept
        return;
    for (unsigned i = 0; i < count;) {
        locator_t slot = slot_load(&slots[i]);
        if (!locator_is_log(slot)) {
            i++;
            continue;
        }
        unsigned end = i + 1;
        while (end < count && locator_is_log(slot_load(&slots[end])) &&
                locator_log_file(slot_load(&slots[end])) == locator_log_file(slot))
            end++;
        if (take)
            log_ref(space->log, slot, end - i);
        else
            log_unref(space->log, slot, end - i);
        i = end;
    }
}

void tree_slot_drop(struct tree_space *space, locator_t slot, unsigned level)
{
    struct tree_node *node = node_of(slot);
    if (node == NULL || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (level == 0) {
        leaf_refs(space, node->slots, TREE_FANOUT, false);
    } else {
        for (unsigned i = 0; i < TREE_FANOUT; i++)
            tree_slot_drop(space, slot_load(&node->slots[i]), level - 1);
    }
    struct tree_twin *twin = atomic_load_explicit(&node->twin, memory_order_acquire);
    if (twin != NULL)
        atomic_store_explicit(&twin->dead, true, memory_order_release);
    tree_twin_drop(twin);
    tree_twin_drop(atomic_load_explicit(&node->source, memory_order_acquire));
    atomic_fetch_sub_explicit(&space->nodes, 1, memory_order_relaxed);
    free(node);
}

void tree_drop(struct tree_space *space, struct tree *tree)
{
    tree_slot_drop(space, tree->root, tree->height - 1);
    tree->root = LOCATOR_UNMAPPED;
}

// The source before `under`: who sees no source any more must see the `under` that made it needless.
static void copy_node(struct tree_space *space, struct tree_node *old, struct tree_node *node, unsigned level)
{
    if (old->inherit > 0) {
        node->inherit = old->inherit;
        atomic_init(&node->source, tree_twin_share(tree_node_twin(old, level)));
        slot_store(&node->under, slot_load(&old->under));
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        locator_t slot = slot_load(&old->slots[i]);
        slot_store(&node->slots[i], slot);
        if (level > 0)
            node_share(node_of(slot));
    }
    if (level == 0)
        leaf_refs(space, node->slots, TREE_FANOUT, true);
}

// A node at `level` that says what `slot` says. A slot that inherits is its parent's.
static void make_over(struct tree_node *node, locator_t slot, unsigned level, struct tree_node *parent)
{
    if (slot == LOCATOR_INHERIT) {
        locator_t under = slot_load(&parent->under);
        if (locator_is_segment(under)) {
            atomic_init(&node->source, live_source(parent));
            slot_store(&node->under, under);
        } else {
            slot = under;
        }
    } else if (locator_is_segment(slot)) {
        slot_store(&node->under, under_pack(slot, level));
        slot = LOCATOR_INHERIT;
    }
    node->inherit = slot == LOCATOR_INHERIT ? TREE_FANOUT : 0;
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        atomic_init(&node->slots[i], slot);
}

// The node under `slot`, at `level`, made the owner's own. Takes over the slot's reference.
static struct tree_node *own_node(
        struct tree_space *space, locator_t slot, unsigned level, uint64_t owner, struct tree_node *parent)
{
    struct tree_node *old = node_of(slot);
    if (old != NULL && old->owner == owner)
        return old;
    struct tree_node *node = node_new(space, owner);
    if (old != NULL) {
        copy_node(space, old, node, level);
        tree_slot_drop(space, slot, level);
    } else {
        make_over(node, slot, level, parent);
    }
    return node;
}

void tree_grow(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t blocks)
{
    while (tree->height < TREE_HEIGHT_MAX && span_of(tree->height) < blocks) {
        if (tree->root != LOCATOR_UNMAPPED) {
            struct tree_node *top = node_new(space, owner);
            for (unsigned i = 0; i < TREE_FANOUT; i++)
                atomic_init(&top->slots[i], i == 0 ? tree->root : LOCATOR_UNMAPPED);
            tree->root = slot_of(top);
        }
        tree->height++;
    }
}

// ---- Changes ----

// A node with all its slots set needs its sealed node no more.
static void forget_under(struct tree_node *node)
{
    slot_store(&node->under, LOCATOR_UNMAPPED);
    tree_twin_drop(atomic_exchange(&node->source, NULL));
}

static void node_set(struct tree_node *node, unsigned index, locator_t value)
{
    if (slot_load(&node->slots[index]) == LOCATOR_INHERIT && --node->inherit == 0)
        forget_under(node);
    slot_store(&node->slots[index], value);
}

static void set_leaf(
        struct tree_space *space, struct tree_node *node, unsigned at, unsigned count, locator_t first)
{
    leaf_refs(space, node->slots + at, count, false);
    if (node->inherit > 0)
        for (unsigned i = 0; i < count; i++)
            node_set(node, at + i, locator_next(first, i));
    else
        for (unsigned i = 0; i < count; i++)
            slot_store(&node->slots[at + i], locator_next(first, i));
    if (locator_is_log(first) && space->log != NULL)
        log_ref(space->log, first, count);
}

// Sets [block, block + count) below `slot`, whose node is at `level` and belongs under `parent`; returns what
// the slot is now. `first` is a run of data, or zero/unmapped.
static locator_t set_range(struct tree_space *space, locator_t slot, unsigned level, uint64_t owner,
        struct tree_node *parent, uint64_t block, uint64_t count, locator_t first)
{
    struct tree_node *node = own_node(space, slot, level, owner, parent);
    if (level == 0) {
        set_leaf(space, node, (unsigned)block, (unsigned)count, first);
        return slot_of(node);
    }
    bool data = first != LOCATOR_ZERO && first != LOCATOR_UNMAPPED;
    uint64_t span = span_of(level);
    while (count > 0) {
        uint64_t within = block % span, part = span - within < count ? span - within : count;
        unsigned index = (unsigned)(block / span);
        locator_t child = slot_load(&node->slots[index]);
        if (!data && part == span) {
            tree_slot_drop(space, child, level - 1);
            node_set(node, index, first);
        } else if (data || child != first) {
            locator_t now = set_range(space, child, level - 1, owner, node, within, part, first);
            if (now != child)
                node_set(node, index, now);
        }
        first = locator_next(first, part);
        block += part;
        count -= part;
    }
    return slot_of(node);
}

void tree_put(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t first)
{
    atomic_fetch_add_explicit(&space->changed_blocks, count, memory_order_relaxed);
    if (count > 0)
        tree->root = set_range(space, tree->root, tree->height - 1, owner, NULL, block, count, first);
}

void tree_fill(struct tree_space *space, struct tree *tree, uint64_t owner, uint64_t block, uint64_t count,
        locator_t with)
{
    if (count == 0 || tree->root == with)
        return;
    atomic_fetch_add_explicit(&space->changed_blocks, count, memory_order_relaxed);
    if (block == 0 && count >= span_of(tree->height)) {
        tree_drop(space, tree);
        tree->root = with;
        return;
    }
    tree->root = set_range(space, tree->root, tree->height - 1, owner, NULL, block, count, with);
}

// ---- Lookups ----

// The slot that decides about a block. In a leaf (of either kind) also the slots after it; else how many
// blocks it covers.
struct place {
    locator_t slot;
    uint64_t covers;
    const _Atomic locator_t *live;
    const locator_t *sealed;
    unsigned left;
    const struct node_cached *cached; // holds `sealed`
};

static void place_put(struct tree_space *space, struct place *place)
{
    if (place->cached != NULL)
        node_cache_put(space->cache, place->cached);
}

// Descends in sealed nodes from the one that `sealed` names, at `level`. `covers` and `left` bound what the
// slot in memory, from where this began, decides.
static int find_sealed(struct tree_space *space, locator_t sealed, unsigned level, uint64_t block,
        struct place *place, locator_t *ret_missing)
{
    uint64_t covers = place->covers;
    for (;;) {
        if (!locator_is_segment(sealed))
            break;
        const struct node_cached *node = space->cache != NULL ? node_cache_find(space->cache, sealed) : NULL;
        if (node == NULL) {
            *ret_missing = sealed;
            return -EAGAIN;
        }
        unsigned index = index_of(block, level);
        sealed = node->slots[index];
        if (level == 0) {
            uint64_t left = TREE_FANOUT - index;
            place->left = (unsigned)(left < covers ? left : covers);
            place->sealed = &node->slots[index];
            place->cached = node;
            break;
        }
        node_cache_put(space->cache, node);
        uint64_t span = span_of(level), rest = span - (block & (span - 1));
        covers = rest < covers ? rest : covers;
        level--;
    }
    place->slot = sealed;
    place->covers = covers;
    return 0;
}

static int find_inherited(struct tree_space *space, const struct tree_node *node, unsigned level,
        uint64_t block, struct place *place, locator_t *ret_missing)
{
    locator_t under = slot_load(&node->under);
    if (level == 0) {
        unsigned index = index_of(block, 0), end = index + 1;
        while (end < TREE_FANOUT && slot_load(&node->slots[end]) == LOCATOR_INHERIT)
            end++;
        place->covers = end - index;
    }
    return find_sealed(space, under_locator(under), under_level(under), block, place, ret_missing);
}

static int find_place(struct tree_space *space, const struct tree *tree, uint64_t block, struct place *place,
        locator_t *ret_missing)
{
    locator_t slot = root_load(tree);
    unsigned level = tree->height, index = 0;
    const struct tree_node *node = NULL, *next;
    place->live = NULL;
    place->sealed = NULL;
    place->cached = NULL;
    while (level > 0 && (next = node_of(slot)) != NULL) {
        node = next;
        level--;
        index = index_of(block, level);
        slot = slot_load(&node->slots[index]);
    }
    uint64_t span = span_of(level);
    place->covers = span - (block & (span - 1));
    place->slot = slot;
    if (node != NULL && slot == LOCATOR_INHERIT)
        return find_inherited(space, node, level, block, place, ret_missing);
    if (level == 0) {
        place->live = &node->slots[index];
        place->left = TREE_FANOUT - index;
    } else if (locator_is_segment(slot)) {
        return find_sealed(space, slot, level - 1, block, place, ret_missing);
    }
    return 0;
}

// How many blocks from the place's own, at most `most`, go on from `expected`; whether the run may go on
// after them.
static uint64_t place_run(const struct place *place, locator_t expected, uint64_t most, bool *ret_goes_on)
{
    unsigned i = 0, left = place->left < most ? place->left : (unsigned)most;
    locator_t step = locator_next(expected, 1) - expected;
    if (place->live != NULL) {
        for (; i < left && slot_load(&place->live[i]) == expected; i++)
            expected += step;
        *ret_goes_on = i == left || slot_load(&place->live[i]) == LOCATOR_INHERIT;
        return i;
    }
    if (place->sealed != NULL) {
        for (; i < left && place->sealed[i] == expected; i++)
            expected += step;
        *ret_goes_on = i == left;
        return i;
    }
    *ret_goes_on = true;
    return place->covers < most ? place->covers : most;
}

int tree_get(struct tree_space *space, const struct tree *tree, uint64_t block, uint64_t max_count,
        locator_t *ret_locator, uint64_t *ret_count, locator_t *ret_missing)
{
    struct place place;
    uint64_t count = 0;
    int r = find_place(space, tree, block, &place, ret_missing);
    if (r < 0)
        return r;
    locator_t first = place.slot, missing;
    for (;;) {
        bool goes_on;
        count += place_run(&place, locator_next(first, count), max_count - count, &goes_on);
        place_put(space, &place);
        if (!goes_on || count >= max_count)
            break;
        if (find_place(space, tree, block + count, &place, &missing) < 0)
            break;
        if (place.slot != locator_next(first, count)) {
            place_put(space, &place);
            break;
        }
    }
    *ret_locator = first;
    *ret_count = count;
    return 0;
}
