// SPDX-License-Identifier: Apache-2.0
// A catalog that is lost, damaged, an older copy or another store's: opening refuses and says what to do, a
// rebuild gives everything back, and what was deleted stays deleted.
#include "tests/unit/rich_store.h"

static void must_not_open(struct rich *rich, const char *words)
{
    struct error err = {0};
    for (unsigned read_only = 0; read_only < 2; read_only++) {
        int r = rich_open(rich, read_only, &err);
        assert_true(r < 0);
        if (strstr(err.text, words) == NULL)
            fail_msg("refused with \"%s\", expected \"%s\"", err.text, words);
    }
}

static int rebuild(struct rich *rich, struct rich_found *found, struct error *err)
{
    struct loop *loop;
    *found = (struct rich_found){0};
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    int r = store_rebuild_catalog(loop, rich->of.directory, rich_note, found, err);
    io_ring_loop_destroy(loop);
    return r;
}

static void must_rebuild(struct rich *rich)
{
    struct rich_found found;
    struct error err = {0};
    if (rebuild(rich, &found, &err) < 0)
        fail_msg("rebuild: %s", err.text);
    assert_true(found.count >= 3);
    rich_must_open(rich, true);
    rich_expect_right(rich);
    rich_expect_clean(rich);
    rich_close(rich);
    rich_must_open(rich, false);
    struct volume_info info;
    assert_int_equal(store_volume_find(rich->of.store, "gone", &info), -ENOENT);
    rich_expect_right(rich);
    rich_expect_clean(rich);
    rich_write(rich, RICH_DISK, 700, 5, 8000); // and it works on
    rich_seal(rich);
    rich_close(rich);
    rich_must_open(rich, false);
    rich_expect_right(rich);
    rich_expect_clean(rich);
}

static void test_lost(void **state)
{
    struct rich *rich = *state;
    rich_close(rich);
    rich_run("rm -rf %s/catalog", rich->of.directory);
    must_not_open(rich, "--rebuild-catalog");
    must_rebuild(rich);
}

static void test_damaged(void **state)
{
    struct rich *rich = *state;
    rich_close(rich);
    rich_run("dd if=/dev/zero of=%s/catalog/data.mdb bs=4096 count=2 conv=notrunc 2>/dev/null",
            rich->of.directory);
    must_not_open(rich, "rebuild");
    must_rebuild(rich);
    rich_run("test -s %s/catalog.old/data.mdb", rich->of.directory);
}

static void test_older_copy(void **state)
{
    struct rich *rich = *state;
    rich_close(rich);
    rich_run("cp -r %s/catalog %s.other", rich->of.directory, rich->of.directory);
    rich_must_open(rich, false);
    rich_write(rich, RICH_CHILD, 40, 30, 8100);
    rich_seal(rich);
    rich_write(rich, RICH_CHILD, 60, 30, 8200);
    rich_close(rich);
    rich_run("cd %s && mv catalog catalog.right && cp -r ../%s.other catalog", rich->of.directory,
            rich->of.directory);
    must_not_open(rich, "--rebuild-catalog");
    must_rebuild(rich);
}

static void test_of_another_store(void **state)
{
    struct rich *rich = *state, *other = calloc(1, sizeof *other);
    rich_close(rich);
    snprintf(other->of.directory, sizeof other->of.directory, "%.190s.other", rich->of.directory);
    rich_make(other);
    rich_close(other);
    rich_run("rm -rf %s/catalog && cp -r %s/catalog %s/catalog", rich->of.directory, other->of.directory,
            rich->of.directory);
    free(other);
    must_not_open(rich, "another store");
    must_rebuild(rich);
}

static void test_never_sealed(void **state)
{
    struct rich *rich = *state;
    rich_close(rich);
    rich_run("rm -rf %s", rich->of.directory);
    struct error err = {0};
    struct rich_found found;
    rich->of.config = (struct store_config){.log_file_bytes = RICH_FILE_BYTES,
            .log_budget_bytes = (uint64_t)RICH_FILE_BYTES * RICH_BUDGET_FILES};
    store_fixture_make(&rich->of);
    rich_model(rich);
    rich_must_open(rich, false);
    rich_create(rich, RICH_DISK, VOLUME_DISK, (struct base_id){0}, 0);
    rich_write(rich, RICH_DISK, 0, 40, 1000);
    rich_close(rich);
    rich_run("rm -rf %s/catalog", rich->of.directory);
    if (rebuild(rich, &found, &err) < 0)
        fail_msg("rebuild: %s", err.text);
    rich_must_open(rich, false);
    struct rich_reads reads = rich_compare(rich);
    assert_int_equal(reads.right, 1000);
    assert_int_equal(reads.wrong + reads.failed, 0);
}

static void test_refuses_damaged_log(void **state)
{
    struct rich *rich = *state;
    struct rich_found found;
    struct error err = {0};
    char path[600];
    rich_close(rich);
    rich_file(rich, "log", true, path, sizeof path);
    rich_flip(path, 100, 1); // the head of the newest file
    assert_true(rebuild(rich, &found, &err) < 0);
    if (strstr(err.text, strrchr(path, '/') + 1) == NULL)
        fail_msg("%s, %s", path, err.text);
    rich_flip(path, 100, 1);
    rich_must_open(rich, false); // nothing was done
    rich_expect_right(rich);
}

static void test_damaged_segment_stays_damaged(void **state)
{
    struct rich *rich = *state;
    struct rich_found found;
    struct error err = {0};
    char path[600];
    rich_close(rich);
    rich_file(rich, "segments", false, path, sizeof path);
    rich_flip(path, 4096 + 20, 1);
    rich_run("rm -rf %s/catalog", rich->of.directory);
    if (rebuild(rich, &found, &err) < 0)
        fail_msg("rebuild: %s", err.text);
    assert_non_null(strstr(found.text, "damaged"));
    rich_must_open(rich, false);
    struct rich_reads reads = rich_compare(rich);
    assert_int_equal(reads.wrong, 0);
    assert_true(reads.failed > 0);
    rich_close(rich);
    rich_flip(path, 4096 + 20, 1);
    rich_must_open(rich, true);
    rich_expect_right(rich);
}

static void test_refuses_while_owned(void **state)
{
    struct rich *rich = *state;
    struct rich_found found;
    struct error err = {0};
    assert_int_equal(rebuild(rich, &found, &err), -EBUSY);
    assert_non_null(strstr(err.text, "in use"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_lost, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_damaged, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_older_copy, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_of_another_store, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_never_sealed, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_refuses_damaged_log, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_damaged_segment_stays_damaged, rich_setup, rich_teardown),
            cmocka_unit_test_setup_teardown(test_refuses_while_owned, rich_setup, rich_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
