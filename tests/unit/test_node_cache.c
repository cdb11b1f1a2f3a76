// SPDX-License-Identifier: Apache-2.0
// The cache of sealed nodes: found, pinned, evicted; loaded from segments once for all who wait, on several
// loops; bytes that are no node are refused.
#include "snapshot/node_cache.h"
#include "tests/unit/segment_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

enum { NODES = 30 }; // of the fixture's nodes; from 32 on their slot numbers are none that a segment has

static void fill(locator_t *slots, uint64_t n)
{
    for (unsigned i = 0; i < 512; i++)
        slots[i] = locator_segment(n, i);
}

static void test_finds_what_was_put_in(void **state)
{
    struct node_cache *cache = node_cache_new(NULL, 1 << 20);
    locator_t slots[512];
    assert_null(node_cache_find(cache, locator_segment(1, 1)));
    for (uint64_t n = 0; n < 100; n++) {
        fill(slots, n);
        node_cache_insert(cache, locator_segment(1, n), slots);
    }
    for (uint64_t n = 0; n < 100; n++) {
        const struct node_cached *node = node_cache_find(cache, locator_segment(1, n));
        assert_non_null(node);
        assert_int_equal(node->locator, locator_segment(1, n));
        assert_int_equal(node->slots[77], locator_segment(n, 77));
        node_cache_put(cache, node);
    }
    assert_null(node_cache_find(cache, locator_segment(2, 1)));
    node_cache_free(cache);
}

static unsigned count_kept(struct node_cache *cache, uint64_t first, uint64_t end)
{
    unsigned kept = 0;
    for (uint64_t n = first; n < end; n++) {
        const struct node_cached *node = node_cache_find(cache, locator_segment(1, n));
        if (node == NULL)
            continue;
        kept++;
        node_cache_put(cache, node);
    }
    return kept;
}

static void test_is_capped(void **state)
{
    for (uint64_t bytes = 1; bytes <= 4 << 20; bytes = bytes * 64) {
        struct node_cache *cache = node_cache_new(NULL, bytes);
        locator_t slots[512];
        for (uint64_t n = 0; n < 2000; n++) {
            fill(slots, n);
            node_cache_insert(cache, locator_segment(1, n), slots);
        }
        unsigned kept = count_kept(cache, 0, 2000), most = bytes > 32 * 4096 ? (unsigned)(bytes / 4096) : 32;
        assert_true(kept >= 32 / 2 && kept <= most);
        node_cache_free(cache);
    }
}

static void test_keeps_what_is_in_use(void **state)
{
    struct node_cache *cache = node_cache_new(NULL, 1);
    locator_t slots[512];
    const struct node_cached *held[40];
    for (uint64_t n = 0; n < 31; n++) {
        fill(slots, n);
        node_cache_insert(cache, locator_segment(1, n), slots);
        held[n] = node_cache_find(cache, locator_segment(1, n));
    }
    for (uint64_t n = 100; n < 300; n++) { // they share the one place that is left
        fill(slots, n);
        node_cache_insert(cache, locator_segment(1, n), slots);
        assert_int_equal(count_kept(cache, 100, 300), 1);
    }
    held[31] = node_cache_find(cache, locator_segment(1, 299));
    assert_non_null(held[31]);
    fill(slots, 300);
    node_cache_insert(cache, locator_segment(1, 300), slots); // no place at all: it is not kept
    assert_null(node_cache_find(cache, locator_segment(1, 300)));
    for (uint64_t n = 0; n < 31; n++)
        assert_int_equal(held[n]->slots[5], locator_segment(n, 5));
    for (uint64_t n = 0; n < 32; n++)
        node_cache_put(cache, held[n]);
    node_cache_insert(cache, locator_segment(1, 300), slots);
    assert_int_equal(count_kept(cache, 300, 301), 1);
    node_cache_free(cache);
}

static void test_the_used_outlive_the_unused(void **state)
{
    struct node_cache *cache = node_cache_new(NULL, 1);
    locator_t slots[512];
    fill(slots, 0);
    node_cache_insert(cache, locator_segment(1, 0), slots);
    for (uint64_t n = 1; n < 1000; n++) {
        fill(slots, n);
        node_cache_insert(cache, locator_segment(1, n), slots);
        assert_int_equal(count_kept(cache, 0, 1), 1); // looked for each time: so it stays
    }
    node_cache_free(cache);
}

