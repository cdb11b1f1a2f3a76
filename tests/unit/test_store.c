// SPDX-License-Identifier: Apache-2.0
// The engine on real files and real loops: what is written is read, forks are apart, and a reopened store is
// the same.
#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SHARDS = 3, FILE_BYTES = 1 << 20, BUDGET_FILES = 12 };

static int setup(void **state)
{
    struct store_fixture *world = calloc(1, sizeof *world);
    const struct store_config config = {
            .log_file_bytes = FILE_BYTES, .log_budget_bytes = (uint64_t)FILE_BYTES * BUDGET_FILES};
    store_fixture_init(world, "test_store.XXXXXX", SHARDS, &config);
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

static struct volume_id create(
        struct store_fixture *world, const char *name, uint64_t size, struct base_id parent)
{
    struct error err = {0};
    struct txn *txn = txn_begin(world->store);
    struct volume_id id = txn_volume_create(txn, name, VOLUME_DISK, size, parent);
    int r = txn_commit_wait(txn, 0, &err);
    if (r < 0)
        fail_msg("create %s: %s", name, err.text);
    return id;
}

static void pattern(uint8_t *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 9));
}

static void expect(struct volume *volume, uint64_t offset, size_t size, unsigned seed)
{
    uint8_t *want = malloc(size), *got = malloc(size);
    pattern(want, size, seed);
    assert_int_equal(volume_read_wait(volume, offset, got, size), 0);
    assert_memory_equal(want, got, size);
    free(want);
    free(got);
}

static void put(struct volume *volume, uint64_t offset, size_t size, unsigned seed)
{
    uint8_t *bytes = malloc(size);
    pattern(bytes, size, seed);
    assert_int_equal(volume_write_wait(volume, offset, bytes, size, 0), 0);
    free(bytes);
}

static void expect_zero(struct volume *volume, uint64_t offset, size_t size)
{
    uint8_t *got = malloc(size);
    memset(got, 1, size);
    assert_int_equal(volume_read_wait(volume, offset, got, size), 0);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(got[i], 0);
    free(got);
}

static void test_written_is_read(void **state)
{
    struct store_fixture *world = *state;
    struct volume *volume;
    assert_int_equal(
            volume_open(world->store, create(world, "a", 10 << 20, (struct base_id){0}), &volume), 0);
    expect_zero(volume, 0, 4096);
    put(volume, 0, 4096, 1);
    put(volume, 5 << 20, 700000, 2);     // unaligned length, several records
    put(volume, (1 << 20) + 100, 50, 3); // within a block
    put(volume, (2 << 20) - 10, 20, 4);  // over a block's edge
    expect(volume, 0, 4096, 1);
    expect(volume, 5 << 20, 700000, 2);
    expect(volume, (1 << 20) + 100, 50, 3);
    expect_zero(volume, 1 << 20, 100);
    expect_zero(volume, (1 << 20) + 150, 100);
    expect(volume, (2 << 20) - 10, 20, 4);
    assert_int_equal(volume_zero_wait(volume, (5 << 20) + 10, 9000, false, VOLUME_FUA), 0);
    expect_zero(volume, (5 << 20) + 10, 9000);
    expect(volume, 5 << 20, 10, 2);
    volume_close(volume);
    store_fixture_reopen(world);
    struct volume_info info;
    assert_int_equal(store_volume_find(world->store, "a", &info), 0);
    assert_int_equal(volume_open(world->store, info.id, &volume), 0);
    expect(volume, 0, 4096, 1);
    expect(volume, (1 << 20) + 100, 50, 3);
    expect_zero(volume, (5 << 20) + 10, 9000);
    volume_close(volume);
}

static struct base_id freeze(struct store_fixture *world, struct volume_id id, const char *name)
{
    struct error err = {0};
    struct txn *txn = txn_begin(world->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .base_count = 1, .body = "{}", .body_bytes = 2};
    strcpy(doc.name, name);
    struct base_id base = doc.bases[0] = txn_freeze(txn, id);
    static const char blob[] = "device state";
    txn_doc_put(txn, &doc, blob, sizeof blob);
    int r = txn_commit_wait(txn, TXN_DURABLE, &err);
    if (r < 0)
        fail_msg("freeze: %s", err.text);
    return base;
}

