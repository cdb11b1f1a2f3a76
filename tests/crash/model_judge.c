// SPDX-License-Identifier: Apache-2.0
// The rules at the top of model.h, applied to a picture. Two passes: the first finds the latest moment that
// anything visible proves the log to have reached, the second holds everything against it.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/model_block.h"

// ---- Catalog ----

static void evidence(struct judge *judge, struct model_op *op, int value, const char *what)
{
    if (op->kind == MODEL_INITIAL)
        return;
    if (value > 0)
        model_block_reached(judge, op->submitted, what, 0);
    if (judge->gathering)
        return;
    if (op->evidence == -value)
        model_block_blame(judge, "transaction op %llu is there only in part: %s says it %s",
                (unsigned long long)op->id, what, value > 0 ? "happened" : "did not happen");
    op->evidence = value;
}

// Which states of the object agree with what is shown; `same` says so. Blames when none may be there.
static void judge_object(struct judge *judge, const struct model_object *object, const char *what,
        bool (*same)(const struct model_state *state, const void *shown), const void *shown)
{
    struct rule rule = {judge, NULL};
    size_t found = 0, match = 0;
    const struct model_state *replaced = NULL, *by = NULL;
    for (size_t i = 0; i < object->state_count; i++) {
        const struct model_state *state = &object->state[i];
        if (state->op->rejected || !same(state, shown))
            continue;
        const struct model_state *later = NULL;
        for (size_t j = i + 1; j < object->state_count; j++)
            if (!object->state[j].op->rejected && model_block_required(&rule, object->state[j].op))
                later = &object->state[j];
        if (later != NULL) {
            replaced = state;
            by = later;
            continue;
        }
        found++;
        match = i;
    }
    if (found == 0 && replaced != NULL)
        model_block_blame(judge, "%s is as op %llu left it, but op %llu (answered t=%llu%s) must be there",
                what, (unsigned long long)replaced->op->id, (unsigned long long)by->op->id,
                (unsigned long long)by->op->ended, by->op->durable ? ", durable" : "");
    else if (found == 0)
        model_block_blame(
                judge, "%s is %s in a state that it never had", what, shown ? "there," : "missing,");
    if (found != 1)
        return;
    evidence(judge, object->state[match].op, 1, what);
    for (size_t j = match + 1; j < object->state_count; j++)
        if (!object->state[j].op->rejected)
            evidence(judge, object->state[j].op, -1, what);
}

static bool same_volume(const struct model_state *state, const void *shown)
{
    const struct picture_volume *volume = shown;
    if (volume == NULL || !state->exists)
        return (volume == NULL) == !state->exists;
    return strcmp(volume->info.name, state->name) == 0 && volume->info.size_bytes == state->size_bytes;
}

static bool same_doc(const struct model_state *state, const void *shown)
{
    const struct picture_doc *doc = shown;
    if (doc == NULL || !state->exists)
        return (doc == NULL) == !state->exists;
    if (strcmp(doc->doc.name, state->name) != 0 || doc->doc.base_count != state->base_count ||
            doc->doc.volume_count != state->volume_count || doc->doc.body_bytes != state->body_bytes)
        return false;
    for (unsigned i = 0; i < state->base_count; i++)
        if (doc->doc.bases[i].value != state->base[i])
            return false;
    for (unsigned i = 0; i < state->volume_count; i++)
        if (doc->doc.volumes[i].value != state->volume[i])
            return false;
    uint64_t seed = 0;
    if (state->body_bytes >= sizeof seed)
        memcpy(&seed, doc->doc.body, sizeof seed);
    return seed == state->body_seed &&
           (state->body_bytes <= 8 ||
                   fill_matches(seed, 8, (const uint8_t *)doc->doc.body + 8, state->body_bytes - 8));
}

static bool known_base(const struct model *model, uint64_t id)
{
    for (size_t i = 0; i < model->base_count; i++)
        if (model->base[i]->id == id)
            return true;
    return false;
}

// A volume comes from the base it was made over, and then from the last one it was frozen as.
static bool right_parent(const struct model *model, const struct model_volume *volume, uint64_t id)
{
    for (size_t i = 0; i < model->base_count; i++)
        if (model->base[i]->volume == volume && model->base[i]->id == id && !model->base[i]->op->rejected)
            return true;
    return id == volume->first_parent;
}

