// SPDX-License-Identifier: Apache-2.0
// Trees against plain arrays: random puts, fills, forks, drops, differences, and checkpoints that go on
// beside them (cut, seal, commit or give up, patch in pieces, collect what the roots do not reach). No node
// and no log reference is left at the end.
#include "snapshot/node_cache.h"
#include "snapshot/tree.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    BLOCKS = 3 * 512 * 512 / 64, // three levels, partly filled
    TREES = 6,
    STEPS = 6000,
    LOG_FILE_BLOCKS = 16384,
    FILES_MAX = 16384,
    NODES_MAX = 1 << 16,
    NODE_SEGMENT = 1 << 20, // numbers of segments of nodes begin here
};

struct model {
    struct tree tree;
    uint64_t owner;
    locator_t *blocks; // log locators, zero, unmapped
};

enum phase { IDLE, CUT, SEALED, PATCHING };

struct world {
    struct tree_space space;
    struct model models[TREES];
    uint64_t next_file;
    enum phase phase;
    struct tree cut[TREES];
    locator_t roots[TREES]; // of the last checkpoint that was committed, then of the one that is sealed
    unsigned heights[TREES];
    uint64_t cut_file, patched_file; // log blocks of lower files are sealed; their twins are in place
    unsigned patching;
    uint64_t position;
    struct tree_garbage garbage;
    locator_t (*stored)[512]; // the fake segments of nodes
    uint8_t *levels;
    bool *kept;
    uint64_t stored_count, stores, aborts;
};

// ---- The log: only counts. These replace the library's own. ----

static int64_t log_counts[FILES_MAX];

void log_ref(struct log *log, locator_t locator, uint64_t count)
{
    log_counts[locator_log_file(locator)] += (int64_t)count;
}

void log_unref(struct log *log, locator_t locator, uint64_t count)
{
    log_counts[locator_log_file(locator)] -= (int64_t)count;
    assert_true(log_counts[locator_log_file(locator)] >= 0);
}

// ---- Random ----

static uint64_t random_state;

static uint64_t random_below(uint64_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % bound;
}

static void random_range(uint64_t *ret_first, uint64_t *ret_count)
{
    uint64_t most = random_below(16) == 0 ? BLOCKS : random_below(4) == 0 ? 2000 : 20;
    *ret_first = random_below(BLOCKS);
    *ret_count = 1 + random_below(most);
    if (*ret_count > BLOCKS - *ret_first)
        *ret_count = BLOCKS - *ret_first;
}

// ---- The fake segments ----

// Where the sealer puts a log block; some turn out to be zero.
static locator_t twin_of(locator_t log)
{
    if (!locator_is_log(log))
        return log;
    uint64_t block = locator_log_block(log);
    return block % 64 == 63 ? LOCATOR_ZERO : locator_segment(locator_log_file(log), block);
}

static bool equal(locator_t tree, locator_t model)
{
    return tree == model || tree == twin_of(model);
}

static void load(struct world *world, locator_t missing)
{
    assert_true(locator_is_segment(missing) && locator_segment_number(missing) >= NODE_SEGMENT);
    uint64_t index = (locator_segment_number(missing) - NODE_SEGMENT) * 16384 + locator_segment_slot(missing);
    assert_true(index < world->stored_count);
    assert_true(world->kept[index]); // else it was collected, but somebody still inherits from it
    node_cache_insert(world->space.cache, missing, world->stored[index]);
}

static locator_t get(
        struct world *world, const struct model *model, uint64_t block, uint64_t want, uint64_t *ret_count)
{
    locator_t first, missing;
    int r;
    while ((r = tree_get(&world->space, &model->tree, block, want, &first, ret_count, &missing)) == -EAGAIN)
        load(world, missing);
    assert_int_equal(r, 0);
    return first;
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
    uint64_t index = (locator_segment_number(node) - NODE_SEGMENT) * 16384 + locator_segment_slot(node);
    assert_true(index < world->stored_count && world->kept[index]);
    memcpy(ret_slots, world->stored[index], sizeof world->stored[index]);
    return 0;
}

