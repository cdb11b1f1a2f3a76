// SPDX-License-Identifier: Apache-2.0
// Collecting: what is needed stays, what is not goes.
#include "tests/unit/collect_fixture.h"

#include "snapshot/checkpoint.h"

static const struct store_config SMALL = {
        .log_file_bytes = 1 << 20, .log_budget_bytes = 24 << 20, .seal_log_bytes = 1 << 30};

static int setup(void **state)
{
    *state = fixture_new("", &SMALL);
    return 0;
}

static int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

static void fill(
        struct store_fixture *f, struct volume *volume, uint64_t *numbers, unsigned count, uint64_t first)
{
    for (unsigned i = 0; i < count; i++)
        numbers[i] = first + i;
    for (unsigned at = 0; at < count; at += 64) {
        unsigned n = count - at < 64 ? count - at : 64;
        assert_int_equal(fixture_write(volume, at, numbers + at, n), 0);
        if (at % 2048 == 0)
            fixture_seal(f);
    }
}

static void space_comes_back(void **state)
{
    enum { BLOCKS = 4096 };
    struct store_fixture *f = *state;
    static uint64_t numbers[BLOCKS];
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(f, volume, numbers, BLOCKS, 1);
    struct base_id base;
    struct doc_id doc = fixture_snapshot(f, volume_get_id(volume), "s", 10000, &base);
    struct store_gc_result result = fixture_collect(f, 0);
    struct store_stat before = fixture_stat(f);
    assert_true(before.unique_bytes >= (uint64_t)BLOCKS * BLOCK_SIZE);
    assert_true(before.mapped_bytes >= 2 * (uint64_t)BLOCKS * BLOCK_SIZE);
    fixture_delete_doc(f, doc);
    fixture_delete_volume(f, volume);
    result = fixture_collect(f, 0);
    struct store_stat after = fixture_stat(f);
    assert_int_equal(result.live_slots, 0);
    assert_true(result.dead_slots >= BLOCKS);
    assert_int_equal(after.segments, 0);
    assert_int_equal(after.segment_bytes, 0);
    assert_int_equal(after.segment_slots_dead, 0);
    assert_int_equal(fixture_segment_files(f), 0);
    // But for the log, whose spare files are written when it likes.
    assert_true(before.physical_bytes - before.physical_log_bytes -
                        (after.physical_bytes - after.physical_log_bytes) >=
                (uint64_t)BLOCKS * BLOCK_SIZE);
    result = fixture_collect(f, 0);
    assert_int_equal(result.dead_slots, 0);
}

// Random overwriting leaves every segment partly dead: nine tenths of that go in one cycle.
static void nine_tenths_go(void **state)
{
    enum { BLOCKS = 8192 };
    struct store_fixture *f = *state;
    static uint64_t numbers[BLOCKS];
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(f, volume, numbers, BLOCKS, 1);
    fixture_collect(f, 0);
    for (unsigned i = 0; i < BLOCKS / 3; i++) {
        uint64_t at = fixture_random(f, BLOCKS);
        numbers[at] = BLOCKS + 1 + i;
        assert_int_equal(fixture_write(volume, at, &numbers[at], 1), 0);
        if (i % 1000 == 999)
            fixture_seal(f);
    }
    fixture_seal(f);
    struct store_gc_result result = fixture_collect(f, 0);
    struct store_stat after = fixture_stat(f);
    assert_true(result.dead_slots > BLOCKS / 5);
    assert_true((after.segment_slots_present - result.live_slots) * 10 <= result.dead_slots);
    assert_int_equal(after.segment_slots_dead, after.segment_slots_present - result.live_slots);
    assert_true(result.freed_bytes >= result.dead_slots * BLOCK_SIZE * 8 / 10);
    fixture_expect(volume, numbers, BLOCKS);
    volume_close(volume);
    store_fixture_reopen(f);
    struct volume_info info;
    assert_int_equal(store_volume_find(f->store, "v", &info), 0);
    assert_int_equal(volume_open(f->store, info.id, &volume), 0);
    fixture_expect(volume, numbers, BLOCKS);
    volume_close(volume);
}

