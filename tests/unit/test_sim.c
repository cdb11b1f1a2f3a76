// SPDX-License-Identifier: Apache-2.0
// Does the simulator bite? Every unkindness it promises (sim_disk.h, sim_world.h) is shown to happen, the
// promises of a sync are shown to hold. (test_sim_log.c judges a toy log with typical mistakes.)
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/sim_fixture.h"

enum { BLOCK = 4096, SEEDS = 400 };

// A world with a durable file /f of `blocks` blocks of 'o', open.
static struct sim_world *world_with_file(
        uint64_t seed, const struct sim_options *options, size_t blocks, int *ret_fd)
{
    struct sim_world *world = sim_world_create(seed, options);
    char *bytes = malloc(blocks * BLOCK);
    memset(bytes, 'o', blocks * BLOCK);
    int fd = do_open(world, "/f", O_RDWR | O_CREAT);
    assert_true(fd >= 0);
    for (size_t done = 0; done < blocks * BLOCK;) {
        int64_t wrote = do_transfer(world, IO_WRITE, fd, bytes + done, blocks * BLOCK - done, done);
        assert_true(wrote > 0);
        done += (size_t)wrote;
    }
    assert_int_equal(do_sync(world, fd), 0);
    assert_int_equal(do_path(world, IO_FSYNC_DIR, "/"), 0);
    free(bytes);
    *ret_fd = fd;
    return world;
}

static struct sim_world *end(struct sim_world *world)
{
    assert_null(sim_world_violation(world));
    return sim_world_destroy(world);
}

static void unsynced_writes_are_kept_dropped_and_torn(void **state)
{
    unsigned kept = 0, dropped = 0, torn_small = 0, torn_large = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 4, &fd);
        static char bytes[4 * BLOCK];
        memset(bytes, 'n', sizeof bytes);
        assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0), sizeof bytes);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        assert_int_equal(sim_disk_peek(sim_world_disk(after), "/f", 0, bytes, sizeof bytes), sizeof bytes);
        unsigned new_sectors = 0;
        bool inside_block = false;
        for (size_t sector = 0; sector < sizeof bytes / 512; sector++) {
            assert_true(bytes[sector * 512] == 'n' || bytes[sector * 512] == 'o');
            assert_memory_equal(bytes + sector * 512, bytes + sector * 512 + 1, 511); // a sector is whole
            new_sectors += bytes[sector * 512] == 'n';
            inside_block =
                    inside_block || (sector % 8 != 0 && bytes[sector * 512] != bytes[sector * 512 - 512]);
        }
        kept += new_sectors == 32;
        dropped += new_sectors == 0;
        torn_small += inside_block;
        torn_large += new_sectors > 0 && new_sectors < 32 && !inside_block;
        sim_world_destroy(after);
        end(world);
    }
    assert_true(kept > 10);
    assert_true(dropped > 10);
    assert_true(torn_small > 10);
    assert_true(torn_large > 10);
}

static void synced_writes_survive(void **state)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 4, &fd);
        static char bytes[4 * BLOCK], read[4 * BLOCK];
        memset(bytes, 'n', sizeof bytes);
        do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0);
        assert_int_equal(do_sync(world, fd), 0);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        sim_disk_peek(sim_world_disk(after), "/f", 0, read, sizeof read);
        assert_memory_equal(bytes, read, sizeof bytes);
        sim_world_destroy(after);
        end(world);
    }
}

static void a_sync_covers_only_what_was_completed_before_it(void **state)
{
    unsigned lost = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 1, &fd);
        char bytes[BLOCK];
        memset(bytes, 'n', sizeof bytes);
        struct call write, sync = {0};
        prepare(&write, bytes, sizeof bytes, 0);
        start(world, &write, IO_WRITE, fd, NULL);
        start(world, &sync, IO_FDATASYNC, fd, NULL);
        sim_world_run_until(world, &write.done);
        sim_world_run_until(world, &sync.done);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        char read[BLOCK];
        sim_disk_peek(sim_world_disk(after), "/f", 0, read, sizeof read);
        lost += read[0] == 'o';
        sim_world_destroy(after);
        end(world);
    }
    assert_true(lost > 10);
}

