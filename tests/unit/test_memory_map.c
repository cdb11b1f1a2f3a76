// SPDX-License-Identifier: Apache-2.0
// Which parts of a machine's memory come from its origin: from two trees, bounded, and cut along ranges.
#include "tests/unit/collect_fixture.h"

#include "vmglue/memory_map.h"
#include "vmglue/preload/preload_wire.h"

#include <fcntl.h>

enum { PAGES = 16384 };
static struct error err;

static struct volume_id create(struct store_fixture *f, uint64_t pages, struct base_id parent)
{
    struct txn *txn = txn_begin(f->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_MEMORY, pages << BLOCK_SHIFT, parent);
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
    return id;
}

static void write_pages(
        struct store_fixture *f, struct volume_id id, uint64_t first, unsigned count, char byte)
{
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    char *buffer = io_buffer_alloc((size_t)count << BLOCK_SHIFT);
    for (unsigned i = 0; i < count; i++) {
        memset(buffer + ((size_t)i << BLOCK_SHIFT), byte, BLOCK_SIZE);
        memcpy(buffer + ((size_t)i << BLOCK_SHIFT), &(uint64_t){first + i}, 8);
    }
    assert_int_equal(
            volume_write_wait(volume, first << BLOCK_SHIFT, buffer, (uint64_t)count << BLOCK_SHIFT, 0), 0);
    io_buffer_free(buffer);
    volume_close(volume);
}

static void zero_pages(struct store_fixture *f, struct volume_id id, uint64_t first, unsigned count)
{
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    assert_int_equal(
            volume_zero_wait(volume, first << BLOCK_SHIFT, (uint64_t)count << BLOCK_SHIFT, false, 0), 0);
    volume_close(volume);
}

static struct base_id freeze(struct store_fixture *f, struct volume_id id)
{
    struct txn *txn = txn_begin(f->store);
    struct doc doc = {.kind = DOC_SNAPSHOT, .body = (char *)"{}", .body_bytes = 2, .base_count = 1};
    doc.bases[0] = txn_freeze(txn, id);
    txn_doc_put(txn, &doc, NULL, 0);
    assert_int_equal(txn_commit_wait(txn, 0, &err), 0);
    return doc.bases[0];
}

static bool is_own(const struct memory_map *map, uint64_t page)
{
    for (unsigned i = 0; i < map->count; i++)
        if (page << BLOCK_SHIFT >= map->extents[i].offset &&
                page << BLOCK_SHIFT < map->extents[i].offset + map->extents[i].length)
            return true;
    return false;
}

// Whatever the map says, the bytes that it gives are those of the own image.
static void check_bytes(struct store_fixture *f, const struct memory_map *map)
{
    struct base *own, *origin;
    char *a = io_buffer_alloc(BLOCK_SIZE), *b = io_buffer_alloc(BLOCK_SIZE);
    assert_int_equal(base_open(f->store, map->own, &own), 0);
    assert_int_equal(base_open(f->store, map->origin, &origin), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        if (is_own(map, page))
            continue;
        assert_int_equal(base_read_wait(own, page << BLOCK_SHIFT, a, BLOCK_SIZE), 0);
        assert_int_equal(base_read_wait(origin, page << BLOCK_SHIFT, b, BLOCK_SIZE), 0);
        assert_memory_equal(a, b, BLOCK_SIZE);
    }
    base_close(own);
    base_close(origin);
    io_buffer_free(a);
    io_buffer_free(b);
}

static struct store_fixture *make(struct volume_id *ret_volume, struct base_id *ret_origin)
{
    struct store_config config = {.log_file_bytes = 8 << 20, .log_budget_bytes = 192 << 20};
    struct store_fixture *f = fixture_new("", &config);
    *ret_volume = create(f, PAGES, (struct base_id){0});
    for (unsigned i = 0; i < 8; i++)
        write_pages(f, *ret_volume, 1000 * i, 500, 'o');
    *ret_origin = freeze(f, *ret_volume);
    return f;
}

static void test_differences(void **state)
{
    struct volume_id volume;
    struct base_id origin, own;
    struct memory_map map;
    struct store_fixture *f = make(&volume, &origin);
    write_pages(f, volume, 10, 1, 'a');
    write_pages(f, volume, 13, 1, 'a'); // two pages apart: one extent
    write_pages(f, volume, 100, 3, 'a');
    write_pages(f, volume, PAGES - 1, 1, 'a');
    zero_pages(f, volume, 1000, 20); // was data
    zero_pages(f, volume, 700, 20);  // was unmapped: it reads the same
    own = freeze(f, volume);
    assert_int_equal(memory_map_make(f->store, own, origin, &map, &err), 0);
    assert_int_equal(map.origin.value, origin.value);
    assert_int_equal(map.count, 4);
    assert_true(is_own(&map, 10) && is_own(&map, 11) && is_own(&map, 13) && !is_own(&map, 14));
    assert_true(is_own(&map, 102) && !is_own(&map, 103) && is_own(&map, 1019) && !is_own(&map, 700));
    assert_true(is_own(&map, PAGES - 1));
    assert_int_equal(map.own_bytes, (4 + 3 + 20 + 1) * BLOCK_SIZE);
    check_bytes(f, &map);
    memory_map_free(&map);
    // What is sealed lies elsewhere, and is told as well.
    assert_int_equal(store_seal(f->store, &err), 0);
    assert_int_equal(memory_map_make(f->store, own, origin, &map, &err), 0);
    assert_int_equal(map.count, 4);
    check_bytes(f, &map);
    memory_map_free(&map);
    fixture_free(f);
}

