// SPDX-License-Identifier: Apache-2.0
// Reading a doc's blob: one checked read of consecutive log blocks.
#include "blockstore/segment.h"
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>

struct blob_read {
    struct loop_work work;
    struct log_read read;
    struct segment_read sealed;
    void *bytes;
    struct store *store;
    struct doc_id id;
    size_t size;
    void (*done)(void *context, int result, void *bytes, size_t size);
    void *context;
};

static void finish(struct blob_read *self, int result)
{
    void (*done)(void *, int, void *, size_t) = self->done;
    void *context = self->context, *bytes = self->bytes;
    size_t size = self->size;
    free(self);
    if (result < 0) {
        io_buffer_free(bytes);
        done(context, result, NULL, 0);
    } else {
        done(context, 0, bytes, size);
    }
}

static void read_done(struct log_read *read, int result)
{
    struct blob_read *self = (struct blob_read *)((char *)read - offsetof(struct blob_read, read));
    log_unref(self->store->log, read->first, read->count);
    finish(self, result);
}

static void sealed_done(struct segment_read *read, int result)
{
    finish((struct blob_read *)((char *)read - offsetof(struct blob_read, sealed)),
            result == -ENOENT ? -EBADMSG : result);
}

static void start(struct loop_work *work)
{
    struct blob_read *self = (struct blob_read *)work;
    struct store *store = self->store;
    pthread_mutex_lock(&store->lock);
    struct doc_row *row = catalog_doc(store, self->id.value);
    int r = row == NULL ? -ENOENT : row->blob_first == 0 ? -ENODATA : 0;
    if (r == 0) {
        self->size = row->doc.blob_bytes;
        self->read.first = row->blob_first;
        self->read.count = (uint32_t)volume_blocks_of(self->size);
        if (locator_is_log(self->read.first))
            log_ref(store->log, self->read.first, self->read.count); // it stays while it is read
    }
    pthread_mutex_unlock(&store->lock);
    if (r < 0) {
        finish(self, r);
        return;
    }
    self->bytes = io_buffer_alloc((size_t)self->read.count << BLOCK_SHIFT);
    if (!locator_is_log(self->read.first)) {
        self->sealed = (struct segment_read){.loop = store->loops[0],
                .first = self->read.first,
                .count = self->read.count,
                .buffer = self->bytes,
                .uncached = true,
                .done = sealed_done};
        segment_read(store->segments, &self->sealed);
        return;
    }
    self->read.loop = store->loops[0];
    self->read.buffer = self->bytes;
    self->read.done = read_done;
    log_read(store->log, &self->read);
}

void store_doc_blob_read(struct store *store, struct doc_id id,
        void (*done)(void *context, int result, void *bytes, size_t size), void *context)
{
    struct blob_read *self = calloc(1, sizeof *self);
    if (self == NULL)
        abort();
    self->work.run = start;
    self->store = store;
    self->id = id;
    self->done = done;
    self->context = context;
    loop_post(store->loops[0], &self->work);
}
