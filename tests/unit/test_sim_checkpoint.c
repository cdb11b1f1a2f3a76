// SPDX-License-Identifier: Apache-2.0
// Checkpoints of the simulator: a commit happens at one moment and is durable with it, and nothing else is;
// one that fails has changed nothing.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim_checkpoint.h"
#include "tests/unit/sim_fixture.h"

enum { BLOCK = 4096 };
#define DIRECTORY "/catalog"

static struct sim_world *world_with_directory(uint64_t seed, const struct sim_options *options)
{
    struct sim_world *world = sim_world_create(seed, options);
    assert_int_equal(do_path(world, IO_MKDIR, DIRECTORY), 0);
    assert_int_equal(do_path(world, IO_FSYNC_DIR, "/"), 0);
    return world;
}

static void *checkpoint_open(struct sim_world *world)
{
    void *handle = NULL;
    struct error err = {0};
    assert_int_equal(sim_checkpoint_ops.open(sim_world_loop(world, 0), DIRECTORY, false, &handle, &err), 0);
    return handle;
}

// Rows 1..count of kind 7, each with the value `version`.
static int commit(void *handle, uint64_t count, uint32_t version)
{
    struct checkpoint_row rows[64];
    for (uint64_t i = 0; i < count; i++)
        rows[i] = (struct checkpoint_row){7, i + 1, &version, sizeof version};
    return sim_checkpoint_ops.commit(handle, rows, count);
}

struct seen {
    uint64_t rows;
    uint32_t version;
    bool mixed;
};

static int see(void *context, const struct checkpoint_row *row)
{
    struct seen *seen = context;
    uint32_t version;
    assert_int_equal(row->size, sizeof version);
    memcpy(&version, row->value, sizeof version);
    seen->mixed = seen->mixed || (seen->rows > 0 && version != seen->version);
    seen->version = version;
    seen->rows++;
    return 0;
}

static struct seen look(struct sim_world *world)
{
    struct seen seen = {0};
    void *handle = checkpoint_open(world);
    assert_int_equal(sim_checkpoint_ops.read(handle, see, &seen), 0);
    sim_checkpoint_ops.close(handle);
    assert_false(seen.mixed);
    return seen;
}

static void a_commit_is_durable_and_what_was_not_synced_is_not(void **state)
{
    unsigned lost = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sim_world *world = world_with_directory(seed, NULL);
        int fd = do_open(world, "/f", O_RDWR | O_CREAT);
        char bytes[BLOCK] = "not synced";
        assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0), sizeof bytes);
        void *handle = checkpoint_open(world);
        assert_int_equal(commit(handle, 5, 11), 0);
        assert_int_equal(commit(handle, 3, 12), 0);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        struct seen seen = look(after);
        assert_int_equal(seen.rows, 3);
        assert_int_equal(seen.version, 12);
        lost += sim_disk_size(sim_world_disk(after), "/f") <= 0;
        sim_world_destroy(after);
        after = sim_world_after_kill(world, seed, NULL);
        assert_int_equal(look(after).version, 12);
        sim_world_destroy(after);
        assert_int_equal(sim_world_open_files(world), 2);
        sim_checkpoint_ops.close(handle);
        assert_int_equal(sim_world_open_files(world), 1);
        assert_null(sim_world_violation(world));
        sim_world_destroy(world);
    }
    assert_in_range(lost, 20, 180);
}

static void rows_go_with_a_directory_whose_name_was_not_synced(void **state)
{
    unsigned lost = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sim_world *world = sim_world_create(seed, NULL);
        assert_int_equal(do_path(world, IO_MKDIR, DIRECTORY), 0);
        void *handle = checkpoint_open(world);
        assert_int_equal(commit(handle, 1, 1), 0);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        void *again = NULL;
        int result = sim_checkpoint_ops.open(sim_world_loop(after, 0), DIRECTORY, true, &again, NULL);
        assert_true(result == 0 || result == -ENOENT);
        lost += result < 0;
        if (result == 0)
            sim_checkpoint_ops.close(again);
        sim_checkpoint_ops.close(handle);
        sim_world_destroy(after);
        sim_world_destroy(world);
    }
    assert_in_range(lost, 20, 180);
}

