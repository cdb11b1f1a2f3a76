// SPDX-License-Identifier: Apache-2.0
// The waiting twins of the engine's calls, for threads that are not loops.
#include "snapshot/store_private.h"

#include <stdlib.h>

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool finished;
    int result;
};

#define WAITER_INIT                                                                                          \
    {                                                                                                        \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                               \
    }

static void waiter_finish(struct waiter *waiter, int result)
{
    pthread_mutex_lock(&waiter->lock);
    waiter->finished = true;
    waiter->result = result;
    pthread_cond_signal(&waiter->changed);
    pthread_mutex_unlock(&waiter->lock);
}

static int waiter_wait(struct waiter *waiter)
{
    if (loop_current() != NULL) // waiting on a loop would wait for itself
        abort();
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->finished)
        pthread_cond_wait(&waiter->changed, &waiter->lock);
    pthread_mutex_unlock(&waiter->lock);
    return waiter->result;
}

static void io_done(struct volume_io *io, int result)
{
    waiter_finish(io->context, result);
}

static int volume_wait(struct volume *volume, struct volume_io *io)
{
    struct waiter waiter = WAITER_INIT;
    io->done = io_done;
    io->context = &waiter;
    volume_submit(volume, io);
    return waiter_wait(&waiter);
}

int volume_read_wait(struct volume *volume, uint64_t offset, void *buffer, uint64_t length)
{
    struct volume_io io = {.op = VOLUME_READ, .offset = offset, .length = length, .buffer = buffer};
    return volume_wait(volume, &io);
}

int volume_write_wait(
        struct volume *volume, uint64_t offset, const void *buffer, uint64_t length, unsigned flags)
{
    struct volume_io io = {
            .op = VOLUME_WRITE, .flags = flags, .offset = offset, .length = length, .buffer = (void *)buffer};
    return volume_wait(volume, &io);
}

int volume_zero_wait(struct volume *volume, uint64_t offset, uint64_t length, bool trim, unsigned flags)
{
    struct volume_io io = {
            .op = trim ? VOLUME_TRIM : VOLUME_ZERO, .flags = flags, .offset = offset, .length = length};
    return volume_wait(volume, &io);
}

int volume_write_blocks_wait(
        struct volume *volume, const uint64_t *blocks, unsigned count, const void *buffer)
{
    struct volume_io io = {
            .op = VOLUME_WRITE_BLOCKS, .blocks = blocks, .block_count = count, .buffer = (void *)buffer};
    return volume_wait(volume, &io);
}

int volume_flush_wait(struct volume *volume)
{
    struct volume_io io = {.op = VOLUME_FLUSH};
    return volume_wait(volume, &io);
}

int base_read_wait(struct base *base, uint64_t offset, void *buffer, uint64_t length)
{
    struct waiter waiter = WAITER_INIT;
    struct volume_io io = {.op = VOLUME_READ,
            .offset = offset,
            .length = length,
            .buffer = buffer,
            .done = io_done,
            .context = &waiter};
    base_submit(base, base->store->loops[0], &io);
    return waiter_wait(&waiter);
}

// ---- Extents and differences: a batch at a time; joined here and handed out on the caller's thread ----

enum { EXTENT_BATCH = 256 };

struct extent_join {
    extent_callback each;
    void *context;
    struct volume_extent last; // not handed out yet; length 0: none
    bool stopped;
};

static void join_flush(struct extent_join *join)
{
    if (join->last.length > 0 && !join->stopped)
        join->stopped = !join->each(join->context, join->last.offset, join->last.length, join->last.kind);
    join->last.length = 0;
}

static void join_add(struct extent_join *join, const struct volume_extent *extents, unsigned count)
{
    for (unsigned i = 0; i < count && !join->stopped; i++) {
        struct volume_extent *last = &join->last;
        if (last->length > 0 && last->kind == extents[i].kind &&
                last->offset + last->length == extents[i].offset) {
            last->length += extents[i].length;
            continue;
        }
        join_flush(join);
        *last = extents[i];
    }
}

static void extents_done(struct volume_extents *call, int result)
{
    waiter_finish(call->context, result);
}