static int seal_node(void *context, const locator_t *slots, unsigned level, locator_t *ret_node)
{
    struct world *world = context;
    assert_int_equal(node_cache_check(slots), 0);
    assert_true(world->stored_count < NODES_MAX);
    uint64_t index = world->stored_count++;
    memcpy(world->stored[index], slots, sizeof world->stored[index]);
    world->levels[index] = (uint8_t)level;
    world->kept[index] = true;
    world->stores++;
    *ret_node = locator_segment(NODE_SEGMENT + index / 16384, index % 16384);
    return 0;
}

static int seal_fails(void *context, const locator_t *slots, unsigned level, locator_t *ret_node)
{
    return random_below(8) == 0 ? -ENOSPC : seal_node(context, slots, level, ret_node);
}

// ---- Checks ----

static void check(struct world *world, const struct model *model)
{
    for (uint64_t block = 0; block < BLOCKS;) {
        uint64_t count, one, want = 1 + random_below(3000);
        if (want > BLOCKS - block)
            want = BLOCKS - block;
        locator_t first = get(world, model, block, want, &count);
        assert_true(count >= 1 && count <= want);
        for (uint64_t i = 0; i < count; i++)
            if (!equal(locator_next(first, i), model->blocks[block + i]))
                fail_msg("block %llu: tree %llx, model %llx", (unsigned long long)(block + i),
                        (unsigned long long)locator_next(first, i),
                        (unsigned long long)model->blocks[block + i]);
        if (count < want) { // a run ends only where the next block really differs, or its node is not here
            locator_t missing, next;
            if (tree_get(&world->space, &model->tree, block + count, 1, &next, &one, &missing) == 0 &&
                    next == locator_next(first, count)) // a node was evicted or loaded between the calls
                assert_non_null(world->space.cache);
        }
        block += count;
    }
}

static bool is_data(locator_t locator)
{
    return locator != LOCATOR_ZERO && locator != LOCATOR_UNMAPPED;
}

// Reported blocks must be of the kind that is said and, unless only one of the two trees has been patched
// there, really differ; what is not reported must be the same.
static void check_diff(struct world *world, const struct model *older, const struct model *newer)
{
    uint64_t at = 0, first = random_below(4) == 0 ? random_below(BLOCKS) : 0;
    at = first;
    for (;;) {
        uint64_t block, count;
        locator_t now, missing;
        int r = tree_diff_next(&world->space, older == NULL ? NULL : &older->tree, &newer->tree, at, BLOCKS,
                &block, &count, &now, &missing);
        if (r == -EAGAIN)
            load(world, missing);
        if (r == -EINPROGRESS) {
            assert_true(block > at || first == at);
            at = block;
        }
        if (r < 0)
            continue;
        uint64_t end = count == 0 ? BLOCKS : block;
        for (uint64_t i = at; i < end; i++) {
            locator_t before = older == NULL ? LOCATOR_UNMAPPED : older->blocks[i];
            assert_true(equal(before, newer->blocks[i]) || equal(newer->blocks[i], before) ||
                        (twin_of(before) == twin_of(newer->blocks[i])));
        }
        if (count == 0)
            return;
        assert_true(block >= at && block + count <= BLOCKS);
        for (uint64_t i = block; i < block + count; i++) {
            uint64_t one;
            locator_t value = get(world, newer, i, 1, &one);
            assert_true(is_data(value) == is_data(now) && (is_data(now) || value == now));
            if (older == NULL)
                assert_true(value != LOCATOR_UNMAPPED);
            else
                assert_true(value != get(world, older, i, 1, &one));
        }
        at = block + count;
    }
}

// ---- Changes ----

