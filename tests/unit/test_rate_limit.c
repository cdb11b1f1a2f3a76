// SPDX-License-Identifier: Apache-2.0
// Token buckets, by a clock of the test's own.
#include "vmglue/rate_limit.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { THREADS = 4, TAKES = 1000 };
static const uint64_t SECOND = 1000000000;

static unsigned take_many(struct rate_limit *limit, const char *who, uint64_t now, unsigned count)
{
    unsigned got = 0;
    for (unsigned i = 0; i < count; i++)
        got += rate_limit_take(limit, who, now) == 0;
    return got;
}

static void test_burst_and_rate(void **state)
{
    struct rate_limit *limit = rate_limit_new(10, 20);
    uint64_t now = SECOND;
    assert_int_equal(take_many(limit, "one", now, 100), 20);
    assert_int_equal(take_many(limit, "other", now, 100), 20);
    uint64_t wait = rate_limit_take(limit, "one", now);
    assert_in_range(wait, SECOND / 10 - SECOND / 1000, SECOND / 10 + SECOND / 1000);
    assert_int_equal(take_many(limit, "one", now + wait, 100), 1);
    now += wait + SECOND;
    assert_int_equal(take_many(limit, "one", now, 100), 10);
    assert_int_equal(take_many(limit, "one", now + 1000 * SECOND, 100), 20); // never more than it holds
    assert_int_equal(take_many(limit, "one", now, 100), 0); // a clock that is late gives none
    rate_limit_free(limit);
}

static void test_slow_and_none(void **state)
{
    struct rate_limit *limit = rate_limit_new(0.5, 0);
    assert_int_equal(take_many(limit, "one", 1, 5), 1);
    assert_in_range(rate_limit_take(limit, "one", 1), SECOND, 2 * SECOND + 1);
    rate_limit_free(limit);
    limit = rate_limit_new(0, 0);
    assert_int_equal(take_many(limit, "one", 1, 5000), 5000);
    rate_limit_free(limit);
    assert_null(rate_limit_free(NULL));
}

// However many come, the table is of one size, and who comes often keeps his bucket.
static void test_many(void **state)
{
    struct rate_limit *limit = rate_limit_new(1, 3);
    char who[RATE_LIMIT_WHO_SIZE];
    unsigned got = 0;
    for (unsigned i = 0; i < 10 * RATE_LIMIT_BUCKETS; i++) {
        snprintf(who, sizeof who, "10.%u.%u.%u", i >> 16, i >> 8 & 255, i & 255);
        assert_int_equal(rate_limit_take(limit, who, SECOND + i), 0);
        got += rate_limit_take(limit, "often", SECOND + i) == 0;
    }
    assert_int_equal(got, 3);
    rate_limit_free(limit);
}

struct shared {
    struct rate_limit *limit;
    unsigned got[THREADS];
};
struct taker {
    struct shared *shared;
    unsigned index;
};

static void *take(void *context)
{
    struct taker *taker = context;
    taker->shared->got[taker->index] = take_many(taker->shared->limit, "one", SECOND, TAKES);
    return NULL;
}

static void test_threads(void **state)
{
    struct shared shared = {.limit = rate_limit_new(1, 500)};
    struct taker takers[THREADS];
    pthread_t threads[THREADS];
    unsigned got = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        takers[i] = (struct taker){&shared, i};
        assert_int_equal(pthread_create(&threads[i], NULL, take, &takers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        got += shared.got[i];
    }
    assert_int_equal(got, 500);
    rate_limit_free(shared.limit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_burst_and_rate),
            cmocka_unit_test(test_slow_and_none),
            cmocka_unit_test(test_many),
            cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
