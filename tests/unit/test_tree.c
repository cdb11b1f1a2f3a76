// SPDX-License-Identifier: Apache-2.0
// The tree against a plain array: random puts, fills, shares and drops; runs, differences, and no node left
// at the end.
#include "snapshot/tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 3 * 512 * 512 / 64, TREES = 6, STEPS = 4000 }; // three levels, partly filled

struct model {
    struct tree tree;
    uint64_t owner;
    locator_t *blocks;
};

static uint64_t random_state;

static uint64_t random_below(uint64_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % bound;
}

static void random_range(uint64_t *ret_first, uint64_t *ret_count)
{
    uint64_t most = random_below(4) == 0 ? BLOCKS : random_below(4) == 0 ? 2000 : 20;
    *ret_first = random_below(BLOCKS);
    *ret_count = 1 + random_below(most);
    if (*ret_count > BLOCKS - *ret_first)
        *ret_count = BLOCKS - *ret_first;
}

static void check(const struct model *model)
{
    for (uint64_t block = 0; block < BLOCKS;) {
        uint64_t count, want = 1 + random_below(3000);
        if (want > BLOCKS - block)
            want = BLOCKS - block;
        locator_t first = tree_get(&model->tree, block, want, &count);
        assert_true(count >= 1 && count <= want);
        for (uint64_t i = 0; i < count; i++)
            if (model->blocks[block + i] != locator_next(first, i))
                fail_msg("block %llu: tree %llx, model %llx", (unsigned long long)(block + i),
                        (unsigned long long)locator_next(first, i),
                        (unsigned long long)model->blocks[block + i]);
        if (count < want) // a run ends only where the next block really differs
            assert_true(model->blocks[block + count] != locator_next(first, count));
        block += count;
    }
}

struct diff_seen {
    const struct model *older, *newer;
    uint64_t at;
    bool wrong;
};

static bool see_diff(void *context, uint64_t block, uint64_t count, locator_t now)
{
    struct diff_seen *seen = context;
    for (uint64_t i = seen->at; i < block && i < BLOCKS; i++)
        seen->wrong = seen->wrong || seen->older->blocks[i] != seen->newer->blocks[i];
    for (uint64_t i = block; i < block + count && i < BLOCKS; i++)
        seen->wrong = seen->wrong || seen->older->blocks[i] == seen->newer->blocks[i];
    seen->wrong = seen->wrong || (block < BLOCKS && seen->newer->blocks[block] != now) || block < seen->at;
    seen->at = block + count;
    return true;
}

static void check_diff(struct tree_space *space, const struct model *older, const struct model *newer)
{
    struct diff_seen seen = {.older = older, .newer = newer};
    tree_diff(space, &older->tree, &newer->tree, see_diff, &seen);
    for (uint64_t i = seen.at; i < BLOCKS; i++)
        seen.wrong = seen.wrong || older->blocks[i] != newer->blocks[i];
    assert_false(seen.wrong);
}

static void step(struct tree_space *space, struct model *models, uint64_t *next_block)
{
    struct model *model = &models[random_below(TREES)], *other = &models[random_below(TREES)];
    uint64_t first, count;
    random_range(&first, &count);
    switch (random_below(5)) {
    case 0: // fork: both go on with new owners
        if (model == other)
            return;
        tree_drop(space, &other->tree);
        other->tree = tree_share(model->tree);
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
        locator_t run = locator_log(1 + *next_block / 10000, *next_block % 10000);
        *next_block += 20000;
        tree_put(space, &model->tree, model->owner, first, count, run);
        for (uint64_t i = 0; i < count; i++)
            model->blocks[first + i] = locator_next(run, i);
    }
    }
}

static void run_model(void **state, uint64_t seed)
{
    random_state = seed;
    struct tree_space space = {.log = NULL};
    struct model models[TREES];
    uint64_t next_block = 0;
    for (int i = 0; i < TREES; i++) {
        models[i].tree = tree_empty(BLOCKS);
        models[i].owner = tree_new_owner(&space);
        models[i].blocks = calloc(BLOCKS, sizeof *models[i].blocks);
    }
    for (int i = 0; i < STEPS; i++) {
        step(&space, models, &next_block);
        if (i % 100 == 0) {
            check(&models[random_below(TREES)]);
            check_diff(&space, &models[random_below(TREES)], &models[random_below(TREES)]);
        }
    }
    for (int i = 0; i < TREES; i++) {
        check(&models[i]);
        tree_drop(&space, &models[i].tree);
        free(models[i].blocks);
    }
    assert_int_equal(atomic_load(&space.nodes), 0);
}

static void test_model_a(void **state)
{
    run_model(state, 1);
}

static void test_model_b(void **state)
{
    run_model(state, 77);
}

static void test_huge_trim_is_small(void **state)
{
    struct tree_space space = {.log = NULL};
    uint64_t blocks = UINT64_C(1) << 40; // 4 PiB
    struct tree tree = tree_empty(blocks);
    uint64_t owner = tree_new_owner(&space), count;
    tree_put(&space, &tree, owner, 12345, 3, locator_log(1, 1));
    tree_fill(&space, &tree, owner, 1, blocks - 2, LOCATOR_ZERO);
    assert_true(atomic_load(&space.nodes) < 20);
    assert_int_equal(tree_get(&tree, 0, blocks, &count), LOCATOR_UNMAPPED);
    assert_int_equal(count, 1);
    assert_int_equal(tree_get(&tree, 1, blocks, &count), LOCATOR_ZERO);
    assert_int_equal(count, blocks - 2);
    tree_fill(&space, &tree, owner, 0, blocks, LOCATOR_UNMAPPED);
    assert_int_equal(atomic_load(&space.nodes), 1);
    tree_drop(&space, &tree);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

static void test_grow_keeps_content(void **state)
{
    struct tree_space space = {.log = NULL};
    struct tree tree = tree_empty(10);
    uint64_t owner = tree_new_owner(&space), count;
    tree_put(&space, &tree, owner, 3, 2, locator_log(7, 9));
    tree_grow(&space, &tree, owner, UINT64_C(1) << 30);
    assert_int_equal(tree_get(&tree, 3, 100, &count), locator_log(7, 9));
    assert_int_equal(count, 2);
    assert_int_equal(tree_get(&tree, 1 << 20, 5, &count), LOCATOR_UNMAPPED);
    tree_drop(&space, &tree);
    assert_int_equal(atomic_load(&space.nodes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_model_a),
            cmocka_unit_test(test_model_b),
            cmocka_unit_test(test_huge_trim_is_small),
            cmocka_unit_test(test_grow_keeps_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
