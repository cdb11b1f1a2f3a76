// SPDX-License-Identifier: Apache-2.0
// Reading. What is in memory is a look-up and a copy (segment_read_try). Else a read holds its segment, gets
// it ready (segment_load.c), and goes through its frames in pieces, several in flight:
//  - a compressed frame is read, verified, decompressed and kept whole; who wants the same frame meanwhile
//    waits for that one read;
//  - of a raw frame only the asked slots are read, verified by their fingerprints; few slots are kept.
// Everything happens on the loop of the read.
#include "blockstore/segment_private.h"

#include "blockstore/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES_MAX = 16, RAW_KEEP_SLOTS = 16 };

struct reading {
    struct segments *segments;
    struct segment_read *read;
    struct segment *segment; // held
    struct segment_wait wait;
    uint32_t begun; // slots
    unsigned in_flight;
    bool waiting; // for the segment to be ready
    int result;
};

struct piece {
    struct reading *reading;
    struct segment_frame frame;
    uint32_t slot, count; // of the segment, within the frame
    uint8_t *out;
    int fd;
    struct segment_cached *cached; // loading, by this piece
    struct segment_cache_wait wait;
    struct io_full io;
    uint8_t *buffer;                                          // pages of the file
    const uint8_t *stored;                                    // in the buffer
    struct fingerprint fingerprints[SEGMENT_FRAME_SLOTS_MAX]; // raw: of the asked slots
};

static struct segment_cache_key key_of_frame(const struct segment *segment, const struct segment_frame *frame)
{
    return (struct segment_cache_key){segment->id, frame->first_slot};
}

static struct segment_cache_key key_of_slot(const struct segment *segment, uint32_t slot)
{
    return (struct segment_cache_key){segment->id, slot | SEGMENT_CACHE_SLOT};
}

// How many of the wanted slots this frame has, from `slot` on without a hole up to its end; 0: a hole.
static uint32_t slots_here(const struct segment_frame *frame, uint32_t slot, uint32_t wanted)
{
    uint32_t end = (uint32_t)frame->first_slot + frame->slots, n = 0;
    while (n < wanted && slot + n < end && segment_frame_holds(frame, slot + n))
        n++;
    return n < wanted && slot + n < end ? 0 : n;
}

// ---- From memory ----

static bool copy_cached(
        struct segments *segments, struct segment_cache_key key, size_t offset, size_t size, uint8_t *out)
{
    struct segment_cached *cached = segment_cache_get(segments->cache, key);
    if (cached == NULL)
        return false;
    memcpy(out, cached->bytes + offset, size);
    segment_cache_put(cached);
    return true;
}

static bool copy_frame(struct segments *segments, uint64_t id, const struct segment_frame *frame,
        uint32_t slot, uint32_t count, uint8_t *out)
{
    struct segment_cache_key key = {id, frame->first_slot};
    if (frame->codec != CODEC_RAW)
        return copy_cached(segments, key, (size_t)segment_frame_rank(frame, slot) * BLOCK_SIZE,
                (size_t)count * BLOCK_SIZE, out);
    for (uint32_t i = 0; i < count; i++) {
        key.unit = (slot + i) | SEGMENT_CACHE_SLOT;
        if (!copy_cached(segments, key, 0, BLOCK_SIZE, out + (size_t)i * BLOCK_SIZE))
            return false;
    }
    return true;
}

// Looks one slot up. 0: *ret_frame has it, or (frame->slots 0) it was copied from the writer's open frame.
static int look_up(struct segments *segments, uint64_t number, uint32_t slot, struct segment_frame *ret_frame,
        uint64_t *ret_id, uint8_t *out)
{
    struct segments_shard *shard = segment_shard(segments, number);
    int r = 0;
    pthread_mutex_lock(&shard->lock);
    struct segment *segment = segment_find_locked(shard, number);
    const struct segment_frame *frame = NULL;
    const void *open = NULL;
    if (segment == NULL) {
        r = -ENOENT;
    } else if (segment->writer != NULL && (open = segment_writer_open_block_locked(segment->writer, slot))) {
        memcpy(out, open, BLOCK_SIZE);
        ret_frame->slots = 0;
    } else if (segment->writer == NULL && !segment->has_index) {
        r = -EAGAIN;
    } else if ((frame = segment_index_find(&segment->index, slot)) == NULL) {
        r = -ENOENT;
    } else {
        segment->index_used = true;
        *ret_frame = *frame;
        *ret_id = segment->id;
    }
    pthread_mutex_unlock(&shard->lock);
    return r;
}

