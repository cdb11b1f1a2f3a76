// SPDX-License-Identifier: Apache-2.0
// Making a lost, old or foreign catalog again (store_rebuild_catalog). The log has a copy of each
// checkpoint's rows behind it (ROOTS), and keeps every record since; segments describe themselves. So the
// newest whole copy and a scan of the segments make the rows; opening the store replays the rest, deletions
// too.
//
// Where something cannot be read, or the log is damaged where it counts, nothing is made: what cannot be seen
// must not pass for absent. The old catalog stays beside the new one.
#include "snapshot/offline.h"

#include "blockstore/log_check.h"
#include "snapshot/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLD_NAMES_MAX = 1000 };

struct rebuild {
    struct offline *offline;
    struct task *task;
    void (*note)(void *context, const char *sentence);
    void *context;
    struct error *err;
    // The copy of the rows that is being read, and the newest whole one:
    uint8_t *bytes;
    size_t size;
    uint32_t parts;
    struct checkpoint_rows roots;
    bool have_roots;
    int roots_error;
    // Damage to log files, by file:
    uint64_t newest_damaged_file;
    char log_damage[512], segment_damage[512];
    struct checkpoint_rows rows; // the result
    uint64_t next_segment;
    unsigned damaged_segments;
};

__attribute__((format(printf, 2, 3))) static void note(struct rebuild *self, const char *format, ...)
{
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    self->note(self->context, text);
}

// ---- The copy in the log ----

static void log_damaged(void *context, const struct log_damage *damage)
{
    struct rebuild *self = context;
    if (damage->leftover)
        return;
    note(self, "%s", damage->sentence);
    if (damage->file >= self->newest_damaged_file) {
        self->newest_damaged_file = damage->file;
        snprintf(self->log_damage, sizeof self->log_damage, "%s", damage->sentence);
    }
}

static int log_record(void *context, const struct record *record, const void *body)
{
    struct rebuild *self = context;
    if (record->kind != RECORD_ROOTS)
        return 0;
    if (record->part == 0)
        self->size = self->parts = 0;
    if (record->part != self->parts)
        return 0;
    self->bytes = realloc(self->bytes, self->size + record->body_bytes + 1);
    if (self->bytes == NULL)
        abort();
    memcpy(self->bytes + self->size, body, record->body_bytes);
    self->size += record->body_bytes;
    if (++self->parts < record->parts)
        return 0;
    struct checkpoint_rows rows;
    self->parts = UINT32_MAX; // taken
    int r = checkpoint_rows_decode(self->bytes, self->size, &rows);
    self->roots_error = r;
    if (r < 0)
        return 0;
    checkpoint_rows_free(&self->roots);
    self->roots = rows;
    self->have_roots = true;
    return 0;
}

static int find_roots(struct rebuild *self)
{
    const struct superblock *sb = &self->offline->superblock;
    char *directory = offline_path(self->offline, "log");
    struct log_check log = {.directory = directory,
            .file_bytes = sb->log_file_bytes,
            .seed = store_seed(sb->uuid),
            .durable_seq = self->offline->end_seq,
            .damaged = log_damaged,
            .record = log_record,
            .context = self};
    int r = log_check(self->task, &log, self->err);
    free(directory);
    if (r < 0)
        return r;
    if (self->roots_error < 0)
        return error_set(self->err, self->roots_error,
                "the newest copy of a checkpoint in the log cannot be used: %s",
                self->roots_error == -EPROTO ? "it was written by a newer version; use that one"
                                             : "it does not hold together");
    uint64_t start = self->have_roots ? self->roots.meta.start_file : 0;
    if (self->log_damage[0] != 0 && self->newest_damaged_file >= start)
        return error_set(self->err, -EBADMSG,
                "the log is damaged where it counts, so no catalog is made: %s; restore that file from a "
                "copy",
                self->log_damage);
    if (!self->have_roots && log.oldest != 1)
        return error_set(self->err, -EBADMSG,
                "log files before %08" PRIu64
                " have retired, but the log holds no copy of a checkpoint: there is "
                "nothing to make the catalog from",
                log.oldest);
    if (self->have_roots)
        note(self, "the log holds checkpoint %" PRIu64 ": its records count from log file %08" PRIu64 " on",
                self->roots.meta.count, start);
    else
        note(self, "the log holds every record since the store was made; there has been no checkpoint");
    return 0;
}

// ---- Segments ----

static void segment_found(void *context, const struct segment_row *row)
{
    struct rebuild *self = context;
    checkpoint_rows_add_segment(&self->rows, row);
    if (row->number >= self->next_segment)
        self->next_segment = row->number + 1;
}

static void segment_damaged(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    struct rebuild *self = context;
    note(self, "%s", sentence);
    self->damaged_segments++;
    snprintf(self->segment_damage, sizeof self->segment_damage, "%s", sentence);
    if (number >= self->next_segment)
        self->next_segment = number + 1;
}