static void test_check_refuses_what_is_no_node(void **state)
{
    locator_t slots[512];
    static const locator_t wrong[] = {LOCATOR_INHERIT, 16, 0x7f0000001230, 2, 5, 15, 17, 20};
    fill(slots, 3);
    slots[0] = LOCATOR_ZERO;
    slots[511] = LOCATOR_UNMAPPED;
    assert_int_equal(node_cache_check(slots), 0);
    for (unsigned i = 0; i < 512; i += 73) {
        locator_t before = slots[i];
        for (unsigned k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
            slots[i] = wrong[k];
            assert_int_equal(node_cache_check(slots), -EBADMSG);
        }
        slots[i] = locator_segment(3, SEGMENT_SLOTS_MAX);
        assert_int_equal(node_cache_check(slots), -EBADMSG);
        slots[i] = locator_segment(3, SEGMENT_SLOTS_MAX - 1);
        assert_int_equal(node_cache_check(slots), 0);
        slots[i] = before;
    }
}

// ---- Loading ----

struct rig_load {
    struct node_load load;
    _Atomic bool done;
    int result;
};

static void load_done(struct node_load *load, int result)
{
    struct rig_load *mine = (struct rig_load *)load;
    mine->result = result;
    atomic_store(&mine->done, true);
}

static void write_nodes(struct segment_rig *rig, unsigned slots, struct rig_segment *ret_segment)
{
    *ret_segment = (struct rig_segment){
            .number = 9, .kind = SEGMENT_NODES, .content = RIG_NODES, .slots = slots, .frame_slots = 8};
    assert_int_equal(rig_task(rig, rig_write, ret_segment), 0);
    segments_add(rig->segments, &ret_segment->row);
}

static int load_one(struct segment_rig *rig, struct node_cache *cache, locator_t locator)
{
    struct rig_load mine = {.load = {.loop = rig->loop, .locator = locator, .done = load_done}};
    node_cache_load(cache, &mine.load);
    assert_false(mine.done); // never before it returns
    while (!mine.done)
        assert_int_equal(rig_step(rig), 0);
    return mine.result;
}

static void expect_node(struct node_cache *cache, uint64_t n)
{
    uint8_t block[BLOCK_SIZE];
    rig_block(RIG_NODES, n, block);
    const struct node_cached *node = node_cache_find(cache, locator_segment(9, n));
    assert_non_null(node);
    for (unsigned i = 0; i < 512; i++)
        for (unsigned k = 0; k < 8; k++)
            assert_int_equal(block[i * 8 + k], (uint8_t)(node->slots[i] >> (8 * k)));
    node_cache_put(cache, node);
}

static int read_by_task(struct segment_rig *rig, struct task *task, void *context)
{
    locator_t slots[512];
    int r = node_cache_read_task(context, task, locator_segment(9, 4), slots);
    return r < 0 ? r : slots[1] == locator_segment(7, 4 * 512 + 1) ? 1 : 0;
}

static void check_loads(struct segment_rig *rig)
{
    struct rig_segment segment;
    struct segments_stat before, after;
    write_nodes(rig, 40, &segment);
    struct node_cache *cache = node_cache_new(rig->segments, 1 << 20);
    assert_int_equal(rig_task(rig, read_by_task, cache), 1);
    assert_null(node_cache_find(cache, locator_segment(9, 4))); // a task's reading does not fill the cache
    assert_int_equal(load_one(rig, cache, locator_segment(9, 4)), 0);
    expect_node(cache, 4);
    assert_int_equal(rig_task(rig, read_by_task, cache), 1);
    assert_int_equal(load_one(rig, cache, locator_segment(9, 39)), -EBADMSG); // intact bytes, but no node
    assert_null(node_cache_find(cache, locator_segment(9, 39)));
    assert_int_equal(load_one(rig, cache, locator_segment(9, 40)), -ENOENT);
    assert_true(load_one(rig, cache, locator_segment(10, 0)) < 0);
    // Many at once: one read.
    struct rig_load loads[20];
    segments_stat(rig->segments, &before);
    for (unsigned i = 0; i < 20; i++) {
        loads[i] = (struct rig_load){
                .load = {.loop = rig->loop, .locator = locator_segment(9, 20), .done = load_done}};
        node_cache_load(cache, &loads[i].load);
    }
    for (unsigned i = 0; i < 20; i++) {
        while (!loads[i].done)
            assert_int_equal(rig_step(rig), 0);
        assert_int_equal(loads[i].result, 0);
    }
    segments_stat(rig->segments, &after);
    assert_int_equal(after.frame_hits + after.frame_misses, before.frame_hits + before.frame_misses + 1);
    expect_node(cache, 20);
    node_cache_free(cache);
}

