// SPDX-License-Identifier: Apache-2.0
// Sealing on a real ring: what was written reads the same from segments, after restarts, in forks and
// snapshots; equal blocks are stored once; log files retire; a store rewritten for ever never fills its log.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

enum { SHARDS = 2, FILE_BYTES = 1 << 20, BUDGET_FILES = 12, VOLUME_BLOCKS = 3000 };

static int setup(void **state)
{
    struct store_fixture *world = calloc(1, sizeof *world);
    const struct store_config config = {
            .log_file_bytes = FILE_BYTES, .log_budget_bytes = (uint64_t)FILE_BYTES * BUDGET_FILES};
    store_fixture_init(world, "test_checkpoint.XXXXXX", SHARDS, &config);
    world->background = SHARDS; // a loop of its own
    store_fixture_open(world);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct store_fixture *world = *state;
    store_fixture_remove(world);
    free(world);
    return 0;
}

static void good(int result, const struct error *err)
{
    if (result < 0)
        fail_msg("%s (%s)", err->text, strerror(-result));
}

static struct volume_id create(struct store_fixture *world, const char *name, struct base_id parent)
{
    struct error err = {0};
    struct txn *txn = txn_begin(world->store);
    struct volume_id id = txn_volume_create(
            txn, name, VOLUME_DISK, parent.value != 0 ? 0 : (uint64_t)VOLUME_BLOCKS * BLOCK_SIZE, parent);
    good(txn_commit_wait(txn, 0, &err), &err);
    return id;
}

static struct base_id snapshot(struct store_fixture *world, struct volume_id id, const char *name)
{
    struct error err = {0};
    struct txn *txn = txn_begin(world->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .base_count = 1, .body = "{}", .body_bytes = 2};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    doc.bases[0] = txn_freeze(txn, id);
    txn_doc_put(txn, &doc, "device state", 12);
    good(txn_commit_wait(txn, TXN_DURABLE, &err), &err);
    return doc.bases[0];
}

static void seal(struct store_fixture *world)
{
    struct error err = {0};
    good(store_seal(world->store, &err), &err);
}

static void fill_block(uint8_t *block, uint64_t seed)
{
    for (unsigned i = 0; i < BLOCK_SIZE; i += 8) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t value = seed >> 8;
        memcpy(block + i, &value, 8);
    }
}

static void write_blocks(
        struct store_fixture *world, struct volume_id id, uint64_t first, uint64_t count, uint64_t seed)
{
    struct volume *volume;
    uint8_t *bytes = io_buffer_alloc(count * BLOCK_SIZE);
    for (uint64_t i = 0; i < count; i++)
        fill_block(bytes + i * BLOCK_SIZE, seed + i);
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    assert_int_equal(volume_write_wait(volume, first * BLOCK_SIZE, bytes, count * BLOCK_SIZE, 0), 0);
    volume_close(volume);
    io_buffer_free(bytes);
}

static void expect_blocks(
        struct store_fixture *world, struct volume_id id, uint64_t first, uint64_t count, uint64_t seed)
{
    struct volume *volume;
    uint8_t *bytes = io_buffer_alloc(count * BLOCK_SIZE), block[BLOCK_SIZE];
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    assert_int_equal(volume_read_wait(volume, first * BLOCK_SIZE, bytes, count * BLOCK_SIZE), 0);
    volume_close(volume);
    for (uint64_t i = 0; i < count; i++) {
        if (seed != 0)
            fill_block(block, seed + i);
        else
            memset(block, 0, sizeof block);
        if (memcmp(bytes + i * BLOCK_SIZE, block, BLOCK_SIZE) != 0)
            fail_msg("block %lu is wrong", (unsigned long)(first + i));
    }
    io_buffer_free(bytes);
}

static void sealed_blocks_read_the_same(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id id = create(world, "a", (struct base_id){0});
    write_blocks(world, id, 10, 700, 1000);
    write_blocks(world, id, 2000, 5, 1);
    seal(world);
    expect_blocks(world, id, 0, 10, 0);
    expect_blocks(world, id, 10, 700, 1000);
    expect_blocks(world, id, 2000, 5, 1);
    write_blocks(world, id, 100, 3, 77777);
    expect_blocks(world, id, 10, 90, 1000);
    expect_blocks(world, id, 100, 3, 77777);
    expect_blocks(world, id, 103, 600, 1093);
    store_fixture_reopen(world);
    expect_blocks(world, id, 10, 90, 1000);
    expect_blocks(world, id, 100, 3, 77777);
    expect_blocks(world, id, 103, 600, 1093);
    expect_blocks(world, id, 2005, 900, 0);
    seal(world);
    store_fixture_reopen(world);
    expect_blocks(world, id, 10, 90, 1000);
    expect_blocks(world, id, 100, 3, 77777);
    expect_blocks(world, id, 103, 600, 1093);
    struct store_stat stat;
    store_stat(world->store, &stat);
    assert_true(stat.segments > 0);
    assert_int_equal(stat.background_error, 0);
}

static void equal_blocks_are_stored_once(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id a = create(world, "a", (struct base_id){0}), b = create(world, "b", (struct base_id){0});
    struct store_stat first, second;
    write_blocks(world, a, 0, 600, 5000);
    seal(world);
    store_stat(world->store, &first);
    write_blocks(world, b, 512, 600, 5000);
    seal(world);
    store_stat(world->store, &second);
    expect_blocks(world, a, 0, 600, 5000);
    expect_blocks(world, b, 512, 600, 5000);
    assert_int_equal(second.sealed_blocks, first.sealed_blocks);
    assert_int_equal(second.dedup_hits - first.dedup_hits, 600);
}

