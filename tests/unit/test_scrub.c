// SPDX-License-Identifier: Apache-2.0
// Scrubbing: every flipped bit of a segment is found and said with what it touches; the position is kept.
#include "tests/unit/collect_fixture.h"

#include "snapshot/checkpoint.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { BLOCKS = 600 };

static const struct store_config SMALL = {
        .log_file_bytes = 1 << 20, .log_budget_bytes = 16 << 20, .seal_log_bytes = 1 << 30};

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

struct findings {
    unsigned count;
    char text[2000]; // of the last one
};

static void found(void *context, const char *sentence)
{
    struct findings *findings = context;
    findings->count++;
    snprintf(findings->text, sizeof findings->text, "%s", sentence);
}

static struct store_scrub_result scrub(struct store_fixture *f, struct findings *findings)
{
    struct store_scrub_result result;
    struct error err = {0};
    *findings = (struct findings){0};
    int r = store_scrub(f->store, found, findings, &result, &err);
    if (r < 0)
        fail_msg("scrub: %s", err.text);
    return result;
}

static void fill(struct volume *volume, uint64_t first)
{
    uint64_t numbers[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        numbers[i] = first + i;
    for (unsigned at = 0; at < BLOCKS; at += 100)
        assert_int_equal(fixture_write(volume, at, numbers + at, 100), 0);
}

// Paths of all segment files; the count.
static unsigned segment_paths(struct store_fixture *f, char paths[][300], unsigned room)
{
    char directory_path[300];
    unsigned count = 0;
    snprintf(directory_path, sizeof directory_path, "%s/segments", f->directory);
    DIR *directory = opendir(directory_path);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && count < room;)
        if (entry->d_name[0] != '.')
            snprintf(paths[count++], 300, "%.200s/%.40s", directory_path, entry->d_name);
    closedir(directory);
    return count;
}

static void flip(const char *path, uint64_t offset, unsigned bit)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= (uint8_t)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static uint64_t size_of(const char *path)
{
    int fd = open(path, O_RDONLY);
    off_t size = lseek(fd, 0, SEEK_END);
    close(fd);
    return (uint64_t)size;
}

static void every_flipped_bit_is_found(void **state)
{
    struct store_fixture *f = *state;
    static char paths[16][300];
    struct findings findings;
    struct volume *volume = fixture_volume(f, "vol", BLOCKS);
    fill(volume, 1);
    fixture_seal(f);
    struct store_scrub_result result = scrub(f, &findings);
    assert_int_equal(result.damages, 0);
    assert_true(result.segments >= 2 && result.bytes > BLOCKS * BLOCK_SIZE);
    assert_int_equal(result.position, 0);
    unsigned count = segment_paths(f, paths, 16);
    for (unsigned i = 0; i < 80; i++) {
        const char *path = paths[fixture_random(f, count)];
        uint64_t at = fixture_random(f, size_of(path));
        unsigned bit = (unsigned)fixture_random(f, 8);
        flip(path, at, bit);
        result = scrub(f, &findings);
        if (result.damages == 0 || findings.count != result.damages)
            fail_msg("bit %u of byte %llu of %s: %llu damages, %u told", bit, (unsigned long long)at, path,
                    (unsigned long long)result.damages, findings.count);
        if (strstr(findings.text, strrchr(path, '/')) == NULL)
            fail_msg("%s is not named in: %s", path, findings.text);
        flip(path, at, bit);
    }
    assert_int_equal(scrub(f, &findings).damages, 0);
    volume_close(volume);
}

static void who_is_touched_is_said(void **state)
{
    struct store_fixture *f = *state;
    static char paths[16][300];
    struct findings findings;
    struct base_id base;
    struct volume *volume = fixture_volume(f, "first volume", BLOCKS);
    fill(volume, 1);
    fixture_snapshot(f, volume_get_id(volume), "a snapshot", 0, &base);
    fill(volume, 50000);
    struct volume *other = fixture_volume(f, "other volume", BLOCKS);
    fixture_seal(f);
    unsigned count = segment_paths(f, paths, 16);
    unsigned volumes = 0, snapshots = 0;
    for (unsigned i = 0; i < count; i++)
        for (uint64_t at = 4096 + 100; at + 400000 < size_of(paths[i]); at += 400000) {
            flip(paths[i], at, 3);
            scrub(f, &findings);
            volumes += strstr(findings.text, "volume \"first volume\"") != NULL;
            snapshots += strstr(findings.text, "snapshot \"a snapshot\"") != NULL;
            assert_null(strstr(findings.text, "other volume"));
            flip(paths[i], at, 3);
        }
    assert_true(volumes > 0 && snapshots > 0);
    volume_close(volume);
    volume_close(other);
}

