// SPDX-License-Identifier: Apache-2.0
// What a collection does with what its mark found.
//
// Whether to believe it: each slot that was live at the last collection and is not now has lost its last
// reference since then, and each reference is lost by one event that the store counts in blocks when it
// applies it: a write, zero or trim of that block of a volume, the deletion of a volume, base or blob that
// has it. So the lost slots of data cannot be more than the blocks counted since before the last collection's
// cut; lost nodes not more than that times the height of a tree (a change stores the nodes on one way again).
// A mark that breaks this has missed a root, and nothing is collected. After an opening there is nothing to
// compare with; there the catalog's image in the log and the rows have been held against each other.
//
// Victims: wholly dead ones always. Others by their share of dead blocks, the highest first, until DEAD_SHARE
// of what is dead would go; a segment that is nearly live costs more than it gives, and waits.
#include "snapshot/collect_private.h"

#include <errno.h>
#include <stdlib.h>

enum {
    DEAD_SHARE_PERCENT = 96, // stop when so much of the dead bytes goes: 90 are promised
    NEARLY_LIVE_PARTS = 64,  // fewer dead ones than one in so many: not written again
    DISK_FRAME_SLOTS = 64,   // of cold data
    MEMORY_FRAME_SLOTS = 4,  // memory is fetched a page at a time, also when it is cold
    REWRITTEN_BEFORE = 2,    // a generation: what is left has outlived a collection, and is cold
};

// ---- Believing ----

static uint32_t live_of(struct mark *mark, uint64_t number, enum segment_kind *ret_kind)
{
    const struct mark_segment *segment = mark_find(mark, number);
    if (segment == NULL)
        return 0;
    *ret_kind = segment->row.kind;
    return segment->live_count;
}

int collect_plausible(struct collection *collection, struct error *err)
{
    struct store *store = collection->mark->store;
    const struct collect_memory *memory = &store->checkpoint->memory;
    uint64_t lost_data = 0, lost_nodes = 0;
    for (size_t i = 0; i < memory->seen_count; i++) {
        const struct collect_seen *seen = &memory->seen[i];
        enum segment_kind kind = SEGMENT_DATA;
        uint32_t live = live_of(collection->mark, seen->number, &kind);
        uint64_t lost = seen->live > live ? seen->live - live : 0;
        *(kind == SEGMENT_DATA ? &lost_data : &lost_nodes) += lost;
    }
    uint64_t changed = atomic_load(&store->space.changed_blocks) - memory->changed_blocks;
    if (!atomic_load(&memory->known) || (lost_data <= changed && lost_nodes / TREE_HEIGHT_MAX <= changed))
        return 0;
    return error_set(err, -EUCLEAN,
            "%llu blocks and %llu tree nodes that were in use at the last collection of %s are not found in "
            "use "
            "any more, but only %llu blocks were overwritten or deleted since: nothing was collected; run "
            "'ramet "
            "store check' before anything else",
            (unsigned long long)lost_data, (unsigned long long)lost_nodes, store_directory(store),
            (unsigned long long)changed);
}

void collect_remember(struct collection *collection)
{
    struct mark *mark = collection->mark;
    struct collect_memory *memory = &mark->store->checkpoint->memory;
    free(memory->seen);
    memory->seen = calloc(mark->segment_count + 1, sizeof *memory->seen);
    if (memory->seen == NULL)
        abort();
    memory->seen_count = 0;
    for (size_t i = 0; i < mark->segment_count; i++)
        if (mark->segments[i].live_count > 0)
            memory->seen[memory->seen_count++] = (struct collect_seen){
                    .number = mark->segments[i].row.number, .live = mark->segments[i].live_count};
    memory->changed_blocks = collection->changed_blocks;
    atomic_store(&memory->unique_blocks, mark->data_slots);
    atomic_store(&memory->mapped_blocks, mark->mapped_blocks);
    atomic_store(&memory->known, true);
}