static int extents_wait(struct volume *volume, struct base *base, uint64_t offset, uint64_t length,
        extent_callback each, void *context)
{
    struct volume_extent extents[EXTENT_BATCH];
    struct extent_join join = {.each = each, .context = context};
    do {
        struct waiter waiter = WAITER_INIT;
        struct volume_extents call = {.offset = offset,
                .length = length,
                .extents = extents,
                .capacity = EXTENT_BATCH,
                .done = extents_done,
                .context = &waiter};
        if (volume != NULL)
            volume_extents_submit(volume, &call);
        else
            base_extents_submit(base, base->store->loops[0], &call);
        int r = waiter_wait(&waiter);
        if (r < 0)
            return r;
        join_add(&join, extents, call.count);
        offset += call.covered_bytes;
        length -= call.covered_bytes;
    } while (length > 0 && !join.stopped);
    join_flush(&join);
    return 0;
}

int volume_extents_wait(
        struct volume *volume, uint64_t offset, uint64_t length, extent_callback each, void *context)
{
    return extents_wait(volume, NULL, offset, length, each, context);
}

int base_extents_wait(
        struct base *base, uint64_t offset, uint64_t length, extent_callback each, void *context)
{
    return extents_wait(NULL, base, offset, length, each, context);
}

static void diff_done(struct base_diff *call, int result)
{
    waiter_finish(call->context, result);
}

static int diff_wait(
        struct base *older, struct base *newer, bool by_place, extent_callback each, void *context)
{
    struct volume_extent extents[EXTENT_BATCH];
    struct extent_join join = {.each = each, .context = context};
    struct base_diff call = {.older = older,
            .newer = newer,
            .by_place = by_place,
            .extents = extents,
            .capacity = EXTENT_BATCH,
            .done = diff_done};
    do {
        struct waiter waiter = WAITER_INIT;
        call.context = &waiter;
        call.offset = call.next_offset;
        base_diff_submit(&call, newer->store->loops[0]);
        int r = waiter_wait(&waiter);
        if (r < 0)
            return r;
        join_add(&join, extents, call.count);
    } while (!call.finished && !join.stopped);
    join_flush(&join);
    return 0;
}

int base_diff_wait(struct base *older, struct base *newer, extent_callback each, void *context)
{
    return diff_wait(older, newer, false, each, context);
}

int base_diff_places_wait(struct base *older, struct base *newer, extent_callback each, void *context)
{
    return diff_wait(older, newer, true, each, context);
}

struct commit_call {
    struct waiter waiter;
    struct error *err;
};

static void commit_done(void *context, int result, const struct error *err)
{
    struct commit_call *call = context;
    if (result < 0 && call->err != NULL)
        *call->err = *err;
    waiter_finish(&call->waiter, result);
}

int txn_commit_wait(struct txn *txn, unsigned flags, struct error *err)
{
    struct commit_call call = {.waiter = WAITER_INIT, .err = err};
    txn_commit(txn, flags, commit_done, &call);
    return waiter_wait(&call.waiter);
}

struct flush_call {
    struct loop_work work;
    struct log_sync sync;
    struct waiter waiter;
    struct log *log;
};

static void flush_done(struct log_sync *sync, int result)
{
    struct flush_call *call = (struct flush_call *)((char *)sync - offsetof(struct flush_call, sync));
    waiter_finish(&call->waiter, result);
}

static void flush_run(struct loop_work *work)
{
    struct flush_call *call = (struct flush_call *)work;
    log_sync(call->log, &call->sync);
}

int store_flush(struct store *store)
{
    struct flush_call call = {.work.run = flush_run,
            .sync = {.loop = store->loops[0], .done = flush_done},
            .waiter = WAITER_INIT,
            .log = store->log};
    loop_post(store->loops[0], &call.work);
    return waiter_wait(&call.waiter);
}

struct blob_call {
    struct waiter waiter;
    void *bytes;
    size_t size;
};

static void blob_arrived(void *context, int result, void *bytes, size_t size)
{
    struct blob_call *call = context;
    call->bytes = bytes;
    call->size = size;
    waiter_finish(&call->waiter, result);
}

int store_doc_blob(struct store *store, struct doc_id id, void **ret_bytes, size_t *ret_size)
{
    struct blob_call call = {.waiter = WAITER_INIT};
    store_doc_blob_read(store, id, blob_arrived, &call);
    int r = waiter_wait(&call.waiter);
    if (r == 0) {
        *ret_bytes = call.bytes;
        *ret_size = call.size;
    }
    return r;
}
