// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/workload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/txn.h"
#include "tests/crash/layout.h"

enum { SLOTS_MAX = 32, WRITE_MAX_BLOCKS = 64, SCATTER_MAX = 24 };

// An existing volume, as the clients see it.
struct slot {
    struct model_volume *volume; // NULL = free
    struct volume *handle;
    uint64_t walk;      // where rewriting goes on
    unsigned in_flight; // requests and freezes
    bool exclusive;     // being created, resized, renamed, deleted
};

struct client {
    struct volume_io io; // first
    struct workload *workload;
    bool busy;
    struct model_op *op;
    struct slot *slot[2];
    struct model_base *base; // a read of a base, or one made here
    struct base *base_handle;
    uint64_t began; // reads and flushes
    uint64_t blocks[SCATTER_MAX];
    void *buffer;
    bool plain_buffer; // from malloc, not aligned
    // A transaction:
    struct slot *created;
    bool deletes, durable, rename_or_resize;
    int wanted;    // the only right result, when not 0
    bool may_miss; // something it refers to may be gone
};

struct workload {
    struct sim_world *world;
    struct store *store;
    struct model *model;
    uint64_t random;
    struct workload_options options;
    struct client *client;
    struct slot slot[SLOTS_MAX];
    unsigned started, unanswered;
    unsigned names;
    unsigned full; // requests since the log was last full; counts down
    bool paused;
    char failure[400];
};

static uint64_t pick(struct workload *workload, uint64_t limit)
{
    return sim_random_below(&workload->random, limit);
}

static bool chance(struct workload *workload, unsigned percent)
{
    return pick(workload, 100) < percent;
}

__attribute__((format(printf, 2, 3))) static void fail(struct workload *workload, const char *format, ...)
{
    if (workload->failure[0] != '\0')
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(workload->failure, sizeof workload->failure, format, args);
    va_end(args);
}

static void next_request(struct client *client);

static uint64_t size_of(const struct slot *slot)
{
    return model_latest(&slot->volume->object)->size_bytes;
}

static void finished(struct client *client)
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
    if (chance(workload, 70) && !sim_world_is_cut(workload->world))
        next_request(client);
}

static bool tolerated(const struct workload *workload, int result)
{
    if (sim_world_is_cut(workload->world))
        return true;
    if (result == -ENOSPC)
        return !workload->options.never_full;
    return (result == -EIO || result == -ESTALE) && workload->options.faults;
}

static void check_result(struct client *client, int result, const char *what)
{
    struct workload *workload = client->workload;
    if (result == -ENOSPC)
        workload->full = 20;
    else if (workload->full > 0)
        workload->full--;
    if (result < 0 && !tolerated(workload, result))
        fail(workload, "%s answered %d (%s)", what, result, strerror(-result));
    if (result > 0)
        fail(workload, "%s answered %d, which means nothing", what, result);
}

// ---- Requests ----

static void write_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    if (!sim_world_is_cut(client->workload->world)) {
        check_result(client, result, "a write, zero or trim");
        model_end(client->workload->model, client->op, result, io->flags & VOLUME_FUA);
    }
    finished(client);
}

static void read_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    struct workload *workload = client->workload;
    char why[800];
    check_result(client, result, "a read");
    struct model_volume *volume = client->base ? NULL : client->slot[0]->volume;
    if (result == 0 && !sim_world_is_cut(workload->world) &&
            !model_judge_read(workload->model, volume, client->base, io->offset, io->buffer, io->length,
                    client->began, why, sizeof why))
        fail(workload, "%.390s", why);
    model_read_end(workload->model, client->began);
    if (client->base_handle != NULL)
        client->base_handle = base_close(client->base_handle);
    client->base = NULL;
    finished(client);
}

static void flush_done(struct volume_io *io, int result)
{
    struct client *client = (struct client *)io;
    check_result(client, result, "a flush");
    if (result == 0 && !sim_world_is_cut(client->workload->world))
        model_flushed(client->workload->model, client->began);
    finished(client);
}

