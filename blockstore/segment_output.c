// SPDX-License-Identifier: Apache-2.0
#include "blockstore/segment_output.h"

#include "blockstore/segment_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum {
    WRITE_BYTES = 1 << 20, // one write
    FRAME_BYTES_MAX = SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE,
    // A frame that the last write cut; a write on its way; what gathers for the next one; paddings.
    BUFFER_BYTES = 2 * (WRITE_BYTES + FRAME_BYTES_MAX) + FRAME_BYTES_MAX + 8 * BLOCK_SIZE,
};

struct segment_output_write {
    struct loop_work work;
    struct io_full io;
    struct task_event event;
    struct loop *loop;
    struct iovec iov;
    uint64_t offset;
    int fd;
};

static void lock(struct segment_output *output)
{
    if (output->lock != NULL)
        pthread_mutex_lock(output->lock);
}

static void unlock(struct segment_output *output)
{
    if (output->lock != NULL)
        pthread_mutex_unlock(output->lock);
}

static uint64_t rounded_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

// Where the process has no descriptor left, one of a segment's that idles makes room.
static int64_t open_new(struct segments *segments, struct task *task, const char *path)
{
    for (;;) {
        struct io_op open = {.code = IO_OPEN,
                .path = path,
                .flags = O_RDWR | O_CREAT | O_EXCL | O_DIRECT,
                .mode = SEGMENT_READ_MODE};
        int64_t r = task_io(task, &open);
        int idle = r == -EMFILE || r == -ENFILE ? segment_take_descriptor(segments) : -1;
        if (idle < 0)
            return r;
        struct io_op shut = {.code = IO_CLOSE, .fd = idle};
        task_io(task, &shut);
    }
}

int segment_output_begin(struct segment_output *output, struct segments *segments, struct task *task,
        const struct segment_header *header, struct segment_index *index, pthread_mutex_t *mutex)
{
    *output = (struct segment_output){
            .segments = segments, .task = task, .header = *header, .lock = mutex, .fd = -1};
    output->index = index != NULL ? index : &output->own_index;
    output->path = segment_path(segments, header->number, header->generation);
    int64_t fd = open_new(segments, task, output->path);
    if (fd < 0) {
        free(output->path);
        return (int)fd;
    }
    output->fd = (int)fd;
    output->buffer = io_buffer_alloc(BUFFER_BYTES);
    output->spare = io_buffer_alloc(BUFFER_BYTES);
    segment_header_encode(header, segments->config.seed, output->buffer);
    output->end = SEGMENT_HEADER_BYTES;
    return 0;
}

// ---- Writes ----

static void write_done(struct io_full *io, int result)
{
    struct segment_output_write *write =
            (struct segment_output_write *)((char *)io - offsetof(struct segment_output_write, io));
    task_event_set(&write->event, result);
}

static void write_submit(struct loop_work *work)
{
    struct segment_output_write *write = (struct segment_output_write *)work;
    io_full_submit(write->loop, &write->io, IO_WRITE, write->fd, &write->iov, 1, write->offset, write_done);
}

// Sends the buffer off up to `to`. Nothing is on its way.
static void write_begin(struct segment_output *output, uint64_t to)
{
    struct segment_output_write *write = segment_alloc(sizeof *write);
    write->work.run = write_submit;
    write->loop = task_loop(output->task);
    write->fd = output->fd;
    write->offset = output->sent;
    write->iov = (struct iovec){output->buffer + (output->sent - output->base), (size_t)(to - output->sent)};
    task_event_init(output->task, &write->event);
    output->sent = to;
    output->write = write;
    loop_post(write->loop, &write->work);
}

// From where on the buffer is still needed: by the next write, and by readers of frames that are not whole in
// the file.
static uint64_t needed_from(const struct segment_output *output)
{
    const struct segment_index *index = output->index;
    uint32_t first = index->frame_count;
    while (first > 0 &&
            (uint64_t)index->frames[first - 1].offset + index->frames[first - 1].stored_bytes > output->sent)
        first--;
    uint64_t from =
            first < index->frame_count ? index->frames[first].offset / BLOCK_SIZE * BLOCK_SIZE : output->sent;
    return from < output->sent ? from : output->sent;
}

// Waits for the write on its way, and moves what is still needed to the other buffer: readers look into the
// old one until the two are swapped.
static void write_wait(struct segment_output *output)
{
    struct segment_output_write *write = output->write;
    if (write == NULL)
        return;
    int r = (int)task_wait(output->task, &write->event);
    output->write = NULL;
    free(write); // of an abandoned task too: its loops never run again
    if (r < 0) {
        output->failed = output->failed < 0 ? output->failed : r;
        return;
    }
    uint64_t from = needed_from(output);
    if (output->end > from)
        memcpy(output->spare, output->buffer + (from - output->base), (size_t)(output->end - from));
    lock(output);
    uint8_t *old = output->buffer;
    output->buffer = output->spare;
    output->spare = old;
    output->base = from;
    output->written = output->sent;
    unlock(output);
}

