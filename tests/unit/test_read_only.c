// SPDX-License-Identifier: Apache-2.0
// Opening for reading only; and who may have a store at one time (field case D05).
#include "tests/unit/rich_store.h"

#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { NOBODY = 65534, SKIPPED = 77 };

struct place {
    struct rich rich;
    char top[200];
};

static int setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    strcpy(place->top, "/tmp/test_read_only.XXXXXX");
    assert_non_null(mkdtemp(place->top));
    assert_int_equal(chmod(place->top, 0755), 0);
    snprintf(place->rich.of.directory, sizeof place->rich.of.directory, "%s/store", place->top);
    rich_make(&place->rich);
    rich_close(&place->rich);
    *state = place;
    return 0;
}

static int teardown(void **state)
{
    struct place *place = *state;
    rich_close(&place->rich);
    rich_run("chmod -R u+rwx %s && rm -rf %s", place->top, place->top);
    free(place);
    return 0;
}

// Names, sizes, times and bytes of everything.
static char *picture(const struct place *place)
{
    char command[1000];
    snprintf(command, sizeof command,
            "cd %s && find . -printf '%%p %%s %%m %%T@ %%C@\\n' | sort && find . -type f | sort | xargs "
            "sha256sum",
            place->rich.of.directory);
    FILE *pipe = popen(command, "r");
    char *text = calloc(1, 1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, pipe);
    assert_int_equal(pclose(pipe), 0);
    assert_true(size > 1000);
    return text;
}

static void expect_no_writing(struct rich *rich)
{
    struct error err = {0};
    uint8_t *bytes = io_buffer_alloc(BLOCK_SIZE);
    struct volume *volume = rich_volume(rich, "disk");
    assert_int_equal(volume_write_wait(volume, 0, bytes, BLOCK_SIZE, 0), -EROFS);
    assert_int_equal(volume_zero_wait(volume, 0, BLOCK_SIZE, true, 0), -EROFS);
    assert_int_equal(volume_flush_wait(volume), 0); // there is nothing to flush
    volume_close(volume);
    io_buffer_free(bytes);
    struct txn *txn = txn_begin(rich->of.store);
    txn_volume_create(txn, "new", VOLUME_DISK, 1 << 20, (struct base_id){0});
    assert_int_equal(txn_commit_wait(txn, 0, &err), -EROFS);
    assert_true(err.text[0] != 0);
    err = (struct error){0};
    assert_int_equal(store_seal(rich->of.store, &err), -EROFS);
    assert_non_null(strstr(err.text, "reading only"));
    struct volume_info info;
    assert_int_equal(store_volume_find(rich->of.store, "new", &info), -ENOENT);
}

