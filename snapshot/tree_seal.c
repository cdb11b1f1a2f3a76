// SPDX-License-Identifier: Apache-2.0
// Sealing and patching, and the rules by which loops share nodes.
//
// Who touches what. Node N is *owned* while its number is that of a volume's present epoch: one tree has it,
// and only that volume's loop touches it. It is *frozen* afterwards: any number of trees on any loops have
// it, all only read it, copy it, or patch it. A *cut* (a checkpoint's, or a freeze) gives the volume a new
// number, so what a task seals is frozen, and a node that has a twin is never owned.
//
// A patch replaces what a slot says by an equal thing, so a reader may see old or new. It is a compare-and-
// swap; of two loops that patch one slot, one succeeds, and what the slot held (a child's reference, a log
// reference) goes into that one's garbage. Slots are never set back, so the loser finds an equal thing there.
//
// Garbage is freed after every loop has finished its callback. So whatever a loop has read from a slot within
// its present callback is still counted, though the slot may say something else by now:
//  - reader / patcher: the child, or the log file, that was read stays until the reader's callback ends; by
//    then its read of the log has a pin.
//  - copier / patcher: the copier reads the slot once and takes a reference for the value that it read. That
//    value's own count is not 0 then: the slot's reference is still in the slot or in the garbage.
//    (Giving a log reference back at once would let the file retire between the copier's read and its
//    log_ref.) The copy says the old thing and has its own reference; it is in its volume's tree, and is
//    patched there. If that volume's patch has passed the place already, then it has patched the node that
//    the copy was made from.
//  - copier / copier, dropper: counts only; the copied node has the reference of the tree it was read from.
//  - patcher / dropper: a node freed by its last tree is reached by no other loop: every way to it is a slot
//    with a reference, or was one until the present callbacks, and then garbage counts it.
//  - sealer: a task's thread, not a loop. It reads frozen nodes below a root that it has shared, and no patch
//    runs meanwhile (background work is one queue). It sets twins; patches read them after the commit.
//  - the root of a base, which any loop reads, is a slot like others: tree_look, compare-and-swap.
//
// What a patched tree says INHERIT over is in the checkpoint. Node X that was made after the cut from frozen
// M still inherits from what M inherited from, though the checkpoint has M's twin in its place. X remembers
// M (`source`; a chain, since M may be a copy made after the cut itself). The patch finds the nearest
// sealed node of the chain: it is the state of that place at the cut, in which each slot that X inherits says
// what it says for X. A node made under a slot that inherits has its parent's source. A node made over a
// sealed node that a slot names needs none: the checkpoint has that name too. `under` is set before `source`
// is cleared, and copies read them the other way round.
#include "snapshot/tree_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        abort();
    return memory;
}

static locator_t sealed_of(const struct tree_node *node) // TREE_NOT_SEALED
{
    const struct tree_twin *twin = atomic_load_explicit(&node->twin, memory_order_acquire);
    return twin == NULL ? TREE_NOT_SEALED : atomic_load_explicit(&twin->sealed, memory_order_acquire);
}

// ---- Sealing ----

// The slots of the sealed node at `level` that a node over `under` inherits.
static int load_under(const struct tree_sealer *sealer, locator_t under, unsigned level, uint64_t block,
        locator_t *ret_slots)
{
    locator_t sealed = under_locator(under);
    unsigned at = under_level(under);
    while (locator_is_segment(sealed)) {
        int r = sealer->load(sealer->context, sealed, ret_slots);
        if (r < 0 || at == level)
            return r;
        sealed = ret_slots[index_of(block, at)];
        at--;
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        ret_slots[i] = sealed;
    return 0;
}

static int resolve_inherited(const struct tree_node *node, const struct tree_sealer *sealer, unsigned level,
        uint64_t block, locator_t *slots)
{
    locator_t *inherited = allocate(TREE_FANOUT * sizeof *inherited);
    int r = load_under(sealer, slot_load(&node->under), level, block, inherited);
    for (unsigned i = 0; r == 0 && i < TREE_FANOUT; i++)
        if (slots[i] == LOCATOR_INHERIT)
            slots[i] = inherited[i];
    free(inherited);
    return r;
}

// What a node of these slots is: zero or unmapped when all of them are, else what the sealer stores.
static int store_node(
        const struct tree_sealer *sealer, const locator_t *slots, unsigned level, locator_t *ret_sealed)
{
    unsigned same = 1;
    while (same < TREE_FANOUT && slots[same] == slots[0])
        same++;
    if (same < TREE_FANOUT || (slots[0] != LOCATOR_ZERO && slots[0] != LOCATOR_UNMAPPED))
        return sealer->node(sealer->context, slots, level, ret_sealed);
    *ret_sealed = slots[0];
    return 0;
}

static int seal_slot(const struct tree_sealer *sealer, locator_t slot, unsigned level, uint64_t block,
        locator_t *ret_sealed);

static int seal_slots(const struct tree_sealer *sealer, locator_t *slots, unsigned level, uint64_t block)
{
    if (level == 0)
        return sealer->leaf(sealer->context, slots, TREE_FANOUT);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < TREE_FANOUT; i++)
        r = seal_slot(sealer, slots[i], level - 1, block + i * span_of(level), &slots[i]);
    return r;
}

