// SPDX-License-Identifier: Apache-2.0
// Segments on a loop that the test itself drives: io_uring over a real directory, or the simulated loops.
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "blockstore/io_ring.h"
#include "blockstore/segment.h"
#include "tests/sim/sim_world.h"

struct segment_rig {
    struct sim_world *world; // NULL: io_uring
    struct loop *loop;
    struct segments *segments;
    char directory[64];
    struct segments_config config;
};

static inline int rig_step(struct segment_rig *rig)
{
    return rig->world != NULL ? (sim_world_step(rig->world) ? 0 : -EDEADLK)
                              : rig->loop->ops->run_once(rig->loop, true);
}

struct rig_task {
    int (*run)(struct segment_rig *rig, struct task *task, void *context);
    struct segment_rig *rig;
    void *context;
    int result;
    bool ended;
};

static inline void rig_task_run(struct task *task, void *context)
{
    struct rig_task *run = context;
    run->result = run->run(run->rig, task, run->context);
}

static inline void rig_task_ended(void *context)
{
    ((struct rig_task *)context)->ended = true;
}

// Runs one task to its end and returns what it returned.
static inline int rig_task(struct segment_rig *rig,
        int (*run)(struct segment_rig *rig, struct task *task, void *context), void *context)
{
    struct rig_task state = {.run = run, .rig = rig, .context = context};
    task_start(rig->loop, rig_task_run, rig_task_ended, &state);
    while (!state.ended)
        assert_int_equal(rig_step(rig), 0);
    return state.result;
}

static inline struct segments_config rig_config(const char *directory)
{
    struct segments_config config = {
            .directory = directory, .seed = 77, .index_cache_bytes = 4 << 20, .frame_cache_bytes = 8 << 20};
    memset(config.secret, 5, sizeof config.secret);
    return config;
}

static inline void rig_open(struct segment_rig *rig)
{
    rig->config = rig_config(rig->directory);
    rig->segments = segments_new(&rig->config);
}

static inline void rig_start_ring(struct segment_rig *rig)
{
    *rig = (struct segment_rig){0};
    strcpy(rig->directory, "/tmp/ramet-segment-XXXXXX");
    assert_non_null(mkdtemp(rig->directory));
    assert_int_equal(io_ring_loop_create(0, 64, &rig->loop), 0);
    rig_open(rig);
}

static inline void rig_made(struct io_op *op, int64_t result)
{
    assert_int_equal(result, 0);
    op->code = IO_CLOSE;
}

static inline void rig_start_sim(struct segment_rig *rig, uint64_t seed, const struct sim_options *options)
{
    *rig = (struct segment_rig){0};
    strcpy(rig->directory, "/segments");
    rig->world = sim_world_create(seed, options);
    rig->loop = sim_world_loop(rig->world, 0);
    struct io_op make = {.code = IO_MKDIR, .path = "/segments"};
    assert_int_equal(io_sync(rig->loop, &make), 0);
    struct io_op sync = {.code = IO_FSYNC_DIR, .path = "/"};
    assert_int_equal(io_sync(rig->loop, &sync), 0);
    rig_open(rig);
}

// Descriptors that the loop is closing.
static inline void rig_drain(struct segment_rig *rig)
{
    while (segments_closing(rig->segments))
        rig->loop->ops->run_once(rig->loop, false);
}

// Forgets everything in memory: caches, table, descriptors.
static inline void rig_reopen(struct segment_rig *rig)
{
    rig_drain(rig);
    segments_free(rig->segments, rig->loop);
    rig_open(rig);
}

static inline void rig_stop(struct segment_rig *rig)
{
    rig_drain(rig);
    segments_free(rig->segments, rig->loop);
    if (rig->world != NULL) {
        sim_world_settle(rig->world);
        assert_null(sim_world_violation(rig->world));
        assert_int_equal(sim_world_open_files(rig->world), 0);
        sim_world_destroy(rig->world);
        return;
    }
    io_ring_loop_destroy(rig->loop);
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", rig->directory);
    assert_int_equal(system(command), 0);
}

// ---- Blocks ----

static inline struct fingerprint rig_fingerprint(struct segment_rig *rig, uint64_t domain, const void *block)
{
    struct fingerprint_key key;
    fingerprint_key_derive(rig->config.secret, domain, &key);
    return fingerprint_of(&key, block);
}

static inline uint64_t rig_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

enum rig_content { RIG_TEXT, RIG_NOISE, RIG_MIXED, RIG_NODES };

// Block number n of a kind: always the same, and no two alike.
static inline void rig_block(enum rig_content content, uint64_t n, void *block)
{
    uint64_t state = n * 1000003 + content, words[512];
    if (content == RIG_MIXED)
        content = n / 16 % 2 == 0 ? RIG_TEXT : RIG_NOISE;
    for (unsigned i = 0; i < 512; i++) {
        if (content == RIG_TEXT)
            words[i] = i % 64 == 0 ? rig_random(&state) : UINT64_C(0x2065687420666f20);
        else if (content == RIG_NOISE)
            words[i] = rig_random(&state);
        else
            words[i] = i % 50 == 49 ? locator_segment(rig_random(&state) % 100, rig_random(&state) % 10000)
                                    : locator_segment(7, n * 512 + i);
    }
    for (unsigned i = 0; i < 512; i++)
        for (unsigned k = 0; k < 8; k++)
            ((uint8_t *)block)[i * 8 + k] = (uint8_t)(words[i] >> (8 * k));
}

struct rig_segment {
    uint64_t number, domain;
    enum segment_kind kind;
    enum rig_content content;
    unsigned slots, frame_slots;
    struct segment_row row; // of the finished segment
    struct error err;
    bool look; // read every slot while the segment is being written
};

static inline bool rig_same(enum rig_content content, uint64_t first, uint32_t count, const void *bytes)
{
    uint8_t block[BLOCK_SIZE];
    for (uint32_t i = 0; i < count; i++) {
        rig_block(content, first + i, block);
        if (memcmp(block, (const uint8_t *)bytes + (size_t)i * BLOCK_SIZE, BLOCK_SIZE) != 0)
            return false;
    }
    return true;
}

// A task's body: writes a segment whose slot n holds block n. Does not add it.
static inline int rig_write(struct segment_rig *rig, struct task *task, void *context)
{
    struct rig_segment *wanted = context;
    struct segment_writer *writer;
    uint8_t block[BLOCK_SIZE];
    int r = segment_writer_begin(rig->segments, task, wanted->number, wanted->kind, wanted->domain, &writer);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < wanted->slots && r == 0; i++) {
        locator_t locator = 0;
        rig_block(wanted->content, i, block);
        r = segment_writer_add(
                writer, block, rig_fingerprint(rig, wanted->domain, block), wanted->frame_slots, &locator);
        if (r == 0 && locator != locator_segment(wanted->number, i))
            r = -EDOM;
        for (unsigned k = i > 100 ? i - 100 : 0; wanted->look && r == 0 && k <= i; k += 7) {
            r = segment_read_task(rig->segments, task, locator_segment(wanted->number, k), 1, block);
            if (r == 0 && !rig_same(wanted->content, k, 1, block))
                r = -EILSEQ;
        }
    }
    if (r < 0) {
        segment_writer_abort(writer);
        return r;
    }
    return segment_writer_finish(writer, &wanted->row, &wanted->err);
}
