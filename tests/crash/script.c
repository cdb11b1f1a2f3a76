// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/script_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/txn.h"
#include "tests/crash/fill.h"
#include "tests/crash/scenarios.h"

void script_blame(struct script *script, const char *format, ...)
{
    if (script->failed)
        return;
    script->failed = true;
    int used = snprintf(script->text, sizeof script->text, "script seed %" PRIu64 " I/O %" PRIu64 ": ",
            script->seed, sim_world_io_count(script->rig.world));
    va_list args;
    va_start(args, format);
    vsnprintf(script->text + used, sizeof script->text - (size_t)used, format, args);
    va_end(args);
}

void script_fail(struct script *script, const char *text)
{
    script_blame(script, "%s", text);
}

void script_begin(struct script *script, uint64_t seed, const struct store_config *config,
        const struct sim_options *sim)
{
    script_begin_with(script, seed, config, NULL, sim);
}

void script_begin_with(struct script *script, uint64_t seed, const struct store_config *config,
        const struct store_config *opening, const struct sim_options *sim)
{
    *script = (struct script){.seed = seed};
    char why[900];
    struct sim_options traced = *sim;
    traced.trace = scenarios_trace;
    struct sim_world *world = sim_world_create(seed, &traced);
    script->rig.world = world;
    script->model = model_create(1);
    script->model->trace = scenarios_trace;
    if (rig_init(world, config, why, sizeof why) < 0 ||
            rig_open(&script->rig, world, 1 + seed % 3, opening, why, sizeof why) < 0)
        script_blame(script, "%s", why);
}

void script_join(struct script *script, const struct rig *rig, struct model *model)
{
    *script = (struct script){.rig = *rig, .model = model, .joined = true};
}

void script_cut_always(struct script *script, bool on)
{
    script->cut_always = on;
    script->last_io = sim_world_io_count(script->rig.world);
}

void script_allow(struct script *script, int error)
{
    script->allowed = error;
}

// ---- Crash points ----

void script_crash(struct script *script, bool power, bool recheck, const struct picture *same_as)
{
    uint64_t io = sim_world_io_count(script->rig.world), random = script->seed * 1000003 + io * 2 + power;
    uint64_t seed = sim_random(&random);
    struct sim_options sim = {.loop_count = 4};
    struct sim_world *after = power ? sim_world_after_power_cut(script->rig.world, seed, &sim)
                                    : sim_world_after_kill(script->rig.world, seed, &sim);
    struct rig_options options = {.loop_count = 1 + (unsigned)(seed % 3),
            .opening = script->rig.opening,
            .seed = seed,
            .recheck = recheck};
    struct picture picture;
    char why[1200];
    const char *what = power ? "power cut" : "kill";
    script->points++;
    if (rig_recover(after, &options, &picture, why, sizeof why) < 0) {
        script_blame(script, "%s: %s", what, why);
        return;
    }
    if (!model_judge(script->model, &picture, power ? MODEL_POWER_CUT : MODEL_KILLED, why, sizeof why))
        script_blame(script, "%s: %s", what, why);
    else if (same_as != NULL && picture_differ(same_as, &picture, why, sizeof why))
        script_blame(script, "%s; live and recovered differ: %s", what, why);
    picture_free(&picture);
}

static void step(struct script *script)
{
    if (sim_world_step(script->rig.world) == 0)
        script_blame(script, "nothing is left to happen, and a request is not answered");
    if (sim_world_violation(script->rig.world) != NULL)
        script_blame(script, "contract of the I/O seam: %s", sim_world_violation(script->rig.world));
    uint64_t io = sim_world_io_count(script->rig.world);
    if (!script->cut_always || io == script->last_io || script->failed)
        return;
    script->last_io = io;
    script_crash(script, io % 3 != 0, io % 16 == 0, NULL);
}

// ---- Requests ----

struct script_io *script_io_new(struct script *script)
{
    struct script_io *io = calloc(1, sizeof *io);
    script->io = realloc(script->io, (script->io_count + 1) * sizeof *script->io);
    if (io == NULL || script->io == NULL)
        abort();
    script->io[script->io_count++] = io;
    io->script = script;
    return io;
}

static void answered(struct script_io *io, int result, bool durable)
{
    struct script *script = io->script;
    io->done = true;
    io->result = result;
    if (result < 0 && result != script->allowed && !sim_world_is_cut(script->rig.world))
        script_blame(script, "a request answered %d (%s)", result, strerror(-result));
    char why[800];
    if ((io->read != NULL || io->read_base != NULL) && result == 0 && !sim_world_is_cut(script->rig.world) &&
            !model_judge_read(script->model, io->read, io->read_base, io->io.offset, io->io.buffer,
                    io->io.length, io->began, why, sizeof why))
        script_blame(script, "%s", why);
    if (io->read != NULL || io->read_base != NULL)
        model_read_end(script->model, io->began);
    if (io->flush && result == 0)
        model_flushed(script->model, io->began);
    else if (io->op != NULL)
        model_end(script->model, io->op, result, durable);
    io_buffer_free(io->io.buffer);
    io->io.buffer = NULL;
}

