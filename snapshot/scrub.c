// SPDX-License-Identifier: Apache-2.0
// A pass goes through the segments by number. First what is in the log is sealed, which reads and checks each
// of its payloads that a tree refers to; then each file is verified. The position is committed now and then,
// and when the pass stops or ends; at the end it is 0 again.
#include "snapshot/scrub.h"

#include "snapshot/background.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMIT_SEGMENTS = 64, DAMAGES_MAX = 256 }; // of one segment, with names; further ones without

struct scrub {
    struct store *store;
    struct task *task;
    void (*damaged)(void *context, const char *sentence);
    void *context;
    struct scrub_damage damages[DAMAGES_MAX];
    size_t count;
};

static void found(void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    struct scrub *self = context;
    if (self->count == DAMAGES_MAX) {
        self->damaged(self->context, sentence);
        return;
    }
    struct scrub_damage *damage = &self->damages[self->count++];
    *damage = (struct scrub_damage){.number = number, .first_slot = first_slot, .count = count};
    damage->sentence = strdup(sentence);
    if (damage->sentence == NULL)
        abort();
}

static void tell(struct scrub *self)
{
    if (self->count > 0)
        scrub_tell(self->task, self->store, self->damages, self->count, self->damaged, self->context);
    for (size_t i = 0; i < self->count; i++)
        free(self->damages[i].sentence);
    self->count = 0;
}

// The position is the next segment's number; 0 at the end of a pass.
static int keep_position(struct store *store, uint64_t position, struct error *err)
{
    const struct checkpoint_rows *before = &store->checkpoint->rows;
    struct checkpoint_rows rows = {.meta = before->meta};
    rows.meta.scrub_segment = position;
    for (size_t i = 0; i < before->root_count; i++)
        checkpoint_rows_add_root(&rows, &before->roots[i]);
    for (size_t i = 0; i < before->segment_count; i++)
        checkpoint_rows_add_segment(&rows, &before->segments[i]);
    int r = checkpoint_commit_rows(store, &rows, err);
    checkpoint_rows_free(&rows);
    if (r == -ENOSPC) { // then the next pass looks at some of them again
        store->checkpoint->rows.meta.scrub_segment = position;
        r = 0;
    }
    return r;
}

static const struct segment_row *segment_from(struct store *store, uint64_t position)
{
    const struct checkpoint_rows *rows = &store->checkpoint->rows;
    for (size_t i = 0; i < rows->segment_count; i++)
        if (rows->segments[i].number >= position)
            return &rows->segments[i];
    return NULL;
}

// 0: the pass has ended.
static int verify_some(struct scrub *self, struct store_scrub_result *result, struct error *err)
{
    struct store *store = self->store;
    struct checkpoint_meta *meta = &store->checkpoint->rows.meta;
    for (unsigned n = 1;; n++) {
        const struct segment_row *row = segment_from(store, meta->scrub_segment);
        if (row == NULL)
            return 0;
        if (task_stopping(self->task))
            return error_set(err, -ECANCELED, "the store is closing");
        uint64_t number = row->number, bytes = row->file_bytes;
        int r = segment_verify(store->segments, self->task, number, found, self);
        size_t damages = r > 0 ? (size_t)r : 0;
        tell(self);
        if (r == -ECANCELED)
            return error_set(err, r, "the store is closing");
        if (r < 0)
            return error_set(err, r, "cannot verify segment %llu of %s: %s", (unsigned long long)number,
                    store_directory(store), strerror(-r));
        result->segments++;
        result->bytes += bytes;
        result->damages += damages;
        result->position = meta->scrub_segment = number + 1;
        if (n % COMMIT_SEGMENTS == 0 && (r = keep_position(store, number + 1, err)) < 0)
            return r;
        if (background_waiting(store))
            return -EAGAIN;
    }
}

// Damage in the log shows where it is sealed: that is a finding, not a failure of the scrub.
static int seal_first(struct scrub *self, struct store_scrub_result *result, struct error *err)
{
    struct error sealing = {0};
    int r = checkpoint_run(self->task, self->store, &sealing);
    if (r == -EBADMSG) {
        self->damaged(self->context, sealing.text);
        result->damages++;
        return 0;
    }
    if (r < 0 && r != -ENOSPC && err != NULL)
        *err = sealing;
    return r == -ENOSPC ? 0 : r;
}

int scrub_run(struct task *task, struct store *store, void (*damaged)(void *context, const char *sentence),
        void *context, struct store_scrub_result *ret_result, struct error *err)
{
    struct checkpoint *checkpoint = store->checkpoint;
    struct scrub *self = calloc(1, sizeof *self);
    if (self == NULL)
        abort();
    *self = (struct scrub){.store = store, .task = task, .damaged = damaged, .context = context};
    int r = ret_result->segments == 0 && ret_result->damages == 0 ? seal_first(self, ret_result, err) : 0;
    if (r == 0 && checkpoint->rows.meta.start_file == 0) // nothing has ever been sealed
        r = 0;
    else if (r == 0) {
        r = verify_some(self, ret_result, err);
        struct error at_end = {0};
        if (r == 0)
            ret_result->position = 0;
        int kept = r == -EAGAIN
                           ? 0
                           : keep_position(store, r == 0 ? 0 : checkpoint->rows.meta.scrub_segment, &at_end);
        if (kept < 0 && r == 0) {
            r = kept;
            if (err != NULL)
                *err = at_end;
        }
    }
    free(self);
    return r;
}
