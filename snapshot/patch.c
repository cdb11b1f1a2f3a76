// SPDX-License-Identifier: Apache-2.0
// After a checkpoint is committed: live trees take the sealed twins of their blocks and nodes, and docs the
// places of their blobs. One tree at a time, in bounded steps, each in a turn between transactions (so the
// tree cannot be deleted or frozen within a step) and on the loop that owns the tree.
//
// A volume or base is clean when nothing in its tree is older than the cut. Forks and freezes inherit that,
// so patching goes on until no tree is left that is not clean; then nothing can bring old locators back.
#include "snapshot/checkpoint.h"

#include <stdlib.h>

enum { STEP_NODES = 512, STEP_TREES = 256 };

struct patching {
    struct task *task;
    struct store *store;
    struct cut *cut;
    struct tree_garbage garbage;
    // The tree of this step:
    struct volume *volume;
    struct base *base;
    uint64_t id;                 // of the one begun, 0 = choose
    unsigned base_at, volume_at; // those before were clean
    bool is_volume;
    uint64_t position;
    bool finished;
    struct task_event event;
};

static bool find_further_locked(struct patching *self)
{
    struct catalog *catalog = &self->store->catalog;
    for (; self->base_at < catalog->base_count; self->base_at++)
        if (catalog->bases[self->base_at]->clean_file < self->cut->file) {
            self->id = catalog->bases[self->base_at]->info.id.value;
            self->is_volume = false;
            return true;
        }
    for (; self->volume_at < catalog->volume_count; self->volume_at++)
        if (catalog->volumes[self->volume_at]->clean_file < self->cut->file) {
            self->id = catalog->volumes[self->volume_at]->info.id.value;
            self->is_volume = true;
            return true;
        }
    return false;
}

// Goes on where the last one was found, or each tree would cost a look at all. Rows come and go meanwhile,
// and places move: only a look at all that finds nothing is the end.
static bool find_unclean_locked(struct patching *self)
{
    if (find_further_locked(self))
        return true;
    self->base_at = self->volume_at = 0;
    return find_further_locked(self);
}

// Sets volume or base to the tree of this step; both NULL when there is none left.
static void choose(struct patching *self)
{
    struct store *store = self->store;
    self->volume = NULL;
    self->base = NULL;
    pthread_mutex_lock(&store->lock);
    for (int i = 0; i < 2 && self->volume == NULL && self->base == NULL; i++) {
        bool begun = self->id != 0 && i == 0;
        if (!begun) {
            self->id = 0;
            self->position = 0;
            if (!find_unclean_locked(self))
                break;
        }
        if (self->is_volume)
            self->volume = catalog_volume(store, self->id);
        else
            self->base = catalog_base(store, self->id); // gone meanwhile: choose another
    }
    if (self->base != NULL)
        self->base->opens++; // its last handle may be closed at any moment, by any thread
    if (self->volume == NULL && self->base == NULL)
        self->finished = true;
    pthread_mutex_unlock(&store->lock);
}

static void tree_end(struct patching *self, bool clean)
{
    if (clean) {
        if (self->volume != NULL)
            self->volume->clean_file = self->cut->file;
        if (self->base != NULL)
            self->base->clean_file = self->cut->file;
        self->id = 0;
    }
    self->base = base_close(self->base);
}

static void step_end(struct patching *self)
{
    txn_exclusive_end(self->store);
    task_event_set(&self->event, 0);
}

struct volume_step {
    struct loop_work work;
    struct patching *self;
    bool clean;
};

static void volume_step_back(struct loop_work *work)
{
    struct volume_step *step = (struct volume_step *)work;
    struct patching *self = step->self;
    bool clean = step->clean;
    free(step);
    tree_end(self, clean);
    step_end(self);
}

static void volume_step_run(struct loop_work *work)
{
    struct volume_step *step = (struct volume_step *)work;
    struct patching *self = step->self;
    struct store *store = self->store;
    unsigned budget = STEP_NODES;
    step->clean = tree_patch(&store->space, &self->volume->tree, cut_forward, self->cut, &self->garbage,
            &self->position, &budget);
    step->work.run = volume_step_back;
    loop_post(store->loops[0], &step->work);
}

static void step_begin(void *context)
{
    struct patching *self = context;
    unsigned budget = STEP_NODES;
    choose(self);
    for (unsigned trees = 0; self->base != NULL; trees++) {
        bool clean = tree_patch(&self->store->space, &self->base->tree, cut_forward, self->cut,
                &self->garbage, &self->position, &budget);
        tree_end(self, clean);
        if (!clean || budget == 0 || trees == STEP_TREES)
            break;
        choose(self);
    }
    if (self->volume == NULL) {
        step_end(self);
        return;
    }
    struct volume_step *step = calloc(1, sizeof *step);
    if (step == NULL)
        abort();
    step->self = self;
    step->work.run = volume_step_run;
    loop_post(self->volume->loop, &step->work);
}

static void move_blobs(void *context)
{
    struct patching *self = context;
    struct store *store = self->store;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < self->cut->count; i++) {
        const struct cut_root *root = &self->cut->roots[i];
        struct doc_row *row = root->row.kind == CHECKPOINT_DOC ? catalog_doc(store, root->row.id) : NULL;
        if (row != NULL && row->blob_first == root->blob_first)
            catalog_doc_move_blob(store, row, root->row.root);
    }
    pthread_mutex_unlock(&store->lock);
}

void patch_live(struct task *task, struct store *store, struct cut *cut)
{
    struct patching self = {.task = task, .store = store, .cut = cut};
    cut_exclusive(task, store, move_blobs, &self);
    int64_t r = 0;
    while (!self.finished && r >= 0) {
        task_event_init(task, &self.event);
        txn_exclusive_begin(store, step_begin, &self);
        r = task_wait(task, &self.event);
    }
    cut_grace(task, store);
    tree_garbage_free(&store->space, &self.garbage);
}
