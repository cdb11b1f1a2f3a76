// SPDX-License-Identifier: Apache-2.0
// Checking an open store: clean beside writers, and each kind of damage is told with its file and whom it
// touches.
#include "tests/unit/rich_store.h"

#include <pthread.h>
#include <stdatomic.h>

static void test_a_good_store_is_clean(void **state)
{
    struct rich *rich = *state;
    rich_expect_right(rich);
    rich_expect_clean(rich);
    rich_close(rich);
    rich_must_open(rich, false);
    rich_expect_right(rich);
    rich_expect_clean(rich);
    rich_seal(rich);
    rich_expect_clean(rich);
    rich_close(rich);
    rich_must_open(rich, true);
    rich_expect_right(rich);
    rich_expect_clean(rich);
}

// A transaction's own words lie in its record's header; the device state behind it may be beyond what was
// read at once.
static void test_device_states_are_no_damage(void **state)
{
    enum { DOCS = 12, BYTES = 1200 << 10 };
    struct rich rich = {0};
    struct rich_found found;
    struct store_config config = {.log_file_bytes = 16 << 20, .spare_log_files = 1};
    store_fixture_init(&rich.of, "/tmp/ramet-check-XXXXXX", 1, &config);
    store_fixture_open(&rich.of);
    uint8_t *blob = calloc(1, BYTES);
    for (unsigned i = 0; i < DOCS; i++) {
        struct txn *txn = txn_begin(rich.of.store);
        struct doc doc = {.kind = DOC_MACHINE, .body = (char *)"{}", .body_bytes = 2};
        snprintf(doc.name, sizeof doc.name, "machine %u", i);
        txn_doc_put(txn, &doc, blob, BYTES);
        rich_commit(txn);
    }
    free(blob);
    struct store_check_result result = rich_check(&rich, &found);
    if (result.damages != 0)
        fail_msg("check found: %s", found.text);
    assert_int_equal(result.docs, DOCS);
    assert_true(result.log_records >= DOCS);
    store_fixture_remove(&rich.of);
}

// ---- Beside writers ----

struct writer {
    struct rich *rich;
    _Atomic bool stop;
    pthread_t thread;
    _Atomic unsigned rounds;
};

static void *write_on(void *argument)
{
    struct writer *writer = argument;
    while (!atomic_load(&writer->stop)) {
        unsigned round = atomic_fetch_add(&writer->rounds, 1);
        rich_write(writer->rich, RICH_CHILD, 200 + round % 50, 5, 7000 + round);
        rich_zero(writer->rich, RICH_CHILD, 300 + round % 20, 3, round % 2 == 0);
        char name[32];
        snprintf(name, sizeof name, "round %u", round);
        rich_snapshot(writer->rich, "child", name);
        struct doc doc;
        snprintf(name, sizeof name, "round %u", round - 20);
        if (store_doc_find(writer->rich->of.store, DOC_SNAPSHOT, name, &doc) < 0)
            continue;
        struct txn *txn = txn_begin(writer->rich->of.store);
        txn_doc_delete(txn, doc.id);
        rich_commit(txn);
        doc_free(&doc);
    }
    return NULL;
}

static void test_writers_go_on(void **state)
{
    struct rich *rich = *state;
    struct writer writer = {.rich = rich};
    struct rich_found found;
    assert_int_equal(pthread_create(&writer.thread, NULL, write_on, &writer), 0);
    for (unsigned i = 0; i < 20 || atomic_load(&writer.rounds) < 2; i++) {
        struct store_check_result result = rich_check(rich, &found);
        if (result.damages + result.leftovers != 0)
            fail_msg("check %u found: %s", i, found.text);
        if (i % 5 == 4)
            rich_seal(rich);
    }
    atomic_store(&writer.stop, true);
    pthread_join(writer.thread, NULL);
    rich_expect_right(rich);
}

// ---- Damage ----

// The one damage that check finds, in words.
static void expect_damage(struct rich *rich, const char *file, const char *touched)
{
    struct rich_found found;
    struct store_check_result result = rich_check(rich, &found);
    if (result.damages == 0 || strstr(found.text, file) == NULL || strstr(found.text, touched) == NULL)
        fail_msg("%u damages: %s; expected %s and %s", (unsigned)result.damages, found.text, file, touched);
}

