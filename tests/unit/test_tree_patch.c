// SPDX-License-Identifier: Apache-2.0
// Two loops at one node, in an order that is made by hand: what the rules at the top of tree_seal.c are for.
#include "snapshot/node_cache.h"
#include "snapshot/tree.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- The log: only counts. These replace the library's own. ----

enum { FILES = 16 };
static int64_t log_counts[FILES];
static void (*between)(
        void); // a copier has read its slots and takes references now: what others do just then

void log_ref(struct log *log, locator_t locator, uint64_t count)
{
    void (*others)(void) = between;
    between = NULL;
    if (others != NULL) {
        others();
        assert_true(log_counts[locator_log_file(locator)] > 0); // else the file may be gone
    }
    log_counts[locator_log_file(locator)] += (int64_t)count;
}

void log_unref(struct log *log, locator_t locator, uint64_t count)
{
    log_counts[locator_log_file(locator)] -= (int64_t)count;
    assert_true(log_counts[locator_log_file(locator)] >= 0);
}

static locator_t twin_of(locator_t log)
{
    return locator_segment(100 + locator_log_file(log), locator_log_block(log));
}

static void expect_run(
        struct tree_space *space, const struct tree *tree, uint64_t block, locator_t locator, uint64_t count)
{
    locator_t first, missing;
    uint64_t got;
    assert_int_equal(tree_get(space, tree, block, count, &first, &got, &missing), 0);
    assert_int_equal(first, locator);
    assert_int_equal(got, count);
}

static struct pair {
    struct tree_space space;
    struct tree patched, copied;
    uint64_t copier;
    struct tree_garbage garbage;
} pair;

static locator_t forward_all(void *context, locator_t log)
{
    return twin_of(log);
}

static void patch_other(void)
{
    uint64_t position = 0;
    unsigned budget = 100;
    assert_true(tree_patch(&pair.space, &pair.patched, forward_all, NULL, &pair.garbage, &position, &budget));
}

// Two volumes share a leaf; one loop patches it while the other copies it.
static void test_copy_while_patched(void **state)
{
    uint64_t owner;
    struct tree base = tree_empty(512);
    memset(log_counts, 0, sizeof log_counts);
    memset(&pair, 0, sizeof pair);
    pair.space.log = (struct log *)&pair;
    owner = tree_new_owner(&pair.space);
    tree_put(&pair.space, &base, owner, 7, 2, locator_log(3, 20));
    pair.patched = tree_share(base);
    pair.copied = tree_share(base);
    pair.copier = tree_new_owner(&pair.space);
    between = patch_other;
    tree_put(&pair.space, &pair.copied, pair.copier, 100, 1, locator_log(4, 0));
    assert_null(between); // it came to that
    expect_run(&pair.space, &pair.patched, 7, twin_of(locator_log(3, 20)), 2);
    expect_run(&pair.space, &base, 7, twin_of(locator_log(3, 20)), 2);
    expect_run(&pair.space, &pair.copied, 7, locator_log(3, 20), 2);
    assert_int_equal(log_counts[3], 4); // the copy's, and those in the garbage
    tree_garbage_free(&pair.space, &pair.garbage);
    assert_int_equal(log_counts[3], 2);
    pair.patched = base; // both had it; and the copy is patched in its turn
    tree_drop(&pair.space, &pair.patched);
    tree_drop(&pair.space, &base);
    pair.patched = pair.copied;
    patch_other();
    expect_run(&pair.space, &pair.patched, 7, twin_of(locator_log(3, 20)), 2);
    tree_garbage_free(&pair.space, &pair.garbage);
    assert_true(log_counts[3] == 0 && log_counts[4] == 0);
    tree_drop(&pair.space, &pair.patched);
    assert_int_equal(atomic_load(&pair.space.nodes), 0);
}

// ---- A fake seal: nodes are numbered ----

static locator_t nodes[64][512];
static unsigned node_count;

static int seal_leaf(void *context, locator_t *slots, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        slots[i] = locator_is_log(slots[i]) ? twin_of(slots[i]) : slots[i];
    return 0;
}

static int seal_load(void *context, locator_t node, locator_t *ret_slots)
{
    memcpy(ret_slots, nodes[locator_segment_slot(node)], sizeof nodes[0]);
    return 0;
}

static int seal_node(void *context, const locator_t *slots, unsigned level, locator_t *ret_node)
{
    memcpy(nodes[node_count], slots, sizeof nodes[0]);
    node_cache_insert(pair.space.cache, locator_segment(1, node_count), slots);
    *ret_node = locator_segment(1, node_count++);
    return 0;
}

static const struct tree_sealer sealer = {.leaf = seal_leaf, .load = seal_load, .node = seal_node};

