// SPDX-License-Identifier: Apache-2.0
// The fingerprint index against a plain list of what was put and not forgotten: nothing is found that was not
// put, nothing is lost while there is room, memory stays below its cap.
#include "blockstore/fingerprint.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 16384 };

// A number of a fixed sequence (splitmix64).
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static struct fingerprint print_of(uint64_t n)
{
    return (struct fingerprint){mix(n), mix(n ^ UINT64_C(0xabcdef0123456789))};
}

// Block n in dense segments that begin at number `first`.
static locator_t place_of(uint64_t first, uint64_t n)
{
    return locator_segment(first + n / SLOTS, n % SLOTS);
}

static bool finds(struct fingerprint_index *index, struct fingerprint print, locator_t locator)
{
    locator_t found[FINGERPRINT_CANDIDATES_MAX];
    unsigned count = fingerprint_index_find(index, print, found);
    assert_in_range(count, 0, FINGERPRINT_CANDIDATES_MAX);
    for (unsigned i = 0; i < count; i++)
        if (found[i] == locator)
            return true;
    return false;
}

static struct fingerprint_index_stat stat_of(struct fingerprint_index *index)
{
    struct fingerprint_index_stat stat;
    fingerprint_index_stat(index, &stat);
    return stat;
}

// The model: entries by block number; block n has fingerprint `n % prints` and place n.
struct model {
    uint64_t seed, blocks, prints, first_segment, count;
    bool *there;
};

static void model_step(struct model *model, struct fingerprint_index *index, uint64_t step)
{
    uint64_t random = mix(model->seed + step), n = random % model->blocks;
    struct fingerprint print = print_of(n % model->prints);
    locator_t place = place_of(model->first_segment, n);
    if (random >> 60 < 10) {
        fingerprint_index_put(index, print, place);
        model->count += !model->there[n];
        model->there[n] = true;
    } else if (random >> 60 < 14) {
        fingerprint_index_forget(index, print, place);
        model->count -= model->there[n];
        model->there[n] = false;
    } else {
        assert_int_equal(finds(index, print, place), model->there[n]);
    }
}

// Every candidate is an entry of the model; returns how many belong to another fingerprint.
static uint64_t model_candidates(const struct model *model, struct fingerprint_index *index)
{
    uint64_t strangers = 0;
    for (uint64_t p = 0; p < model->prints; p++) {
        locator_t found[FINGERPRINT_CANDIDATES_MAX];
        unsigned count = fingerprint_index_find(index, print_of(p), found);
        for (unsigned i = 0; i < count; i++) {
            uint64_t n = (locator_segment_number(found[i]) - model->first_segment) * SLOTS +
                         locator_segment_slot(found[i]);
            assert_in_range(n, 0, model->blocks - 1);
            assert_true(model->there[n]);
            strangers += n % model->prints != p;
            if (i > 0)
                assert_true(found[i - 1] > found[i]);
        }
    }
    return strangers;
}

static void model_run(uint64_t seed, uint64_t max_bytes, uint64_t blocks, uint64_t prints, uint64_t steps)
{
    struct model model = {.seed = seed, .blocks = blocks, .prints = prints, .first_segment = mix(seed) >> 30};
    model.there = calloc(blocks, sizeof *model.there);
    struct fingerprint_index *index = fingerprint_index_new(max_bytes);
    for (uint64_t step = 0; step < steps; step++)
        model_step(&model, index, step);
    for (uint64_t n = 0; n < blocks; n++)
        assert_int_equal(
                finds(index, print_of(n % prints), place_of(model.first_segment, n)), model.there[n]);
    struct fingerprint_index_stat stat = stat_of(index);
    assert_int_equal(stat.entries, model.count);
    assert_int_equal(stat.evicted, 0);
    assert_in_range(stat.bytes, 1, max_bytes);
    assert_in_range(model_candidates(&model, index), 0, 2);
    fingerprint_index_free(index);
    free(model.there);
}

static void test_model_small(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        model_run(seed, 1 << 20, 3000, 3000, 30000);
}

static void test_model_growing(void **state)
{
    model_run(21, 32 << 20, 400000, 400000, 1000000);
}

static void test_model_same_content_in_places(void **state)
{
    for (uint64_t seed = 31; seed <= 40; seed++)
        model_run(seed, 4 << 20, 40000, 10000, 100000); // up to four places a fingerprint
}