static void handles_keep_their_data(void **state)
{
    enum { BLOCKS = 1024 };
    struct store_fixture *f = *state;
    static uint64_t numbers[BLOCKS], others[BLOCKS];
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(f, volume, numbers, BLOCKS, 1);
    struct base_id base_id;
    struct doc_id doc = fixture_snapshot(f, volume_get_id(volume), "s", 0, &base_id);
    struct base *base;
    assert_int_equal(base_open(f->store, base_id, &base), 0);
    fill(f, volume, others, BLOCKS, 100000);
    fixture_delete_doc(f, doc);
    for (int i = 0; i < 3; i++) {
        fixture_collect(f, 0);
        fixture_expect_base(base, numbers, BLOCKS);
    }
    fixture_delete_volume(f, volume);
    fixture_collect(f, 0);
    fixture_expect_base(base, numbers, BLOCKS);
    base_close(base);
    fixture_collect(f, 0);
    assert_int_equal(fixture_stat(f).segments, 0);
}

static void doomed_blocks_are_stored_again(void **state)
{
    enum { BLOCKS = 1024 };
    struct store_fixture *f = *state;
    static uint64_t numbers[BLOCKS];
    for (int round = 0; round < 4; round++) {
        struct volume *volume = fixture_volume(f, "v", BLOCKS);
        fill(f, volume, numbers, BLOCKS, 1);
        fixture_seal(f);
        fixture_expect(volume, numbers, BLOCKS);
        fixture_delete_volume(f, volume);
        if (round % 2 == 0) {
            volume = fixture_volume(f, "w", BLOCKS); // found dead, and wanted again before it goes
            fill(f, volume, numbers, BLOCKS, 1);
            fixture_collect(f, 0);
            fixture_expect(volume, numbers, BLOCKS);
            fixture_delete_volume(f, volume);
        }
        fixture_collect(f, 0);
        assert_int_equal(fixture_stat(f).segments, 0);
    }
}

static void blobs_are_roots(void **state)
{
    struct store_fixture *f = *state;
    struct volume *volume = fixture_volume(f, "v", 16);
    struct base_id base;
    struct doc_id doc = fixture_snapshot(f, volume_get_id(volume), "blob", 500000, &base);
    for (int i = 0; i < 3; i++) {
        fixture_collect(f, 0);
        void *bytes;
        size_t size;
        assert_int_equal(store_doc_blob(f->store, doc, &bytes, &size), 0);
        assert_int_equal(size, 500000);
        for (size_t k = 0; k < size; k++)
            assert_int_equal(((uint8_t *)bytes)[k], 'b');
        io_buffer_free(bytes);
        store_fixture_reopen(f);
    }
    fixture_delete_doc(f, doc);
    fixture_collect(f, 0);
    assert_int_equal(fixture_stat(f).segments, 0);
    struct volume_info info;
    assert_int_equal(store_volume_find(f->store, "v", &info), 0);
}

static void recompressing_keeps_everything(void **state)
{
    enum { BLOCKS = 2048 };
    struct store_fixture *f = *state;
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    uint8_t *bytes = io_buffer_alloc(BLOCKS * BLOCK_SIZE), *again = io_buffer_alloc(BLOCKS * BLOCK_SIZE);
    for (unsigned i = 0; i < BLOCKS * BLOCK_SIZE / 16; i++) // text-like, no block twice
        snprintf((char *)bytes + (size_t)i * 16, 17, "line %08u\n ", i / 3);
    assert_int_equal(volume_write_wait(volume, 0, bytes, BLOCKS * BLOCK_SIZE, 0), 0);
    fixture_collect(f, 0);
    struct store_stat before = fixture_stat(f);
    struct store_gc_result result = fixture_collect(f, STORE_GC_RECOMPRESS);
    struct store_stat after = fixture_stat(f);
    assert_true(result.segments_rewritten > 0);
    assert_true(after.segment_bytes < before.segment_bytes);
    assert_int_equal(after.segment_slots_present, before.segment_slots_present);
    result = fixture_collect(f, STORE_GC_RECOMPRESS);
    assert_int_equal(result.segments_rewritten, 0);
    assert_int_equal(volume_read_wait(volume, 0, again, BLOCKS * BLOCK_SIZE), 0);
    assert_memory_equal(bytes, again, BLOCKS * BLOCK_SIZE);
    io_buffer_free(bytes);
    io_buffer_free(again);
    volume_close(volume);
}

