// SPDX-License-Identifier: Apache-2.0
// Several loops on threads of their own read while a task writes new segments, collects old ones under the
// readers' eyes, swaps and drops generations. Meant for the thread and address sanitizers.
#include "tests/unit/segment_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LOOPS = 3, STREAMS = 8, READS = 1500, SEGMENTS = 6, SLOTS = 400, ROUNDS = 8 };

struct shared {
    struct segment_rig rig;
    struct loop *loops[LOOPS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned streams_left; // protected by lock
    bool task_ended;
    _Atomic unsigned wrong;
    int task_result;
};

// A chain of reads on one loop; slots that are multiples of 3 always live.
struct stream {
    struct segment_read read;
    struct loop_work work;
    struct shared *shared;
    uint64_t random;
    unsigned left;
    bool lenient; // a slot may be dead
    uint8_t buffer[8 * BLOCK_SIZE];
};

static void stream_next(struct stream *stream)
{
    if (stream->left-- == 0) {
        pthread_mutex_lock(&stream->shared->lock);
        stream->shared->streams_left--;
        pthread_cond_signal(&stream->shared->changed);
        pthread_mutex_unlock(&stream->shared->lock);
        return;
    }
    uint64_t number = 1 + rig_random(&stream->random) % SEGMENTS;
    uint32_t slot = (uint32_t)(rig_random(&stream->random) % (SLOTS / 3)) * 3;
    stream->lenient = rig_random(&stream->random) % 2;
    stream->read.count = stream->lenient ? 1 + (uint32_t)(rig_random(&stream->random) % 8) : 1;
    if (slot + stream->read.count > SLOTS)
        stream->read.count = 1;
    stream->read.uncached = rig_random(&stream->random) % 5 == 0;
    stream->read.first = locator_segment(number, slot);
    stream->read.buffer = stream->buffer;
    segment_read(stream->shared->rig.segments, &stream->read);
}

static void stream_done(struct segment_read *read, int result)
{
    struct stream *stream = (struct stream *)read;
    bool right = result == 0
                         ? rig_same(RIG_MIXED, locator_segment_slot(read->first), read->count, stream->buffer)
                         : result == -ENOENT && stream->lenient;
    if (!right)
        atomic_fetch_add(&stream->shared->wrong, 1);
    stream_next(stream);
}

static void stream_begin(struct loop_work *work)
{
    stream_next((struct stream *)((char *)work - offsetof(struct stream, work)));
}

static int write_all(struct segment_rig *rig, struct task *task, void *context)
{
    for (uint64_t number = 1; number <= SEGMENTS; number++) {
        struct rig_segment wanted = {.number = number,
                .kind = SEGMENT_DATA,
                .content = RIG_MIXED,
                .slots = SLOTS,
                .frame_slots = number % 2 ? 16 : 64};
        int r = rig_write(rig, task, &wanted);
        if (r < 0)
            return r;
        segments_add(rig->segments, &wanted.row);
    }
    return 0;
}

static void no_damage(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    print_error("%s\n", sentence);
}

static int collect_one(struct segment_rig *rig, struct task *task, unsigned round)
{
    uint64_t live[SEGMENT_BITMAP_WORDS] = {0}, number = 1 + round % SEGMENTS;
    struct segment_row row;
    segments_get(rig->segments, number, &row);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (slot % 3 == 0 || (row.generation < 2 && slot % 3 == 1))
            live[slot / 64] |= UINT64_C(1) << slot % 64;
    int r = segment_rewrite(rig->segments, task, number, live, round % 2 ? 3 : 0, 32, &row, NULL);
    if (r < 0)
        return r;
    segments_add(rig->segments, &row);
    r = segments_collect_files(rig->segments, task);
    return r < 0 ? r : segment_verify(rig->segments, task, number, no_damage, NULL);
}

static int churn(struct segment_rig *rig, struct task *task)
{
    int r = 0;
    for (unsigned round = 0; round < ROUNDS && r == 0; round++) {
        struct rig_segment extra = {.number = 100 + round,
                .kind = SEGMENT_DATA,
                .content = RIG_NOISE,
                .slots = 300,
                .frame_slots = 16,
                .look = true};
        r = rig_write(rig, task, &extra);
        if (r == 0) {
            segments_add(rig->segments, &extra.row);
            r = collect_one(rig, task, round);
            segments_drop(rig->segments, 100 + round);
        }
    }
    return r;
}

static void churn_body(struct task *task, void *context)
{
    struct shared *shared = context;
    shared->task_result = churn(&shared->rig, task);
}

static void churn_ended(void *context)
{
    struct shared *shared = context;
    pthread_mutex_lock(&shared->lock);
    shared->task_ended = true;
    pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

static void readers_and_a_collector(void **state)
{
    static struct shared shared;
    static struct stream streams[LOOPS * STREAMS];
    pthread_mutex_init(&shared.lock, NULL);
    pthread_cond_init(&shared.changed, NULL);
    rig_start_ring(&shared.rig);
    segments_free(shared.rig.segments, NULL);
    shared.rig.config.frame_cache_bytes = 1 << 20;
    shared.rig.config.index_cache_bytes = 50000;
    shared.rig.segments = segments_new(&shared.rig.config);
    assert_int_equal(rig_task(&shared.rig, write_all, NULL), 0);
    shared.loops[0] = shared.rig.loop;
    for (unsigned i = 1; i < LOOPS; i++)
        assert_int_equal(io_ring_loop_create(i, 64, &shared.loops[i]), 0);
    for (unsigned i = 0; i < LOOPS; i++)
        assert_int_equal(io_ring_thread_start(shared.loops[i]), 0);
    shared.streams_left = LOOPS * STREAMS;
    for (unsigned i = 0; i < LOOPS * STREAMS; i++) {
        streams[i] = (struct stream){.shared = &shared, .random = i, .left = READS};
        streams[i].read.loop = shared.loops[i % LOOPS];
        streams[i].read.done = stream_done;
        streams[i].work.run = stream_begin;
        loop_post(streams[i].read.loop, &streams[i].work);
    }
    task_start(shared.loops[1], churn_body, churn_ended, &shared);
    pthread_mutex_lock(&shared.lock);
    while (shared.streams_left > 0 || !shared.task_ended)
        pthread_cond_wait(&shared.changed, &shared.lock);
    pthread_mutex_unlock(&shared.lock);
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_thread_stop(shared.loops[i]);
    assert_int_equal(shared.task_result, 0);
    assert_int_equal(atomic_load(&shared.wrong), 0);
    for (unsigned i = 1; i < LOOPS; i++)
        io_ring_loop_destroy(shared.loops[i]);
    rig_stop(&shared.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(readers_and_a_collector)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