static void test_forks_are_apart(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id parent = create(world, "parent", 64 << 20, (struct base_id){0});
    struct volume *volume, *child;
    struct base *base;
    assert_int_equal(volume_open(world->store, parent, &volume), 0);
    put(volume, 0, 8192, 1);
    put(volume, 40 << 20, 4096, 2);
    struct base_id snapshot = freeze(world, parent, "s1");
    assert_int_equal(volume_open(world->store, create(world, "child", 0, snapshot), &child), 0);
    put(volume, 0, 4096, 3);
    put(child, 4096, 4096, 4);
    expect(volume, 0, 4096, 3);
    expect(child, 4096, 4096, 4);
    for (int pass = 0; pass < 2; pass++) {
        uint8_t bytes[4096], want[8192];
        pattern(want, sizeof want, 1);
        assert_int_equal(base_open(world->store, snapshot, &base), 0);
        assert_int_equal(base_read_wait(base, 4096, bytes, sizeof bytes), 0);
        assert_memory_equal(bytes, want + 4096, sizeof bytes);
        assert_int_equal(volume_read_wait(child, 0, bytes, sizeof bytes), 0);
        assert_memory_equal(bytes, want, sizeof bytes);
        expect(volume, 40 << 20, 4096, 2);
        base_close(base);
        volume_close(volume);
        volume_close(child);
        store_fixture_reopen(world);
        struct volume_info info;
        struct doc doc;
        assert_int_equal(store_volume_find(world->store, "child", &info), 0);
        assert_int_equal(volume_open(world->store, info.id, &child), 0);
        assert_int_equal(volume_open(world->store, parent, &volume), 0);
        assert_int_equal(store_doc_find(world->store, DOC_SNAPSHOT, "s1", &doc), 0);
        void *blob;
        size_t size;
        assert_int_equal(store_doc_blob(world->store, doc.id, &blob, &size), 0);
        assert_string_equal(blob, "device state");
        free(blob);
        doc_free(&doc);
    }
    volume_close(volume);
    volume_close(child);
}

// Writes many times the budget over the same range: files must retire and be recycled, and nothing may be
// lost.
static void test_log_files_are_recycled(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id id = create(world, "r", 2 << 20, (struct base_id){0});
    struct volume *volume;
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    for (unsigned round = 0; round < 40; round++)
        put(volume, 0, 2 << 20, round);
    expect(volume, 0, 2 << 20, 39);
    struct store_stat stat;
    store_stat(world->store, &stat);
    assert_true(stat.log_used_bytes + stat.log_spare_bytes <= (uint64_t)FILE_BYTES * BUDGET_FILES);
    volume_close(volume);
    store_fixture_reopen(world);
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    expect(volume, 0, 2 << 20, 39);
    volume_close(volume);
}

static void test_more_than_the_log_holds(void **state)
{
    struct store_fixture *world = *state;
    struct volume_id id = create(world, "f", 32 << 20, (struct base_id){0});
    struct volume *volume;
    uint8_t *bytes = calloc(1, 1 << 20);
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    for (unsigned i = 0; i < 32; i++) {
        pattern(bytes, 1 << 20, i);
        assert_int_equal(volume_write_wait(volume, (uint64_t)i << 20, bytes, 1 << 20, 0), 0);
    }
    for (unsigned i = 0; i < 32; i++)
        expect(volume, (uint64_t)i << 20, 1 << 20, i);
    volume_close(volume);
    free(bytes);
}

static void test_bad_requests_have_words(void **state)
{
    struct store_fixture *world = *state;
    struct volume *volume;
    struct error err = {0};
    struct volume_id id = create(world, "x", 1000001, (struct base_id){0});
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    uint8_t byte = 0;
    assert_int_equal(volume_read_wait(volume, 1000001, &byte, 1), -EINVAL);
    assert_int_equal(volume_write_wait(volume, UINT64_MAX, &byte, 1, 0), -EINVAL);
    assert_int_equal(volume_write_wait(volume, 1000000, &byte, 1, 0), 0);
    struct txn *txn = txn_begin(world->store);
    txn_volume_create(txn, "x", VOLUME_DISK, 4096, (struct base_id){0});
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EEXIST);
    assert_non_null(strstr(err.text, "\"x\""));
    txn = txn_begin(world->store);
    txn_volume_delete(txn, id);
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EBUSY);
    txn = txn_begin(world->store);
    txn_volume_create(txn, "y", VOLUME_DISK, 0, (struct base_id){0});
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EINVAL);
    txn = txn_begin(world->store);
    txn_volume_create(txn, "y", VOLUME_DISK, 0, (struct base_id){4711});
    assert_int_equal(txn_commit_wait(txn, 0, &err), -ENOENT);
    volume_close(volume);
    struct store *second;
    struct loop *loop;
    assert_int_equal(io_ring_loop_create(0, 16, &loop), 0);
    assert_int_equal(store_open(&loop, 1, world->directory, NULL, &second, &err), -EBUSY);
    io_ring_loop_destroy(loop);
}