static void later_writes_survive_without_earlier_ones(void **state)
{
    unsigned reordered = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 8, &fd);
        char bytes[BLOCK];
        memset(bytes, 'n', sizeof bytes);
        for (unsigned i = 0; i < 8; i++)
            do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, i * BLOCK);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        bool old = false, hole = false;
        for (unsigned i = 0; i < 8; i++) {
            sim_disk_peek(sim_world_disk(after), "/f", i * BLOCK, bytes, sizeof bytes);
            hole = hole || (old && bytes[0] == 'n');
            old = old || bytes[0] == 'o';
        }
        reordered += hole;
        sim_world_destroy(after);
        end(world);
    }
    assert_true(reordered > 40);
}

static void completions_come_out_of_order(void **state)
{
    unsigned swapped = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 2, &fd);
        char bytes[BLOCK] = {0};
        struct call first, second;
        prepare(&first, bytes, sizeof bytes, 0);
        prepare(&second, bytes, sizeof bytes, BLOCK);
        start(world, &first, IO_WRITE, fd, NULL);
        start(world, &second, IO_WRITE, fd, NULL);
        sim_world_run_until(world, &second.done);
        swapped += !first.done;
        sim_world_settle(world);
        end(world);
    }
    assert_true(swapped > 20 && swapped < 80);
}

static void a_failed_sync_dooms_what_it_covered(void **state)
{
    unsigned lost = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 1, &fd);
        char bytes[BLOCK];
        memset(bytes, 'n', sizeof bytes);
        do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0);
        sim_world_fault(world, &(struct sim_fault){.code = IO_FDATASYNC, .nth = 1, .error = EIO});
        assert_int_equal(do_sync(world, fd), -EIO);
        assert_int_equal(do_sync(world, fd), 0); // as Linux: the error is told once
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        sim_disk_peek(sim_world_disk(after), "/f", 0, bytes, sizeof bytes);
        lost += bytes[0] == 'o';
        sim_world_destroy(after);
        end(world);
    }
    assert_true(lost > 10);
}

static void names_need_a_directory_sync(void **state)
{
    unsigned create_lost = 0, rename_lost = 0, unlink_undone = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 1, &fd);
        assert_int_equal(do_path(world, IO_MKDIR, "/d"), 0);
        assert_int_equal(do_path(world, IO_FSYNC_DIR, "/"), 0);
        assert_true(do_open(world, "/d/new", O_RDWR | O_CREAT) >= 0);
        struct call rename = {.op.path2 = "/d/g"};
        assert_int_equal(run(world, &rename, IO_RENAME, -1, "/f"), 0);
        assert_true(do_open(world, "/d/gone", O_RDWR | O_CREAT) >= 0);
        assert_int_equal(do_path(world, IO_FSYNC_DIR, "/d"), 0);
        assert_true(do_open(world, "/late", O_RDWR | O_CREAT) >= 0);
        assert_int_equal(do_path(world, IO_UNLINK, "/d/gone"), 0);
        struct call back = {.op.path2 = "/h"};
        assert_int_equal(run(world, &back, IO_RENAME, -1, "/d/g"), 0);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        struct sim_disk *disk = sim_world_disk(after);
        assert_true(sim_disk_size(disk, "/d/new") == 0);                                     // synced
        assert_true((sim_disk_size(disk, "/d/g") >= 0) != (sim_disk_size(disk, "/h") >= 0)); // one of the two
        create_lost += sim_disk_size(disk, "/late") < 0;
        unlink_undone += sim_disk_size(disk, "/d/gone") >= 0;
        rename_lost += sim_disk_size(disk, "/h") < 0;
        sim_world_destroy(after);
        end(world);
    }
    assert_true(create_lost > 40 && create_lost < SEEDS - 40);
    assert_true(rename_lost > 40 && rename_lost < SEEDS - 40);
    assert_true(unlink_undone > 40 && unlink_undone < SEEDS - 40);
}

