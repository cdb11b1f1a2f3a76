// SPDX-License-Identifier: Apache-2.0
// Writes the next generation of a segment: the same slots under the same numbers, without the dead ones. The
// source is read frame by frame through a window; at most one frame is uncompressed, and one gathers.
#include "blockstore/segment_private.h"

#include "blockstore/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct rewrite {
    struct segments *segments;
    struct task *task;
    struct segment *segment; // the source, held
    struct segment_row source;
    const uint64_t *live;
    int level;
    unsigned frame_slots;
    char *path;
    struct segment_window window;
    struct segment_output output;
    struct error *err;
    uint8_t *blocks; // of one source frame
    uint8_t *stored; // of one new frame
    // The frame that gathers:
    uint8_t *gathered;
    struct fingerprint fingerprints[SEGMENT_FRAME_SLOTS_MAX];
    struct segment_frame frame;
};

static bool is_live(const struct rewrite *rewrite, uint32_t slot)
{
    return rewrite->live[slot / 64] >> (slot % 64) & 1;
}

static int damaged(struct rewrite *rewrite, const struct segment_frame *frame, uint64_t offset, uint64_t size,
        const char *what)
{
    return error_set(rewrite->err, -EBADMSG,
            "segment file %s is damaged at bytes %" PRIu64 " to %" PRIu64 " (slots %u to %u): %s; "
            "run ramet store check to see which volumes it touches",
            rewrite->path, offset, offset + size - 1, frame->first_slot,
            frame->first_slot + frame->slots - 1u, what);
}

// ---- Gathering ----

static int gather_end(struct rewrite *rewrite)
{
    struct segment_frame *frame = &rewrite->frame;
    unsigned present = segment_frame_present(frame);
    if (present == 0)
        return 0;
    enum codec codec, wanted = rewrite->source.kind == SEGMENT_NODES ? CODEC_ZSTD_NODES : CODEC_ZSTD;
    frame->stored_bytes = (uint32_t)codec_compress(
            rewrite->gathered, (size_t)present * BLOCK_SIZE, frame->level, wanted, rewrite->stored, &codec);
    frame->codec = (uint8_t)codec;
    int r = segment_output_frame(&rewrite->output, frame,
            codec == CODEC_RAW ? rewrite->gathered : rewrite->stored, rewrite->fingerprints, NULL, NULL);
    frame->bitmap = 0;
    return r;
}

static int gather_add(struct rewrite *rewrite, uint32_t slot, const uint8_t *block,
        struct fingerprint fingerprint, int level)
{
    struct segment_frame *frame = &rewrite->frame;
    int r = 0;
    if (frame->bitmap != 0 && (slot >= frame->first_slot + rewrite->frame_slots || frame->level != level))
        r = gather_end(rewrite);
    if (frame->bitmap == 0)
        *frame = (struct segment_frame){.first_slot = (uint16_t)slot, .level = (int8_t)level};
    unsigned at = segment_frame_present(frame);
    memcpy(rewrite->gathered + (size_t)at * BLOCK_SIZE, block, BLOCK_SIZE);
    rewrite->fingerprints[at] = fingerprint;
    frame->slots = (uint8_t)(slot - frame->first_slot + 1);
    frame->bitmap |= UINT64_C(1) << (slot - frame->first_slot);
    return r;
}

// ---- Frames of the source ----

