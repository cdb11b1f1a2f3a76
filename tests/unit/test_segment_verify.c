// SPDX-License-Identifier: Apache-2.0
// Damage: every changed bit of a segment's file is reported by segment_verify and never served; so is what
// happens to whole files. What a directory holds can be found again from the files alone.
#include "tests/unit/segment_fixture.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

struct damages {
    uint64_t number;
    unsigned count;
    uint32_t slots; // that cannot be read
    char sentence[900];
};

static void damage_seen(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    struct damages *damages = context;
    damages->number = number;
    damages->count++;
    damages->slots += count;
    snprintf(damages->sentence, sizeof damages->sentence, "%s", sentence);
}

static int verify_body(struct segment_rig *rig, struct task *task, void *context)
{
    struct damages *damages = context;
    uint64_t number = damages->number;
    return segment_verify(rig->segments, task, number, damage_seen, damages);
}

static struct damages verify(struct segment_rig *rig, uint64_t number)
{
    struct damages damages = {.number = number};
    int r = rig_task(rig, verify_body, &damages);
    assert_true(r >= 0);
    assert_int_equal(r, damages.count);
    return damages;
}

// ---- Every bit ----

enum { SMALL_SLOTS = 6 };

// Under the sanitizers, which are slow, every 15th of them: another bit in each byte.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EVERY = 15 };
#else
enum { EVERY = 1 };
#endif

static const char *small_path(uint64_t number)
{
    static char path[64];
    snprintf(path, sizeof path, "/segments/%08llu.1", (unsigned long long)number);
    return path;
}

// One slot noise (raw), the others text.
static int write_small(struct segment_rig *rig, struct task *task, void *context)
{
    struct rig_segment *wanted = context;
    struct segment_writer *writer;
    uint8_t block[BLOCK_SIZE];
    locator_t locator;
    int r = segment_writer_begin(rig->segments, task, wanted->number, wanted->kind, 4, &writer);
    for (unsigned i = 0; i < SMALL_SLOTS && r == 0; i++) {
        rig_block(i == 3 ? RIG_NOISE : wanted->content, i, block);
        r = segment_writer_add(writer, block, rig_fingerprint(rig, 4, block), i == 3 ? 1 : 3, &locator);
    }
    return r < 0 ? r : segment_writer_finish(writer, &wanted->row, &wanted->err);
}

static int all_bits(struct segment_rig *rig, struct task *task, void *context)
{
    const struct rig_segment *wanted = context;
    struct sim_disk *disk = sim_world_disk(rig->world);
    const char *path = small_path(wanted->number);
    struct damages damages;
    for (uint64_t bit = 0; bit < wanted->row.file_bytes * 8; bit += EVERY) {
        // In the long zero ends of blocks, which one checksum covers, one bit of each byte is enough.
        if (bit / 8 % BLOCK_SIZE > 400 && bit % 8 != bit / 8 % 8)
            continue;
        damages = (struct damages){.number = wanted->number};
        assert_int_equal(sim_disk_flip(disk, path, bit / 8, bit % 8), 0);
        int r = segment_verify(rig->segments, task, wanted->number, damage_seen, &damages);
        if (r < 1 || strstr(damages.sentence, path) == NULL || strstr(damages.sentence, "bytes") == NULL) {
            print_error("bit %u of byte %u: %d, %s\n", (unsigned)(bit % 8), (unsigned)(bit / 8), r,
                    damages.sentence);
            return -EBADMSG;
        }
        assert_int_equal(sim_disk_flip(disk, path, bit / 8, bit % 8), 0);
    }
    damages = (struct damages){0};
    return segment_verify(rig->segments, task, wanted->number, damage_seen, &damages);
}