static void volume_done(struct volume_io *io, int result)
{
    answered((struct script_io *)io, result, io->flags & VOLUME_FUA);
}

static void txn_done(void *context, int result, const struct error *err)
{
    answered(context, result, false);
}

bool script_answered(const struct script_io *io)
{
    return io->done;
}

int script_wait(struct script *script, struct script_io *io)
{
    while (!io->done && !script->failed)
        step(script);
    return io->result;
}

static struct volume *handle_of(struct script *script, struct model_volume *volume)
{
    size_t id = (size_t)volume->object.id;
    if (id >= script->handle_count) {
        script->handle = realloc(script->handle, (id + 1) * sizeof(struct volume *));
        memset(script->handle + script->handle_count, 0,
                (id + 1 - script->handle_count) * sizeof(struct volume *));
        script->handle_count = id + 1;
    }
    if (script->handle[id] == NULL &&
            volume_open(script->rig.store, (struct volume_id){id}, &script->handle[id]) < 0)
        script_blame(script, "volume %zu cannot be opened", id);
    return script->handle[id];
}

static void submit(struct script *script, struct model_volume *volume, struct script_io *io)
{
    struct volume *handle = script->failed ? NULL : handle_of(script, volume);
    io->io.done = volume_done;
    if (handle == NULL)
        answered(io, script->allowed, false); // the script has failed already
    else
        volume_submit(handle, &io->io);
}

struct script_io *script_write(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length, unsigned flags)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_WRITE);
    io->io = (struct volume_io){.op = VOLUME_WRITE,
            .flags = flags,
            .offset = offset,
            .length = length,
            .buffer = io_buffer_alloc(length)};
    if (script->fill != 0)
        io->op->fill = script->fill;
    else if (script->distinct > 0)
        io->op->fill = fill_shared(script->distinct, io->op->id);
    fill_bytes(io->op->fill, offset, io->io.buffer, length);
    model_touch(script->model, io->op, volume, offset, length);
    submit(script, volume, io);
    return io;
}

struct script_io *script_trim(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TRIM);
    io->io = (struct volume_io){.op = VOLUME_TRIM, .offset = offset, .length = length};
    model_touch(script->model, io->op, volume, offset, length);
    submit(script, volume, io);
    return io;
}

struct script_io *script_read(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length)
{
    struct script_io *io = script_io_new(script);
    io->read = volume;
    io->began = model_read_begin(script->model);
    io->io = (struct volume_io){
            .op = VOLUME_READ, .offset = offset, .length = length, .buffer = io_buffer_alloc(length)};
    submit(script, volume, io);
    return io;
}

void script_read_base(
        struct script *script, struct model_base *base, struct base *handle, uint64_t offset, uint64_t length)
{
    struct script_io *io = script_io_new(script);
    io->read_base = base;
    io->began = model_read_begin(script->model);
    io->io = (struct volume_io){.op = VOLUME_READ,
            .offset = offset,
            .length = length,
            .buffer = io_buffer_alloc(length),
            .done = volume_done};
    if (script->failed)
        answered(io, script->allowed, false);
    else
        base_submit(handle, script->rig.loops[0], &io->io);
    script_wait(script, io);
}

struct script_io *script_flush(struct script *script, struct model_volume *volume)
{
    struct script_io *io = script_io_new(script);
    io->flush = true;
    io->began = model_tick(script->model);
    io->io.op = VOLUME_FLUSH;
    submit(script, volume, io);
    return io;
}

void script_raw_write_and_flush(struct script *script, struct model_volume *volume)
{
    script_wait(script, script_write(script, volume, 0, BLOCK_SIZE, 0));
    struct script_io *io = script_io_new(script);
    io->io.op = VOLUME_FLUSH;
    submit(script, volume, io);
    script_wait(script, io);
    script_leave(script);
}

void script_leave(struct script *script)
{
    if (script->failed)
        return; // something may be unanswered
    sim_world_settle(script->rig.world);
    for (size_t i = 0; i < script->handle_count; i++)
        script->handle[i] = volume_close(script->handle[i]);
    for (size_t i = 0; i < script->io_count; i++)
        free(script->io[i]);
    free(script->io);
    free(script->handle);
    script->io = NULL;
    script->handle = NULL;
    script->io_count = script->handle_count = 0;
}

static struct model_volume *create(
        struct script *script, uint64_t size_bytes, struct model_base *parent, uint64_t domain)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    if (script->failed)
        return model_volume_add(script->model, io->op, 1, VOLUME_DISK, size_bytes, "", parent);
    struct txn *txn = txn_begin(script->rig.store);
    struct volume_id id =
            txn_volume_create(txn, "", VOLUME_DISK, size_bytes, (struct base_id){parent ? parent->id : 0});
    struct model_volume *volume =
            model_volume_add(script->model, io->op, id.value, VOLUME_DISK, size_bytes, "", parent);
    if (domain != 0) {
        txn_volume_domain(txn, id, domain);
        volume->domain = domain;
    }
    txn_commit(txn, 0, txn_done, io);
    script_wait(script, io);
    return volume;
}

