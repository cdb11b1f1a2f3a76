// SPDX-License-Identifier: Apache-2.0
// For the tests of checkpoint_db: numbered states, each a list of rows that follows from its number, so that
// what is read tells which state it is.
#pragma once

#include "blockstore/checkpoint_db.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FIXTURE_ROWS_MAX = 700, FIXTURE_PATH_MAX = 200 };

// A number of a fixed sequence (splitmix64).
static inline uint64_t fixture_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

struct fixture_state {
    struct checkpoint_row rows[FIXTURE_ROWS_MAX];
    uint8_t values[FIXTURE_ROWS_MAX][CHECKPOINT_VALUE_MAX];
    size_t count;
};

// State `number`: its first row is the number; of the others an eighth is new in each state, some come and
// go. `rows`: about how many; `size_max`: of a value.
static inline void fixture_make(struct fixture_state *state, uint64_t number, size_t rows, size_t size_max)
{
    size_t count = rows - fixture_mix(number) % (rows / 4 + 1);
    state->count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t version = number - (number + i * 7) % 8, random = fixture_mix(version * 4096 + i);
        if (i > 0 && random >> 60 == 0)
            continue;
        uint8_t *value = state->values[state->count];
        struct checkpoint_row *row = &state->rows[state->count++];
        *row = (struct checkpoint_row){.kind = (uint8_t)(i * 5 / rows), .id = i * i, .value = value};
        row->size = i == 0 ? sizeof number : random % (size_max + 1);
        if (i == 0)
            memcpy(value, &number, sizeof number);
        for (size_t k = 0; i > 0 && k < row->size; k++)
            value[k] = (uint8_t)fixture_mix(random + k);
    }
}

struct fixture_reading {
    const struct fixture_state *expected;
    size_t at, wrong;
    uint64_t number;
};

static inline int fixture_number_row(void *context, const struct checkpoint_row *row)
{
    struct fixture_reading *reading = context;
    if (reading->at++ == 0 && row->kind == 0 && row->id == 0 && row->size == sizeof reading->number)
        memcpy(&reading->number, row->value, row->size);
    return 0;
}

static inline int fixture_compare_row(void *context, const struct checkpoint_row *row)
{
    struct fixture_reading *reading = context;
    size_t i = reading->at++;
    const struct checkpoint_row *want = &reading->expected->rows[i];
    if (i >= reading->expected->count || row->kind != want->kind || row->id != want->id ||
            row->size != want->size || (row->size > 0 && memcmp(row->value, want->value, row->size) != 0))
        reading->wrong++;
    return 0;
}

// What the catalog holds is exactly this state: 1, else 0; or what reading answered.
static inline int fixture_holds(
        struct checkpoint_db *db, const struct fixture_state *state, struct error *err)
{
    struct fixture_reading reading = {.expected = state};
    int r = checkpoint_db_read(db, fixture_compare_row, &reading, err);
    return r < 0 ? r : reading.wrong == 0 && reading.at == state->count;
}

// The number that the first row tells, 0 for an empty catalog.
static inline int fixture_number(struct checkpoint_db *db, uint64_t *ret_number, struct error *err)
{
    struct fixture_reading reading = {0};
    int r = checkpoint_db_read(db, fixture_number_row, &reading, err);
    *ret_number = reading.number;
    return r;
}

static inline struct checkpoint_db *fixture_open(const char *directory, bool read_only, uint64_t map_bytes)
{
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    if (checkpoint_db_open(NULL, directory, read_only, map_bytes, &db, &err) < 0)
        fail_msg("open %s: %s", directory, err.text);
    return db;
}

static inline void fixture_commit(struct checkpoint_db *db, const struct fixture_state *state)
{
    struct error err = {0};
    if (checkpoint_db_commit(db, state->rows, state->count, &err) < 0)
        fail_msg("commit: %s", err.text);
}

static inline void fixture_assert_holds(struct checkpoint_db *db, const struct fixture_state *state)
{
    struct error err = {0};
    int r = fixture_holds(db, state, &err);
    if (r < 0)
        fail_msg("read: %s", err.text);
    assert_int_equal(r, 1);
}

// Opening fails with this code, and words that name the directory.
static inline void fixture_assert_refused(const char *directory, bool read_only, int code)
{
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    int r = checkpoint_db_open(NULL, directory, read_only, 0, &db, &err);
    if (r != code)
        fail_msg("opening %s (%s): %d instead of %d: %s", directory, read_only ? "reading" : "writing", r,
                code, err.text);
    assert_null(db);
    assert_non_null(strstr(err.text, directory));
}

// A whole file in memory.
struct fixture_bytes {
    uint8_t *bytes;
    size_t size;
};

static inline struct fixture_bytes fixture_load(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    assert_true(fd >= 0 && fstat(fd, &stat) == 0);
    struct fixture_bytes file = {malloc((size_t)stat.st_size + 1), (size_t)stat.st_size};
    assert_int_equal(pread(fd, file.bytes, file.size, 0), file.size);
    close(fd);
    return file;
}

static inline void fixture_store(const char *path, const void *bytes, size_t size)
{
    unlink(path); // truncating one would make some file systems sync it
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, 0), size);
    close(fd);
}

static inline char *fixture_path(char path[FIXTURE_PATH_MAX], const char *directory, const char *name)
{
    if (snprintf(path, FIXTURE_PATH_MAX, "%s/%s", directory, name) >= FIXTURE_PATH_MAX)
        fail_msg("the path of %s is too long", directory);
    return path;
}

// A directory of each test's own; removed with all that is in it.
static inline int fixture_setup(void **state)
{
    char *directory = strdup("test_checkpoint.XXXXXX");
    *state = directory;
    return directory == NULL || mkdtemp(directory) == NULL ? -1 : 0;
}

static inline int fixture_teardown(void **state)
{
    char command[FIXTURE_PATH_MAX];
    snprintf(command, sizeof command, "chmod -R u+rwx %s; rm -rf %s", (char *)*state, (char *)*state);
    free(*state);
    return system(command);
}