// A mark that misses what nobody has deleted is not believed.
static void a_shrunken_live_set_is_refused(void **state)
{
    enum { BLOCKS = 512 };
    struct store_fixture *f = *state;
    static uint64_t numbers[BLOCKS];
    struct volume *volume = fixture_volume(f, "v", BLOCKS);
    fill(f, volume, numbers, BLOCKS, 1);
    fixture_collect(f, 0);
    struct store_stat before = fixture_stat(f);
    // As if a root were missing from the rows: the last collection saw more than this one will.
    struct checkpoint *checkpoint = f->store->checkpoint;
    checkpoint->memory.changed_blocks = atomic_load(&f->store->space.changed_blocks);
    struct volume *other = fixture_volume(f, "w", BLOCKS);
    fill(f, other, numbers, BLOCKS, 5000);
    fixture_collect(f, 0);
    checkpoint->memory.changed_blocks = atomic_load(&f->store->space.changed_blocks) + BLOCKS;
    fixture_delete_volume(f, other);
    struct store_gc_result result;
    struct error err = {0};
    assert_int_equal(store_gc(f->store, 0, &result, &err), -EUCLEAN);
    assert_non_null(strstr(err.text, "nothing was collected"));
    assert_true(fixture_stat(f).segments > before.segments);
    checkpoint->memory.changed_blocks -= BLOCKS;
    fixture_collect(f, 0);
    volume_close(volume);
}

// ---- Everything at random, compared ----

enum { VOLUMES = 6, SNAPSHOTS = 8, VOLUME_BLOCKS = 700 };

struct subject {
    struct volume *volume;
    struct base *base; // of a snapshot, sometimes
    struct doc_id doc;
    struct base_id base_id;
    bool exists;
    uint64_t numbers[VOLUME_BLOCKS];
};

struct zoo {
    struct store_fixture *f;
    struct subject volumes[VOLUMES], snapshots[SNAPSHOTS];
    unsigned names;
};

static void compare_all(struct zoo *zoo)
{
    for (unsigned i = 0; i < VOLUMES; i++)
        if (zoo->volumes[i].exists)
            fixture_expect(zoo->volumes[i].volume, zoo->volumes[i].numbers, VOLUME_BLOCKS);
    for (unsigned i = 0; i < SNAPSHOTS; i++) {
        struct subject *s = &zoo->snapshots[i];
        struct base *base = s->base;
        if (!s->exists && base == NULL)
            continue;
        if (base == NULL)
            assert_int_equal(base_open(zoo->f->store, s->base_id, &base), 0);
        fixture_expect_base(base, s->numbers, VOLUME_BLOCKS);
        if (s->base == NULL)
            base_close(base);
    }
}

static void write_some(struct zoo *zoo, struct subject *s)
{
    struct store_fixture *f = zoo->f;
    unsigned at = (unsigned)fixture_random(f, VOLUME_BLOCKS), n = 1 + (unsigned)fixture_random(f, 80);
    n = n < VOLUME_BLOCKS - at ? n : VOLUME_BLOCKS - at;
    unsigned kind = (unsigned)fixture_random(f, 8);
    uint64_t first = 1 + fixture_random(f, 3000);
    for (unsigned i = 0; i < n; i++)
        s->numbers[at + i] = kind < 2 ? 0 : kind == 2 ? first : first + i;
    if (kind < 2)
        assert_int_equal(volume_zero_wait(s->volume, (uint64_t)at * BLOCK_SIZE, (uint64_t)n * BLOCK_SIZE,
                                 kind == 0, 0),
                0);
    else
        assert_int_equal(fixture_write(s->volume, at, s->numbers + at, n), 0);
}

