// SPDX-License-Identifier: Apache-2.0
// Segments where the N-th call fails, for every N and every kind of call, and where memory and descriptors
// are scarce. Nothing half-made stays, what could not be done can be done again, nothing wrong is read.
#include "tests/unit/segment_fixture.h"

enum { SLOTS = 700, NUMBER = 5 };

static unsigned files;

static void count_name(void *context, const char *name)
{
    files++;
}

static unsigned files_in(struct segment_rig *rig)
{
    files = 0;
    assert_int_equal(rig->loop->ops->list_dir(rig->loop, rig->directory, count_name, NULL), 0);
    return files;
}

struct read_all {
    uint64_t number;
    enum rig_content content;
    uint32_t first, slots, step;
};

static int read_all(struct segment_rig *rig, struct task *task, void *context)
{
    const struct read_all *wanted = context;
    uint8_t *buffer = malloc((size_t)wanted->step * BLOCK_SIZE);
    int r = 0;
    for (uint32_t slot = wanted->first; slot < wanted->slots && r == 0; slot += wanted->step) {
        uint32_t count = wanted->slots - slot < wanted->step ? wanted->slots - slot : wanted->step;
        r = segment_read_task(rig->segments, task, locator_segment(wanted->number, slot), count, buffer);
        if (r == 0 && !rig_same(wanted->content, slot, count, buffer))
            r = -EILSEQ;
    }
    free(buffer);
    return r;
}

struct rewriting {
    uint64_t live[SEGMENT_BITMAP_WORDS];
    struct segment_row row;
    struct error err;
};

static int rewrite_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct rewriting *r = context;
    return segment_rewrite(rig->segments, task, NUMBER, r->live, 0, 16, &r->row, &r->err);
}

static void no_damage(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    fail_msg("%s", sentence);
}

static int verify_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segment_verify(rig->segments, task, NUMBER, no_damage, NULL);
}

static int collect_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segments_collect_files(rig->segments, task);
}

static const struct {
    enum io_code code;
    int error;
} kinds[] = {{IO_OPEN, EMFILE}, {IO_WRITE, ENOSPC}, {IO_WRITE, EIO}, {IO_FDATASYNC, EIO}, {IO_FSYNC_DIR, EIO},
        {IO_READ, EIO}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static bool planned(struct segment_rig *rig, unsigned kind, uint64_t nth, uint64_t *before)
{
    struct sim_fault fault = {.code = kinds[kind].code, .nth = nth, .error = kinds[kind].error};
    sim_world_clear_faults(rig->world);
    sim_world_fault(rig->world, &fault);
    *before = sim_world_faults_hit(rig->world);
    return true;
}

// Returns whether the fault was reached; the segment is there in any case afterwards.
static bool write_with_fault(unsigned kind, uint64_t nth)
{
    struct segment_rig rig;
    uint64_t before;
    struct segment_row row;
    rig_start_sim(&rig, nth, NULL);
    struct rig_segment wanted = {.number = NUMBER,
            .kind = SEGMENT_DATA,
            .content = RIG_NOISE,
            .slots = SLOTS,
            .frame_slots = 16,
            .look = nth % 4 == 1};
    planned(&rig, kind, nth, &before);
    int r = rig_task(&rig, rig_write, &wanted);
    bool hit = sim_world_faults_hit(rig.world) > before;
    sim_world_clear_faults(rig.world);
    assert_int_equal(r, hit ? -kinds[kind].error : 0);
    if (hit) {
        assert_int_equal(files_in(&rig), 0);
        assert_false(segments_get(rig.segments, NUMBER, &row));
        struct read_all one = {NUMBER, RIG_NOISE, 0, 1, 1};
        assert_int_equal(rig_task(&rig, read_all, &one), -ENOENT);
        assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    }
    segments_add(rig.segments, &wanted.row);
    struct read_all all = {NUMBER, RIG_NOISE, 0, SLOTS, 50};
    assert_int_equal(rig_task(&rig, read_all, &all), 0);
    assert_int_equal(rig_task(&rig, verify_body, NULL), 0);
    assert_int_equal(files_in(&rig), 1);
    rig_stop(&rig);
    return hit;
}

static void a_write_that_fails_leaves_nothing(void **state)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint64_t nth = 1;
        while (write_with_fault(kind, nth))
            nth++;
        assert_true(nth > 1 || kinds[kind].code == IO_READ);
    }
}

