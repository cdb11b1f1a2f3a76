// SPDX-License-Identifier: Apache-2.0
// Volumes and bases while their blocks and nodes move into segments: reads, extents and differences against a
// model, with checkpoints all the time, a node cache that holds next to nothing, and after reopening; what is
// shared with the parent; damaged nodes and blocks, which are an error and never data.
#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "tests/unit/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    LOOPS = 2,
    VOLUMES = 4,
    BASES = 4,
    WINDOWS = 5,
    WINDOW_BLOCKS = 40,
    PLACES = WINDOWS * WINDOW_BLOCKS,
    STEPS = 700,
};
static const uint64_t window_stride = 70000; // blocks; in leaves and inner nodes of their own
#define VOLUME_BYTES (WINDOWS * window_stride * BLOCK_SIZE + 1000)

struct content { // of each place: EXTENT_UNMAPPED, EXTENT_ZERO, or what the block was filled from
    uint32_t seeds[PLACES];
};

struct fixture {
    struct store_fixture of;
    struct volume_id ids[VOLUMES];
    struct volume *volumes[VOLUMES];
    struct content contents[VOLUMES];
    struct base_id base_ids[BASES]; // 0: none
    struct doc_id docs[BASES];
    struct content frozen[BASES];
    uint32_t next_seed;
    uint64_t random;
    _Atomic bool stop;
    uint64_t seals;
    char failure[600];
};

static uint64_t draw(struct fixture *fixture, uint64_t bound)
{
    fixture->random = fixture->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (fixture->random >> 33) % bound;
}

static uint64_t byte_of(unsigned place)
{
    return (place / WINDOW_BLOCKS * window_stride + 490 + place % WINDOW_BLOCKS) * BLOCK_SIZE;
}

static void fill(uint32_t seed, uint8_t *block)
{
    memset(block, 0, BLOCK_SIZE);
    if (seed <= EXTENT_UNMAPPED || seed % 16 == 0) // some of what is written is zeros
        return;
    for (unsigned i = 0; i < BLOCK_SIZE; i += 4)
        memcpy(block + i, &(uint32_t){seed * 2654435761u + (i % 256)}, 4);
}

// ---- Opening ----

static void open_store(struct fixture *fixture)
{
    store_fixture_open(&fixture->of);
    for (unsigned i = 0; i < VOLUMES; i++)
        if (fixture->ids[i].value != 0)
            assert_int_equal(volume_open(fixture->of.store, fixture->ids[i], &fixture->volumes[i]), 0);
}

static void close_store(struct fixture *fixture)
{
    for (unsigned i = 0; i < VOLUMES; i++)
        fixture->volumes[i] = volume_close(fixture->volumes[i]);
    store_fixture_close(&fixture->of);
}

static void commit(struct txn *txn)
{
    struct error err = {0};
    if (txn_commit_wait(txn, 0, &err) < 0)
        fail_msg("%s", err.text);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    const struct store_config config = {.log_file_bytes = 1 << 20,
            .log_budget_bytes = 64 << 20,
            .node_cache_bytes = 1,
            .seal_log_bytes = 1 << 20};
    store_fixture_init(&fixture->of, "/var/tmp/ramet-sealed-XXXXXX", LOOPS, &config);
    fixture->next_seed = 100;
    open_store(fixture);
    for (unsigned i = 0; i < VOLUMES; i++) {
        struct txn *txn = txn_begin(fixture->of.store);
        fixture->ids[i] = txn_volume_create(txn, "", VOLUME_DISK, VOLUME_BYTES, (struct base_id){0});
        commit(txn);
        assert_int_equal(volume_open(fixture->of.store, fixture->ids[i], &fixture->volumes[i]), 0);
        for (unsigned k = 0; k < PLACES; k++)
            fixture->contents[i].seeds[k] = EXTENT_UNMAPPED;
    }
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    close_store(fixture);
    store_fixture_remove(&fixture->of);
    free(fixture);
    return 0;
}

// ---- Changes ----