static int take_apart(struct rewrite *rewrite, const struct segment_frame *frame, const uint8_t *stored)
{
    const struct segment *segment = rewrite->segment;
    int r = codec_decompress(stored, frame->stored_bytes, (enum codec)frame->codec, rewrite->blocks,
            segment_frame_bytes(frame));
    if (r < 0)
        return damaged(rewrite, frame, frame->offset, frame->stored_bytes, "it does not decompress");
    int level = rewrite->level > 0 ? rewrite->level : frame->level;
    if (rewrite->source.kind == SEGMENT_NODES && level < CODEC_LEVEL_NODES)
        level = CODEC_LEVEL_NODES;
    for (unsigned bit = 0, at = 0; bit < frame->slots && r == 0; bit++) {
        if (!(frame->bitmap >> bit & 1))
            continue;
        const uint8_t *block = rewrite->blocks + (size_t)at * BLOCK_SIZE;
        struct fingerprint should = segment->index.fingerprints[frame->present_before + at++];
        if (!is_live(rewrite, frame->first_slot + bit))
            continue;
        struct fingerprint is = fingerprint_of(&segment->key, block);
        if (is.low != should.low || is.high != should.high)
            return damaged(
                    rewrite, frame, frame->offset, frame->stored_bytes, "a fingerprint does not match");
        r = gather_add(rewrite, frame->first_slot + bit, block, should, level);
    }
    return r;
}

static int rewrite_frame(struct rewrite *rewrite, const struct segment_frame *frame)
{
    uint64_t live = 0;
    for (unsigned bit = 0; bit < frame->slots; bit++)
        if ((frame->bitmap >> bit & 1) && is_live(rewrite, frame->first_slot + bit))
            live |= UINT64_C(1) << bit;
    if (live == 0)
        return 0;
    const uint8_t *stored;
    int r = segment_window_get(&rewrite->window, frame->offset, frame->stored_bytes, &stored);
    if (r == -ENODATA)
        return damaged(rewrite, frame, frame->offset, frame->stored_bytes, "the file ends before");
    if (r < 0)
        return error_set(rewrite->err, r, "cannot read %s at byte %" PRIu32 ": %s", rewrite->path,
                frame->offset, strerror(-r));
    if (segment_frame_checksum(rewrite->segments->config.seed, rewrite->source.number, frame->first_slot,
                stored, frame->stored_bytes) != frame->checksum)
        return damaged(rewrite, frame, frame->offset, frame->stored_bytes, "its checksum does not match");
    if (rewrite->level > 0 || live != frame->bitmap)
        return take_apart(rewrite, frame, stored);
    r = gather_end(rewrite);
    return r < 0 ? r
                 : segment_output_frame(&rewrite->output, frame, stored,
                           rewrite->segment->index.fingerprints + frame->present_before, NULL, NULL);
}

static int rewrite_all(struct rewrite *rewrite, struct segment_row *ret_row)
{
    const struct segment_index *index = &rewrite->segment->index;
    int r = 0;
    for (uint32_t i = 0; i < index->frame_count && r == 0; i++) {
        if (task_stopping(rewrite->task))
            return error_set(rewrite->err, -ECANCELED, "the rewriting of %s was stopped", rewrite->path);
        r = rewrite_frame(rewrite, &index->frames[i]);
        if (rewrite->output.failed < 0)
            break; // the end says what it was
    }
    if (r == 0)
        gather_end(rewrite);
    else if (rewrite->output.failed == 0)
        return r;
    return segment_output_finish(&rewrite->output, rewrite->source.slots, ret_row, rewrite->err);
}

// ---- The whole ----

// Something that a root reaches is not there: that is a damage, and not to be cemented.
static int check_live(struct rewrite *rewrite)
{
    for (uint32_t slot = 0; slot < SEGMENT_SLOTS_MAX; slot++)
        if (is_live(rewrite, slot) && segment_index_find(&rewrite->segment->index, slot) == NULL)
            return error_set(rewrite->err, -EBADMSG,
                    "slot %" PRIu32 " of segment %" PRIu64 " is in use, but %s does not have it", slot,
                    rewrite->source.number, rewrite->path);
    return 0;
}

static void set_rewriting(struct rewrite *rewrite, uint32_t generation)
{
    struct segments_shard *shard = segment_shard(rewrite->segments, rewrite->source.number);
    pthread_mutex_lock(&shard->lock);
    rewrite->segment->rewriting = generation;
    pthread_mutex_unlock(&shard->lock);
}

