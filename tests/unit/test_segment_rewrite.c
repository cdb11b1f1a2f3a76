// SPDX-License-Identifier: Apache-2.0
// Collecting a segment: slots keep their numbers, dead ones go, what lives stays the same; whole frames are
// copied as they are; damage stops it.
#include "tests/unit/segment_fixture.h"

struct rewriting {
    uint64_t number;
    uint64_t live[SEGMENT_BITMAP_WORDS];
    int level;
    unsigned frame_slots;
    struct segment_row row;
    struct error err;
};

static int rewrite_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct rewriting *r = context;
    return segment_rewrite(
            rig->segments, task, r->number, r->live, r->level, r->frame_slots, &r->row, &r->err);
}

static void set_live(struct rewriting *r, uint32_t slot)
{
    r->live[slot / 64] |= UINT64_C(1) << slot % 64;
}

static bool lives(const struct rewriting *r, uint32_t slot)
{
    return r->live[slot / 64] >> slot % 64 & 1;
}

struct one_read {
    uint64_t number;
    uint32_t slot, count;
    uint8_t *buffer;
};

static int read_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct one_read *r = context;
    return segment_read_task(rig->segments, task, locator_segment(r->number, r->slot), r->count, r->buffer);
}

struct slots_seen {
    struct segment_rig *rig;
    struct rewriting *r;
    const struct rig_segment *wanted;
    uint32_t next, count;
};

static int slot_seen(void *context, locator_t locator, struct fingerprint fingerprint)
{
    struct slots_seen *seen = context;
    uint8_t block[BLOCK_SIZE];
    uint32_t slot = locator_segment_slot(locator);
    assert_int_equal(locator_segment_number(locator), seen->wanted->number);
    assert_true(slot >= seen->next && lives(seen->r, slot));
    rig_block(seen->wanted->content, slot, block);
    struct fingerprint right = rig_fingerprint(seen->rig, seen->wanted->domain, block);
    assert_memory_equal(&right, &fingerprint, sizeof right);
    seen->next = slot + 1;
    seen->count++;
    return 0;
}

static int slots_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct slots_seen *seen = context;
    return segment_slots_task(rig->segments, task, seen->wanted->number, slot_seen, seen);
}

static int fingerprint_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct one_read *r = context;
    struct fingerprint fingerprint;
    return segment_fingerprint_task(rig->segments, task, locator_segment(r->number, r->slot), &fingerprint);
}

static void check_live(struct segment_rig *rig, const struct rig_segment *wanted, struct rewriting *r)
{
    uint8_t block[2 * BLOCK_SIZE];
    for (uint32_t slot = 0; slot < wanted->slots; slot++) {
        struct one_read one = {wanted->number, slot, 1, block};
        int expected = lives(r, slot) ? 0 : -ENOENT;
        assert_int_equal(rig_task(rig, read_body, &one), expected);
        if (expected == 0)
            assert_true(rig_same(wanted->content, slot, 1, block));
        assert_int_equal(rig_task(rig, fingerprint_body, &one), expected);
        one.count = 2;
        expected = lives(r, slot) && slot + 1 < wanted->slots && lives(r, slot + 1) ? 0 : -ENOENT;
        assert_int_equal(rig_task(rig, read_body, &one), expected);
    }
    struct slots_seen seen = {rig, r, wanted, 0, 0};
    assert_int_equal(rig_task(rig, slots_body, &seen), 0);
    assert_int_equal(seen.count, r->row.present);
}

static void no_damage(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    fail_msg("%s", sentence);
}

static int verify_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segment_verify(rig->segments, task, *(uint64_t *)context, no_damage, NULL);
}

static int collect_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segments_collect_files(rig->segments, task);
}

static int file_count;

static void count_name(void *context, const char *name)
{
    file_count++;
}

static int files_in(struct segment_rig *rig)
{
    file_count = 0;
    assert_int_equal(rig->loop->ops->list_dir(rig->loop, rig->directory, count_name, NULL), 0);
    return file_count;
}