static void change_blocks(struct fixture *fixture)
{
    unsigned index = (unsigned)draw(fixture, VOLUMES), place = (unsigned)draw(fixture, PLACES);
    unsigned count = 1 + (unsigned)draw(fixture, 12), most = WINDOW_BLOCKS - place % WINDOW_BLOCKS;
    count = count < most ? count : most;
    struct volume *volume = fixture->volumes[index];
    struct content *content = &fixture->contents[index];
    unsigned what = (unsigned)draw(fixture, 8);
    if (what < 2) {
        assert_int_equal(
                volume_zero_wait(volume, byte_of(place), (uint64_t)count * BLOCK_SIZE, what == 1, 0), 0);
        for (unsigned i = 0; i < count; i++)
            content->seeds[place + i] = what == 1 ? EXTENT_UNMAPPED : EXTENT_ZERO;
        return;
    }
    uint8_t *bytes = io_buffer_alloc((uint64_t)count * BLOCK_SIZE);
    bool again = draw(fixture, 4) == 0; // bytes that are there already
    uint32_t seed = again ? 100 + (uint32_t)draw(fixture, fixture->next_seed - 99) : fixture->next_seed;
    for (unsigned i = 0; i < count; i++) {
        content->seeds[place + i] = seed + i;
        fill(seed + i, bytes + (size_t)i * BLOCK_SIZE);
    }
    fixture->next_seed += again ? 0 : count;
    assert_int_equal(volume_write_wait(volume, byte_of(place), bytes, (uint64_t)count * BLOCK_SIZE, 0), 0);
    io_buffer_free(bytes);
}

static void snapshot(struct fixture *fixture)
{
    unsigned index = (unsigned)draw(fixture, VOLUMES), at = (unsigned)draw(fixture, BASES);
    struct txn *txn = txn_begin(fixture->of.store);
    struct doc doc = {.kind = DOC_OTHER, .body = (char *)"{}", .body_bytes = 2, .base_count = 1};
    if (fixture->base_ids[at].value != 0)
        txn_doc_delete(txn, fixture->docs[at]);
    fixture->base_ids[at] = doc.bases[0] = txn_freeze(txn, fixture->ids[index]);
    fixture->docs[at] = txn_doc_put(txn, &doc, NULL, 0);
    fixture->frozen[at] = fixture->contents[index];
    commit(txn);
}

static void fork_snapshot(struct fixture *fixture)
{
    unsigned index = (unsigned)draw(fixture, VOLUMES), at = (unsigned)draw(fixture, BASES);
    if (fixture->base_ids[at].value == 0)
        return;
    struct txn *txn = txn_begin(fixture->of.store);
    fixture->volumes[index] = volume_close(fixture->volumes[index]);
    txn_volume_delete(txn, fixture->ids[index]);
    fixture->ids[index] = txn_volume_create(txn, "", VOLUME_DISK, 0, fixture->base_ids[at]);
    commit(txn);
    assert_int_equal(volume_open(fixture->of.store, fixture->ids[index], &fixture->volumes[index]), 0);
    fixture->contents[index] = fixture->frozen[at];
}

// ---- Checks ----

static void check_reads(const struct content *content, struct volume *volume, struct base *base)
{
    uint8_t *bytes = io_buffer_alloc(WINDOW_BLOCKS * BLOCK_SIZE), wanted[BLOCK_SIZE];
    for (unsigned place = 0; place < PLACES; place += WINDOW_BLOCKS) {
        uint64_t length = WINDOW_BLOCKS * BLOCK_SIZE - 100; // ends within a block
        assert_int_equal(volume != NULL ? volume_read_wait(volume, byte_of(place), bytes, length)
                                        : base_read_wait(base, byte_of(place), bytes, length),
                0);
        for (unsigned i = 0; i < WINDOW_BLOCKS; i++) {
            fill(content->seeds[place + i], wanted);
            size_t compared = i + 1 < WINDOW_BLOCKS ? BLOCK_SIZE : BLOCK_SIZE - 100;
            if (memcmp(wanted, bytes + (size_t)i * BLOCK_SIZE, compared) != 0)
                fail_msg("place %u holds other bytes", place + i);
        }
    }
    io_buffer_free(bytes);
}

