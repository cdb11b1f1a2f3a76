// SPDX-License-Identifier: Apache-2.0
// Getting a segment ready for reading: opens its file and reads its index, once for everybody who waits. The
// header is looked at too, so that a file of a newer format, or under a wrong name, is refused by what it is.
#include "blockstore/segment_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

struct load {
    struct segments *segments;
    struct segment *segment; // held
    struct loop *loop;
    struct io_op op;
    struct io_full io;
    char *path;
    int fd;
    bool opened, wants_index;
    uint8_t *buffer;
    size_t tail_bytes; // footer and trailer
    struct segment_row row;
};

static void wait_run(struct loop_work *work)
{
    struct segment_wait *wait = (struct segment_wait *)((char *)work - offsetof(struct segment_wait, work));
    wait->done(wait, wait->result);
}

static void load_finish(struct load *load, int result, struct segment_index *index)
{
    struct segments *segments = load->segments;
    struct segment *segment = load->segment;
    struct segments_shard *shard = segment_shard(segments, segment->number);
    struct segment_orphan *list = NULL;
    bool close_it = result < 0 && load->opened;
    pthread_mutex_lock(&shard->lock);
    if (result >= 0)
        list = segment_equip_locked(segments, segment, load->opened ? load->fd : -1, index);
    segment->loading = false;
    struct segment_wait *waiters = segment->waiters;
    segment->waiters = NULL;
    pthread_mutex_unlock(&shard->lock);
    if (close_it) {
        struct segment_orphan *orphan = segment_alloc(sizeof *orphan);
        *orphan = (struct segment_orphan){.fd = load->fd, .next = list};
        list = orphan;
    }
    segment_give_up(segments, list);
    for (struct segment_wait *next; waiters != NULL; waiters = next) {
        next = waiters->next;
        waiters->result = result;
        waiters->work.run = wait_run;
        loop_post(waiters->loop, &waiters->work);
    }
    io_buffer_free(load->buffer);
    free(load->path);
    free(load);
    segment_release(segments, segment);
}

// A file that is shorter than it should be is a damaged one. (Some file systems answer a direct read that
// goes on from an odd end with -EINVAL; ours are aligned to begin with.)
int segment_read_result(int result)
{
    return result == -ENODATA || result == -EINVAL ? -EBADMSG : result;
}

static void tail_read(struct io_full *io, int result)
{
    struct load *load = (struct load *)((char *)io - offsetof(struct load, io));
    const struct segment_row *row = &load->row;
    struct segment_trailer trailer;
    struct segment_index index = {0};
    uint64_t seed = load->segments->config.seed;
    int r = segment_read_result(result);
    if (r == 0)
        r = segment_trailer_decode(load->buffer + load->tail_bytes - SEGMENT_TRAILER_BYTES, seed, &trailer);
    if (r == 0 && (trailer.number != row->number || trailer.generation != row->generation ||
                          trailer.file_bytes != row->file_bytes ||
                          trailer.footer_bytes != load->tail_bytes - SEGMENT_TRAILER_BYTES))
        r = -EBADMSG;
    if (r == 0)
        r = segment_footer_decode(load->buffer, &trailer, row->kind, seed, &index);
    load_finish(load, r, r == 0 ? &index : NULL);
}

static void header_read(struct io_full *io, int result)
{
    struct load *load = (struct load *)((char *)io - offsetof(struct load, io));
    const struct segment_row *row = &load->row;
    struct segment_header header;
    int r = segment_read_result(result);
    if (r == 0)
        r = segment_header_decode(load->buffer, load->segments->config.seed, &header);
    if (r == 0 && (header.number != row->number || header.generation != row->generation ||
                          header.kind != row->kind || header.domain != row->domain))
        r = -EBADMSG;
    load->tail_bytes = segment_footer_bytes(row->frames, row->present) + SEGMENT_TRAILER_BYTES;
    if (r == 0 &&
            (row->file_bytes % BLOCK_SIZE != 0 || row->file_bytes < load->tail_bytes + SEGMENT_HEADER_BYTES))
        r = -EBADMSG; // the row's numbers cannot be
    if (r < 0) {
        load_finish(load, r, NULL);
        return;
    }
    io_buffer_free(load->buffer);
    load->buffer = io_buffer_alloc(load->tail_bytes);
    struct iovec iov = {load->buffer, load->tail_bytes};
    io_full_submit(
            load->loop, &load->io, IO_READ, load->fd, &iov, 1, row->file_bytes - load->tail_bytes, tail_read);
}

