// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MIB = 1024 * 1024, LIMIT = 64 * MIB };

static struct nbd_budget budget;

static struct nbd_pool fresh_pool(void)
{
    struct nbd_pool pool;
    nbd_pool_init(&pool, &budget);
    return pool;
}

static int fresh_budget(void **state)
{
    nbd_budget_init(&budget, LIMIT);
    return 0;
}

static size_t used(void)
{
    size_t bytes, peak;
    nbd_budget_stat(&budget, &bytes, &peak);
    return bytes;
}

static void nobody_is_granted(struct nbd_budget_waiter *waiter)
{
    fail();
}

// As a connection does that need not wait.
static void *get(struct nbd_pool *pool, size_t size)
{
    size_t lacks = nbd_pool_lacks(pool, size);
    if (lacks) {
        struct nbd_budget_waiter waiter = {.granted = nobody_is_granted, .bytes = lacks};
        assert_true(nbd_budget_take(&budget, &waiter));
        nbd_pool_add(pool, lacks);
        assert_int_equal(nbd_pool_lacks(pool, size), 0);
    }
    return nbd_pool_get(pool, size);
}

static void buffers_are_aligned_and_large_enough(void **state)
{
    const size_t sizes[] = {1, 4096, 4097, 100000, NBD_POOL_KEPT_BYTES, 32 * MIB};
    struct nbd_pool pool = fresh_pool();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *buffer = get(&pool, sizes[i]);
        assert_int_equal((uintptr_t)buffer % 4096, 0);
        memset(buffer, 0xff, nbd_pool_cost(sizes[i]));
        assert_true(nbd_pool_cost(sizes[i]) >= sizes[i]);
        nbd_pool_put(&pool, buffer, sizes[i]);
    }
    nbd_pool_drain(&pool);
    assert_int_equal(used(), 0);
}

static void a_buffer_comes_back(void **state)
{
    struct nbd_pool pool = fresh_pool();
    void *first = get(&pool, 5000);
    nbd_pool_put(&pool, first, 5000);
    assert_ptr_equal(get(&pool, 8192), first); // the same class
    void *second = get(&pool, 8192);
    assert_ptr_not_equal(second, first);
    nbd_pool_put(&pool, first, 8192);
    nbd_pool_put(&pool, second, 8192);
    nbd_pool_drain(&pool);
}