static void change(struct world *world)
{
    struct model *model = &world->models[random_below(TREES)], *other = &world->models[random_below(TREES)];
    struct tree_space *space = &world->space;
    uint64_t first, count;
    random_range(&first, &count);
    switch (random_below(5)) {
    case 0: // fork: both go on with new owners
        if (model == other)
            return;
        tree_drop(space, &other->tree);
        other->tree = tree_share(tree_look(&model->tree));
        memcpy(other->blocks, model->blocks, BLOCKS * sizeof *model->blocks);
        model->owner = tree_new_owner(space);
        other->owner = tree_new_owner(space);
        return;
    case 1: {
        locator_t with = random_below(2) == 0 ? LOCATOR_ZERO : LOCATOR_UNMAPPED;
        tree_fill(space, &model->tree, model->owner, first, count, with);
        for (uint64_t i = 0; i < count; i++)
            model->blocks[first + i] = with;
        return;
    }
    default: {
        locator_t run = locator_log(world->next_file++, random_below(100));
        assert_true(world->next_file < FILES_MAX);
        tree_put(space, &model->tree, model->owner, first, count, run);
        for (uint64_t i = 0; i < count; i++)
            model->blocks[first + i] = locator_next(run, i);
    }
    }
}

// ---- Checkpoints ----

static void cut(struct world *world)
{
    for (int i = 0; i < TREES; i++) {
        struct model *model = &world->models[i];
        world->cut[i] = tree_share(model->tree);
        model->owner = tree_new_owner(&world->space);
    }
    world->cut_file = world->next_file;
    world->phase = CUT;
}

static void drop_cut(struct world *world)
{
    for (int i = 0; i < TREES; i++)
        tree_drop(&world->space, &world->cut[i]);
}

static void give_up(struct world *world)
{
    for (int i = 0; i < TREES; i++)
        tree_unseal(&world->space, &world->cut[i]);
    drop_cut(world);
    world->aborts++;
    world->phase = IDLE;
}

static void seal(struct world *world)
{
    bool fails = random_below(4) == 0;
    const struct tree_sealer sealer = {
            .leaf = seal_leaf, .load = seal_load, .node = fails ? seal_fails : seal_node, .context = world};
    locator_t roots[TREES];
    for (int i = 0; i < TREES; i++) {
        if (tree_seal(&world->space, &world->cut[i], &sealer, &roots[i]) < 0) {
            give_up(world);
            return;
        }
        uint64_t before = world->stores; // all of it has a twin now
        locator_t again;
        assert_int_equal(tree_seal(&world->space, &world->cut[i], &sealer, &again), 0);
        assert_true(again == roots[i] && world->stores == before);
    }
    if (random_below(6) == 0) { // the commit failed
        give_up(world);
        return;
    }
    memcpy(world->roots, roots, sizeof roots);
    for (int i = 0; i < TREES; i++)
        world->heights[i] = world->cut[i].height;
    world->phase = PATCHING;
    world->patching = 0;
    world->position = 0;
    world->patched_file = world->cut_file;
}

static locator_t forward(void *context, locator_t log)
{
    struct world *world = context;
    return locator_log_file(log) < world->patched_file ? twin_of(log) : 0;
}

static void mark(struct world *world, locator_t locator, unsigned level)
{
    if (!locator_is_segment(locator))
        return;
    uint64_t index = (locator_segment_number(locator) - NODE_SEGMENT) * 16384 + locator_segment_slot(locator);
    assert_true(index < world->stored_count && world->levels[index] == level);
    if (world->kept[index])
        return;
    world->kept[index] = true;
    for (unsigned i = 0; level > 0 && i < 512; i++)
        mark(world, world->stored[index][i], level - 1);
}

// Everything that the checkpoint's roots do not reach is gone, from the cache as well.
static void collect(struct world *world)
{
    memset(world->kept, 0, NODES_MAX * sizeof *world->kept);
    for (int i = 0; i < TREES; i++)
        mark(world, world->roots[i], world->heights[i] - 1);
    world->space.cache = node_cache_free(world->space.cache);
    world->space.cache = node_cache_new(NULL, 1);
}

static void patch_all(struct world *world, unsigned first)
{
    for (unsigned i = first; i < TREES; i++) {
        uint64_t position = 0;
        unsigned budget;
        do
            budget = 1 + (unsigned)random_below(30);
        while (!tree_patch(
                &world->space, &world->models[i].tree, forward, world, &world->garbage, &position, &budget));
    }
}

