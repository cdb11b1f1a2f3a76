// SPDX-License-Identifier: Apache-2.0
// D08: data that deduplicates, compresses or imitates in the extreme. Written, snapshot, read, half deleted,
// collected, read.
#include "tests/unit/collect_fixture.h"

#include "snapshot/checkpoint.h"

#include <fcntl.h>

enum { BLOCKS = 4096, CHUNK = 128 };

typedef void (*maker)(struct store_fixture *f, uint8_t *block, uint64_t index);

static const struct store_config SMALL = {
        .log_file_bytes = 1 << 20, .log_budget_bytes = 32 << 20, .seal_log_bytes = 8 << 20};

static int setup(void **state)
{
    *state = fixture_new("", &SMALL);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static void write_all(
        struct store_fixture *f, struct volume *volume, uint64_t first, uint64_t count, maker make)
{
    uint8_t *bytes = io_buffer_alloc(CHUNK * BLOCK_SIZE);
    for (uint64_t at = first; at < first + count; at += CHUNK) {
        for (unsigned i = 0; i < CHUNK; i++)
            make(f, bytes + (size_t)i * BLOCK_SIZE, at + i);
        assert_int_equal(volume_write_wait(volume, at * BLOCK_SIZE, bytes, CHUNK * BLOCK_SIZE, 0), 0);
    }
    io_buffer_free(bytes);
}

static void read_all(
        struct store_fixture *f, struct volume *volume, uint64_t first, uint64_t count, maker make)
{
    uint8_t *bytes = io_buffer_alloc(CHUNK * BLOCK_SIZE), want[BLOCK_SIZE];
    for (uint64_t at = first; at < first + count; at += CHUNK) {
        assert_int_equal(volume_read_wait(volume, at * BLOCK_SIZE, bytes, CHUNK * BLOCK_SIZE), 0);
        for (unsigned i = 0; i < CHUNK; i++) {
            make(f, want, at + i);
            if (memcmp(want, bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) != 0)
                fail_msg("block %llu differs", (unsigned long long)(at + i));
        }
    }
    io_buffer_free(bytes);
}

// Returns what the store has when all of it is sealed.
static struct store_stat through_the_mill(struct store_fixture *f, maker make)
{
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    struct base_id base;
    write_all(f, volume, 0, BLOCKS, make);
    fixture_snapshot(f, volume_get_id(volume), "s", 0, &base);
    fixture_collect(f, 0);
    struct store_stat full = fixture_stat(f);
    read_all(f, volume, 0, BLOCKS, make);
    assert_int_equal(volume_zero_wait(volume, 0, BLOCKS / 2 * BLOCK_SIZE, true, 0), 0);
    struct doc doc;
    assert_int_equal(store_doc_find(f->store, DOC_SNAPSHOT, "s", &doc), 0);
    fixture_delete_doc(f, doc.id);
    doc_free(&doc);
    fixture_collect(f, 0);
    read_all(f, volume, BLOCKS / 2, BLOCKS / 2, make);
    volume_close(volume);
    store_fixture_reopen(f);
    struct volume_info info;
    assert_int_equal(store_volume_find(f->store, "v", &info), 0);
    assert_int_equal(volume_open(f->store, info.id, &volume), 0);
    read_all(f, volume, BLOCKS / 2, BLOCKS / 2, make);
    volume_close(volume);
    return full;
}

static void one_random(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    fixture_block(block, 12345);
}

static void D08_one_block_over_and_over(void **state)
{
    struct store_stat stat = through_the_mill(*state, one_random);
    assert_int_equal(stat.unique_bytes, BLOCK_SIZE);
    assert_true(stat.mapped_bytes >= 2 * (uint64_t)BLOCKS * BLOCK_SIZE);
    assert_true(stat.segment_bytes < 200000);
}

static void all_ff(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    memset(block, 0xff, BLOCK_SIZE);
}

static void D08_all_ff(void **state)
{
    assert_int_equal(through_the_mill(*state, all_ff).unique_bytes, BLOCK_SIZE);
}

static void zeros(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    memset(block, 0, BLOCK_SIZE);
}

static bool only_zero(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    uint64_t *seen = context;
    assert_int_not_equal(kind, EXTENT_DATA);
    *seen += length;
    return true;
}

static void D08_written_zeros(void **state)
{
    struct store_fixture *f = *state;
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    write_all(f, volume, 0, BLOCKS, zeros);
    fixture_collect(f, 0);
    struct store_stat stat = fixture_stat(f);
    assert_int_equal(stat.unique_bytes, 0);
    assert_int_equal(stat.mapped_bytes, 0);
    assert_true(stat.segment_slots_present <= 1); // a node that says so
    uint64_t seen = 0;
    assert_int_equal(volume_extents_wait(volume, 0, BLOCKS * BLOCK_SIZE, only_zero, &seen), 0);
    assert_int_equal(seen, BLOCKS * BLOCK_SIZE);
    read_all(f, volume, 0, BLOCKS, zeros);
    volume_close(volume);
}

static void alternating(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    fixture_block(block, 100 + index % 2);
}

static void D08_two_blocks_in_turn(void **state)
{
    assert_int_equal(through_the_mill(*state, alternating).unique_bytes, 2 * BLOCK_SIZE);
}

static void first_or_last_byte(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    fixture_block(block, 9);
    block[index % 2 == 0 ? 0 : BLOCK_SIZE - 1] = (uint8_t)(index / 2);
    block[1] = (uint8_t)(index / 512);
}

static void D08_differing_in_one_byte(void **state)
{
    through_the_mill(*state, first_or_last_byte);
}

static void incompressible(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    fixture_block(block, 1000 + index);
}

static void D08_incompressible_is_raw(void **state)
{
    struct store_stat stat = through_the_mill(*state, incompressible);
    assert_int_equal(stat.unique_bytes, BLOCKS * BLOCK_SIZE);
    assert_true(stat.segment_bytes * 100 <= (uint64_t)BLOCKS * BLOCK_SIZE * 102);
}

// Blocks that look like the store's own structures: copies of every kind of its files.
static uint8_t imitations[64][BLOCK_SIZE];
static unsigned imitation_count;

static void take_imitations(struct store_fixture *f, const char *below)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->directory, below);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && imitation_count < 60;) {
        snprintf(path, sizeof path, "%s/%s/%s", f->directory, below, entry->d_name);
        int fd = open(path, O_RDONLY);
        off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
        for (off_t at = 0; size >= BLOCK_SIZE && at < 3 * BLOCK_SIZE && imitation_count < 60;
                at += BLOCK_SIZE)
            if (pread(fd, imitations[imitation_count], BLOCK_SIZE, at) == BLOCK_SIZE)
                imitation_count++;
        if (size >= 2 * BLOCK_SIZE &&
                pread(fd, imitations[imitation_count], BLOCK_SIZE, size - BLOCK_SIZE) > 0)
            imitation_count++;
        close(fd);
    }
    closedir(directory);
}