static void test_model_many_segments(void **state)
{
    // Slot numbers are few and segments many: block n is at place n << 8.
    struct fingerprint_index *index = fingerprint_index_new(64 << 20);
    for (uint64_t n = 0; n < 60000; n++)
        fingerprint_index_put(index, print_of(n), place_of(1, n << 12));
    for (uint64_t n = 0; n < 60000; n += 2)
        fingerprint_index_forget(index, print_of(n), place_of(1, n << 12));
    for (uint64_t n = 60000; n < 120000; n++) // their ordinals are others' now
        fingerprint_index_put(index, print_of(n), place_of(1, n << 12));
    for (uint64_t n = 0; n < 120000; n++)
        assert_int_equal(finds(index, print_of(n), place_of(1, n << 12)), n >= 60000 || n % 2 == 1);
    fingerprint_index_free(index);
}

// 2.5 GiB for each TiB of unique blocks, at the size of a test: nearly all are found.
static void test_dense(void **state)
{
    for (unsigned gib = 1; gib <= 4; gib += 3) {
        uint64_t blocks = (uint64_t)gib << 18, max_bytes = (uint64_t)gib * 5 << 19, found = 0;
        struct fingerprint_index *index = fingerprint_index_new(max_bytes);
        for (uint64_t n = 0; n < blocks; n++)
            fingerprint_index_put(index, print_of(n), place_of(7, n));
        for (uint64_t n = 0; n < blocks; n++)
            found += finds(index, print_of(n), place_of(7, n));
        struct fingerprint_index_stat stat = stat_of(index);
        print_message("%u GiB of blocks: %llu of %llu found, %llu bytes, capacity %llu\n", gib,
                (unsigned long long)found, (unsigned long long)blocks, (unsigned long long)stat.bytes,
                (unsigned long long)stat.capacity);
        assert_in_range(stat.bytes, 1, max_bytes);
        assert_int_equal(found, stat.entries);
        assert_int_equal(stat.entries + stat.evicted, blocks);
        assert_true(found * 1000 >= blocks * 999);
        fingerprint_index_free(index);
    }
}

static void test_full(void **state)
{
    enum { BLOCKS = 1000000, MAX_BYTES = 2 << 20 };
    struct fingerprint_index *index = fingerprint_index_new(MAX_BYTES);
    for (uint64_t n = 0; n < BLOCKS; n++) {
        fingerprint_index_put(index, print_of(n), place_of(7, n));
        assert_true(finds(index, print_of(n), place_of(7, n))); // the newest is always there
    }
    struct fingerprint_index_stat stat = stat_of(index);
    assert_in_range(stat.bytes, 1, MAX_BYTES);
    assert_int_equal(stat.entries + stat.evicted, BLOCKS);
    assert_true(stat.entries * 100 >= stat.capacity * 99);
    uint64_t found = 0, recent = 0;
    for (uint64_t n = 0; n < BLOCKS; n++) {
        bool there = finds(index, print_of(n), place_of(7, n));
        found += there;
        recent += there && n >= BLOCKS - stat.capacity;
    }
    assert_int_equal(found, stat.entries);
    assert_true(recent * 2 > found); // what goes is picked at random, so the old ones have mostly gone
    // The segments of entries that were replaced are not kept.
    for (uint64_t n = 0; n < BLOCKS; n++)
        fingerprint_index_forget(index, print_of(n), place_of(7, n));
    assert_int_equal(stat_of(index).entries, 0);
    fingerprint_index_free(index);
}

static void test_smallest(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(0);
    for (uint64_t n = 0; n < 50000; n++)
        fingerprint_index_put(index, print_of(n), place_of(7, n));
    assert_true(finds(index, print_of(49999), place_of(7, 49999)));
    assert_true(stat_of(index).bytes < 200000);
    fingerprint_index_free(index);
}

static void test_more_segments_than_ordinals(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(256 << 10);
    for (uint64_t n = 0; n < 300; n++)
        fingerprint_index_put(index, print_of(n), locator_segment(1000 + n, 5));
    struct fingerprint_index_stat stat = stat_of(index);
    assert_int_equal(stat.entries, 255);
    assert_int_equal(stat.evicted, 45);
    for (uint64_t n = 0; n < 100; n++)
        fingerprint_index_forget(index, print_of(n), locator_segment(1000 + n, 5));
    for (uint64_t n = 300; n < 400; n++)
        fingerprint_index_put(index, print_of(n), locator_segment(1000 + n, 5));
    for (uint64_t n = 0; n < 400; n++)
        assert_int_equal(
                finds(index, print_of(n), locator_segment(1000 + n, 5)), (n >= 100 && n < 255) || n >= 300);
    fingerprint_index_free(index);
}