static void test_leaves_everything_as_it_is(void **state)
{
    struct place *place = *state;
    char *before = picture(place);
    rich_must_open(&place->rich, true);
    rich_expect_right(&place->rich);
    rich_expect_clean(&place->rich);
    expect_no_writing(&place->rich);
    rich_expect_right(&place->rich);
    rich_close(&place->rich);
    char *after = picture(place);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

// A store whose owner was killed has no clean end: reading shows what a recovery would, and changes nothing.
static void test_after_a_kill(void **state)
{
    struct place *place = *state;
    pid_t child = fork();
    if (child == 0) {
        rich_must_open(&place->rich, false);
        rich_write(&place->rich, RICH_DISK, 900, 4, 8800);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    for (unsigned i = 0; i < 4; i++)
        place->rich.roots[RICH_DISK].seeds[900 + i] = 8800 + i;
    char *before = picture(place);
    rich_must_open(&place->rich, true);
    rich_expect_right(&place->rich);
    rich_expect_clean(&place->rich);
    rich_close(&place->rich);
    char *after = picture(place);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

// Runs fn as a user who owns nothing; its result is 0 (right), or SKIPPED when that cannot be done.
static int as_nobody(struct place *place, int (*fn)(struct place *place))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setgid(NOBODY) < 0 || setuid(NOBODY) < 0))
            _exit(SKIPPED);
        _exit(fn(place));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int read_all(struct place *place)
{
    struct error err = {0};
    struct rich_found found;
    if (rich_open(&place->rich, true, &err) < 0) {
        print_error("%s\n", err.text);
        return 1;
    }
    struct rich_reads reads = rich_compare(&place->rich);
    bool right = reads.right > 4000 && reads.wrong + reads.failed + reads.missing == 0;
    right = right && rich_check(&place->rich, &found).damages == 0;
    rich_close(&place->rich);
    return right ? 0 : 2;
}

static int open_to_write(struct place *place)
{
    struct error err = {0};
    int r = rich_open(&place->rich, false, &err);
    return r == -EACCES && err.text[0] != 0 ? 0 : 1;
}

static void test_read_only_directory(void **state)
{
    struct place *place = *state;
    rich_run("chmod -R a+rX,a-w %s", place->rich.of.directory);
    char *before = picture(place);
    assert_int_equal(as_nobody(place, read_all), 0);
    assert_int_equal(as_nobody(place, open_to_write), 0);
    char *after = picture(place);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

// ---- D05: locks and permissions ----

static int refused_as_busy(struct rich *rich, bool read_only)
{
    struct error err = {0};
    struct rich *second = calloc(1, sizeof *second);
    memcpy(second->of.directory, rich->of.directory, sizeof second->of.directory);
    int r = rich_open(second, read_only, &err);
    if (r != -EBUSY || strstr(err.text, "in use by another process") == NULL)
        fail_msg("opening answered %d: %s", r, err.text);
    free(second);
    return r;
}

static void test_d05_one_owner(void **state)
{
    struct place *place = *state;
    struct rich *alias = calloc(1, sizeof *alias);
    rich_must_open(&place->rich, false);
    refused_as_busy(&place->rich, false);
    refused_as_busy(&place->rich, true); // beside a running owner only it may look
    snprintf(alias->of.directory, sizeof alias->of.directory, "%.190s/link", place->top);
    assert_int_equal(symlink(place->rich.of.directory, alias->of.directory), 0);
    refused_as_busy(alias, false);
    snprintf(alias->of.directory, sizeof alias->of.directory, "%.190s/bind", place->top);
    assert_int_equal(mkdir(alias->of.directory, 0700), 0);
    char command[1000];
    snprintf(command, sizeof command, "mount --bind %s %s 2>/dev/null", place->rich.of.directory,
            alias->of.directory);
    if (system(command) == 0) {
        refused_as_busy(alias, false);
        rich_run("umount %s", alias->of.directory);
    } else {
        print_message("skipped: the bind mount (this user may not mount)\n");
    }
    free(alias);
    rich_expect_right(&place->rich);
}

static void test_d05_readers_share(void **state)
{
    struct place *place = *state;
    struct rich *second = calloc(1, sizeof *second);
    *second = place->rich;
    rich_must_open(&place->rich, true);
    rich_must_open(second, true);
    rich_expect_right(second);
    rich_close(second);
    refused_as_busy(&place->rich, false); // and no owner meanwhile
    free(second);
}

static pid_t owner_start(struct place *place, int *ret_ready)
{
    int pipes[2];
    char byte;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        rich_must_open(&place->rich, false);
        if (write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    *ret_ready = pipes[0];
    return child;
}

static void test_d05_stopped_and_dead_owners(void **state)
{
    struct place *place = *state;
    int ready, status;
    pid_t owner = owner_start(place, &ready);
    assert_int_equal(kill(owner, SIGSTOP), 0);
    refused_as_busy(&place->rich, false);
    refused_as_busy(&place->rich, true);
    assert_int_equal(kill(owner, SIGKILL), 0);
    assert_int_equal(waitpid(owner, &status, 0), owner);
    close(ready);
    // What stands in the lock's file never blocks: nothing, or the number of a process that lives.
    rich_run("echo %d > %s/lock", (int)getppid(), place->rich.of.directory);
    rich_must_open(&place->rich, false);
    rich_expect_right(&place->rich);
    rich_close(&place->rich);
    rich_run(": > %s/lock", place->rich.of.directory);
    rich_must_open(&place->rich, false);
    rich_expect_right(&place->rich);
}

static void test_d05_copied_elsewhere(void **state)
{
    struct place *place = *state;
    rich_run("cp -r %s %s/copy", place->rich.of.directory, place->top);
    struct rich *copy = calloc(1, sizeof *copy);
    *copy = place->rich;
    snprintf(copy->of.directory, sizeof copy->of.directory, "%.190s/copy", place->top);
    rich_must_open(&place->rich, false); // both at once: they are two stores
    rich_must_open(copy, false);
    rich_expect_right(copy);
    rich_write(copy, RICH_DISK, 500, 2, 8700);
    rich_seal(copy);
    rich_expect_clean(copy);
    rich_expect_right(&place->rich);
    rich_close(copy);
    free(copy);
}

static char unreadable[600];

static int sees_unreadable_segment(struct place *place)
{
    struct error err = {0};
    struct rich_found found;
    if (rich_open(&place->rich, false, &err) < 0)
        return 1;
    struct rich_reads reads = rich_compare(&place->rich);
    struct store_check_result result = rich_check(&place->rich, &found);
    struct store_gc_result gc;
    int collected = store_gc(place->rich.of.store, 0, &gc, &err);
    rich_close(&place->rich);
    bool told = result.damages > 0 && strstr(found.text, strrchr(unreadable, '/')) != NULL;
    struct loop *loop;
    io_ring_loop_create(0, 64, &loop);
    int rebuilt = store_rebuild_catalog(loop, place->rich.of.directory, rich_note, &found, &err);
    io_ring_loop_destroy(loop);
    bool refused = rebuilt < 0 && strstr(err.text, strrchr(unreadable, '/')) != NULL;
    if (!refused || !told)
        print_error("told %d, rebuild %d: %s\n", told, rebuilt, err.text);
    // A collection need not read it; whatever it does, the file stays.
    bool kept = collected < 0 || access(unreadable, F_OK) == 0;
    return reads.wrong == 0 && reads.failed > 0 && told && kept && refused ? 0 : 2;
}

static void test_d05_unreadable_is_not_absent(void **state)
{
    struct place *place = *state;
    if (geteuid() == 0)
        rich_run("chown -R %d:%d %s", NOBODY, NOBODY, place->rich.of.directory);
    rich_file(&place->rich, "segments", false, unreadable, sizeof unreadable);
    assert_int_equal(chmod(unreadable, 0), 0);
    assert_int_equal(as_nobody(place, sees_unreadable_segment), 0);
    assert_int_equal(access(unreadable, F_OK), 0);
    assert_int_equal(chmod(unreadable, 0600), 0);
    assert_int_equal(as_nobody(place, read_all), 0); // nothing was lost
}

// ---- D06: readers that are killed; a small map ----

static void test_d06_killed_readers(void **state)
{
    struct place *place = *state;
    char path[300];
    struct stat before, after;
    snprintf(path, sizeof path, "%s/catalog/data.mdb", place->rich.of.directory);
    for (unsigned i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct rich_found found;
            rich_must_open(&place->rich, true);
            if (i % 2 == 0)
                raise(SIGKILL);
            rich_check(&place->rich, &found);
            raise(SIGKILL);
        }
        int status;
        if (i % 3 == 0)
            kill(child, SIGKILL); // wherever it is
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
    }
    assert_int_equal(stat(path, &before), 0);
    rich_must_open(&place->rich, false);
    for (unsigned i = 0; i < 30; i++) {
        rich_write(&place->rich, RICH_DISK, 400 + i, 1, 8600 + i);
        rich_seal(&place->rich);
    }
    rich_expect_right(&place->rich);
    rich_expect_clean(&place->rich);
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_size <= before.st_size + (256 << 10));
}

static void test_d06_small_map(void **state)
{
    struct place *place = *state;
    struct error err = {0};
    struct store_config config = {.catalog_map_bytes = 64 << 10};
    int r = rich_open_with(&place->rich, &config, &err), sealed = 0;
    if (r < 0)
        fail_msg("open with a small map: %s", err.text);
    // Each round leaves a root more; some round does not fit into the map any more.
    for (unsigned i = 0; sealed == 0 && i < 1000; i++) {
        char name[40];
        snprintf(name, sizeof name, "of a small map %u", i);
        struct txn *txn = txn_begin(place->rich.of.store);
        struct doc doc = {.kind = DOC_SNAPSHOT, .body = (char *)"", .base_count = 1};
        snprintf(doc.name, sizeof doc.name, "%s", name);
        doc.bases[0] = txn_freeze(txn, rich_id(&place->rich, "child"));
        txn_doc_put(txn, &doc, NULL, 0);
        if (txn_commit_wait(txn, 0, &err) < 0) {
            print_message("the catalog's own limit came first: %s\n", err.text);
            break;
        }
        rich_write(&place->rich, RICH_CHILD, 700 + i % 100, 1, 8500 + i);
        sealed = i % 4 == 3 ? store_seal(place->rich.of.store, &err) : 0;
    }
    if (sealed < 0) {
        assert_int_equal(sealed, -ENOSPC);
        assert_non_null(strstr(err.text, "larger map"));
    }
    rich_expect_right(&place->rich);
    rich_close(&place->rich);
    rich_must_open(&place->rich, false); // the previous state and the log
    rich_expect_right(&place->rich);
    rich_seal(&place->rich);
    rich_expect_clean(&place->rich);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_leaves_everything_as_it_is, setup, teardown),
            cmocka_unit_test_setup_teardown(test_after_a_kill, setup, teardown),
            cmocka_unit_test_setup_teardown(test_read_only_directory, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d05_one_owner, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d05_readers_share, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d05_stopped_and_dead_owners, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d05_copied_elsewhere, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d05_unreadable_is_not_absent, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d06_killed_readers, setup, teardown),
            cmocka_unit_test_setup_teardown(test_d06_small_map, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
