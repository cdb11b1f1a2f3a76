// SPDX-License-Identifier: Apache-2.0
// Slices of a collection, and its commits.
//
//   seal -> mark -> plan -> { write some victims again, commit rows without and with them, swap the table,
//   forget fingerprints of what went, unlink } ...
// Drops come first and need no room but for the commit; what is written again is committed as soon as it
// takes more room than the reserve could give back. A victim that cannot be read is passed over and reported
// at the end: the rest goes on.
#include "snapshot/collect_private.h"

#include "snapshot/background.h"
#include "snapshot/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH_DROPS = 256,
    BATCH_REWRITES = 16,
    WANTED_PARTS = 8,     // collect when one in so many blocks may be dead
    WANTED_BLOCKS = 4096, // and at least so many
};
static const uint64_t SLICE_NS = UINT64_C(50) * 1000 * 1000;
static const uint64_t BATCH_WRITE_BYTES = UINT64_C(64) << 20;

// Victims between two commits.
struct batch {
    struct collect_victim *victims[BATCH_DROPS];
    struct segment_row rows[BATCH_DROPS]; // of what was written again
    size_t count, rewrites;
    uint64_t written_bytes;
};

static struct collection *collection_free(struct collection *collection)
{
    if (collection == NULL)
        return NULL;
    mark_free(collection->mark);
    free(collection->victims);
    free(collection);
    return NULL;
}

void collect_close(struct store *store)
{
    struct checkpoint *checkpoint = store->checkpoint;
    checkpoint->collection = collection_free(checkpoint->collection);
    free(checkpoint->memory.seen);
    checkpoint->memory.seen = NULL;
}

bool collect_doomed(struct store *store, locator_t locator)
{
    struct collection *collection = store->checkpoint->collection;
    if (collection == NULL || !collection->marked)
        return false;
    uint64_t number = locator_segment_number(locator);
    const struct mark_segment *segment = mark_find(collection->mark, number);
    if (segment == NULL) // newer than the mark, or gone
        return number < collection->mark->next_segment;
    return !mark_has(segment, locator_segment_slot(locator));
}

// ---- When ----

bool collect_wanted(struct store *store)
{
    struct collect_memory *memory = &store->checkpoint->memory;
    struct segments_stat stat;
    segments_stat(store->segments, &stat);
    uint64_t changed = atomic_load(&store->space.changed_blocks) - memory->changed_blocks;
    uint64_t may_be_dead = atomic_load(&memory->dead_slots) + changed;
    if (stat.present == 0 || changed == 0) // a collection would find what the last one found
        return false;
    if (may_be_dead > stat.present)
        may_be_dead = stat.present;
    return !space_may_grow(store) ||
           (may_be_dead >= WANTED_BLOCKS && may_be_dead >= stat.present / WANTED_PARTS);
}

// ---- Beginning ----

static int begin(struct task *task, struct store *store, const struct store_gc_result *owner, unsigned flags,
        struct error *err)
{
    uint64_t changed = atomic_load(&store->space.changed_blocks);
    uint64_t lost = changed - store->checkpoint->memory.changed_blocks;
    // The reserve is there so that a deletion gives room back on a full disk: seals for the sake of writers,
    // and collections that could not give back as much, leave it alone.
    bool spends = (flags & COLLECT_OF_ITSELF) == 0 || lost * BLOCK_SIZE >= space_reserve_bytes(store);
    store->checkpoint->spend_reserve = spends;
    int r = checkpoint_run(task, store, err);
    // Without room to seal, what the last checkpoint does not need can still go: live trees derive from that.
    if (r < 0 && (r != -ENOSPC || store->checkpoint->rows.meta.start_file == 0))
        return r;
    struct collection *collection = calloc(1, sizeof *collection);
    if (collection == NULL)
        abort();
    collection->owner = owner;
    collection->flags = flags;
    collection->spends = spends;
    collection->mark = mark_new(store);
    collection->changed_blocks = changed;
    if (r < 0) {
        collection->unsealed = true;
        collection->failed = r;
        if (err != NULL)
            collection->failure = *err;
        collection->changed_blocks = store->checkpoint->memory.changed_blocks; // its cut was earlier
    }
    store->checkpoint->collection = collection;
    return 0;
}

static int marked(
        struct task *task, struct collection *collection, struct store_gc_result *result, struct error *err)
{
    int r = mark_run(task, collection->mark, err);
    if (r == 0)
        r = collect_plausible(collection, err);
    if (r < 0)
        return r;
    collect_remember(collection);
    collect_plan(collection, result);
    collection->marked = true;
    return 0;
}

// ---- Committing ----

