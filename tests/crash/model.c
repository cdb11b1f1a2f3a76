// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/layout.h"

static void *grow(void *array, size_t *capacity, size_t wanted, size_t item_size)
{
    if (wanted <= *capacity)
        return array;
    size_t size = *capacity ? *capacity * 2 : 4;
    while (size < wanted)
        size *= 2;
    array = realloc(array, size * item_size);
    if (array == NULL)
        abort();
    *capacity = size;
    return array;
}

static void *zalloc(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

struct model *model_create(uint64_t first_op_id)
{
    struct model *model = zalloc(sizeof *model);
    model->clock = 10;
    model->next_id = first_op_id;
    model->initial = (struct model_op){
            .kind = MODEL_INITIAL, .submitted = 0, .ended = 1, .promised = true, .durable = true};
    return model;
}

static void blocks_free(struct model_history *block, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        free(block[i].entry);
    free(block);
}

struct model *model_destroy(struct model *model)
{
    if (model == NULL)
        return NULL;
    for (size_t i = 0; i < model->op_count; i++)
        free(model->op[i]);
    for (size_t i = 0; i < model->volume_count; i++) {
        blocks_free(model->volume[i]->block, model->volume[i]->block_count);
        free(model->volume[i]->object.state);
        free(model->volume[i]);
    }
    for (size_t i = 0; i < model->base_count; i++) {
        blocks_free(model->base[i]->block, model->base[i]->block_count);
        free(model->base[i]);
    }
    for (size_t i = 0; i < model->doc_count; i++) {
        free(model->doc[i]->object.state);
        free(model->doc[i]);
    }
    for (size_t i = 0; i < model->kept_count; i++)
        free(model->kept[i]);
    free(model->op);
    free(model->volume);
    free(model->base);
    free(model->doc);
    free(model->kept);
    free(model);
    return NULL;
}

// ---- Operations ----

struct model_op *model_begin(struct model *model, enum model_kind kind)
{
    struct model_op *op = zalloc(sizeof *op);
    op->id = model->next_id++;
    op->kind = kind;
    op->fill = op->id;
    op->submitted = ++model->clock;
    model->op = grow(model->op, &model->op_capacity, model->op_count + 1, sizeof *model->op);
    model->op[model->op_count++] = op;
    return op;
}

void model_end(struct model *model, struct model_op *op, int result, bool durable)
{
    op->ended = ++model->clock;
    op->promised = result >= 0;
    op->durable = op->promised && durable;
    // A refused transaction has changed nothing; a failed write may be there in part.
    bool in_doubt = result == -EIO || result == -ESTALE;
    op->rejected = result < 0 && op->kind == MODEL_TXN && !in_doubt;
    if (op->tail != NULL) {
        op->tail->ended = op->ended;
        op->tail->promised = op->promised;
        op->tail->durable = op->durable;
    }
    if (model->trace)
        fprintf(model->trace, "t=%llu op %llu answered %d%s\n", (unsigned long long)model->clock,
                (unsigned long long)op->id, result, op->durable ? " durable" : "");
}

uint64_t model_tick(struct model *model)
{
    return ++model->clock;
}

void model_flushed(struct model *model, uint64_t flush_began)
{
    for (size_t i = 0; i < model->op_count; i++)
        if (model->op[i]->promised && model->op[i]->ended < flush_began)
            model->op[i]->durable = true;
    if (model->trace)
        fprintf(model->trace, "t=%llu flush begun at t=%llu answered\n", (unsigned long long)model->clock,
                (unsigned long long)flush_began);
}

// Forgets what can never show again in a volume: it ended before a durable operation on the whole block was
// submitted, which itself ended before any read under way began. (In a base that is being made, neither
// holds.)
static void prune(const struct model *model, struct model_history *history)
{
    uint64_t horizon = model->clock + 1, latest = 0;
    for (size_t i = 0; i < MODEL_READS_MAX; i++)
        if (model->read[i] != 0 && model->read[i] < horizon)
            horizon = model->read[i];
    for (size_t i = 1; i < history->count; i++) {
        const struct model_entry *entry = &history->entry[i];
        if (entry->op->durable && entry->op->ended < horizon && entry->from == 0 && entry->to == BLOCK_SIZE &&
                entry->op->submitted > latest)
            latest = entry->op->submitted;
    }
    size_t kept = 1;
    for (size_t i = 1; i < history->count; i++) {
        const struct model_entry *entry = &history->entry[i];
        if (!entry->op->rejected && (entry->op->ended == 0 || entry->op->ended >= latest))
            history->entry[kept++] = *entry;
    }
    history->count = kept;
}

uint64_t model_read_begin(struct model *model)
{
    uint64_t began = ++model->clock;
    for (size_t i = 0; i < MODEL_READS_MAX; i++) {
        if (model->read[i] == 0) {
            model->read[i] = began;
            return began;
        }
    }
    abort(); // more clients than the model was made for
}

void model_read_end(struct model *model, uint64_t began)
{
    for (size_t i = 0; i < MODEL_READS_MAX; i++)
        if (model->read[i] == began)
            model->read[i] = 0;
}

static void history_add(struct model_history *history, struct model_entry entry)
{
    history->entry = grow(history->entry, &history->capacity, history->count + 1, sizeof *history->entry);
    history->entry[history->count++] = entry;
}

// Adds the operation to every block of the range, by index.
static void touch_blocks(struct model_history *block, uint64_t count, bool vast, struct model_op *op,
        uint64_t offset, uint64_t length)
{
    for (uint64_t index = layout_first_index(vast, offset); index < count; index++) {
        uint64_t begin = layout_number(vast, index) * BLOCK_SIZE, end = begin + BLOCK_SIZE;
        if (begin >= offset + length)
            break;
        begin = begin < offset ? offset : begin;
        end = end > offset + length ? offset + length : end;
        struct model_entry entry = {.op = op, .from = begin % BLOCK_SIZE};
        entry.to = (uint16_t)(entry.from + (end - begin));
        history_add(&block[index], entry);
    }
}

void model_touch(struct model *model, struct model_op *op, struct model_volume *volume, uint64_t offset,
        uint64_t length)
{
    for (uint64_t i = layout_first_index(volume->vast, offset); i < volume->block_count; i++) {
        if (layout_number(volume->vast, i) * BLOCK_SIZE >= offset + length)
            break;
        if (volume->block[i].count >= 8)
            prune(model, &volume->block[i]);
    }
    touch_blocks(volume->block, volume->block_count, volume->vast, op, offset, length);
    // A freeze under way may or may not catch it.
    for (size_t i = 0; i < model->base_count; i++) {
        struct model_base *base = model->base[i];
        if (base->volume == volume && base->op->ended == 0)
            touch_blocks(base->block, base->block_count, base->vast, op, offset, length);
    }
    if (model->trace) {
        static const char *const names[] = {"initial", "write", "zero", "trim", "txn", "observed"};
        fprintf(model->trace, "t=%llu op %llu %s volume %llu [%llu, +%llu)\n",
                (unsigned long long)model->clock, (unsigned long long)op->id, names[op->kind],
                (unsigned long long)volume->object.id, (unsigned long long)offset,
                (unsigned long long)length);
    }
}

// ---- Catalog ----

static struct model_state *state_add(struct model_object *object, struct model_op *op)
{
    object->state =
            grow(object->state, &object->state_capacity, object->state_count + 1, sizeof *object->state);
    struct model_state *state = &object->state[object->state_count];
    const struct model_state *latest = object->state_count > 0 ? model_latest(object) : NULL;
    *state = latest ? *latest : (struct model_state){0};
    state->op = op;
    object->state_count++;
    return state;
}

const struct model_state *model_latest(const struct model_object *object)
{
    for (size_t i = object->state_count; i-- > 1;)
        if (object->state[i].op->ended == 0 || object->state[i].op->promised)
            return &object->state[i];
    return &object->state[0];
}

struct model_state *model_change(struct model *model, struct model_op *txn, struct model_object *object)
{
    if (model->trace)
        fprintf(model->trace, "t=%llu op %llu changes object %llu\n", (unsigned long long)model->clock,
                (unsigned long long)txn->id, (unsigned long long)object->id);
    return state_add(object, txn);
}

static void blocks_reserve(struct model *model, struct model_volume *volume, uint64_t count)
{
    if (count <= volume->block_count)
        return;
    volume->block = realloc(volume->block, count * sizeof *volume->block);
    if (volume->block == NULL)
        abort();
    for (uint64_t i = volume->block_count; i < count; i++) {
        volume->block[i] = (struct model_history){0};
        history_add(&volume->block[i],
                (struct model_entry){
                        .op = &model->initial, .to = BLOCK_SIZE, .through_base = volume->parent != NULL});
    }
    volume->block_count = count;
}

struct model_volume *model_volume_add(struct model *model, struct model_op *txn, uint64_t id,
        enum volume_kind kind, uint64_t size_bytes, const char *name, struct model_base *parent)
{
    struct model_volume *volume = zalloc(sizeof *volume);
    volume->object.id = id;
    volume->kind = kind;
    volume->vast = layout_is_vast(size_bytes);
    volume->parent = parent;
    volume->first_parent = parent ? parent->id : 0;
    volume->domain =
            parent ? parent->domain : 0; // a child stays where its parent is, unless it is put elsewhere
    blocks_reserve(model, volume, layout_count(size_bytes));
    state_add(&volume->object, &model->initial);
    struct model_state *state = state_add(&volume->object, txn);
    state->exists = true;
    state->size_bytes = size_bytes;
    snprintf(state->name, sizeof state->name, "%s", name);
    model->volume =
            grow(model->volume, &model->volume_capacity, model->volume_count + 1, sizeof *model->volume);
    model->volume[model->volume_count++] = volume;
    if (model->trace)
        fprintf(model->trace, "t=%llu op %llu creates volume %llu '%s' of %llu bytes over base %llu\n",
                (unsigned long long)model->clock, (unsigned long long)txn->id, (unsigned long long)id, name,
                (unsigned long long)size_bytes, (unsigned long long)(parent ? parent->id : 0));
    return volume;
}

struct model_doc *model_doc_add(
        struct model *model, uint64_t id, enum doc_kind kind, uint64_t blob_seed, size_t blob_bytes)
{
    struct model_doc *doc = zalloc(sizeof *doc);
    doc->object.id = id;
    doc->kind = kind;
    doc->blob_seed = blob_seed;
    doc->blob_bytes = blob_bytes;
    state_add(&doc->object, &model->initial);
    model->doc = grow(model->doc, &model->doc_capacity, model->doc_count + 1, sizeof *model->doc);
    model->doc[model->doc_count++] = doc;
    return doc;
}

struct model_base *model_base_add(
        struct model *model, struct model_op *txn, uint64_t id, struct model_volume *volume)
{
    struct model_base *base = zalloc(sizeof *base);
    const struct model_state *state = model_latest(&volume->object);
    base->id = id;
    base->volume = volume;
    base->domain = volume->domain;
    base->op = txn;
    base->size_bytes = state->size_bytes;
    base->vast = volume->vast;
    base->parent = volume->parent;
    base->block_count = layout_count(state->size_bytes);
    base->block = zalloc(base->block_count * sizeof *base->block + 1);
    for (uint64_t i = 0; i < base->block_count; i++)
        for (size_t j = 0; j < volume->block[i].count; j++)
            history_add(&base->block[i], volume->block[i].entry[j]);
    model->base = grow(model->base, &model->base_capacity, model->base_count + 1, sizeof *model->base);
    model->base[model->base_count++] = base;
    if (model->trace)
        fprintf(model->trace, "t=%llu op %llu freezes volume %llu as base %llu\n",
                (unsigned long long)model->clock, (unsigned long long)txn->id,
                (unsigned long long)volume->object.id, (unsigned long long)id);
    return base;
}

void model_resized(struct model *model, struct model_op *txn, struct model_volume *volume, uint64_t old_bytes,
        uint64_t new_bytes)
{
    blocks_reserve(model, volume, layout_count(new_bytes));
    if (new_bytes < old_bytes && new_bytes % BLOCK_SIZE != 0) {
        txn->tail = model_begin(model, MODEL_ZERO);
        touch_blocks(volume->block, volume->block_count, volume->vast, txn->tail, new_bytes,
                BLOCK_SIZE - new_bytes % BLOCK_SIZE);
    }
    if (new_bytes < old_bytes)
        touch_blocks(volume->block, volume->block_count, volume->vast, txn, new_bytes,
                (old_bytes - new_bytes + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE);
    else // new space reads zero, whatever raced with an earlier shrink
        touch_blocks(volume->block, volume->block_count, volume->vast, txn, old_bytes, new_bytes - old_bytes);
    // Blocks that a fork's base has beyond the old end were never part of this volume.
    for (uint64_t i = layout_count(old_bytes); i < volume->block_count; i++)
        if (volume->block[i].count == 1)
            volume->block[i].entry[0].through_base = false;
}

// ---- Facts ----

static const uint8_t *keep(struct model *model, const uint8_t *bytes)
{
    void *copy = malloc(BLOCK_SIZE);
    if (copy == NULL)
        abort();
    memcpy(copy, bytes, BLOCK_SIZE);
    model->kept = grow(model->kept, &model->kept_capacity, model->kept_count + 1, sizeof *model->kept);
    model->kept[model->kept_count++] = copy;
    return copy;
}

static bool is_zero(const uint8_t *bytes)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, BLOCK_SIZE - 1) == 0;
}

