// SPDX-License-Identifier: Apache-2.0
// What is kept of segments in memory: hot blocks are no I/O, many who want one thing are one read, caps hold,
// and more segments than descriptors work.
#include "tests/unit/segment_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

enum { MANY = 700 };

struct one_read {
    struct segment_read read;
    uint8_t buffer[4 * BLOCK_SIZE];
    unsigned *left;
    int expected;
    bool inside; // segment_read has not returned
};

static void read_done(struct segment_read *read, int result)
{
    struct one_read *one = (struct one_read *)read;
    assert_false(one->inside);
    assert_int_equal(result, one->expected);
    (*one->left)--;
}

static void read_begin(struct segment_rig *rig, struct one_read *one, uint64_t number, uint32_t slot,
        uint32_t count, unsigned *left)
{
    one->read.loop = rig->loop;
    one->read.first = locator_segment(number, slot);
    one->read.count = count;
    one->read.buffer = one->buffer;
    one->read.done = read_done;
    one->left = left;
    one->inside = true;
    segment_read(rig->segments, &one->read);
    one->inside = false;
}

static void wait_for(struct segment_rig *rig, const unsigned *left)
{
    while (*left > 0)
        assert_int_equal(rig_step(rig), 0);
}

static struct rig_segment written(
        struct segment_rig *rig, uint64_t number, enum rig_content content, unsigned slots)
{
    struct rig_segment wanted = {
            .number = number, .kind = SEGMENT_DATA, .content = content, .slots = slots, .frame_slots = 16};
    assert_int_equal(rig_task(rig, rig_write, &wanted), 0);
    segments_add(rig->segments, &wanted.row);
    return wanted;
}

static void many_readers_of_one_frame_are_one_read(void **state)
{
    enum { READERS = 50 };
    static struct one_read reads[READERS];
    struct segment_rig rig;
    rig_start_sim(&rig, 1, NULL);
    struct rig_segment wanted = written(&rig, 3, RIG_TEXT, 64);
    rig_reopen(&rig);
    segments_add(rig.segments, &wanted.row);
    uint64_t before = sim_world_calls(rig.world, IO_READ), opens = sim_world_calls(rig.world, IO_OPEN);
    unsigned left = READERS;
    memset(reads, 0, sizeof reads);
    for (uint32_t i = 0; i < READERS; i++)
        read_begin(&rig, &reads[i], 3, 16 + i % 13, 1 + i % 4, &left);
    wait_for(&rig, &left);
    for (uint32_t i = 0; i < READERS; i++)
        assert_true(rig_same(RIG_TEXT, 16 + i % 13, 1 + i % 4, reads[i].buffer));
    assert_int_equal(sim_world_calls(rig.world, IO_READ) - before, 3); // header, footer, frame
    assert_int_equal(sim_world_calls(rig.world, IO_OPEN) - opens, 1);
    // And now it is here.
    uint8_t block[BLOCK_SIZE];
    assert_int_equal(segment_read_try(rig.segments, locator_segment(3, 20), 1, block), 0);
    assert_true(rig_same(RIG_TEXT, 20, 1, block));
    assert_int_equal(segment_read_try(rig.segments, locator_segment(3, 0), 1, block), -EAGAIN);
    assert_int_equal(segment_read_try(rig.segments, locator_segment(3, 64), 1, block), -ENOENT);
    assert_int_equal(segment_read_try(rig.segments, locator_segment(4, 0), 1, block), -ENOENT);
    assert_int_equal(segment_read_try(rig.segments, LOCATOR_ZERO, 1, block), -EINVAL);
    rig_stop(&rig);
}