static void a_cut_comes_before_or_after_a_commit(void **state)
{
    unsigned before = 0, after = 0;
    for (uint64_t io = 1; io <= 2; io++) {
        struct sim_world *world = world_with_directory(io, NULL);
        void *handle = checkpoint_open(world);
        assert_int_equal(commit(handle, 4, 1), 0);
        uint64_t count = sim_world_io_count(world);
        sim_world_cut_at(world, count + io);
        int result = commit(handle, 2, 2);
        assert_int_equal(sim_world_io_count(world), count + 2);
        struct sim_world *next = sim_world_after_power_cut(world, 1, NULL);
        struct seen seen = look(next);
        assert_int_equal(seen.version, result == 0 ? 2 : 1);
        assert_int_equal(seen.rows, result == 0 ? 2 : 4);
        before += result < 0;
        after += result == 0;
        assert_int_equal(sim_checkpoint_ops.read(handle, see, &seen), -EIO);
        sim_checkpoint_ops.close(handle);
        sim_world_destroy(next);
        sim_world_destroy(world);
    }
    assert_int_equal(before, 1);
    assert_int_equal(after, 1);
}

static void a_commit_that_fails_changes_nothing(void **state)
{
    struct sim_world *world = world_with_directory(5, NULL);
    void *handle = checkpoint_open(world);
    assert_int_equal(commit(handle, 4, 1), 0);
    sim_world_fault(world, &(struct sim_fault){.code = SIM_COMMIT, .nth = 2, .error = ENOSPC});
    sim_world_fault(world, &(struct sim_fault){.code = SIM_COMMIT, .nth = 3, .error = EIO});
    assert_int_equal(commit(handle, 4, 2), 0);
    assert_int_equal(commit(handle, 9, 3), -ENOSPC);
    assert_int_equal(look(world).version, 2);
    assert_int_equal(commit(handle, 9, 3), -EIO);
    assert_int_equal(look(world).version, 2);
    assert_int_equal(commit(handle, 9, 3), 0);
    assert_int_equal(look(world).rows, 9);
    assert_int_equal(sim_world_calls(world, SIM_COMMIT), 5);
    sim_checkpoint_ops.close(handle);
    sim_world_destroy(world);
}

static void a_full_disk_refuses_rows_that_need_more_room(void **state)
{
    struct sim_world *world = world_with_directory(6, &(struct sim_options){.capacity_bytes = 5 * BLOCK});
    void *handle = checkpoint_open(world);
    assert_int_equal(commit(handle, 1, 1), 0);
    int fd = do_open(world, "/f", O_RDWR | O_CREAT);
    char bytes[BLOCK] = "x";
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0), sizeof bytes);
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, BLOCK), -ENOSPC);
    assert_int_equal(commit(handle, 2, 2), 0); // in the room it has
    static const char large[CHECKPOINT_VALUE_MAX];
    struct checkpoint_row rows[8];
    for (uint64_t i = 0; i < 8; i++)
        rows[i] = (struct checkpoint_row){7, i, large, sizeof large};
    assert_int_equal(sim_checkpoint_ops.commit(handle, rows, 8), -ENOSPC);
    assert_int_equal(look(world).version, 2);
    sim_checkpoint_ops.close(handle);
    sim_world_destroy(world);
}

static void breaches_are_noticed(void **state)
{
    struct sim_world *world = world_with_directory(7, NULL);
    void *handle = checkpoint_open(world);
    struct checkpoint_row rows[] = {{1, 2, "a", 1}, {1, 2, "b", 1}};
    sim_checkpoint_ops.commit(handle, rows, 2);
    assert_non_null(sim_world_violation(world));
    sim_checkpoint_ops.close(handle);
    sim_world_destroy(world);
}

static void damaged_rows_are_not_opened(void **state)
{
    struct sim_world *world = world_with_directory(8, NULL);
    assert_int_equal(sim_checkpoint_damage(sim_world_disk(world), DIRECTORY), -ENOENT);
    void *handle = checkpoint_open(world);
    assert_int_equal(commit(handle, 8, 0), 0);
    struct sim_world *copy = sim_world_after_kill(world, 1, NULL);
    assert_int_equal(sim_checkpoint_damage(sim_world_disk(copy), DIRECTORY), 0);
    struct error err = {0};
    void *other = NULL;
    assert_int_equal(
            sim_checkpoint_ops.open(sim_world_loop(copy, 0), DIRECTORY, true, &other, &err), -EBADMSG);
    assert_int_equal(sim_world_open_files(copy), 0);
    assert_int_equal(look(world).rows, 8);
    sim_checkpoint_ops.close(handle);
    sim_world_destroy(copy);
    sim_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_commit_is_durable_and_what_was_not_synced_is_not),
            cmocka_unit_test(rows_go_with_a_directory_whose_name_was_not_synced),
            cmocka_unit_test(a_cut_comes_before_or_after_a_commit),
            cmocka_unit_test(a_commit_that_fails_changes_nothing),
            cmocka_unit_test(a_full_disk_refuses_rows_that_need_more_room),
            cmocka_unit_test(breaches_are_noticed),
            cmocka_unit_test(damaged_rows_are_not_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
