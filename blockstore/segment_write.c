// SPDX-License-Identifier: Apache-2.0
// The writer of a new segment. Its blocks pass three places: the open frame (uncompressed), the output's
// buffer (stored bytes on their way), the file. Readers find them in each.
#include "blockstore/segment_private.h"

#include "blockstore/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct segment_writer {
    struct segments *segments;
    struct segments_shard *shard;
    struct segment *segment; // held
    struct segment_output output;
    uint8_t *stored; // one compressed frame
    // Protected by the shard's lock, changed by the task alone:
    uint8_t *open; // blocks of the open frame
    struct fingerprint open_fingerprints[SEGMENT_FRAME_SLOTS_MAX];
    uint32_t open_first, open_count, open_limit;
    uint32_t slots;
};

int segment_writer_begin(struct segments *segments, struct task *task, uint64_t number,
        enum segment_kind kind, uint64_t domain, struct segment_writer **ret_writer)
{
    if (segments->config.read_only)
        return -EROFS;
    struct segment_row row = {.number = number, .generation = 1, .kind = kind, .domain = domain};
    struct segment *segment = segment_enter(segments, &row);
    if (segment == NULL)
        return -EEXIST;
    struct segment_header header = {
            .version = SEGMENT_VERSION, .number = number, .generation = 1, .kind = kind, .domain = domain};
    struct segment_writer *writer = segment_alloc(sizeof *writer);
    writer->segments = segments;
    writer->segment = segment;
    writer->shard = segment_shard(segments, number);
    int r = segment_output_begin(
            &writer->output, segments, task, &header, &segment->index, &writer->shard->lock);
    if (r < 0) {
        segment_retract(segments, segment);
        segment_release(segments, segment);
        free(writer);
        return r;
    }
    writer->open = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    writer->stored = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    pthread_mutex_lock(&writer->shard->lock);
    struct segment_orphan *list = segment_equip_locked(segments, segment, writer->output.fd, NULL);
    segment->writer = writer;
    pthread_mutex_unlock(&writer->shard->lock);
    segment_give_up(segments, list);
    *ret_writer = writer;
    return 0;
}

bool segment_writer_full(struct segment_writer *writer)
{
    return writer->slots >= SEGMENT_SLOTS_MAX;
}

int segment_writer_add(struct segment_writer *writer, const void *block, struct fingerprint fingerprint,
        unsigned frame_slots, locator_t *ret_locator)
{
    if (writer->output.failed < 0)
        return writer->output.failed;
    if (segment_writer_full(writer))
        return -EFBIG;
    if (frame_slots == 0 || frame_slots > SEGMENT_FRAME_SLOTS_MAX)
        return -EINVAL;
    pthread_mutex_lock(&writer->shard->lock);
    if (writer->open_count == 0) {
        writer->open_first = writer->slots;
        writer->open_limit = frame_slots;
    }
    memcpy(writer->open + (size_t)writer->open_count * BLOCK_SIZE, block, BLOCK_SIZE);
    writer->open_fingerprints[writer->open_count++] = fingerprint;
    uint32_t slot = writer->slots++;
    pthread_mutex_unlock(&writer->shard->lock);
    int r = writer->open_count >= writer->open_limit ? segment_writer_end_frame(writer) : 0;
    if (r == 0)
        *ret_locator = locator_segment(writer->segment->number, slot);
    return r;
}

static void frame_closed_locked(void *context)
{
    struct segment_writer *writer = context;
    writer->open_count = 0;
}

int segment_writer_end_frame(struct segment_writer *writer)
{
    if (writer->output.failed < 0 || writer->open_count == 0)
        return writer->output.failed;
    bool nodes = writer->segment->row.kind == SEGMENT_NODES;
    struct segment_frame frame = {.first_slot = (uint16_t)writer->open_first,
            .slots = (uint8_t)writer->open_count,
            .bitmap = ~UINT64_C(0) >> (64 - writer->open_count),
            .level = nodes ? CODEC_LEVEL_NODES : SEGMENT_LEVEL_SEAL};
    enum codec codec;
    size_t size = (size_t)writer->open_count * BLOCK_SIZE;
    frame.stored_bytes = (uint32_t)codec_compress(
            writer->open, size, frame.level, nodes ? CODEC_ZSTD_NODES : CODEC_ZSTD, writer->stored, &codec);
    frame.codec = (uint8_t)codec;
    return segment_output_frame(&writer->output, &frame, codec == CODEC_RAW ? writer->open : writer->stored,
            writer->open_fingerprints, frame_closed_locked, writer);
}

static void writer_free(struct segment_writer *writer)
{
    segment_output_free(&writer->output);
    io_buffer_free(writer->open);
    io_buffer_free(writer->stored);
    free(writer);
}

int segment_writer_finish(struct segment_writer *writer, struct segment_row *ret_row, struct error *err)
{
    struct segments *segments = writer->segments;
    struct segment *segment = writer->segment;
    struct segment_row row;
    segment_writer_end_frame(writer); // what failed, the output remembers
    int r = segment_output_finish(&writer->output, writer->slots, &row, err);
    if (r < 0) {
        segment_writer_abort(writer);
        return r;
    }
    pthread_mutex_lock(&writer->shard->lock);
    struct segment_index index = segment->index;
    segment->row = row;
    segment->writer = NULL;
    struct segment_orphan *list = segment_equip_locked(segments, segment, -1, &index);
    pthread_mutex_unlock(&writer->shard->lock);
    segment_give_up(segments, list);
    segment_release(segments, segment);
    writer_free(writer);
    *ret_row = row;
    return 0;
}

struct segment_writer *segment_writer_abort(struct segment_writer *writer)
{
    if (writer == NULL)
        return NULL;
    struct segments *segments = writer->segments;
    struct task *task = writer->output.task;
    pthread_mutex_lock(&writer->shard->lock);
    writer->segment->writer = NULL;
    segment_index_clear(&writer->segment->index);
    pthread_mutex_unlock(&writer->shard->lock);
    segment_retract(segments, writer->segment);
    segment_output_remove(&writer->output, -1);
    segment_release(segments, writer->segment);
    segment_give_up_task(segments, task);
    writer_free(writer);
    return NULL;
}

// ---- For readers ----

const void *segment_writer_open_block_locked(struct segment_writer *writer, uint32_t slot)
{
    if (slot < writer->open_first || slot >= writer->open_first + writer->open_count)
        return NULL;
    return writer->open + (size_t)(slot - writer->open_first) * BLOCK_SIZE;
}

bool segment_writer_copy_locked(struct segment_writer *writer, const struct segment_frame *frame, void *to)
{
    const struct segment_output *output = &writer->output;
    if ((uint64_t)frame->offset + frame->stored_bytes <= output->written)
        return false;
    memcpy(to, output->buffer + (frame->offset - output->base), frame->stored_bytes);
    return true;
}

int segment_writer_fingerprint_locked(
        struct segment_writer *writer, uint32_t slot, struct fingerprint *ret_fingerprint)
{
    if (segment_writer_open_block_locked(writer, slot) != NULL) {
        *ret_fingerprint = writer->open_fingerprints[slot - writer->open_first];
        return 0;
    }
    const struct segment_index *index = &writer->segment->index;
    const struct segment_frame *frame = segment_index_find(index, slot);
    if (frame == NULL)
        return -ENOENT;
    *ret_fingerprint = index->fingerprints[frame->present_before + segment_frame_rank(frame, slot)];
    return 0;
}