static void change_volume(struct zoo *zoo, struct subject *s)
{
    struct store_fixture *f = zoo->f;
    char name[32];
    snprintf(name, sizeof name, "n%u", zoo->names++);
    struct subject *from = &zoo->snapshots[fixture_random(f, SNAPSHOTS)];
    if (s->exists) {
        fixture_delete_volume(f, s->volume);
        s->exists = false;
        return;
    }
    s->exists = true;
    if (from->exists) {
        s->volume = fixture_fork(f, name, from->base_id);
        memcpy(s->numbers, from->numbers, sizeof s->numbers);
    } else {
        s->volume = fixture_volume(f, name, VOLUME_BLOCKS);
        memset(s->numbers, 0, sizeof s->numbers);
    }
}

static void change_snapshot(struct zoo *zoo, struct subject *s)
{
    struct store_fixture *f = zoo->f;
    struct subject *from = &zoo->volumes[fixture_random(f, VOLUMES)];
    char name[32];
    snprintf(name, sizeof name, "n%u", zoo->names++);
    if (s->exists) {
        if (s->base == NULL && fixture_random(f, 2) == 0)
            assert_int_equal(base_open(f->store, s->base_id, &s->base), 0);
        fixture_delete_doc(f, s->doc);
        s->exists = false;
    } else if (s->base != NULL) {
        s->base = base_close(s->base);
    } else if (from->exists) {
        s->doc = fixture_snapshot(
                f, volume_get_id(from->volume), name, fixture_random(f, 3) * 5000, &s->base_id);
        memcpy(s->numbers, from->numbers, sizeof s->numbers);
        s->exists = true;
    }
}

static void reopen(struct zoo *zoo)
{
    struct volume_id ids[VOLUMES];
    for (unsigned i = 0; i < VOLUMES; i++)
        if (zoo->volumes[i].exists) {
            ids[i] = volume_get_id(zoo->volumes[i].volume);
            volume_close(zoo->volumes[i].volume);
        }
    for (unsigned i = 0; i < SNAPSHOTS; i++)
        zoo->snapshots[i].base = base_close(zoo->snapshots[i].base);
    store_fixture_reopen(zoo->f);
    for (unsigned i = 0; i < VOLUMES; i++)
        if (zoo->volumes[i].exists)
            assert_int_equal(volume_open(zoo->f->store, ids[i], &zoo->volumes[i].volume), 0);
}

static void anything_in_any_order(void **state)
{
    struct zoo *zoo = calloc(1, sizeof *zoo);
    struct store_fixture *f = zoo->f = *state;
    for (unsigned i = 0; i < 1500; i++) {
        uint64_t what = fixture_random(f, 100);
        struct subject *volume = &zoo->volumes[fixture_random(f, VOLUMES)];
        if (what < 60 && volume->exists)
            write_some(zoo, volume);
        else if (what < 75)
            change_volume(zoo, volume);
        else if (what < 90)
            change_snapshot(zoo, &zoo->snapshots[fixture_random(f, SNAPSHOTS)]);
        else if (what < 94)
            fixture_seal(f);
        else if (what < 97)
            fixture_collect(f, fixture_random(f, 5) == 0 ? STORE_GC_RECOMPRESS : 0);
        else if (what == 97)
            reopen(zoo);
        if (i % 25 == 0)
            compare_all(zoo);
    }
    compare_all(zoo);
    for (unsigned i = 0; i < VOLUMES; i++)
        if (zoo->volumes[i].exists)
            volume_close(zoo->volumes[i].volume);
    for (unsigned i = 0; i < SNAPSHOTS; i++)
        base_close(zoo->snapshots[i].base);
    free(zoo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(space_comes_back, setup, teardown),
            cmocka_unit_test_setup_teardown(nine_tenths_go, setup, teardown),
            cmocka_unit_test_setup_teardown(handles_keep_their_data, setup, teardown),
            cmocka_unit_test_setup_teardown(doomed_blocks_are_stored_again, setup, teardown),
            cmocka_unit_test_setup_teardown(blobs_are_roots, setup, teardown),
            cmocka_unit_test_setup_teardown(recompressing_keeps_everything, setup, teardown),
            cmocka_unit_test_setup_teardown(a_shrunken_live_set_is_refused, setup, teardown),
            cmocka_unit_test_setup_teardown(anything_in_any_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