static bool in_batch(const struct batch *batch, uint64_t number, size_t *ret_at)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->victims[i]->number == number) {
            *ret_at = i;
            return true;
        }
    return false;
}

static struct checkpoint_rows compose(struct store *store, const struct batch *batch)
{
    const struct checkpoint_rows *before = &store->checkpoint->rows;
    struct checkpoint_rows rows = {.meta = before->meta};
    for (size_t i = 0; i < before->root_count; i++)
        checkpoint_rows_add_root(&rows, &before->roots[i]);
    for (size_t i = 0; i < before->segment_count; i++) {
        size_t at;
        if (!in_batch(batch, before->segments[i].number, &at))
            checkpoint_rows_add_segment(&rows, &before->segments[i]);
        else if (batch->victims[at]->live > 0)
            checkpoint_rows_add_segment(&rows, &batch->rows[at]);
    }
    return rows;
}

struct forgetting {
    struct store *store;
    const struct mark_segment *segment;
};

static int forget_dead(void *context, locator_t locator, struct fingerprint fingerprint)
{
    struct forgetting *forgetting = context;
    if (!mark_has(forgetting->segment, locator_segment_slot(locator)))
        fingerprint_index_forget(forgetting->store->fingerprints, fingerprint, locator);
    return 0;
}

// Of the old generation, so before the swap. One that cannot be read leaves entries that find nothing.
static void forget(struct task *task, struct store *store, struct mark *mark, uint64_t number)
{
    struct forgetting forgetting = {.store = store, .segment = mark_find(mark, number)};
    if (forgetting.segment != NULL && forgetting.segment->row.kind == SEGMENT_DATA)
        segment_slots_task(store->segments, task, number, forget_dead, &forgetting);
}

static int commit_rows(struct task *task, struct store *store, const struct batch *batch, struct error *err)
{
    struct checkpoint_rows rows = compose(store, batch);
    int r = checkpoint_commit_rows(store, &rows, err);
    if (r == -ENOSPC && space_reserve_spend(task, store))
        r = checkpoint_commit_rows(store, &rows, err);
    checkpoint_rows_free(&rows);
    return r;
}

// From the commit on files are only garbage: what fails here is done again at the next chance.
static int finish_batch(struct task *task, struct store *store, struct batch *batch,
        struct store_gc_result *result, struct error *err)
{
    struct mark *mark = store->checkpoint->collection->mark;
    if (batch->count == 0)
        return 0;
    // A catalog that is lost is made again from the copy in the log: it must not be an earlier one's, which
    // needs what goes now.
    int r = checkpoint_secure_roots(task, store, mark->covers - 1, err);
    if (r == 0)
        r = commit_rows(task, store, batch, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < batch->count; i++) {
        const struct collect_victim *victim = batch->victims[i];
        forget(task, store, mark, victim->number);
        result->freed_bytes += victim->file_bytes;
        if (victim->live == 0) {
            segments_drop(store->segments, victim->number);
            result->segments_removed++;
            continue;
        }
        segments_add(store->segments, &batch->rows[i]);
        result->segments_rewritten++;
        result->rewritten_bytes += batch->rows[i].file_bytes;
        result->freed_bytes -= victim->file_bytes < batch->rows[i].file_bytes ? victim->file_bytes
                                                                              : batch->rows[i].file_bytes;
    }
    *batch = (struct batch){0};
    store->checkpoint->files_leave = true;
    space_clear(task, store);
    return 0;
}

// ---- Victims ----

static void pass_over(struct collection *collection, int failed, const struct error *err)
{
    if (collection->failed == 0) {
        collection->failed = failed;
        collection->failure = *err;
    }
}

// 0: in the batch, or passed over. -ENOSPC: what the batch frees may help.
static int write_again(
        struct task *task, struct store *store, struct batch *batch, struct collect_victim *victim)
{
    struct collection *collection = store->checkpoint->collection;
    const struct mark_segment *segment = mark_find(collection->mark, victim->number);
    struct error err = {0};
    int r = -ENOSPC;
    for (int tries = 0; r == -ENOSPC && tries < 2; tries++) {
        if (tries > 0 && (batch->count > 0 || !space_reserve_spend(task, store)))
            break;
        r = segment_rewrite(store->segments, task, victim->number, segment->live, victim->level,
                victim->frame_slots, &batch->rows[batch->count], &err);
    }
    if (r == -ECANCELED || (r == -ENOSPC && batch->count > 0))
        return r;
    if (r < 0) {
        collection->no_space = collection->no_space || r == -ENOSPC;
        pass_over(collection, r, &err);
        return 0;
    }
    batch->victims[batch->count] = victim;
    batch->written_bytes += batch->rows[batch->count++].file_bytes;
    batch->rewrites++;
    return 0;
}