static struct slot *any_slot(struct workload *workload)
{
    struct slot *found[SLOTS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        if (workload->slot[i].volume != NULL && workload->slot[i].handle != NULL &&
                !workload->slot[i].exclusive)
            found[count++] = &workload->slot[i];
    return count > 0 ? found[pick(workload, count)] : NULL;
}

static void get_buffer(struct client *client, size_t size)
{
    client->plain_buffer = chance(client->workload, 20);
    client->buffer = client->plain_buffer ? malloc(size + 1) : io_buffer_alloc(size + 1);
    client->io.buffer = client->buffer;
}

// A range of the volume, sometimes aligned, never empty; within one window of a vast one.
static void choose_range(struct client *client, const struct slot *slot, bool aligned, uint64_t max_blocks)
{
    struct workload *workload = client->workload;
    uint64_t first = 0, blocks = size_of(slot) / BLOCK_SIZE, size = size_of(slot);
    if (slot->volume->vast) {
        const struct layout_window *window = &layout_windows[pick(workload, LAYOUT_WINDOWS)];
        first = window->first;
        blocks = window->count;
        size = (first + blocks) * BLOCK_SIZE;
    }
    uint64_t begin = (first + pick(workload, blocks ? blocks : 1)) * BLOCK_SIZE;
    uint64_t length = (1 + pick(workload, max_blocks)) * BLOCK_SIZE;
    if (!aligned) {
        uint64_t grain = chance(workload, 50) ? 512 : 1;
        begin += pick(workload, BLOCK_SIZE / grain) * grain;
        length = (1 + pick(workload, 2 * BLOCK_SIZE / grain)) * grain;
    }
    if (begin >= size)
        begin = size - 1 - pick(workload, size < 512 ? size : 512);
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

static bool start_write(struct client *client, bool aligned, uint64_t max_blocks)
{
    struct workload *workload = client->workload;
    struct slot *slot = any_slot(workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_WRITE;
    choose_range(client, slot, aligned, max_blocks);
    client->op = model_begin(workload->model, MODEL_WRITE);
    get_buffer(client, client->io.length);
    model_fill(client->op->id, client->io.offset, client->buffer, client->io.length);
    model_touch(workload->model, client->op, slot->volume, client->io.offset, client->io.length);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_scattered(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = any_slot(workload);
    uint64_t whole = slot ? size_of(slot) / BLOCK_SIZE : 0;
    if (whole == 0)
        return false;
    uint64_t count = layout_count(whole * BLOCK_SIZE), limit = 1 + pick(workload, SCATTER_MAX);
    if (slot->volume->vast)
        count = slot->volume->block_count;
    client->io.block_count = 0;
    for (uint64_t index = pick(workload, count); index < count && client->io.block_count < limit;
            index += 1 + pick(workload, 5))
        client->blocks[client->io.block_count++] = layout_number(slot->volume->vast, index);
    client->io.op = VOLUME_WRITE_BLOCKS;
    client->io.blocks = client->blocks;
    client->op = model_begin(workload->model, MODEL_WRITE);
    get_buffer(client, (size_t)client->io.block_count * BLOCK_SIZE);
    for (unsigned i = 0; i < client->io.block_count; i++) {
        uint64_t offset = client->blocks[i] * BLOCK_SIZE;
        model_fill(client->op->id, offset, (uint8_t *)client->buffer + (size_t)i * BLOCK_SIZE, BLOCK_SIZE);
        model_touch(workload->model, client->op, slot->volume, offset, BLOCK_SIZE);
    }
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_zero(struct client *client, bool trim)
{
    struct workload *workload = client->workload;
    struct slot *slot = any_slot(workload);
    if (slot == NULL)
        return false;
    client->io.op = trim ? VOLUME_TRIM : VOLUME_ZERO;
    choose_range(client, slot, chance(workload, 70), 16);
    if (slot->volume->vast && chance(workload, 50)) { // across windows
        unsigned a = (unsigned)pick(workload, LAYOUT_WINDOWS),
                 b = a + (unsigned)pick(workload, LAYOUT_WINDOWS - a);
        uint64_t from = layout_windows[a].first + pick(workload, layout_windows[a].count);
        uint64_t to = layout_windows[b].first + 1 + pick(workload, layout_windows[b].count);
        if (to > from) {
            client->io.offset = from * BLOCK_SIZE;
            client->io.length = (to - from) * BLOCK_SIZE;
        }
    }
    client->op = model_begin(workload->model, trim ? MODEL_TRIM : MODEL_ZERO);
    uint64_t from = client->io.offset, to = from + client->io.length;
    if (trim) { // touches whole blocks only; the last bytes of a volume are a block of their own
        from = (from + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
        to = to == size_of(slot) ? to : to / BLOCK_SIZE * BLOCK_SIZE;
    }
    if (from < to)
        model_touch(workload->model, client->op, slot->volume, from, to - from);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_flush(struct client *client)
{
    struct slot *slot = any_slot(client->workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_FLUSH;
    client->began = model_tick(client->workload->model);
    client->io.done = flush_done;
    submit(client, slot);
    return true;
}

static bool start_read(struct client *client)
{
    struct slot *slot = any_slot(client->workload);
    if (slot == NULL)
        return false;
    client->io.op = VOLUME_READ;
    choose_range(client, slot, chance(client->workload, 60), 24);
    get_buffer(client, client->io.length);
    client->began = model_read_begin(client->workload->model);
    client->io.done = read_done;
    client->base = NULL;
    submit(client, slot);
    return true;
}

static struct model_base *base_of_a_doc(struct workload *workload)
{
    struct model *model = workload->model;
    for (unsigned attempt = 0; attempt < 8 && model->doc_count > 0; attempt++) {
        const struct model_doc *doc = model->doc[pick(workload, model->doc_count)];
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
    struct model_base *base = base_of_a_doc(workload);
    if (base == NULL || base->vast ||
            base_open(workload->store, (struct base_id){base->id}, &client->base_handle) < 0)
        return false;
    client->base = base;
    client->io.op = VOLUME_READ;
    client->io.offset = pick(workload, base->block_count) * BLOCK_SIZE;
    client->io.length = (1 + pick(workload, 8)) * BLOCK_SIZE;
    if (client->io.offset + client->io.length > base->size_bytes)
        client->io.length = base->size_bytes - client->io.offset;
    get_buffer(client, client->io.length);
    client->began = model_read_begin(workload->model);
    client->io.done = read_done;
    base_submit(client->base_handle,
            sim_world_loop(workload->world, (unsigned)pick(workload, store_loop_count(workload->store))),
            &client->io);
    return true;
}

// ---- Transactions ----

static void release_exclusive(struct slot *slot)
{
    if (slot != NULL)
        slot->exclusive = false;
}

static void reopen(struct workload *workload, struct slot *slot)
{
    int result = volume_open(workload->store, (struct volume_id){slot->volume->object.id}, &slot->handle);
    if (result < 0)
        fail(workload, "volume %llu cannot be opened: %d", (unsigned long long)slot->volume->object.id,
                result);
}

static void check_txn(struct client *client, int result, const struct error *err)
{
    struct workload *workload = client->workload;
    if (client->wanted != 0 && result != client->wanted && !tolerated(workload, result))
        fail(workload, "a transaction that must be refused with %d answered %d", client->wanted, result);
    bool missed = client->may_miss && result == -ENOENT;
    if (client->wanted == 0 && !missed)
        check_result(client, result, "a transaction");
    if (result < 0 && !sim_world_is_cut(workload->world) && (err == NULL || err->text[0] == '\0'))
        fail(workload, "a transaction failed with %d and without a word", result);
}

static void txn_done(void *context, int result, const struct error *err)
{
    struct client *client = context;
    struct workload *workload = client->workload;
    if (sim_world_is_cut(workload->world)) {
        release_exclusive(client->created);
        finished(client);
        return;
    }
    check_txn(client, result, err);
    model_end(workload->model, client->op, result, client->durable);
    struct slot *created = client->created;
    if (created != NULL && result == 0)
        reopen(workload, created);
    else if (created != NULL)
        created->volume = NULL;
    release_exclusive(created);
    if (client->deletes && result == 0) {
        client->slot[0]->volume = NULL;
        client->slot[0]->in_flight--;
        client->slot[0]->exclusive = false;
        client->slot[0] = NULL;
    } else if (client->deletes) {
        struct slot *slot = client->slot[0];
        struct volume_id id = {slot->volume->object.id};
        bool in_doubt = result == -EIO || result == -ESTALE; // it may be gone all the same
        if (!in_doubt)
            reopen(workload, slot);
        else if (volume_open(workload->store, id, &slot->handle) < 0)
            slot->volume = NULL;
        release_exclusive(slot);
    } else if (client->rename_or_resize && !(result == -EIO || result == -ESTALE)) {
        release_exclusive(client->slot[0]); // a volume whose size is in doubt is left alone
    }
    finished(client);
}

static void begin_txn(struct client *client)
{
    client->op = model_begin(client->workload->model, MODEL_TXN);
    client->created = NULL;
    client->deletes = client->rename_or_resize = client->may_miss = false;
    client->wanted = 0;
    client->durable = chance(client->workload, 30);
}

static void commit(struct client *client, struct txn *txn, unsigned flags)
{
    txn_commit(txn, flags | (client->durable ? TXN_DURABLE : 0), txn_done, client);
}

static struct slot *free_slot(struct workload *workload)
{
    unsigned used = 0;
    struct slot *found = NULL;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        if (workload->slot[i].volume != NULL)
            used++;
        else if (found == NULL)
            found = &workload->slot[i];
    }
    return used < workload->options.max_volumes ? found : NULL;
}

static void new_name(struct workload *workload, char *name, size_t size)
{
    unsigned number = workload->names++;
    if (chance(workload, 20))
        name[0] = '\0';
    else
        snprintf(name, size, "v%llu-%u", (unsigned long long)workload->model->next_id, number);
}

static uint64_t new_size(struct workload *workload)
{
    uint64_t size = (1 + pick(workload, workload->options.max_blocks)) * BLOCK_SIZE;
    return chance(workload, 20) ? size + 512 * (1 + pick(workload, 7)) : size;
}

static void add_volume(struct client *client, struct txn *txn, struct slot *slot, const char *name,
        uint64_t size, struct model_base *parent)
{
    struct workload *workload = client->workload;
    enum volume_kind kind = chance(workload, 20) ? VOLUME_MEMORY : VOLUME_DISK;
    struct volume_id id = txn_volume_create(txn, name, kind, parent && size == parent->size_bytes ? 0 : size,
            (struct base_id){parent ? parent->id : 0});
    slot->volume = model_volume_add(workload->model, client->op, id.value, kind, size, name, parent);
    slot->handle = NULL;
    slot->in_flight = 0;
    slot->walk = 0;
    slot->exclusive = true;
    client->created = slot;
}

static bool start_create(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = free_slot(workload);
    if (slot == NULL)
        return false;
    bool vast_exists = !workload->options.vast;
    for (unsigned i = 0; i < SLOTS_MAX; i++)
        vast_exists = vast_exists || (workload->slot[i].volume && workload->slot[i].volume->vast);
    struct model_base *parent = chance(workload, 50) ? base_of_a_doc(workload) : NULL;
    uint64_t size = vast_exists ? new_size(workload) : LAYOUT_VAST_BYTES;
    if (parent != NULL)
        size = parent->size_bytes +
               (parent->vast || chance(workload, 60) ? 0 : pick(workload, 8) * BLOCK_SIZE);
    char name[40];
    new_name(workload, name, sizeof name);
    begin_txn(client);
    client->may_miss = parent != NULL;
    struct txn *txn = txn_begin(workload->store);
    add_volume(client, txn, slot, name, size, parent);
    commit(client, txn, 0);
    return true;
}

static void doc_state(struct client *client, struct model_doc *doc, struct doc *put, const char *name)
{
    struct workload *workload = client->workload;
    struct model_state *state = model_change(workload->model, client->op, &doc->object);
    state->exists = true;
    state->body_seed = sim_random(&workload->random);
    state->body_bytes = 8 + pick(workload, chance(workload, 10) ? 9000 : 200);
    snprintf(state->name, sizeof state->name, "%s", name);
    state->base_count = put->base_count;
    state->volume_count = put->volume_count;
    for (unsigned i = 0; i < put->base_count; i++)
        state->base[i] = put->bases[i].value;
    for (unsigned i = 0; i < put->volume_count; i++)
        state->volume[i] = put->volumes[i].value;
    put->body_bytes = state->body_bytes;
    put->body = malloc(state->body_bytes + 1);
    memcpy(put->body, &state->body_seed, 8);
    model_fill(state->body_seed, 8, put->body + 8, state->body_bytes - 8);
    put->body[put->body_bytes] = '\0';
    snprintf(put->name, sizeof put->name, "%s", name);
}

static void put_new_doc(
        struct client *client, struct txn *txn, enum doc_kind kind, struct doc *put, size_t blob_bytes)
{
    struct workload *workload = client->workload;
    char name[40];
    new_name(workload, name, sizeof name);
    put->kind = kind;
    uint64_t seed = sim_random(&workload->random);
    void *blob = blob_bytes > 0 ? malloc(blob_bytes) : NULL;
    if (blob != NULL) {
        memcpy(blob, &seed, 8);
        model_fill(seed, 8, (uint8_t *)blob + 8, blob_bytes - 8);
    }
    // The id is known only after the put, the body must be there before: the model's row is made first.
    struct model_doc *doc = model_doc_add(workload->model, 0, kind, seed, blob_bytes);
    doc_state(client, doc, put, name);
    doc->object.id = txn_doc_put(txn, put, blob, blob_bytes).value;
    free(put->body);
    free(blob);
}

static struct model_base *freeze(struct client *client, struct txn *txn, struct slot *slot, unsigned place)
{
    client->slot[place] = slot;
    slot->in_flight++;
    struct base_id id = txn_freeze(txn, (struct volume_id){slot->volume->object.id});
    return model_base_add(client->workload->model, client->op, id.value, slot->volume);
}

// A fork of a running volume, a snapshot, or both in one.
static bool start_fork(struct client *client, bool child, bool doc)
{
    struct workload *workload = client->workload;
    struct slot *slot = any_slot(workload), *created = child ? free_slot(workload) : NULL;
    if (slot == NULL || (child && created == NULL))
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    struct model_base *base = freeze(client, txn, slot, 0);
    char name[40];
    new_name(workload, name, sizeof name);
    if (child)
        add_volume(client, txn, created, name, base->size_bytes, base);
    if (doc) {
        struct doc put = {.bases = {{base->id}}, .base_count = 1};
        put_new_doc(client, txn, DOC_SNAPSHOT, &put, 0);
    }
    commit(client, txn, 0);
    return true;
}

static bool start_machine(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *disk = any_slot(workload), *memory = any_slot(workload);
    if (disk == NULL || disk == memory)
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    struct doc put = {.base_count = 2};
    put.bases[0].value = freeze(client, txn, disk, 0)->id;
    put.bases[1].value = freeze(client, txn, memory, 1)->id;
    if (chance(workload, 40)) {
        put.volumes[0].value = disk->volume->object.id;
        put.volume_count = 1;
    }
    put_new_doc(client, txn, DOC_MACHINE, &put, 8 + pick(workload, chance(workload, 20) ? 60000 : 9000));
    commit(client, txn, 0);
    return true;
}

static struct model_doc *any_doc(struct workload *workload)
{
    struct model *model = workload->model;
    for (unsigned attempt = 0; attempt < 8 && model->doc_count > 0; attempt++) {
        struct model_doc *doc = model->doc[pick(workload, model->doc_count)];
        const struct model_state *state = model_latest(&doc->object);
        if (state->exists && state->op->ended != 0)
            return doc;
    }
    return NULL;
}

static bool start_doc_change(struct client *client, bool delete)
{
    struct workload *workload = client->workload;
    struct model_doc *doc = any_doc(workload);
    if (doc == NULL)
        return false;
    const struct model_state before = *model_latest(&doc->object);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    if (delete) {
        txn_doc_delete(txn, (struct doc_id){doc->object.id});
        struct model_state *state = model_change(workload->model, client->op, &doc->object);
        state->exists = false;
        commit(client, txn, TXN_RESERVE);
        return true;
    }
    struct doc put = {.id = {doc->object.id}, .kind = doc->kind, .base_count = before.base_count};
    for (unsigned i = 0; i < before.base_count; i++)
        put.bases[i].value = before.base[i];
    doc_state(client, doc, &put, before.name);
    txn_doc_put(txn, &put, NULL, 0);
    free(put.body);
    commit(client, txn, 0);
    return true;
}

static bool named_by_doc(const struct workload *workload, uint64_t volume)
{
    for (size_t i = 0; i < workload->model->doc_count; i++) {
        // Any state that is not certainly gone counts: a delete or replacement may be under way.
        const struct model_object *object = &workload->model->doc[i]->object;
        for (size_t j = object->state_count; j-- > 1;) {
            const struct model_state *state = &object->state[j];
            for (unsigned k = 0; k < state->volume_count && state->exists && !state->op->rejected; k++)
                if (state->volume[k] == volume)
                    return true;
            if (state->op->ended != 0 && !state->op->rejected)
                break;
        }
    }
    return false;
}

static struct slot *slot_for_change(struct workload *workload)
{
    struct slot *slot = any_slot(workload);
    return slot != NULL && slot->in_flight == 0 ? slot : NULL;
}

static bool start_delete(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL || named_by_doc(workload, slot->volume->object.id))
        return false;
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    txn_volume_delete(txn, (struct volume_id){slot->volume->object.id});
    client->slot[0] = slot;
    slot->in_flight++;
    if (chance(workload, 15)) { // while it is open
        client->wanted = -EBUSY;
        slot->exclusive = true;
        client->rename_or_resize = true;
        commit(client, txn, TXN_RESERVE);
        return true;
    }
    slot->handle = volume_close(slot->handle);
    slot->exclusive = true;
    client->deletes = true;
    struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
    state->exists = false;
    commit(client, txn, TXN_RESERVE);
    return true;
}

static bool start_rename(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL)
        return false;
    char name[40];
    new_name(workload, name, sizeof name);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    // Sometimes a name that another volume keeps meanwhile.
    struct slot *other = any_slot(workload);
    const struct model_state *taken = model_latest(&other->volume->object);
    if (other != slot && taken->name[0] != '\0' && chance(workload, 30)) {
        txn_volume_rename(txn, (struct volume_id){slot->volume->object.id}, taken->name);
        client->wanted = -EEXIST;
        client->slot[1] = other;
        other->in_flight++;
    } else {
        txn_volume_rename(txn, (struct volume_id){slot->volume->object.id}, name);
        struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
        snprintf(state->name, sizeof state->name, "%s", name);
    }
    client->slot[0] = slot;
    slot->in_flight++;
    slot->exclusive = true;
    client->rename_or_resize = true;
    commit(client, txn, 0);
    return true;
}

static bool start_resize(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = slot_for_change(workload);
    if (slot == NULL || slot->volume->vast)
        return false;
    uint64_t before = size_of(slot), size = new_size(workload);
    begin_txn(client);
    struct txn *txn = txn_begin(workload->store);
    txn_volume_resize(txn, (struct volume_id){slot->volume->object.id}, size);
    struct model_state *state = model_change(workload->model, client->op, &slot->volume->object);
    state->size_bytes = size;
    model_resized(workload->model, client->op, slot->volume, before, size);
    client->slot[0] = slot;
    slot->in_flight++;
    slot->exclusive = true;
    client->rename_or_resize = true;
    commit(client, txn, TXN_RESERVE);
    return true;
}

// ---- Choice ----

// Writes walk through the volumes in order, so that every block is written again before the log comes round.
static bool start_walk(struct client *client)
{
    struct workload *workload = client->workload;
    struct slot *slot = any_slot(workload);
    if (slot == NULL)
        return false;
    if (slot->walk >= size_of(slot))
        slot->walk = 0;
    client->io.op = VOLUME_WRITE;
    client->io.offset = slot->walk;
    client->io.length = (1 + pick(workload, 8)) * BLOCK_SIZE;
    if (client->io.length > size_of(slot) - slot->walk)
        client->io.length = size_of(slot) - slot->walk;
    slot->walk += client->io.length;
    client->op = model_begin(workload->model, MODEL_WRITE);
    get_buffer(client, client->io.length);
    model_fill(client->op->id, client->io.offset, client->buffer, client->io.length);
    model_touch(workload->model, client->op, slot->volume, client->io.offset, client->io.length);
    client->io.done = write_done;
    submit(client, slot);
    return true;
}

static bool start_rewrite(struct client *client)
{
    unsigned dice = (unsigned)pick(client->workload, 100);
    if (dice < 80)
        return start_walk(client);
    return dice < 90 ? start_flush(client) : start_read(client);
}

static bool start_something(struct client *client)
{
    struct workload *workload = client->workload;
    if (workload->options.rewrite_only && any_slot(workload) != NULL)
        return start_rewrite(client);
    unsigned dice = (unsigned)pick(workload, 100);
    if (workload->full > 0 && dice < 40)
        return chance(workload, 30)   ? start_delete(client)
               : chance(workload, 50) ? start_doc_change(client, true)
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
        return start_fork(client, dice < 77, dice >= 76);
    if (dice < 83)
        return start_machine(client);
    if (dice < 88)
        return start_create(client);
    if (dice < 92)
        return start_doc_change(client, dice < 90);
    if (dice < 95)
        return start_delete(client);
    return dice < 97 ? start_rename(client) : start_resize(client);
}

static void next_request(struct client *client)
{
    struct workload *workload = client->workload;
    if (workload->paused || workload->started >= workload->options.operations || workload->failure[0] != '\0')
        return;
    workload->started++;
    client->busy = true;
    workload->unanswered++;
    client->io = (struct volume_io){.flags = chance(workload, 10) ? VOLUME_FUA : 0};
    bool started = start_something(client) || start_create(client) || start_flush(client);
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
        reopen(workload, &workload->slot[slots++]);
    }
    return workload;
}

bool workload_poll(struct workload *workload)
{
    for (unsigned i = 0; i < workload->options.clients; i++)
        if (!workload->client[i].busy && !workload->paused && chance(workload, 50))
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