static void judge_volumes(struct judge *judge)
{
    char what[48];
    for (size_t i = 0; i < judge->model->volume_count && !judge->guilty; i++) {
        const struct model_volume *volume = judge->model->volume[i];
        const struct picture_volume *shown = picture_volume(judge->picture, volume->object.id);
        snprintf(what, sizeof what, "volume %llu", (unsigned long long)volume->object.id);
        judge_object(judge, &volume->object, what, same_volume, shown);
        if (shown == NULL || judge->guilty)
            continue;
        struct rule rule = {judge, NULL};
        if (shown->content.count > volume->block_count)
            model_block_blame(judge, "%s is larger than it ever was", what);
        else
            model_block_judge_content(
                    judge, &rule, what, volume->parent, volume->block, volume->vast, &shown->content);
        if (shown->info.kind != volume->kind || !right_parent(judge->model, volume, shown->info.parent.value))
            model_block_blame(judge, "%s has the wrong kind or parent (%llu)", what,
                    (unsigned long long)shown->info.parent.value);
        if (shown->info.domain != volume->domain)
            model_block_blame(judge, "%s is in domain %llu instead of %llu", what,
                    (unsigned long long)shown->info.domain, (unsigned long long)volume->domain);
    }
    for (size_t i = 0; i < judge->picture->volume_count; i++) {
        bool known = false;
        for (size_t j = 0; j < judge->model->volume_count; j++)
            known = known || judge->model->volume[j]->object.id == judge->picture->volumes[i].info.id.value;
        if (!known)
            model_block_blame(judge, "volume %llu '%s' appeared from nothing",
                    (unsigned long long)judge->picture->volumes[i].info.id.value,
                    judge->picture->volumes[i].info.name);
    }
}

static void judge_bases(struct judge *judge)
{
    char what[48];
    for (size_t i = 0; i < judge->model->base_count && !judge->guilty; i++) {
        const struct model_base *base = judge->model->base[i];
        const struct picture_base *shown = picture_base(judge->picture, base->id);
        if (shown == NULL)
            continue;
        snprintf(what, sizeof what, "base %llu", (unsigned long long)base->id);
        if (base->op->rejected)
            model_block_blame(judge, "%s is there, but its transaction was refused", what);
        evidence(judge, base->op, 1, what);
        bool named = false;
        for (size_t j = 0; j < judge->picture->doc_count; j++)
            for (unsigned k = 0; k < judge->picture->docs[j].doc.base_count; k++)
                named = named || judge->picture->docs[j].doc.bases[k].value == base->id;
        if (!named)
            model_block_blame(judge, "%s is there, and no doc refers to it", what);
        if (shown->info.domain != base->domain)
            model_block_blame(judge, "%s is in domain %llu instead of %llu", what,
                    (unsigned long long)shown->info.domain, (unsigned long long)base->domain);
        struct rule rule = {judge, base};
        if (shown->info.size_bytes != base->size_bytes || shown->content.count != base->block_count)
            model_block_blame(judge, "%s has %llu bytes instead of %llu", what,
                    (unsigned long long)shown->info.size_bytes, (unsigned long long)base->size_bytes);
        else
            model_block_judge_content(
                    judge, &rule, what, base->parent, base->block, base->vast, &shown->content);
    }
    for (size_t i = 0; i < judge->picture->base_count; i++)
        if (!known_base(judge->model, judge->picture->bases[i].info.id.value))
            model_block_blame(judge, "base %llu appeared from nothing",
                    (unsigned long long)judge->picture->bases[i].info.id.value);
}

static void judge_blob(
        struct judge *judge, const struct model_doc *doc, const struct picture_doc *shown, const char *what)
{
    uint64_t seed = 0;
    if (shown->blob_result < 0)
        return; // a tolerated read error
    if (shown->blob_bytes != doc->blob_bytes) {
        model_block_blame(
                judge, "%s has a blob of %zu bytes instead of %zu", what, shown->blob_bytes, doc->blob_bytes);
        return;
    }
    if (doc->blob_bytes < 8)
        return;
    memcpy(&seed, shown->blob, sizeof seed);
    if (seed != doc->blob_seed ||
            !fill_matches(seed, 8, (const uint8_t *)shown->blob + 8, doc->blob_bytes - 8))
        model_block_blame(judge, "%s has a blob with the wrong bytes", what);
}

