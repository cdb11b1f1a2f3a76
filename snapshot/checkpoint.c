// SPDX-License-Identifier: Apache-2.0
// One checkpoint from cut to retired log files, and what recovery reads of it.
#include "snapshot/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARED_FILES = 4, ROOTS_TRIES = 100 };
static const uint64_t ROOTS_WAIT_NS = UINT64_C(10) * 1000 * 1000;

// ---- Opening ----

static int open_db(struct store *store, const char *directory, struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    int r = checkpoint_db_open(store->loops[0], directory, store->read_only, store->config.catalog_map_bytes,
            &checkpoint->db, err);
    if (r == -ENOENT && store->read_only)
        return 0;
    return r < 0 ? r : checkpoint_rows_read(checkpoint->db, &checkpoint->rows, err);
}

int checkpoint_open(struct store *store, struct error *err)
{
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    char *directory = NULL;
    if (checkpoint == NULL || asprintf(&directory, "%s/catalog", store->directory) < 0)
        abort();
    store->checkpoint = checkpoint;
    int r = open_db(store, directory, err);
    free(directory);
    if (r < 0)
        return r;
    for (size_t i = 0; i < checkpoint->rows.segment_count; i++)
        segments_add(store->segments, &checkpoint->rows.segments[i]);
    if (checkpoint->rows.meta.next_segment == 0)
        checkpoint->rows.meta.next_segment = 1;
    store->cut_file = checkpoint->rows.meta.start_file;
    if (store->cut_file != 0 && memcmp(checkpoint->rows.meta.uuid, store->uuid, sizeof store->uuid) != 0)
        return error_set(err, -EBADMSG,
                "the catalog in %s/catalog is that of another store; put its own back, or run 'ramet store "
                "check "
                "--rebuild-catalog'",
                store->directory);
    return 0;
}

// Every checkpoint leaves a copy of its rows in the log after it was committed. So a newer one there says
// that the catalog is an older copy, or was lost: what it would lead to are other trees than the store had.
int checkpoint_roots_record(void *context, const void *bytes, size_t size, struct error *err)
{
    struct store *store = context;
    struct checkpoint_rows rows;
    uint64_t count = store->checkpoint->rows.meta.count;
    int r = checkpoint_rows_decode(bytes, size, &rows);
    if (r < 0)
        return error_set(err, r, "the copy of a checkpoint in the log in %s/log cannot be read%s",
                store->directory, r == -EPROTO ? ": it was written by a newer version; use that one" : "");
    if (rows.meta.count > count)
        r = error_set(err, -EBADMSG,
                "the catalog in %s/catalog is %s: it holds checkpoint %" PRIu64 ", the log speaks of %" PRIu64
                "; put the right one back, or run 'ramet store check --rebuild-catalog'",
                store->directory, count == 0 ? "missing or new" : "an older copy", count, rows.meta.count);
    checkpoint_rows_free(&rows);
    return r;
}

// ---- Files that nothing names ----

struct seen_files {
    struct checkpoint_rows *rows;
    uint8_t *seen; // per row: 1 = its file is there, 2 = only another generation of it
};