static struct model_entry observed_entry(
        struct model *model, struct model_op *op, const struct picture_content *content, uint64_t i)
{
    const uint8_t *bytes = content->bytes + i * BLOCK_SIZE;
    return (struct model_entry){.op = op,
            .to = BLOCK_SIZE,
            .data = content->kinds[i] == EXTENT_DATA,
            .bytes = is_zero(bytes) ? NULL : keep(model, bytes)};
}

// Does the last operation on the block leave no doubt about what it holds?
static bool settled(const struct model_history *history)
{
    const struct model_entry *last = &history->entry[history->count - 1];
    if (history->count == 1)
        return true;
    if (!last->op->promised || last->from != 0 || last->to != BLOCK_SIZE)
        return false;
    for (size_t i = 0; i + 1 < history->count; i++)
        if (history->entry[i].op->ended == 0 || history->entry[i].op->ended >= last->op->submitted)
            return false;
    return true;
}

void model_observe(struct model *model, const struct picture *picture)
{
    struct model_op *seen[2]; // of blocks not all durable, all durable
    for (int i = 0; i < 2; i++) {
        seen[i] = model_begin(model, MODEL_OBSERVED);
        seen[i]->ended = seen[i]->submitted;
        seen[i]->promised = true;
        seen[i]->durable = i == 1;
    }
    for (size_t v = 0; v < model->volume_count; v++) {
        struct model_volume *volume = model->volume[v];
        const struct picture_volume *shown = picture_volume(picture, volume->object.id);
        for (uint64_t i = 0; shown != NULL && i < shown->content.count; i++) {
            struct model_history *history = &volume->block[i];
            prune(model, history);
            if (settled(history))
                continue;
            bool durable = true;
            for (size_t j = 1; j < history->count; j++)
                durable = durable && history->entry[j].op->durable;
            history_add(history, observed_entry(model, seen[durable], &shown->content, i));
        }
    }
    for (size_t b = 0; b < model->base_count; b++) {
        struct model_base *base = model->base[b];
        const struct picture_base *shown = picture_base(picture, base->id);
        for (uint64_t i = 0; shown != NULL && i < shown->content.count; i++) {
            if (base->block[i].count == 1)
                continue;
            base->block[i].count = 1;
            base->block[i].entry[0] = observed_entry(model, &model->initial, &shown->content, i);
        }
    }
}

