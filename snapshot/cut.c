// SPDX-License-Identifier: Apache-2.0
// The cut: all roots at one position of the log. It is taken between two transactions and inside a rotation,
// when no record is in flight and every acknowledgement has been delivered; so no tree is being changed on
// any loop, and the image at the head of the new file describes exactly this state. Volumes get new owner
// numbers: from here on they copy what they change, and the nodes under the cut's roots stay as they are.
#include "snapshot/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct taking {
    struct log_cut log_cut;
    struct task_event event;
    struct store *store;
    struct cut *cut;
};

static void add_root(struct cut *cut, const struct cut_root *root)
{
    cut->roots[cut->count++] = *root;
}

static void take_roots_locked(struct store *store, struct cut *cut)
{
    struct catalog *catalog = &store->catalog;
    cut->roots =
            calloc(catalog->volume_count + catalog->base_count + catalog->doc_count + 1, sizeof *cut->roots);
    if (cut->roots == NULL)
        abort();
    for (unsigned i = 0; i < catalog->base_count; i++) {
        struct base *base = catalog->bases[i];
        add_root(cut, &(struct cut_root){.row = {.kind = CHECKPOINT_BASE, .id = base->info.id.value},
                              .lasting = base->doc_refs > 0,
                              .tree = tree_share(tree_look(&base->tree)),
                              .domain = base->info.domain,
                              .volume_kind = base->info.kind});
    }
    for (unsigned i = 0; i < catalog->volume_count; i++) {
        struct volume *volume = catalog->volumes[i];
        add_root(cut, &(struct cut_root){.row = {.kind = CHECKPOINT_VOLUME, .id = volume->info.id.value},
                              .lasting = true,
                              .tree = tree_share(volume->tree),
                              .domain = volume->info.domain,
                              .volume_kind = volume->info.kind});
        volume->owner = tree_new_owner(&store->space);
    }
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        struct doc_row *row = catalog->docs[i];
        if (row->blob_first == 0)
            continue;
        uint64_t blocks = volume_blocks_of(row->doc.blob_bytes);
        if (locator_is_log(row->blob_first))
            log_ref(store->log, row->blob_first, blocks);
        add_root(cut, &(struct cut_root){.row = {.kind = CHECKPOINT_DOC, .id = row->doc.id.value},
                              .lasting = true,
                              .tree = tree_empty(1),
                              .domain = DOMAIN_OF_BLOBS,
                              .blob_first = row->blob_first,
                              .blob_blocks = blocks});
    }
}

static int compare_roots(const void *a, const void *b)
{
    const struct cut_root *x = a, *y = b;
    if (x->domain != y->domain)
        return x->domain < y->domain ? -1 : 1;
    if (x->row.kind != y->row.kind) // bases before volumes: what is shared is sealed in the order it was made
        return x->row.kind > y->row.kind ? -1 : 1;
    return x->row.id < y->row.id ? -1 : x->row.id > y->row.id;
}

static void cut_at(struct log_cut *log_cut, uint64_t file)
{
    struct taking *taking = (struct taking *)log_cut;
    struct store *store = taking->store;
    struct log_stat stat;
    log_stat(store->log, &stat);
    taking->cut->file = file;
    taking->cut->first_file = stat.oldest_file;
    taking->cut->file_count = file - stat.oldest_file;
    pthread_mutex_lock(&store->lock);
    take_roots_locked(store, taking->cut);
    pthread_mutex_unlock(&store->lock);
    store->cut_file = file;
}

static void cut_done(struct log_cut *log_cut, int result)
{
    struct taking *taking = (struct taking *)log_cut;
    txn_exclusive_end(taking->store);
    task_event_set(&taking->event, result);
}

static void take_turn(void *context)
{
    struct taking *taking = context;
    log_cut(taking->store->log, &taking->log_cut);
}

int cut_take(struct task *task, struct store *store, struct cut **ret_cut)
{
    struct taking taking = {.log_cut = {.at = cut_at, .done = cut_done}, .store = store};
    taking.cut = calloc(1, sizeof *taking.cut);
    if (taking.cut == NULL)
        abort();
    taking.cut->store = store;
    task_event_init(task, &taking.event);
    txn_exclusive_begin(store, take_turn, &taking);
    int r = (int)task_wait(task, &taking.event);
    if (r < 0) {
        taking.cut->file_count = 0; // nothing is forwarded yet
        cut_free(store, taking.cut);
        return r;
    }
    struct cut *cut = taking.cut;
    cut->forward = calloc(cut->file_count + 1, sizeof *cut->forward);
    if (cut->forward == NULL)
        abort();
    if (cut->count > 1)
        qsort(cut->roots, cut->count, sizeof *cut->roots, compare_roots);
    *ret_cut = cut;
    return 0;
}

void cut_free(struct store *store, struct cut *cut)
{
    if (cut == NULL)
        return;
    for (size_t i = 0; i < cut->count; i++) {
        struct cut_root *root = &cut->roots[i];
        tree_drop(&store->space, &root->tree);
        if (root->blob_blocks > 0 && locator_is_log(root->blob_first) && store->space.log != NULL)
            log_unref(store->space.log, root->blob_first, root->blob_blocks);
    }
    for (size_t i = 0; i < cut->file_count; i++)
        free(cut->forward[i]);
    free(cut->forward);
    free(cut->roots);
    free(cut);
}

locator_t cut_forward(void *context, locator_t log)
{
    const struct cut *cut = context;
    uint64_t file = locator_log_file(log);
    if (file < cut->first_file || file - cut->first_file >= cut->file_count)
        return 0;
    const locator_t *blocks = cut->forward[file - cut->first_file];
    return blocks == NULL ? 0 : blocks[locator_log_block(log)];
}

// ---- Turns ----

struct turn {
    struct store *store;
    struct task_event event;
    void (*begin)(void *context);
    void *context;
};

static void turn_run(void *context)
{
    struct turn *turn = context;
    turn->begin(turn->context);
    txn_exclusive_end(turn->store);
    task_event_set(&turn->event, 0);
}

void cut_exclusive(struct task *task, struct store *store, void (*begin)(void *context), void *context)
{
    struct turn turn = {.store = store, .begin = begin, .context = context};
    task_event_init(task, &turn.event);
    txn_exclusive_begin(store, turn_run, &turn);
    task_wait(task, &turn.event);
}

static void nothing(void *context)
{
}

void cut_grace(struct task *task, struct store *store)
{
    for (unsigned i = 0; i < store->loop_count; i++)
        task_call(task, store->loops[i], nothing, NULL);
    if (task_loop(task) != store->loops[0])
        task_call(task, task_loop(task), nothing, NULL);
}