static void a_missing_file_is_found(void **state)
{
    struct store_fixture *f = *state;
    static char paths[16][300];
    struct findings findings;
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(volume, 1);
    fixture_seal(f);
    assert_true(segment_paths(f, paths, 16) >= 2);
    char moved[400];
    snprintf(moved, sizeof moved, "%s.away", paths[0]);
    assert_int_equal(rename(paths[0], moved), 0);
    assert_true(scrub(f, &findings).damages > 0);
    assert_non_null(strstr(findings.text, strrchr(paths[0], '/')));
    struct store_gc_result result; // a collection that cannot look does not guess
    struct error err;
    if (store_gc(f->store, 0, &result, &err) == 0)
        assert_int_equal(result.segments_removed, 0);
    assert_int_equal(rename(moved, paths[0]), 0);
    assert_int_equal(scrub(f, &findings).damages, 0);
    volume_close(volume);
}

// ---- The position ----

struct stopped {
    struct store_fixture *f;
    pthread_t thread;
    _Atomic bool damaged, go;
    unsigned count;
    int result;
};

static void hold(void *context, const char *sentence)
{
    struct stopped *stopped = context;
    stopped->count++;
    atomic_store(&stopped->damaged, true);
    while (!atomic_load(&stopped->go)) // until the store is being closed
        sched_yield();
}

static void *scrub_in_thread(void *context)
{
    struct stopped *stopped = context;
    struct store_scrub_result result;
    stopped->result = store_scrub(stopped->f->store, hold, stopped, &result, NULL);
    return NULL;
}

static void the_position_outlives_a_restart(void **state)
{
    struct store_fixture *f = *state;
    static char paths[64][300];
    struct findings findings;
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    for (unsigned i = 0; i < 8; i++) {
        fill(volume, 1 + i * 1000);
        struct base_id base;
        char name[16];
        snprintf(name, sizeof name, "s%u", i);
        fixture_snapshot(f, volume_get_id(volume), name, 0, &base);
        fixture_seal(f);
    }
    volume_close(volume);
    struct store_scrub_result whole = scrub(f, &findings);
    assert_int_equal(findings.count, 0);
    assert_true(whole.segments >= 16);
    unsigned count = segment_paths(f, paths, 64), fourth = count;
    for (unsigned i = 0; i < count; i++)
        if (strstr(paths[i], "/00000004.") != NULL)
            fourth = i;
    assert_true(fourth < count);
    flip(paths[fourth], 5000, 1);
    struct stopped stopped = {.f = f};
    assert_int_equal(pthread_create(&stopped.thread, NULL, scrub_in_thread, &stopped), 0);
    while (!atomic_load(&stopped.damaged))
        sched_yield();
    store_fixture_stop_threads(f); // from here on only store_close drives the loops
    atomic_store(&stopped.go, true);
    store_fixture_close_stopped(f);
    pthread_join(stopped.thread, NULL);
    assert_int_equal(stopped.result, -ECANCELED);
    store_fixture_open(f);
    uint64_t kept = f->store->checkpoint->rows.meta.scrub_segment;
    assert_true(kept >= 4);
    struct store_scrub_result rest = scrub(f, &findings);
    assert_true(rest.segments > 0 && rest.segments < whole.segments);
    assert_int_equal(findings.count, kept == 4 ? rest.damages : 0);
    flip(paths[fourth], 5000, 1);
    assert_true(scrub(f, &findings).segments >= whole.segments); // and from the beginning again
}

// A scrub that is under way ends early, and none begins; seals go on.
static void a_quiet_store_ends_its_scrub(void **state)
{
    struct store_fixture *f = *state;
    static char paths[16][300];
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(volume, 1);
    fixture_seal(f);
    unsigned count = segment_paths(f, paths, 16);
    for (unsigned i = 0; i < count; i++)
        flip(paths[i], 5000, 1);
    struct stopped stopped = {.f = f};
    assert_int_equal(pthread_create(&stopped.thread, NULL, scrub_in_thread, &stopped), 0);
    while (!atomic_load(&stopped.damaged))
        sched_yield();
    store_quiesce(f->store);
    struct store_gc_result result;
    struct error err;
    atomic_store(&stopped.go, true);
    pthread_join(stopped.thread, NULL);
    assert_int_equal(store_gc(f->store, 0, &result, &err), -ECANCELED);
    assert_int_equal(stopped.count < count ? stopped.result : -ECANCELED, -ECANCELED);
    for (unsigned i = 0; i < count; i++)
        flip(paths[i], 5000, 1);
    fill(volume, 1000);
    fixture_seal(f);
    volume_close(volume);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(every_flipped_bit_is_found, setup, teardown),
            cmocka_unit_test_setup_teardown(who_is_touched_is_said, setup, teardown),
            cmocka_unit_test_setup_teardown(a_missing_file_is_found, setup, teardown),
            cmocka_unit_test_setup_teardown(the_position_outlives_a_restart, setup, teardown),
            cmocka_unit_test_setup_teardown(a_quiet_store_ends_its_scrub, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