static void judge_docs(struct judge *judge)
{
    char what[48];
    for (size_t i = 0; i < judge->model->doc_count && !judge->guilty; i++) {
        const struct model_doc *doc = judge->model->doc[i];
        const struct picture_doc *shown = picture_doc(judge->picture, doc->object.id);
        snprintf(what, sizeof what, "doc %llu", (unsigned long long)doc->object.id);
        judge_object(judge, &doc->object, what, same_doc, shown);
        if (shown != NULL)
            judge_blob(judge, doc, shown, what);
        for (unsigned j = 0; shown != NULL && j < shown->doc.base_count; j++)
            if (picture_base(judge->picture, shown->doc.bases[j].value) == NULL)
                model_block_blame(judge, "%s refers to base %llu, which is gone", what,
                        (unsigned long long)shown->doc.bases[j].value);
        for (unsigned j = 0; shown != NULL && j < shown->doc.volume_count; j++)
            if (picture_volume(judge->picture, shown->doc.volumes[j].value) == NULL)
                model_block_blame(judge, "%s refers to volume %llu, which is gone", what,
                        (unsigned long long)shown->doc.volumes[j].value);
    }
    for (size_t i = 0; i < judge->picture->doc_count; i++) {
        bool known = false;
        for (size_t j = 0; j < judge->model->doc_count; j++)
            known = known || judge->model->doc[j]->object.id == judge->picture->docs[i].doc.id.value;
        if (!known)
            model_block_blame(judge, "doc %llu '%s' appeared from nothing",
                    (unsigned long long)judge->picture->docs[i].doc.id.value,
                    judge->picture->docs[i].doc.name);
    }
}

bool model_judge(
        struct model *model, const struct picture *picture, enum model_mode mode, char *why, size_t why_size)
{
    struct judge judge = {.model = model,
            .picture = picture,
            .mode = mode,
            .before = model->clock + 1,
            .why = why,
            .why_size = why_size};
    for (int pass = mode == MODEL_POWER_CUT ? 0 : 1; pass < 2; pass++) {
        judge.gathering = pass == 0;
        for (size_t i = 0; i < model->op_count; i++)
            model->op[i]->evidence = 0;
        judge_bases(&judge);
        judge_volumes(&judge);
        judge_docs(&judge);
    }
    return !judge.guilty;
}

bool model_judge_read(struct model *model, struct model_volume *volume, struct model_base *base,
        uint64_t offset, const uint8_t *bytes, uint64_t length, uint64_t submitted, char *why,
        size_t why_size)
{
    struct judge judge = {
            .model = model, .mode = MODEL_LIVE, .before = submitted, .why = why, .why_size = why_size};
    struct rule rule = {&judge, base};
    bool vast = volume ? volume->vast : base->vast;
    uint64_t count = volume ? volume->block_count : base->block_count;
    char what[64];
    snprintf(what, sizeof what, "a read of %s %llu", volume ? "volume" : "base",
            (unsigned long long)(volume ? volume->object.id : base->id));
    for (uint64_t index = layout_first_index(vast, offset); index < count && !judge.guilty; index++) {
        uint64_t number = layout_number(vast, index), begin = number * BLOCK_SIZE;
        if (begin >= offset + length)
            break;
        unsigned from = begin < offset ? (unsigned)(offset - begin) : 0;
        uint64_t end = offset + length - begin;
        unsigned to = end < BLOCK_SIZE ? (unsigned)end : BLOCK_SIZE;
        uint8_t block[BLOCK_SIZE];
        memcpy(block + from, bytes + (begin + from - offset), to - from);
        const struct model_history *history = volume ? &volume->block[index] : &base->block[index];
        model_block_judge(&judge, &rule, what, volume ? volume->parent : base->parent, history, index, number,
                block, from, to);
    }
    return !judge.guilty;
}