struct seen {
    uint8_t kinds[PLACES]; // 0: not reported
    uint64_t at;
    bool wrong;
};

static bool see(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct seen *seen = context;
    seen->wrong = seen->wrong || offset < seen->at || length == 0;
    seen->at = offset + length;
    for (unsigned place = 0; place < PLACES; place++)
        if (byte_of(place) >= offset && byte_of(place) < offset + length)
            seen->kinds[place] = (uint8_t)kind;
    return true;
}

static bool is_zero(uint32_t seed)
{
    return seed != EXTENT_UNMAPPED && (seed == EXTENT_ZERO || seed % 16 == 0);
}

// Zeros that were written are data until they are sealed.
static bool kind_fits(uint8_t kind, uint32_t seed)
{
    if (seed == EXTENT_UNMAPPED || seed == EXTENT_ZERO)
        return kind == seed;
    return kind == EXTENT_DATA || (kind == EXTENT_ZERO && is_zero(seed));
}

static void check_extents(const struct content *content, struct volume *volume, struct base *base)
{
    struct seen seen = {0};
    assert_int_equal(volume != NULL ? volume_extents_wait(volume, 0, VOLUME_BYTES, see, &seen)
                                    : base_extents_wait(base, 0, VOLUME_BYTES, see, &seen),
            0);
    assert_false(seen.wrong);
    assert_int_equal(seen.at, VOLUME_BYTES);
    for (unsigned place = 0; place < PLACES; place++)
        if (!kind_fits(seen.kinds[place], content->seeds[place]))
            fail_msg("place %u: kind %u for content %u", place, seen.kinds[place], content->seeds[place]);
}

static void check_diff(struct fixture *fixture, unsigned older, unsigned newer)
{
    struct base *a, *b;
    struct seen seen = {0};
    if (fixture->base_ids[older].value == 0 || fixture->base_ids[newer].value == 0)
        return;
    assert_int_equal(base_open(fixture->of.store, fixture->base_ids[older], &a), 0);
    assert_int_equal(base_open(fixture->of.store, fixture->base_ids[newer], &b), 0);
    assert_int_equal(base_diff_wait(a, b, see, &seen), 0);
    assert_false(seen.wrong);
    for (unsigned place = 0; place < PLACES; place++) {
        uint32_t x = fixture->frozen[older].seeds[place], y = fixture->frozen[newer].seeds[place];
        bool same = x == y || (is_zero(x) && is_zero(y));
        if (same != (seen.kinds[place] == 0) || (!same && !kind_fits(seen.kinds[place], y)))
            fail_msg("place %u: %u and then %u is said to be %u", place, x, y, seen.kinds[place]);
    }
    base_close(a);
    base_close(b);
}

static void check_base(struct fixture *fixture, unsigned at)
{
    struct base *base;
    if (fixture->base_ids[at].value == 0)
        return;
    assert_int_equal(base_open(fixture->of.store, fixture->base_ids[at], &base), 0);
    check_reads(&fixture->frozen[at], NULL, base);
    check_extents(&fixture->frozen[at], NULL, base);
    base_close(base);
}

static void check_everything(struct fixture *fixture)
{
    for (unsigned i = 0; i < VOLUMES; i++) {
        check_reads(&fixture->contents[i], fixture->volumes[i], NULL);
        check_extents(&fixture->contents[i], fixture->volumes[i], NULL);
    }
    for (unsigned i = 0; i < BASES; i++) {
        check_base(fixture, i);
        for (unsigned k = 0; k < BASES; k++)
            check_diff(fixture, i, k);
    }
}

// ---- Tests ----

static void *seal_run(void *argument)
{
    struct fixture *fixture = argument;
    while (!atomic_load(&fixture->stop)) {
        struct error err = {0};
        struct store_gc_result result;
        int r = fixture->seals % 3 == 2 ? store_gc(fixture->of.store, 0, &result, &err)
                                        : store_seal(fixture->of.store, &err);
        if (r < 0) {
            snprintf(fixture->failure, sizeof fixture->failure, "sealing or collecting: %s", err.text);
            break;
        }
        fixture->seals++;
    }
    return NULL;
}

