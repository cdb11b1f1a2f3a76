// SPDX-License-Identifier: Apache-2.0
// Log files: prewriting spares, rotation. Everything here runs on loop 0.
#include "blockstore/log_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREWRITE_BYTES = 1 << 20 };
static const uint64_t PREPARE_RETRY_NS = 200 * 1000 * 1000;

char *log_path(const char *directory, const char *prefix, uint64_t number)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s%08" PRIu64, directory, prefix, number) < 0)
        abort();
    return path;
}

struct log_file *log_file_free(struct log_file *file)
{
    if (file == NULL)
        return NULL;
    free(file->sums);
    free(file->path);
    free(file);
    return NULL;
}

struct log_file *log_file_new(uint64_t blocks, char *path)
{
    struct log_file *file = calloc(1, sizeof *file);
    if (file == NULL || (file->sums = calloc(blocks, sizeof *file->sums)) == NULL)
        abort();
    file->path = path;
    file->fd = file->read_fd = -1;
    return file;
}

static int64_t open_sync(struct loop *loop, const char *path, int flags)
{
    struct io_op op = {.code = IO_OPEN, .path = path, .flags = flags, .mode = 0600};
    return io_sync(loop, &op);
}

// Opens both descriptors; a file system without direct I/O (-EINVAL) is used through the page cache.
int log_file_open(struct loop *loop, const char *path, int access, struct log_file *file)
{
    int64_t fd = open_sync(loop, path, access | O_DIRECT);
    if (fd == -EINVAL)
        fd = open_sync(loop, path, access);
    if (fd < 0)
        return (int)fd;
    int64_t read_fd = open_sync(loop, path, O_RDONLY);
    if (read_fd < 0) {
        log_close_fd(loop, (int)fd);
        return (int)read_fd;
    }
    file->fd = (int)fd;
    file->read_fd = (int)read_fd;
    return 0;
}

int log_sync_dir(struct loop *loop, const char *directory)
{
    struct io_op op = {.code = IO_FSYNC_DIR, .path = directory};
    return (int)io_sync(loop, &op);
}

int log_prewrite_sync(struct loop *loop, const char *path, uint64_t bytes)
{
    int64_t fd = open_sync(loop, path, O_RDWR | O_CREAT | O_DIRECT);
    if (fd == -EINVAL)
        fd = open_sync(loop, path, O_RDWR | O_CREAT);
    if (fd < 0)
        return (int)fd;
    void *zeros = io_buffer_alloc(PREWRITE_BYTES);
    memset(zeros, 0, PREWRITE_BYTES);
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < bytes; at += PREWRITE_BYTES) {
        uint64_t left = bytes - at;
        r = io_sync_full(loop, IO_WRITE, (int)fd, zeros, left < PREWRITE_BYTES ? left : PREWRITE_BYTES, at);
    }
    io_buffer_free(zeros);
    struct io_op sync = {.code = IO_FDATASYNC, .fd = (int)fd}, shut = {.code = IO_CLOSE, .fd = (int)fd};
    if (r == 0)
        r = (int)io_sync(loop, &sync);
    io_sync(loop, &shut);
    return r;
}

// ---- Preparing spares ----

bool log_can_prepare_locked(struct log *log)
{
    unsigned moving =
            (log->preparing ? 1 : 0) + (log->rotation == ROTATION_RUN ? 1 : 0); // a spare on its way to use
    if (log->closing || log->used_files + log->spare_files + moving >= log->budget_files)
        return false;
    return !log->prepare_failed || loop_now_ns(log->loops[0]) - log->prepare_failed_ns >= PREPARE_RETRY_NS;
}

static void prepare_finish(struct log *log, int result)
{
    struct log_prepare *prepare = &log->prepare;
    struct log_append *start = NULL;
    io_buffer_free(prepare->zeros);
    prepare->zeros = NULL;
    pthread_mutex_lock(&log->lock);
    log->preparing = false;
    if (result == 0) {
        prepare->file->next = log->spares;
        log->spares = prepare->file;
        log->spare_files++;
        log->prepare_failed = log->retire_blocked = false;
    } else {
        log->prepare_failed = true;
        log->prepare_failed_ns = loop_now_ns(log->loops[0]);
        log_file_free(prepare->file);
        free(prepare->spare_path);
    }
    prepare->file = NULL;
    prepare->spare_path = NULL;
    if (log->rotation == ROTATION_SPARE)
        log->rotation = ROTATION_IDLE; // admission decides again
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
    if (result == 0)
        log_kick_prepare(log);
}

