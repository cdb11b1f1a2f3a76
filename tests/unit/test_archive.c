// SPDX-License-Identifier: Apache-2.0
// Archives: what goes out of one store comes into another as it was, related as it was; what is no whole
// archive leaves nothing behind.
#include "blockstore/io_ring.h"
#include "snapshot/archive_format.h"
#include "snapshot/passing.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    SHARDS = 2,
    FILE_BYTES = 1 << 20,
    BUDGET_FILES = 24,
    ODD_BYTES = 1000001,
    MEMORY_BYTES = 4 << 20,
    BLOB_BYTES = 400000
};

struct side { // one store
    char directory[64];
    struct loop *loops[SHARDS];
    struct store *store;
};
struct world {
    struct side from, to;
};

static void side_open(struct side *side)
{
    struct error err = {0};
    for (unsigned i = 0; i < SHARDS; i++)
        assert_int_equal(io_ring_loop_create(i, 64, &side->loops[i]), 0);
    int r = store_open(side->loops, SHARDS, side->directory, NULL, &side->store, &err);
    if (r < 0)
        fail_msg("open: %s", err.text);
    for (unsigned i = 0; i < SHARDS; i++)
        assert_int_equal(io_ring_thread_start(side->loops[i]), 0);
}

static void side_close(struct side *side)
{
    for (unsigned i = 0; i < SHARDS; i++)
        io_ring_thread_stop(side->loops[i]);
    side->store = store_close(side->store);
    for (unsigned i = 0; i < SHARDS; i++)
        side->loops[i] = io_ring_loop_destroy(side->loops[i]);
}

static void side_make(struct side *side)
{
    struct loop *loop;
    struct error err = {0};
    struct store_config config = {
            .log_file_bytes = FILE_BYTES, .log_budget_bytes = (uint64_t)FILE_BYTES * BUDGET_FILES};
    strcpy(side->directory, "test_archive.XXXXXX");
    assert_non_null(mkdtemp(side->directory));
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    int r = store_init(loop, side->directory, &config, &err);
    if (r < 0)
        fail_msg("init: %s", err.text);
    io_ring_loop_destroy(loop);
    side_open(side);
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    side_make(&world->from);
    side_make(&world->to);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    char command[192];
    side_close(&world->from);
    side_close(&world->to);
    snprintf(command, sizeof command, "rm -rf %s %s", world->from.directory, world->to.directory);
    int r = system(command);
    free(world);
    return r;
}

// ---- Streams in memory ----

struct memory {
    uint8_t *bytes;
    size_t size, capacity, at;
    size_t step; // bytes per read, 0 = as many as wanted: pipes give what they have
};

static int memory_write(void *context, const void *bytes, size_t size)
{
    struct memory *memory = context;
    if (memory->size + size > memory->capacity) {
        memory->capacity = (memory->size + size) * 2;
        memory->bytes = realloc(memory->bytes, memory->capacity);
    }
    memcpy(memory->bytes + memory->size, bytes, size);
    memory->size += size;
    return 0;
}

static ssize_t memory_read(void *context, void *buffer, size_t capacity)
{
    struct memory *memory = context;
    size_t left = memory->size - memory->at, part = left < capacity ? left : capacity;
    if (memory->step != 0 && part > memory->step)
        part = memory->step;
    memcpy(buffer, memory->bytes + memory->at, part);
    memory->at += part;
    return (ssize_t)part;
}

static int import(struct side *side, struct memory *memory, struct error *err)
{
    struct archive_import_config config = {.read = memory_read, .context = memory};
    struct archive_result result;
    memory->at = 0;
    return archive_import(side->store, &config, &result, err);
}

// ---- Content ----

static void pattern(uint8_t *bytes, size_t size, unsigned seed)
{
    uint64_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(x >> 56);
    }
}

static void put(struct store *store, struct volume_id id, uint64_t offset, size_t size, unsigned seed)
{
    uint8_t *bytes = malloc(size);
    struct volume *volume;
    pattern(bytes, size, seed);
    assert_int_equal(volume_open(store, id, &volume), 0);
    assert_int_equal(volume_write_wait(volume, offset, bytes, size, 0), 0);
    volume_close(volume);
    free(bytes);
}

