// SPDX-License-Identifier: Apache-2.0
#include "snapshot/space.h"

#include "snapshot/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PIECE_BYTES = 1 << 20,
    SEAL_EXTRA_PARTS = 64,
    SEAL_EXTRA_BYTES = 64 * 1024,
    RESERVE_AMPLE = 4,
    RESERVE_MARGIN_PART = 4
};
static const uint64_t DEFAULT_RESERVE_BYTES = UINT64_C(64) << 20;
static const uint64_t MARGIN_BYTES = UINT64_C(1) << 20; // file systems count coarsely

static uint64_t free_bytes(struct store *store)
{
    struct loop *loop = store->loops[0];
    return loop->ops->free_bytes == NULL ? UINT64_MAX : loop->ops->free_bytes(loop, store->directory);
}

// A store with small log files is small.
uint64_t space_reserve_bytes(struct store *store)
{
    uint64_t reserve = store->config.reserve_bytes != 0 ? store->config.reserve_bytes : DEFAULT_RESERVE_BYTES;
    if (store->config.reserve_bytes == 0 && store->config.log_file_bytes < reserve)
        reserve = store->config.log_file_bytes;
    return (reserve + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
}

// What the store's files take, as far as the engine counts it itself: log files, segments, and the reserve
// whether it is there already or not.
static uint64_t counted_bytes(struct store *store)
{
    struct log_stat log;
    struct segments_stat segments;
    log_stat(store->log, &log);
    segments_stat(store->segments, &segments);
    return space_reserve_bytes(store) + log.used_bytes + log.spare_bytes + segments.file_bytes +
           segments.leaving_bytes;
}

static bool quota_has(struct store *store, uint64_t bytes)
{
    uint64_t quota = store->config.quota_bytes;
    return quota == 0 || counted_bytes(store) + bytes <= quota;
}

bool space_has(struct store *store, uint64_t bytes)
{
    uint64_t left = free_bytes(store);
    if (!quota_has(store, bytes))
        return false;
    return left >= MARGIN_BYTES && left - MARGIN_BYTES >= bytes;
}

// What sealing the log takes at most: its blocks, with fingerprints and frames, the nodes in memory, and what
// each new segment has besides.
static uint64_t seal_bytes(struct store *store, const struct log_stat *log)
{
    uint64_t blocks =
            log->live_refs * BLOCK_SIZE < log->used_bytes ? log->live_refs * BLOCK_SIZE : log->used_bytes;
    return blocks + blocks / SEAL_EXTRA_PARTS + atomic_load(&store->space.nodes) * BLOCK_SIZE +
           SEAL_EXTRA_BYTES;
}

bool space_may_fill(void *context)
{
    struct store *store = context;
    struct log_stat log;
    log_stat(store->log, &log);
    uint64_t sealed =
            seal_bytes(store, &log) + log.budget_bytes / log.budget_files; // of the file at hand as well
    return quota_has(store, sealed) && free_bytes(store) >= sealed;
}

bool space_may_grow(void *context)
{
    struct store *store = context;
    struct log_stat log;
    log_stat(store->log, &log);
    uint64_t file_bytes = log.budget_bytes / log.budget_files;
    uint64_t unsealed = seal_bytes(store, &log) + file_bytes; // what is written there will be sealed as well
    if (!quota_has(store, unsealed + file_bytes))
        return false;
    return free_bytes(store) >= space_reserve_bytes(store) + unsealed + file_bytes;
}

// ---- The reserve's file ----

static char *reserve_path(struct store *store)
{
    char *path = NULL;
    if (asprintf(&path, "%s/reserve", store->directory) < 0)
        abort();
    return path;
}

static bool release(struct task *task, struct store *store)
{
    char *path = reserve_path(store);
    struct io_op unlink = {.code = IO_UNLINK, .path = path};
    int64_t r = task_io(task, &unlink);
    free(path);
    store->checkpoint->reserve_made = false;
    return r >= 0;
}

bool space_reserve_spend(struct task *task, struct store *store)
{
    return store->checkpoint->spend_reserve && release(task, store);
}

// Bytes that no file system stores in less room than they take.
static void fill(uint8_t *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

static int write_reserve(struct task *task, struct store *store, int fd)
{
    uint64_t size = space_reserve_bytes(store);
    uint8_t *piece = io_buffer_alloc(PIECE_BYTES);
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < size; at += PIECE_BYTES) {
        fill(piece, PIECE_BYTES, at);
        r = task_stopping(task) ? -ECANCELED
                                : task_io_full(task, IO_WRITE, fd, piece,
                                          size - at < PIECE_BYTES ? size - at : PIECE_BYTES, at);
    }
    io_buffer_free(piece);
    struct io_op sync = {.code = IO_FDATASYNC, .fd = fd};
    return r < 0 ? r : (int)task_io(task, &sync);
}

static bool is_whole(struct task *task, struct store *store, int fd)
{
    uint8_t *block = io_buffer_alloc(BLOCK_SIZE);
    int r = task_io_full(task, IO_READ, fd, block, BLOCK_SIZE, space_reserve_bytes(store) - BLOCK_SIZE);
    io_buffer_free(block);
    return r == 0;
}

void space_reserve_make(struct task *task, struct store *store, bool collected)
{
    if (store->checkpoint->reserve_made || store->read_only || task_stopping(task))
        return;
    // What a collection gave back goes to the reserve first: the next deletion on a full disk needs it.
    uint64_t size = space_reserve_bytes(store), have = free_bytes(store);
    if (collected ? have < size + size / RESERVE_MARGIN_PART
                  : !space_may_grow(store) || have < RESERVE_AMPLE * size)
        return;
    char *path = reserve_path(store);
    struct io_op open = {.code = IO_OPEN, .path = path, .flags = O_RDWR | O_CREAT, .mode = 0600};
    int64_t fd = task_io(task, &open);
    int r = (int)fd;
    if (fd >= 0) {
        r = is_whole(task, store, (int)fd) ? 0 : write_reserve(task, store, (int)fd);
        struct io_op shut = {.code = IO_CLOSE, .fd = (int)fd};
        task_io(task, &shut);
    }
    store->checkpoint->reserve_made = r >= 0;
    if (r < 0 && fd >= 0)
        release(task, store); // half of it would only be in the way
    free(path);
}

// ---- After a collection ----

static void look_again(void *context)
{
    struct store *store = context;
    log_check_growth(store->log);
}

void space_clear(struct task *task, struct store *store)
{
    struct segments_stat stat;
    if (checkpoint_db_in_doubt(store->checkpoint->db)) // the next opening knows what the catalog names
        return;
    if (!store->checkpoint->files_leave || segments_collect_files(store->segments, task) < 0)
        return; // at the next chance
    segments_stat(store->segments, &stat);
    store->checkpoint->files_leave = stat.leaving_bytes > 0;
    task_call(task, store->loops[0], look_again, store);
}

// ---- Measuring ----

static uint64_t used_below(struct store *store, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", store->directory, name) < 0)
        abort();
    struct loop *loop = store->loops[0];
    uint64_t bytes = loop->ops->used_bytes(loop, path);
    free(path);
    return bytes;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void space_measure(struct store *store, struct space_use *ret_use)
{
    struct checkpoint *checkpoint = store->checkpoint;
    if (store->loops[0]->ops->used_bytes != NULL && loop_current() == NULL) {
        struct space_use use = {.log_bytes = used_below(store, "log"),
                .segment_bytes = used_below(store, "segments"),
                .catalog_bytes = used_below(store, "catalog")};
        use.other_bytes = less(used_below(store, "."), use.log_bytes + use.segment_bytes + use.catalog_bytes);
        pthread_mutex_lock(&store->lock);
        checkpoint->measured = use;
        pthread_mutex_unlock(&store->lock);
    }
    pthread_mutex_lock(&store->lock);
    *ret_use = checkpoint->measured;
    pthread_mutex_unlock(&store->lock);
}