static void step(struct fixture *fixture)
{
    switch (draw(fixture, 16)) {
    case 0:
        snapshot(fixture);
        break;
    case 1:
        fork_snapshot(fixture);
        break;
    case 2: {
        unsigned index = (unsigned)draw(fixture, VOLUMES);
        check_reads(&fixture->contents[index], fixture->volumes[index], NULL);
        break;
    }
    case 3:
        check_diff(fixture, (unsigned)draw(fixture, BASES), (unsigned)draw(fixture, BASES));
        break;
    case 4: {
        unsigned index = (unsigned)draw(fixture, VOLUMES);
        check_extents(&fixture->contents[index], fixture->volumes[index], NULL);
        break;
    }
    case 5:
        check_base(fixture, (unsigned)draw(fixture, BASES));
        break;
    default:
        change_blocks(fixture);
    }
}

static void test_checkpoints_change_nothing(void **state)
{
    struct fixture *fixture = *state;
    for (unsigned round = 0; round < 2; round++) {
        pthread_t sealer;
        atomic_store(&fixture->stop, false);
        assert_int_equal(pthread_create(&sealer, NULL, seal_run, fixture), 0);
        for (unsigned i = 0; i < STEPS; i++)
            step(fixture);
        atomic_store(&fixture->stop, true);
        pthread_join(sealer, NULL);
        if (fixture->failure[0] != '\0')
            fail_msg("%s", fixture->failure);
        check_everything(fixture);
        close_store(fixture);
        open_store(fixture);
        check_everything(fixture);
    }
    assert_true(fixture->seals > 0);
}

struct extents_call {
    struct volume_extents call; // first
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int result;
};