static void test_nothing_to_share(void **state)
{
    struct volume_id volume;
    struct base_id origin, own, small;
    struct memory_map map;
    struct store_fixture *f = make(&volume, &origin);
    struct volume_id other = create(f, 64, (struct base_id){0});
    small = freeze(f, other);
    for (unsigned i = 0; i < 8; i++)
        write_pages(f, volume, 1000 * i, 400, 'x');
    own = freeze(f, volume);
    const struct base_id wrong[] = {{0}, {4711}, small, own, origin};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(memory_map_make(f->store, own, wrong[i], &map, &err), 0);
        assert_int_equal(map.origin.value, 0);
        assert_int_equal(map.count, 0);
        assert_int_equal(map.bytes, (uint64_t)PAGES << BLOCK_SHIFT);
        memory_map_free(&map);
    }
    assert_int_equal(memory_map_make(f->store, (struct base_id){4711}, origin, &map, &err), -ENOENT);
    fixture_free(f);
}

static void test_extents_are_bounded(void **state)
{
    struct memory_map map = {.bytes = (uint64_t)PAGES << BLOCK_SHIFT};
    uint64_t gaps[] = {1, 9, 2, 30, 5, 100, 1, 1, 60};
    uint64_t at = 0;
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(memory_map_add(&map, at << BLOCK_SHIFT, BLOCK_SIZE), 0);
        at += 1 + gaps[i];
    }
    assert_int_equal(map.count, 9);
    memory_map_close_gaps(&map, BLOCK_SIZE, 100); // gaps of one page
    assert_int_equal(map.count, 6);
    memory_map_close_gaps(&map, BLOCK_SIZE, 3); // the smallest first: 2 and 5, then 9, not 30 and 100
    assert_int_equal(map.count, 3);
    assert_true(is_own(&map, 13) && !is_own(&map, 17) && !is_own(&map, 60));
    uint64_t own = 0;
    for (unsigned i = 0; i < map.count; i++)
        own += map.extents[i].length;
    assert_int_equal(own, map.own_bytes);
    memory_map_free(&map);
}

struct pieces {
    struct base_id image[8];
    uint64_t first[8], pages[8];
    unsigned count;
};

static int add_piece(void *context, struct base_id image, uint64_t offset, uint64_t length)
{
    struct pieces *pieces = context;
    if (pieces->count == 8)
        return -E2BIG;
    pieces->image[pieces->count] = image;
    pieces->first[pieces->count] = offset >> BLOCK_SHIFT;
    pieces->pages[pieces->count++] = length >> BLOCK_SHIFT;
    return 0;
}

static void test_split(void **state)
{
    struct memory_map map = {.own = {2}, .origin = {1}, .bytes = (uint64_t)PAGES << BLOCK_SHIFT};
    struct pieces pieces = {0};
    memory_map_add(&map, 10 * BLOCK_SIZE, 10 * BLOCK_SIZE);
    memory_map_add(&map, 30 * BLOCK_SIZE, 10 * BLOCK_SIZE);
    const struct working_set_range ranges[] = {
            {5 * BLOCK_SIZE, 30 * BLOCK_SIZE}, {50 * BLOCK_SIZE, BLOCK_SIZE}};
    assert_int_equal(memory_map_split(&map, ranges, 2, add_piece, &pieces), 0);
    const unsigned expected[5][3] = {{1, 5, 5}, {2, 10, 10}, {1, 20, 10}, {2, 30, 5}, {1, 50, 1}};
    assert_int_equal(pieces.count, 5);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(pieces.image[i].value, expected[i][0]);
        assert_int_equal(pieces.first[i], expected[i][1]);
        assert_int_equal(pieces.pages[i], expected[i][2]);
    }
    memory_map_free(&map);
    map = (struct memory_map){.own = {2}, .bytes = (uint64_t)PAGES << BLOCK_SHIFT};
    pieces.count = 0;
    assert_int_equal(memory_map_split(&map, ranges, 2, add_piece, &pieces), 0);
    assert_int_equal(pieces.count, 2);
    assert_int_equal(pieces.image[0].value, 2);
    pieces.count = 7;
    assert_int_equal(memory_map_split(&map, ranges, 2, add_piece, &pieces), -E2BIG);
}

static void test_file_for_the_library(void **state)
{
    struct memory_map map = {.own = {2}, .origin = {1}, .bytes = (uint64_t)PAGES << BLOCK_SHIFT};
    memory_map_add(&map, 10 * BLOCK_SIZE, 10 * BLOCK_SIZE);
    int fd;
    assert_int_equal(memory_map_file(&map, &fd, &err), 0);
    struct {
        struct preload_extents_header header;
        struct preload_extent extent;
        char more;
    } file;
    assert_int_equal(pread(fd, &file, sizeof file, 0), sizeof file.header + sizeof file.extent);
    assert_int_equal(file.header.magic, PRELOAD_EXTENTS_MAGIC);
    assert_int_equal(file.header.count, 1);
    assert_int_equal(file.header.ram_bytes, map.bytes);
    assert_int_equal(file.extent.offset, 10 * BLOCK_SIZE);
    assert_int_equal(file.extent.length, 10 * BLOCK_SIZE);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1); // nobody can change it any more
    close(fd);
    memory_map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_differences),
            cmocka_unit_test(test_nothing_to_share),
            cmocka_unit_test(test_extents_are_bounded),
            cmocka_unit_test(test_split),
            cmocka_unit_test(test_file_for_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