// Drops are committed by themselves: what they free may be needed for writing.
static bool batch_full(struct store *store, const struct batch *batch, const struct collect_victim *next)
{
    if (batch->count == 0)
        return false;
    if (batch->rewrites == 0)
        return batch->count == BATCH_DROPS || next->live > 0;
    return batch->rewrites == BATCH_REWRITES || batch->written_bytes >= BATCH_WRITE_BYTES ||
           !space_has(store, next->write_bytes);
}

static int take(struct task *task, struct store *store, struct batch *batch, struct collect_victim *victim,
        struct store_gc_result *result, struct error *err)
{
    struct collection *collection = store->checkpoint->collection;
    int r = 0;
    if (batch_full(store, batch, victim))
        r = finish_batch(task, store, batch, result, err);
    if (r < 0)
        return r;
    if (victim->live == 0) {
        batch->victims[batch->count++] = victim;
        return 0;
    }
    if (collection->no_space)
        return 0;
    r = write_again(task, store, batch, victim);
    if (r == -ENOSPC) {
        r = finish_batch(task, store, batch, result, err);
        r = r < 0 ? r : write_again(task, store, batch, victim);
    }
    return r == -ECANCELED ? error_set(err, r, "the store is closing") : r;
}

// 0: all victims are done. Gives way, but gets on each time: what waits may come as often as it can.
static int collect_some(struct task *task, struct store *store, struct batch *batch,
        struct store_gc_result *result, struct error *err)
{
    struct collection *collection = store->checkpoint->collection;
    struct loop *loop = task_loop(task);
    uint64_t began_ns = loop_now_ns(loop);
    size_t first = collection->victim_at;
    while (collection->victim_at < collection->victim_count) {
        if (task_stopping(task))
            return error_set(err, -ECANCELED, "the store is closing");
        if (collection->victim_at > first && background_waiting(store) &&
                loop_now_ns(loop) - began_ns >= SLICE_NS)
            return -EAGAIN;
        int r = take(task, store, batch, &collection->victims[collection->victim_at], result, err);
        if (r < 0)
            return r;
        collection->victim_at++;
    }
    return 0;
}

static int slice(struct task *task, struct store *store, struct store_gc_result *result, struct error *err)
{
    struct collection *collection = store->checkpoint->collection;
    int r = collection->marked ? 0 : marked(task, collection, result, err);
    if (r < 0)
        return r;
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL)
        abort();
    r = collect_some(task, store, batch, result, err);
    struct error at_end = {0};
    int ended = finish_batch(task, store, batch, result, &at_end); // also what was done before a stop
    free(batch);
    if (ended < 0 && (r == 0 || r == -EAGAIN)) {
        if (err != NULL)
            *err = at_end;
        return ended;
    }
    return r;
}

// What could not be sealed before may have room now, and then more is dead than the last checkpoint knew.
static int end(
        struct task *task, struct store *store, struct store_gc_result *result, int r, struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    struct collection *collection = checkpoint->collection;
    bool unsealed = r == 0 && collection->unsealed, again = collection->again;
    const struct store_gc_result *owner = collection->owner;
    unsigned flags = collection->flags;
    if (r == 0 && collection->failed < 0) {
        r = collection->failed;
        if (err != NULL)
            *err = collection->failure;
    }
    checkpoint->collection = collection_free(collection);
    space_clear(task, store);
    if (unsealed && !again && result->freed_bytes > 0) {
        r = begin(task, store, owner, flags, err);
        if (r == 0) {
            checkpoint->collection->again = true;
            return -EAGAIN;
        }
    }
    space_reserve_make(task, store, result->freed_bytes > 0);
    return r == -ENOSPC && result->freed_bytes > 0 ? 0 : r; // the rest at the next one
}

int collect_run(struct task *task, struct store *store, unsigned flags, struct store_gc_result *ret_result,
        struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    if (checkpoint->collection != NULL && checkpoint->collection->owner != ret_result)
        return -EAGAIN; // another one gave way, and goes on behind this
    checkpoint->spend_reserve = checkpoint->collection != NULL && checkpoint->collection->spends;
    if (checkpoint->collection == NULL) {
        *ret_result = (struct store_gc_result){0};
        int r = begin(task, store, ret_result, flags, err);
        if (r < 0) {
            checkpoint->spend_reserve = false;
            return r;
        }
    }
    int r = slice(task, store, ret_result, err);
    if (r != -EAGAIN)
        r = end(task, store, ret_result, r, err);
    checkpoint->spend_reserve = false;
    return r;
}