static void see_file(void *context, const char *name)
{
    struct seen_files *files = context;
    struct checkpoint_rows *rows = files->rows;
    char *end;
    uint64_t number = strtoull(name, &end, 10);
    uint64_t generation = *end == '.' ? strtoull(end + 1, &end, 10) : 0;
    size_t low = 0, high = rows->segment_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (rows->segments[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == rows->segment_count || rows->segments[low].number != number || generation == 0 || *end != 0)
        return;
    if (rows->segments[low].generation == generation)
        files->seen[low] = 1;
    else if (files->seen[low] == 0)
        files->seen[low] = 2;
}

// Where a segment of the catalog is missing, what else lies there may be what is left of it: nothing goes.
int checkpoint_clear_files(struct store *store, struct error *err)
{
    struct checkpoint_rows *rows = &store->checkpoint->rows;
    struct loop *loop = store->loops[0];
    struct seen_files files = {.rows = rows, .seen = calloc(rows->segment_count + 1, 1)};
    char *directory = NULL;
    if (files.seen == NULL || asprintf(&directory, "%s/segments", store->directory) < 0)
        abort();
    int r = loop->ops->list_dir(loop, directory, see_file, &files);
    if (r < 0)
        error_set(err, r, "cannot list %s: %s", directory, strerror(-r));
    bool whole = true;
    for (size_t i = 0; r == 0 && i < rows->segment_count; i++) {
        whole = whole && files.seen[i] == 1;
        if (files.seen[i] == 2)
            r = error_set(err, -EBADMSG,
                    "segment %" PRIu64
                    " in %s is there in another generation than the catalog says (%u): the "
                    "catalog is an older copy, or the segment's file was put back; put the right one back, "
                    "or "
                    "run 'ramet store check --rebuild-catalog'",
                    rows->segments[i].number, directory, rows->segments[i].generation);
    }
    free(files.seen);
    free(directory);
    return r == 0 && whole ? segments_collect_files_at_start(store->segments, loop, err) : r;
}

void checkpoint_close(struct store *store)
{
    struct checkpoint *checkpoint = store->checkpoint;
    if (checkpoint == NULL)
        return;
    cut_free(store, checkpoint->cut);
    collect_close(store);
    checkpoint_db_close(checkpoint->db);
    checkpoint_rows_free(&checkpoint->rows);
    free(checkpoint);
    store->checkpoint = NULL;
}

bool checkpoint_root(struct store *store, enum checkpoint_kind kind, uint64_t id, uint64_t size_bytes,
        struct tree *ret_tree)
{
    const struct checkpoint_rows *rows = &store->checkpoint->rows;
    struct tree empty = tree_empty(volume_blocks_of(size_bytes));
    if (rows->meta.start_file == 0) {
        *ret_tree = empty;
        return true;
    }
    const struct checkpoint_root *row = checkpoint_rows_find(rows, kind, id);
    if (row == NULL || row->height < empty.height)
        return false;
    *ret_tree = (struct tree){.root = row->root, .height = row->height};
    return true;
}

locator_t checkpoint_blob(struct store *store, uint64_t id, locator_t in_image)
{
    const struct checkpoint_root *row = checkpoint_rows_find(&store->checkpoint->rows, CHECKPOINT_DOC, id);
    if (row != NULL)
        return row->root;
    bool there = store->space.log == NULL || log_holds(store->space.log, in_image);
    return in_image != 0 && there ? in_image : 0;
}

// ---- Rows ----

uint64_t checkpoint_new_segment_number(struct store *store)
{
    return store->checkpoint->rows.meta.next_segment++;
}

int checkpoint_commit_rows(struct store *store, struct checkpoint_rows *rows, struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    memcpy(rows->meta.uuid, store->uuid, sizeof rows->meta.uuid);
    rows->meta.wall_ns = store->loops[0]->ops->wall_ns(store->loops[0]);
    int r = checkpoint_rows_commit(checkpoint->db, rows, err);
    if (r < 0)
        return r;
    checkpoint_rows_free(&checkpoint->rows);
    checkpoint->rows = *rows;
    *rows = (struct checkpoint_rows){0};
    return 0;
}

static struct checkpoint_rows compose(
        struct store *store, const struct cut *cut, const struct seal_result *sealed)
{
    const struct checkpoint_rows *before = &store->checkpoint->rows;
    struct checkpoint_rows rows = {.meta = before->meta};
    rows.meta.start_file = cut->file;
    rows.meta.count++;
    for (size_t i = 0; i < before->segment_count; i++)
        checkpoint_rows_add_segment(&rows, &before->segments[i]);
    for (size_t i = 0; i < sealed->segment_count; i++)
        checkpoint_rows_add_segment(&rows, &sealed->segments[i]);
    for (size_t i = 0; i < cut->count; i++)
        if (cut->roots[i].lasting)
            checkpoint_rows_add_root(&rows, &cut->roots[i].row);
    return rows;
}

// ---- The log's part ----

struct log_wait {
    struct store *store;
    struct task_event event;
    struct log_append append;
    struct log_sync sync;
};

static void append_done(struct log_append *append, int result)
{
    task_event_set(&((struct log_wait *)((char *)append - offsetof(struct log_wait, append)))->event, result);
}

static void sync_done(struct log_sync *sync, int result)
{
    task_event_set(&((struct log_wait *)((char *)sync - offsetof(struct log_wait, sync)))->event, result);
}

static void append_start(void *context)
{
    struct log_wait *wait = context;
    log_append(wait->store->log, &wait->append);
}

static void sync_start(void *context)
{
    struct log_wait *wait = context;
    log_sync(wait->store->log, &wait->sync);
}

static int sync_log(struct task *task, struct store *store)
{
    struct log_wait wait = {.store = store, .sync = {.loop = store->loops[0], .done = sync_done}};
    task_event_init(task, &wait.event);
    task_call(task, store->loops[0], sync_start, &wait);
    return (int)task_wait(task, &wait.event);
}

// The rows once more, in the log: with it and the segments a lost catalog can be made again.
static int append_roots(struct task *task, struct store *store)
{
    void *bytes;
    size_t size;
    checkpoint_rows_encode(&store->checkpoint->rows, &bytes, &size);
    size_t part_bytes = (size_t)log_payload_max(store->log) * BLOCK_SIZE;
    uint32_t parts = (uint32_t)((size + part_bytes - 1) / part_bytes);
    uint8_t *payload = io_buffer_alloc(part_bytes);
    int r = 0;
    for (uint32_t part = 0; r == 0 && part < parts; part++) {
        size_t at = part * part_bytes, n = size - at < part_bytes ? size - at : part_bytes;
        uint32_t blocks = (uint32_t)((n + BLOCK_SIZE - 1) / BLOCK_SIZE);
        memset(payload, 0, (size_t)blocks * BLOCK_SIZE);
        memcpy(payload, (const uint8_t *)bytes + at, n);
        struct log_wait wait = {.store = store,
                .append = {.loop = store->loops[0],
                        .kind = RECORD_ROOTS,
                        .reserve = true,
                        .payload = payload,
                        .payload_blocks = blocks,
                        .body_bytes = (uint32_t)n,
                        .body_blocks = blocks,
                        .part = part,
                        .parts = parts,
                        .done = append_done}};
        task_event_init(task, &wait.event);
        task_call(task, store->loops[0], append_start, &wait);
        r = (int)task_wait(task, &wait.event);
    }
    io_buffer_free(payload);
    free(bytes);
    if (r == 0)
        store->checkpoint->roots_logged = store->checkpoint->rows.meta.count;
    return r;
}

int checkpoint_secure_roots(struct task *task, struct store *store, uint64_t count, struct error *err)
{
    int r = store->checkpoint->roots_logged < count ? append_roots(task, store) : 0;
    if (r == 0)
        r = sync_log(task, store);
    return r < 0 ? error_set(err, r, "cannot copy the catalog into the log in %s: %s", store->directory,
                           strerror(-r))
                 : 0;
}

// ---- One checkpoint ----

// Everything that had to be durable is: from here on the rows count, whatever happens.
static void after_commit(struct task *task, struct store *store, struct cut *cut, struct seal_result *sealed)
{
    struct checkpoint *checkpoint = store->checkpoint;
    for (size_t i = 0; i < sealed->segment_count; i++)
        segments_add(store->segments, &sealed->segments[i]);
    patch_live(task, store, cut);
    checkpoint->cut = NULL;
    uint64_t file = cut->file;
    cut_free(store, cut);
    for (size_t i = 0; i < sealed->published_count; i++)
        fingerprint_index_put(
                store->fingerprints, sealed->published[i].fingerprint, sealed->published[i].locator);
    checkpoint->checkpoints++;
    checkpoint->sealed_blocks += sealed->blocks;
    checkpoint->dedup_hits += sealed->dedup_hits;
    checkpoint->zero_blocks += sealed->zero_blocks;
    int r = append_roots(task, store);
    log_retire_before(store->log, file);
    for (int i = 0; r == -ENOSPC && i < ROOTS_TRIES && task_sleep(task, ROOTS_WAIT_NS) == 0; i++)
        r = append_roots(task, store); // the last file was full: the files that retire now make room
}

static int commit(struct task *task, struct store *store, struct cut *cut, struct seal_result *sealed,
        struct error *err)
{
    int r = sync_log(task, store);
    if (r < 0)
        return error_set(err, r, "cannot sync the log in %s: %s", store->directory, strerror(-r));
    struct checkpoint_rows rows = compose(store, cut, sealed);
    r = checkpoint_commit_rows(store, &rows, err);
    checkpoint_rows_free(&rows);
    return r;
}

// Files that have been sealed already may be about to retire: a cut can wait for that.
static int take_cut(struct task *task, struct store *store, struct cut **ret_cut)
{
    int r = cut_take(task, store, ret_cut);
    for (int i = 0; r == -ENOSPC && i < ROOTS_TRIES; i++) {
        struct log_stat stat;
        log_stat(store->log, &stat);
        if (stat.oldest_file >= stat.checkpoint_file || task_sleep(task, ROOTS_WAIT_NS) < 0)
            break;
        r = cut_take(task, store, ret_cut);
    }
    return r;
}

// A cut that could not be sealed also holds what has been deleted since, and needs room for it. While the log
// has files to spare, a new cut takes its place; each costs one.
static void renew_cut(struct task *task, struct store *store)
{
    struct checkpoint *checkpoint = store->checkpoint;
    struct cut *fresh;
    struct log_stat stat;
    log_stat(store->log, &stat);
    if (stat.used_files + SPARED_FILES > stat.budget_files ||
            stat.spare_bytes / (stat.budget_bytes / stat.budget_files) < SPARED_FILES - 1 ||
            cut_take(task, store, &fresh) < 0)
        return;
    cut_grace(task, store);
    cut_free(store, checkpoint->cut);
    checkpoint->cut = fresh;
}

static int run_once(struct task *task, struct store *store, struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    struct seal_result sealed;
    int r = 0;
    if (checkpoint->cut != NULL)
        renew_cut(task, store);
    if (checkpoint->cut == NULL && (r = take_cut(task, store, &checkpoint->cut)) < 0)
        return error_set(err, r, "cannot begin a checkpoint of %s: %s%s", store->directory, strerror(-r),
                r == -ENOSPC ? "; the log has no file left" : "");
    struct cut *cut = checkpoint->cut;
    r = seal_cut(task, store, cut, &sealed, err);
    if (r < 0) {
        checkpoint->files_leave = true;
        return r;
    }
    r = commit(task, store, cut, &sealed, err);
    if (r < 0) {
        checkpoint->files_leave = true;
        seal_undo(store, cut, &sealed);
        return r;
    }
    after_commit(task, store, cut, &sealed);
    seal_result_free(&sealed);
    return 0;
}

int checkpoint_run(struct task *task, struct store *store, struct error *err)
{
    bool earlier = store->checkpoint->cut != NULL; // that one does not hold what came since
    int r = run_once(task, store, err);
    if (r == -ENOSPC) {
        space_clear(task, store); // what this one wrote, before the next one needs the room
        if (space_reserve_spend(task, store))
            r = run_once(task, store, err);
    }
    if (r == 0 && earlier)
        r = run_once(task, store, err);
    space_clear(task, store);
    if (r == 0)
        space_reserve_make(task, store, false);
    return r;
}