static void a_kill_keeps_what_completed_and_some_of_the_rest(void **state)
{
    unsigned whole = 0, partly = 0, none = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 8, &fd);
        static char bytes[4 * BLOCK], late[4 * BLOCK];
        memset(bytes, 'n', sizeof bytes);
        memset(late, 'l', sizeof late);
        do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0);
        struct call write;
        prepare(&write, late, sizeof late, 4 * BLOCK);
        start(world, &write, IO_WRITE, fd, NULL);
        struct sim_world *after = sim_world_after_kill(world, seed, NULL);
        sim_disk_peek(sim_world_disk(after), "/f", 0, bytes, sizeof bytes);
        assert_int_equal(bytes[0], 'n');
        assert_memory_equal(bytes, bytes + 1, sizeof bytes - 1);
        unsigned blocks = 0;
        for (unsigned i = 4; i < 8; i++) {
            sim_disk_peek(sim_world_disk(after), "/f", i * BLOCK, bytes, BLOCK);
            blocks += bytes[0] == 'l';
        }
        whole += blocks == 4;
        none += blocks == 0;
        partly += blocks > 0 && blocks < 4;
        sim_world_destroy(after);
        sim_world_settle(world);
        end(world);
    }
    assert_true(whole > 10 && none > 10 && partly > 10);
}

static void a_kill_makes_nothing_durable(void **state)
{
    unsigned lost = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int fd;
        struct sim_world *world = world_with_file(seed, NULL, 1, &fd);
        char bytes[BLOCK];
        memset(bytes, 'n', sizeof bytes);
        do_transfer(world, IO_WRITE, fd, bytes, sizeof bytes, 0);
        struct sim_world *next = sim_world_after_kill(world, seed, NULL);
        struct sim_world *after = sim_world_after_power_cut(next, seed, NULL);
        sim_disk_peek(sim_world_disk(after), "/f", 0, bytes, sizeof bytes);
        lost += bytes[0] == 'o';
        sim_world_destroy(after);
        // The next process can make it durable.
        fd = do_open(next, "/f", O_RDWR);
        assert_int_equal(do_sync(next, fd), 0);
        after = sim_world_after_power_cut(next, seed, NULL);
        sim_disk_peek(sim_world_disk(after), "/f", 0, bytes, sizeof bytes);
        assert_int_equal(bytes[0], 'n');
        sim_world_destroy(after);
        end(next);
        end(world);
    }
    assert_true(lost > 10);
}

static void short_transfers_errors_and_a_full_disk(void **state)
{
    int fd;
    struct sim_options options = {.capacity_bytes = 6 * BLOCK};
    struct sim_world *world = world_with_file(1, &options, 4, &fd);
    static char bytes[4 * BLOCK];
    sim_world_fault(world, &(struct sim_fault){.code = IO_READ, .nth = 2, .bytes = 100});
    sim_world_fault(world, &(struct sim_fault){.code = IO_WRITE, .nth = 1, .error = EIO, .path_part = "/f"});
    assert_int_equal(do_transfer(world, IO_READ, fd, bytes, sizeof bytes, 0), sizeof bytes);
    assert_int_equal(do_transfer(world, IO_READ, fd, bytes, sizeof bytes, 0), 100);
    assert_int_equal(do_transfer(world, IO_READ, fd, bytes, sizeof bytes, BLOCK), 3 * BLOCK); // the end
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, BLOCK, 0), -EIO);
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, BLOCK, 0), BLOCK);
    assert_int_equal(sim_world_faults_hit(world), 2);
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, 2 * BLOCK, 4 * BLOCK), 2 * BLOCK);
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, BLOCK, 6 * BLOCK), -ENOSPC);
    assert_int_equal(do_transfer(world, IO_WRITE, fd, bytes, BLOCK, 5 * BLOCK), BLOCK);
    end(world);
    unsigned shorts = 0;
    options = (struct sim_options){.short_per_mille = 500};
    world = world_with_file(2, &options, 4, &fd);
    for (unsigned i = 0; i < 100; i++)
        shorts += do_transfer(world, IO_READ, fd, bytes, sizeof bytes, 0) < (int64_t)sizeof bytes;
    assert_true(shorts > 20 && shorts < 80);
    end(world);
}