// ---- Choosing ----

static uint64_t bytes_of(uint64_t file_bytes, uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (uint64_t)((double)file_bytes * (double)part / (double)whole);
}

static uint64_t dead_bytes(const struct collect_victim *victim)
{
    return bytes_of(victim->file_bytes, victim->dead, (uint64_t)victim->dead + victim->live);
}

// Drops first, then by share of dead slots.
static int by_share(const void *a, const void *b)
{
    const struct collect_victim *x = a, *y = b;
    uint64_t left = (uint64_t)x->dead * (y->dead + y->live), right = (uint64_t)y->dead * (x->dead + x->live);
    if (left != right)
        return left > right ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// What frees space without needing any, then what needs least.
static int by_need(const void *a, const void *b)
{
    const struct collect_victim *x = a, *y = b;
    if (x->write_bytes != y->write_bytes)
        return x->write_bytes < y->write_bytes ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// How a segment is written again.
static void choose_form(
        const struct collection *collection, const struct segment_row *row, struct collect_victim *victim)
{
    bool memory = row->present <= row->frames * MEMORY_FRAME_SLOTS;
    bool cold = (collection->flags & STORE_GC_RECOMPRESS) != 0 || row->generation >= REWRITTEN_BEFORE;
    victim->frame_slots = memory ? MEMORY_FRAME_SLOTS : DISK_FRAME_SLOTS;
    victim->level =
            cold && row->kind == SEGMENT_DATA && row->level < SEGMENT_LEVEL_COLD ? SEGMENT_LEVEL_COLD : 0;
}

static bool to_recompress(const struct collection *collection, const struct collect_victim *victim)
{
    return (collection->flags & STORE_GC_RECOMPRESS) != 0 && victim->level > 0;
}

static void list_all(struct collection *collection, struct store_gc_result *result)
{
    struct mark *mark = collection->mark;
    collection->victims = calloc(mark->segment_count + 1, sizeof *collection->victims);
    if (collection->victims == NULL)
        abort();
    for (size_t i = 0; i < mark->segment_count; i++) {
        const struct mark_segment *segment = &mark->segments[i];
        struct collect_victim victim = {.number = segment->row.number,
                .live = segment->live_count,
                .dead = segment->row.present - segment->live_count,
                .file_bytes = segment->row.file_bytes};
        result->live_slots += victim.live;
        result->dead_slots += victim.dead;
        choose_form(collection, &segment->row, &victim);
        if (victim.dead > 0 || victim.live == 0 || to_recompress(collection, &victim))
            collection->victims[collection->victim_count++] = victim;
    }
}

void collect_plan(struct collection *collection, struct store_gc_result *result)
{
    uint64_t dead = 0, goes = 0;
    size_t kept = 0;
    list_all(collection, result);
    struct collect_victim *victims = collection->victims;
    qsort(victims, collection->victim_count, sizeof *victims, by_share);
    for (size_t i = 0; i < collection->victim_count; i++)
        dead += dead_bytes(&victims[i]);
    uint64_t left = result->dead_slots;
    for (size_t i = 0; i < collection->victim_count; i++) {
        struct collect_victim victim = victims[i];
        bool enough = goes >= bytes_of(dead, DEAD_SHARE_PERCENT, 100);
        bool nearly_live = (uint64_t)victim.dead * NEARLY_LIVE_PARTS < (uint64_t)victim.dead + victim.live;
        if (victim.live > 0 && (enough || nearly_live) && !to_recompress(collection, &victim))
            continue;
        goes += dead_bytes(&victim);
        left -= victim.dead;
        victim.write_bytes = bytes_of(victim.file_bytes, victim.live, (uint64_t)victim.dead + victim.live);
        victims[kept++] = victim;
    }
    collection->victim_count = kept;
    qsort(victims, kept, sizeof *victims, by_need);
    atomic_store(&collection->mark->store->checkpoint->memory.dead_slots, left);
}