static void a_frame_that_fails_fails_for_all_and_once(void **state)
{
    enum { READERS = 20 };
    static struct one_read reads[READERS];
    struct segment_rig rig;
    rig_start_sim(&rig, 2, NULL);
    struct rig_segment wanted = written(&rig, 3, RIG_TEXT, 64);
    rig_reopen(&rig);
    segments_add(rig.segments, &wanted.row);
    for (int round = 0; round < 2; round++) {
        struct sim_fault fault = {.code = IO_READ, .nth = round == 0 ? 1 : 3, .error = EIO};
        sim_world_fault(rig.world, &fault);
        unsigned left = READERS;
        memset(reads, 0, sizeof reads);
        for (uint32_t i = 0; i < READERS; i++) {
            reads[i].expected = -EIO;
            read_begin(&rig, &reads[i], 3, i % 16, 1, &left);
        }
        wait_for(&rig, &left);
        sim_world_clear_faults(rig.world);
    }
    unsigned left = 1;
    memset(reads, 0, sizeof reads);
    read_begin(&rig, &reads[0], 3, 5, 1, &left);
    wait_for(&rig, &left);
    assert_true(rig_same(RIG_TEXT, 5, 1, reads[0].buffer));
    rig_stop(&rig);
}

static void read_one(
        struct segment_rig *rig, uint64_t number, uint32_t slot, enum rig_content content, bool uncached)
{
    static struct one_read one;
    unsigned left = 1;
    memset(&one, 0, sizeof one);
    one.read.uncached = uncached;
    read_begin(rig, &one, number, slot, 1, &left);
    wait_for(rig, &left);
    assert_true(rig_same(content, slot, 1, one.buffer));
}

static void hot_blocks_are_no_io(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 3, NULL);
    written(&rig, 1, RIG_TEXT, 200);
    written(&rig, 2, RIG_NOISE, 200);
    for (uint64_t number = 1; number <= 2; number++)
        for (uint32_t slot = 0; slot < 200; slot++)
            read_one(&rig, number, slot, number == 1 ? RIG_TEXT : RIG_NOISE, false);
    uint64_t before = sim_world_calls(rig.world, IO_READ);
    for (uint64_t number = 1; number <= 2; number++)
        for (uint32_t slot = 0; slot < 200; slot++)
            read_one(&rig, number, slot, number == 1 ? RIG_TEXT : RIG_NOISE, false);
    assert_int_equal(sim_world_calls(rig.world, IO_READ), before);
    struct segments_stat stat;
    segments_stat(rig.segments, &stat);
    assert_int_equal(stat.frame_cache_bytes, 400 * BLOCK_SIZE);
    assert_int_equal(stat.segments, 2);
    assert_int_equal(stat.present, 400);
    rig_stop(&rig);
}

static void uncached_readers_leave_nothing(void **state)
{
    struct segment_rig rig;
    struct segments_stat stat;
    rig_start_sim(&rig, 4, NULL);
    written(&rig, 1, RIG_MIXED, 200);
    for (uint32_t slot = 0; slot < 200; slot++)
        read_one(&rig, 1, slot, RIG_MIXED, true);
    segments_stat(rig.segments, &stat);
    assert_int_equal(stat.frame_cache_bytes, 0);
    rig_stop(&rig);
}

static void caps_hold(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 5, NULL);
    struct rig_segment wanted[40];
    for (uint64_t number = 0; number < 40; number++)
        wanted[number] = written(&rig, number + 1, RIG_MIXED, 200);
    segments_free(rig.segments, rig.loop);
    rig.config.index_cache_bytes = 30000; // 3 or 4
    rig.config.frame_cache_bytes = 3 << 20;
    rig.segments = segments_new(&rig.config);
    for (uint64_t number = 0; number < 40; number++)
        segments_add(rig.segments, &wanted[number].row);
    uint64_t random = 6;
    for (unsigned i = 0; i < 5000; i++) {
        read_one(&rig, 1 + rig_random(&random) % 40, (uint32_t)(rig_random(&random) % 200), RIG_MIXED, false);
        struct segments_stat stat;
        segments_stat(rig.segments, &stat);
        assert_true(stat.frame_cache_bytes <= (3 << 20) + 16 * 16 * BLOCK_SIZE);
        assert_true(stat.index_cache_bytes <= 30000 + 16 * 10000);
    }
    rig_stop(&rig);
}

