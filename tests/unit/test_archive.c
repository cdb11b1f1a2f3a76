// SPDX-License-Identifier: Apache-2.0
// Archives: what goes out of one store comes into another as it was, related as it was.
#include "tests/unit/archive_fixture.h"

#include <errno.h>

enum { ODD_BYTES = 1000001, MEMORY_BYTES = 4 << 20, BLOB_BYTES = 400000 };

static struct base_id base_of(struct store *store, enum doc_kind kind, const char *name, unsigned index)
{
    struct doc doc = {0};
    assert_int_equal(store_doc_find(store, kind, name, &doc), 0);
    struct base_id id = doc.bases[index];
    doc_free(&doc);
    return id;
}

struct extents {
    uint64_t data, zero, unmapped;
};

static bool count_extent(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct extents *extents = context;
    *(kind == EXTENT_DATA         ? &extents->data
            : kind == EXTENT_ZERO ? &extents->zero
                                  : &extents->unmapped) += length;
    return true;
}

// The same bytes, and the same kinds of nothing.
static void expect_same(struct world *world, struct base_id a, struct base_id b)
{
    enum { PART = 1 << 16 };
    static uint8_t x[PART], y[PART];
    struct base *left, *right;
    struct extents left_extents = {0}, right_extents = {0};
    assert_int_equal(base_open(world->from.store, a, &left), 0);
    assert_int_equal(base_open(world->to.store, b, &right), 0);
    uint64_t size = base_size_bytes(left);
    assert_int_equal(size, base_size_bytes(right));
    for (uint64_t at = 0; at < size && size < 1 << 30; at += PART) {
        size_t part = size - at < PART ? (size_t)(size - at) : PART;
        assert_int_equal(base_read_wait(left, at, x, part), 0);
        assert_int_equal(base_read_wait(right, at, y, part), 0);
        assert_memory_equal(x, y, part);
    }
    assert_int_equal(base_extents_wait(left, 0, size, count_extent, &left_extents), 0);
    assert_int_equal(base_extents_wait(right, 0, size, count_extent, &right_extents), 0);
    assert_memory_equal(&left_extents, &right_extents, sizeof left_extents);
    base_close(left);
    base_close(right);
}

// A volume of an odd size with two snapshots, a machine of that disk and a memory, and a fork of it.
struct content {
    struct doc_id first, second, machine, child;
    uint8_t blob[BLOB_BYTES];
};

static void fill(struct store *store, struct content *content)
{
    struct volume_id disk = create(store, "disk", VOLUME_DISK, ODD_BYTES, (struct base_id){0});
    struct volume_id memory = create(store, "", VOLUME_MEMORY, MEMORY_BYTES, (struct base_id){0});
    put(store, disk, 0, 400000, 1);
    put(store, disk, ODD_BYTES - 7, 7, 2);
    zero(store, disk, 499712, 98304, false);
    content->first = freeze(store, DOC_SNAPSHOT, "first", &disk, 1, NULL, 0);
    put(store, disk, 8192, 5000, 3);
    zero(store, disk, 98304, 49152, true);
    content->second = freeze(store, DOC_SNAPSHOT, "second", &disk, 1, NULL, 0);
    put(store, memory, 1 << 20, 2 << 20, 4);
    pattern(content->blob, BLOB_BYTES, 5);
    content->machine = freeze(
            store, DOC_MACHINE, "machine", (struct volume_id[]){memory, disk}, 2, content->blob, BLOB_BYTES);
    struct volume_id child =
            create(store, "", VOLUME_MEMORY, MEMORY_BYTES, base_of(store, DOC_MACHINE, "machine", 0));
    put(store, child, 0, 12288, 6);
    zero(store, child, 1 << 20, 1 << 20, true);
    content->child =
            freeze(store, DOC_MACHINE, "child", (struct volume_id[]){child, disk}, 2, content->blob, 1000);
}

static void export_all(struct store *store, struct content *content, struct memory *memory)
{
    export_docs(store, (struct doc_id[]){content->first, content->second, content->machine, content->child},
            4, memory);
}

