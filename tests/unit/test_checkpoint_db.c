// SPDX-License-Identifier: Apache-2.0
// Checkpoints: what was committed is what is read, a commit that cannot be changes nothing, and nothing that
// is merely unreadable passes for absent.
#include "tests/unit/checkpoint_fixture.h"

#include <sys/resource.h>
#include <sys/wait.h>

static struct fixture_state now, other;

static void test_commit_replace_remove_read(void **state)
{
    char path[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    struct checkpoint_db *db = fixture_open(path, false, 0);
    now.count = 0;
    fixture_assert_holds(db, &now);
    for (uint64_t number = 1; number <= 60; number++) {
        fixture_make(&now, number, number % 10 == 0 ? 3 : 300, 300);
        fixture_commit(db, &now);
        fixture_assert_holds(db, &now);
        if (number % 7 == 0) {
            db = checkpoint_db_close(db);
            db = fixture_open(path, false, 0);
            fixture_assert_holds(db, &now);
        }
    }
    now.count = 0;
    fixture_commit(db, &now);
    fixture_assert_holds(db, &now);
    checkpoint_db_close(db);
    db = fixture_open(path, true, 0);
    fixture_assert_holds(db, &now);
    checkpoint_db_close(db);
}

// All pages full of the largest rows, and of the smallest; first and last keys.
static void test_extremes(void **state)
{
    char path[FIXTURE_PATH_MAX];
    struct checkpoint_db *db = fixture_open(fixture_path(path, *state, "catalog"), false, 0);
    for (unsigned round = 0; round < 2; round++) {
        now.count = FIXTURE_ROWS_MAX;
        for (size_t i = 0; i < now.count; i++) {
            now.rows[i] = (struct checkpoint_row){.kind = i < 9     ? 0
                                                          : i < 600 ? 7
                                                                    : 255,
                    .id = i == FIXTURE_ROWS_MAX - 1 ? UINT64_MAX : i,
                    .value = now.values[i],
                    .size = round == 0 ? CHECKPOINT_VALUE_MAX : i % 2};
            memset(now.values[i], (int)i, CHECKPOINT_VALUE_MAX);
        }
        fixture_commit(db, &now);
        fixture_assert_holds(db, &now);
    }
    now.rows[0].value = NULL; // of no size
    now.rows[0].size = 0;
    fixture_commit(db, &now);
    fixture_assert_holds(db, &now);
    checkpoint_db_close(db);
}

static void test_bad_rows(void **state)
{
    char path[FIXTURE_PATH_MAX];
    struct checkpoint_db *db = fixture_open(fixture_path(path, *state, "catalog"), false, 0);
    fixture_make(&now, 1, 20, 30);
    fixture_commit(db, &now);
    other = now;
    other.rows[5] = other.rows[4]; // twice
    struct error err = {0};
    assert_int_equal(checkpoint_db_commit(db, other.rows, other.count, &err), -EINVAL);
    other.rows[4] = now.rows[5]; // out of order
    assert_int_equal(checkpoint_db_commit(db, other.rows, other.count, &err), -EINVAL);
    other.rows[4] = now.rows[4];
    other.rows[5] = now.rows[5];
    other.rows[5].size = CHECKPOINT_VALUE_MAX + 1;
    assert_int_equal(checkpoint_db_commit(db, other.rows, other.count, &err), -EINVAL);
    fixture_assert_holds(db, &now);
    checkpoint_db_close(db);
}

static int stop_at_third(void *context, const struct checkpoint_row *row)
{
    unsigned *calls = context;
    return ++*calls == 3 ? -EXDEV : 0;
}

static void test_reading_stops(void **state)
{
    char path[FIXTURE_PATH_MAX];
    struct checkpoint_db *db = fixture_open(fixture_path(path, *state, "catalog"), false, 0);
    fixture_make(&now, 1, 20, 30);
    fixture_commit(db, &now);
    unsigned calls = 0;
    struct error err = {0};
    assert_int_equal(checkpoint_db_read(db, stop_at_third, &calls, &err), -EXDEV);
    assert_int_equal(calls, 3);
    checkpoint_db_close(db);
}

static void test_unchanged_writes_nothing(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct checkpoint_db *db = fixture_open(path, false, 0);
    fixture_make(&now, 1, 300, 300);
    fixture_commit(db, &now);
    struct fixture_bytes before = fixture_load(data);
    struct stat stat_before, stat_after;
    assert_int_equal(stat(data, &stat_before), 0);
    for (unsigned i = 0; i < 10; i++)
        fixture_commit(db, &now);
    db = checkpoint_db_close(db);
    db = fixture_open(path, false, 0);
    fixture_commit(db, &now);
    assert_int_equal(stat(data, &stat_after), 0);
    assert_memory_equal(&stat_before.st_mtim, &stat_after.st_mtim, sizeof stat_after.st_mtim);
    struct fixture_bytes after = fixture_load(data);
    assert_int_equal(before.size, after.size);
    assert_memory_equal(before.bytes, after.bytes, after.size);
    free(before.bytes);
    free(after.bytes);
    checkpoint_db_close(db);
}

// The file takes what its rows need and not what was ever written.
static void test_file_does_not_grow(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct checkpoint_db *db = fixture_open(path, false, 0);
    struct stat early, late;
    for (uint64_t number = 1; number <= 1500; number++) {
        fixture_make(&now, number, 200, 200);
        fixture_commit(db, &now);
        assert_int_equal(stat(data, number <= 100 ? &early : &late), 0);
    }
    print_message("after 100 commits %lld bytes, after 1500 %lld\n", (long long)early.st_size,
            (long long)late.st_size);
    assert_true(late.st_size <= early.st_size * 3 / 2);
    checkpoint_db_close(db);
}

static void test_map_full(void **state)
{
    char path[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    const uint64_t map_bytes = 300000;
    struct checkpoint_db *db = fixture_open(path, false, map_bytes);
    struct error err = {0};
    fixture_make(&now, 1, 100, 300);
    fixture_commit(db, &now);
    fixture_make(&other, 2, FIXTURE_ROWS_MAX, CHECKPOINT_VALUE_MAX);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(checkpoint_db_commit(db, other.rows, other.count, &err), -ENOSPC);
        assert_non_null(strstr(err.text, "map of 0 MiB"));
        assert_non_null(strstr(err.text, "larger map"));
        fixture_assert_holds(db, &now);
    }
    fixture_make(&now, 3, 110, 300); // what fits goes on
    fixture_commit(db, &now);
    db = checkpoint_db_close(db);
    db = fixture_open(path, false, map_bytes);
    fixture_assert_holds(db, &now);
    assert_int_equal(checkpoint_db_commit(db, other.rows, other.count, &err), -ENOSPC);
    db = checkpoint_db_close(db);
    db = fixture_open(path, false, 0);
    fixture_commit(db, &other);
    db = checkpoint_db_close(db);
    db = fixture_open(path, false, map_bytes); // less than there is
    fixture_assert_holds(db, &other);
    assert_int_equal(checkpoint_db_commit(db, now.rows, now.count, &err), -ENOSPC);
    fixture_assert_holds(db, &other);
    checkpoint_db_close(db);
}

static void test_little_address_space(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: the sanitizers themselves need more address space than the limit\n");
    skip();
#endif
    char path[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    checkpoint_db_close(fixture_open(path, false, 0));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {UINT64_C(1) << 30, UINT64_C(1) << 30};
        setrlimit(RLIMIT_AS, &limit);
        struct checkpoint_db *db;
        struct error err = {0};
        bool right = checkpoint_db_open(NULL, path, false, 0, &db, &err) == -ENOMEM &&
                     strstr(err.text, "ulimit -v") != NULL &&
                     checkpoint_db_open(NULL, path, false, 64 << 20, &db, &err) == 0;
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_read_only(void **state)
{
    char path[FIXTURE_PATH_MAX], lock[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_assert_refused(path, true, -ENOENT);
    assert_int_not_equal(access(path, F_OK), 0); // nothing was made
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_assert_refused(path, true, -ENOENT);

    struct checkpoint_db *owner = fixture_open(path, false, 0), *reader = fixture_open(path, true, 0);
    for (uint64_t number = 1; number <= 20; number++) {
        fixture_make(&now, number, 100, 100);
        fixture_commit(owner, &now);
        fixture_assert_holds(reader, &now);
    }
    struct error err = {0};
    assert_int_equal(checkpoint_db_commit(reader, now.rows, now.count, &err), -EROFS);
    checkpoint_db_close(owner);
    // Neither needs nor makes a lock file.
    assert_int_equal(unlink(fixture_path(lock, path, "lock.mdb")), 0);
    fixture_assert_holds(reader, &now);
    checkpoint_db_close(reader);
    assert_int_not_equal(access(lock, F_OK), 0);
}

static void test_absent_or_unreadable(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    checkpoint_db_close(fixture_open(path, false, 0));
    assert_int_equal(unlink(data), 0);
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -EBADMSG);
    assert_int_equal(symlink("data.mdb", data), 0); // to itself
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -ELOOP);
    assert_int_equal(unlink(data), 0);
    assert_int_equal(symlink("nowhere", data), 0);
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -EIO);
    assert_int_equal(unlink(data), 0);
    assert_int_equal(mkdir(data, 0700), 0);
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -EBADMSG);
    assert_int_equal(rmdir(data), 0);
    assert_int_equal(mkfifo(data, 0600), 0); // nobody waits for its other end
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -EBADMSG);
    fixture_store(fixture_path(path, *state, "file"), "x", 1);
    for (unsigned read_only = 0; read_only < 2; read_only++)
        fixture_assert_refused(path, read_only, -ENOTDIR);
}