static void prepare_unlinked(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, prepare.op));
    prepare_finish(log, -ENOSPC);
}

static void prepare_closed(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, prepare.op));
    log->prepare.op =
            (struct io_op){.code = IO_UNLINK, .path = log->prepare.file->path, .done = prepare_unlinked};
    loop_submit(log->loops[0], &log->prepare.op);
}

// A half-written spare is taken away, so that a full file system gets its room back. The read descriptor is
// opened last.
static void prepare_fail(struct log *log)
{
    struct log_prepare *prepare = &log->prepare;
    if (prepare->file->fd < 0) {
        prepare_finish(log, -ENOSPC);
        return;
    }
    prepare->op = (struct io_op){.code = IO_CLOSE, .fd = prepare->file->fd, .done = prepare_closed};
    loop_submit(log->loops[0], &prepare->op);
}

static void prepare_next_step(struct io_op *op, int64_t result);

static void prepare_zeros_done(struct io_full *full, int result)
{
    struct log *log = (struct log *)((char *)full - offsetof(struct log, prepare.write));
    struct log_prepare *prepare = &log->prepare;
    if (result < 0) {
        prepare_fail(log);
        return;
    }
    uint64_t left = log->config.file_bytes - prepare->at;
    if (left == 0) {
        prepare->op =
                (struct io_op){.code = IO_FDATASYNC, .fd = prepare->file->fd, .done = prepare_next_step};
        loop_submit(log->loops[0], &prepare->op);
        return;
    }
    struct iovec iov = {prepare->zeros, left < PREWRITE_BYTES ? left : PREWRITE_BYTES};
    uint64_t at = prepare->at;
    prepare->at += iov.iov_len;
    io_full_submit(log->loops[0], full, IO_WRITE, prepare->file->fd, &iov, 1, at, prepare_zeros_done);
}

// open (direct, else through the cache) -> zeros -> fdatasync -> rename -> directory -> open for reads ->
// spare Only a whole file ever has a spare's name: one that lost some of its zeros in a power cut would need
// room later.
static void prepare_next_step(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, prepare.op));
    struct log_prepare *prepare = &log->prepare;
    if (op->code == IO_OPEN && result == -EINVAL && (op->flags & O_DIRECT) != 0) {
        op->flags &= ~O_DIRECT;
        loop_submit(log->loops[0], op);
        return;
    }
    if (result < 0) {
        prepare_fail(log);
        return;
    }
    if (op->code == IO_OPEN && prepare->file->fd < 0) {
        prepare->file->fd = (int)result;
        prepare_zeros_done(&prepare->write, 0);
    } else if (op->code == IO_OPEN) {
        prepare->file->read_fd = (int)result;
        prepare_finish(log, 0);
    } else if (op->code == IO_FDATASYNC) {
        *op = (struct io_op){.code = IO_RENAME,
                .path = prepare->file->path,
                .path2 = prepare->spare_path,
                .done = prepare_next_step};
        loop_submit(log->loops[0], op);
    } else if (op->code == IO_RENAME) {
        free(prepare->file->path);
        prepare->file->path = prepare->spare_path;
        prepare->spare_path = NULL;
        *op = (struct io_op){.code = IO_FSYNC_DIR, .path = log->directory, .done = prepare_next_step};
        loop_submit(log->loops[0], op);
    } else {
        *op = (struct io_op){
                .code = IO_OPEN, .path = prepare->file->path, .flags = O_RDONLY, .done = prepare_next_step};
        loop_submit(log->loops[0], op);
    }
}

static void prepare_run(struct loop_work *work)
{
    struct log *log = (struct log *)((char *)work - offsetof(struct log, prepare_work));
    struct log_prepare *prepare = &log->prepare;
    atomic_store(&log->prepare_posted, false);
    pthread_mutex_lock(&log->lock);
    bool go = !log->preparing && log->failed == 0 &&
              log->spare_files < log->config.spare_files + 1 && // for a cut
              log_can_prepare_locked(log);
    uint64_t number = log->next_spare_number;
    if (go) {
        log->preparing = true;
        log->next_spare_number++;
    }
    pthread_mutex_unlock(&log->lock);
    if (!go)
        return;
    prepare->spare_path = log_path(log->directory, "spare.", number);
    prepare->file = log_file_new(log->file_blocks, log_path(log->directory, "new.", number));
    prepare->at = 0;
    prepare->zeros = io_buffer_alloc(PREWRITE_BYTES);
    memset(prepare->zeros, 0, PREWRITE_BYTES);
    prepare->op = (struct io_op){.code = IO_OPEN,
            .path = prepare->file->path,
            .flags = O_RDWR | O_CREAT | O_DIRECT,
            .mode = 0600,
            .done = prepare_next_step};
    loop_submit(log->loops[0], &prepare->op);
}

