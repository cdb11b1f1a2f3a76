// SPDX-License-Identifier: Apache-2.0
// Looking at the files of a store that cannot be opened (store_check_files): what is wrong with each, as far
// as it can be seen without trees.
#include "snapshot/offline.h"

#include "blockstore/log_check.h"
#include "snapshot/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file_check {
    struct offline *offline;
    struct task *task;
    void (*damaged)(void *context, const char *sentence);
    void *context;
    struct store_check_result *result;
    struct error *err;
    struct checkpoint_rows rows;
    bool have_rows;
    uint8_t *roots; // of the copy in the log that is being read
    size_t roots_size;
    uint64_t newest_copy; // of a checkpoint
};

__attribute__((format(printf, 2, 3))) static void found(struct file_check *self, const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    self->result->damages++;
    self->damaged(self->context, text);
}

static void superblock_found(void *context, const char *sentence)
{
    found(context, "%s", sentence);
}

// ---- The catalog ----

static void check_catalog(struct file_check *self)
{
    struct checkpoint_db *db = NULL;
    struct error err = {0};
    char *directory = offline_path(self->offline, "catalog");
    int r = checkpoint_db_open(self->offline->loop, directory, true, 0, &db, &err);
    if (r == 0)
        r = checkpoint_rows_read(db, &self->rows, &err);
    checkpoint_db_close(db);
    free(directory);
    self->have_rows = r == 0;
    if (r < 0 && r != -ENOENT)
        found(self, "%s", err.text);
    if (r == 0 && self->rows.meta.start_file != 0 &&
            memcmp(self->rows.meta.uuid, self->offline->superblock.uuid, sizeof self->rows.meta.uuid) != 0) {
        found(self, "catalog: it is that of another store; put its own back, or run 'ramet store check "
                    "--rebuild-catalog'");
        self->have_rows = false;
        checkpoint_rows_free(&self->rows);
    }
}

// ---- The log ----

static void log_found(void *context, const struct log_damage *damage)
{
    struct file_check *self = context;
    if (!damage->leftover) {
        found(self, "%s", damage->sentence);
        return;
    }
    self->result->leftovers++;
    self->damaged(self->context, damage->sentence);
}

static int log_record(void *context, const struct record *record, const void *body)
{
    struct file_check *self = context;
    struct checkpoint_rows rows;
    if (record->kind != RECORD_ROOTS)
        return 0;
    if (record->part == 0)
        self->roots_size = 0;
    self->roots = realloc(self->roots, self->roots_size + record->body_bytes + 1);
    if (self->roots == NULL)
        abort();
    memcpy(self->roots + self->roots_size, body, record->body_bytes);
    self->roots_size += record->body_bytes;
    if (record->part + 1 < record->parts || checkpoint_rows_decode(self->roots, self->roots_size, &rows) < 0)
        return 0;
    if (rows.meta.count > self->newest_copy)
        self->newest_copy = rows.meta.count;
    checkpoint_rows_free(&rows);
    return 0;
}

static int check_log(struct file_check *self)
{
    const struct superblock *sb = &self->offline->superblock;
    char *directory = offline_path(self->offline, "log");
    struct log_check log = {.directory = directory,
            .file_bytes = sb->log_file_bytes,
            .seed = store_seed(sb->uuid),
            .start_file = self->rows.meta.start_file,
            .durable_seq = self->offline->end_seq,
            .damaged = log_found,
            .record = log_record,
            .context = self};
    int r = log_check(self->task, &log, self->err);
    self->result->log_records = log.records;
    free(directory);
    if (r == 0 && self->newest_copy > self->rows.meta.count)
        found(self,
                "catalog: it is %s: the log speaks of checkpoint %" PRIu64 "; put the right one back, or run "
                "'ramet store check --rebuild-catalog'",
                self->have_rows ? "an older copy" : "missing or unusable", self->newest_copy);
    return r;
}

// ---- Segments ----

static void segment_found(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    found(context, "%s", sentence);
}

static void count_segment(void *context, const struct segment_row *row)
{
    struct file_check *self = context;
    self->result->segments++;
}

static int check_segments(struct file_check *self)
{
    struct segments *segments = self->offline->segments;
    int r = 0;
    if (!self->have_rows) { // whatever there is
        r = segments_scan(segments, self->task, count_segment, segment_found, self);
        return r == -ECANCELED ? r : 0; // what could not be read has been told
    }
    for (size_t i = 0; r == 0 && i < self->rows.segment_count; i++) {
        const struct segment_row *row = &self->rows.segments[i];
        segments_add(segments, row);
        r = segment_verify(segments, self->task, row->number, segment_found, self);
        if (r < 0 && r != -ECANCELED)
            found(self, "segments/%08" PRIu64 ".%u: cannot read it: %s", row->number, row->generation,
                    strerror(-r));
        r = r == -ECANCELED ? r : 0;
        self->result->segments++;
    }
    return r;
}

static int run(struct task *task, void *context)
{
    struct file_check *self = context;
    self->task = task;
    int r = superblock_check(task, self->offline->directory, superblock_found, self, self->err);
    if (r < 0 || !self->offline->has_superblock)
        return r;
    check_catalog(self);
    r = check_log(self);
    return r == 0 ? check_segments(self) : r;
}

int store_check_files(struct loop *loop, const char *directory,
        void (*damaged)(void *context, const char *sentence), void *context,
        struct store_check_result *ret_result, struct error *err)
{
    struct offline offline;
    struct store_check_result result = {0};
    int r = offline_open(loop, directory, false, &offline, err);
    if (r < 0)
        return r;
    struct file_check self = {
            .offline = &offline, .damaged = damaged, .context = context, .result = &result, .err = err};
    r = offline_run(&offline, run, &self);
    checkpoint_rows_free(&self.rows);
    free(self.roots);
    offline_close(&offline);
    if (r == 0)
        *ret_result = result;
    return r;
}