static void test_loads(void **state)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    check_loads(&rig);
    rig_stop(&rig);
}

static void test_loads_in_the_simulator(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 3, &(struct sim_options){.loop_count = 1});
    check_loads(&rig);
    rig_stop(&rig);
}

// ---- Several loops that want the same few nodes, with room for hardly any ----

enum { LOOPS = 3, CHAINS = 4, LOADS = 400 };

struct chain {             // one after another, on one loop
    struct node_load load; // first
    struct loop_work work;
    struct node_cache *cache;
    uint64_t random;
    unsigned left;
    _Atomic bool done;
    const char *failure;
};

static void chain_next(struct chain *chain)
{
    if (chain->left-- == 0 || chain->failure != NULL) {
        atomic_store(&chain->done, true);
        return;
    }
    chain->load.locator = locator_segment(9, rig_random(&chain->random) % NODES);
    node_cache_load(chain->cache, &chain->load);
}

static void chain_loaded(struct node_load *load, int result)
{
    struct chain *chain = (struct chain *)load;
    if (result < 0)
        chain->failure = "a load failed";
    const struct node_cached *node = node_cache_find(chain->cache, load->locator);
    if (node != NULL) { // else it was evicted again
        uint64_t n = locator_segment_slot(load->locator);
        if (node->locator != load->locator || node->slots[3] != locator_segment(7, n * 512 + 3))
            chain->failure = "a wrong node";
        node_cache_put(chain->cache, node);
    }
    if (loop_current() != load->loop)
        chain->failure = "answered on another loop";
    chain_next(chain);
}

static void chain_begin(struct loop_work *work)
{
    chain_next((struct chain *)((char *)work - offsetof(struct chain, work)));
}

static void test_loops_share_loads(void **state)
{
    struct segment_rig rig;
    struct rig_segment segment;
    struct loop *loops[LOOPS];
    static struct chain chains[LOOPS * CHAINS];
    rig_start_ring(&rig);
    write_nodes(&rig, NODES, &segment);
    struct node_cache *cache = node_cache_new(rig.segments, 1);
    for (unsigned i = 0; i < 20; i++) { // so that not all nodes have room
        locator_t slots[512];
        fill(slots, i);
        node_cache_insert(cache, locator_segment(1, i), slots);
        assert_non_null(node_cache_find(cache, locator_segment(1, i)));
    }
    for (unsigned i = 0; i < LOOPS; i++) {
        assert_int_equal(io_ring_loop_create(i + 1, 64, &loops[i]), 0);
        assert_int_equal(io_ring_thread_start(loops[i]), 0);
    }
    for (unsigned i = 0; i < LOOPS * CHAINS; i++) {
        chains[i] = (struct chain){.load = {.loop = loops[i % LOOPS], .done = chain_loaded},
                .work.run = chain_begin,
                .cache = cache,
                .random = i,
                .left = LOADS};
        loop_post(loops[i % LOOPS], &chains[i].work);
    }
    for (unsigned i = 0; i < LOOPS * CHAINS; i++)
        while (!atomic_load(&chains[i].done))
            sched_yield();
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_thread_stop(loops[i]);
    for (unsigned i = 0; i < LOOPS * CHAINS; i++)
        if (chains[i].failure != NULL)
            fail_msg("%s", chains[i].failure);
    node_cache_free(cache);
    rig_stop(&rig);
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_loop_destroy(loops[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_finds_what_was_put_in),
            cmocka_unit_test(test_is_capped),
            cmocka_unit_test(test_keeps_what_is_in_use),
            cmocka_unit_test(test_the_used_outlive_the_unused),
            cmocka_unit_test(test_check_refuses_what_is_no_node),
            cmocka_unit_test(test_loads),
            cmocka_unit_test(test_loads_in_the_simulator),
            cmocka_unit_test(test_loops_share_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