// `block` is the first below the slot, whose node is at `level`.
static int seal_slot(const struct tree_sealer *sealer, locator_t slot, unsigned level, uint64_t block,
        locator_t *ret_sealed)
{
    struct tree_node *node = node_of(slot);
    if (node == NULL) {
        *ret_sealed = slot;
        return 0;
    }
    locator_t sealed = sealed_of(node);
    if (sealed != TREE_NOT_SEALED) {
        *ret_sealed = sealed;
        return 0;
    }
    locator_t *slots = allocate(TREE_FANOUT * sizeof *slots);
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        slots[i] = slot_load(&node->slots[i]);
    int r = node->inherit > 0 ? resolve_inherited(node, sealer, level, block, slots) : 0;
    if (r == 0)
        r = seal_slots(sealer, slots, level, block);
    if (r == 0)
        r = store_node(sealer, slots, level, &sealed);
    free(slots);
    if (r < 0)
        return r;
    atomic_store_explicit(&tree_node_twin(node, level)->sealed, sealed, memory_order_release);
    *ret_sealed = sealed;
    return 0;
}

int tree_seal(struct tree_space *space, const struct tree *tree, const struct tree_sealer *sealer,
        locator_t *ret_root)
{
    return seal_slot(sealer, root_load(tree), tree->height - 1, 0, ret_root);
}

static void unseal_slot(locator_t slot, unsigned level)
{
    struct tree_node *node = node_of(slot);
    if (node == NULL)
        return;
    struct tree_twin *twin = atomic_load_explicit(&node->twin, memory_order_acquire);
    if (twin != NULL)
        atomic_store_explicit(&twin->sealed, TREE_NOT_SEALED, memory_order_release);
    for (unsigned i = 0; level > 0 && i < TREE_FANOUT; i++)
        unseal_slot(slot_load(&node->slots[i]), level - 1);
}

void tree_unseal(struct tree_space *space, const struct tree *tree)
{
    unseal_slot(root_load(tree), tree->height - 1);
}

// ---- Garbage ----

enum garbage_type { GARBAGE_NODE, GARBAGE_LOG, GARBAGE_TWIN };

struct garbage_entry {
    enum garbage_type type;
    unsigned count; // NODE: its level; LOG: references
    uint64_t what;  // slot, a locator in the file, address of the twin
};

enum { GARBAGE_CHUNK_ENTRIES = 254 };

struct garbage_chunk {
    struct garbage_chunk *next;
    unsigned count;
    struct garbage_entry entries[GARBAGE_CHUNK_ENTRIES];
};

static void garbage_add(struct tree_garbage *garbage, enum garbage_type type, uint64_t what, unsigned count)
{
    struct garbage_chunk *chunk = garbage->list;
    if (chunk == NULL || chunk->count == GARBAGE_CHUNK_ENTRIES) {
        chunk = allocate(sizeof *chunk);
        chunk->next = garbage->list;
        chunk->count = 0;
        garbage->list = chunk;
    }
    chunk->entries[chunk->count++] = (struct garbage_entry){.type = type, .count = count, .what = what};
}

static void garbage_add_log(struct tree_garbage *garbage, locator_t log)
{
    struct garbage_chunk *chunk = garbage->list;
    struct garbage_entry *last = chunk != NULL && chunk->count > 0 ? &chunk->entries[chunk->count - 1] : NULL;
    if (last != NULL && last->type == GARBAGE_LOG && locator_log_file(last->what) == locator_log_file(log))
        last->count++;
    else
        garbage_add(garbage, GARBAGE_LOG, log, 1);
}

