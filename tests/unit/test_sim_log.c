// SPDX-License-Identifier: Apache-2.0
// A toy log over the simulator: done right it never loses a record, and every typical mistake is caught.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/sim_fixture.h"

enum { BLOCK = 4096, SEEDS = 400 };

enum toy_mistake {
    TOY_RIGHT,
    TOY_NO_SYNC,
    TOY_NO_DIRECTORY_SYNC,
    TOY_SYNC_TOO_EARLY,
    TOY_SYNC_ONLY_LAST_FILE,
    TOY_NO_CHECKSUM
};
enum { TOY_RECORDS = 6, TOY_PER_FILE = 3 };

struct toy_record {
    uint64_t number, sum;
    uint64_t filler[BLOCK / 8 - 2];
};

static uint64_t toy_sum(const struct toy_record *record)
{
    uint64_t sum = record->number * 31 + 7;
    for (size_t i = 0; i < sizeof record->filler / 8; i++)
        sum = sum * 31 + record->filler[i];
    return sum;
}

static void toy_fill(struct toy_record *record, uint64_t number)
{
    record->number = number;
    for (size_t i = 0; i < sizeof record->filler / 8; i++)
        record->filler[i] = number * 1000 + i;
    record->sum = toy_sum(record);
}

static const char *toy_path(uint64_t number)
{
    return number <= TOY_PER_FILE ? "/log1" : "/log2";
}

static struct sim_world *toy_write(uint64_t seed, enum toy_mistake mistake)
{
    struct sim_world *world = sim_world_create(seed, NULL);
    int fd = -1;
    for (uint64_t number = 1; number <= TOY_RECORDS; number++) {
        struct toy_record record;
        struct call write, sync = {0};
        if (number % TOY_PER_FILE == 1) {
            fd = do_open(world, toy_path(number), O_RDWR | O_CREAT);
            if (mistake != TOY_NO_DIRECTORY_SYNC)
                do_path(world, IO_FSYNC_DIR, "/");
        }
        toy_fill(&record, number);
        prepare(&write, &record, sizeof record, (number - 1) % TOY_PER_FILE * BLOCK);
        start(world, &write, IO_WRITE, fd, NULL);
        if (mistake == TOY_SYNC_TOO_EARLY)
            start(world, &sync, IO_FDATASYNC, fd, NULL);
        sim_world_run_until(world, &write.done);
        bool grouped = mistake == TOY_SYNC_ONLY_LAST_FILE && number < TOY_RECORDS; // one flush at the end
        if (mistake == TOY_SYNC_TOO_EARLY)
            sim_world_run_until(world, &sync.done);
        else if (mistake != TOY_NO_SYNC && mistake != TOY_NO_CHECKSUM && !grouped)
            do_sync(world, fd);
    }
    return world;
}

// What recovery finds: the number of the last record of an unbroken run, or -1 for a wrong record.
static int toy_recover(struct sim_world *world, bool check_sum)
{
    for (uint64_t number = 1; number <= TOY_RECORDS; number++) {
        struct toy_record record, right;
        int64_t got = sim_disk_peek(sim_world_disk(world), toy_path(number),
                (number - 1) % TOY_PER_FILE * BLOCK, &record, sizeof record);
        if (got != sizeof record || record.number != number || (check_sum && record.sum != toy_sum(&record)))
            return (int)number - 1;
        toy_fill(&right, number);
        if (memcmp(&right, &record, sizeof right) != 0)
            return -1;
    }
    return TOY_RECORDS;
}

static unsigned toy_failures(enum toy_mistake mistake)
{
    unsigned failures = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct sim_world *world = toy_write(seed, mistake);
        struct sim_world *after = sim_world_after_power_cut(world, seed, NULL);
        int found = toy_recover(after, mistake != TOY_NO_CHECKSUM);
        failures += mistake == TOY_NO_CHECKSUM ? found < 0 : found != TOY_RECORDS;
        sim_world_destroy(after);
        assert_null(sim_world_violation(world));
        sim_world_destroy(world);
    }
    return failures;
}

static void a_toy_log_is_judged(void **state)
{
    assert_int_equal(toy_failures(TOY_RIGHT), 0);
    for (enum toy_mistake mistake = TOY_NO_SYNC; mistake <= TOY_NO_CHECKSUM; mistake++)
        assert_true(toy_failures(mistake) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_toy_log_is_judged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
