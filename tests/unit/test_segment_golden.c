// SPDX-License-Identifier: Apache-2.0
// Segments as version 1 wrote them, kept in tests/golden/segments-1: they stay readable, and what does not
// pass through zstd is still written to the byte. A newer format is refused by name, features that may be
// ignored are. With RAMET_GOLDEN_WRITE=DIRECTORY the files are made anew there (for a new version only).
#include "tests/unit/segment_fixture.h"

#include "blockstore/segment_format.h"

#include <fcntl.h>

static const struct rig_segment shapes[] = {
        {.number = 1, .kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 20, .frame_slots = 16},
        {.number = 2, .kind = SEGMENT_NODES, .content = RIG_NODES, .slots = 9, .frame_slots = 8},
        {.number = 3, .kind = SEGMENT_DATA, .content = RIG_NOISE, .slots = 3, .frame_slots = 2, .domain = 3},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

// The first one is kept as its second generation, with every third slot gone.
static bool lives(uint64_t number, uint32_t slot)
{
    return number != 1 || slot % 3 != 0;
}

static const char *golden(void)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s", __FILE__);
    char *tests = strstr(path, "unit/test_segment_golden.c");
    assert_non_null(tests);
    strcpy(tests, "golden/segments-1");
    return path;
}

static void start_in(struct segment_rig *rig, const char *directory, bool read_only)
{
    rig_start_ring(rig);
    segments_free(rig->segments, rig->loop);
    rig->config.directory = directory;
    rig->config.read_only = read_only;
    rig->segments = segments_new(&rig->config);
}

// ---- Making them ----

static int make_all(struct segment_rig *rig, struct task *task, void *context)
{
    uint64_t live[SEGMENT_BITMAP_WORDS] = {0};
    for (uint32_t slot = 0; slot < shapes[0].slots; slot++)
        live[0] |= (uint64_t)lives(1, slot) << slot;
    int r = 0;
    for (unsigned i = 0; i < SHAPES && r == 0; i++) {
        struct rig_segment wanted = shapes[i];
        struct segment_row row;
        r = rig_write(rig, task, &wanted);
        if (r == 0)
            segments_add(rig->segments, &wanted.row);
        if (r == 0 && i == 0) {
            r = segment_rewrite(rig->segments, task, 1, live, 0, 16, &row, NULL);
            segments_add(rig->segments, &row);
        }
    }
    return r < 0 ? r : segments_collect_files(rig->segments, task);
}

// ---- Looking at them ----

struct found {
    struct segment_row rows[SHAPES];
    unsigned count, damages;
    char sentence[900];
};

static void row_seen(void *context, const struct segment_row *row)
{
    struct found *found = context;
    assert_true(found->count < SHAPES);
    found->rows[found->count++] = *row;
}

static void damage_seen(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    struct found *found = context;
    found->damages++;
    snprintf(found->sentence, sizeof found->sentence, "%s", sentence);
}

static int scan_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segments_scan(rig->segments, task, row_seen, damage_seen, context);
}

static int read_all(struct segment_rig *rig, struct task *task, void *context)
{
    uint8_t block[BLOCK_SIZE];
    for (unsigned i = 0; i < SHAPES; i++)
        for (uint32_t slot = 0; slot < shapes[i].slots; slot++) {
            int r = segment_read_task(rig->segments, task, locator_segment(shapes[i].number, slot), 1, block);
            if (r != (lives(shapes[i].number, slot) ? 0 : -ENOENT))
                return r == 0 ? -EDOM : r;
            if (r == 0 && !rig_same(shapes[i].content, slot, 1, block))
                return -EILSEQ;
        }
    return 0;
}

static void version_1_is_readable(void **state)
{
    struct segment_rig rig;
    struct found found = {.count = 0};
    const char *fresh = getenv("RAMET_GOLDEN_WRITE");
    if (fresh != NULL) {
        start_in(&rig, fresh, false);
        assert_int_equal(rig_task(&rig, make_all, NULL), 0);
        rig_stop(&rig);
    }
    start_in(&rig, golden(), true);
    assert_int_equal(rig_task(&rig, scan_body, &found), 0);
    assert_int_equal(found.damages, 0);
    assert_int_equal(found.count, SHAPES);
    for (unsigned i = 0; i < SHAPES; i++) {
        assert_int_equal(found.rows[i].number, shapes[i].number);
        assert_int_equal(found.rows[i].generation, i == 0 ? 2 : 1);
        assert_int_equal(found.rows[i].kind, shapes[i].kind);
        assert_int_equal(found.rows[i].domain, shapes[i].domain);
        assert_int_equal(found.rows[i].slots, shapes[i].slots);
        segments_add(rig.segments, &found.rows[i]);
    }
    assert_int_equal(rig_task(&rig, read_all, NULL), 0);
    rig_stop(&rig);
}

static uint8_t *whole_file(const char *directory, const char *name, size_t *ret_size)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    uint8_t *bytes = malloc(1 << 20);
    *ret_size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void what_zstd_does_not_touch_is_written_to_the_byte(void **state)
{
    struct segment_rig rig;
    size_t then_size, now_size;
    rig_start_ring(&rig);
    struct rig_segment wanted = shapes[2];
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    uint8_t *then = whole_file(golden(), "00000003.1", &then_size);
    uint8_t *now = whole_file(rig.directory, "00000003.1", &now_size);
    assert_int_equal(then_size, now_size);
    assert_memory_equal(then, now, now_size);
    free(then);
    free(now);
    rig_stop(&rig);
}

// ---- Newer formats ----

static int verify_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segment_verify(rig->segments, task, 3, damage_seen, context);
}

static int read_one(struct segment_rig *rig, struct task *task, void *context)
{
    uint8_t block[BLOCK_SIZE];
    return segment_read_task(rig->segments, task, locator_segment(3, 1), 1, block);
}

static void with_header(uint32_t version, uint32_t must, uint64_t may, int expected)
{
    struct segment_rig rig;
    rig_start_ring(&rig);
    struct rig_segment wanted = shapes[2];
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    rig_reopen(&rig);
    segments_add(rig.segments, &wanted.row);
    struct segment_header header = {.version = version,
            .must_features = must,
            .may_features = may,
            .number = 3,
            .generation = 1,
            .kind = SEGMENT_DATA,
            .domain = 3};
    uint8_t block[BLOCK_SIZE];
    char path[200];
    segment_header_encode(&header, rig.config.seed, block);
    snprintf(path, sizeof path, "%s/00000003.1", rig.directory);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, block, sizeof block, 0), sizeof block);
    close(fd);
    assert_int_equal(rig_task(&rig, read_one, NULL), expected);
    struct found found = {.count = 0};
    assert_int_equal(rig_task(&rig, verify_body, &found), expected < 0 ? 1 : 0);
    if (expected < 0)
        assert_non_null(strstr(found.sentence, "newer than this program knows"));
    found = (struct found){.count = 0};
    assert_int_equal(rig_task(&rig, scan_body, &found), expected);
    assert_int_equal(found.count, expected < 0 ? 0 : 1);
    rig_stop(&rig);
}

static void newer_formats_are_refused_by_name(void **state)
{
    with_header(1, 0, 0, 0);
    with_header(2, 0, 0, -EPROTO);
    with_header(UINT32_MAX, 0, 0, -EPROTO);
    with_header(1, 1, 0, -EPROTO);
    with_header(1, UINT32_C(1) << 31, 0, -EPROTO);
    with_header(1, 0, UINT64_MAX, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(version_1_is_readable),
            cmocka_unit_test(what_zstd_does_not_touch_is_written_to_the_byte),
            cmocka_unit_test(newer_formats_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