static void breaches_of_the_contract_are_seen(void **state)
{
    int fd;
    static _Alignas(BLOCK) char bytes[2 * BLOCK];
    struct sim_options options = {.loop_count = 2};
    struct sim_world *world = world_with_file(1, &options, 2, &fd);
    int direct = do_open(world, "/f", O_RDWR | O_DIRECT);
    assert_int_equal(do_transfer(world, IO_WRITE, direct, bytes, BLOCK, 0), BLOCK);
    assert_null(sim_world_violation(world));
    assert_int_equal(do_transfer(world, IO_WRITE, direct, bytes, BLOCK, 512), -EINVAL);
    assert_non_null(sim_world_violation(world));
    sim_world_destroy(world);

    world = world_with_file(1, &options, 2, &fd);
    struct call write;
    prepare(&write, bytes, BLOCK, 0);
    start(world, &write, IO_WRITE, fd, NULL);
    bytes[5] ^= 1;
    sim_world_settle(world);
    assert_non_null(sim_world_violation(world));
    sim_world_destroy(world);

    world = world_with_file(1, &options, 2, &fd);
    prepare(&write, bytes, BLOCK, 0);
    start(world, &write, IO_WRITE, fd, NULL);
    struct call close = {0};
    start(world, &close, IO_CLOSE, fd, NULL);
    sim_world_settle(world);
    assert_true(write.done && close.done);
    assert_int_equal(sim_world_open_files(world), 0);
    sim_world_destroy(world);

    world = world_with_file(1, &options, 2, &fd);
    loop_set_current(sim_world_loop(world, 1));
    prepare(&write, bytes, BLOCK, 0);
    start(world, &write, IO_WRITE, fd, NULL);
    loop_set_current(NULL);
    sim_world_settle(world);
    assert_non_null(sim_world_violation(world));
    sim_world_destroy(world);
}

static void a_lock_has_one_holder(void **state)
{
    int fd;
    struct sim_world *world = world_with_file(1, NULL, 1, &fd);
    struct loop *loop = sim_world_loop(world, 0);
    int other = do_open(world, "/f", O_RDWR);
    assert_int_equal(loop->ops->lock_file(loop, fd, false), 0);
    assert_int_equal(loop->ops->lock_file(loop, other, false), -EBUSY);
    struct call close = {0};
    assert_int_equal(run(world, &close, IO_CLOSE, fd, NULL), 0);
    assert_int_equal(loop->ops->lock_file(loop, other, false), 0);
    end(world);
}

static void flipped_bits_are_read(void **state)
{
    int fd;
    struct sim_world *world = world_with_file(1, NULL, 1, &fd);
    assert_int_equal(sim_disk_flip(sim_world_disk(world), "/f", 7, 3), 0);
    char bytes[BLOCK];
    do_transfer(world, IO_READ, fd, bytes, BLOCK, 0);
    assert_int_equal(bytes[7], 'o' ^ 8);
    assert_int_equal(bytes[6], 'o');
    end(world);
}

// ---- Posts, timers, determinism ----

struct counted_work {
    struct loop_work work;
    unsigned number;
    unsigned *last;
    bool *in_order;
};