// In a child that is nobody: permissions mean nothing to root.
static int refusals_as_nobody(const char *path, const char *data)
{
    struct checkpoint_db *db;
    struct error err = {0};
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
        return 10;
    if (checkpoint_db_open(NULL, path, true, 0, &db, &err) != 0 || fixture_holds(db, &now, &err) != 1)
        return 1; // directory and file of somebody else, readable
    if (checkpoint_db_open(NULL, path, false, 0, &db, &err) != -EACCES || strstr(err.text, path) == NULL)
        return 2;
    return access(data, W_OK) == 0 ? 11 : 0;
}

static int unreadable_as_nobody(const char *path, const char *data)
{
    struct checkpoint_db *db;
    struct error err = {0};
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
        return 10;
    for (unsigned read_only = 0; read_only < 2; read_only++)
        if (checkpoint_db_open(NULL, path, read_only, 0, &db, &err) != -EACCES)
            return 1;
    return 0;
}

static void assert_child_succeeds(int (*run)(const char *, const char *), const char *path, const char *data)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(run(path, data));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_permissions(void **state)
{
    char path[FIXTURE_PATH_MAX], data[FIXTURE_PATH_MAX], lock[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(data, path, "data.mdb");
    struct checkpoint_db *db = fixture_open(path, false, 0);
    fixture_make(&now, 1, 100, 100);
    fixture_commit(db, &now);
    checkpoint_db_close(db);
    assert_int_equal(chmod(*state, 0755), 0);
    assert_int_equal(chmod(fixture_path(lock, path, "lock.mdb"), 0400), 0);
    assert_int_equal(chmod(data, 0444), 0);
    assert_int_equal(chmod(path, 0555), 0);
    assert_child_succeeds(refusals_as_nobody, path, data);
    assert_int_equal(chmod(data, 0), 0);
    assert_child_succeeds(unreadable_as_nobody, path, data);
    assert_int_equal(chmod(data, 0444), 0);
    assert_int_equal(chmod(path, 0), 0);
    assert_child_succeeds(unreadable_as_nobody, path, data);
    assert_int_equal(chmod(path, 0700), 0);
}

static void test_interrupted_creation(void **state)
{
    char path[FIXTURE_PATH_MAX], creating[FIXTURE_PATH_MAX], inside[FIXTURE_PATH_MAX];
    fixture_path(path, *state, "catalog");
    fixture_path(creating, path, "creating");
    for (unsigned what = 0; what < 4; what++) {
        mkdir(path, 0700);
        assert_int_equal(mkdir(creating, 0700), 0);
        if (what > 0)
            fixture_store(fixture_path(inside, creating, "data.mdb"), "half", what == 1 ? 0 : 4);
        if (what > 2)
            fixture_store(fixture_path(inside, creating, "lock.mdb"), "half", 4);
        fixture_assert_refused(path, true, -ENOENT);
        struct checkpoint_db *db = fixture_open(path, false, 0);
        now.count = 0;
        fixture_assert_holds(db, &now);
        assert_int_not_equal(access(creating, F_OK), 0);
        checkpoint_db_close(db);
        assert_int_equal(unlink(fixture_path(inside, path, "data.mdb")), 0);
        assert_int_equal(unlink(fixture_path(inside, path, "lock.mdb")), 0);
    }
}

// The seam: a loop that keeps checkpoints itself is asked instead.
static struct {
    unsigned opened, read, committed, closed;
    size_t count;
} seam;

static int seam_open(
        struct loop *loop, const char *directory, bool read_only, void **ret_handle, struct error *err)
{
    if (strcmp(directory, "refused") == 0)
        return error_set(err, -EIO, "no");
    seam.opened++;
    *ret_handle = &seam;
    return 0;
}

static int seam_read(void *handle, checkpoint_row_callback each, void *context)
{
    seam.read++;
    return each(context, &now.rows[0]);
}

static int seam_commit(void *handle, const struct checkpoint_row *rows, size_t count)
{
    seam.committed++;
    seam.count = count;
    return count == 1 ? -EIO : 0;
}

static void seam_close(void *handle)
{
    assert_ptr_equal(handle, &seam);
    seam.closed++;
}

static void test_seam(void **state)
{
    const struct checkpoint_db_ops checkpoint = {seam_open, seam_read, seam_commit, seam_close};
    const struct loop_ops ops = {.checkpoint_db = &checkpoint};
    struct loop loop = {.ops = &ops};
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    fixture_make(&now, 1, 20, 30);
    assert_int_equal(checkpoint_db_open(&loop, "refused", false, 0, &db, &err), -EIO);
    assert_string_equal(err.text, "no");
    assert_int_equal(checkpoint_db_open(&loop, "somewhere", false, 0, &db, &err), 0);
    assert_int_equal(checkpoint_db_commit(db, now.rows, now.count, &err), 0);
    assert_int_equal(seam.count, now.count);
    assert_int_equal(checkpoint_db_commit(db, now.rows, 1, &err), -EIO);
    assert_non_null(strstr(err.text, "somewhere"));
    unsigned calls = 2;
    assert_int_equal(checkpoint_db_read(db, stop_at_third, &calls, &err), -EXDEV);
    checkpoint_db_close(db);
    assert_int_equal(seam.opened, 1);
    assert_int_equal(seam.read, 1);
    assert_int_equal(seam.committed, 2);
    assert_int_equal(seam.closed, 1);
    assert_int_not_equal(access("somewhere", F_OK), 0);
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
            IN_DIRECTORY(test_commit_replace_remove_read),
            IN_DIRECTORY(test_extremes),
            IN_DIRECTORY(test_bad_rows),
            IN_DIRECTORY(test_reading_stops),
            IN_DIRECTORY(test_unchanged_writes_nothing),
            IN_DIRECTORY(test_file_does_not_grow),
            IN_DIRECTORY(test_map_full),
            IN_DIRECTORY(test_little_address_space),
            IN_DIRECTORY(test_read_only),
            IN_DIRECTORY(test_absent_or_unreadable),
            IN_DIRECTORY(test_permissions),
            IN_DIRECTORY(test_interrupted_creation),
            cmocka_unit_test(test_seam),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