static void patch_some(struct world *world)
{
    unsigned budget = (unsigned)random_below(20);
    if (!tree_patch(&world->space, &world->models[world->patching].tree, forward, world, &world->garbage,
                &world->position, &budget))
        return;
    world->position = 0;
    if (++world->patching < TREES)
        return;
    patch_all(world, 0); // trees that were forked meanwhile
    tree_garbage_free(&world->space, &world->garbage);
    drop_cut(world);
    for (uint64_t i = 0; i < world->patched_file; i++) // nothing needs the old files now
        assert_int_equal(log_counts[i], 0);
    collect(world);
    world->phase = IDLE;
}

static void step(struct world *world)
{
    unsigned dice = (unsigned)random_below(40);
    if (world->phase == PATCHING && dice < 20)
        patch_some(world);
    else if (world->phase == IDLE && dice == 0)
        cut(world);
    else if (world->phase == CUT && dice == 0)
        seal(world);
    else
        change(world);
}

static void run_model(uint64_t seed, bool seals)
{
    random_state = seed;
    struct world *world = calloc(1, sizeof *world);
    memset(log_counts, 0, sizeof log_counts);
    world->space.log = (struct log *)world;
    world->next_file = 1;
    world->space.cache = node_cache_new(NULL, 1); // as small as it goes
    world->stored = calloc(NODES_MAX, sizeof *world->stored);
    world->levels = calloc(NODES_MAX, sizeof *world->levels);
    world->kept = calloc(NODES_MAX, sizeof *world->kept);
    for (int i = 0; i < TREES; i++) {
        world->models[i].tree = tree_empty(BLOCKS);
        world->models[i].owner = tree_new_owner(&world->space);
        world->models[i].blocks = calloc(BLOCKS, sizeof *world->models[i].blocks);
    }
    for (int i = 0; i < STEPS; i++) {
        if (seals)
            step(world);
        else
            change(world);
        if (i % 50 == 0) {
            const struct model *older = &world->models[random_below(TREES)];
            check(world, &world->models[random_below(TREES)]);
            check_diff(world, random_below(10) == 0 ? NULL : older, &world->models[random_below(TREES)]);
        }
    }
    assert_true(!seals || (world->aborts > 0 && world->stores > 100));
    if (world->phase == CUT)
        drop_cut(world);
    while (world->phase == PATCHING)
        patch_some(world);
    for (int i = 0; i < TREES; i++) {
        check(world, &world->models[i]);
        tree_drop(&world->space, &world->models[i].tree);
        free(world->models[i].blocks);
    }
    assert_int_equal(atomic_load(&world->space.nodes), 0);
    for (int i = 0; i < FILES_MAX; i++)
        assert_int_equal(log_counts[i], 0);
    node_cache_free(world->space.cache);
    free(world->stored);
    free(world->levels);
    free(world->kept);
    free(world);
}

static void test_model(void **state)
{
    run_model(1, false);
    run_model(77, false);
}

static void test_model_with_checkpoints(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++)
        run_model(seed, true);
}

static void expect_run(struct tree_space *space, const struct tree *tree, uint64_t block, uint64_t want,
        locator_t locator, uint64_t count)
{
    locator_t first, missing;
    uint64_t got;
    assert_int_equal(tree_get(space, tree, block, want, &first, &got, &missing), 0);
    assert_int_equal(first, locator);
    assert_int_equal(got, count);
}