static void expect_doc(struct world *world, enum doc_kind kind, const char *name)
{
    struct doc left = {0}, right = {0};
    assert_int_equal(store_doc_find(world->from.store, kind, name, &left), 0);
    assert_int_equal(store_doc_find(world->to.store, kind, name, &right), 0);
    assert_string_equal(left.body, right.body);
    assert_int_equal(left.base_count, right.base_count);
    assert_int_equal(left.blob_bytes, right.blob_bytes);
    for (unsigned i = 0; i < left.base_count; i++)
        expect_same(world, left.bases[i], right.bases[i]);
    if (left.blob_bytes > 0) {
        void *a, *b;
        size_t size_a, size_b;
        assert_int_equal(store_doc_blob(world->from.store, left.id, &a, &size_a), 0);
        assert_int_equal(store_doc_blob(world->to.store, right.id, &b, &size_b), 0);
        assert_int_equal(size_a, size_b);
        assert_memory_equal(a, b, size_a);
        free(a);
        free(b);
    }
    doc_free(&left);
    doc_free(&right);
}

static void test_everything_comes_back_related(void **state)
{
    struct world *world = *state;
    static struct content content;
    struct memory memory = {.step = 1000};
    struct error err = {0};
    fill(world->from.store, &content);
    export_all(world->from.store, &content, &memory);
    // What is shared is there once: disk, its changes, memory, its changes, two blobs.
    assert_in_range(memory.size, 400000 + (2 << 20) + BLOB_BYTES, 400000 + (2 << 20) + BLOB_BYTES + 150000);
    if (import(&world->to, &memory, &err) < 0)
        fail_msg("import: %s", err.text);
    expect_counts(world->to.store, 0, 6, 4);
    store_fixture_reopen(&world->to); // durable, and the same after a recovery
    expect_counts(world->to.store, 0, 6, 4);
    expect_doc(world, DOC_SNAPSHOT, "first");
    expect_doc(world, DOC_SNAPSHOT, "second");
    expect_doc(world, DOC_MACHINE, "machine");
    expect_doc(world, DOC_MACHINE, "child");
    struct base_info info;
    assert_int_equal(
            store_base_get(world->to.store, base_of(world->to.store, DOC_MACHINE, "child", 0), &info), 0);
    assert_int_equal(info.parent.value, base_of(world->to.store, DOC_MACHINE, "machine", 0).value);
    free(memory.bytes);
}

static int rename_it(void *context, enum doc_kind doc, char name[STORE_NAME_MAX + 1], struct error *err)
{
    strcat(name, doc == 0 ? "-volume" : "-doc");
    return 0;
}

static int count_bases(void *context, const struct doc *doc, const struct archive_base_map *bases,
        unsigned count, char **ret_body, size_t *ret_body_bytes, struct error *err)
{
    unsigned long long old = strtoull(strchr(doc->body, ':') + 1, NULL, 10), now = 0;
    for (unsigned i = 0; i < count; i++)
        if (bases[i].old.value == old)
            now = bases[i].now.value;
    assert_int_not_equal(now, 0);
    *ret_body_bytes = (size_t)asprintf(ret_body, "{\"first\":%llu}", now);
    return 0;
}