static void every_changed_bit_is_reported(void **state)
{
    for (uint64_t kind = SEGMENT_DATA; kind <= SEGMENT_NODES; kind++) {
        struct segment_rig rig;
        rig_start_sim(&rig, kind, NULL);
        struct rig_segment wanted = {.number = kind,
                .kind = (enum segment_kind)kind,
                .content = kind == SEGMENT_DATA ? RIG_TEXT : RIG_NODES};
        assert_int_equal(rig_task(&rig, write_small, &wanted), 0);
        segments_add(rig.segments, &wanted.row);
        assert_int_equal(rig_task(&rig, all_bits, &wanted), 0);
        rig_stop(&rig);
    }
}

// Right or an error, never other bytes.
static int all_bytes_read(struct segment_rig *rig, struct task *task, void *context)
{
    const struct rig_segment *wanted = context;
    struct sim_disk *disk = sim_world_disk(rig->world);
    const char *path = small_path(wanted->number);
    uint8_t block[BLOCK_SIZE];
    uint32_t refused = 0;
    for (uint64_t at = 0; at < wanted->row.file_bytes; at += EVERY) {
        assert_int_equal(sim_disk_flip(disk, path, at, at * 5 % 8), 0);
        segments_drop(rig->segments, wanted->number); // with what is cached
        segments_add(rig->segments, &wanted->row);
        for (uint32_t slot = at % 3; slot < SMALL_SLOTS; slot += 3) {
            int r = segment_read_task(rig->segments, task, locator_segment(wanted->number, slot), 1, block);
            if (r == 0 && !rig_same(slot == 3 ? RIG_NOISE : wanted->content, slot, 1, block))
                return -EILSEQ;
            if (r < 0 && r != -EBADMSG)
                return r;
            refused += r < 0;
        }
        assert_int_equal(sim_disk_flip(disk, path, at, at * 5 % 8), 0);
    }
    return refused > 1000 / EVERY ? 0 : -EDOM;
}

static void no_changed_byte_is_served(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 9, NULL);
    struct rig_segment wanted = {.number = 1, .kind = SEGMENT_DATA, .content = RIG_TEXT};
    assert_int_equal(rig_task(&rig, write_small, &wanted), 0);
    segments_add(rig.segments, &wanted.row);
    assert_int_equal(rig_task(&rig, all_bytes_read, &wanted), 0);
    rig_stop(&rig);
}

// ---- Whole files ----

struct scanned {
    struct segment_row rows[16];
    unsigned count;
    struct damages damages;
};

static void row_seen(void *context, const struct segment_row *row)
{
    struct scanned *scanned = context;
    scanned->rows[scanned->count++] = *row;
}

static void scan_damage(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    damage_seen(&((struct scanned *)context)->damages, number, first_slot, count, sentence);
}

static int scan_body(struct segment_rig *rig, struct task *task, void *context)
{
    return segments_scan(rig->segments, task, row_seen, scan_damage, context);
}

static struct scanned scan(struct segment_rig *rig, int expected)
{
    struct scanned scanned = {.count = 0};
    assert_int_equal(rig_task(rig, scan_body, &scanned), expected);
    return scanned;
}

static char *file_path(struct segment_rig *rig, const char *name)
{
    static char path[4][128];
    static unsigned turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", rig->directory, name);
    return path[turn];
}

