// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void buffers_are_aligned_and_large_enough(void **state)
{
    const size_t sizes[] = {1, 4096, 4097, 100000, NBD_POOL_KEPT_BYTES, 32 * 1024 * 1024};
    struct nbd_pool pool = {0};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *buffer = nbd_pool_get(&pool, sizes[i]);
        assert_int_equal((uintptr_t)buffer % 4096, 0);
        memset(buffer, 0xff, nbd_pool_cost(sizes[i]));
        assert_true(nbd_pool_cost(sizes[i]) >= sizes[i]);
        nbd_pool_put(&pool, buffer, sizes[i]);
    }
    nbd_pool_drain(&pool);
}

static void a_buffer_comes_back(void **state)
{
    struct nbd_pool pool = {0};
    void *first = nbd_pool_get(&pool, 5000);
    nbd_pool_put(&pool, first, 5000);
    assert_ptr_equal(nbd_pool_get(&pool, 8192), first); // the same class
    void *second = nbd_pool_get(&pool, 8192);
    assert_ptr_not_equal(second, first);
    nbd_pool_put(&pool, first, 8192);
    nbd_pool_put(&pool, second, 8192);
    nbd_pool_drain(&pool);
}

static void what_is_kept_is_bounded(void **state)
{
    enum { COUNT = 64, SIZE = 256 * 1024 };
    struct nbd_pool pool = {0};
    void *buffers[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        buffers[i] = nbd_pool_get(&pool, SIZE);
    for (unsigned i = 0; i < COUNT; i++)
        nbd_pool_put(&pool, buffers[i], SIZE);
    assert_int_equal(pool.kept_bytes, NBD_POOL_KEPT_BYTES);
    nbd_pool_drain(&pool);
    assert_int_equal(pool.kept_bytes, 0);
}

static void no_buffer_is_no_buffer(void **state)
{
    struct nbd_pool pool = {0};
    nbd_pool_put(&pool, NULL, 0);
    assert_int_equal(pool.kept_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(buffers_are_aligned_and_large_enough),
            cmocka_unit_test(a_buffer_comes_back),
            cmocka_unit_test(what_is_kept_is_bounded),
            cmocka_unit_test(no_buffer_is_no_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