static void forks_and_snapshots_are_sealed_once(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id a = create(world, "a", (struct base_id){0});
    write_blocks(world, a, 0, 1000, 100);
    struct base_id base = snapshot(world, a, "s");
    struct volume_id forks[8];
    for (unsigned i = 0; i < 8; i++) {
        forks[i] = create(world, "", base);
        write_blocks(world, forks[i], 20 + i, 1, 900000 + i);
    }
    seal(world);
    struct store_stat stat;
    store_stat(world->store, &stat);
    assert_int_equal(stat.sealed_blocks, 1000 + 8);
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < 8; i++) {
            expect_blocks(world, forks[i], 0, 20 + i, 100);
            expect_blocks(world, forks[i], 20 + i, 1, 900000 + i);
            expect_blocks(world, forks[i], 21 + i, 900, 121 + i);
        }
        struct doc doc;
        void *bytes;
        size_t size;
        assert_int_equal(store_doc_find(world->store, DOC_SNAPSHOT, "s", &doc), 0);
        assert_int_equal(store_doc_blob(world->store, doc.id, &bytes, &size), 0);
        assert_int_equal(size, 12);
        assert_memory_equal(bytes, "device state", 12);
        io_buffer_free(bytes);
        doc_free(&doc);
        store_fixture_reopen(world);
    }
}

static void rewriting_for_ever_never_fills_the_log(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id idle = create(world, "idle", (struct base_id){0}),
                     a = create(world, "a", (struct base_id){0});
    write_blocks(world, idle, 7, 1, 4242);
    for (uint64_t i = 0; i < 300; i++)
        write_blocks(world, a, i * 37 % 2000, 200, 1000000 + i * 1000);
    expect_blocks(world, idle, 7, 1, 4242);
    expect_blocks(world, a, 299 * 37 % 2000, 200, 1000000 + 299 * 1000);
    struct store_stat stat;
    store_stat(world->store, &stat);
    assert_true(stat.log_used_bytes <= (uint64_t)FILE_BYTES * BUDGET_FILES);
    assert_true(stat.checkpoints > 0);
    store_fixture_reopen(world);
    expect_blocks(world, idle, 7, 1, 4242);
    expect_blocks(world, a, 299 * 37 % 2000, 200, 1000000 + 299 * 1000);
}

// Flips a bit in the log wherever this block lies.
static void damage(struct store_fixture *world, uint64_t seed)
{
    char command[300], path[300];
    uint8_t wanted[BLOCK_SIZE], block[BLOCK_SIZE];
    unsigned found = 0;
    fill_block(wanted, seed);
    for (unsigned number = 1; number < 40; number++) {
        snprintf(path, sizeof path, "%s/log/%08u", world->directory, number);
        int fd = open(path, O_RDWR);
        for (off_t at = 0; fd >= 0 && pread(fd, block, sizeof block, at) == sizeof block;
                at += sizeof block) {
            if (memcmp(block, wanted, sizeof block) != 0)
                continue;
            block[99] ^= 8;
            assert_int_equal(pwrite(fd, block, sizeof block, at), sizeof block);
            found++;
        }
        if (fd >= 0)
            close(fd);
    }
    assert_int_equal(found, 1);
    snprintf(command, sizeof command, "sync -f %s", world->directory);
    assert_int_equal(system(command), 0);
}

static void count_damage(void *context, const char *sentence)
{
    ++*(unsigned *)context;
}

static void a_block_damaged_in_the_log_is_lost_alone(void **state)
{
    struct store_fixture *world = *state;
    struct error err = {0};
    struct volume_id id = create(world, "a", (struct base_id){0});
    write_blocks(world, id, 10, 300, 1000);
    damage(world, 1100);
    seal(world);
    for (int round = 0; round < 2; round++) {
        struct volume *volume;
        uint8_t bytes[2 * BLOCK_SIZE];
        expect_blocks(world, id, 10, 100, 1000);
        expect_blocks(world, id, 111, 199, 1101);
        assert_int_equal(volume_open(world->store, id, &volume), 0);
        assert_int_equal(volume_read_wait(volume, 110 * BLOCK_SIZE, bytes, BLOCK_SIZE), -EBADMSG);
        assert_int_equal(volume_read_wait(volume, 109 * BLOCK_SIZE, bytes, sizeof bytes), -EBADMSG);
        volume_close(volume);
        struct store_gc_result collected;
        good(store_gc(world->store, STORE_GC_RECOMPRESS, &collected, &err), &err);
        struct store_check_result checked;
        unsigned damages = 0;
        good(store_check(world->store, count_damage, &damages, &checked, &err), &err);
        assert_in_range(damages, 1, 2); // the block, and the log's record while its file is still there
        store_fixture_reopen(world);
    }
    write_blocks(world, id, 110, 1, 5);
    seal(world);
    expect_blocks(world, id, 110, 1, 5);
    expect_blocks(world, id, 111, 199, 1101);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(sealed_blocks_read_the_same, setup, teardown),
            cmocka_unit_test_setup_teardown(equal_blocks_are_stored_once, setup, teardown),
            cmocka_unit_test_setup_teardown(forks_and_snapshots_are_sealed_once, setup, teardown),
            cmocka_unit_test_setup_teardown(a_block_damaged_in_the_log_is_lost_alone, setup, teardown),
            cmocka_unit_test_setup_teardown(rewriting_for_ever_never_fills_the_log, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