static void take_volume(struct model *model, const struct picture_volume *shown)
{
    struct model_volume *volume = model_volume_add(model, &model->initial, shown->info.id.value,
            shown->info.kind, shown->info.size_bytes, shown->info.name, NULL);
    volume->first_parent = shown->info.parent.value;
    volume->domain = shown->info.domain;
    for (uint64_t i = 0; i < shown->content.count; i++)
        volume->block[i].entry[0] = observed_entry(model, &model->initial, &shown->content, i);
}

static void take_base(struct model *model, const struct picture_base *shown)
{
    struct model_base *base = zalloc(sizeof *base);
    base->id = shown->info.id.value;
    base->domain = shown->info.domain;
    base->op = &model->initial;
    base->size_bytes = shown->info.size_bytes;
    base->vast = layout_is_vast(base->size_bytes);
    base->block_count = shown->content.count;
    base->block = zalloc(base->block_count * sizeof *base->block + 1);
    for (uint64_t i = 0; i < base->block_count; i++)
        history_add(&base->block[i], observed_entry(model, &model->initial, &shown->content, i));
    model->base = grow(model->base, &model->base_capacity, model->base_count + 1, sizeof *model->base);
    model->base[model->base_count++] = base;
}

// Bodies and blobs carry their seed in the first eight bytes, so that they can be known again.
static uint64_t seed_in(const void *bytes, size_t size)
{
    uint64_t seed = 0;
    if (size >= sizeof seed)
        memcpy(&seed, bytes, sizeof seed);
    return seed;
}

