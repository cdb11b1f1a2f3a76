// SPDX-License-Identifier: Apache-2.0
// Why the roots suffice. A slot is needed when a tree or doc of the catalog in memory names it, when one that
// recovery would build names it, or when a handle's base does.
//
//  1. After a checkpoint is committed, its trees are patched before the job ends: every segment locator in
//     memory (slots, what nodes inherit from, roots, blobs) is then reachable from the cut's roots. Cut roots
//     are every volume, base and blob there was; those of the catalog's image are the checkpoint's rows.
//  2. Between two checkpoints nothing brings in another segment locator. Writes bring log locators. Copies,
//     freezes, forks and growth use what is there; a fork starts from a base that docs keep, which was in the
//     cut or was frozen from what was. Transactions under way hold shares of the same trees: the cut and each
//     step of the patch come between two of them.
//  3. A base that only a handle keeps is not a row. If it was in the cut, patching has made its root a
//  segment
//     locator, and it is in the catalog as long as the handle is open: it is listed from there. If it was
//     frozen later, see 2. If its doc goes while a collection runs, it was a row when the roots were listed.
//     A transaction cannot build on such a base, so nothing outlives its handle.
//  4. Recovery builds the image's volumes, bases and docs from the rows, then 2 holds for the replay. So rows
//  of
//     volumes that have been deleted since count: the record of the deletion may not be durable.
//  5. A callback that has read a locator from a tree uses it (a read holds its segment) before it returns.
//  The
//     patch ends with every loop having finished its callback. Node reads that are under way hold their
//     segment, and afterwards the tree is asked again.
//  6. A checkpoint between two slices of a mark may share a slot that has no mark yet. Its roots are listed
//  then,
//     and marked before the mark is finished (what earlier roots reached stays marked: it is freed next
//     time). After that collect.c hides what is not marked from sealing.
//  7. A checkpoint that failed has changed nothing: live trees still derive from the rows.
//
// Errors: a node that cannot be read, a locator that leads nowhere, a node where data belongs or the other
// way round, or more live slots than a segment holds: the mark fails, and nothing is collected.
#include "snapshot/mark.h"

#include "snapshot/background.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLICE_NODES = 1024 }; // that are read before it gives way

struct mark_root {
    enum checkpoint_kind kind; // DOC: a run of blocks
    locator_t locator;
    unsigned level;  // of the node
    uint64_t blocks; // DOC
};

struct mark_level {
    locator_t node;
    unsigned level, index;
    uint64_t mapped;
    locator_t slots[TREE_FANOUT];
};

static void *grown(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    *capacity = *capacity == 0 ? 64 : *capacity * 2;
    array = realloc(array, *capacity * size);
    if (array == NULL)
        abort();
    return array;
}

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        abort();
    return memory;
}

struct mark *mark_new(struct store *store)
{
    struct mark *mark = zeroed(1, sizeof *mark);
    mark->store = store;
    mark->levels = zeroed(TREE_HEIGHT_MAX, sizeof *mark->levels);
    return mark;
}

struct mark *mark_free(struct mark *mark)
{
    if (mark == NULL)
        return NULL;
    for (size_t i = 0; i < mark->segment_count; i++) {
        free(mark->segments[i].live);
        free(mark->segments[i].mapped);
    }
    free(mark->segments);
    free(mark->roots);
    free(mark->levels);
    free(mark);
    return NULL;
}

// ---- Segments ----

struct mark_segment *mark_find(struct mark *mark, uint64_t number)
{
    if (mark->segment_at < mark->segment_count &&
            mark->segments[mark->segment_at].row.number == number) // most often the same as before
        return &mark->segments[mark->segment_at];
    size_t low = 0, high = mark->segment_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mark->segments[middle].row.number < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == mark->segment_count || mark->segments[low].row.number != number)
        return NULL;
    mark->segment_at = low;
    return &mark->segments[low];
}

