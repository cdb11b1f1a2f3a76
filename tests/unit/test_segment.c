// SPDX-License-Identifier: Apache-2.0
// Segments that are written are read again: all kinds, frame sizes and contents, from the writer's memory,
// from the file, and from the caches; on io_uring and on the simulated loops.
#include "tests/unit/segment_fixture.h"

struct wanted_read {
    locator_t first;
    uint32_t count;
    void *buffer;
};

static int read_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct wanted_read *wanted = context;
    return segment_read_task(rig->segments, task, wanted->first, wanted->count, wanted->buffer);
}

static int read_slots(struct segment_rig *rig, uint64_t number, uint32_t slot, uint32_t count, void *buffer)
{
    struct wanted_read wanted = {locator_segment(number, slot), count, buffer};
    return rig_task(rig, read_body, &wanted);
}

static void write_one(struct segment_rig *rig, struct rig_segment *wanted)
{
    assert_int_equal(rig_task(rig, rig_write, wanted), 0);
    assert_int_equal(wanted->row.number, wanted->number);
    assert_int_equal(wanted->row.generation, 1);
    assert_int_equal(wanted->row.slots, wanted->slots);
    assert_int_equal(wanted->row.present, wanted->slots);
    assert_int_equal(wanted->row.kind, wanted->kind);
    assert_int_equal(wanted->row.domain, wanted->domain);
    assert_int_equal(wanted->row.file_bytes % BLOCK_SIZE, 0);
}

static void check_all(struct segment_rig *rig, const struct rig_segment *wanted, uint32_t step)
{
    uint8_t *buffer = (uint8_t *)malloc((size_t)step * BLOCK_SIZE + 1) + 1; // an odd address
    for (uint32_t slot = 0; slot < wanted->slots; slot += step) {
        uint32_t count = step < wanted->slots - slot ? step : wanted->slots - slot;
        memset(buffer, 0xee, (size_t)count * BLOCK_SIZE);
        assert_int_equal(read_slots(rig, wanted->number, slot, count, buffer), 0);
        assert_true(rig_same(wanted->content, slot, count, buffer));
    }
    free(buffer - 1);
}

static void round_trips(struct segment_rig *rig)
{
    static const struct rig_segment shapes[] = {
            {.kind = SEGMENT_DATA, .content = RIG_TEXT, .slots = 1, .frame_slots = 16},
            {.kind = SEGMENT_DATA, .content = RIG_TEXT, .slots = 100, .frame_slots = 16},
            {.kind = SEGMENT_DATA, .content = RIG_NOISE, .slots = 100, .frame_slots = 16, .domain = 9},
            {.kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 300, .frame_slots = 4},
            {.kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 1000, .frame_slots = 64, .look = true},
            {.kind = SEGMENT_DATA, .content = RIG_NOISE, .slots = 700, .frame_slots = 64, .look = true},
            {.kind = SEGMENT_DATA, .content = RIG_TEXT, .slots = 65, .frame_slots = 1},
            {.kind = SEGMENT_NODES, .content = RIG_NODES, .slots = 70, .frame_slots = 8, .look = true},
            {.kind = SEGMENT_NODES, .content = RIG_NOISE, .slots = 20, .frame_slots = 8},
    };
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    struct rig_segment wanted[SHAPES];
    for (unsigned i = 0; i < SHAPES; i++) {
        wanted[i] = shapes[i];
        wanted[i].number = i + 1;
        write_one(rig, &wanted[i]);
        check_all(rig, &wanted[i], 37); // not in the table yet, but to be read
        struct segment_row row;
        assert_false(segments_get(rig->segments, i + 1, &row));
        segments_add(rig->segments, &wanted[i].row);
        assert_true(segments_get(rig->segments, i + 1, &row));
        assert_memory_equal(&row, &wanted[i].row, sizeof row);
    }
    for (int pass = 0; pass < 2; pass++) {
        rig_reopen(rig);
        for (unsigned i = 0; i < SHAPES; i++)
            segments_add(rig->segments, &wanted[i].row);
        for (unsigned i = 0; i < SHAPES; i++) {
            check_all(rig, &wanted[i], pass == 0 ? 1 : 64);
            check_all(rig, &wanted[i], 5);
            check_all(rig, &wanted[i], wanted[i].slots);
        }
    }
}

static void what_is_written_is_read_on_io_uring(void **state)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    round_trips(&rig);
    rig_stop(&rig);
}

static void what_is_written_is_read_in_the_simulator(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct segment_rig rig;
        struct sim_options options = {.short_per_mille = 100, .slow_per_mille = 50};
        rig_start_sim(&rig, seed, &options);
        round_trips(&rig);
        rig_stop(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(what_is_written_is_read_on_io_uring),
            cmocka_unit_test(what_is_written_is_read_in_the_simulator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