static void sh(const char *format, ...)
{
    char command[512];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static void three_segments(struct segment_rig *rig, struct rig_segment wanted[3])
{
    rig_start_ring(rig);
    for (unsigned i = 0; i < 3; i++) {
        wanted[i] = (struct rig_segment){.number = i + 1,
                .kind = i == 2 ? SEGMENT_NODES : SEGMENT_DATA,
                .content = i == 2 ? RIG_NODES : RIG_MIXED,
                .slots = 100,
                .frame_slots = 16};
        assert_int_equal(rig_task(rig, rig_write, &wanted[i]), 0);
        segments_add(rig->segments, &wanted[i].row);
        assert_int_equal(verify(rig, i + 1).count, 0);
    }
}

static int read_one(struct segment_rig *rig, struct task *task, void *context)
{
    uint8_t block[BLOCK_SIZE];
    return segment_read_task(rig->segments, task, *(locator_t *)context, 1, block);
}

static void forget_caches(struct segment_rig *rig, const struct rig_segment wanted[3])
{
    rig_reopen(rig);
    for (unsigned i = 0; i < 3; i++)
        segments_add(rig->segments, &wanted[i].row);
}

// The file of segment 1 was changed; expected: what a read of it answers.
static void expect_damage(
        struct segment_rig *rig, const struct rig_segment wanted[3], const char *words, int expected)
{
    forget_caches(rig, wanted);
    struct damages damages = verify(rig, 1);
    assert_true(damages.count > 0);
    assert_non_null(strstr(damages.sentence, "00000001.1"));
    if (strstr(damages.sentence, words) == NULL)
        fail_msg("no '%s' in: %s", words, damages.sentence);
    assert_int_equal(verify(rig, 2).count, 0);
    locator_t locator = locator_segment(1, 40);
    assert_int_equal(rig_task(rig, read_one, &locator), expected);
    struct scanned found = scan(rig, 0);
    assert_true(found.count >= 2); // the others
}

static void what_happens_to_whole_files_is_reported(void **state)
{
    struct segment_rig rig;
    struct rig_segment wanted[3];
    three_segments(&rig, wanted);
    const char *file = strdup(file_path(&rig, "00000001.1")), *keep = strdup(file_path(&rig, "keep"));
    sh("cp %s %s", file, keep);
    sh("truncate -s 0 %s", file);
    expect_damage(&rig, wanted, "is empty", -EBADMSG);
    static const unsigned cuts[] = {1, 4095, 4096, 4097, 50000};
    for (unsigned i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        sh("cp %s %s; truncate -s %u %s", keep, file, cuts[i], file);
        expect_damage(&rig, wanted, "no trailer", -EBADMSG);
        sh("cp %s %s; truncate -s -%u %s", keep, file, cuts[i], file);
        expect_damage(&rig, wanted, "no trailer", -EBADMSG);
        sh("cp %s %s; truncate -s +%u %s", keep, file, cuts[i], file); // the end is still where it was
        expect_damage(&rig, wanted, "were written", 0);
    }
    sh("cp %s %s; truncate -s +100M %s", keep, file, file);
    expect_damage(&rig, wanted, "were written", 0);
    sh("cp %s %s; dd if=/dev/zero of=%s bs=4096 count=1 conv=notrunc status=none oflag=append", keep, file,
            file);
    expect_damage(&rig, wanted, "were written", 0);
    sh("cp %s %s; truncate -s -4096 %s; truncate -s +4096 %s", keep, file, file, file);
    expect_damage(&rig, wanted, "no trailer", -EBADMSG);
    sh("cp %s %s", file_path(&rig, "00000002.1"), file);
    expect_damage(&rig, wanted, "segment 2", -EBADMSG);
    sh("rm %s", file);
    expect_damage(&rig, wanted, "missing", -EIO);
    sh("cp %s %s", keep, file);
    forget_caches(&rig, wanted);
    assert_int_equal(verify(&rig, 1).count, 0);
    free((char *)file);
    free((char *)keep);
    rig_stop(&rig);
}

static void a_file_of_another_store_is_refused(void **state)
{
    struct segment_rig rig;
    struct rig_segment wanted[3];
    three_segments(&rig, wanted);
    segments_free(rig.segments, rig.loop);
    rig.config.seed++;
    rig.segments = segments_new(&rig.config);
    segments_add(rig.segments, &wanted[0].row);
    struct damages damages = verify(&rig, 1);
    assert_true(damages.count > 0);
    locator_t locator = locator_segment(1, 0);
    assert_int_equal(rig_task(&rig, read_one, &locator), -EBADMSG);
    rig_stop(&rig);
}

// ---- Scanning ----

static int rewrite_body(struct segment_rig *rig, struct task *task, void *context)
{
    uint64_t live[SEGMENT_BITMAP_WORDS] = {~UINT64_C(0)};
    return segment_rewrite(rig->segments, task, 2, live, 0, 16, context, NULL);
}

static void a_scan_finds_the_newest_whole_generation(void **state)
{
    struct segment_rig rig;
    struct rig_segment wanted[3];
    three_segments(&rig, wanted);
    struct segment_row second;
    assert_int_equal(rig_task(&rig, rewrite_body, &second), 0);
    sh("echo x > %s; touch %s %s", file_path(&rig, "notes"), file_path(&rig, "2.1"),
            file_path(&rig, "00000002.1x"));
    rig_reopen(&rig);
    struct scanned found = scan(&rig, 0);
    assert_int_equal(found.damages.count, 0);
    assert_int_equal(found.count, 3);
    assert_memory_equal(&found.rows[0], &wanted[0].row, sizeof(struct segment_row));
    assert_memory_equal(&found.rows[1], &second, sizeof second);
    assert_memory_equal(&found.rows[2], &wanted[2].row, sizeof(struct segment_row));
    // The newest is cut short: the one before.
    sh("truncate -s -1 %s", file_path(&rig, "00000002.2"));
    found = scan(&rig, 0);
    assert_true(found.damages.count > 0);
    assert_memory_equal(&found.rows[1], &wanted[1].row, sizeof(struct segment_row));
    // Both are damaged, but the older one has its index: what else it holds can be read.
    sh("printf x | dd of=%s bs=1 seek=5000 conv=notrunc status=none", file_path(&rig, "00000002.1"));
    found = scan(&rig, 0);
    assert_int_equal(found.count, 3);
    assert_memory_equal(&found.rows[1], &wanted[1].row, sizeof(struct segment_row));
    assert_int_equal(found.damages.slots, 16);
    rig_stop(&rig);
}

static void what_cannot_be_read_is_an_error(void **state)
{
    struct segment_rig rig;
    rig_start_sim(&rig, 3, NULL);
    struct rig_segment wanted = {
            .number = 1, .kind = SEGMENT_DATA, .content = RIG_MIXED, .slots = 100, .frame_slots = 16};
    assert_int_equal(rig_task(&rig, rig_write, &wanted), 0);
    segments_add(rig.segments, &wanted.row);
    struct sim_fault open = {.code = IO_OPEN, .nth = 1, .error = EACCES, .path_part = "00000001"};
    sim_world_fault(rig.world, &open);
    struct damages damages = {.number = 1};
    assert_int_equal(rig_task(&rig, verify_body, &damages), -EACCES);
    assert_int_equal(damages.count, 0);
    sim_world_fault(rig.world, &open);
    struct scanned found = scan(&rig, -EACCES);
    assert_int_equal(found.count, 0);
    for (uint64_t nth = 1; nth < 30; nth++) {
        sim_world_clear_faults(rig.world);
        struct sim_fault bad = {
                .code = IO_READ, .nth = nth, .error = EIO, .for_ever = true, .path_part = "00000001"};
        sim_world_fault(rig.world, &bad);
        uint64_t before = sim_world_faults_hit(rig.world);
        damages = (struct damages){.number = 1};
        int r = rig_task(&rig, verify_body, &damages);
        if (sim_world_faults_hit(rig.world) == before)
            break;
        assert_true(r > 0);
        assert_non_null(strstr(damages.sentence, "cannot read"));
    }
    sim_world_clear_faults(rig.world);
    struct sim_fault bad = {.code = IO_READ, .nth = 1, .error = EIO, .for_ever = true};
    sim_world_fault(rig.world, &bad);
    found = scan(&rig, -EIO);
    assert_int_equal(found.count, 0);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(every_changed_bit_is_reported),
            cmocka_unit_test(no_changed_byte_is_served),
            cmocka_unit_test(what_happens_to_whole_files_is_reported),
            cmocka_unit_test(a_file_of_another_store_is_refused),
            cmocka_unit_test(a_scan_finds_the_newest_whole_generation),
            cmocka_unit_test(what_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
