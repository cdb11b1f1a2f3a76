// SPDX-License-Identifier: Apache-2.0
// What segments cost: writes the blocks of a file into segments and reads them back, cold and hot, random and
// in sequence. Usage: segment_bench FILE DIRECTORY [FRAME_SLOTS [DEPTH]]
// The directory must exist and be on the file system to be measured; segment files in it are removed.
#include "blockstore/clock.h"
#include "blockstore/io_ring.h"
#include "blockstore/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH_MAX = 64, SEGMENTS_MAX = 4096, RUN_SLOTS = 64 };

static struct segments *segments;
static struct loop *loop;
static const char *input_path;
static unsigned frame_slots = 16, depth = 1;
static struct segment_row rows[SEGMENTS_MAX];
static unsigned row_count;
static uint64_t random_state = 1;

static double now(void)
{
    return (double)clock_monotonic_ns() * 1e-9;
}

// Of all threads; on a busy machine it says more than the clock.
static double cpu(void)
{
    return (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
}

static uint64_t draw(uint64_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % limit;
}

static void die(const char *what, int r)
{
    fprintf(stderr, "segment_bench: %s: %s\n", what, strerror(-r));
    exit(1);
}

// ---- Writing ----

static struct segment_writer *writer_next(struct task *task, struct segment_writer *writer)
{
    struct error err;
    if (writer != NULL && segment_writer_finish(writer, &rows[row_count++], &err) < 0) {
        fprintf(stderr, "segment_bench: %s\n", err.text);
        exit(1);
    }
    int r = row_count < SEGMENTS_MAX
                    ? segment_writer_begin(segments, task, row_count + 1, SEGMENT_DATA, 0, &writer)
                    : -EFBIG;
    if (r < 0)
        die("cannot begin a segment", r);
    return writer;
}

static void write_all(struct task *task, void *context)
{
    FILE *file = fopen(input_path, "rb");
    if (file == NULL)
        die(input_path, -errno);
    struct fingerprint_key key;
    uint8_t secret[FINGERPRINT_SECRET_BYTES] = {0};
    fingerprint_key_derive(secret, 0, &key);
    struct segment_writer *writer = writer_next(task, NULL);
    uint8_t block[BLOCK_SIZE];
    uint64_t blocks = 0, bytes = 0;
    double start = now(), used = cpu();
    while (fread(block, 1, BLOCK_SIZE, file) == BLOCK_SIZE) {
        locator_t locator;
        if (segment_writer_full(writer))
            writer = writer_next(task, writer);
        int r = segment_writer_add(writer, block, fingerprint_of(&key, block), frame_slots, &locator);
        if (r < 0)
            die("cannot write", r);
        blocks++;
    }
    fclose(file);
    struct error err;
    if (segment_writer_finish(writer, &rows[row_count++], &err) < 0)
        die(err.text, -EIO);
    double took = now() - start;
    used = cpu() - used;
    for (unsigned i = 0; i < row_count; i++) {
        segments_add(segments, &rows[i]);
        bytes += rows[i].file_bytes;
    }
    printf("write: %.0f MB/s, %.0f MB a CPU second; %.1f MB became %.1f MB\n",
            (double)blocks * BLOCK_SIZE / 1e6 / took, (double)blocks * BLOCK_SIZE / 1e6 / used,
            (double)blocks * BLOCK_SIZE / 1e6, (double)bytes / 1e6);
}

// ---- Reading ----

struct stream {
    struct segment_read read;
    uint64_t *left;
    uint64_t *answered;
    uint32_t count; // slots a read
    uint64_t *next; // NULL: random
    uint64_t hot_slots;
    uint8_t *buffer;
};

static void stream_next(struct stream *stream)
{
    if (*stream->left == 0)
        return;
    (*stream->left)--;
    const struct segment_row *row;
    uint32_t slot;
    if (stream->next != NULL) {
        uint64_t at = (*stream->next)++ * stream->count;
        row = &rows[at / SEGMENT_SLOTS_MAX % row_count];
        slot = (uint32_t)(at % SEGMENT_SLOTS_MAX);
    } else {
        row = &rows[draw(row_count)];
        slot = (uint32_t)draw(row->slots);
        if (stream->hot_slots > 0) {
            row = &rows[0];
            slot = (uint32_t)draw(stream->hot_slots < row->slots ? stream->hot_slots : row->slots);
        }
    }
    stream->read.first = locator_segment(row->number, slot);
    stream->read.count = slot + stream->count <= row->slots ? stream->count : 1;
    if (slot >= row->slots)
        stream->read.first = locator_segment(row->number, 0);
    segment_read(segments, &stream->read);
}

static void stream_done(struct segment_read *read, int result)
{
    struct stream *stream = (struct stream *)read;
    if (result < 0)
        die("a read failed", result);
    (*stream->answered)++;
    stream_next(stream);
}

static void run(
        const char *what, uint64_t reads, uint32_t count, bool in_sequence, uint64_t hot_slots, bool uncached)
{
    static struct stream streams[DEPTH_MAX];
    uint64_t left = reads, answered = 0, next = 0;
    double start = now(), used = cpu();
    for (unsigned i = 0; i < depth; i++) {
        streams[i].read.loop = loop;
        streams[i].read.done = stream_done;
        streams[i].read.uncached = uncached;
        streams[i].left = &left;
        streams[i].answered = &answered;
        streams[i].count = count;
        streams[i].next = in_sequence ? &next : NULL;
        streams[i].hot_slots = hot_slots;
        if (streams[i].buffer == NULL)
            streams[i].buffer = io_buffer_alloc(RUN_SLOTS * BLOCK_SIZE);
        streams[i].read.buffer = streams[i].buffer;
        stream_next(&streams[i]);
    }
    while (answered < reads)
        if (loop->ops->run_once(loop, true) < 0)
            die("the loop broke", -EIO);
    double took = now() - start;
    used = cpu() - used;
    printf("%s, depth %u: %.0f reads/s, %.2f us, %.2f CPU us, %.0f MB/s\n", what, depth, (double)reads / took,
            took * 1e6 / (double)reads, used * 1e6 / (double)reads,
            (double)reads * count * BLOCK_SIZE / 1e6 / took);
}

static void run_try(uint64_t reads, uint64_t hot_slots)
{
    static uint8_t block[BLOCK_SIZE];
    uint64_t slots = hot_slots < rows[0].slots ? hot_slots : rows[0].slots;
    double start = now(), used = cpu();
    for (uint64_t i = 0; i < reads; i++) {
        int r = segment_read_try(segments, locator_segment(1, draw(slots)), 1, block);
        if (r < 0)
            die("a hot block is not there", r);
    }
    double took = now() - start;
    used = cpu() - used;
    printf("hot 4 KiB, segment_read_try: %.0f reads/s, %.3f us, %.3f CPU us\n", (double)reads / took,
            took * 1e6 / (double)reads, used * 1e6 / (double)reads);
}

static void ended(void *context)
{
    *(bool *)context = true;
}

static void reopen(const struct segments_config *config)
{
    segments_free(segments, loop);
    segments = segments_new(config);
    for (unsigned i = 0; i < row_count; i++)
        segments_add(segments, &rows[i]);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: segment_bench FILE DIRECTORY [FRAME_SLOTS [DEPTH]]\n");
        return 2;
    }
    input_path = argv[1];
    frame_slots = argc > 3 ? (unsigned)atoi(argv[3]) : frame_slots;
    depth = argc > 4 ? (unsigned)atoi(argv[4]) : depth;
    struct segments_config config = {
            .directory = argv[2], .index_cache_bytes = 64 << 20, .frame_cache_bytes = 256 << 20};
    if (depth < 1 || depth > DEPTH_MAX || io_ring_loop_create(0, 256, &loop) < 0)
        return 2;
    segments = segments_new(&config);
    bool done = false;
    task_start(loop, write_all, ended, &done);
    while (!done)
        loop->ops->run_once(loop, true);
    reopen(&config);
    run("in sequence, 256 KiB", 800, RUN_SLOTS, true, 0, false);
    run("in sequence, 256 KiB, uncached", 800, RUN_SLOTS, true, 0, true);
    reopen(&config);
    run("cold random 4 KiB", 2000, 1, false, 0, false);
    run("warming", 60000, 1, false, 4096, false);
    run("hot random 4 KiB", 1000000, 1, false, 4096, false);
    run_try(2000000, 4096);
    for (unsigned i = 0; i < row_count; i++)
        segments_drop(segments, i + 1);
    int r = segments_collect_files_at_start(segments, loop, NULL);
    segments_free(segments, loop);
    io_ring_loop_destroy(loop);
    return r < 0;
}