// Rows ascend, numbers are not used again, and only collections remove some: new ones come at the end.
static void list_segments(struct mark *mark)
{
    const struct checkpoint_rows *rows = &mark->store->checkpoint->rows;
    uint64_t last = mark->segment_count > 0 ? mark->segments[mark->segment_count - 1].row.number : 0;
    for (size_t i = 0; i < rows->segment_count; i++) {
        if (rows->segments[i].number <= last)
            continue;
        mark->segments =
                grown(mark->segments, mark->segment_count, &mark->segment_capacity, sizeof *mark->segments);
        mark->segments[mark->segment_count++] = (struct mark_segment){.row = rows->segments[i]};
    }
}

static int lost(struct mark *mark, locator_t locator, const char *what, struct error *err)
{
    return error_set(err, -EBADMSG,
            "a tree in %s refers to block %u of segment %llu, %s; nothing was collected: run 'ramet store "
            "check'",
            store_directory(mark->store), locator_segment_slot(locator),
            (unsigned long long)locator_segment_number(locator), what);
}

// *ret_new: it was not marked before.
static int mark_slot(struct mark *mark, locator_t locator, enum segment_kind kind,
        struct mark_segment **ret_segment, bool *ret_new, struct error *err)
{
    struct mark_segment *segment = mark_find(mark, locator_segment_number(locator));
    uint32_t slot = locator_segment_slot(locator);
    if (segment == NULL)
        return lost(mark, locator, "which does not exist", err);
    if (segment->row.kind != kind)
        return lost(mark, locator, "which holds blocks of another kind", err);
    if (slot >= segment->row.slots)
        return lost(mark, locator, "which has fewer", err);
    if (segment->live == NULL)
        segment->live = zeroed(SEGMENT_BITMAP_WORDS, sizeof *segment->live);
    *ret_new = !mark_has(segment, slot);
    *ret_segment = segment;
    if (!*ret_new)
        return 0;
    segment->live[slot / 64] |= UINT64_C(1) << (slot % 64);
    if (++segment->live_count > segment->row.present)
        return lost(mark, locator, "of which some are missing", err);
    *(kind == SEGMENT_DATA ? &mark->data_slots : &mark->node_slots) += 1;
    return 0;
}

// ---- Roots ----

static void add_root(struct mark *mark, struct mark_root root)
{
    mark->roots = grown(mark->roots, mark->root_count, &mark->root_capacity, sizeof *mark->roots);
    mark->roots[mark->root_count++] = root;
}

static void list_handle_bases(struct mark *mark)
{
    struct store *store = mark->store;
    pthread_mutex_lock(&store->lock);
    for (unsigned i = 0; i < store->catalog.base_count; i++) {
        const struct base *base = store->catalog.bases[i];
        struct tree tree = tree_look(&base->tree);
        if (locator_is_segment(tree.root) &&
                checkpoint_rows_find(&store->checkpoint->rows, CHECKPOINT_BASE, base->info.id.value) == NULL)
            add_root(mark, (struct mark_root){
                                   .kind = CHECKPOINT_BASE, .locator = tree.root, .level = tree.height - 1});
    }
    pthread_mutex_unlock(&store->lock);
}

static void list_roots(struct mark *mark)
{
    const struct checkpoint_rows *rows = &mark->store->checkpoint->rows;
    mark->root_count = mark->root_at = 0;
    mark->mapped_blocks = 0;
    for (size_t i = 0; i < rows->root_count; i++) {
        const struct checkpoint_root *row = &rows->roots[i];
        bool doc = row->kind == CHECKPOINT_DOC;
        if (locator_is_segment(row->root) && row->root != LOCATOR_LOST)
            add_root(mark, (struct mark_root){.kind = row->kind,
                                   .locator = row->root,
                                   .level = doc ? 0 : row->height - 1,
                                   .blocks = doc ? row->height : 0});
    }
    list_handle_bases(mark);
    list_segments(mark);
    mark->covers = rows->meta.count + 1;
    mark->next_segment = rows->meta.next_segment;
}

// ---- Walking ----

