// SPDX-License-Identifier: Apache-2.0
// Files of the right name and wrong content (field case D03), their siblings, and single flipped bits: what
// was flushed is right or an error that names the file, never something else; a check tells each damage.
#include "tests/unit/rich_store.h"

#include <sys/stat.h>
#include <sys/wait.h>

struct torn {
    struct rich rich;
    char pristine[200];
    struct loop *loop; // for looking at files
};

static int setup(void **state)
{
    struct torn *torn = calloc(1, sizeof *torn);
    strcpy(torn->pristine, "/tmp/test_torn.XXXXXX");
    assert_non_null(mkdtemp(torn->pristine));
    snprintf(torn->rich.of.directory, sizeof torn->rich.of.directory, "%s/pristine", torn->pristine);
    rich_make(&torn->rich);
    rich_close(&torn->rich);
    snprintf(torn->rich.of.directory, sizeof torn->rich.of.directory, "%s/store", torn->pristine);
    assert_int_equal(io_ring_loop_create(0, 64, &torn->loop), 0);
    *state = torn;
    return 0;
}

static int teardown(void **state)
{
    struct torn *torn = *state;
    rich_close(&torn->rich);
    io_ring_loop_destroy(torn->loop);
    rich_run("chmod -R u+rwx %s && rm -rf %s", torn->pristine, torn->pristine);
    free(torn);
    return 0;
}

static void fresh(struct torn *torn)
{
    rich_run("rm -rf %s && cp -r %s/pristine %s", torn->rich.of.directory, torn->pristine,
            torn->rich.of.directory);
}

static struct store_check_result look(struct torn *torn, struct rich_found *found)
{
    struct error err = {0};
    struct store_check_result result = {0};
    *found = (struct rich_found){0};
    int r = store_check_files(torn->loop, torn->rich.of.directory, rich_note, found, &result, &err);
    if (r < 0)
        fail_msg("check of files: %s", err.text);
    return result;
}

struct outcome {
    int opened; // 0 or -errno
    struct error err;
    struct rich_reads reads;
};

static struct outcome try_store(struct torn *torn, bool read_only)
{
    struct outcome outcome = {0};
    outcome.opened = rich_open(&torn->rich, read_only, &outcome.err);
    if (outcome.opened == 0) {
        outcome.reads = rich_compare(&torn->rich);
        rich_close(&torn->rich);
    }
    return outcome;
}

static void newest(struct torn *torn, const char *folder, char *ret_path, size_t size)
{
    if (strcmp(folder, "catalog") == 0)
        snprintf(ret_path, size, "%s/catalog/data.mdb", torn->rich.of.directory);
    else
        rich_file(&torn->rich, folder, true, ret_path, size);
}

// ---- D03 ----

enum change { CUT_TO_NOTHING, CUT_TO_HALF, ZERO_END, EXTEND, REMOVE, CHANGES };

static void change(enum change which, const char *path)
{
    static const uint8_t zeros[BLOCK_SIZE];
    struct stat stat_of;
    assert_int_equal(stat(path, &stat_of), 0);
    int fd = open(path, O_RDWR), r = -1;
    assert_true(fd >= 0);
    if (which == CUT_TO_NOTHING || which == CUT_TO_HALF || which == EXTEND)
        r = ftruncate(fd, which == CUT_TO_NOTHING ? 0
                          : which == CUT_TO_HALF  ? stat_of.st_size / 2
                                                  : stat_of.st_size + (1 << 20));
    else if (which == ZERO_END)
        r = pwrite(fd, zeros, sizeof zeros, stat_of.st_size - BLOCK_SIZE) == BLOCK_SIZE ? 0 : -1;
    else
        r = unlink(path);
    assert_int_equal(r, 0);
    close(fd);
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') + 1;
}

static void test_d03(void **state)
{
    struct torn *torn = *state;
    static const char *const folders[] = {"log", "segments", "catalog"};
    for (unsigned f = 0; f < 3; f++) {
        for (unsigned c = 0; c < CHANGES; c++) {
            char path[600];
            struct rich_found found;
            fresh(torn);
            newest(torn, folders[f], path, sizeof path);
            change((enum change)c, path);
            struct store_check_result result = look(torn, &found);
            struct outcome outcome = try_store(torn, false);
            bool log_end = f == 0 && c == ZERO_END; // its last 4 KiB were not in use
            bool named =
                    strstr(found.text, base_name(path)) != NULL || strstr(found.text, folders[f]) != NULL;
            bool longer = f == 2 && c == EXTEND; // which a database may be
            if (!log_end && !longer && (result.damages == 0 || !named))
                fail_msg("%s, change %u: not told: %s", path, c, found.text);
            if (outcome.opened < 0 && strstr(outcome.err.text, folders[f]) == NULL)
                fail_msg("%s, change %u: refused without its name: %s", path, c, outcome.err.text);
            if (outcome.reads.wrong + outcome.reads.missing > 0)
                fail_msg("%s, change %u: %u blocks are wrong, %u roots missing", path, c, outcome.reads.wrong,
                        outcome.reads.missing);
            if (c == EXTEND)
                assert_true(outcome.opened == 0 && outcome.reads.failed == 0);
        }
    }
}