int segment_read_try(struct segments *segments, locator_t first, uint32_t count, void *buffer)
{
    uint64_t number = locator_segment_number(first), id = 0;
    uint32_t slot = locator_segment_slot(first), n;
    uint8_t *out = buffer;
    if (!locator_is_segment(first))
        return -EINVAL;
    for (; count > 0; slot += n, count -= n, out += (size_t)n * BLOCK_SIZE) {
        struct segment_frame frame;
        int r = look_up(segments, number, slot, &frame, &id, out);
        if (r < 0)
            return r;
        n = frame.slots == 0 ? 1 : slots_here(&frame, slot, count);
        if (n == 0)
            return -ENOENT;
        if (frame.slots != 0 && !copy_frame(segments, id, &frame, slot, n, out))
            return -EAGAIN;
    }
    return 0;
}

// ---- Pieces ----

static void reading_advance(struct reading *reading);

static void piece_free(struct piece *piece)
{
    io_buffer_free(piece->buffer);
    free(piece);
}

static void piece_end(struct piece *piece, int result)
{
    struct reading *reading = piece->reading;
    if (result < 0 && reading->result == 0)
        reading->result = result;
    reading->in_flight--;
    piece_free(piece);
}

static int check_raw(struct piece *piece)
{
    struct reading *reading = piece->reading;
    for (uint32_t i = 0; i < piece->count; i++) {
        const uint8_t *block = piece->stored + (size_t)i * BLOCK_SIZE;
        struct fingerprint is = fingerprint_of(&reading->segment->key, block);
        if (is.low != piece->fingerprints[i].low || is.high != piece->fingerprints[i].high)
            return -EBADMSG;
    }
    memcpy(piece->out, piece->stored, (size_t)piece->count * BLOCK_SIZE);
    if (!reading->read->uncached && piece->count <= RAW_KEEP_SLOTS)
        for (uint32_t i = 0; i < piece->count; i++)
            segment_cache_insert(reading->segments->cache, key_of_slot(reading->segment, piece->slot + i),
                    piece->out + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
    return 0;
}

static void copy_out(const struct piece *piece, const uint8_t *bytes)
{
    memcpy(piece->out, bytes + (size_t)segment_frame_rank(&piece->frame, piece->slot) * BLOCK_SIZE,
            (size_t)piece->count * BLOCK_SIZE);
}

static int unpack(const struct piece *piece, void *to)
{
    const struct segment_frame *frame = &piece->frame;
    const struct reading *reading = piece->reading;
    if (segment_frame_checksum(reading->segments->config.seed, reading->segment->number, frame->first_slot,
                piece->stored, frame->stored_bytes) != frame->checksum)
        return -EBADMSG;
    return codec_decompress(
            piece->stored, frame->stored_bytes, (enum codec)frame->codec, to, segment_frame_bytes(frame));
}

// The stored bytes are there, or could not be read.
static void piece_arrived(struct piece *piece, int result)
{
    struct segments *segments = piece->reading->segments;
    int r = segment_read_result(result);
    if (piece->frame.codec == CODEC_RAW) {
        if (r == 0)
            r = check_raw(piece);
        piece_end(piece, r);
        return;
    }
    size_t size = segment_frame_bytes(&piece->frame);
    bool whole = piece->cached == NULL && piece->count * (size_t)BLOCK_SIZE == size;
    uint8_t *bytes = r < 0 ? NULL : whole ? piece->out : malloc(size);
    if (r == 0 && bytes == NULL)
        abort();
    if (r == 0)
        r = unpack(piece, bytes);
    if (r == 0 && !whole)
        copy_out(piece, bytes);
    if (piece->cached != NULL) {
        if (r < 0) {
            free(bytes);
            bytes = NULL;
        }
        segment_cache_loaded(segments->cache, piece->cached, r, bytes, size);
        segment_cache_put(piece->cached);
    } else if (!whole) {
        free(bytes);
    }
    piece_end(piece, r);
}

static void piece_read(struct io_full *io, int result)
{
    struct piece *piece = (struct piece *)((char *)io - offsetof(struct piece, io));
    struct reading *reading = piece->reading;
    piece_arrived(piece, result);
    reading_advance(reading);
}

static void piece_waited(struct segment_cache_wait *wait, int result, struct segment_cached *cached)
{
    struct piece *piece = (struct piece *)((char *)wait - offsetof(struct piece, wait));
    struct reading *reading = piece->reading;
    if (cached != NULL) {
        copy_out(piece, cached->bytes);
        segment_cache_put(cached);
    }
    piece_end(piece, result);
    reading_advance(reading);
}

static void piece_submit(struct piece *piece)
{
    uint64_t from = piece->frame.offset, size = piece->frame.stored_bytes;
    if (piece->frame.codec == CODEC_RAW) {
        from += (uint64_t)segment_frame_rank(&piece->frame, piece->slot) * BLOCK_SIZE;
        size = (uint64_t)piece->count * BLOCK_SIZE;
    }
    uint64_t first = from / BLOCK_SIZE * BLOCK_SIZE;
    uint64_t end = (from + size + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
    piece->buffer = io_buffer_alloc(end - first);
    piece->stored = piece->buffer + (from - first);
    atomic_fetch_add_explicit(&piece->reading->segments->read_bytes, end - first, memory_order_relaxed);
    struct iovec iov = {piece->buffer, end - first};
    io_full_submit(piece->reading->read->loop, &piece->io, IO_READ, piece->fd, &iov, 1, first, piece_read);
}

// The piece gets under way, or has ended already.
static void piece_start(struct piece *piece)
{
    struct reading *reading = piece->reading;
    struct segment_frame *frame = &piece->frame;
    if (copy_frame(reading->segments, reading->segment->id, frame, piece->slot, piece->count, piece->out)) {
        piece_end(piece, 0);
        return;
    }
    if (frame->codec != CODEC_RAW && !reading->read->uncached) {
        struct segment_cached *cached = NULL;
        piece->wait.loop = reading->read->loop;
        piece->wait.done = piece_waited;
        enum segment_cache_answer answer = segment_cache_begin(
                reading->segments->cache, key_of_frame(reading->segment, frame), &piece->wait, &cached);
        if (answer == SEGMENT_CACHE_WAIT)
            return;
        if (answer == SEGMENT_CACHE_HIT) {
            copy_out(piece, cached->bytes);
            segment_cache_put(cached);
            piece_end(piece, 0);
            return;
        }
        piece->cached = cached;
    }
    if (piece->stored != NULL) { // from the writer's memory
        piece_arrived(piece, 0);
        return;
    }
    piece_submit(piece);
}

// ---- The read ----

static void plan_raw_locked(struct piece *piece, const struct segment *segment)
{
    uint32_t at = piece->frame.present_before + segment_frame_rank(&piece->frame, piece->slot);
    memcpy(piece->fingerprints, segment->index.fingerprints + at,
            piece->count * sizeof piece->fingerprints[0]);
}

// Stored bytes that are not in the file yet are copied at once: the writer moves on.
static void plan_memory_locked(struct piece *piece, struct segment *segment)
{
    const struct segment_frame *frame = &piece->frame;
    uint8_t *buffer = io_buffer_alloc(frame->stored_bytes);
    if (!segment_writer_copy_locked(segment->writer, frame, buffer)) {
        io_buffer_free(buffer);
        return;
    }
    piece->buffer = buffer;
    piece->stored = buffer;
    if (frame->codec == CODEC_RAW)
        piece->stored += (size_t)segment_frame_rank(frame, piece->slot) * BLOCK_SIZE;
}

static int plan_locked(struct reading *reading, struct piece **ret_piece)
{
    struct segment_read *read = reading->read;
    struct segment *segment = reading->segment;
    uint32_t slot = locator_segment_slot(read->first) + reading->begun;
    uint8_t *out = (uint8_t *)read->buffer + (size_t)reading->begun * BLOCK_SIZE;
    if (!segment_ready_locked(segment))
        return -EAGAIN;
    const void *open = segment->writer ? segment_writer_open_block_locked(segment->writer, slot) : NULL;
    if (open != NULL) {
        memcpy(out, open, BLOCK_SIZE);
        reading->begun++;
        return 0;
    }
    const struct segment_frame *frame = segment_index_find(&segment->index, slot);
    uint32_t n = frame == NULL ? 0 : slots_here(frame, slot, read->count - reading->begun);
    if (n == 0)
        return -ENOENT;
    struct piece *piece = segment_alloc(sizeof *piece);
    piece->reading = reading;
    piece->frame = *frame;
    piece->slot = slot;
    piece->count = n;
    piece->out = out;
    piece->fd = segment->fd;
    if (frame->codec == CODEC_RAW)
        plan_raw_locked(piece, segment);
    if (segment->writer != NULL)
        plan_memory_locked(piece, segment);
    segment->fd_used = segment->index_used = true;
    reading->begun += n;
    *ret_piece = piece;
    return 0;
}

static void read_answer(struct loop_work *work)
{
    struct segment_read *read = (struct segment_read *)((char *)work - offsetof(struct segment_read, work));
    read->done(read, read->result);
}

static void answer_later(struct segment_read *read, int result)
{
    read->result = result;
    read->work.run = read_answer;
    loop_post(read->loop, &read->work);
}

static void became_ready(struct segment_wait *wait, int result)
{
    struct reading *reading = (struct reading *)((char *)wait - offsetof(struct reading, wait));
    reading->waiting = false;
    if (result < 0 && reading->result == 0)
        reading->result = result;
    reading_advance(reading);
}

static void begin_pieces(struct reading *reading)
{
    struct segments_shard *shard = segment_shard(reading->segments, reading->segment->number);
    while (!reading->waiting && reading->result == 0 && reading->begun < reading->read->count &&
            reading->in_flight < PIECES_MAX) {
        struct piece *piece = NULL;
        pthread_mutex_lock(&shard->lock);
        int r = plan_locked(reading, &piece);
        pthread_mutex_unlock(&shard->lock);
        if (r == -EAGAIN) {
            reading->wait.loop = reading->read->loop;
            reading->wait.done = became_ready;
            reading->waiting = true;
            if (segment_await(reading->segments, reading->segment, &reading->wait))
                reading->waiting = false;
        } else if (r < 0) {
            reading->result = r;
        } else if (piece != NULL) {
            reading->in_flight++;
            piece_start(piece);
        }
    }
}

static void reading_advance(struct reading *reading)
{
    begin_pieces(reading);
    if (reading->waiting || reading->in_flight > 0)
        return;
    struct segment_read *read = reading->read;
    segment_release(reading->segments, reading->segment);
    answer_later(read, reading->result);
    free(reading);
}

void segment_read(struct segments *segments, struct segment_read *read)
{
    int r = segment_read_try(segments, read->first, read->count, read->buffer);
    if (r != -EAGAIN) {
        answer_later(read, r);
        return;
    }
    struct segment *segment = segment_hold(segments, locator_segment_number(read->first));
    if (segment == NULL) {
        answer_later(read, -ENOENT);
        return;
    }
    struct reading *reading = segment_alloc(sizeof *reading);
    reading->segments = segments;
    reading->read = read;
    reading->segment = segment;
    read->segments = segments;
    read->state = reading;
    reading_advance(reading);
}

// ---- Tasks ----

struct task_read {
    struct segment_read read;
    struct loop_work work;
    struct task_event event;
};

static void task_read_done(struct segment_read *read, int result)
{
    task_event_set(&((struct task_read *)read)->event, result);
}

static void task_read_begin(struct loop_work *work)
{
    struct task_read *wait = (struct task_read *)((char *)work - offsetof(struct task_read, work));
    segment_read(wait->read.segments, &wait->read);
}

int segment_read_task(
        struct segments *segments, struct task *task, locator_t first, uint32_t count, void *buffer)
{
    int r = segment_read_try(segments, first, count, buffer);
    if (r != -EAGAIN)
        return r;
    struct task_read wait = {.read = {.loop = task_loop(task),
                                     .first = first,
                                     .count = count,
                                     .buffer = buffer,
                                     .segments = segments,
                                     .done = task_read_done},
            .work.run = task_read_begin};
    task_event_init(task, &wait.event);
    loop_post(wait.read.loop, &wait.work);
    return (int)task_wait(task, &wait.event);
}

int segment_fingerprint_task(
        struct segments *segments, struct task *task, locator_t locator, struct fingerprint *ret_fingerprint)
{
    struct segment *segment;
    uint64_t number = locator_segment_number(locator);
    uint32_t slot = locator_segment_slot(locator);
    int r = segment_hold_task(segments, task, number, &segment);
    if (r < 0)
        return r;
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    if (segment->writer != NULL) {
        r = segment_writer_fingerprint_locked(segment->writer, slot, ret_fingerprint);
    } else {
        const struct segment_frame *frame = segment_index_find(&segment->index, slot);
        if (frame != NULL)
            *ret_fingerprint =
                    segment->index.fingerprints[frame->present_before + segment_frame_rank(frame, slot)];
        r = frame != NULL ? 0 : -ENOENT;
    }
    pthread_mutex_unlock(&shard->lock);
    segment_release(segments, segment);
    return r;
}

// The segment is held, so its index stays: it is walked without the lock.
int segment_slots_task(struct segments *segments, struct task *task, uint64_t number,
        int (*each)(void *context, locator_t locator, struct fingerprint fingerprint), void *context)
{
    struct segment *segment;
    int r = segment_hold_task(segments, task, number, &segment);
    if (r < 0)
        return r;
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    r = segment->writer != NULL ? -EBUSY : 0;
    pthread_mutex_unlock(&shard->lock);
    const struct segment_index *index = &segment->index;
    for (uint32_t i = 0; i < index->frame_count && r >= 0; i++) {
        const struct segment_frame *frame = &index->frames[i];
        uint32_t at = frame->present_before;
        for (unsigned bit = 0; bit < frame->slots && r >= 0; bit++)
            if (frame->bitmap >> bit & 1)
                r = each(context, locator_segment(number, (uint64_t)frame->first_slot + bit),
                        index->fingerprints[at++]);
    }
    segment_release(segments, segment);
    return r < 0 ? r : 0;
}