static void counted_run(struct loop_work *work)
{
    struct counted_work *counted = (struct counted_work *)work;
    if (counted->number != *counted->last + 1)
        *counted->in_order = false;
    *counted->last = counted->number;
}

static void posts_of_one_sender_keep_their_order(void **state)
{
    struct sim_options options = {.loop_count = 3, .stall_per_mille = 300};
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct sim_world *world = sim_world_create(seed, &options);
        struct counted_work work[2][20];
        unsigned last[2] = {0};
        bool in_order = true;
        for (unsigned i = 0; i < 20; i++) {
            for (unsigned target = 0; target < 2; target++) {
                work[target][i] =
                        (struct counted_work){{.run = counted_run}, i + 1, &last[target], &in_order};
                loop_post(sim_world_loop(world, target), &work[target][i].work);
            }
        }
        sim_world_settle(world);
        assert_true(in_order && last[0] == 20 && last[1] == 20);
        end(world);
    }
}

struct fired {
    struct loop_timer timer;
    struct loop *loop;
    uint64_t at;
};

static void fire(struct loop_timer *timer)
{
    struct fired *fired = (struct fired *)timer;
    fired->at = loop_now_ns(fired->loop);
}

static void timers_fire_after_their_deadline_unless_cancelled(void **state)
{
    struct sim_world *world = sim_world_create(3, NULL);
    struct loop *loop = sim_world_loop(world, 0);
    struct fired a = {{.fire = fire, .deadline_ns = 5000000}, loop, 0}, b = a;
    loop->ops->add_timer(loop, &a.timer);
    loop->ops->add_timer(loop, &b.timer);
    loop->ops->cancel_timer(loop, &b.timer);
    while (sim_world_step(world)) {
    }
    assert_true(a.at >= 5000000);
    assert_int_equal(b.at, 0);
    end(world);
}

static uint64_t busy_run(uint64_t seed)
{
    int fd;
    struct sim_options options = {
            .loop_count = 2, .slow_per_mille = 50, .stall_per_mille = 50, .short_per_mille = 50};
    struct sim_world *world = world_with_file(seed, &options, 16, &fd);
    struct call calls[32];
    static char bytes[16 * BLOCK];
    for (unsigned i = 0; i < 32; i++) {
        prepare(&calls[i], bytes, (1 + i % 4) * BLOCK, i % 13 * BLOCK);
        start(world, &calls[i], i % 3 ? IO_WRITE : IO_FDATASYNC, fd, NULL);
    }
    sim_world_settle(world);
    uint64_t hash = sim_world_trace_hash(world);
    end(world);
    return hash;
}

static void the_same_seed_gives_the_same_run(void **state)
{
    for (uint64_t seed = 1; seed < 20; seed++) {
        uint64_t hash = busy_run(seed);
        assert_true(hash == busy_run(seed));
        assert_true(hash != busy_run(seed + 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(unsynced_writes_are_kept_dropped_and_torn),
            cmocka_unit_test(synced_writes_survive),
            cmocka_unit_test(a_sync_covers_only_what_was_completed_before_it),
            cmocka_unit_test(later_writes_survive_without_earlier_ones),
            cmocka_unit_test(completions_come_out_of_order),
            cmocka_unit_test(a_failed_sync_dooms_what_it_covered),
            cmocka_unit_test(names_need_a_directory_sync),
            cmocka_unit_test(a_kill_keeps_what_completed_and_some_of_the_rest),
            cmocka_unit_test(a_kill_makes_nothing_durable),
            cmocka_unit_test(short_transfers_errors_and_a_full_disk),
            cmocka_unit_test(breaches_of_the_contract_are_seen),
            cmocka_unit_test(a_lock_has_one_holder),
            cmocka_unit_test(flipped_bits_are_read),
            cmocka_unit_test(posts_of_one_sender_keep_their_order),
            cmocka_unit_test(timers_fire_after_their_deadline_unless_cancelled),
            cmocka_unit_test(the_same_seed_gives_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