// One content in many places (a weak fingerprint, or re-stored blocks): at most what two buckets hold.
static void test_one_fingerprint(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(4 << 20);
    struct fingerprint print = {3, 0};
    for (uint64_t n = 0; n < 1000; n++)
        fingerprint_index_put(index, print, place_of(7, n * 77));
    locator_t found[FINGERPRINT_CANDIDATES_MAX];
    assert_int_equal(fingerprint_index_find(index, print, found), FINGERPRINT_CANDIDATES_MAX);
    for (unsigned i = 0; i < FINGERPRINT_CANDIDATES_MAX; i++)
        for (unsigned k = 0; k < i; k++)
            assert_int_not_equal(found[i], found[k]);
    fingerprint_index_put(index, print, found[3]); // again: changes nothing
    assert_int_equal(stat_of(index).entries, FINGERPRINT_CANDIDATES_MAX);
    fingerprint_index_free(index);
}

static void test_weak_fingerprints(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(16 << 20);
    for (uint64_t n = 0; n < 300000; n++) {
        struct fingerprint print = {mix(n) & 0xff, 0};
        fingerprint_index_put(index, print, place_of(7, n));
        assert_true(finds(index, print, place_of(7, n)));
    }
    assert_in_range(stat_of(index).entries, 256, 256 * FINGERPRINT_CANDIDATES_MAX);
    fingerprint_index_free(index);
}

static void test_other_locators(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(1 << 20);
    const locator_t others[] = {
            LOCATOR_ZERO, LOCATOR_UNMAPPED, LOCATOR_INHERIT, locator_log(3, 4), locator_segment(3, SLOTS)};
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
        fingerprint_index_put(index, print_of(i), others[i]);
        fingerprint_index_forget(index, print_of(i), others[i]);
    }
    assert_int_equal(stat_of(index).entries, 0);
    locator_t last = locator_segment(LOCATOR_FILE_MAX - 1, SLOTS - 1);
    fingerprint_index_put(index, print_of(9), last);
    assert_true(finds(index, print_of(9), last));
    assert_null(fingerprint_index_free(index));
    assert_null(fingerprint_index_free(NULL));
}

// Threads: each puts its own and looks for those of all; at the end each one's last state is there.
enum { THREADS = 4, PER_THREAD = 60000 };
struct worker {
    pthread_t thread;
    struct fingerprint_index *index;
    unsigned number;
};

static void *worker_run(void *argument)
{
    struct worker *worker = argument;
    for (uint64_t n = worker->number; n < THREADS * PER_THREAD; n += THREADS) {
        locator_t found[FINGERPRINT_CANDIDATES_MAX];
        fingerprint_index_put(worker->index, print_of(n), place_of(7, n));
        unsigned count = fingerprint_index_find(worker->index, print_of(mix(n) % (n + 1)), found);
        for (unsigned i = 0; i < count; i++) // of a segment that somebody put, whatever its ordinal is now
            assert_in_range(locator_segment_number(found[i]), 7, 7 + THREADS * PER_THREAD / SLOTS);
        if (n % 3 == 0)
            fingerprint_index_forget(worker->index, print_of(n), place_of(7, n));
        // A segment of its own that comes and goes, so that ordinals change hands.
        locator_t mine = locator_segment(7 + worker->number, SLOTS - 1);
        fingerprint_index_put(worker->index, print_of(n ^ UINT64_C(1) << 40), mine);
        fingerprint_index_forget(worker->index, print_of(n ^ UINT64_C(1) << 40), mine);
        if (n % 1000 == 0)
            stat_of(worker->index);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct fingerprint_index *index = fingerprint_index_new(16 << 20);
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.index = index, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (uint64_t n = 0; n < THREADS * PER_THREAD; n++)
        assert_int_equal(finds(index, print_of(n), place_of(7, n)), n % 3 != 0);
    assert_int_equal(stat_of(index).entries, THREADS * PER_THREAD - THREADS * PER_THREAD / 3);
    fingerprint_index_free(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_model_small),
            cmocka_unit_test(test_model_growing),
            cmocka_unit_test(test_model_same_content_in_places),
            cmocka_unit_test(test_model_many_segments),
            cmocka_unit_test(test_dense),
            cmocka_unit_test(test_full),
            cmocka_unit_test(test_smallest),
            cmocka_unit_test(test_more_segments_than_ordinals),
            cmocka_unit_test(test_one_fingerprint),
            cmocka_unit_test(test_weak_fingerprints),
            cmocka_unit_test(test_other_locators),
            cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