static void test_volumes_names_and_bodies(void **state)
{
    struct world *world = *state;
    struct store *store = world->from.store;
    struct memory memory = {0};
    struct error err = {0};
    struct volume_id volume = create(store, "v", VOLUME_DISK, ODD_BYTES, (struct base_id){0});
    put(store, volume, 0, 9000, 1);
    struct doc_id snapshot = freeze(store, DOC_SNAPSHOT, "s", &volume, 1, NULL, 0);
    put(store, volume, 4096, 100, 2);
    struct doc doc = passing_doc();
    struct txn *txn = txn_begin(store);
    doc.bases[doc.base_count++] = txn_freeze(txn, volume);
    txn_doc_put(txn, &doc, NULL, 0);
    commit(txn);
    struct archive_root roots[] = {{.volume_name = "v", .base = doc.bases[0]}, {.doc = snapshot}};
    struct archive_result result;
    assert_int_equal(archive_export(store, roots, 2, memory_write, &memory, &result, &err), 0);
    assert_int_equal(result.volumes, 1);
    assert_int_equal(result.bases, 1);
    struct archive_import_config config = {.read = memory_read,
            .context = &memory,
            .domain = 7,
            .choose_name = rename_it,
            .change_body = count_bases};
    if (archive_import(world->to.store, &config, &result, &err) < 0)
        fail_msg("import: %s", err.text);
    struct volume_info info;
    assert_int_equal(store_volume_find(world->to.store, "v-volume", &info), 0);
    assert_int_equal(info.size_bytes, ODD_BYTES);
    assert_int_equal(info.domain, 7);
    expect_same(
            world, base_of(store, DOC_SNAPSHOT, "s", 0), base_of(world->to.store, DOC_SNAPSHOT, "s-doc", 0));
    struct doc imported = {0};
    assert_int_equal(store_doc_find(world->to.store, DOC_SNAPSHOT, "s-doc", &imported), 0);
    assert_int_equal(strtoull(strchr(imported.body, ':') + 1, NULL, 10), imported.bases[0].value);
    doc_free(&imported);
    expect_counts(world->to.store, 1, 1, 1);
    uint8_t want[9000], got[9000];
    struct volume *open;
    pattern(want, sizeof want, 1);
    pattern(want + 4096, 100, 2);
    assert_int_equal(volume_open(world->to.store, info.id, &open), 0);
    assert_int_equal(volume_read_wait(open, 0, got, sizeof got), 0);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(volume_write_wait(open, 0, want, 512, 0), 0); // it is a volume
    volume_close(open);
    // Once more: its names are taken now.
    memory.at = 0;
    assert_int_equal(archive_import(world->to.store, &config, &result, &err), -EEXIST);
    expect_counts(world->to.store, 1, 1, 1);
    free(memory.bytes);
}

static void test_huge_and_empty_costs_nothing(void **state)
{
    struct world *world = *state;
    struct memory memory = {0};
    struct error err = {0};
    struct store *store = world->from.store;
    struct volume_id volume = create(store, "huge", VOLUME_DISK, UINT64_C(16) << 40, (struct base_id){0});
    put(store, volume, (UINT64_C(16) << 40) - 4096, 4096, 1);
    zero(store, volume, UINT64_C(1) << 40, UINT32_MAX / 4096 * UINT64_C(4096), false);
    struct doc_id doc = freeze(store, DOC_SNAPSHOT, "huge", &volume, 1, NULL, 0);
    export_docs(store, &doc, 1, &memory);
    assert_in_range(memory.size, 4096, 8192);
    struct store_stat before, after;
    store_stat(world->to.store, &before);
    if (import(&world->to, &memory, &err) < 0)
        fail_msg("import: %s", err.text);
    store_stat(world->to.store, &after);
    assert_in_range(after.appended_seq - before.appended_seq, 1, 20);
    expect_same(world, base_of(store, DOC_SNAPSHOT, "huge", 0),
            base_of(world->to.store, DOC_SNAPSHOT, "huge", 0));
    free(memory.bytes);
}

static void test_what_compresses_is_small(void **state)
{
    struct world *world = *state;
    struct memory memory = {0};
    struct error err = {0};
    struct store *store = world->from.store;
    struct volume_id volume = create(store, "text", VOLUME_DISK, 2 << 20, (struct base_id){0});
    char *text = malloc(1 << 20);
    for (unsigned i = 0; i < 1 << 20; i++)
        text[i] = "the same words over and over, "[i % 30];
    struct volume *open;
    assert_int_equal(volume_open(store, volume, &open), 0);
    assert_int_equal(volume_write_wait(open, 0, text, 1 << 20, 0), 0);
    volume_close(open);
    struct doc_id doc = freeze(store, DOC_SNAPSHOT, "text", &volume, 1, text, 100000);
    export_docs(store, &doc, 1, &memory);
    assert_in_range(memory.size, 500, 20000);
    if (import(&world->to, &memory, &err) < 0)
        fail_msg("import: %s", err.text);
    expect_doc(world, DOC_SNAPSHOT, "text");
    free(text);
    free(memory.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_everything_comes_back_related, setup, teardown),
            cmocka_unit_test_setup_teardown(test_volumes_names_and_bodies, setup, teardown),
            cmocka_unit_test_setup_teardown(test_what_compresses_is_small, setup, teardown),
            cmocka_unit_test_setup_teardown(test_huge_and_empty_costs_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