static void begin(void)
{
    memset(log_counts, 0, sizeof log_counts);
    memset(&pair, 0, sizeof pair);
    pair.space.log = (struct log *)&pair;
    pair.space.cache = node_cache_new(NULL, 1);
    node_count = 0;
}

static void end(void)
{
    tree_garbage_free(&pair.space, &pair.garbage);
    assert_int_equal(atomic_load(&pair.space.nodes), 0);
    for (unsigned i = 0; i < FILES; i++)
        assert_int_equal(log_counts[i], 0);
    pair.space.cache = node_cache_free(pair.space.cache);
}

// Only what is new since the last seal is stored, whichever of the trees that share it is sealed first.
static void test_seal_stores_what_is_new(void **state)
{
    begin();
    struct tree first = tree_empty(1 << 18), second; // two levels
    uint64_t owner = tree_new_owner(&pair.space), other = tree_new_owner(&pair.space);
    for (unsigned i = 0; i < 5; i++)
        tree_put(&pair.space, &first, owner, 512 * i, 1, locator_log(1, i));
    second = tree_share(first);
    locator_t a, b, again;
    assert_int_equal(tree_seal(&pair.space, &first, &sealer, &a), 0);
    assert_int_equal(node_count, 6);
    tree_put(&pair.space, &second, other, 700, 1, locator_log(2, 0));
    assert_int_equal(tree_seal(&pair.space, &second, &sealer, &b), 0);
    assert_int_equal(node_count, 8); // one leaf, one root
    tree_unseal(&pair.space, &second);
    assert_int_equal(tree_seal(&pair.space, &second, &sealer, &again), 0);
    assert_true(again != b && node_count == 14);
    tree_drop(&pair.space, &first);
    tree_drop(&pair.space, &second);
    end();
}

static void test_empty_nodes_are_not_stored(void **state)
{
    begin();
    struct tree tree = tree_empty(1 << 18);
    uint64_t owner = tree_new_owner(&pair.space);
    locator_t root;
    tree_put(&pair.space, &tree, owner, 600, 1, locator_log(1, 0));
    tree_fill(&pair.space, &tree, owner, 600, 1, LOCATOR_UNMAPPED);
    assert_int_equal(atomic_load(&pair.space.nodes), 2);
    assert_int_equal(tree_seal(&pair.space, &tree, &sealer, &root), 0);
    assert_true(root == LOCATOR_UNMAPPED && node_count == 0);
    patch_other(); // of an empty tree: nothing
    pair.patched = tree;
    patch_other();
    assert_int_equal(pair.patched.root, LOCATOR_UNMAPPED);
    end();
}

// What was copied between cut and commit must not go on inheriting from nodes that the checkpoint replaced.
static void test_copies_inherit_from_the_checkpoint(void **state)
{
    begin();
    struct tree live = tree_empty(1 << 18), cut;
    locator_t old, new;
    tree_put(&pair.space, &live, tree_new_owner(&pair.space), 512, 8, locator_log(1, 0));
    assert_int_equal(tree_seal(&pair.space, &live, &sealer, &old), 0);
    tree_drop(&pair.space, &live);
    live.root = old; // as after an opening
    uint64_t before = tree_new_owner(&pair.space), after = tree_new_owner(&pair.space);
    tree_put(&pair.space, &live, before, 513, 1, locator_log(2, 0));
    cut = tree_share(live);
    tree_put(&pair.space, &live, after, 514, 1, locator_log(3, 0));  // a copy
    tree_put(&pair.space, &live, after, 5000, 1, locator_log(3, 1)); // made under a slot that inherits
    assert_int_equal(tree_seal(&pair.space, &cut, &sealer, &new), 0);
    tree_drop(&pair.space, &cut);
    pair.patched = live;
    patch_other();
    live = pair.patched;
    memset(nodes[0], 0xee, sizeof nodes[0]); // what the first root reaches is collected, as far as it is not
    memset(nodes[1], 0xee, sizeof nodes[1]); // shared
    pair.space.cache = node_cache_free(pair.space.cache);
    pair.space.cache = node_cache_new(NULL, 1);
    for (unsigned i = 2; i < node_count; i++)
        node_cache_insert(pair.space.cache, locator_segment(1, i), nodes[i]);
    expect_run(&pair.space, &live, 512, twin_of(locator_log(1, 0)), 1);
    expect_run(&pair.space, &live, 513, twin_of(locator_log(2, 0)), 1);
    expect_run(&pair.space, &live, 515, twin_of(locator_log(1, 3)), 5);
    expect_run(&pair.space, &live, 5001, LOCATOR_UNMAPPED, 100);
    tree_drop(&pair.space, &live);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_copy_while_patched),
            cmocka_unit_test(test_seal_stores_what_is_new),
            cmocka_unit_test(test_empty_nodes_are_not_stored),
            cmocka_unit_test(test_copies_inherit_from_the_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