static bool has_segment(const struct checkpoint_rows *rows, size_t count, uint64_t number)
{
    for (size_t low = 0, high = count; low < high;) { // the scan goes up
        size_t middle = (low + high) / 2;
        if (rows->segments[middle].number == number)
            return true;
        if (rows->segments[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

struct presence {
    uint64_t number;
    bool there;
};

static void look_for(void *context, const char *name)
{
    struct presence *presence = context;
    char *end;
    uint64_t number = strtoull(name, &end, 10);
    presence->there = presence->there || (end != name && *end == '.' && number == presence->number);
}

// Segments of the copy that the scan did not give: collected since, or damaged, or lost.
static int add_missing(struct rebuild *self)
{
    size_t scanned = self->rows.segment_count;
    char *directory = offline_path(self->offline, "segments");
    struct loop *loop = self->offline->loop;
    int r = 0;
    for (size_t i = 0; r == 0 && i < self->roots.segment_count; i++) {
        const struct segment_row *row = &self->roots.segments[i];
        struct presence presence = {.number = row->number};
        if (has_segment(&self->rows, scanned, row->number))
            continue;
        r = loop->ops->list_dir(loop, directory, look_for, &presence);
        if (presence.there) { // its readers get errors
            checkpoint_rows_add_segment(&self->rows, row);
            note(self,
                    "segment %" PRIu64
                    " is damaged as a whole; it stays in the catalog, its blocks cannot be "
                    "read",
                    row->number);
        } else {
            note(self,
                    "segment %" PRIu64
                    " is not there: collected since, or lost; a check tells whether something "
                    "needs it",
                    row->number);
        }
    }
    free(directory);
    return r < 0 ? error_set(self->err, r, "cannot list the segments: %s", strerror(-r)) : 0;
}

static int scan(struct rebuild *self)
{
    int r = segments_scan(self->offline->segments, self->task, segment_found, segment_damaged, self);
    if (r < 0)
        return error_set(self->err, r, "not every segment can be read, so no catalog is made: %s",
                self->segment_damage[0] != 0 ? self->segment_damage : strerror(-r));
    note(self, "%zu segments were found", self->rows.segment_count);
    return add_missing(self);
}

// ---- Writing ----

static int commit(struct rebuild *self, const char *directory)
{
    struct checkpoint_db *db;
    int r = checkpoint_db_open(self->offline->loop, directory, false, 0, &db, self->err);
    if (r < 0)
        return r;
    r = checkpoint_rows_commit(db, &self->rows, self->err);
    checkpoint_db_close(db);
    return r;
}

static void compose(struct rebuild *self)
{
    const struct superblock *sb = &self->offline->superblock;
    if (!self->have_roots) { // what the log tells needs no segment
        checkpoint_rows_free(&self->rows);
        return;
    }
    self->rows.meta = self->roots.meta;
    memcpy(self->rows.meta.uuid, sb->uuid, sizeof self->rows.meta.uuid);
    if (self->rows.meta.next_segment < self->next_segment)
        self->rows.meta.next_segment = self->next_segment;
    for (size_t i = 0; i < self->roots.root_count; i++)
        checkpoint_rows_add_root(&self->rows, &self->roots.roots[i]);
}

// What an earlier attempt left.
static void remove_name(void *context, const char *name)
{
    void **pair = context;
    char *path = NULL;
    if (asprintf(&path, "%s/%s", (const char *)pair[1], name) < 0)
        abort();
    struct io_op op = {.code = IO_UNLINK, .path = path};
    task_io(pair[0], &op);
    free(path);
}

static int rename_path(struct rebuild *self, const char *from, const char *to)
{
    struct io_op op = {.code = IO_RENAME, .path = from, .path2 = to};
    return (int)task_io(self->task, &op);
}

static void count_names(void *context, const char *name)
{
    (*(unsigned *)context)++;
}

// The name for the old catalog: a free one.
static char *old_name(struct rebuild *self)
{
    struct loop *loop = self->offline->loop;
    for (unsigned i = 0; i < OLD_NAMES_MAX; i++) {
        char name[40];
        unsigned count = 0;
        snprintf(name, sizeof name, i == 0 ? "catalog.old" : "catalog.old.%u", i);
        char *path = offline_path(self->offline, name);
        if (loop->ops->list_dir(loop, path, count_names, &count) == -ENOENT)
            return path;
        free(path);
    }
    return NULL;
}

static int swap(struct rebuild *self, const char *made)
{
    char *place = offline_path(self->offline, "catalog"), *old = old_name(self);
    if (old == NULL) {
        free(place);
        return error_set(self->err, -EEXIST, "%s holds very many old catalogs; remove some (catalog.old*)",
                self->offline->directory);
    }
    int r = rename_path(self, place, old);
    if (r == 0)
        note(self, "the old catalog is kept as %s", old);
    if (r == -ENOENT)
        r = 0;
    if (r == 0)
        r = rename_path(self, made, place);
    struct io_op sync = {.code = IO_FSYNC_DIR, .path = self->offline->directory};
    if (r == 0)
        r = (int)task_io(self->task, &sync);
    if (r < 0)
        error_set(self->err, r, "cannot put %s into its place: %s", made, strerror(-r));
    free(place);
    free(old);
    return r;
}

static int run(struct task *task, void *context)
{
    struct rebuild *self = context;
    self->task = task;
    int r = find_roots(self);
    if (r == 0)
        r = scan(self);
    if (r < 0)
        return r;
    compose(self);
    char *made = offline_path(self->offline, "catalog.new");
    void *pair[2] = {task, made};
    self->offline->loop->ops->list_dir(self->offline->loop, made, remove_name, pair);
    r = commit(self, made);
    if (r == 0)
        r = swap(self, made);
    if (r == 0)
        note(self, "the new catalog holds %zu roots and %zu segments; open the store, then check it",
                self->rows.root_count, self->rows.segment_count);
    free(made);
    return r;
}

int store_rebuild_catalog(struct loop *loop, const char *directory,
        void (*note_callback)(void *context, const char *sentence), void *context, struct error *err)
{
    struct offline offline;
    int r = offline_open(loop, directory, true, &offline, err);
    if (r < 0)
        return r;
    struct rebuild self = {
            .offline = &offline, .note = note_callback, .context = context, .err = err, .next_segment = 1};
    if (offline.has_superblock)
        r = offline_run(&offline, run, &self);
    else
        r = err != NULL && err->code < 0 ? err->code : -EBADMSG;
    checkpoint_rows_free(&self.roots);
    checkpoint_rows_free(&self.rows);
    free(self.bytes);
    offline_close(&offline);
    return r;
}