static void test_resize(void **state)
{
    struct store_fixture *world = *state;
    struct volume *volume;
    struct error err = {0};
    struct volume_id id = create(world, "z", 1 << 20, (struct base_id){0});
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    put(volume, 0, 1 << 20, 1);
    uint64_t sizes[] = {100001, UINT64_C(1) << 41, 8192, 1 << 21};
    for (unsigned i = 0; i < 4; i++) {
        struct txn *txn = txn_begin(world->store);
        txn_volume_resize(txn, id, sizes[i]);
        assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
        assert_int_equal(volume_size_bytes(volume), sizes[i]);
    }
    expect(volume, 0, 8192, 1);
    expect_zero(volume, 8192, (1 << 21) - 8192);
    volume_close(volume);
}

// Flips one bit in the header of the last WRITE record of the first log file.
static void damage_last_write(const char *directory)
{
    char path[128];
    uint8_t header[4096];
    long found = -1;
    snprintf(path, sizeof path, "%s/log/00000001", directory);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    for (long at = 0; fread(header, sizeof header, 1, file) == 1; at += (long)sizeof header)
        if (memcmp(header, "RLR1\1\0", 6) == 0)
            found = at;
    assert_true(found > 0);
    assert_int_equal(fseek(file, found + 100, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, found + 100, SEEK_SET), 0);
    fputc(byte ^ 4, file);
    fclose(file);
}

// After a clean close nothing may be taken for a torn end: damage is named, and nothing is dropped.
static void test_damage_is_no_end(void **state)
{
    struct store_fixture *world = *state;
    struct volume *volume;
    struct error err = {0};
    struct volume_id id = create(world, "d", 1 << 20, (struct base_id){0});
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    put(volume, 0, 4096, 1);
    put(volume, 4096, 4096, 2);
    volume_close(volume);
    store_fixture_close(world);
    damage_last_write(world->directory);
    struct loop *loop;
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    struct store *store;
    assert_int_equal(store_open(&loop, 1, world->directory, NULL, &store, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "log/00000001 is damaged at byte"));
    io_ring_loop_destroy(loop);
    damage_last_write(world->directory); // flips it back
    store_fixture_open(world);
    assert_int_equal(volume_open(world->store, id, &volume), 0);
    expect(volume, 4096, 4096, 2);
    volume_close(volume);
}

static struct doc_id put_doc(struct txn *txn, struct doc_id id, const char *name)
{
    struct doc doc = {.id = id, .kind = DOC_SANDBOX};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    return txn_doc_put(txn, &doc, NULL, 0);
}

static void expect_named(struct store_fixture *world, const char *name, struct doc_id id)
{
    struct doc doc = {0};
    assert_int_equal(store_doc_find(world->store, DOC_SANDBOX, name, &doc), 0);
    assert_int_equal(doc.id.value, id.value);
    doc_free(&doc);
}

// Two docs swap names in one transaction, one going nameless meanwhile; without that the second is refused.
static void test_docs_swap_names(void **state)
{
    struct store_fixture *world = *state;
    struct error err = {0};
    struct txn *txn = txn_begin(world->store);
    struct doc_id a = put_doc(txn, (struct doc_id){0}, "a"), b = put_doc(txn, (struct doc_id){0}, "b");
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
    txn = txn_begin(world->store);
    put_doc(txn, a, "b");
    put_doc(txn, b, "a");
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EEXIST);
    expect_named(world, "a", a);
    txn = txn_begin(world->store);
    put_doc(txn, a, "");
    put_doc(txn, b, "a");
    put_doc(txn, a, "b");
    assert_int_equal(txn_commit_wait(txn, TXN_DURABLE, &err), 0);
    for (int again = 0; again < 2; again++) {
        expect_named(world, "a", b);
        expect_named(world, "b", a);
        store_fixture_reopen(world);
    }
    txn = txn_begin(world->store);
    put_doc(txn, a, "c");
    put_doc(txn, a, "b"); // it had the name back by then
    put_doc(txn, b, "b");
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EEXIST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_written_is_read, setup, teardown),
            cmocka_unit_test_setup_teardown(test_forks_are_apart, setup, teardown),
            cmocka_unit_test_setup_teardown(test_log_files_are_recycled, setup, teardown),
            cmocka_unit_test_setup_teardown(test_more_than_the_log_holds, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bad_requests_have_words, setup, teardown),
            cmocka_unit_test_setup_teardown(test_resize, setup, teardown),
            cmocka_unit_test_setup_teardown(test_damage_is_no_end, setup, teardown),
            cmocka_unit_test_setup_teardown(test_docs_swap_names, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