struct model_volume *script_create(struct script *script, uint64_t size_bytes, struct model_base *parent)
{
    return create(script, size_bytes, parent, 0);
}

struct model_volume *script_create_in(struct script *script, uint64_t size_bytes, uint64_t domain)
{
    return create(script, size_bytes, NULL, domain);
}

struct script_io *script_resize(struct script *script, struct model_volume *volume, uint64_t size_bytes)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    if (script->failed) {
        answered(io, script->allowed, false);
        return io;
    }
    struct txn *txn = txn_begin(script->rig.store);
    txn_volume_resize(txn, (struct volume_id){volume->object.id}, size_bytes);
    uint64_t before = model_latest(&volume->object)->size_bytes;
    model_change(script->model, io->op, &volume->object)->size_bytes = size_bytes;
    model_resized(script->model, io->op, volume, before, size_bytes);
    txn_commit(txn, 0, txn_done, io);
    return io;
}

struct script_io *script_delete_start(struct script *script, struct model_volume *volume)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    if (script->failed) {
        answered(io, script->allowed, false);
        return io;
    }
    size_t id = (size_t)volume->object.id;
    script->handle[id] = volume_close(handle_of(script, volume));
    struct txn *txn = txn_begin(script->rig.store);
    txn_volume_delete(txn, (struct volume_id){id});
    model_change(script->model, io->op, &volume->object)->exists = false;
    txn_commit(txn, TXN_RESERVE, txn_done, io);
    return io;
}

void script_delete(struct script *script, struct model_volume *volume)
{
    script_wait(script, script_delete_start(script, volume));
}

void script_doc_delete(struct script *script, struct model_doc *doc)
{
    if (script->failed)
        return;
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    struct txn *txn = txn_begin(script->rig.store);
    txn_doc_delete(txn, (struct doc_id){doc->object.id});
    model_change(script->model, io->op, &doc->object)->exists = false;
    txn_commit(txn, TXN_RESERVE, txn_done, io);
    script_wait(script, io);
}

void script_open_race(struct script *script, struct model_volume *volume)
{
    struct script_io *io = script_delete_start(script, volume);
    struct volume *handle = NULL;
    while (!io->done && !script->failed) {
        step(script);
        if (handle == NULL && !io->done)
            volume_open(script->rig.store, (struct volume_id){volume->object.id}, &handle);
    }
    if (handle != NULL && io->result == 0)
        script_blame(script, "a volume could be opened, and was deleted while it was open");
    else
        volume_close(handle);
}

struct script_io *script_fork(struct script *script, struct model_volume *volume)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    if (script->failed) {
        answered(io, script->allowed, false);
        return io;
    }
    struct txn *txn = txn_begin(script->rig.store);
    struct model_base *base = model_base_add(
            script->model, io->op, txn_freeze(txn, (struct volume_id){volume->object.id}).value, volume);
    struct volume_id child = txn_volume_create(txn, "", VOLUME_DISK, 0, (struct base_id){base->id});
    model_volume_add(script->model, io->op, child.value, VOLUME_DISK, base->size_bytes, "", base);
    char body[8] = {0};
    struct doc doc = {.kind = DOC_SNAPSHOT,
            .bases = {{base->id}},
            .base_count = 1,
            .body = body,
            .body_bytes = sizeof body};
    struct model_doc *row = model_doc_add(script->model, 0, DOC_SNAPSHOT, 0, 0);
    struct model_state *state = model_change(script->model, io->op, &row->object);
    state->exists = true;
    state->body_bytes = sizeof body;
    state->base[0] = base->id;
    state->base_count = 1;
    row->object.id = txn_doc_put(txn, &doc, NULL, 0).value;
    txn_commit(txn, 0, txn_done, io);
    return io;
}

struct script_io *script_doc(struct script *script, size_t body_bytes)
{
    struct script_io *io = script_io_new(script);
    io->op = model_begin(script->model, MODEL_TXN);
    if (script->failed) {
        answered(io, script->allowed, false);
        return io;
    }
    struct model_doc *row = model_doc_add(script->model, 0, DOC_OTHER, 0, 0);
    struct model_state *state = model_change(script->model, io->op, &row->object);
    state->exists = true;
    state->body_seed = io->op->id;
    state->body_bytes = body_bytes;
    struct doc doc = {.kind = DOC_OTHER, .body = malloc(body_bytes + 1), .body_bytes = body_bytes};
    memcpy(doc.body, &state->body_seed, 8);
    fill_bytes(state->body_seed, 8, doc.body + 8, body_bytes - 8);
    doc.body[body_bytes] = '\0';
    struct txn *txn = txn_begin(script->rig.store);
    row->object.id = txn_doc_put(txn, &doc, NULL, 0).value;
    free(doc.body);
    txn_commit(txn, 0, txn_done, io);
    return io;
}
