// SPDX-License-Identifier: Apache-2.0
// Every node of every tree once: it can be read, its slots are what its level allows, and each names a block
// that is there, in a segment of the right kind and domain. Then, if something is damaged, which roots reach
// it.
#include "snapshot/check_private.h"
#include "snapshot/tree_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Nodes that were walked ----

static size_t memo_place(const struct check_memo *memo, locator_t node)
{
    size_t at = (size_t)(node * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (memo->capacity - 1);
    while (memo->entries[at].node != 0 && memo->entries[at].node != node)
        at = (at + 1) & (memo->capacity - 1);
    return at;
}

static struct check_memo_entry *memo_find(const struct check_memo *memo, locator_t node)
{
    if (memo->capacity == 0)
        return NULL;
    struct check_memo_entry *entry = &memo->entries[memo_place(memo, node)];
    return entry->node == node ? entry : NULL;
}

static void memo_put(struct check_memo *memo, locator_t node, unsigned level, bool dirty)
{
    if (memo->count * 2 >= memo->capacity) {
        struct check_memo old = *memo;
        memo->capacity = old.capacity == 0 ? 1024 : old.capacity * 2;
        memo->entries = calloc(memo->capacity, sizeof *memo->entries);
        if (memo->entries == NULL)
            abort();
        for (size_t i = 0; i < old.capacity; i++)
            if (old.entries[i].node != 0)
                memo->entries[memo_place(memo, old.entries[i].node)] = old.entries[i];
        free(old.entries);
    }
    memo->entries[memo_place(memo, node)] =
            (struct check_memo_entry){.node = node, .level = (uint8_t)level, .dirty = dirty};
    memo->count++;
}

// ---- Reading one node, in memory or sealed ----

static int load_sealed(struct check *check, locator_t node, locator_t *ret_slots)
{
    return node_cache_read_task(check->store->node_cache, check->task, node, ret_slots);
}

// What the slots that say INHERIT inherit.
static int load_under(
        struct check *check, locator_t under, unsigned level, uint64_t block, locator_t *ret_slots)
{
    locator_t sealed = under_locator(under);
    unsigned at = under_level(under);
    while (locator_is_segment(sealed)) {
        int r = load_sealed(check, sealed, ret_slots);
        if (r < 0 || at == level)
            return r;
        sealed = ret_slots[index_of(block, at)];
        at--;
    }
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        ret_slots[i] = sealed;
    return 0;
}

static int read_node(
        struct check *check, locator_t slot, unsigned level, uint64_t block, locator_t *ret_slots)
{
    const struct tree_node *node = node_of(slot);
    if (node == NULL)
        return load_sealed(check, slot, ret_slots);
    bool inherits = false;
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        ret_slots[i] = slot_load(&node->slots[i]);
        inherits = inherits || ret_slots[i] == LOCATOR_INHERIT;
    }
    if (!inherits)
        return 0;
    locator_t under[TREE_FANOUT];
    int r = load_under(check, slot_load(&node->under), level, block, under);
    for (unsigned i = 0; r == 0 && i < TREE_FANOUT; i++)
        if (ret_slots[i] == LOCATOR_INHERIT)
            ret_slots[i] = under[i];
    return r;
}

static void describe_node(locator_t slot, char *ret_text, size_t size)
{
    if (locator_is_segment(slot))
        snprintf(ret_text, size, "node at slot %u of segment %llu", locator_segment_slot(slot),
                (unsigned long long)locator_segment_number(slot));
    else
        snprintf(ret_text, size, "node in memory");
}

// ---- Slots ----

struct node_place {
    locator_t slot;
    unsigned level;
    uint64_t block; // first
    unsigned wrong; // slots
    char first_wrong[160];
};

static void wrong(struct node_place *place, unsigned index, const char *why, locator_t slot)
{
    if (place->wrong++ == 0)
        snprintf(place->first_wrong, sizeof place->first_wrong, "block %llu: %s (locator %#llx)",
                (unsigned long long)(place->block + index * span_of(place->level)), why,
                (unsigned long long)slot);
}

