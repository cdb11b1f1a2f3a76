// SPDX-License-Identifier: Apache-2.0
// What a seal may use and leave: descriptors however many domains there are, no files when it fails; and
// device states are shared with nobody.
#include "tests/unit/collect_fixture.h"

#include <fcntl.h>
#include <sys/resource.h>

static const struct store_config small = {.log_file_bytes = 1 << 20, .log_budget_bytes = 16 << 20};

static struct volume *volume_of(struct fixture *f, uint64_t domain, uint64_t blocks)
{
    struct txn *txn = txn_begin(f->store);
    struct volume_id id = txn_volume_create(txn, "", VOLUME_DISK, blocks * BLOCK_SIZE, (struct base_id){0});
    txn_volume_domain(txn, id, domain);
    fixture_commit(txn, 0);
    struct volume *volume;
    assert_int_equal(volume_open(f->store, id, &volume), 0);
    return volume;
}

static void descriptors_do_not_grow_with_domains(void **state)
{
    enum { DOMAINS = 64 };
    struct fixture *f = fixture_new("", &small);
    struct volume *volumes[DOMAINS];
    for (uint64_t i = 0; i < DOMAINS; i++) {
        volumes[i] = volume_of(f, i + 1, 4);
        assert_int_equal(fixture_write(volumes[i], 0, &(uint64_t){i + 1}, 1), 0);
    }
    fixture_seal(f);
    for (uint64_t i = 0; i < DOMAINS; i++)
        assert_int_equal(fixture_write(volumes[i], 1, &(uint64_t){i + 100}, 1), 0);
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

// Flips a byte of the block of this number, wherever it is in the log.
static void damage_in_log(struct fixture *f, uint64_t number)
{
    uint8_t want[BLOCK_SIZE], is[BLOCK_SIZE];
    unsigned found = 0;
    fixture_block(want, number);
    for (unsigned file = 1; file < 16; file++) {
        char path[96];
        snprintf(path, sizeof path, "%s/log/%08u", f->directory, file);
        int fd = open(path, O_RDWR);
        for (off_t at = 0; fd >= 0 && pread(fd, is, BLOCK_SIZE, at) == BLOCK_SIZE; at += BLOCK_SIZE) {
            if (memcmp(want, is, BLOCK_SIZE) != 0)
                continue;
            is[77] ^= 1;
            assert_int_equal(pwrite(fd, is, BLOCK_SIZE, at), BLOCK_SIZE);
            found++;
        }
        if (fd >= 0)
            close(fd);
    }
    assert_int_equal(found, 1);
}

static void what_a_failed_seal_wrote_goes(void **state)
{
    struct fixture *f = fixture_new("", &small);
    struct volume *first = volume_of(f, 1, 64), *second = volume_of(f, 2, 64);
    const uint64_t good[2] = {11, 12}, bad[2] = {21, 22};
    assert_int_equal(fixture_write(first, 0, good, 2), 0);
    assert_int_equal(fixture_write(second, 0, bad, 2), 0);
    damage_in_log(f, 22);
    for (int i = 0; i < 3; i++) {
        struct error err = {0};
        assert_int_equal(store_seal(f->store, &err), -EBADMSG);
        assert_int_equal(fixture_segment_files(f), 0);
    }
    assert_int_equal(fixture_write(second, 0, bad, 2), 0);
    fixture_expect(first, good, 2);
    fixture_expect(second, bad, 2);
    volume_close(first);
    volume_close(second);
    fixture_free(f);
}

static void wait_until_loaded(struct fixture *f)
{
    fixture_seal(f); // behind it, or it gives way
    while (!fixture_stat(f).fingerprints_loaded)
        usleep(1000);
}

static void device_states_are_not_shared(void **state)
{
    struct fixture *f = fixture_new("", &small);
    struct volume *volume = fixture_volume(f, "v", 64);
    struct base_id base;
    assert_int_equal(fixture_write(volume, 1, (uint64_t[]){31}, 1), 0);
    fixture_snapshot(f, volume_get_id(volume), "state", 3 * BLOCK_SIZE, &base); // blocks of 's'
    fixture_seal(f);
    volume_close(volume);
    fixture_reopen(f);
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
