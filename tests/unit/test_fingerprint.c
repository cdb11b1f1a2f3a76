// SPDX-License-Identifier: Apache-2.0
// Fingerprints: the same for ever for the same store and domain, and different for any other.
#include "blockstore/fingerprint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint8_t block[BLOCK_SIZE];

static void block_fill(uint8_t seed)
{
    for (unsigned i = 0; i < BLOCK_SIZE; i++)
        block[i] = (uint8_t)(seed + i * 7 + i / 256);
}

static struct fingerprint_key key_of(uint8_t store, uint64_t domain)
{
    uint8_t secret[FINGERPRINT_SECRET_BYTES];
    memset(secret, store, sizeof secret);
    struct fingerprint_key key;
    fingerprint_key_derive(secret, domain, &key);
    return key;
}

static struct fingerprint print_of(uint8_t store, uint64_t domain)
{
    struct fingerprint_key key = key_of(store, domain);
    return fingerprint_of(&key, block);
}

static bool same(struct fingerprint a, struct fingerprint b)
{
    return a.low == b.low && a.high == b.high;
}

// They stand in segments: this value may never change.
static void test_known_value(void **state)
{
    block_fill(1);
    struct fingerprint print = print_of(5, 0x1122334455667788);
    assert_int_equal(print.low, UINT64_C(0x72ab455151d1c882));
    assert_int_equal(print.high, UINT64_C(0xf4f212494502b70f));
}

static void test_store_and_domain_matter(void **state)
{
    block_fill(1);
    struct fingerprint print = print_of(5, 1);
    assert_true(same(print, print_of(5, 1)));
    assert_false(same(print, print_of(6, 1)));
    assert_false(same(print, print_of(5, 2)));
    assert_false(same(print, print_of(5, UINT64_C(1) << 56)));
}

// Neither half agrees between domains: a half would be enough to probe for another tenant's block.
static void test_domains_share_no_half(void **state)
{
    for (uint8_t seed = 0; seed < 100; seed++) {
        block_fill(seed);
        struct fingerprint a = print_of(5, 1), b = print_of(5, 2);
        assert_int_not_equal(a.low, b.low);
        assert_int_not_equal(a.high, b.high);
    }
}

static void test_every_bit_of_the_block_matters(void **state)
{
    block_fill(1);
    struct fingerprint_key key = key_of(5, 1);
    struct fingerprint print = fingerprint_of(&key, block);
    for (unsigned bit = 0; bit < BLOCK_SIZE * 8; bit++) {
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(same(print, fingerprint_of(&key, block)));
        block[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(same(print, fingerprint_of(&key, block)));
}

static void test_weakened(void **state)
{
    struct fingerprint_key key = key_of(5, 1);
    block_fill(1);
    struct fingerprint strong = fingerprint_of(&key, block);
    fingerprint_weaken(72);
    struct fingerprint weak = fingerprint_of(&key, block);
    assert_int_equal(weak.low, strong.low);
    assert_int_equal(weak.high, strong.high & 0xff);
    fingerprint_weaken(8);
    bool seen[256] = {false};
    unsigned different = 0;
    for (unsigned i = 0; i < 200; i++) {
        block_fill((uint8_t)i);
        weak = fingerprint_of(&key, block);
        assert_true(weak.low < 256);
        assert_int_equal(weak.high, 0);
        different += !seen[weak.low];
        seen[weak.low] = true;
    }
    assert_in_range(different, 64, 199);
    fingerprint_weaken(128);
    block_fill(1);
    assert_true(same(strong, fingerprint_of(&key, block)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_known_value),
            cmocka_unit_test(test_store_and_domain_matter),
            cmocka_unit_test(test_domains_share_no_half),
            cmocka_unit_test(test_every_bit_of_the_block_matters),
            cmocka_unit_test(test_weakened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
