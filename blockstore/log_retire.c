// SPDX-License-Identifier: Apache-2.0
// Retirement: the oldest files, when nothing refers to them. What made them dead must be durable before they
// are written over or unlinked: a RETIRE record is the last of it. Runs on loop 0.
#include "blockstore/log_private.h"

#include <errno.h>
#include <stdlib.h>

enum {
    KEEP_FACTOR = 2
}; // times the spares that are kept ready: rewriting in place recycles without new files

static bool file_unused(struct log *log, struct log_file *file)
{
    return file != log->current && file->number < log->checkpoint_file && atomic_load(&file->refs) == 0 &&
           atomic_load(&file->pins) == 0;
}

static bool can_retire_locked(struct log *log)
{
    return !log->closing && !log->recovering && log->failed == 0 && file_unused(log, log->oldest);
}

// A file that only reads in flight hold back will retire soon.
bool log_retire_expected_locked(struct log *log)
{
    bool dead = log->oldest != log->current && log->oldest->number < log->checkpoint_file &&
                atomic_load(&log->oldest->refs) == 0;
    return log->retiring || (dead && !log->closing && !log->retire_blocked);
}

void log_retire_before(struct log *log, uint64_t file)
{
    pthread_mutex_lock(&log->lock);
    if (file > log->checkpoint_file)
        log->checkpoint_file = file;
    log->retire_blocked = false;
    pthread_mutex_unlock(&log->lock);
    log_kick_retire(log);
}

void log_set_relief(struct log *log, enum log_relief expected)
{
    struct log_append *start = NULL;
    pthread_mutex_lock(&log->lock);
    log->relief = expected;
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

void log_kick_retire(struct log *log)
{
    log_kick(log, &log->retire_posted, &log->retire_work);
}

static void retire_next(struct log *log);

static void retire_stop(struct log *log)
{
    struct log_append *start = NULL;
    pthread_mutex_lock(&log->lock);
    log->retiring = false;
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

// Takes the oldest file out of the log; it is durable that it does not count any more.
static struct log_file *take_oldest_locked(struct log *log)
{
    struct log_file *file = log->oldest;
    log->oldest = file->next;
    log->used_files--;
    atomic_store(&log->table[file->number % LOG_TABLE_SIZE], NULL);
    free(file->path);
    file->path = NULL;
    file->number = 0;
    file->dirty = false;
    return file;
}

static void retire_go_on(struct log *log)
{
    struct log_append *start = NULL;
    pthread_mutex_lock(&log->lock);
    if (log->rotation == ROTATION_SPARE)
        log->rotation = ROTATION_IDLE;
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
    retire_next(log);
}

static void retire_renamed(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, retire_op));
    pthread_mutex_lock(&log->lock);
    if (result < 0)
        log_fail_locked(log, (int)result); // the file keeps its old name: recovery takes it for retired
    struct log_file *file = take_oldest_locked(log);
    file->path = log->retire_path;
    file->next = log->spares;
    log->spares = file;
    log->spare_files++;
    pthread_mutex_unlock(&log->lock);
    retire_go_on(log);
}

// More files than are kept as spares go back to the file system. The structure stays until the log is closed:
// another thread may be about to look at its counts.
static void retire_unlinked(struct io_op *op, int64_t result)
{
    struct log *log = (struct log *)((char *)op - offsetof(struct log, retire_op));
    int fd = -1;
    pthread_mutex_lock(&log->lock);
    if (op->code == IO_UNLINK) {
        if (result < 0)
            log_fail_locked(log, (int)result);
        struct log_file *file = take_oldest_locked(log);
        free(file->sums);
        file->sums = NULL;
        file->next = log->graveyard;
        log->graveyard = file;
    }
    if (log->graveyard->fd >= 0) {
        fd = log->graveyard->fd;
        log->graveyard->fd = -1;
    } else if (log->graveyard->read_fd >= 0) {
        fd = log->graveyard->read_fd;
        log->graveyard->read_fd = -1;
    }
    pthread_mutex_unlock(&log->lock);
    if (fd < 0) {
        retire_go_on(log);
        return;
    }
    log->retire_op = (struct io_op){.code = IO_CLOSE, .fd = fd, .done = retire_unlinked};
    loop_submit(log->loops[0], &log->retire_op);
}

static void retire_next(struct log *log)
{
    pthread_mutex_lock(&log->lock);
    struct log_file *file = log->oldest;
    bool more = file->number < log->retire_to && file_unused(log, file) && log->failed == 0;
    bool keep = log->spare_files < log->config.spare_files * KEEP_FACTOR;
    uint64_t number = log->next_spare_number;
    log->next_spare_number += more && keep ? 1 : 0;
    pthread_mutex_unlock(&log->lock);
    if (!more) {
        retire_stop(log);
        return;
    }
    if (keep) {
        log->retire_path = log_path(log->directory, "spare.", number);
        log->retire_op = (struct io_op){
                .code = IO_RENAME, .path = file->path, .path2 = log->retire_path, .done = retire_renamed};
    } else {
        log->retire_op = (struct io_op){.code = IO_UNLINK, .path = file->path, .done = retire_unlinked};
    }
    loop_submit(log->loops[0], &log->retire_op);
}

static void retire_synced(struct log_sync *sync, int result)
{
    struct log *log = (struct log *)((char *)sync - offsetof(struct log, retire_sync));
    if (result < 0)
        retire_stop(log);
    else
        retire_next(log);
}

static void retire_logged(struct log_append *append, int result)
{
    struct log *log = (struct log *)((char *)append - offsetof(struct log, retire_append));
    if (result < 0) {
        pthread_mutex_lock(&log->lock);
        log->retire_blocked = result == -ENOSPC;
        pthread_mutex_unlock(&log->lock);
        retire_stop(log);
        return;
    }
    log->retire_sync = (struct log_sync){.loop = log->loops[0], .done = retire_synced};
    log_sync(log, &log->retire_sync);
}

// What made the files dead must be durable before they are written over: the RETIRE record is the last of it.
static void retire_run(struct loop_work *work)
{
    struct log *log = (struct log *)((char *)work - offsetof(struct log, retire_work));
    atomic_store(&log->retire_posted, false);
    pthread_mutex_lock(&log->lock);
    bool go = !log->retiring && can_retire_locked(log);
    if (go) {
        struct log_file *file = log->oldest;
        while (file_unused(log, file))
            file = file->next;
        log->retire_to = file->number;
        log->retiring = true;
    }
    pthread_mutex_unlock(&log->lock);
    if (!go)
        return;
    log->retire_append = (struct log_append){.loop = log->loops[0],
            .kind = RECORD_RETIRE,
            .reserve = true,
            .volume = log->retire_to,
            .done = retire_logged};
    log_append_first(log, &log->retire_append);
}

void log_retire_init(struct log *log)
{
    log->retire_work.run = retire_run;
}
