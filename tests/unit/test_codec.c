// SPDX-License-Identifier: Apache-2.0
// The codec: what is compressed comes back, what saves too little stays raw, nodes shrink to little, damage
// is found or at least stays within its room.
#include "tests/unit/segment_fixture.h"

#include "blockstore/codec.h"

static size_t round_trip(
        const uint8_t *blocks, size_t size, int level, enum codec wanted, enum codec *ret_codec)
{
    uint8_t *stored = malloc(size), *back = malloc(size);
    size_t n = codec_compress(blocks, size, level, wanted, stored, ret_codec);
    assert_int_equal(
            codec_decompress(*ret_codec == CODEC_RAW ? blocks : stored, n, *ret_codec, back, size), 0);
    assert_memory_equal(back, blocks, size);
    // One byte more or less is not the same frame.
    assert_int_equal(
            codec_decompress(*ret_codec == CODEC_RAW ? blocks : stored, n - 1, *ret_codec, back, size),
            -EBADMSG);
    if (*ret_codec != CODEC_RAW && size > BLOCK_SIZE)
        assert_int_equal(codec_decompress(stored, n, *ret_codec, back, size - BLOCK_SIZE), -EBADMSG);
    free(stored);
    free(back);
    return n;
}

static void blocks_come_back(void **state)
{
    static const unsigned counts[] = {1, 2, 4, 16, 63, 64};
    static uint8_t blocks[64 * BLOCK_SIZE];
    enum codec codec;
    for (int content = RIG_TEXT; content <= RIG_NODES; content++)
        for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (int level = SEGMENT_LEVEL_SEAL; level <= SEGMENT_LEVEL_COLD; level++) {
                size_t size = counts[i] * BLOCK_SIZE;
                for (unsigned k = 0; k < counts[i]; k++)
                    rig_block((enum rig_content)content, k, blocks + (size_t)k * BLOCK_SIZE);
                size_t n = round_trip(blocks, size, level, CODEC_ZSTD, &codec);
                assert_int_equal(codec, content == RIG_NOISE ? CODEC_RAW : codec);
                assert_true(codec == CODEC_RAW ? n == size : n <= size - size / 8);
                assert_true(content != RIG_TEXT || (codec == CODEC_ZSTD && n < size / 4));
                n = round_trip(blocks, size, level, CODEC_ZSTD_NODES, &codec);
                assert_true(content != RIG_NODES || (codec == CODEC_ZSTD_NODES && n < size / 4));
            }
}

static void put_locators(uint8_t *block, const uint64_t *words)
{
    for (unsigned i = 0; i < BLOCK_SIZE; i++)
        block[i] = (uint8_t)(words[i / 8] >> (i % 8 * 8));
}

static size_t node_size(const uint64_t *words)
{
    uint8_t block[BLOCK_SIZE];
    enum codec codec;
    put_locators(block, words);
    size_t n = round_trip(block, BLOCK_SIZE, CODEC_LEVEL_NODES, CODEC_ZSTD_NODES, &codec);
    assert_int_equal(codec, CODEC_ZSTD_NODES);
    return n;
}

static void nodes_shrink(void **state)
{
    uint64_t words[512], random = 1;
    for (unsigned i = 0; i < 512; i++)
        words[i] = locator_segment(123456, 1000 + i);
    assert_true(node_size(words) < 50);
    for (unsigned i = 0; i < 512; i++) // the same, out of two segments
        words[i] = i < 200 ? words[i] : locator_segment(99, i);
    assert_true(node_size(words) < 90);
    for (unsigned change = 0; change < 30; change++) // blocks that were written anew here and there
        words[rig_random(&random) % 512] = locator_segment(200000 + change / 8, rig_random(&random) % 16384);
    assert_true(node_size(words) < 700);
    for (unsigned i = 0; i < 512; i++)
        words[i] = i % 64 == 0 ? locator_segment(7, i) : i % 3 == 0 ? LOCATOR_ZERO : LOCATOR_UNMAPPED;
    assert_true(node_size(words) < 200);
    for (unsigned i = 0; i < 512; i++) // all over the store
        words[i] = locator_segment(rig_random(&random) % 1000, rig_random(&random) % 16384);
    assert_true(node_size(words) < BLOCK_SIZE * 7 / 8);
    static const uint64_t ends[] = {0, UINT64_MAX, 1, UINT64_MAX - 1, UINT64_C(1) << 63};
    for (unsigned i = 0; i < 512; i++) // differences that wrap
        words[i] = ends[i % 5];
    node_size(words);
}

static void damage_stays_in_its_room(void **state)
{
    uint8_t blocks[4 * BLOCK_SIZE], stored[4 * BLOCK_SIZE], back[4 * BLOCK_SIZE];
    enum codec codec;
    for (unsigned k = 0; k < 4; k++)
        rig_block(RIG_TEXT, k, blocks + (size_t)k * BLOCK_SIZE);
    size_t n = codec_compress(blocks, sizeof blocks, 1, CODEC_ZSTD, stored, &codec);
    unsigned refused = 0;
    for (size_t bit = 0; bit < n * 8; bit++) {
        uint8_t *exact = malloc(n); // so that a sanitizer sees every step too far
        memcpy(exact, stored, n);
        exact[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int r = codec_decompress(exact, n, CODEC_ZSTD, back, sizeof back);
        assert_true(r == 0 || r == -EBADMSG);
        refused += r < 0;
        free(exact);
    }
    assert_true(refused > 0);
    assert_int_equal(codec_decompress(stored, 0, CODEC_ZSTD, back, sizeof back), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(blocks_come_back),
            cmocka_unit_test(nodes_shrink),
            cmocka_unit_test(damage_stays_in_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