static void zero(struct store *store, struct volume_id id, uint64_t offset, size_t size, bool trim)
{
    struct volume *volume;
    assert_int_equal(volume_open(store, id, &volume), 0);
    assert_int_equal(volume_zero_wait(volume, offset, size, trim, 0), 0);
    volume_close(volume);
}

static void commit(struct txn *txn)
{
    struct error err = {0};
    if (txn_commit_wait(txn, 0, &err) < 0)
        fail_msg("%s", err.text);
}

static struct volume_id create(
        struct store *store, const char *name, enum volume_kind kind, uint64_t size, struct base_id parent)
{
    struct txn *txn = txn_begin(store);
    struct volume_id id = txn_volume_create(txn, name, kind, size, parent);
    commit(txn);
    return id;
}

static struct doc_id freeze(struct store *store, enum doc_kind kind, const char *name,
        const struct volume_id *volumes, unsigned count, const void *blob, size_t blob_bytes)
{
    char body[80];
    struct doc doc = {.kind = kind, .base_count = count, .body = body};
    snprintf(doc.name, sizeof doc.name, "%s", name);
    struct txn *txn = txn_begin(store);
    for (unsigned i = 0; i < count; i++)
        doc.bases[i] = txn_freeze(txn, volumes[i]);
    doc.body_bytes =
            (size_t)snprintf(body, sizeof body, "{\"first\":%llu}", (unsigned long long)doc.bases[0].value);
    struct doc_id id = txn_doc_put(txn, &doc, blob, blob_bytes);
    commit(txn);
    return id;
}

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
    assert_int_equal(base_extents(left, 0, size, count_extent, &left_extents), 0);
    assert_int_equal(base_extents(right, 0, size, count_extent, &right_extents), 0);
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

static void export_docs(struct store *store, const struct doc_id *docs, unsigned count, struct memory *memory)
{
    struct archive_root roots[8] = {0};
    struct archive_result result;
    struct error err = {0};
    for (unsigned i = 0; i < count; i++)
        roots[i].doc = docs[i];
    if (archive_export(store, roots, count, memory_write, memory, &result, &err) < 0)
        fail_msg("export: %s", err.text);
    assert_int_equal(result.archive_bytes, memory->size);
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

static void expect_counts(struct store *store, unsigned volumes, unsigned bases, unsigned docs)
{
    struct store_stat stat;
    store_stat(store, &stat);
    assert_int_equal(stat.volumes, volumes);
    assert_int_equal(stat.bases, bases);
    assert_int_equal(stat.docs, docs);
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
    side_close(&world->to); // durable, and the same after a recovery
    side_open(&world->to);
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
    struct archive_import_config config = {
            .read = memory_read, .context = &memory, .choose_name = rename_it, .change_body = count_bases};
    if (archive_import(world->to.store, &config, &result, &err) < 0)
        fail_msg("import: %s", err.text);
    struct volume_info info;
    assert_int_equal(store_volume_find(world->to.store, "v-volume", &info), 0);
    assert_int_equal(info.size_bytes, ODD_BYTES);
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

// ---- What is no whole archive ----

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
    memory_write(&foreign, "QFI\xfb\0\0\0\3 and so on", 20);
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
    struct volume_id filler = create(world->to.store, "filler", VOLUME_DISK, 64 << 20, (struct base_id){0});
    put(world->to.store, filler, 0, 14 << 20, 2);
    int r = import(&world->to, &memory, &err);
    assert_int_equal(r, -ENOSPC);
    assert_non_null(strstr(err.text, "full"));
    expect_counts(world->to.store, 1, 0, 0);
    free(memory.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_everything_comes_back_related, setup, teardown),
            cmocka_unit_test_setup_teardown(test_volumes_names_and_bodies, setup, teardown),
            cmocka_unit_test_setup_teardown(test_huge_and_empty_costs_nothing, setup, teardown),
            cmocka_unit_test_setup_teardown(test_truncated_extended_and_flipped, setup, teardown),
            cmocka_unit_test_setup_teardown(test_records_out_of_place, setup, teardown),
            cmocka_unit_test_setup_teardown(test_foreign_and_newer, setup, teardown),
            cmocka_unit_test_setup_teardown(test_streams_that_break, setup, teardown),
            cmocka_unit_test_setup_teardown(test_a_full_store_is_left_as_it_was, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
