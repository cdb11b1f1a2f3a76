// SPDX-License-Identifier: Apache-2.0
// Trees that several threads share, for the thread and address sanitizers: each thread, standing for a loop,
// changes a tree of its own, freezes it into bases, starts anew from bases, and reads bases, while another
// thread, standing for a task, seals what was cut and lets the loops patch all of it. Every content is known;
// a log reference may only be taken on a file that is still held.
#include "snapshot/node_cache.h"
#include "snapshot/tree.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    LOOPS = 4,
    BASES = 6,
    CHECKPOINTS = 200,
    CALLBACKS = 60, // of each loop, between two commands
    WINDOWS = 6,
    WINDOW_BLOCKS = 100,
    PLACES = WINDOWS * WINDOW_BLOCKS, // blocks that are ever written
    FILES_MAX = 1 << 18,
    NODES_MAX = 1 << 17,
    NODE_SEGMENT = 1 << 20,
};
static const uint64_t tree_blocks = (uint64_t)WINDOWS * 70000; // three levels

// The checks run on threads that the test's framework knows nothing of.
#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: does not hold: %s\n", __LINE__, #condition);                           \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

struct base {
    struct tree tree;
    locator_t model[PLACES];
    unsigned opens; // lock
    bool unlisted;  // lock
};

struct loop_thread {
    struct world *world;
    pthread_t thread;
    unsigned number;
    uint64_t random;
    struct tree tree;
    uint64_t owner;
    locator_t model[PLACES];
    void (*command)(struct loop_thread *loop); // lock of the world; NULL: done
    // Of the patch that goes on here:
    struct tree_garbage garbage;
    struct base *patching[BASES + 1]; // NULL among them: nothing; [BASES]: the loop's own tree
    unsigned patch_at;
    uint64_t position;
    bool patched;
};

