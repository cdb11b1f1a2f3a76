// SPDX-License-Identifier: Apache-2.0
// What is no whole archive is refused, with the byte where it fails, and leaves nothing behind.
#include "snapshot/archive_format.h"
#include "tests/unit/archive_fixture.h"

#include <errno.h>

static void small_archive(struct world *world, struct memory *memory)
{
    struct store *store = world->from.store;
    struct volume_id volume = create(store, "v", VOLUME_DISK, 40000, (struct base_id){0});
    put(store, volume, 0, 5000, 1);
    zero(store, volume, 20480, 4096, false);
    struct doc_id docs[2];
    docs[0] = freeze(store, DOC_SNAPSHOT, "one", &volume, 1, NULL, 0);
    put(store, volume, 100, 10, 2);
    docs[1] = freeze(store, DOC_MACHINE, "two", &volume, 1, "state", 5);
    export_docs(store, docs, 2, memory);
}

static void refused(struct world *world, struct memory *memory, bool into_store, int code, const char *words)
{
    struct error err = {0};
    struct archive_result result;
    memory->at = 0;
    int r = into_store ? import(&world->to, memory, &err)
                       : archive_verify(memory_read, memory, &result, &err);
    if (r != code)
        fail_msg("%d, not %d: %s", r, code, err.text);
    if (strstr(err.text, words) == NULL || strstr(err.text, "byte") == NULL)
        fail_msg("\"%s\" is not in: %s", words, err.text);
    if (into_store)
        expect_counts(world->to.store, 0, 0, 0);
}

static void test_truncated_extended_and_flipped(void **state)
{
    struct world *world = *state;
    struct memory memory = {0};
    struct error err = {0};
    small_archive(world, &memory);
    size_t whole = memory.size;
    for (size_t cut = 0; cut < whole; cut++) {
        memory.size = cut;
        refused(world, &memory, cut % 97 == 0 || cut + 100 > whole, -EBADMSG, "cut off");
    }
    memory.size = whole;
    for (size_t at = 0; at < whole; at++) {
        memory.bytes[at] ^= (uint8_t)(1 << at % 8);
        refused(world, &memory, at % 97 == 0, at < ARCHIVE_MAGIC_BYTES ? -EINVAL : -EBADMSG,
                at < ARCHIVE_MAGIC_BYTES ? "no archive" : "damaged");
        memory.bytes[at] ^= (uint8_t)(1 << at % 8);
    }
    memory_write(&memory, "", 1);
    refused(world, &memory, true, -EBADMSG, "goes on behind its end");
    memory.size = whole;
    struct memory twice = {0};
    memory_write(&twice, memory.bytes, whole);
    memory_write(&twice, memory.bytes, whole);
    refused(world, &twice, true, -EBADMSG, "goes on behind its end");
    if (import(&world->to, &memory, &err) < 0) // it was the same all the time
        fail_msg("%s", err.text);
    free(memory.bytes);
    free(twice.bytes);
}

static void test_records_out_of_place(void **state)
{
    struct world *world = *state;
    struct memory memory = {0}, other = {0};
    small_archive(world, &memory);
    // Where the records are.
    size_t starts[64], count = 0;
    for (size_t at = ARCHIVE_HEADER_BYTES; at < memory.size; count++) {
        uint8_t *head = memory.bytes + at;
        starts[count] = at;
        at += ARCHIVE_HEAD_BYTES + ((size_t)head[12] | (size_t)head[13] << 8 | (size_t)head[14] << 16);
    }
    assert_in_range(count, 8, 60);
    starts[count] = memory.size;
    for (size_t i = 0; i < count; i++) { // one missing, one doubled
        other.size = 0;
        memory_write(&other, memory.bytes, starts[i]);
        memory_write(&other, memory.bytes + starts[i + 1], memory.size - starts[i + 1]);
        refused(world, &other, true, -EBADMSG, i + 1 == count ? "cut off" : "damaged");
        other.size = 0;
        memory_write(&other, memory.bytes, starts[i + 1]);
        memory_write(&other, memory.bytes + starts[i], memory.size - starts[i]);
        refused(world, &other, true, -EBADMSG, i + 1 == count ? "goes on" : "damaged");
    }
    free(memory.bytes);
    free(other.bytes);
}