static int rewrite_file(struct rewrite *rewrite, struct segment_row *ret_row)
{
    int r = segment_window_open(&rewrite->window, rewrite->task, rewrite->path, rewrite->source.file_bytes);
    if (r < 0)
        return error_set(
                rewrite->err, r == -ENOENT ? -EIO : r, "cannot open %s: %s", rewrite->path, strerror(-r));
    struct segment_header header = {.version = SEGMENT_VERSION,
            .number = rewrite->source.number,
            .generation = rewrite->source.generation + 1,
            .kind = rewrite->source.kind,
            .domain = rewrite->source.domain};
    char *path = segment_path(rewrite->segments, header.number, header.generation);
    struct io_op unlink = {.code = IO_UNLINK, .path = path}; // of an attempt whose row was never added
    task_io(rewrite->task, &unlink);
    r = segment_output_begin(&rewrite->output, rewrite->segments, rewrite->task, &header, NULL, NULL);
    if (r < 0) {
        error_set(rewrite->err, r, "cannot create %s: %s", path, strerror(-r));
    } else {
        r = rewrite_all(rewrite, ret_row);
        struct io_op shut = {.code = IO_CLOSE, .fd = rewrite->output.fd};
        if (r < 0)
            segment_output_remove(&rewrite->output, rewrite->output.fd);
        else
            task_io(rewrite->task, &shut);
        segment_output_free(&rewrite->output);
    }
    free(path);
    segment_window_close(&rewrite->window);
    return r;
}

static int rewrite_held(struct rewrite *rewrite, struct segment_row *ret_row)
{
    int r = check_live(rewrite);
    if (r < 0)
        return r;
    rewrite->blocks = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    rewrite->stored = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    rewrite->gathered = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    set_rewriting(rewrite, rewrite->source.generation + 1);
    r = rewrite_file(rewrite, ret_row);
    if (r < 0)
        set_rewriting(rewrite, 0);
    io_buffer_free(rewrite->blocks);
    io_buffer_free(rewrite->stored);
    io_buffer_free(rewrite->gathered);
    return r;
}

int segment_rewrite(struct segments *segments, struct task *task, uint64_t number, const uint64_t *live,
        int level, unsigned frame_slots, struct segment_row *ret_row, struct error *err)
{
    struct segment *segment;
    if (segments->config.read_only || frame_slots == 0 || frame_slots > SEGMENT_FRAME_SLOTS_MAX || level < 0)
        return error_set(err, segments->config.read_only ? -EROFS : -EINVAL,
                "segment %" PRIu64 " cannot be rewritten: %s", number,
                segments->config.read_only ? "the store is open for reading only"
                                           : "bad level or frame size");
    int r = segment_hold_task(segments, task, number, &segment);
    if (r < 0)
        return error_set(err, r, "segment %" PRIu64 " cannot be read: %s", number, strerror(-r));
    struct rewrite *rewrite = segment_alloc(sizeof *rewrite);
    rewrite->segments = segments;
    rewrite->task = task;
    rewrite->segment = segment;
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    rewrite->source = segment->row;
    bool writing = segment->writer != NULL;
    pthread_mutex_unlock(&shard->lock);
    rewrite->live = live;
    rewrite->level = level;
    rewrite->frame_slots = frame_slots;
    rewrite->err = err;
    rewrite->path = segment_path(segments, number, rewrite->source.generation);
    if (writing)
        r = error_set(err, -EBUSY, "segment %" PRIu64 " is still being written", number);
    else if (rewrite->source.generation == UINT32_MAX)
        r = error_set(err, -EOVERFLOW, "segment %" PRIu64 " has no generation left", number);
    else
        r = rewrite_held(rewrite, ret_row);
    free(rewrite->path);
    free(rewrite);
    segment_release(segments, segment);
    return r;
}