static void test_damaged_log_block(void **state)
{
    struct rich *rich = *state;
    char path[600];
    uint8_t block[BLOCK_SIZE], want[BLOCK_SIZE];
    rich_file(rich, "log", true, path, sizeof path);
    int fd = open(path, O_RDONLY);
    rich_block(6001, want); // of disk, not sealed
    off_t at = 0;
    while (pread(fd, block, sizeof block, at) == BLOCK_SIZE && memcmp(block, want, sizeof block) != 0)
        at += BLOCK_SIZE;
    close(fd);
    assert_memory_equal(block, want, sizeof block);
    rich_flip(path, (uint64_t)at + 77, 1);
    char bytes[64];
    snprintf(bytes, sizeof bytes, "bytes %llu to", (unsigned long long)at);
    expect_damage(rich, bytes, "volume \"disk\"");
    struct rich_reads reads = rich_compare(rich);
    assert_int_equal(reads.wrong, 0);
    assert_int_equal(reads.failed, 1);
    rich_write(rich, RICH_DISK, 31, 1, 9000); // nobody refers to it any more
    expect_damage(rich, bytes, "nothing that exists refers to it");
    rich_flip(path, (uint64_t)at + 77, 1);
    rich_expect_clean(rich);
}

static void test_damaged_segments(void **state)
{
    struct rich *rich = *state;
    char path[600];
    // One of data and one of nodes, with a cold start: what is in memory is no evidence.
    for (unsigned last = 0; last < 2; last++) {
        rich_file(rich, "segments", last, path, sizeof path);
        rich_close(rich);
        rich_flip(path, 4096 + 20, 4);
        rich_must_open(rich, false);
        struct rich_found found;
        struct store_check_result result = rich_check(rich, &found);
        assert_true(result.damages > 0);
        assert_non_null(strstr(found.text, strrchr(path, '/')));
        if (strstr(found.text, "it touches") == NULL)
            fail_msg("%s", found.text);
        struct rich_reads reads = rich_compare(rich);
        assert_int_equal(reads.wrong, 0);
        assert_true(reads.failed > 0);
        rich_flip(path, 4096 + 20, 4);
        rich_close(rich);
        rich_must_open(rich, false);
        rich_expect_clean(rich);
        rich_expect_right(rich);
    }
}

static void test_missing_segment(void **state)
{
    struct rich *rich = *state;
    char path[600], away[600];
    rich_file(rich, "segments", false, path, sizeof path);
    rich_close(rich);
    snprintf(away, sizeof away, "%s/away", rich->of.directory);
    assert_int_equal(rename(path, away), 0);
    rich_must_open(rich, false);
    expect_damage(rich, "it is missing", "snapshot \"one\"");
    assert_int_equal(rich_compare(rich).wrong, 0);
    rich_close(rich);
    assert_int_equal(rename(away, path), 0);
    rich_must_open(rich, true);
    rich_expect_clean(rich);
}

static void test_superblock_copy(void **state)
{
    struct rich *rich = *state;
    char path[600];
    snprintf(path, sizeof path, "%s/superblock", rich->of.directory);
    rich_flip(path, 4096 + 80, 128);
    expect_damage(rich, "superblock: copy 2 (bytes 4096 to 8191) is damaged", "");
    rich_close(rich);
    rich_must_open(rich, false); // the other is enough
    rich_flip(path, 4096 + 80, 128);
    rich_expect_clean(rich);
}

static void test_strange_files_are_told(void **state)
{
    struct rich *rich = *state;
    struct rich_found found;
    char path[600];
    rich_file(rich, "segments", true, path, sizeof path);
    rich_run("cp %s %s/segments/00000900.1", path, rich->of.directory);
    rich_file(rich, "log", true, path, sizeof path);
    rich_run("cp %s %s/log/00000900", path, rich->of.directory);
    struct store_check_result result = rich_check(rich, &found);
    assert_int_equal(result.damages, 0);
    assert_int_equal(result.leftovers, 2);
    assert_non_null(strstr(found.text, "segments/00000900.1: no damage"));
    assert_non_null(strstr(found.text, "log/00000900: no damage"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_device_states_are_no_damage),
            cmocka_unit_test_setup_teardown(test_writers_go_on, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_damaged_log_block, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_damaged_segments, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_missing_segment, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_superblock_copy, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_strange_files_are_told, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_a_good_store_is_clean, rich_setup, rich_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