static bool rewrite_with_fault(unsigned kind, uint64_t nth)
{
    static struct rewriting r;
    struct segment_rig rig;
    uint64_t before;
    rig_start_sim(&rig, nth, NULL);
    struct rig_segment wanted = {
            .number = NUMBER, .kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = SLOTS, .frame_slots = 16};
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    segments_add(rig.segments, &wanted.row);
    rig_reopen(&rig);
    segments_add(rig.segments, &wanted.row);
    r = (struct rewriting){0};
    for (uint32_t slot = 200; slot < SLOTS; slot++)
        r.live[slot / 64] |= UINT64_C(1) << slot % 64;
    planned(&rig, kind, nth, &before);
    int result = rig_task(&rig, rewrite_body, &r);
    bool hit = sim_world_faults_hit(rig.world) > before;
    sim_world_clear_faults(rig.world);
    // A window whose reading fails is read once more, less of it: one bad call may go by.
    assert_true(result == (hit ? -kinds[kind].error : 0) || (result == 0 && kinds[kind].code == IO_READ));
    if (result < 0) {
        assert_string_not_equal(r.err.text, "");
        assert_int_equal(files_in(&rig), 1);
        assert_int_equal(rig_task(&rig, rewrite_body, &r), 0);
    }
    segments_add(rig.segments, &r.row);
    assert_int_equal(rig_task(&rig, collect_body, NULL), 0);
    assert_int_equal(files_in(&rig), 1);
    struct read_all all = {NUMBER, RIG_MIXED, 200, SLOTS, 50};
    assert_int_equal(rig_task(&rig, read_all, &all), 0);
    assert_int_equal(rig_task(&rig, verify_body, NULL), 0);
    rig_stop(&rig);
    return hit;
}

static void a_rewrite_that_fails_leaves_the_old(void **state)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint64_t nth = 1;
        while (rewrite_with_fault(kind, nth))
            nth++;
        assert_true(nth > 1);
    }
}

static void a_read_that_fails_can_be_done_again(void **state)
{
    static const enum io_code codes[] = {IO_OPEN, IO_READ};
    for (unsigned i = 0; i < 2; i++) {
        bool hit = true;
        for (uint64_t nth = 1; hit; nth++) {
            struct segment_rig rig;
            rig_start_sim(&rig, nth, NULL);
            struct rig_segment wanted = {.number = NUMBER,
                    .kind = SEGMENT_DATA,
                    .content = RIG_MIXED,
                    .slots = 100,
                    .frame_slots = 16};
            assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
            rig_reopen(&rig);
            segments_add(rig.segments, &wanted.row);
            struct sim_fault fault = {.code = codes[i], .nth = nth, .error = EIO};
            sim_world_fault(rig.world, &fault);
            struct read_all all = {NUMBER, RIG_MIXED, 0, 100, 30};
            int r = rig_task(&rig, read_all, &all);
            hit = sim_world_faults_hit(rig.world) > 0;
            assert_int_equal(r, hit ? -EIO : 0);
            sim_world_clear_faults(rig.world);
            assert_int_equal(rig_task(&rig, read_all, &all), 0);
            rig_stop(&rig);
        }
    }
}

// What a power cut leaves of a segment in the making is no segment, or a whole one; and it goes at the start.
static void a_cut_leaves_a_whole_file_or_none(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct segment_rig rig, after;
        rig_start_sim(&rig, seed, NULL);
        struct rig_segment wanted = {.number = NUMBER,
                .kind = SEGMENT_DATA,
                .content = RIG_MIXED,
                .slots = SLOTS,
                .frame_slots = 16};
        struct rig_task run = {.run = rig_write, .rig = &rig, .context = &wanted};
        uint64_t random = seed;
        sim_world_cut_at(rig.world, sim_world_io_count(rig.world) + rig_random(&random) % 26);
        struct task *task = task_start(rig.loop, rig_task_run, rig_task_ended, &run);
        while (!run.ended && !sim_world_is_cut(rig.world))
            assert_int_equal(rig_step(&rig), 0);
        if (!run.ended)
            task_abandon(task);
        after = (struct segment_rig){.world = sim_world_after_power_cut(rig.world, seed, NULL)};
        after.loop = sim_world_loop(after.world, 0);
        strcpy(after.directory, rig.directory);
        rig_open(&after);
        struct segment_row row;
        if (run.ended && run.result == 0) {
            segments_add(after.segments, &wanted.row);
            assert_int_equal(rig_task(&after, verify_body, NULL), 0);
            struct read_all all = {NUMBER, RIG_MIXED, 0, SLOTS, 50};
            assert_int_equal(rig_task(&after, read_all, &all), 0);
        } else {
            assert_int_equal(segments_collect_files_at_start(after.segments, after.loop, NULL), 0);
            assert_int_equal(files_in(&after), 0);
            assert_false(segments_get(after.segments, NUMBER, &row));
        }
        segments_free(rig.segments, NULL);
        sim_world_destroy(rig.world);
        rig_stop(&after);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_write_that_fails_leaves_nothing),
            cmocka_unit_test(a_rewrite_that_fails_leaves_the_old),
            cmocka_unit_test(a_read_that_fails_can_be_done_again),
            cmocka_unit_test(a_cut_leaves_a_whole_file_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