void log_kick(struct log *log, _Atomic bool *posted, struct loop_work *work)
{
    if (!atomic_exchange(posted, true))
        loop_post(log->loops[0], work);
}

void log_kick_prepare(struct log *log)
{
    log_kick(log, &log->prepare_posted, &log->prepare_work);
}

// ---- Rotation ----

void log_kick_rotation_locked(struct log *log)
{
    if (log->rotation == ROTATION_DRAIN && log->in_flight == NULL && log->undelivered == 0)
        log_kick(log, &log->rotate_posted, &log->rotate_work);
}

uint64_t log_image_max_bytes(struct log *log)
{
    return log->file_blocks / 2 * BLOCK_SIZE * 7 / 8; // the rest is for the headers of its parts
}

// The image in as many records as it takes; each record and its payload belong to the log and are freed when
// written.
int log_image_appends(
        struct log *log, const void *image, size_t size, struct loop *loop, struct log_append **ret_list)
{
    size_t part_bytes = (size_t)log_payload_max(log) * BLOCK_SIZE;
    uint32_t parts = size == 0 ? 1 : (uint32_t)((size + part_bytes - 1) / part_bytes);
    uint64_t blocks = parts + (size + BLOCK_SIZE - 1) / BLOCK_SIZE;
    if (blocks > log->file_blocks / 2)
        return -EFBIG;
    pthread_mutex_lock(&log->lock);
    uint64_t oldest = log->oldest->number;
    pthread_mutex_unlock(&log->lock);
    struct log_append **tail = ret_list;
    *tail = NULL;
    for (uint32_t part = 0; part < parts; part++) {
        size_t at = part * part_bytes, bytes = size - at < part_bytes ? size - at : part_bytes;
        struct log_append *append = calloc(1, sizeof *append);
        if (append == NULL)
            abort();
        append->loop = loop;
        append->kind = RECORD_IMAGE;
        append->reserve = true;
        append->volume = oldest;
        append->part = part;
        append->parts = parts;
        append->body_bytes = (uint32_t)bytes;
        append->body_blocks = append->payload_blocks = (uint32_t)((bytes + BLOCK_SIZE - 1) / BLOCK_SIZE);
        if (append->payload_blocks > 0) {
            append->payload = io_buffer_alloc(bytes);
            memset(append->payload, 0, (size_t)append->payload_blocks * BLOCK_SIZE);
            memcpy(append->payload, (const char *)image + at, bytes);
        }
        *tail = append;
        tail = &append->next;
    }
    return 0;
}

static struct log_file *spare_take_locked(struct log *log)
{
    struct log_file *file = log->spares;
    if (file == NULL)
        return NULL;
    log->spares = file->next;
    log->spare_files--;
    file->next = NULL;
    return file;
}

static void make_current_locked(struct log *log, struct log_file *file, char *path)
{
    free(file->path);
    file->path = path;
    file->number = log->next_file_number++;
    file->used_blocks = 0;
    file->dirty = true;
    log->current->next = file;
    log->current = file;
    log->used_files++;
    log->dir_dirty = true;
    atomic_store_explicit(&log->table[file->number % LOG_TABLE_SIZE], file, memory_order_release);
    if (log->config.pressure != NULL && log->config.pressure_files > 0 &&
            log->used_files >= log->config.pressure_files)
        log->config.pressure(log->config.context);
}