void tree_garbage_free(struct tree_space *space, struct tree_garbage *garbage)
{
    struct garbage_chunk *chunk = garbage->list;
    garbage->list = NULL;
    while (chunk != NULL) {
        for (unsigned i = 0; i < chunk->count; i++) {
            const struct garbage_entry *entry = &chunk->entries[i];
            if (entry->type == GARBAGE_NODE)
                tree_slot_drop(space, entry->what, entry->count);
            else if (entry->type == GARBAGE_TWIN)
                tree_twin_drop((struct tree_twin *)(uintptr_t)entry->what);
            else if (space->log != NULL)
                log_unref(space->log, entry->what, entry->count);
        }
        struct garbage_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

// ---- Patching ----

struct patch {
    struct tree_space *space;
    locator_t (*forward)(void *context, locator_t log);
    void *context;
    struct tree_garbage *garbage;
    uint64_t from;     // blocks before it are done
    uint64_t position; // done up to here
    unsigned budget;
    bool moved; // something was done: else a small budget could end each call on its way down
};

// True: it said `old` until now.
static bool replace(_Atomic locator_t *slot, locator_t old, locator_t now)
{
    return atomic_compare_exchange_strong(slot, &old, now);
}

static void patch_leaf(struct patch *patch, struct tree_node *node)
{
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        locator_t slot = slot_load(&node->slots[i]);
        if (!locator_is_log(slot))
            continue;
        locator_t now = patch->forward(patch->context, slot);
        if (now != 0 && replace(&node->slots[i], slot, now))
            garbage_add_log(patch->garbage, slot);
    }
}

static void patch_under(struct patch *patch, struct tree_node *node)
{
    struct tree_twin *source = atomic_load_explicit(&node->source, memory_order_acquire);
    const struct tree_twin *twin = source;
    locator_t sealed = TREE_NOT_SEALED;
    for (; twin != NULL; twin = twin->next) {
        sealed = atomic_load_explicit(&twin->sealed, memory_order_acquire);
        if (sealed != TREE_NOT_SEALED)
            break;
    }
    if (twin == NULL)
        return;
    slot_store(&node->under, under_pack(sealed, twin->level));
    if (atomic_compare_exchange_strong(&node->source, &source, NULL))
        garbage_add(patch->garbage, GARBAGE_TWIN, (uint64_t)(uintptr_t)source, 0);
}

static bool patch_slot(struct patch *patch, _Atomic locator_t *slot, unsigned level, uint64_t block);

// False: the budget ended before its end.
static bool patch_node(struct patch *patch, struct tree_node *node, unsigned level, uint64_t block)
{
    patch_under(patch, node);
    if (level == 0) {
        patch_leaf(patch, node);
        return true;
    }
    unsigned i = patch->from > block ? (unsigned)((patch->from - block) / span_of(level)) : 0;
    for (; i < TREE_FANOUT; i++)
        if (!patch_slot(patch, &node->slots[i], level - 1, block + i * span_of(level)))
            return false;
    return true;
}

// What the slot names is a node at `level`, whose first block is `block`.
static bool patch_slot(struct patch *patch, _Atomic locator_t *slot, unsigned level, uint64_t block)
{
    locator_t value = slot_load(slot);
    struct tree_node *node = node_of(value);
    if (node == NULL)
        return true;
    if (patch->budget == 0 && patch->moved) {
        patch->position = block > patch->from ? block : patch->from;
        return false;
    }
    locator_t sealed = sealed_of(node);
    if (sealed == TREE_NOT_SEALED) {
        if (!patch_node(patch, node, level, block))
            return false;
    } else if (replace(slot, value, sealed)) {
        garbage_add(patch->garbage, GARBAGE_NODE, value, level);
    }
    patch->moved = true;
    patch->budget -= patch->budget > 0 ? 1 : 0;
    return true;
}

bool tree_patch(struct tree_space *space, struct tree *tree,
        locator_t (*forward)(void *context, locator_t log), void *context, struct tree_garbage *garbage,
        uint64_t *position, unsigned *budget)
{
    struct patch patch = {.space = space,
            .forward = forward,
            .context = context,
            .garbage = garbage,
            .from = *position,
            .budget = *budget};
    bool finished = *position >= span_of(tree->height) ||
                    patch_slot(&patch, (_Atomic locator_t *)&tree->root, tree->height - 1, 0);
    *budget = patch.budget;
    *position = finished ? span_of(tree->height) : patch.position;
    return finished;
}
