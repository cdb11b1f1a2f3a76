// SPDX-License-Identifier: Apache-2.0
// Creating, opening and closing a log. All of it drives loop 0 itself: no loop thread runs.
#include "blockstore/log_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static int check_config(const struct log_config *config, struct error *err)
{
    uint64_t blocks = config->file_bytes / BLOCK_SIZE;
    if (config->file_bytes % BLOCK_SIZE != 0 || blocks < 64 || blocks >= LOCATOR_LOG_BLOCKS_MAX)
        return error_set(err, -EINVAL,
                "log file size %llu is not a multiple of 4096 between 256 KiB and 64 GiB",
                (unsigned long long)config->file_bytes);
    if (config->budget_bytes / config->file_bytes < LOG_FILES_MIN)
        return error_set(err, -EINVAL,
                "log budget %llu is less than %d log files of %llu bytes; give a larger budget",
                (unsigned long long)config->budget_bytes, LOG_FILES_MIN,
                (unsigned long long)config->file_bytes);
    return 0;
}

static struct log *log_new(struct loop **loops, unsigned loop_count, const struct log_config *config)
{
    struct log *log = calloc(1, sizeof *log);
    if (log == NULL || log_state_init(log, loops, loop_count) < 0 ||
            (log->directory = strdup(config->directory)) == NULL)
        abort();
    log->config = *config;
    log->config.directory = log->directory;
    if (log->config.spare_files < 1)
        log->config.spare_files = 1;
    log->file_blocks = config->file_bytes / BLOCK_SIZE;
    uint64_t files = config->budget_bytes / config->file_bytes;
    log->budget_files = files < LOG_TABLE_SIZE / 2 ? (unsigned)files : LOG_TABLE_SIZE / 2;
    log_files_init(log);
    return log;
}

// Writes the first image into a prewritten file at `path` as file number 1.
static int write_first_image(struct log *log, struct loop *loop, const char *path, struct error *err)
{
    void *image = NULL;
    size_t size = 0;
    log->config.image(log->config.context, &image, &size);
    uint8_t *block = io_buffer_alloc(BLOCK_SIZE);
    struct record record = {.kind = RECORD_IMAGE,
            .file = 1,
            .seq = 1,
            .volume = 1,
            .body_bytes = (uint32_t)size,
            .parts = 1,
            .inline_body = image};
    loop->ops->random(loop, &record.incarnation, sizeof record.incarnation);
    int r = size <= record_inline_room(0, 0) ? 0 : -EFBIG;
    struct log_file file = {.fd = -1, .read_fd = -1};
    if (r == 0) {
        record_encode(&record, log->config.seed, block);
        r = log_file_open(loop, path, O_RDWR, &file);
    }
    if (r == 0)
        r = io_sync_full(loop, IO_WRITE, file.fd, block, BLOCK_SIZE, 0);
    struct io_op sync = {.code = IO_FDATASYNC, .fd = file.fd};
    if (r == 0)
        r = (int)io_sync(loop, &sync);
    log_close_fd(loop, file.fd);
    log_close_fd(loop, file.read_fd);
    io_buffer_free(block);
    free(image);
    return r < 0 ? error_set(err, r, "cannot write the first log record into %s: %s", path, strerror(-r)) : 0;
}

int log_create(struct loop *loop, const struct log_config *config, struct error *err)
{
    int r = check_config(config, err);
    if (r < 0)
        return r;
    struct log *log = log_new(&loop, 1, config);
    char *path = log_path(log->directory, "", 1);
    r = log_prewrite_sync(loop, path, config->file_bytes);
    if (r < 0)
        error_set(err, r, "cannot write the first log file %s (%llu bytes): %s", path,
                (unsigned long long)config->file_bytes, strerror(-r));
    if (r == 0)
        r = write_first_image(log, loop, path, err);
    if (r == 0 && (r = log_sync_dir(loop, log->directory)) < 0)
        error_set(err, r, "cannot sync %s: %s", log->directory, strerror(-r));
    free(path);
    log_abandon(log);
    return r;
}

struct open_wait {
    struct log_append append;
    struct log_sync sync;
    int result;
    bool finished;
};

static void open_appended(struct log_append *append, int result)
{
    struct open_wait *wait = (struct open_wait *)append;
    wait->result = result;
    wait->finished = true;
}

static void open_synced(struct log_sync *sync, int result)
{
    struct open_wait *wait = (struct open_wait *)((char *)sync - offsetof(struct open_wait, sync));
    wait->result = result;
    wait->finished = true;
}

static int drive(struct log *log, struct open_wait *wait)
{
    while (!wait->finished)
        if (log->loops[0]->ops->run_once(log->loops[0], true) < 0)
            return -EIO;
    wait->finished = false;
    return wait->result;
}

// The OPEN record starts a new incarnation behind what was recovered, and its sync makes all of that durable.
static int write_open_record(struct log *log, struct error *err)
{
    struct loop *loop = log->loops[0];
    log->previous_incarnation = log->incarnation;
    loop->ops->random(loop, &log->incarnation, sizeof log->incarnation);
    struct open_wait wait = {
            .append = {.loop = loop, .kind = RECORD_OPEN, .reserve = true, .done = open_appended},
            .sync = {.loop = loop, .done = open_synced}};
    log_append(log, &wait.append);
    int r = drive(log, &wait);
    if (r == 0) {
        log_sync(log, &wait.sync);
        r = drive(log, &wait);
    }
    if (r < 0)
        error_set(err, r, "cannot write to the log in %s: %s%s", log->directory, strerror(-r),
                r == -ENOSPC ? "; free space on its file system or give a larger log budget" : "");
    return r;
}