static void what_is_kept_is_bounded(void **state)
{
    enum { COUNT = 64, SIZE = 256 * 1024 };
    struct nbd_pool pool = fresh_pool();
    void *buffers[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        buffers[i] = get(&pool, SIZE);
    assert_int_equal(used(), COUNT * SIZE - NBD_POOL_OWN_BYTES);
    for (unsigned i = 0; i < COUNT; i++)
        nbd_pool_put(&pool, buffers[i], SIZE);
    assert_int_equal(pool.kept_bytes, NBD_POOL_KEPT_BYTES);
    assert_int_equal(used(), NBD_POOL_KEPT_BYTES - NBD_POOL_OWN_BYTES);
    nbd_pool_trim(&pool);
    assert_int_equal(pool.kept_bytes, NBD_POOL_OWN_BYTES);
    assert_int_equal(used(), 0);
    nbd_pool_drain(&pool);
    assert_int_equal(pool.kept_bytes, 0);
}

static void no_buffer_is_no_buffer(void **state)
{
    struct nbd_pool pool = fresh_pool();
    nbd_pool_put(&pool, NULL, 0);
    assert_int_equal(pool.kept_bytes, 0);
}

static void the_first_bytes_are_free(void **state)
{
    struct nbd_pool pool = fresh_pool();
    void *own = get(&pool, NBD_POOL_OWN_BYTES);
    assert_int_equal(used(), 0);
    void *more = get(&pool, 4096);
    assert_int_equal(used(), 4096);
    nbd_pool_put(&pool, own, NBD_POOL_OWN_BYTES);
    nbd_pool_put(&pool, more, 4096);
    nbd_pool_drain(&pool);
    assert_int_equal(used(), 0);
}

// What is kept in another size gives way before anything is taken.
static void kept_buffers_give_way(void **state)
{
    struct nbd_pool pool = fresh_pool();
    nbd_pool_put(&pool, get(&pool, NBD_POOL_OWN_BYTES), NBD_POOL_OWN_BYTES);
    assert_int_equal(nbd_pool_lacks(&pool, 4096), 0);
    assert_int_equal(pool.kept_bytes, 0);
    nbd_pool_drain(&pool);
}

static unsigned grants;
static struct nbd_budget_waiter *granted_last;

static void count_grant(struct nbd_budget_waiter *waiter)
{
    grants++;
    granted_last = waiter;
}

static void waiters_are_served_in_order(void **state)
{
    struct nbd_budget_waiter all = {.granted = nobody_is_granted, .bytes = LIMIT};
    struct nbd_budget_waiter large = {.granted = count_grant, .bytes = 48 * MIB};
    struct nbd_budget_waiter small = {.granted = count_grant, .bytes = 4096};
    grants = 0;
    assert_true(nbd_budget_take(&budget, &all));
    assert_false(nbd_budget_is_short(&budget));
    assert_false(nbd_budget_take(&budget, &large));
    assert_false(nbd_budget_take(&budget, &small));
    assert_true(nbd_budget_is_short(&budget));
    nbd_budget_give(&budget, 32 * MIB); // enough for the small one, but it is not its turn
    assert_int_equal(grants, 0);
    nbd_budget_give(&budget, 16 * MIB);
    assert_int_equal(grants, 1);
    assert_ptr_equal(granted_last, &large);
    nbd_budget_give(&budget, 16 * MIB);
    assert_int_equal(grants, 2);
    assert_ptr_equal(granted_last, &small);
    assert_false(nbd_budget_is_short(&budget));
    assert_int_equal(used(), 48 * MIB + 4096);
}

static void who_leaves_the_queue_lets_others_through(void **state)
{
    struct nbd_budget_waiter half = {.granted = nobody_is_granted, .bytes = LIMIT / 2};
    struct nbd_budget_waiter large = {.granted = nobody_is_granted, .bytes = LIMIT};
    struct nbd_budget_waiter small = {.granted = count_grant, .bytes = 4096};
    grants = 0;
    assert_true(nbd_budget_take(&budget, &half));
    assert_false(nbd_budget_take(&budget, &large));
    assert_false(nbd_budget_take(&budget, &small));
    assert_true(nbd_budget_cancel(&budget, &large));
    assert_int_equal(grants, 1);
    assert_false(nbd_budget_cancel(&budget, &large));
    assert_false(nbd_budget_cancel(&budget, &small)); // it has been granted
    nbd_budget_give(&budget, LIMIT / 2 + 4096);
    assert_int_equal(used(), 0);
}

// A pool that holds shared memory keeps nothing while others wait.
static void a_short_budget_is_not_hoarded(void **state)
{
    struct nbd_pool pool = fresh_pool();
    void *first = get(&pool, 4 * MIB), *second = get(&pool, LIMIT / 2);
    struct nbd_budget_waiter waiter = {.granted = count_grant, .bytes = LIMIT / 2};
    grants = 0;
    assert_false(nbd_budget_take(&budget, &waiter));
    nbd_pool_put(&pool, first, 4 * MIB);
    assert_int_equal(pool.kept_bytes, 0);
    assert_int_equal(grants, 1);
    nbd_pool_put(&pool, second, LIMIT / 2);
    nbd_pool_drain(&pool);
    assert_int_equal(used(), LIMIT / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup(buffers_are_aligned_and_large_enough, fresh_budget),
            cmocka_unit_test_setup(a_buffer_comes_back, fresh_budget),
            cmocka_unit_test_setup(what_is_kept_is_bounded, fresh_budget),
            cmocka_unit_test_setup(no_buffer_is_no_buffer, fresh_budget),
            cmocka_unit_test_setup(the_first_bytes_are_free, fresh_budget),
            cmocka_unit_test_setup(kept_buffers_give_way, fresh_budget),
            cmocka_unit_test_setup(waiters_are_served_in_order, fresh_budget),
            cmocka_unit_test_setup(who_leaves_the_queue_lets_others_through, fresh_budget),
            cmocka_unit_test_setup(a_short_budget_is_not_hoarded, fresh_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