static void shrink(struct segment_rig *rig, struct rig_segment *wanted, int level, unsigned keep_of_256)
{
    static struct rewriting r;
    uint64_t random = wanted->number;
    uint32_t kept = 0;
    assert_int_equal(rig_task(rig, rig_write, wanted), 0);
    segments_add(rig->segments, &wanted->row);
    r = (struct rewriting){.number = wanted->number, .level = level, .frame_slots = 16};
    for (uint32_t slot = 0; slot < wanted->slots; slot++)
        if (slot / 40 % 3 == 1 || rig_random(&random) % 256 < keep_of_256)
            set_live(&r, slot), kept++;
    struct segment_row before = wanted->row;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(rig_task(rig, rewrite_body, &r), 0);
        assert_int_equal(r.row.generation, before.generation + 1);
        assert_int_equal(r.row.slots, wanted->slots);
        assert_int_equal(r.row.present, kept);
        assert_true(r.row.file_bytes <= before.file_bytes + 2 * BLOCK_SIZE);
        if (level > 0)
            assert_int_equal(r.row.level, level);
        assert_int_equal(files_in(rig), 2);
        assert_int_equal(rig_task(rig, collect_body, NULL), 0);
        assert_int_equal(files_in(rig), 2); // neither swapped yet nor given up
        segments_add(rig->segments, &r.row);
        assert_int_equal(rig_task(rig, collect_body, NULL), 0);
        assert_int_equal(files_in(rig), 1);
        check_live(rig, wanted, &r);
        assert_int_equal(rig_task(rig, verify_body, &r.number), 0);
        before = r.row;
        for (uint32_t slot = 0; slot < wanted->slots; slot += 5) { // the next round
            kept -= lives(&r, slot);
            r.live[slot / 64] &= ~(UINT64_C(1) << slot % 64);
        }
    }
    segments_drop(rig->segments, wanted->number);
    assert_int_equal(rig_task(rig, collect_body, NULL), 0);
    assert_int_equal(files_in(rig), 0);
}

static void shrink_all(struct segment_rig *rig)
{
    static const enum rig_content contents[] = {RIG_TEXT, RIG_NOISE, RIG_MIXED, RIG_NODES};
    uint64_t number = 0;
    for (unsigned i = 0; i < 4; i++)
        for (int level = 0; level <= SEGMENT_LEVEL_COLD; level += SEGMENT_LEVEL_COLD)
            for (unsigned frame = 4; frame <= 64; frame *= 4) {
                struct rig_segment wanted = {.number = ++number,
                        .domain = i,
                        .kind = contents[i] == RIG_NODES ? SEGMENT_NODES : SEGMENT_DATA,
                        .content = contents[i],
                        .slots = 333,
                        .frame_slots = frame};
                shrink(rig, &wanted, level, frame * 3);
            }
}

static void slots_survive_on_io_uring(void **state)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    shrink_all(&rig);
    rig_stop(&rig);
}

static void slots_survive_in_the_simulator(void **state)
{
    struct segment_rig rig;
    struct sim_options options = {.short_per_mille = 30};
    rig_start_sim(&rig, 4, &options);
    shrink_all(&rig);
    rig_stop(&rig);
}

// Nothing but the place and the generation differs when everything lives.
static void whole_frames_are_copied_as_they_are(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 5, NULL);
    struct rig_segment wanted = {
            .number = 8, .kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 200, .frame_slots = 16};
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    segments_add(rig.segments, &wanted.row);
    static struct rewriting r;
    r = (struct rewriting){.number = 8, .frame_slots = 16};
    for (uint32_t slot = 0; slot < 200; slot++)
        set_live(&r, slot);
    assert_int_equal(rig_task(&rig, rewrite_body, &r), 0);
    struct sim_disk *disk = sim_world_disk(rig.world);
    size_t size = wanted.row.file_bytes;
    uint8_t *old = malloc(size), *new = malloc(size);
    assert_int_equal(sim_disk_peek(disk, "/segments/00000008.1", 0, old, size), size);
    assert_int_equal(sim_disk_peek(disk, "/segments/00000008.2", 0, new, size), size);
    assert_memory_equal(old + BLOCK_SIZE, new + BLOCK_SIZE, size - 2 * BLOCK_SIZE);
    free(old);
    free(new);
    rig_stop(&rig);
}

static void what_is_not_there_or_damaged_is_not_rewritten(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 6, NULL);
    struct rig_segment wanted = {
            .number = 3, .kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 50, .frame_slots = 16};
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    segments_add(rig.segments, &wanted.row);
    static struct rewriting r;
    r = (struct rewriting){.number = 3, .frame_slots = 16};
    set_live(&r, 50);
    assert_int_equal(rig_task(&rig, rewrite_body, &r), -EBADMSG);
    assert_non_null(strstr(r.err.text, "slot 50"));
    r.live[0] = 1;
    assert_int_equal(sim_disk_flip(sim_world_disk(rig.world), "/segments/00000003.1", 4100, 3), 0);
    assert_int_equal(rig_task(&rig, rewrite_body, &r), -EBADMSG);
    assert_non_null(strstr(r.err.text, "/segments/00000003.1"));
    assert_int_equal(files_in(&rig), 1);
    r.live[0] = UINT64_C(1) << 20; // another frame
    assert_int_equal(rig_task(&rig, rewrite_body, &r), 0);
    r.number = 9;
    assert_int_equal(rig_task(&rig, rewrite_body, &r), -ENOENT);
    r.number = 3;
    r.frame_slots = 65;
    assert_int_equal(rig_task(&rig, rewrite_body, &r), -EINVAL);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(slots_survive_on_io_uring),
            cmocka_unit_test(slots_survive_in_the_simulator),
            cmocka_unit_test(whole_frames_are_copied_as_they_are),
            cmocka_unit_test(what_is_not_there_or_damaged_is_not_rewritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