static void test_foreign_and_newer(void **state)
{
    struct world *world = *state;
    struct memory memory = {0}, foreign = {0};
    small_archive(world, &memory);
    uint8_t kept[ARCHIVE_HEADER_BYTES];
    struct archive_header header;
    struct error err = {0};
    memcpy(kept, memory.bytes, sizeof kept);
    assert_int_equal(archive_format_header_decode(kept, &header, &err), 0);
    struct archive_header newer = header;
    newer.version = 2;
    archive_format_header_encode(&newer, memory.bytes);
    refused(world, &memory, true, -EPROTO, "version 2");
    newer = header;
    newer.must_features = 1 << 5;
    archive_format_header_encode(&newer, memory.bytes);
    refused(world, &memory, true, -EPROTO, "bits 20");
    newer = header;
    newer.contents_bytes = UINT64_C(1) << 60;
    archive_format_header_encode(&newer, memory.bytes);
    refused(world, &memory, true, -EBADMSG, "table of contents");
    static const char qcow2[] = "QFI\xfb\0\0\0\3 and so on";
    memory_write(&foreign, qcow2, sizeof qcow2);
    refused(world, &foreign, true, -EINVAL, "no archive");
    memcpy(memory.bytes, kept, sizeof kept);
    if (import(&world->to, &memory, &err) < 0)
        fail_msg("%s", err.text);
    free(memory.bytes);
    free(foreign.bytes);
}

struct broken {
    struct memory memory;
    size_t fails_at;
    int with;
};

static ssize_t broken_read(void *context, void *buffer, size_t capacity)
{
    struct broken *broken = context;
    if (broken->memory.at >= broken->fails_at)
        return broken->with;
    return memory_read(&broken->memory, buffer, 1);
}

static int broken_write(void *context, const void *bytes, size_t size)
{
    struct broken *broken = context;
    return broken->memory.size + size > broken->fails_at ? broken->with
                                                         : memory_write(&broken->memory, bytes, size);
}

static void test_streams_that_break(void **state)
{
    struct world *world = *state;
    struct broken broken = {.with = -ECONNRESET};
    struct archive_import_config config = {.read = broken_read, .context = &broken};
    struct archive_result result;
    struct error err = {0};
    small_archive(world, &broken.memory);
    for (broken.fails_at = 0; broken.fails_at < broken.memory.size; broken.fails_at += 101) {
        broken.memory.at = 0;
        assert_int_equal(archive_import(world->to.store, &config, &result, &err), -ECONNRESET);
        expect_counts(world->to.store, 0, 0, 0);
    }
    struct archive_root root = {.doc.value = 0};
    struct doc doc = {0};
    assert_int_equal(store_doc_find(world->from.store, DOC_SNAPSHOT, "one", &doc), 0);
    root.doc = doc.id;
    for (broken.fails_at = 0; broken.fails_at < 5000; broken.fails_at += 101) {
        broken.memory.size = 0;
        broken.with = -EPIPE;
        assert_int_equal(
                archive_export(world->from.store, &root, 1, broken_write, &broken, &result, &err), -EPIPE);
        assert_non_null(strstr(err.text, "byte"));
    }
    doc_free(&doc);
    free(broken.memory.bytes);
}

static void test_a_full_store_is_left_as_it_was(void **state)
{
    struct world *world = *state;
    struct memory memory = {0};
    struct error err = {0};
    struct volume_id a = create(world->from.store, "a", VOLUME_DISK, 16 << 20, (struct base_id){0});
    put(world->from.store, a, 0, 10 << 20, 1);
    struct doc_id doc = freeze(world->from.store, DOC_SNAPSHOT, "a", &a, 1, NULL, 0);
    export_docs(world->from.store, &doc, 1, &memory);
    world->to.config.quota_bytes = 8 << 20;
    store_fixture_reopen(&world->to);
    int r = import(&world->to, &memory, &err);
    assert_int_equal(r, -ENOSPC);
    assert_non_null(strstr(err.text, "full"));
    expect_counts(world->to.store, 0, 0, 0);
    free(memory.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_truncated_extended_and_flipped, setup, teardown),
            cmocka_unit_test_setup_teardown(test_records_out_of_place, setup, teardown),
            cmocka_unit_test_setup_teardown(test_foreign_and_newer, setup, teardown),
            cmocka_unit_test_setup_teardown(test_streams_that_break, setup, teardown),
            cmocka_unit_test_setup_teardown(test_a_full_store_is_left_as_it_was, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