// NULL: the segment's slot is there, of this kind, and may be named from `node`.
static const char *segment_fault(
        const struct check *check, locator_t node, locator_t slot, enum segment_kind kind)
{
    const struct check_segment *segment = check_segment_find(check, locator_segment_number(slot));
    uint32_t at = locator_segment_slot(slot);
    if (segment == NULL)
        return "names a segment that is not there";
    if (segment->row.kind != kind)
        return kind == SEGMENT_NODES ? "names a segment of data where a node belongs"
                                     : "names a segment of nodes where data belongs";
    if (segment->present != NULL &&
            (at >= SEGMENT_SLOTS_MAX || !(segment->present[at / 64] >> (at % 64) & 1)))
        return "names a slot that its segment does not have";
    if (segment->row.domain == 0 || !locator_is_segment(node))
        return NULL;
    const struct check_segment *home = check_segment_find(check, locator_segment_number(node));
    if (home != NULL && home->row.domain != segment->row.domain &&
            !check_domain_mixed(check, home->row.domain))
        return "names a block of another dedup domain";
    return NULL;
}

static bool data_is_dirty(struct check *check, struct node_place *place, unsigned index, locator_t slot)
{
    const char *fault = NULL;
    if (slot == LOCATOR_UNMAPPED || slot == LOCATOR_ZERO)
        return false;
    check->result->blocks++;
    if (locator_is_segment(slot))
        fault = segment_fault(check, place->slot, slot, SEGMENT_DATA);
    else if (!locator_is_log(slot) || locator_is_segment(place->slot))
        fault = "is no locator";
    else if (!log_holds(check->store->log, slot))
        fault = "names a log file that is not there";
    if (fault != NULL)
        wrong(place, index, fault, slot);
    return fault != NULL || check_is_damaged(check, slot);
}

static int walk(struct check *check, locator_t slot, unsigned level, uint64_t block);

// 1: something below is damaged.
static int walk_child(struct check *check, struct node_place *place, unsigned index, locator_t slot)
{
    const char *fault = NULL;
    if (slot == LOCATOR_UNMAPPED || slot == LOCATOR_ZERO)
        return 0;
    if (locator_is_segment(slot))
        fault = segment_fault(check, place->slot, slot, SEGMENT_NODES);
    else if (node_of(slot) == NULL || locator_is_segment(place->slot))
        fault = "is no locator of a node";
    if (fault == NULL)
        return walk(check, slot, place->level - 1, place->block + index * span_of(place->level));
    wrong(place, index, fault, slot);
    return 1;
}

static int walk_slots(struct check *check, struct node_place *place, const locator_t *slots)
{
    int dirty = 0;
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        int r = place->level == 0 ? data_is_dirty(check, place, i, slots[i])
                                  : walk_child(check, place, i, slots[i]);
        if (r < 0)
            return r;
        dirty = dirty || r;
    }
    if (place->wrong > 0) {
        char name[80];
        describe_node(place->slot, name, sizeof name);
        check_report(check, place->slot, 1, "tree, %s (level %u): %u slots are wrong, the first is of %s",
                name, place->level, place->wrong, place->first_wrong);
    }
    return dirty;
}

// 1: the node or something below it is damaged; < 0: stopped.
static int walk(struct check *check, locator_t slot, unsigned level, uint64_t block)
{
    const struct check_memo_entry *known = memo_find(&check->memo, slot);
    char name[80];
    if (known != NULL && known->level == level)
        return known->dirty;
    describe_node(slot, name, sizeof name);
    if (known != NULL) {
        check_report(
                check, slot, 1, "tree, %s is used at level %u and at level %u", name, known->level, level);
        return 1;
    }
    if (task_stopping(check->task))
        return -ECANCELED;
    locator_t *slots = malloc(TREE_FANOUT * sizeof *slots);
    if (slots == NULL)
        abort();
    struct node_place place = {.slot = slot, .level = level, .block = block};
    int r = read_node(check, slot, level, block, slots);
    check->result->nodes++;
    if (r < 0 && r != -ECANCELED) {
        if (!check_is_damaged(check, slot))
            check_report(check, slot, 1, "tree, %s (level %u) cannot be read: %s", name, level,
                    r == -EBADMSG ? "it is damaged" : strerror(-r));
        r = 1;
    } else if (r == 0) {
        r = walk_slots(check, &place, slots);
        r = r == 0 ? check_is_damaged(check, slot) : r;
    }
    free(slots);
    if (r >= 0)
        memo_put(&check->memo, slot, level, r > 0);
    return r;
}