static void open_file(struct load *load);

static void closed_another(struct io_op *op, int64_t result)
{
    open_file((struct load *)((char *)op - offsetof(struct load, op)));
}

// The process has no descriptor left: one of ours that idles makes room.
static bool close_another(struct load *load)
{
    int fd = segment_take_descriptor(load->segments);
    if (fd < 0)
        return false;
    load->op = (struct io_op){.code = IO_CLOSE, .fd = fd, .done = closed_another};
    loop_submit(load->loop, &load->op);
    return true;
}

static void opened(struct io_op *op, int64_t result)
{
    struct load *load = (struct load *)((char *)op - offsetof(struct load, op));
    if ((result == -EMFILE || result == -ENFILE) && close_another(load))
        return;
    if (result < 0) {
        // The table names it, so "no such file" is a loss and not an absence.
        load_finish(load, result == -ENOENT ? -EIO : (int)result, NULL);
        return;
    }
    load->fd = (int)result;
    load->opened = true;
    if (!load->wants_index) {
        load_finish(load, 0, NULL);
        return;
    }
    load->buffer = io_buffer_alloc(SEGMENT_HEADER_BYTES);
    struct iovec iov = {load->buffer, SEGMENT_HEADER_BYTES};
    io_full_submit(load->loop, &load->io, IO_READ, load->fd, &iov, 1, 0, header_read);
}

static void open_file(struct load *load)
{
    load->op =
            (struct io_op){.code = IO_OPEN, .path = load->path, .flags = O_RDONLY | O_DIRECT, .done = opened};
    loop_submit(load->loop, &load->op);
}

static void load_start(struct load *load)
{
    load->path = segment_path(load->segments, load->row.number, load->row.generation);
    if (load->fd >= 0) {
        load->buffer = io_buffer_alloc(SEGMENT_HEADER_BYTES);
        struct iovec iov = {load->buffer, SEGMENT_HEADER_BYTES};
        io_full_submit(load->loop, &load->io, IO_READ, load->fd, &iov, 1, 0, header_read);
        return;
    }
    open_file(load);
}

bool segment_await(struct segments *segments, struct segment *segment, struct segment_wait *wait)
{
    struct segments_shard *shard = segment_shard(segments, segment->number);
    struct load *load = NULL;
    pthread_mutex_lock(&shard->lock);
    bool ready = segment_ready_locked(segment);
    if (!ready) {
        wait->next = segment->waiters;
        segment->waiters = wait;
        if (!segment->loading) {
            segment->loading = true;
            segment->refs++;
            load = segment_alloc(sizeof *load);
            load->segments = segments;
            load->segment = segment;
            load->loop = wait->loop;
            load->fd = segment->fd;
            load->wants_index = !segment->has_index;
            load->row = segment->row;
        }
    }
    pthread_mutex_unlock(&shard->lock);
    if (load != NULL)
        load_start(load);
    return ready;
}

// ---- For tasks ----

struct task_hold {
    struct loop_work work;
    struct segment_wait wait;
    struct task_event event;
    struct segments *segments;
    struct segment *segment;
};

static void hold_done(struct segment_wait *wait, int result)
{
    struct task_hold *hold = (struct task_hold *)((char *)wait - offsetof(struct task_hold, wait));
    task_event_set(&hold->event, result);
}

static void hold_begin(struct loop_work *work)
{
    struct task_hold *hold = (struct task_hold *)work;
    if (segment_await(hold->segments, hold->segment, &hold->wait))
        task_event_set(&hold->event, 0);
}

int segment_hold_task(
        struct segments *segments, struct task *task, uint64_t number, struct segment **ret_segment)
{
    struct task_hold hold = {.work.run = hold_begin, .segments = segments};
    hold.segment = segment_hold(segments, number);
    if (hold.segment == NULL)
        return -ENOENT;
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    bool ready = hold.segment->writer != NULL || hold.segment->has_index;
    hold.segment->index_used = true;
    pthread_mutex_unlock(&shard->lock);
    int r = 0;
    if (!ready) {
        hold.wait.loop = task_loop(task);
        hold.wait.done = hold_done;
        task_event_init(task, &hold.event);
        loop_post(hold.wait.loop, &hold.work);
        r = (int)task_wait(task, &hold.event);
    }
    if (r < 0)
        segment_release(segments, hold.segment);
    else
        *ret_segment = hold.segment;
    return r;
}