static void unlink_leftovers(struct log *log, char **paths)
{
    for (char **path = paths; path != NULL && *path != NULL; path++) {
        struct io_op op = {.code = IO_UNLINK, .path = *path};
        io_sync(log->loops[0], &op);
        free(*path);
    }
    free(paths);
}

static void close_files(struct log *log, struct log_file *list)
{
    for (struct log_file *file = list; file != NULL; file = file->next) {
        log_close_fd(log->loops[0], file->fd);
        log_close_fd(log->loops[0], file->read_fd);
    }
}

int log_open(struct loop **loops, unsigned loop_count, const struct log_config *config,
        const struct log_replay *replay, struct log **ret_log, struct error *err)
{
    int r = check_config(config, err);
    if (r < 0)
        return r;
    struct log *log = log_new(loops, loop_count, config);
    char **leftovers = NULL;
    *ret_log = log;
    log->recovering = true;
    log->read_only = replay->read_only;
    log->checkpoint_file = config->start_file;
    log->relief = config->pressure != NULL ? LOG_RELIEF_ALL : LOG_RELIEF_NONE;
    r = log_recover(log, replay, &leftovers, err);
    log->recovering = false;
    if (r < 0) {
        *ret_log = NULL;
        close_files(log, log->oldest);
        log_abandon(log);
        return r;
    }
    if (log->read_only) {
        log->failed = -EROFS;
        for (char **path = leftovers; *path != NULL; path++)
            free(*path);
        free(leftovers);
        return 0;
    }
    log->dir_dirty = true;
    bool claimed = log->durable_seq >= log->last_change_seq; // what counts is on record as durable
    r = write_open_record(log, err);
    if (r < 0) {
        *ret_log = NULL;
        for (char **path = leftovers; path != NULL && *path != NULL; path++)
            free(*path);
        free(leftovers);
        log_close(log);
        return r;
    }
    log->opened_seq = claimed ? log->next_seq : 0;
    unlink_leftovers(log, leftovers);
    log_check_growth(log);
    log_kick_prepare(log);
    log_kick_retire(log);
    return 0;
}

static bool quiet(struct log *log)
{
    pthread_mutex_lock(&log->lock);
    bool busy = log->in_flight != NULL || log->undelivered > 0 || log->preparing || log->retiring ||
                log->sync_running || log->sync_scheduled || log->rotation != ROTATION_IDLE ||
                atomic_load(&log->rotate_posted) || atomic_load(&log->prepare_posted) ||
                atomic_load(&log->retire_posted);
    for (unsigned i = 0; i < log->loop_count; i++)
        busy = busy || log->acks[i].scheduled;
    pthread_mutex_unlock(&log->lock);
    return !busy;
}

// A record that says that all before it was durable: without it, damage to what was synced last would look
// like a torn end. It repeats what is known (which file is the oldest); if it is lost, nothing is.
static void write_last_record(struct log *log, struct open_wait *wait)
{
    wait->append = (struct log_append){.loop = log->loops[0],
            .kind = RECORD_RETIRE,
            .reserve = true,
            .volume = log->oldest->number,
            .done = open_appended};
    log_append(log, &wait->append);
    if (drive(log, wait) < 0)
        return;
    log_sync(log, &wait->sync);
    drive(log, wait);
}

struct log *log_close(struct log *log)
{
    if (log == NULL)
        return NULL;
    pthread_mutex_lock(&log->lock);
    log->closing = true;
    pthread_mutex_unlock(&log->lock);
    while (!quiet(log))
        for (unsigned i = 0; i < log->loop_count; i++)
            log->loops[i]->ops->run_once(log->loops[i], false);
    struct open_wait wait = {.sync = {.loop = log->loops[0], .done = open_synced}};
    if (!log->read_only)
        log_sync(log, &wait.sync);
    if (!log->read_only && drive(log, &wait) == 0 &&
            log->next_seq != log->opened_seq) // a start without any change leaves no mark
        write_last_record(log, &wait);
    close_files(log, log->oldest);
    close_files(log, log->spares);
    return log_abandon(log);
}

static void free_files(struct log_file *list)
{
    for (struct log_file *file = list, *next; file != NULL; file = next) {
        next = file->next;
        log_file_free(file);
    }
}

struct log *log_abandon(struct log *log)
{
    if (log == NULL)
        return NULL;
    free_files(log->oldest);
    free_files(log->spares);
    free_files(log->graveyard);
    for (struct log_append *append = log->in_flight, *next; append != NULL; append = next) {
        next = append->next;
        if (append->header != NULL)
            io_buffer_free(append->header);
        if (append->kind == RECORD_IMAGE) {
            if (append->payload != NULL)
                io_buffer_free(append->payload);
            free(append);
        }
    }
    while (log->header_count > 0)
        io_buffer_free(log->header_pool[--log->header_count]);
    if (log->prepare.file != NULL)
        log_file_free(log->prepare.file);
    io_buffer_free(log->prepare.zeros);
    free(log->prepare.spare_path);
    free(log->sync_run.ops);
    free(log->hurry_volumes);
    free(log->header_pool);
    free(log->acks);
    free(log->loops);
    free(log->directory);
    pthread_mutex_destroy(&log->lock);
    free(log);
    return NULL;
}