static bool is_fill(locator_t slot)
{
    return slot == LOCATOR_UNMAPPED || slot == LOCATOR_ZERO;
}

static int walk_root(struct check *check, const struct check_root *root)
{
    locator_t slot = root->tree.root;
    unsigned least = tree_empty(root->blocks).height;
    bool of_memory = node_of(slot) != NULL && slot != LOCATOR_UNMAPPED;
    const char *fault = NULL;
    if (root->tree.height < least || root->tree.height > TREE_HEIGHT_MAX)
        fault = "is not as high as its size asks for";
    else if (locator_is_segment(slot))
        fault = segment_fault(check, 0, slot, SEGMENT_NODES);
    else if (!is_fill(slot) && !of_memory)
        fault = "is no locator";
    if (fault != NULL) {
        char *name = check_root_name(check, root);
        check_report(check, 0, 0, "the root of %s %s (locator %#llx, height %u)", name, fault,
                (unsigned long long)slot, root->tree.height);
        free(name);
        return 0;
    }
    return is_fill(slot) ? 0 : walk(check, slot, root->tree.height - 1, 0);
}

static void check_blob(struct check *check, const struct check_root *root)
{
    if (root->blob_blocks == 0)
        return;
    unsigned missing = 0;
    const char *fault = NULL;
    for (uint64_t i = 0; i < root->blob_blocks; i++) {
        locator_t at = locator_next(root->blob, i);
        const char *why = locator_is_segment(at) ? segment_fault(check, 0, at, SEGMENT_DATA)
                          : locator_is_log(at) && log_holds(check->store->log, at) ? NULL
                                                                                   : "is nowhere";
        missing += why != NULL;
        fault = why != NULL ? why : fault;
    }
    check->result->blocks += root->blob_blocks;
    if (fault == NULL)
        return;
    char *name = check_root_name(check, root);
    check_report(check, 0, 0, "%s: %u of the %llu blocks of its device state cannot be read: the place %s",
            name, missing, (unsigned long long)root->blob_blocks, fault);
    free(name);
}

int check_trees(struct check *check)
{
    for (size_t i = 0; i < check->root_count; i++) {
        const struct check_root *root = &check->roots[i];
        int r = 0;
        if (root->kind == CHECKPOINT_DOC)
            check_blob(check, root);
        else
            r = walk_root(check, root);
        if (r < 0)
            return r;
    }
    return 0;
}

// ---- Whom it touches ----

static void touch(struct check *check, unsigned root, locator_t slot)
{
    uint64_t key = check_key(slot);
    if (!check_is_damaged(check, slot))
        return;
    for (size_t i = 0; i < check->damage_count; i++) {
        struct check_damage *damage = &check->damages[i];
        if (key < damage->first || key >= damage->end)
            continue;
        unsigned last = damage->touched_count;
        if (last > 0 && damage->last_touched == root)
            continue;
        damage->last_touched = root;
        if (last < CHECK_TOUCHED_MAX)
            damage->touched[damage->touched_count++] = root;
        else
            damage->touched_more++;
    }
}

static void touch_below(struct check *check, unsigned root, locator_t slot, unsigned level, uint64_t block)
{
    const struct check_memo_entry *known = memo_find(&check->memo, slot);
    if (known == NULL || !known->dirty || task_stopping(check->task))
        return;
    touch(check, root, slot);
    locator_t *slots = malloc(TREE_FANOUT * sizeof *slots);
    if (slots == NULL)
        abort();
    int r = read_node(check, slot, level, block, slots);
    for (unsigned i = 0; r == 0 && i < TREE_FANOUT; i++) {
        if (is_fill(slots[i]))
            continue;
        if (level == 0)
            touch(check, root, slots[i]);
        else
            touch_below(check, root, slots[i], level - 1, block + i * span_of(level));
    }
    free(slots);
}

void check_touch(struct check *check)
{
    for (size_t i = 0; i < check->root_count; i++) {
        const struct check_root *root = &check->roots[i];
        for (uint64_t k = 0; k < root->blob_blocks; k++)
            touch(check, (unsigned)i, locator_next(root->blob, k));
        if (root->kind != CHECKPOINT_DOC && !is_fill(root->tree.root))
            touch_below(check, (unsigned)i, root->tree.root, root->tree.height - 1, 0);
    }
}
