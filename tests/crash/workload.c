// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/workload_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

uint64_t workload_pick(struct workload *workload, uint64_t limit)
{
    return sim_random_below(&workload->random, limit);
}

bool workload_chance(struct workload *workload, unsigned percent)
{
    return workload_pick(workload, 100) < percent;
}

void workload_fail(struct workload *workload, const char *format, ...)
{
    if (workload->failure[0] != '\0')
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(workload->failure, sizeof workload->failure, format, args);
    va_end(args);
}

static void next_request(struct client *client);

uint64_t workload_size_of(const struct slot *slot)
{
    return model_latest(&slot->volume->object)->size_bytes;
}

void workload_finished(struct client *client)
{
    struct workload *workload = client->workload;
    if (client->plain_buffer)
        free(client->buffer);
    else
        io_buffer_free(client->buffer);
    client->buffer = NULL;
    client->plain_buffer = false;
    for (unsigned i = 0; i < 2; i++) {
        if (client->slot[i] != NULL)
            client->slot[i]->in_flight--;
        client->slot[i] = NULL;
    }
    client->busy = false;
    workload->unanswered--;
    workload->answered++;
    if (workload_chance(workload, 70) && !sim_world_is_cut(workload->world))
        next_request(client);
}

bool workload_tolerated(const struct workload *workload, int result)
{
    if (sim_world_is_cut(workload->world))
        return true;
    if (result == -ENOSPC)
        return !workload->options.never_full;
    return (result == -EIO || result == -ESTALE) && workload->options.faults;
}

void workload_check_result(struct client *client, int result, const char *what)
{
    struct workload *workload = client->workload;
    if (result == -ENOSPC)
        workload->full = 20;
    else if (workload->full > 0)
        workload->full--;
    if (result < 0 && !workload_tolerated(workload, result))
        workload_fail(workload, "%s answered %d (%s)", what, result, strerror(-result));
    if (result > 0)
        workload_fail(workload, "%s answered %d, which means nothing", what, result);
}

// ---- Requests ----

static void write_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    if (!sim_world_is_cut(client->workload->world)) {
        workload_check_result(client, result, "a write, zero or trim");
        model_end(client->workload->model, client->op, result, io->flags & VOLUME_FUA);
    }
    workload_finished(client);
}

// What the extents said to be no data must have been read as zeros.
static void check_extents(struct client *client)
{
    const struct volume_io *io = &client->io;
    for (uint64_t i = 0; i < io->length; i++) {
        uint64_t block = (io->offset + i) / BLOCK_SIZE - io->offset / BLOCK_SIZE;
        if (((const uint8_t *)io->buffer)[i] != 0 && !(client->data >> block & 1)) {
            workload_fail(client->workload, "byte %llu of a volume is data, and the extents say it is not",
                    (unsigned long long)(io->offset + i));
            return;
        }
    }
}

static void read_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    struct workload *workload = client->workload;
    char why[800];
    workload_check_result(client, result, "a read");
    struct model_volume *volume = client->base ? NULL : client->slot[0]->volume;
    if (result == 0 && !sim_world_is_cut(workload->world) &&
            !model_judge_read(workload->model, volume, client->base, io->offset, io->buffer, io->length,
                    client->began, why, sizeof why))
        workload_fail(workload, "%.390s", why);
    if (result == 0 && client->looked)
        check_extents(client);
    client->looked = false;
    model_read_end(workload->model, client->began);
    if (client->base_handle != NULL)
        client->base_handle = base_close(client->base_handle);
    client->base = NULL;
    workload_finished(client);
}

static void flush_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    workload_check_result(client, result, "a flush");
    if (result == 0 && !sim_world_is_cut(client->workload->world))
        model_flushed(client->workload->model, client->began);
    workload_finished(client);
}