struct world {
    struct tree_space space;
    struct loop_thread loops[LOOPS];
    struct base *bases[BASES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned commanded; // lock: loops that have a command
    unsigned paused;    // lock
    bool hold, stop;    // lock: paused loops stay so; loops end
    _Atomic uint64_t next_file;
    uint64_t patched_file; // set while all loops are paused
    locator_t (*stored)[512];
    uint8_t *levels;
    bool *kept;
    uint64_t stored_count;
};

// ---- The log: only counts. These replace the library's own. ----

static _Atomic int64_t log_counts[FILES_MAX];
static _Atomic uint64_t wrong_refs;

void log_ref(struct log *log, locator_t locator, uint64_t count)
{
    for (unsigned i = 0; i < 20; i++) // whoever copies a leaf has read its slots by now: let others patch it
        sched_yield();
    if (atomic_fetch_add(&log_counts[locator_log_file(locator)], (int64_t)count) <= 0)
        atomic_fetch_add(&wrong_refs, 1); // the file may be gone
}

void log_unref(struct log *log, locator_t locator, uint64_t count)
{
    if (atomic_fetch_sub(&log_counts[locator_log_file(locator)], (int64_t)count) < (int64_t)count)
        atomic_fetch_add(&wrong_refs, 1);
}

// ---- What loops do between commands ----

static uint64_t draw(struct loop_thread *loop, uint64_t bound)
{
    loop->random = loop->random * 6364136223846793005u + 1442695040888963407u;
    return (loop->random >> 33) % bound;
}

static uint64_t block_of(unsigned place)
{
    return place / WINDOW_BLOCKS * UINT64_C(70000) + 460 + place % WINDOW_BLOCKS; // over a leaf's edge
}

static locator_t twin_of(locator_t log)
{
    if (!locator_is_log(log))
        return log;
    uint64_t block = locator_log_block(log);
    return block % 16 == 15 ? LOCATOR_ZERO : locator_segment(locator_log_file(log), block);
}

static uint64_t stored_index(locator_t locator)
{
    return (locator_segment_number(locator) - NODE_SEGMENT) * 16384 + locator_segment_slot(locator);
}

static void check_place(struct world *world, const struct tree *tree, const locator_t *model, unsigned place)
{
    locator_t value, missing;
    uint64_t count;
    int r;
    while ((r = tree_get(&world->space, tree, block_of(place), 1, &value, &count, &missing)) == -EAGAIN) {
        must(locator_segment_number(missing) >= NODE_SEGMENT);
        must(world->kept[stored_index(missing)]);
        node_cache_insert(world->space.cache, missing, world->stored[stored_index(missing)]);
    }
    must(r == 0);
    if (value != model[place] && value != twin_of(model[place]))
        must(value == model[place]);
}

static struct base *open_some_base(struct loop_thread *loop, unsigned index)
{
    struct world *world = loop->world;
    pthread_mutex_lock(&world->lock);
    struct base *base = world->bases[index];
    if (base != NULL)
        base->opens++;
    pthread_mutex_unlock(&world->lock);
    return base;
}

static void close_base(struct world *world, struct base *base)
{
    if (base == NULL)
        return;
    pthread_mutex_lock(&world->lock);
    bool last = --base->opens == 0 && base->unlisted;
    pthread_mutex_unlock(&world->lock);
    if (last) {
        tree_drop(&world->space, &base->tree);
        free(base);
    }
}

static void freeze(struct loop_thread *loop)
{
    struct world *world = loop->world;
    struct base *base = calloc(1, sizeof *base);
    base->tree = tree_share(loop->tree);
    base->opens = 1;
    memcpy(base->model, loop->model, sizeof base->model);
    loop->owner = tree_new_owner(&world->space);
    pthread_mutex_lock(&world->lock);
    struct base **place = &world->bases[draw(loop, BASES)], *old = *place;
    *place = base;
    if (old != NULL) {
        old->unlisted = true;
        old->opens++;
    }
    pthread_mutex_unlock(&world->lock);
    close_base(world, base);
    close_base(world, old);
}

static void fork_base(struct loop_thread *loop)
{
    struct base *base = open_some_base(loop, (unsigned)draw(loop, BASES));
    if (base == NULL)
        return;
    tree_drop(&loop->world->space, &loop->tree);
    loop->tree = tree_share(tree_look(&base->tree));
    loop->owner = tree_new_owner(&loop->world->space);
    memcpy(loop->model, base->model, sizeof loop->model);
    close_base(loop->world, base);
}

static void read_base(struct loop_thread *loop)
{
    struct base *base = open_some_base(loop, (unsigned)draw(loop, BASES));
    for (unsigned i = 0; base != NULL && i < 20; i++)
        check_place(loop->world, &base->tree, base->model, (unsigned)draw(loop, PLACES));
    close_base(loop->world, base);
}

static void write_some(struct loop_thread *loop)
{
    struct tree_space *space = &loop->world->space;
    unsigned place = (unsigned)draw(loop, PLACES), count = 1 + (unsigned)draw(loop, 8);
    unsigned most = WINDOW_BLOCKS - place % WINDOW_BLOCKS;
    count = count < most ? count : most;
    locator_t first = draw(loop, 2) == 0 ? LOCATOR_ZERO : LOCATOR_UNMAPPED;
    if (draw(loop, 4) == 0) {
        tree_fill(space, &loop->tree, loop->owner, block_of(place), count, first);
    } else {
        uint64_t file = atomic_fetch_add(&loop->world->next_file, 1);
        must(file < FILES_MAX);
        first = locator_log(file, draw(loop, 100));
        atomic_fetch_add(&log_counts[file], 1); // the current file of the log is held
        tree_put(space, &loop->tree, loop->owner, block_of(place), count, first);
        log_unref(NULL, first, 1);
    }
    for (unsigned i = 0; i < count; i++)
        loop->model[place + i] = locator_next(first, i);
}

static void callback(struct loop_thread *loop)
{
    switch (draw(loop, 12)) {
    case 0:
        freeze(loop);
        break;
    case 1:
        fork_base(loop);
        break;
    case 2:
    case 3:
        read_base(loop);
        break;
    case 4:
        for (unsigned i = 0; i < 20; i++)
            check_place(loop->world, &loop->tree, loop->model, (unsigned)draw(loop, PLACES));
        break;
    default:
        write_some(loop);
    }
}

// Between two commands a loop does a bounded number of callbacks: the test is as long everywhere.
static void *loop_run(void *argument)
{
    struct loop_thread *loop = argument;
    struct world *world = loop->world;
    unsigned left = 0;
    pthread_mutex_lock(&world->lock);
    while (!world->stop) {
        void (*command)(struct loop_thread * loop) = loop->command;
        if (command == NULL && left == 0) {
            pthread_cond_wait(&world->changed, &world->lock);
            continue;
        }
        pthread_mutex_unlock(&world->lock);
        if (command != NULL)
            command(loop);
        else
            callback(loop);
        pthread_mutex_lock(&world->lock);
        left = command != NULL ? CALLBACKS : left - 1;
        if (command != NULL) {
            loop->command = NULL;
            world->commanded--;
            pthread_cond_broadcast(&world->changed);
        }
    }
    pthread_mutex_unlock(&world->lock);
    return NULL;
}

// ---- The task ----

static void start(struct world *world, void (*command)(struct loop_thread *loop))
{
    pthread_mutex_lock(&world->lock);
    for (unsigned i = 0; i < LOOPS; i++)
        world->loops[i].command = command;
    world->commanded = LOOPS;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

static void finish(struct world *world)
{
    pthread_mutex_lock(&world->lock);
    while (world->commanded > 0)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

static void stand_still(struct loop_thread *loop)
{
    struct world *world = loop->world;
    pthread_mutex_lock(&world->lock);
    world->paused++;
    pthread_cond_broadcast(&world->changed);
    while (world->hold)
        pthread_cond_wait(&world->changed, &world->lock);
    world->paused--;
    pthread_mutex_unlock(&world->lock);
}

static void pause_all(struct world *world)
{
    pthread_mutex_lock(&world->lock);
    world->hold = true;
    pthread_mutex_unlock(&world->lock);
    start(world, stand_still);
    pthread_mutex_lock(&world->lock);
    while (world->paused < LOOPS)
        pthread_cond_wait(&world->changed, &world->lock);
    pthread_mutex_unlock(&world->lock);
}

static void resume_all(struct world *world)
{
    pthread_mutex_lock(&world->lock);
    world->hold = false;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    finish(world);
}

static void run_once(struct loop_thread *loop)
{
}

static locator_t forward(void *context, locator_t log)
{
    const struct world *world = context;
    sched_yield();
    return locator_log_file(log) < world->patched_file ? twin_of(log) : 0;
}

static void patch_begin(struct loop_thread *loop)
{
    for (unsigned i = 0; i < BASES; i++)
        loop->patching[i] = i % LOOPS == loop->number ? open_some_base(loop, i) : NULL;
    loop->patch_at = (unsigned)draw(loop, BASES + 1); // in any order
    loop->position = 0;
    loop->patched = false;
}

static void patch_piece(struct loop_thread *loop)
{
    struct world *world = loop->world;
    if (loop->patched)
        return;
    unsigned at = loop->patch_at % (BASES + 1), budget = 1 + (unsigned)draw(loop, 4);
    struct base *base = loop->patching[at];
    struct tree *tree = at == BASES ? &loop->tree : base != NULL ? &base->tree : NULL;
    if (tree != NULL &&
            !tree_patch(&world->space, tree, forward, world, &loop->garbage, &loop->position, &budget))
        return;
    close_base(world, base);
    loop->patching[at] = NULL;
    loop->position = 0;
    loop->patch_at++;
    bool left = loop->patch_at % (BASES + 1) == BASES;
    for (unsigned i = 0; i < BASES; i++)
        left = left || loop->patching[i] != NULL;
    loop->patched = !left && loop->patch_at > BASES;
}

static void patch_loops(struct world *world)
{
    start(world, patch_begin);
    finish(world);
    for (bool all = false; !all;) {
        start(world, patch_piece);
        finish(world);
        all = true;
        for (unsigned i = 0; i < LOOPS; i++)
            all = all && world->loops[i].patched;
    }
    start(world, run_once); // every loop has finished the callback in which it may have seen what was taken
    finish(world);
    for (unsigned i = 0; i < LOOPS; i++)
        tree_garbage_free(&world->space, &world->loops[i].garbage);
}

static int seal_leaf(void *context, locator_t *slots, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        slots[i] = twin_of(slots[i]);
    return 0;
}

static int seal_load(void *context, locator_t node, locator_t *ret_slots)
{
    struct world *world = context;
    must(world->kept[stored_index(node)]);
    memcpy(ret_slots, world->stored[stored_index(node)], sizeof world->stored[0]);
    return 0;
}

static int seal_node(void *context, const locator_t *slots, unsigned level, locator_t *ret_node)
{
    struct world *world = context;
    must(node_cache_check(slots) == 0);
    must(world->stored_count < NODES_MAX);
    uint64_t index = world->stored_count++;
    memcpy(world->stored[index], slots, sizeof world->stored[index]);
    world->levels[index] = (uint8_t)level;
    world->kept[index] = true;
    *ret_node = locator_segment(NODE_SEGMENT + index / 16384, index % 16384);
    return 0;
}

static void mark(struct world *world, locator_t locator, unsigned level)
{
    if (!locator_is_segment(locator))
        return;
    uint64_t index = stored_index(locator);
    must(index < world->stored_count && world->levels[index] == level);
    if (world->kept[index])
        return;
    world->kept[index] = true;
    for (unsigned i = 0; level > 0 && i < 512; i++)
        mark(world, world->stored[index][i], level - 1);
}

// While all loops are paused: what no root of the checkpoint reaches is gone, and no old log file is needed.
static void collect(struct world *world, const locator_t *roots, unsigned count)
{
    for (unsigned i = 0; i < BASES + LOOPS; i++) { // those that came from others during the patch
        struct tree *tree = i < LOOPS                         ? &world->loops[i].tree
                            : world->bases[i - LOOPS] != NULL ? &world->bases[i - LOOPS]->tree
                                                              : NULL;
        uint64_t position = 0;
        unsigned budget = 1 << 30;
        if (tree != NULL)
            must(tree_patch(
                    &world->space, tree, forward, world, &world->loops[0].garbage, &position, &budget));
    }
    tree_garbage_free(&world->space, &world->loops[0].garbage);
    for (uint64_t i = 0; i < world->patched_file; i++)
        must(atomic_load(&log_counts[i]) == 0);
    memset(world->kept, 0, NODES_MAX * sizeof *world->kept);
    for (unsigned i = 0; i < count; i++)
        mark(world, roots[i], 2);
    world->space.cache = node_cache_free(world->space.cache);
    world->space.cache = node_cache_new(NULL, 1);
}

static void checkpoint(struct world *world, bool commit)
{
    struct tree cut[LOOPS + BASES];
    locator_t roots[LOOPS + BASES];
    unsigned count = 0;
    const struct tree_sealer sealer = {
            .leaf = seal_leaf, .load = seal_load, .node = seal_node, .context = world};
    pause_all(world);
    for (unsigned i = 0; i < LOOPS; i++) {
        cut[count++] = tree_share(world->loops[i].tree);
        world->loops[i].owner = tree_new_owner(&world->space);
    }
    for (unsigned i = 0; i < BASES; i++)
        if (world->bases[i] != NULL)
            cut[count++] = tree_share(tree_look(&world->bases[i]->tree));
    uint64_t cut_file = atomic_load(&world->next_file);
    resume_all(world);
    for (unsigned i = 0; i < count; i++)
        must(tree_seal(&world->space, &cut[i], &sealer, &roots[i]) == 0);
    if (commit) {
        pause_all(world);
        world->patched_file = cut_file;
        resume_all(world);
        patch_loops(world);
        patch_loops(world); // those that came from others meanwhile; what remains, collect() finds
    } else {
        for (unsigned i = 0; i < count; i++)
            tree_unseal(&world->space, &cut[i]);
    }
    for (unsigned i = 0; i < count; i++)
        tree_drop(&world->space, &cut[i]);
    if (!commit)
        return;
    pause_all(world);
    collect(world, roots, count);
    resume_all(world);
}

static void test_shared_trees(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    *world = (struct world){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    world->space.log = (struct log *)world;
    world->space.cache = node_cache_new(NULL, 1);
    world->stored = calloc(NODES_MAX, sizeof *world->stored);
    world->levels = calloc(NODES_MAX, sizeof *world->levels);
    world->kept = calloc(NODES_MAX, sizeof *world->kept);
    atomic_store(&world->next_file, 1);
    for (unsigned i = 0; i < LOOPS; i++) {
        struct loop_thread *loop = &world->loops[i];
        *loop = (struct loop_thread){.world = world, .number = i, .random = i + 1};
        loop->tree = tree_empty(tree_blocks);
        assert_int_equal(loop->tree.height, 3);
        loop->owner = tree_new_owner(&world->space);
        assert_int_equal(pthread_create(&loop->thread, NULL, loop_run, loop), 0);
    }
    for (unsigned i = 0; i < CHECKPOINTS; i++) {
        start(world, run_once);
        finish(world);
        checkpoint(world, i % 4 != 1);
    }
    pthread_mutex_lock(&world->lock);
    world->stop = true;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    for (unsigned i = 0; i < LOOPS; i++) {
        pthread_join(world->loops[i].thread, NULL);
        for (unsigned k = 0; k < PLACES; k++)
            check_place(world, &world->loops[i].tree, world->loops[i].model, k);
        tree_drop(&world->space, &world->loops[i].tree);
    }
    for (unsigned i = 0; i < BASES; i++) {
        if (world->bases[i] == NULL)
            continue;
        for (unsigned k = 0; k < PLACES; k++)
            check_place(world, &world->bases[i]->tree, world->bases[i]->model, k);
        tree_drop(&world->space, &world->bases[i]->tree);
        free(world->bases[i]);
    }
    assert_int_equal(atomic_load(&wrong_refs), 0);
    assert_int_equal(atomic_load(&world->space.nodes), 0);
    for (uint64_t i = 0; i < atomic_load(&world->next_file); i++)
        assert_int_equal(atomic_load(&log_counts[i]), 0);
    assert_true(world->stored_count > 500);
    node_cache_free(world->space.cache);
    free(world->stored);
    free(world->levels);
    free(world->kept);
    free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_shared_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