int segment_output_frame(struct segment_output *output, const struct segment_frame *frame, const void *stored,
        const struct fingerprint *fingerprints, void (*seen_locked)(void *context), void *context)
{
    if (output->failed < 0)
        return output->failed;
    struct segment_frame f = *frame;
    uint64_t at = rounded_up(output->end, SEGMENT_FRAME_ALIGN);
    uint8_t *to = output->buffer + (output->end - output->base);
    memset(to, 0, (size_t)(at - output->end));
    memcpy(output->buffer + (at - output->base), stored, f.stored_bytes);
    f.offset = (uint32_t)at;
    f.checksum = segment_frame_checksum(
            output->segments->config.seed, output->header.number, f.first_slot, stored, f.stored_bytes);
    lock(output);
    segment_index_append(output->index, &f, fingerprints);
    output->end = at + f.stored_bytes;
    if (seen_locked != NULL)
        seen_locked(context);
    unlock(output);
    if (output->end - output->sent < WRITE_BYTES)
        return 0;
    write_wait(output);
    if (output->failed == 0)
        write_begin(output, output->end / BLOCK_SIZE * BLOCK_SIZE);
    return output->failed;
}

static int write_tail(struct segment_output *output, uint32_t slots, struct segment_trailer *ret_trailer)
{
    const struct segment_index *index = output->index;
    struct segment_trailer t = {.number = output->header.number,
            .generation = output->header.generation,
            .footer_offset = output->written, // of whole blocks by now
            .footer_bytes = segment_footer_bytes(index->frame_count, index->present),
            .slots = slots,
            .present = index->present,
            .frames = index->frame_count,
            .level = segment_index_level(index, SEGMENT_LEVEL_SEAL)};
    t.file_bytes = t.footer_offset + t.footer_bytes + SEGMENT_TRAILER_BYTES;
    uint8_t *tail = io_buffer_alloc(t.footer_bytes + SEGMENT_TRAILER_BYTES);
    segment_footer_encode(index, &t, output->segments->config.seed, tail);
    segment_trailer_encode(&t, output->segments->config.seed, tail + t.footer_bytes);
    int r = task_io_full(output->task, IO_WRITE, output->fd, tail,
            (size_t)(t.footer_bytes + SEGMENT_TRAILER_BYTES), t.footer_offset);
    io_buffer_free(tail);
    *ret_trailer = t;
    return r;
}

static int sync_file(struct segment_output *output)
{
    struct io_op sync = {.code = IO_FDATASYNC, .fd = output->fd};
    return (int)task_io(output->task, &sync);
}

int segment_output_finish(
        struct segment_output *output, uint32_t slots, struct segment_row *ret_row, struct error *err)
{
    struct segment_trailer trailer = {0};
    uint64_t end = rounded_up(output->end, BLOCK_SIZE);
    write_wait(output);
    if (output->failed == 0 && end > output->sent) {
        memset(output->buffer + (output->end - output->base), 0, (size_t)(end - output->end));
        output->end = end;
        write_begin(output, end);
        write_wait(output);
    }
    int r = output->failed;
    if (r == 0)
        r = sync_file(output);
    if (r == 0)
        r = write_tail(output, slots, &trailer);
    if (r == 0)
        r = sync_file(output);
    struct io_op sync = {.code = IO_FSYNC_DIR, .path = output->segments->directory};
    if (r == 0)
        r = (int)task_io(output->task, &sync);
    if (r < 0)
        return error_set(err, r, "cannot write segment file %s: %s%s", output->path, strerror(-r),
                r == -ENOSPC ? "; delete snapshots or volumes, or give the store's file system more room"
                             : "");
    *ret_row = (struct segment_row){.number = output->header.number,
            .generation = output->header.generation,
            .kind = output->header.kind,
            .domain = output->header.domain,
            .file_bytes = trailer.file_bytes,
            .slots = slots,
            .present = trailer.present,
            .frames = trailer.frames,
            .level = trailer.level};
    return 0;
}

void segment_output_free(struct segment_output *output)
{
    io_buffer_free(output->buffer);
    io_buffer_free(output->spare);
    free(output->path);
    segment_index_clear(&output->own_index);
    output->buffer = output->spare = NULL;
    output->path = NULL;
}

// What an error leaves is cleared away as far as it goes; the next start takes what stays.
void segment_output_remove(struct segment_output *output, int fd)
{
    write_wait(output);
    struct io_op shut = {.code = IO_CLOSE, .fd = fd};
    if (fd >= 0)
        task_io(output->task, &shut);
    struct io_op unlink = {.code = IO_UNLINK, .path = output->path};
    task_io(output->task, &unlink);
}