static void test_d03_duplicates(void **state)
{
    struct torn *torn = *state;
    static const char *const folders[] = {"log", "segments"};
    struct rich_root *model = malloc(sizeof torn->rich.roots);
    memcpy(model, torn->rich.roots, sizeof torn->rich.roots);
    for (unsigned f = 0; f < 2; f++) {
        char path[600];
        struct rich_found found;
        fresh(torn);
        newest(torn, folders[f], path, sizeof path);
        unsigned long number = strtoul(base_name(path), NULL, 10);
        rich_run("cp %s %s/%s/%08lu%s", path, torn->rich.of.directory, folders[f], number + 1,
                f == 1 ? ".1" : "");
        look(torn, &found);
        rich_must_open(&torn->rich, true);
        struct store_check_result result = rich_check(&torn->rich, &found);
        assert_int_equal(result.damages, 0);
        assert_int_equal(result.leftovers, 1);
        rich_expect_right(&torn->rich);
        rich_close(&torn->rich);
        rich_must_open(&torn->rich, false);
        rich_expect_right(&torn->rich);
        rich_seal(&torn->rich); // new numbers do not meet the copy
        rich_write(&torn->rich, RICH_DISK, 800, 3, 9500);
        rich_seal(&torn->rich);
        rich_expect_right(&torn->rich);
        rich_expect_clean(&torn->rich);
        rich_close(&torn->rich);
        memcpy(torn->rich.roots, model, sizeof torn->rich.roots);
    }
    free(model);
}

static void test_swapped_files(void **state)
{
    struct torn *torn = *state;
    char first[600], last[600];
    struct rich_found found;
    fresh(torn);
    rich_file(&torn->rich, "segments", false, first, sizeof first);
    rich_file(&torn->rich, "segments", true, last, sizeof last);
    rich_run("mv %s %s.x && mv %s %s && mv %s.x %s", first, first, last, first, first, last);
    assert_true(look(torn, &found).damages >= 2);
    assert_non_null(strstr(found.text, base_name(first)));
    assert_non_null(strstr(found.text, base_name(last)));
    struct outcome outcome = try_store(torn, false);
    assert_int_equal(outcome.opened, 0);
    assert_int_equal(outcome.reads.wrong, 0);
    assert_true(outcome.reads.failed > 0);
}

// ---- Flipped bits ----

struct flips {
    unsigned told, meaningless;
    uint64_t last_told; // byte
};

// Flips about `count` bits all over [0, size) of a file, one at a time.
static struct flips flip_all(struct torn *torn, const char *path, uint64_t size, unsigned count)
{
    struct flips flips = {0};
    uint64_t bits = size * 8, step = bits / count + 1;
    for (uint64_t bit = 0; bit < bits; bit += step) {
        struct rich_found found;
        unsigned turn = (unsigned)(bit / step);
        uint64_t at = (bit + turn % 8) % bits;
        rich_flip(path, at / 8, 1u << at % 8);
        bool told = look(torn, &found).damages > 0;
        if (!told || turn % 8 == 0) {
            struct outcome outcome = try_store(torn, true);
            if (outcome.reads.wrong + outcome.reads.missing > 0)
                fail_msg("%s, bit %llu: wrong data was served", path, (unsigned long long)at);
            if (!told && (outcome.opened < 0 || outcome.reads.failed > 0))
                fail_msg("%s, bit %llu: it matters, and was not told (%s)", path, (unsigned long long)at,
                        outcome.err.text);
        }
        flips.told += told;
        flips.meaningless += !told;
        flips.last_told = told ? at / 8 : flips.last_told;
        rich_flip(path, at / 8, 1u << at % 8);
    }
    return flips;
}

static uint64_t size_of(const char *path)
{
    struct stat stat_of;
    assert_int_equal(stat(path, &stat_of), 0);
    return (uint64_t)stat_of.st_size;
}

static void test_bits_of_superblock(void **state)
{
    struct torn *torn = *state;
    char path[600];
    fresh(torn);
    snprintf(path, sizeof path, "%s/superblock", torn->rich.of.directory);
    struct flips flips = flip_all(torn, path, size_of(path), 300);
    assert_int_equal(flips.meaningless, 0);
}

static void test_bits_of_segments(void **state)
{
    struct torn *torn = *state;
    char path[600];
    fresh(torn);
    for (unsigned last = 0; last < 2; last++) {
        rich_file(&torn->rich, "segments", last, path, sizeof path);
        struct flips flips = flip_all(torn, path, size_of(path), 250);
        assert_int_equal(flips.meaningless, 0);
    }
}

// What follows the last record means nothing.
static void test_bits_of_log(void **state)
{
    struct torn *torn = *state;
    char path[600];
    fresh(torn);
    rich_file(&torn->rich, "log", true, path, sizeof path);
    struct flips all = flip_all(torn, path, size_of(path), 300);
    assert_true(all.told > 0 && all.meaningless > 0);
    uint64_t used = (all.last_told / BLOCK_SIZE) * BLOCK_SIZE;
    struct flips flips = flip_all(torn, path, used, 300);
    if (flips.meaningless != 0)
        fail_msg("%u bits before byte %llu were not told", flips.meaningless, (unsigned long long)used);
}

// Pages that hold an older state, or nothing, mean nothing; so does the room between nodes of a page.
static void test_bits_of_catalog(void **state)
{
    struct torn *torn = *state;
    char path[600];
    fresh(torn);
    snprintf(path, sizeof path, "%s/catalog/data.mdb", torn->rich.of.directory);
    struct flips flips = flip_all(torn, path, size_of(path), 400);
    assert_true(flips.told > 20);
}

// The mark in the lock's file is a hint.
static void test_bits_of_lock(void **state)
{
    struct torn *torn = *state;
    char path[600];
    fresh(torn);
    snprintf(path, sizeof path, "%s/lock", torn->rich.of.directory);
    struct flips flips = flip_all(torn, path, size_of(path), 48);
    assert_int_equal(flips.told, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_d03, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d03_duplicates, setup, teardown),
            cmocka_unit_test_setup_teardown(test_swapped_files, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bits_of_superblock, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bits_of_segments, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bits_of_log, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bits_of_catalog, setup, teardown),
            cmocka_unit_test_setup_teardown(test_bits_of_lock, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
