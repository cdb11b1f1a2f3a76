// SPDX-License-Identifier: Apache-2.0
// What a seal may use and leave: descriptors however many domains there are, no files when it fails; and
// device states are shared with nobody.
#include "tests/unit/collect_fixture.h"

#include "blockstore/segment_format.h"

#include <fcntl.h>
#include <sys/resource.h>

static const struct store_config small = {.log_file_bytes = 1 << 20, .log_budget_bytes = 16 << 20};

static struct volume *volume_of(struct store_fixture *f, uint64_t domain, uint64_t blocks)
{
    struct txn *txn = txn_begin(f->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, blocks * BLOCK_SIZE, (struct base_id){0});
    txn_volume_domain(txn, id, domain);
    fixture_commit(txn, 0);
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    return volume;
}

// Files of the log are prepared in the background, and each needs descriptors: that must be over.
static void wait_for_spares(struct store_fixture *f)
{
    const uint64_t wanted = 3 * small.log_file_bytes; // two by default, and the one for a cut
    for (struct store_stat stat = fixture_stat(f);
            stat.log_used_bytes > small.log_file_bytes || stat.log_spare_bytes < wanted;
            stat = fixture_stat(f))
        usleep(1000);
}

static void descriptors_do_not_grow_with_domains(void **state)
{
    enum { DOMAINS = 64 };
    struct store_fixture *f = fixture_new("", &small);
    struct volume *volumes[DOMAINS];
    for (uint64_t i = 0; i < DOMAINS; i++) {
        volumes[i] = volume_of(f, i + 1, 4);
        assert_int_equal(fixture_write(volumes[i], 0, &(uint64_t){i + 1}, 1), 0);
    }
    fixture_seal(f);
    for (uint64_t i = 0; i < DOMAINS; i++)
        assert_int_equal(fixture_write(volumes[i], 1, &(uint64_t){i + 100}, 1), 0);
    wait_for_spares(f);
    struct rlimit before, few;
    int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next; // not one more
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct error err = {0};
    int r = store_seal(f->store, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (r < 0)
        fail_msg("seal: %s", err.text);
    for (uint64_t i = 0; i < DOMAINS; i++) {
        fixture_expect(volumes[i], (uint64_t[]){i + 1, i + 100}, 2);
        volume_close(volumes[i]);
    }
    fixture_free(f);
}

// Flips a byte of the first frame of a segment.
static void damage_segment(struct store_fixture *f, unsigned number)
{
    char path[300];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/segments/%08u.1", f->directory, number);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, SEGMENT_HEADER_BYTES + 20), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, SEGMENT_HEADER_BYTES + 20), 1);
    close(fd);
}

static void what_a_failed_seal_wrote_goes(void **state)
{
    struct store_fixture *f = fixture_new("", &small);
    struct volume *first = volume_of(f, 1, 64), *second = volume_of(f, 2, 64);
    struct volume_id ids[2] = {volume_get_id(first), volume_get_id(second)};
    assert_int_equal(fixture_write(first, 0, (uint64_t[]){11}, 1), 0);
    assert_int_equal(fixture_write(second, 0, (uint64_t[]){21}, 1), 0);
    fixture_seal(f); // 1: data of the first, 2: its nodes, 3 and 4: the second's
    assert_int_equal(fixture_segment_files(f), 4);
    volume_close(first);
    volume_close(second);
    store_fixture_close(f);
    damage_segment(f, 4);
    store_fixture_open(f);
    assert_int_equal(volume_open(f->store, ids[0], &first), 0);
    assert_int_equal(volume_open(f->store, ids[1], &second), 0);
    assert_int_equal(fixture_write(first, 1, (uint64_t[]){12}, 1), 0);
    assert_int_equal(fixture_write(second, 1, (uint64_t[]){22}, 1), 0);
    for (int i = 0; i < 3; i++) {
        struct error err = {0};
        assert_int_equal(store_seal(f->store, &err), -EBADMSG);
        assert_int_equal(fixture_segment_files(f), 4);
    }
    fixture_expect(first, (uint64_t[]){11, 12}, 2);
    volume_close(first);
    volume_close(second);
    fixture_free(f);
}

static void wait_until_loaded(struct store_fixture *f)
{
    fixture_seal(f); // behind it, or it gives way
    while (!fixture_stat(f).fingerprints_loaded)
        usleep(1000);
}

static void device_states_are_not_shared(void **state)
{
    struct store_fixture *f = fixture_new("", &small);
    struct volume *volume = fixture_volume(f, "v", 64);
    struct base_id base;
    assert_int_equal(fixture_write(volume, 1, (uint64_t[]){31}, 1), 0);
    fixture_snapshot(f, volume_get_id(volume), "state", 3 * BLOCK_SIZE, &base); // blocks of 's'
    fixture_seal(f);
    volume_close(volume);
    store_fixture_reopen(f);
    wait_until_loaded(f);
    struct volume *guess = volume_of(f, 7, 64);
    uint8_t *block = io_buffer_alloc(BLOCK_SIZE);
    memset(block, 's', BLOCK_SIZE);
    assert_int_equal(volume_write_wait(guess, 0, block, BLOCK_SIZE, 0), 0);
    io_buffer_free(block);
    assert_int_equal(fixture_write(guess, 2, (uint64_t[]){31}, 1), 0); // of the public volume: may be shared
    fixture_seal(f);
    assert_int_equal(fixture_stat(f).dedup_hits, 1);
    volume_close(guess);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(descriptors_do_not_grow_with_domains),
            cmocka_unit_test(what_a_failed_seal_wrote_goes),
            cmocka_unit_test(device_states_are_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