struct slot *workload_any_slot(struct workload *workload)
{
    struct slot *found[SLOTS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        if (workload->slot[i].volume != NULL && workload->slot[i].handle != NULL &&
                !workload->slot[i].exclusive)
            found[count++] = &workload->slot[i];
    return count > 0 ? found[workload_pick(workload, count)] : NULL;
}

static void get_buffer(struct client *client, size_t size)
{
    client->plain_buffer = workload_chance(client->workload, 20);
    client->buffer = client->plain_buffer ? malloc(size + 1) : io_buffer_alloc(size + 1);
    client->io.buffer = client->buffer;
}

// A range of the volume, sometimes aligned, never empty; within one window of a vast one.
static void choose_range(struct client *client, const struct slot *slot, bool aligned, uint64_t max_blocks)
{
    struct workload *workload = client->workload;
    uint64_t first = 0, blocks = workload_size_of(slot) / BLOCK_SIZE, size = workload_size_of(slot);
    if (slot->volume->vast) {
        const struct layout_window *window = &layout_windows[workload_pick(workload, LAYOUT_WINDOWS)];
        first = window->first;
        blocks = window->count;
        size = (first + blocks) * BLOCK_SIZE;
    }
    uint64_t begin = (first + workload_pick(workload, blocks ? blocks : 1)) * BLOCK_SIZE;
    uint64_t length = (1 + workload_pick(workload, max_blocks)) * BLOCK_SIZE;
    if (!aligned) {
        uint64_t grain = workload_chance(workload, 50) ? 512 : 1;
        begin += workload_pick(workload, BLOCK_SIZE / grain) * grain;
        length = (1 + workload_pick(workload, 2 * BLOCK_SIZE / grain)) * grain;
    }
    if (begin >= size)
        begin = size - 1 - workload_pick(workload, size < 512 ? size : 512);
    if (begin + length > size)
        length = size - begin;
    client->io.offset = begin;
    client->io.length = length;
}

static void submit(struct client *client, struct slot *slot)
{
    client->slot[0] = slot;
    slot->in_flight++;
    volume_submit(slot->handle, &client->io);
}

// Most bytes are an operation's own; the others have copies in other places, to be stored once.
static void begin_write(struct client *client)
{
    struct workload *workload = client->workload;
    client->op = model_begin(workload->model, MODEL_WRITE);
    if (workload_chance(workload, workload->options.shared_percent))
        client->op->fill = fill_shared(workload->options.distinct, workload_pick(workload, 40));
    else if (workload_chance(workload, workload->options.shared_percent / 2))
        client->op->fill = fill_compressible(client->op->id);
}

static bool start_write(struct client *client, bool aligned, uint64_t max_blocks)
{
    struct workload *workload = client->workload;
    struct slot *slot = workload_any_slot(workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_WRITE;
    choose_range(client, slot, aligned, max_blocks);
    begin_write(client);
    get_buffer(client, client->io.length);
    fill_bytes(client->op->fill, client->io.offset, client->buffer, client->io.length);
    model_touch(workload->model, client->op, slot->volume, client->io.offset, client->io.length);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_scattered(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = workload_any_slot(workload);
    uint64_t whole = slot ? workload_size_of(slot) / BLOCK_SIZE : 0;
    if (whole == 0)
        return false;
    uint64_t count = layout_count(whole * BLOCK_SIZE), limit = 1 + workload_pick(workload, SCATTER_MAX);
    if (slot->volume->vast)
        count = slot->volume->block_count;
    client->io.block_count = 0;
    for (uint64_t index = workload_pick(workload, count); index < count && client->io.block_count < limit;
            index += 1 + workload_pick(workload, 5))
        client->blocks[client->io.block_count++] = layout_number(slot->volume->vast, index);
    client->io.op = VOLUME_WRITE_BLOCKS;
    client->io.blocks = client->blocks;
    begin_write(client);
    get_buffer(client, (size_t)client->io.block_count * BLOCK_SIZE);
    for (unsigned i = 0; i < client->io.block_count; i++) {
        uint64_t offset = client->blocks[i] * BLOCK_SIZE;
        fill_bytes(client->op->fill, offset, (uint8_t *)client->buffer + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
        model_touch(workload->model, client->op, slot->volume, offset, BLOCK_SIZE);
    }
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_zero(struct client *client, bool trim)
{
    struct workload *workload = client->workload;
    struct slot *slot = workload_any_slot(workload);
    if (slot == NULL)
        return false;
    client->io.op = trim ? VOLUME_TRIM : VOLUME_ZERO;
    choose_range(client, slot, workload_chance(workload, 70), 16);
    if (slot->volume->vast && workload_chance(workload, 50)) { // across windows
        unsigned a = (unsigned)workload_pick(workload, LAYOUT_WINDOWS),
                 b = a + (unsigned)workload_pick(workload, LAYOUT_WINDOWS - a);
        uint64_t from = layout_windows[a].first + workload_pick(workload, layout_windows[a].count);
        uint64_t to = layout_windows[b].first + 1 + workload_pick(workload, layout_windows[b].count);
        if (to > from) {
            client->io.offset = from * BLOCK_SIZE;
            client->io.length = (to - from) * BLOCK_SIZE;
        }
    }
    client->op = model_begin(workload->model, trim ? MODEL_TRIM : MODEL_ZERO);
    uint64_t from = client->io.offset, to = from + client->io.length;
    if (trim) { // touches whole blocks only; the last bytes of a volume are a block of their own
        from = (from + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
        to = to == workload_size_of(slot) ? to : to / BLOCK_SIZE * BLOCK_SIZE;
    }
    if (from < to)
        model_touch(workload->model, client->op, slot->volume, from, to - from);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_flush(struct client *client)
{
    struct slot *slot = workload_any_slot(client->workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_FLUSH;
    client->began = model_tick(client->workload->model);
    client->io.done = flush_done;
    submit(client, slot);
    return true;
}

static void looked(struct volume_extents *call, int result)
{
    struct client *client = call->context;
    uint64_t first = client->io.offset / BLOCK_SIZE;
    for (unsigned i = 0; i < call->count; i++)
        for (uint64_t at = call->extents[i].offset; at < call->extents[i].offset + call->extents[i].length &&
                                                    call->extents[i].kind == EXTENT_DATA;
                at = (at / BLOCK_SIZE + 1) * BLOCK_SIZE)
            client->data |= UINT64_C(1) << (at / BLOCK_SIZE - first);
    if (result < 0 || call->covered_bytes != call->length)
        workload_fail(client->workload, "extents answered %d", result);
    volume_submit(client->slot[0]->handle, &client->io);
}

static bool start_read(struct client *client)
{
    struct slot *slot = workload_any_slot(client->workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_READ;
    client->io.flags = workload_chance(client->workload, 30) ? VOLUME_DIRECT : 0;
    choose_range(client, slot, workload_chance(client->workload, 60), 24);
    get_buffer(client, client->io.length);
    client->began = model_read_begin(client->workload->model);
    client->io.done = read_done;
    client->base = NULL;
    client->looked = workload_chance(client->workload, 40);
    if (!client->looked) {
        submit(client, slot);
        return true;
    }
    client->data = 0;
    client->slot[0] = slot;
    slot->in_flight++;
    client->look = (struct volume_extents){.offset = client->io.offset,
            .length = client->io.length,
            .flags = workload_chance(client->workload, 50) ? EXTENTS_SHARED : 0,
            .extents = client->extents,
            .capacity = sizeof client->extents / sizeof client->extents[0],
            .done = looked,
            .context = client};
    volume_extents_submit(slot->handle, &client->look);
    return true;
}

struct model_base *workload_base_of_a_doc(struct workload *workload)
{
    struct model *model = workload->model;
    for (unsigned attempt = 0; attempt < 8 && model->doc_count > 0; attempt++) {
        const struct model_doc *doc = model->doc[workload_pick(workload, model->doc_count)];
        const struct model_state *state = model_latest(&doc->object);
        if (!state->exists || state->op->ended == 0 || state->base_count == 0)
            continue;
        for (size_t i = 0; i < model->base_count; i++)
            if (model->base[i]->id == state->base[0])
                return model->base[i];
    }
    return NULL;
}

static bool start_base_read(struct client *client)
{
    struct workload *workload = client->workload;
    struct model_base *base = workload_base_of_a_doc(workload);
    if (base == NULL || base->vast ||
            base_open(workload->store, (struct base_id){base->id}, &client->base_handle) < 0)
        return false;
    client->base = base;
    client->io.op = VOLUME_READ;
    client->io.offset = workload_pick(workload, base->block_count) * BLOCK_SIZE;
    client->io.length = (1 + workload_pick(workload, 8)) * BLOCK_SIZE;
    if (client->io.offset + client->io.length > base->size_bytes)
        client->io.length = base->size_bytes - client->io.offset;
    get_buffer(client, client->io.length);
    client->began = model_read_begin(workload->model);
    client->io.done = read_done;
    base_submit(client->base_handle,
            sim_world_loop(
                    workload->world, (unsigned)workload_pick(workload, store_loop_count(workload->store))),
            &client->io);
    return true;
}

// ---- Choice ----

// Writes walk through the volumes in order; others (below) go anywhere.
static bool start_walk(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = workload_any_slot(workload);
    if (slot == NULL)
        return false;
    if (slot->walk >= workload_size_of(slot))
        slot->walk = 0;
    client->io.op = VOLUME_WRITE;
    client->io.offset = slot->walk;
    client->io.length = (1 + workload_pick(workload, 8)) * BLOCK_SIZE;
    if (client->io.length > workload_size_of(slot) - slot->walk)
        client->io.length = workload_size_of(slot) - slot->walk;
    slot->walk += client->io.length;
    begin_write(client);
    get_buffer(client, client->io.length);
    fill_bytes(client->op->fill, client->io.offset, client->buffer, client->io.length);
    model_touch(workload->model, client->op, slot->volume, client->io.offset, client->io.length);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_rewrite(struct client *client)
{
    unsigned dice = (unsigned)workload_pick(client->workload, 100);
    if (dice < 40)
        return start_walk(client);
    if (dice < 80)
        return start_write(client, dice < 70, 12);
    return dice < 90 ? start_flush(client) : start_read(client);
}

static bool start_something(struct client *client)
{
    struct workload *workload = client->workload;
    if (workload->options.rewrite_only && workload_any_slot(workload) != NULL)
        return start_rewrite(client);
    if (workload->options.chore_percent > 0 && workload_chance(workload, workload->options.chore_percent))
        return workload_start_chore(client);
    unsigned dice = (unsigned)workload_pick(workload, 100);
    if (workload->full > 0 && dice < 40)
        return workload_chance(workload, 30)   ? workload_start_delete(client)
               : workload_chance(workload, 50) ? workload_start_doc_change(client, true)
                                               : start_zero(client, true);
    if (dice < 22)
        return start_write(client, true, 4);
    if (dice < 27)
        return start_write(client, true, WRITE_MAX_BLOCKS);
    if (dice < 36)
        return start_write(client, false, 1);
    if (dice < 42)
        return start_scattered(client);
    if (dice < 52)
        return start_zero(client, dice < 47);
    if (dice < 61)
        return start_flush(client);
    if (dice < 69)
        return start_read(client);
    if (dice < 72)
        return start_base_read(client);
    if (dice < 80)
        return workload_start_fork(client, dice < 77, dice >= 76);
    if (dice < 83)
        return workload_start_machine(client);
    if (dice < 88)
        return workload_start_create(client);
    if (dice < 92)
        return workload_start_doc_change(client, dice < 90);
    if (dice < 95)
        return workload_start_delete(client);
    return dice < 97 ? workload_start_rename(client) : workload_start_resize(client);
}

static void next_request(struct client *client)
{
    struct workload *workload = client->workload;
    if (workload->paused || workload->started >= workload->options.operations || workload->failure[0] != '\0')
        return;
    workload->started++;
    client->busy = true;
    workload->unanswered++;
    client->io = (struct volume_io){.flags = workload_chance(workload, 10) ? VOLUME_FUA : 0};
    bool started = start_something(client) || workload_start_create(client) || start_flush(client);
    if (!started) {
        client->busy = false;
        workload->unanswered--;
    }
}

struct workload *workload_create(struct sim_world *world, struct store *store, struct model *model,
        uint64_t seed, const struct workload_options *options)
{
    struct workload *workload = calloc(1, sizeof *workload);
    if (workload == NULL)
        abort();
    *workload = (struct workload){
            .world = world, .store = store, .model = model, .random = seed, .options = *options};
    workload->client = calloc(options->clients, sizeof *workload->client);
    for (unsigned i = 0; i < options->clients; i++)
        workload->client[i].workload = workload;
    unsigned slots = 0;
    for (size_t i = 0; i < model->volume_count && slots < SLOTS_MAX; i++) {
        if (!model_latest(&model->volume[i]->object)->exists)
            continue;
        workload->slot[slots].volume = model->volume[i];
        workload_reopen(workload, &workload->slot[slots++]);
    }
    return workload;
}

bool workload_poll(struct workload *workload)
{
    for (unsigned i = 0; i < workload->options.clients; i++)
        if (!workload->client[i].busy && !workload->paused && workload_chance(workload, 50))
            next_request(&workload->client[i]);
    return workload->started < workload->options.operations;
}

void workload_pause(struct workload *workload, bool pause)
{
    workload->paused = pause;
}

bool workload_quiet(const struct workload *workload)
{
    return workload->unanswered == 0;
}

const char *workload_failure(const struct workload *workload)
{
    return workload->failure[0] != '\0' ? workload->failure : NULL;
}

uint64_t workload_progress(const struct workload *workload)
{
    return (uint64_t)workload->started * 2 + workload->answered;
}

unsigned workload_started(const struct workload *workload)
{
    return workload->started;
}

struct workload *workload_destroy(struct workload *workload)
{
    if (workload == NULL)
        return NULL;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        volume_close(workload->slot[i].handle);
    free(workload->client);
    free(workload);
    return NULL;
}