static void imitating(struct store_fixture *f, uint8_t *block, uint64_t index)
{
    memcpy(block, imitations[index % imitation_count], BLOCK_SIZE);
}

static void sees_damage(void *context, const char *sentence)
{
    fail_msg("damage where there is none: %s", sentence);
}

static void D08_imitations_of_the_stores_own(void **state)
{
    struct store_fixture *f = *state;
    struct volume *volume = fixture_volume(f, "first", CHUNK);
    write_all(f, volume, 0, CHUNK, incompressible);
    volume_close(volume);
    fixture_seal(f);
    imitation_count = 0;
    take_imitations(f, "segments");
    take_imitations(f, "log");
    take_imitations(f, "catalog");
    assert_true(imitation_count > 10);
    through_the_mill(f, imitating);
    struct store_scrub_result scrubbed;
    struct store_check_result checked;
    struct error err;
    assert_int_equal(store_scrub(f->store, sees_damage, NULL, &scrubbed, &err), 0);
    assert_int_equal(store_check(f->store, sees_damage, NULL, &checked, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(D08_one_block_over_and_over, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_all_ff, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_written_zeros, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_two_blocks_in_turn, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_differing_in_one_byte, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_incompressible_is_raw, setup, teardown),
            cmocka_unit_test_setup_teardown(D08_imitations_of_the_stores_own, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