// Goes down to a node, unless it was visited: then only what it maps is added above.
static int enter(struct task *task, struct mark *mark, locator_t locator, unsigned level, struct error *err)
{
    struct mark_segment *segment = NULL;
    bool new = false;
    int r = mark_slot(mark, locator, SEGMENT_NODES, &segment, &new, err);
    if (r < 0)
        return r;
    if (segment->mapped == NULL)
        segment->mapped = zeroed(SEGMENT_SLOTS_MAX, sizeof *segment->mapped);
    if (!new) {
        uint64_t mapped = segment->mapped[locator_segment_slot(locator)];
        *(mark->depth > 0 ? &mark->levels[mark->depth - 1].mapped : &mark->mapped_blocks) += mapped;
        return 0;
    }
    struct mark_level *here = &mark->levels[mark->depth];
    r = node_cache_read_task(mark->store->node_cache, task, locator, here->slots);
    if (r < 0)
        return error_set(err, r, "cannot read tree node %u of segment %llu in %s: %s; nothing was collected",
                locator_segment_slot(locator), (unsigned long long)locator_segment_number(locator),
                store_directory(mark->store), strerror(-r));
    here->node = locator;
    here->level = level;
    here->index = 0;
    here->mapped = 0;
    mark->depth++;
    return 0;
}

static void leave(struct mark *mark)
{
    const struct mark_level *here = &mark->levels[--mark->depth];
    struct mark_segment *segment = mark_find(mark, locator_segment_number(here->node));
    segment->mapped[locator_segment_slot(here->node)] = here->mapped;
    *(mark->depth > 0 ? &mark->levels[mark->depth - 1].mapped : &mark->mapped_blocks) += here->mapped;
}

static int mark_leaf(struct mark *mark, struct mark_level *leaf, struct error *err)
{
    struct mark_segment *segment;
    bool new;
    for (unsigned i = 0; i < TREE_FANOUT; i++) {
        if (!locator_is_segment(leaf->slots[i]) || leaf->slots[i] == LOCATOR_LOST)
            continue;
        int r = mark_slot(mark, leaf->slots[i], SEGMENT_DATA, &segment, &new, err);
        if (r < 0)
            return r;
        leaf->mapped++;
    }
    return 0;
}

// One step: a child of the node at hand, or up.
static int step(struct task *task, struct mark *mark, struct error *err)
{
    struct mark_level *here = &mark->levels[mark->depth - 1];
    if (here->level == 0) {
        int r = mark_leaf(mark, here, err);
        if (r == 0)
            leave(mark);
        return r;
    }
    while (here->index < TREE_FANOUT && !locator_is_segment(here->slots[here->index]))
        here->index++;
    if (here->index == TREE_FANOUT) {
        leave(mark);
        return 0;
    }
    return enter(task, mark, here->slots[here->index++], here->level - 1, err);
}

static int begin_root(struct task *task, struct mark *mark, struct error *err)
{
    const struct mark_root *root = &mark->roots[mark->root_at++];
    if (root->kind != CHECKPOINT_DOC)
        return enter(task, mark, root->locator, root->level, err);
    struct mark_segment *segment;
    bool new;
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < root->blocks; i++)
        r = mark_slot(mark, locator_next(root->locator, i), SEGMENT_DATA, &segment, &new, err);
    return r;
}

int mark_run(struct task *task, struct mark *mark, struct error *err)
{
    const struct checkpoint_meta *meta = &mark->store->checkpoint->rows.meta;
    for (unsigned steps = 0;; steps++) {
        int r;
        if (mark->depth > 0) {
            r = step(task, mark, err);
        } else if (mark->root_at < mark->root_count) {
            r = begin_root(task, mark, err);
        } else if (mark->covers == meta->count + 1) {
            return 0;
        } else if (meta->start_file == 0) {
            return error_set(err, -EINVAL, "there is no checkpoint in %s", store_directory(mark->store));
        } else {
            list_roots(mark);
            r = 0;
        }
        if (r < 0)
            return r;
        if (task_stopping(task))
            return error_set(err, -ECANCELED, "the store is closing");
        if (steps >= SLICE_NODES && background_waiting(mark->store))
            return -EAGAIN;
    }
}
