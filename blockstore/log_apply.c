// SPDX-License-Identifier: Apache-2.0
// Recovery, second half: the records of the chain, in order, go to the engine's callbacks.
#include "blockstore/log_recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int apply_image(struct recovery *self, const struct record *record, const void *body,
        const struct log_replay *replay, struct error *err)
{
    self->image = realloc(self->image, self->image_size + record->body_bytes + 1);
    if (self->image == NULL)
        abort();
    memcpy(self->image + self->image_size, body, record->body_bytes);
    self->image_size += record->body_bytes;
    if (record->part + 1 < record->parts)
        return 0;
    self->image_applied = true;
    return replay->image(replay->context, self->image, self->image_size, err);
}

static int apply_roots(struct recovery *self, const struct record *record, const void *body,
        const struct log_replay *replay, struct error *err)
{
    if (replay->roots == NULL)
        return 0;
    if (record->part == 0)
        self->roots_size = self->roots_parts = 0;
    if (record->part != self->roots_parts) // the rest of one whose beginning was in a file that has retired
        return 0;
    self->roots = realloc(self->roots, self->roots_size + record->body_bytes + 1);
    if (self->roots == NULL)
        abort();
    memcpy(self->roots + self->roots_size, body, record->body_bytes);
    self->roots_size += record->body_bytes;
    self->roots_parts++;
    if (self->roots_parts < record->parts)
        return 0;
    return replay->roots(replay->context, self->roots, self->roots_size, err);
}

static int apply_record(struct recovery *self, struct found_file *f, struct record *record, uint64_t block,
        bool first_file, const struct log_replay *replay, struct error *err)
{
    const void *body = record->inline_body;
    bool skip = (record->kind == RECORD_IMAGE && !first_file) ||
                (record->kind == RECORD_ROOTS && replay->roots == NULL);
    if (record->body_blocks > 0 && !skip) {
        int r;
        if (!log_payload_right(self, f->file, record, block, &r)) {
            if (r < 0 && r != -EBADMSG)
                return error_set(err, r, "cannot read log file %s: %s", f->file->path, strerror(-r));
            f->end_block = block;
            f->end_seq = record->seq;
            return log_damaged(self, f, err);
        }
        body = self->payload;
    }
    memcpy(&f->file->sums[block + 1], record->sums, record->payload_blocks * sizeof(uint64_t));
    self->log->recovered_records++;
    if (record->kind != RECORD_RETIRE && record->kind != RECORD_OPEN && record->kind != RECORD_ROOTS)
        self->log->last_change_seq = record->seq;
    self->log->recovered_bytes += (1 + (uint64_t)record->payload_blocks) * BLOCK_SIZE;
    self->log->incarnation = record->incarnation;
    if (record->kind == RECORD_IMAGE)
        return first_file ? apply_image(self, record, body, replay, err) : 0;
    if (record->kind == RECORD_ROOTS)
        return apply_roots(self, record, body, replay, err);
    if (record->kind <= RECORD_TXN)
        return replay->record(replay->context, record, body, locator_log(f->number, block + 1), err);
    return 0;
}

static int apply_file(struct recovery *self, struct found_file *f, bool first_file,
        const struct log_replay *replay, struct error *err)
{
    struct record record;
    atomic_store(&self->log->table[f->number % LOG_TABLE_SIZE], f->file);
    f->file->number = f->number;
    for (uint64_t block = 0; block < f->end_block; block += 1 + record.payload_blocks) {
        int r = log_record_at(self, f->file, f->number, block, &record);
        if (r <= 0)
            return error_set(
                    err, r < 0 ? r : -EBADMSG, "log file %s changed while it was read", f->file->path);
        r = apply_record(self, f, &record, block, first_file, replay, err);
        if (r < 0)
            return r;
    }
    f->file->used_blocks = f->end_block;
    if (first_file && !self->image_applied)
        return log_damaged(self, f, err);
    return 0;
}

int log_apply_chain(struct recovery *self, const unsigned *order, unsigned count,
        const struct log_replay *replay, struct error *err)
{
    struct log *log = self->log;
    for (unsigned i = 0; i < count; i++) {
        struct found_file *f = &self->files[order[i]];
        int r = apply_file(self, f, i == 0, replay, err);
        if (r < 0)
            return r;
        f->file->dirty = f->end_seq > self->durable;
        if (log->oldest == NULL)
            log->oldest = f->file;
        else
            log->current->next = f->file;
        log->current = f->file;
        log->used_files++;
        log->next_seq = f->end_seq;
        f->file = NULL; // the log's now
    }
    log->acknowledged_seq = log->next_seq - 1;
    log->changed_seq = log->last_change_seq;
    log->durable_seq = self->durable < log->acknowledged_seq ? self->durable : log->acknowledged_seq;
    return 0;
}