static void take_doc(struct model *model, const struct picture_doc *shown)
{
    struct model_doc *doc = model_doc_add(model, shown->doc.id.value, shown->doc.kind,
            seed_in(shown->blob, shown->blob_bytes), shown->blob_bytes);
    struct model_state *state = state_add(&doc->object, &model->initial);
    state->exists = true;
    snprintf(state->name, sizeof state->name, "%.47s", shown->doc.name);
    state->body_seed = seed_in(shown->doc.body, shown->doc.body_bytes);
    state->body_bytes = shown->doc.body_bytes;
    state->base_count = shown->doc.base_count;
    state->volume_count = shown->doc.volume_count;
    for (unsigned i = 0; i < state->base_count; i++)
        state->base[i] = shown->doc.bases[i].value;
    for (unsigned i = 0; i < state->volume_count; i++)
        state->volume[i] = shown->doc.volumes[i].value;
}

struct model *model_from_picture(const struct picture *picture, uint64_t first_op_id)
{
    struct model *model = model_create(first_op_id);
    for (size_t i = 0; i < picture->base_count; i++)
        take_base(model, &picture->bases[i]);
    for (size_t i = 0; i < picture->volume_count; i++)
        take_volume(model, &picture->volumes[i]);
    for (size_t i = 0; i < picture->doc_count; i++)
        take_doc(model, &picture->docs[i]);
    return model;
}