static unsigned descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    unsigned count = 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static void more_segments_than_descriptors_work(void **state)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    unsigned before = descriptors(), most = 0;
    struct rig_segment wanted[20];
    for (uint64_t number = 1; number <= 20; number++)
        wanted[number - 1] = written(&rig, number, RIG_TEXT, 3);
    rig_reopen(&rig);
    // The files of the others are copies: what counts is that they are opened.
    for (uint64_t number = 1; number <= MANY; number++) {
        struct segment_row row = wanted[(number - 1) % 20].row;
        row.number = number;
        segments_add(rig.segments, &row);
        char from[160], to[160];
        snprintf(from, sizeof from, "%s/%08u.1", rig.directory, (unsigned)(1 + (number - 1) % 20));
        snprintf(to, sizeof to, "%s/%08u.1", rig.directory, (unsigned)number);
        assert_true(number <= 20 || link(from, to) == 0);
    }
    for (unsigned round = 0; round < 2; round++)
        for (uint64_t number = 1; number <= MANY; number++) {
            static struct one_read one;
            unsigned left = 1;
            memset(&one, 0, sizeof one);
            one.expected = number <= 20 ? 0 : -EBADMSG; // a copy is found out
            read_begin(&rig, &one, number, (uint32_t)(number % 3), 1, &left);
            wait_for(&rig, &left);
            assert_true(number > 20 || rig_same(RIG_TEXT, number % 3, 1, one.buffer));
            most = descriptors() > most ? descriptors() : most;
        }
    assert_true(most < before + 300);
    rig_stop(&rig);
}

static void a_process_out_of_descriptors_reads_on(void **state)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    struct rig_segment wanted[12];
    for (uint64_t number = 1; number <= 12; number++)
        wanted[number - 1] = written(&rig, number, RIG_TEXT, 3);
    rig_reopen(&rig);
    for (unsigned i = 0; i < 12; i++)
        segments_add(rig.segments, &wanted[i].row);
    for (uint32_t i = 0; i < 3; i++)
        read_one(&rig, i + 1, 0, RIG_TEXT, false);
    int taken[256], count = 0;
    struct rlimit limit, small = {.rlim_cur = 200};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    small.rlim_max = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    while ((taken[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    for (uint32_t i = 0; i < 36; i++)
        read_one(&rig, i % 12 + 1, i / 12, RIG_TEXT, true);
    while (count > 0)
        close(taken[--count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    rig_stop(&rig);
}

static void a_swapped_generation_is_readable_to_the_end(void **state)
{
    enum { READERS = 30 };
    static struct one_read reads[READERS];
    struct segment_rig rig;
    struct segments_stat stat;
    rig_start_sim(&rig, 7, NULL);
    struct rig_segment wanted = written(&rig, 3, RIG_TEXT, 500);
    rig_reopen(&rig);
    segments_add(rig.segments, &wanted.row);
    unsigned left = READERS;
    memset(reads, 0, sizeof reads);
    for (uint32_t i = 0; i < READERS; i++)
        read_begin(&rig, &reads[i], 3, i * 16, 4, &left);
    struct segment_row row = wanted.row;
    row.generation = 2; // there is no such file: only the old one can answer
    segments_add(rig.segments, &row);
    segments_stat(rig.segments, &stat);
    assert_int_equal(stat.leaving_bytes, wanted.row.file_bytes);
    wait_for(&rig, &left);
    for (uint32_t i = 0; i < READERS; i++)
        assert_true(rig_same(RIG_TEXT, i * 16, 4, reads[i].buffer));
    segments_stat(rig.segments, &stat);
    assert_int_equal(stat.leaving_bytes, 0);
    sim_world_settle(rig.world);
    assert_int_equal(sim_world_open_files(rig.world), 0); // closed when the last reader was done
    left = 1;
    reads[0].expected = -EIO; // a lost file
    read_begin(&rig, &reads[0], 3, 0, 1, &left);
    wait_for(&rig, &left);
    segments_drop(rig.segments, 3);
    left = 1;
    reads[0].expected = -ENOENT;
    read_begin(&rig, &reads[0], 3, 0, 1, &left);
    wait_for(&rig, &left);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(many_readers_of_one_frame_are_one_read),
            cmocka_unit_test(a_frame_that_fails_fails_for_all_and_once),
            cmocka_unit_test(hot_blocks_are_no_io),
            cmocka_unit_test(uncached_readers_leave_nothing),
            cmocka_unit_test(caps_hold),
            cmocka_unit_test(more_segments_than_descriptors_work),
            cmocka_unit_test(a_process_out_of_descriptors_reads_on),
            cmocka_unit_test(a_swapped_generation_is_readable_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