static void test_huge_trim_is_small(void **state)
{
    struct tree_space space = {.log = NULL};
    uint64_t blocks = UINT64_C(1) << 40; // 4 PiB
    struct tree tree = tree_empty(blocks);
    uint64_t owner = tree_new_owner(&space);
    tree_put(&space, &tree, owner, 12345, 3, locator_log(1, 1));
    tree_fill(&space, &tree, owner, 1, blocks - 2, LOCATOR_ZERO);
    assert_true(atomic_load(&space.nodes) < 20);
    expect_run(&space, &tree, 0, blocks, LOCATOR_UNMAPPED, 1);
    expect_run(&space, &tree, 1, blocks, LOCATOR_ZERO, blocks - 2);
    tree_fill(&space, &tree, owner, 0, blocks, LOCATOR_UNMAPPED);
    assert_int_equal(atomic_load(&space.nodes), 1);
    tree_drop(&space, &tree);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

static void test_grow_keeps_content(void **state)
{
    struct tree_space space = {.log = NULL};
    struct tree tree = tree_empty(10);
    uint64_t owner = tree_new_owner(&space);
    tree_put(&space, &tree, owner, 3, 2, locator_log(7, 9));
    tree_grow(&space, &tree, owner, UINT64_C(1) << 30);
    expect_run(&space, &tree, 3, 100, locator_log(7, 9), 2);
    expect_run(&space, &tree, 1 << 20, 5, LOCATOR_UNMAPPED, 5);
    tree_drop(&space, &tree);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

static void test_diff_of_heights(void **state)
{
    struct tree_space space = {.log = NULL};
    struct tree small = tree_empty(100), large = tree_empty(UINT64_C(1) << 30);
    uint64_t owner = tree_new_owner(&space), block, count;
    locator_t now, missing;
    tree_fill(&space, &small, owner, 0, 512, LOCATOR_ZERO); // its root is zero: beyond it is unmapped
    tree_fill(&space, &large, owner, 0, 2000, LOCATOR_ZERO);
    assert_int_equal(tree_diff_next(&space, &small, &large, 0, 1 << 20, &block, &count, &now, &missing), 0);
    assert_true(block == 512 && count == 1488 && now == LOCATOR_ZERO);
    assert_int_equal(
            tree_diff_next(&space, &small, &large, 2000, 1 << 20, &block, &count, &now, &missing), 0);
    assert_int_equal(count, 0);
    assert_int_equal(tree_diff_next(&space, &large, &small, 100, 1000, &block, &count, &now, &missing), 0);
    assert_true(block == 512 && count == 488 && now == LOCATOR_UNMAPPED);
    tree_drop(&space, &small);
    tree_drop(&space, &large);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

// Writes over a sealed tree need no sealed node, and a leaf that is wholly written needs none to be read.
static void test_writes_read_no_metadata(void **state)
{
    struct tree_space space = {.cache = NULL}; // any need of a sealed node is -EAGAIN
    struct tree tree = {.root = locator_segment(5, 5), .height = 3};
    uint64_t owner = tree_new_owner(&space), count;
    locator_t first, missing;
    tree_put(&space, &tree, owner, 1000, 30, locator_log(1, 0));
    expect_run(&space, &tree, 1000, 30, locator_log(1, 0), 30);
    expect_run(&space, &tree, 1010, 30, locator_log(1, 10), 20); // what follows is not known
    assert_int_equal(tree_get(&space, &tree, 999, 30, &first, &count, &missing), -EAGAIN);
    assert_int_equal(missing, locator_segment(5, 5));
    tree_put(&space, &tree, owner, 512, 512, locator_log(2, 0));
    expect_run(&space, &tree, 512, 512, locator_log(2, 0), 512);
    tree_fill(&space, &tree, owner, 0, 512 * 512 * 512 - 1, LOCATOR_ZERO);
    expect_run(&space, &tree, 0, 1 << 26, LOCATOR_ZERO, 1 << 26);
    assert_int_equal(tree_get(&space, &tree, (1 << 27) - 1, 1, &first, &count, &missing), -EAGAIN);
    tree_fill(&space, &tree, owner, 0, 1 << 27, LOCATOR_UNMAPPED);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_model),
            cmocka_unit_test(test_model_with_checkpoints),
            cmocka_unit_test(test_huge_trim_is_small),
            cmocka_unit_test(test_grow_keeps_content),
            cmocka_unit_test(test_diff_of_heights),
            cmocka_unit_test(test_writes_read_no_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