void log_check_growth(struct log *log)
{
    struct log_append *start = NULL;
    bool refused = log->config.may_grow != NULL && !log->config.may_grow(log->config.context);
    bool full = log->config.may_fill != NULL && !log->config.may_fill(log->config.context);
    pthread_mutex_lock(&log->lock);
    bool changed = log->grow_refused != refused || log->fill_refused != full;
    log->grow_refused = refused;
    log->fill_refused = full;
    if (changed)
        log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

// ---- Cuts ----

static void cut_answer(struct loop_work *work)
{
    struct log_cut *cut = (struct log_cut *)((char *)work - offsetof(struct log_cut, work));
    cut->done(cut, cut->result);
}

static void cut_answer_locked(struct log *log, struct log_cut *cut, int result)
{
    cut->result = result;
    cut->work.run = cut_answer;
    loop_post(log->loops[0], &cut->work);
}

// For a cut that could not be made.
void log_cut_finish_locked(struct log *log, int result)
{
    struct log_cut *cut = log->cut;
    log->cut = NULL;
    if (cut != NULL)
        cut_answer_locked(log, cut, result);
}

// A cut is done when the image at the head of the new file is acknowledged: a sync then covers it.
void log_cut_advance_locked(struct log *log)
{
    struct log_cut *cut = log->cut_made;
    if (cut == NULL || (!log->broken && log->acknowledged_seq < cut->seq))
        return;
    log->cut_made = NULL;
    cut_answer_locked(log, cut, log->broken ? -ESTALE : 0);
}

void log_cut(struct log *log, struct log_cut *cut)
{
    struct log_append *start = NULL;
    cut->log = log;
    pthread_mutex_lock(&log->lock);
    log->cut = cut;
    if (log->failed != 0)
        log_cut_finish_locked(log, -ESTALE);
    else if (log->used_files >= log->budget_files)
        log_cut_finish_locked(log, -ENOSPC);
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

// Puts the image before everything that waits, then lets the queue go on.
static void rotate_finish(struct log *log, struct log_file *file, int result)
{
    struct log_append *images = NULL, *start = NULL;
    void *image = NULL;
    size_t size = 0;
    uint64_t image_count = 0;
    struct log_cut *cut = result == 0 ? log->cut : NULL; // both are loop 0's
    if (cut != NULL)
        cut->at(cut, log->next_file_number);
    if (result == 0) {
        log->config.image(log->config.context, &image, &size);
        result = log_image_appends(log, image, size, log->loops[0], &images);
        free(image);
    }
    pthread_mutex_lock(&log->lock);
    if (result == 0) {
        make_current_locked(log, file, log->rotate_path);
        struct log_append **tail = &images;
        for (; *tail != NULL; image_count++)
            tail = &(*tail)->next;
        if (log->queue == NULL)
            log->queue_tail = tail;
        *tail = log->queue;
        log->queue = images;
    } else {
        log_fail_locked(log, result);
        file->next = log->spares; // to be closed with the others
        log->spares = file;
        log->spare_files++;
        free(log->rotate_path);
    }
    log->rotation = ROTATION_IDLE;
    if (cut != NULL && result == 0) {
        cut->seq = log->next_seq + image_count - 1; // the images are placed next
        log->cut_made = cut;
        log->cut = NULL;
    }
    if (result < 0)
        log_cut_finish_locked(log, result);
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
    log_check_growth(log);
    log_kick_prepare(log);
    log_kick_retire(log);
}

static void rotate_renamed(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, rotate_op));
    rotate_finish(log, log->rotate_file, (int)result);
}

static void rotate_run(struct loop_work *work)
{
    struct log *log = (struct log *)((char *)work - offsetof(struct log, rotate_work));
    atomic_store(&log->rotate_posted, false);
    pthread_mutex_lock(&log->lock);
    bool ready = log->rotation == ROTATION_DRAIN && log->in_flight == NULL && log->undelivered == 0;
    struct log_file *file = ready && log->failed == 0 ? spare_take_locked(log) : NULL;
    uint64_t number = log->next_file_number;
    struct log_append *start = NULL;
    if (ready && log->failed != 0) {
        log->rotation = ROTATION_IDLE;
        log_cut_finish_locked(log, -ESTALE);
        log_pump_locked(log, &start);
    } else if (ready) {
        log->rotation = file != NULL ? ROTATION_RUN : ROTATION_SPARE;
    }
    bool stuck = ready && file == NULL && log->rotation == ROTATION_SPARE && !log->preparing &&
                 !log_can_prepare_locked(log);
    if (stuck) {
        log->rotation = ROTATION_IDLE; // admission refuses what cannot have room
        log_cut_finish_locked(log, -ENOSPC);
        log_pump_locked(log, &start);
    }
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
    if (file == NULL) {
        log_kick_prepare(log);
        return;
    }
    log->rotate_file = file;
    log->rotate_path = log_path(log->directory, "", number);
    log->rotate_op = (struct io_op){
            .code = IO_RENAME, .path = file->path, .path2 = log->rotate_path, .done = rotate_renamed};
    loop_submit(log->loops[0], &log->rotate_op);
}

void log_files_init(struct log *log)
{
    log->rotate_work.run = rotate_run;
    log->prepare_work.run = prepare_run;
    log_retire_init(log);
}