static void extents_done(struct volume_extents *extents, int result)
{
    struct extents_call *call = (struct extents_call *)extents;
    pthread_mutex_lock(&call->lock);
    call->done = true;
    call->result = result;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

// Which places of a volume are said to be shared with its parent.
static void shared_places(struct volume *volume, bool *ret_shared)
{
    struct volume_extent room[7];
    uint64_t offset = 0;
    memset(ret_shared, 0, PLACES * sizeof *ret_shared);
    while (offset < VOLUME_BYTES) {
        struct extents_call call = {.call = {.offset = offset,
                                            .length = VOLUME_BYTES - offset,
                                            .flags = EXTENTS_SHARED,
                                            .extents = room,
                                            .capacity = 7,
                                            .done = extents_done},
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .changed = PTHREAD_COND_INITIALIZER};
        volume_extents_submit(volume, &call.call);
        pthread_mutex_lock(&call.lock);
        while (!call.done)
            pthread_cond_wait(&call.changed, &call.lock);
        pthread_mutex_unlock(&call.lock);
        assert_int_equal(call.result, 0);
        assert_true(call.call.count > 0 && call.call.covered_bytes > 0);
        for (unsigned i = 0; i < call.call.count; i++)
            for (unsigned place = 0; place < PLACES; place++)
                if (byte_of(place) >= room[i].offset && byte_of(place) < room[i].offset + room[i].length)
                    ret_shared[place] = room[i].shared;
        offset += call.call.covered_bytes;
    }
}

static void seal(struct fixture *fixture)
{
    struct error err = {0};
    if (store_seal(fixture->of.store, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_what_is_shared_with_the_parent(void **state)
{
    struct fixture *fixture = *state;
    uint8_t *bytes = io_buffer_alloc(WINDOW_BLOCKS * BLOCK_SIZE), block[BLOCK_SIZE];
    bool shared[PLACES];
    struct txn *txn = txn_begin(fixture->of.store);
    struct doc doc = {.kind = DOC_OTHER, .body = (char *)"{}", .body_bytes = 2, .base_count = 1};
    for (unsigned i = 0; i < WINDOW_BLOCKS; i++)
        fill(101 + 16 * i, bytes + (size_t)i * BLOCK_SIZE);
    assert_int_equal(
            volume_write_wait(fixture->volumes[0], byte_of(0), bytes, WINDOW_BLOCKS * BLOCK_SIZE, 0), 0);
    doc.bases[0] = txn_freeze(txn, fixture->ids[0]);
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    struct volume_id child_id = txn_volume_create(txn, "", VOLUME_DISK, 0, doc.bases[0]);
    commit(txn);
    struct volume *child;
    assert_int_equal(volume_open(fixture->of.store, child_id, &child), 0);
    fill(7777, block);
    assert_int_equal(volume_write_wait(child, byte_of(3), block, BLOCK_SIZE, 0), 0);
    assert_int_equal(volume_write_wait(child, byte_of(5), bytes + 5 * BLOCK_SIZE, BLOCK_SIZE, 0), 0);
    assert_int_equal(volume_zero_wait(child, byte_of(9), BLOCK_SIZE, false, 0), 0);
    for (unsigned sealed = 0; sealed < 3; sealed++) {
        shared_places(child, shared);
        for (unsigned place = 0; place < PLACES; place++) // the same bytes come together when they are sealed
            assert_int_equal(shared[place], place != 3 && place != 9 && (place != 5 || sealed > 0));
        if (sealed == 0) {
            seal(fixture);
        } else if (sealed == 1) {
            volume_close(child);
            close_store(fixture);
            open_store(fixture);
            assert_int_equal(volume_open(fixture->of.store, child_id, &child), 0);
        }
    }
    shared_places(fixture->volumes[0], shared); // a volume that was frozen comes from that base
    for (unsigned place = 0; place < PLACES; place++)
        assert_true(shared[place]);
    shared_places(fixture->volumes[1], shared); // has no parent
    for (unsigned place = 0; place < PLACES; place++)
        assert_false(shared[place]);
    txn = txn_begin(fixture->of.store);
    txn_doc_delete(txn, id);
    commit(txn);
    shared_places(child, shared); // the parent is gone
    for (unsigned place = 0; place < PLACES; place++)
        assert_false(shared[place]);
    volume_close(child);
    io_buffer_free(bytes);
}

static void damage_segments(const struct fixture *fixture)
{
    char path[500];
    snprintf(path, sizeof path, "%s/segments", fixture->of.directory);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/segments/%s", fixture->of.directory, entry->d_name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "damaged, in the first frame", 27, BLOCK_SIZE + 5), 27);
        close(fd);
    }
    closedir(directory);
}

static void test_damage_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    uint8_t block[BLOCK_SIZE], read[BLOCK_SIZE];
    struct seen seen = {0};
    fill(7777, block);
    assert_int_equal(volume_write_wait(fixture->volumes[0], byte_of(1), block, BLOCK_SIZE, 0), 0);
    seal(fixture);
    close_store(fixture);
    damage_segments(fixture);
    open_store(fixture);
    struct volume *volume = fixture->volumes[0];
    assert_int_equal(volume_read_wait(volume, byte_of(1), read, BLOCK_SIZE), -EBADMSG);
    assert_int_equal(volume_read_wait(volume, byte_of(1) + 7, read, 9), -EBADMSG);
    assert_int_equal(volume_extents_wait(volume, 0, VOLUME_BYTES, see, &seen), -EBADMSG);
    fill(8888, block);
    assert_int_equal(volume_write_wait(volume, byte_of(1), block, BLOCK_SIZE, 0), 0); // needs no node
    assert_int_equal(volume_read_wait(volume, byte_of(1), read, BLOCK_SIZE), 0);
    assert_memory_equal(block, read, BLOCK_SIZE);
    assert_int_equal(volume_read_wait(volume, byte_of(2), read, BLOCK_SIZE), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_checkpoints_change_nothing, setup, teardown),
            cmocka_unit_test_setup_teardown(test_what_is_shared_with_the_parent, setup, teardown),
            cmocka_unit_test_setup_teardown(test_damage_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
