// SPDX-License-Identifier: Apache-2.0
// Handles, dispatch to the volume's loop, freezing.
//
// Freezing: a freeze ends the volume's epoch. Writes of that epoch that are still in flight have lower
// sequence numbers than any of the next, and are acknowledged before them; so when the last of them is in the
// tree, and before the next acknowledgement is looked at, the tree is exactly the old epoch. That is when the
// root is taken.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t volume_blocks_of(uint64_t size_bytes)
{
    return (size_bytes + BLOCK_SIZE - 1) >> BLOCK_SHIFT;
}

int volume_open(struct store *store, struct volume_id id, struct volume **ret_volume)
{
    pthread_mutex_lock(&store->lock);
    struct volume *volume = catalog_volume(store, id.value);
    int r = volume == NULL ? -ENOENT : volume->leaving ? -EBUSY : 0;
    if (r == 0)
        volume->opens++;
    pthread_mutex_unlock(&store->lock);
    if (r == 0)
        *ret_volume = volume;
    return r;
}

struct volume *volume_close(struct volume *volume)
{
    if (volume != NULL) {
        pthread_mutex_lock(&volume->store->lock);
        volume->opens--;
        pthread_mutex_unlock(&volume->store->lock);
    }
    return NULL;
}

struct loop *volume_loop(struct volume *volume)
{
    return volume->loop;
}

uint64_t volume_size_bytes(struct volume *volume)
{
    return atomic_load(&volume->size_bytes);
}

struct volume_id volume_get_id(struct volume *volume)
{
    return volume->info.id;
}

int base_open(struct store *store, struct base_id id, struct base **ret_base)
{
    pthread_mutex_lock(&store->lock);
    struct base *base = catalog_base(store, id.value);
    if (base != NULL)
        base->opens++;
    pthread_mutex_unlock(&store->lock);
    if (base == NULL)
        return -ENOENT;
    *ret_base = base;
    return 0;
}

struct base *base_close(struct base *base)
{
    if (base != NULL) {
        struct store *store = base->store;
        pthread_mutex_lock(&store->lock);
        base->opens--;
        catalog_base_release(store, base);
        pthread_mutex_unlock(&store->lock);
    }
    return NULL;
}

uint64_t base_size_bytes(struct base *base)
{
    return base->info.size_bytes;
}

// ---- Requests ----

void volume_finish(struct volume_io *io, int result)
{
    io->done(io, result);
}

int volume_check_range(uint64_t size_bytes, const struct volume_io *io)
{
    if (io->op == VOLUME_FLUSH)
        return 0;
    if (io->op == VOLUME_WRITE_BLOCKS) {
        for (unsigned i = 0; i < io->block_count; i++)
            if (io->blocks[i] >= size_bytes >> BLOCK_SHIFT || (i > 0 && io->blocks[i] <= io->blocks[i - 1]))
                return -EINVAL;
        return 0;
    }
    return io->offset <= size_bytes && io->length <= size_bytes - io->offset ? 0 : -EINVAL;
}

struct flush_state {
    struct log_sync sync;
    struct volume_io *io;
};

static void flush_done(struct log_sync *sync, int result)
{
    struct flush_state *state = (struct flush_state *)sync;
    struct volume_io *io = state->io;
    free(state);
    volume_finish(io, result);
}

static void flush_start(struct volume *volume, struct volume_io *io)
{
    struct flush_state *state = malloc(sizeof *state);
    if (state == NULL)
        abort();
    *state = (struct flush_state){.sync = {.loop = volume->loop, .done = flush_done}, .io = io};
    log_sync(volume->store->log, &state->sync);
}

static void volume_run(struct loop_work *work)
{
    struct volume_io *io = (struct volume_io *)((char *)work - offsetof(struct volume_io, work));
    struct volume *volume = io->volume;
    int r = volume_check_range(volume_size_bytes(volume), io);
    bool nothing =
            io->op == VOLUME_WRITE_BLOCKS ? io->block_count == 0 : io->op != VOLUME_FLUSH && io->length == 0;
    if (r < 0 || nothing)
        volume_finish(io, r);
    else if (io->op == VOLUME_READ)
        volume_read_start(volume->store, volume->loop, &volume->tree, io);
    else if (io->op == VOLUME_FLUSH)
        flush_start(volume, io);
    else
        volume_write_start(volume, io);
}

void volume_submit(struct volume *volume, struct volume_io *io)
{
    io->volume = volume;
    io->work.run = volume_run;
    if (loop_current() == volume->loop)
        volume_run(&io->work);
    else
        loop_post(volume->loop, &io->work);
}

struct base_read {
    struct loop_work work;
    struct loop *loop;
    struct volume_io *io;
};

static void base_run_on(struct loop *loop, struct volume_io *io)
{
    struct base *base = io->base;
    int r = io->op != VOLUME_READ ? -EPERM : volume_check_range(base->info.size_bytes, io);
    if (r < 0 || io->length == 0)
        volume_finish(io, r);
    else
        volume_read_start(base->store, loop, &base->tree, io);
}

static void base_run(struct loop_work *work)
{
    struct base_read *read = (struct base_read *)work;
    struct loop *loop = read->loop;
    struct volume_io *io = read->io;
    free(read);
    base_run_on(loop, io);
}

void base_submit(struct base *base, struct loop *loop, struct volume_io *io)
{
    io->base = base;
    if (loop_current() == loop) {
        base_run_on(loop, io);
        return;
    }
    struct base_read *read = malloc(sizeof *read);
    if (read == NULL)
        abort();
    *read = (struct base_read){.work.run = base_run, .loop = loop, .io = io};
    loop_post(loop, &read->work);
}

// ---- Freezing ----

static void complete_freezes(struct volume *volume)
{
    bool more = volume->freezes != NULL && volume->freezes->remaining == 0;
    while (more) {
        struct freeze *freeze = volume->freezes;
        volume->freezes = freeze->next;
        if (volume->freezes == NULL)
            volume->freezes_tail = &volume->freezes;
        freeze->tree = tree_share(volume->tree);
        volume->owner = tree_new_owner(&volume->store->space);
        // After the last one is done its transaction commits on another loop, and a next one may delete the
        // volume.
        more = volume->freezes != NULL && volume->freezes->remaining == 0;
        freeze->done(freeze);
    }
}

void volume_freeze(struct volume *volume, struct freeze *freeze)
{
    freeze->volume = volume;
    freeze->epoch = volume->epoch++;
    freeze->remaining = volume->in_flight;
    freeze->next = NULL;
    volume->in_flight = 0;
    *volume->freezes_tail = freeze;
    volume->freezes_tail = &freeze->next;
    complete_freezes(volume);
}

void volume_settle(struct volume *volume, uint32_t epoch)
{
    if (epoch == volume->epoch) {
        volume->in_flight--;
        return;
    }
    for (struct freeze *freeze = volume->freezes; freeze != NULL; freeze = freeze->next)
        if (freeze->epoch == epoch)
            freeze->remaining--;
    complete_freezes(volume);
}
