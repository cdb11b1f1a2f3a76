// SPDX-License-Identifier: Apache-2.0
// The rules at the top of model.h, applied to a picture. Two passes: the first finds the latest moment that
// anything visible proves the log to have reached, the second holds everything against it.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/layout.h"
#include "tests/crash/model.h"

enum { CANDIDATES_MAX = 64, PARTS_MAX = 64 };

struct judge {
    struct model *model;
    const struct picture *picture; // NULL when only one read is judged
    enum model_mode mode;
    uint64_t before;  // live: what was answered before this moment is required
    uint64_t reached; // power cut: what was answered before this moment is in the log's surviving prefix
    char witness[96]; // what proved that
    bool gathering;   // first pass: no verdicts
    char *why;
    size_t why_size;
    bool guilty;
};

// What decides whether an operation must be there.
struct rule {
    const struct judge *judge;
    const struct model_base *base; // NULL = a volume or the catalog
};

// A run of bytes of one block that the same operations cover.
struct part {
    unsigned from, to;
    const struct model_entry *shown[CANDIDATES_MAX];
    unsigned shown_count;
};

__attribute__((format(printf, 2, 3))) static void blame(struct judge *judge, const char *format, ...)
{
    if (judge->gathering || judge->guilty)
        return;
    judge->guilty = true;
    va_list args;
    va_start(args, format);
    int used = vsnprintf(judge->why, judge->why_size, format, args);
    va_end(args);
    if (judge->reached > 0 && used > 0 && (size_t)used < judge->why_size)
        snprintf(judge->why + used, judge->why_size - (size_t)used, " [the log reached t=%llu: %s]",
                (unsigned long long)judge->reached, judge->witness);
}

static void reached(struct judge *judge, uint64_t moment, const char *what, uint64_t number)
{
    if (!judge->gathering || moment <= judge->reached)
        return;
    judge->reached = moment;
    snprintf(judge->witness, sizeof judge->witness, "%s block %llu", what, (unsigned long long)number);
}

static bool required(const struct rule *rule, const struct model_op *op)
{
    if (!op->promised)
        return false;
    if (rule->base != NULL)
        return op->ended < rule->base->op->submitted || op->kind == MODEL_INITIAL;
    switch (rule->judge->mode) {
    case MODEL_LIVE:
        return op->ended < rule->judge->before;
    case MODEL_KILLED:
        return true;
    default:
        return op->durable || op->ended < rule->judge->reached;
    }
}

static bool zero_range(const uint8_t *bytes, size_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

static bool fill_matches(uint64_t seed, uint64_t offset, const uint8_t *bytes, size_t size)
{
    uint8_t wanted[512];
    for (size_t done = 0; done < size;) {
        size_t most = done == 0 ? 16 : sizeof wanted; // most that do not match differ at once
        size_t part = size - done < most ? size - done : most;
        model_fill(seed, offset + done, wanted, part);
        if (memcmp(wanted, bytes + done, part) != 0)
            return false;
        done += part;
    }
    return true;
}

static unsigned split(const struct model_history *history, unsigned from, unsigned to, struct part *parts)
{
    unsigned border[2 * PARTS_MAX], count = 0;
    border[count++] = from;
    border[count++] = to;
    for (size_t i = 0; i < history->count && count + 2 < PARTS_MAX; i++) {
        unsigned ends[2] = {history->entry[i].from, history->entry[i].to};
        for (unsigned j = 0; j < 2; j++) {
            unsigned place = 0;
            while (place < count && border[place] < ends[j])
                place++;
            if (ends[j] <= from || ends[j] >= to || border[place] == ends[j])
                continue;
            memmove(border + place + 1, border + place, (count - place) * sizeof border[0]);
            border[place] = ends[j];
            count++;
        }
    }
    for (unsigned i = 0; i + 1 < count; i++) {
        parts[i].from = border[i];
        parts[i].to = border[i + 1];
    }
    return count - 1;
}

static unsigned candidates(const struct rule *rule, const struct model_base *parent,
        const struct model_history *history, uint64_t index, uint64_t number, const uint8_t *bytes,
        unsigned from, unsigned to, const struct model_entry **ret_shown);

// `bytes` points at byte 0 of the block.
static bool base_matches(struct judge *judge, const struct model_base *base, uint64_t index, uint64_t number,
        const uint8_t *bytes, unsigned from, unsigned to)
{
    if (base == NULL || index >= base->block_count)
        return zero_range(bytes + from, to - from);
    const struct picture_base *shown = judge->picture ? picture_base(judge->picture, base->id) : NULL;
    if (shown != NULL && index < shown->content.count && shown->content.kinds[index] != PICTURE_UNREADABLE)
        return memcmp(shown->content.bytes + index * BLOCK_SIZE + from, bytes + from, to - from) == 0;
    struct rule rule = {judge, base};
    struct part parts[PARTS_MAX];
    unsigned count = split(&base->block[index], from, to, parts);
    for (unsigned i = 0; i < count; i++)
        if (candidates(&rule, base->parent, &base->block[index], index, number, bytes, parts[i].from,
                    parts[i].to, parts[i].shown) == 0)
            return false;
    return true;
}

static bool entry_matches(const struct rule *rule, const struct model_base *parent,
        const struct model_entry *entry, uint64_t index, uint64_t number, const uint8_t *bytes, unsigned from,
        unsigned to)
{
    switch (entry->op->kind) {
    case MODEL_WRITE:
        return fill_matches(entry->op->id, number * BLOCK_SIZE + from, bytes + from, to - from);
    case MODEL_INITIAL:
    case MODEL_OBSERVED:
        if (entry->through_base)
            return base_matches((struct judge *)rule->judge, parent, index, number, bytes, from, to);
        if (entry->bytes != NULL)
            return memcmp(entry->bytes + from, bytes + from, to - from) == 0;
        return zero_range(bytes + from, to - from);
    default:
        return zero_range(bytes + from, to - from);
    }
}

static bool covers(const struct model_entry *entry, unsigned from, unsigned to)
{
    return entry->from <= from && entry->to >= to;
}

// Was the entry replaced, on these bytes, by one that must be there?
static const struct model_entry *replaced_by(const struct rule *rule, const struct model_history *history,
        const struct model_entry *entry, unsigned from, unsigned to)
{
    if (entry->op->ended == 0)
        return NULL;
    for (size_t i = 0; i < history->count; i++) {
        const struct model_entry *other = &history->entry[i];
        if (covers(other, from, to) && other->op->submitted > entry->op->ended && required(rule, other->op))
            return other;
    }
    return NULL;
}

// The entries that these bytes may be showing.
static unsigned candidates(const struct rule *rule, const struct model_base *parent,
        const struct model_history *history, uint64_t index, uint64_t number, const uint8_t *bytes,
        unsigned from, unsigned to, const struct model_entry **ret_shown)
{
    unsigned count = 0;
    for (size_t i = 0; i < history->count && count < CANDIDATES_MAX; i++) {
        const struct model_entry *entry = &history->entry[i];
        if (covers(entry, from, to) && !entry->op->rejected &&
                replaced_by(rule, history, entry, from, to) == NULL &&
                entry_matches(rule, parent, entry, index, number, bytes, from, to))
            ret_shown[count++] = entry;
    }
    return count;
}

// ---- Words ----

static void describe(const struct rule *rule, const struct model_entry *entry, char *text, size_t size)
{
    static const char *const names[] = {
            "initial state", "write", "zero", "trim", "transaction", "state seen when quiet"};
    const struct model_op *op = entry->op;
    char ended[40] = "not answered";
    if (op->ended != 0)
        snprintf(ended, sizeof ended, "%s t=%llu", op->promised ? "answered" : "failed",
                (unsigned long long)op->ended);
    snprintf(text, size, "%s op %llu bytes %u..%u (submitted t=%llu, %s%s%s)", names[op->kind],
            (unsigned long long)op->id, entry->from, entry->to, (unsigned long long)op->submitted, ended,
            op->durable ? ", durable" : "", required(rule, op) ? ", required" : "");
}

// What the bytes look like, whether allowed or not.
static void blame_bytes(struct judge *judge, const struct rule *rule, const char *what,
        const struct model_base *parent, const struct model_history *history, uint64_t index, uint64_t number,
        const uint8_t *bytes, const struct part *part)
{
    char shown[448] = "", expected[640] = "";
    for (size_t i = 0; i < history->count; i++) {
        const struct model_entry *entry = &history->entry[i];
        if (!covers(entry, part->from, part->to))
            continue;
        char text[200];
        describe(rule, entry, text, sizeof text);
        if (entry_matches(rule, parent, entry, index, number, bytes, part->from, part->to)) {
            const struct model_entry *by = replaced_by(rule, history, entry, part->from, part->to);
            char other[200] = "a rejected transaction";
            if (by != NULL)
                describe(rule, by, other, sizeof other);
            snprintf(shown, sizeof shown, "%s, replaced by %s", text, other);
        } else if (strlen(expected) + strlen(text) + 3 < sizeof expected) {
            strcat(expected, expected[0] ? "; " : "");
            strcat(expected, text);
        }
    }
    for (size_t i = 0; shown[0] == '\0' && i < judge->model->op_count; i++) {
        const struct model_op *op = judge->model->op[i];
        if (op->kind == MODEL_WRITE && fill_matches(op->id, number * BLOCK_SIZE + part->from,
                                               bytes + part->from, part->to - part->from))
            snprintf(shown, sizeof shown, "write op %llu, which is not this place's",
                    (unsigned long long)op->id);
    }
    if (shown[0] == '\0')
        snprintf(shown, sizeof shown,
                zero_range(bytes + part->from, part->to - part->from)
                        ? "zeros"
                        : "bytes of no known write (%02x %02x %02x %02x)",
                bytes[part->from], bytes[part->from + 1], bytes[part->from + 2], bytes[part->from + 3]);
    blame(judge, "%s block %llu bytes %u..%u shows %s; could be: %s", what, (unsigned long long)number,
            part->from, part->to, shown, expected);
}

// ---- One block ----

static bool may_follow(const struct model_entry *later, const struct model_entry *earlier)
{
    return later->op->ended == 0 || later->op->ended >= earlier->op->submitted;
}

// Rule 3: wholly or not at all. Only parts whose origin is certain are used.
static void judge_atomic(
        struct judge *judge, const char *what, uint64_t number, const struct part *parts, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count; j++) {
            const struct model_entry *a = parts[i].shown[0], *b = parts[j].shown[0];
            if (parts[i].shown_count != 1 || parts[j].shown_count != 1 || a == b ||
                    parts[i].to - parts[i].from < 8 || parts[j].to - parts[j].from < 8 ||
                    !covers(a, parts[j].from, parts[j].to))
                continue;
            // b lies over a here, so b came later; nowhere may a lie over b.
            bool crossed = covers(b, parts[i].from, parts[i].to);
            if (crossed || !may_follow(b, a))
                blame(judge,
                        "%s block %llu mixes op %llu (bytes %u..%u) and op %llu (bytes %u..%u): torn within "
                        "a block",
                        what, (unsigned long long)number, (unsigned long long)a->op->id, parts[i].from,
                        parts[i].to, (unsigned long long)b->op->id, parts[j].from, parts[j].to);
        }
    }
}

static bool base_may_be_data(const struct judge *judge, const struct model_base *base, uint64_t index)
{
    if (base == NULL || index >= base->block_count)
        return false;
    const struct picture_base *shown = judge->picture ? picture_base(judge->picture, base->id) : NULL;
    if (shown != NULL && index < shown->content.count)
        return shown->content.kinds[index] == EXTENT_DATA;
    return true;
}

// Rule 6, for whole blocks.
static void judge_kind(struct judge *judge, const char *what, const struct model_base *parent,
        const struct model_history *history, uint64_t index, uint64_t number, const uint8_t *bytes,
        uint8_t kind)
{
    if (kind == 0)
        blame(judge, "%s block %llu is in no extent", what, (unsigned long long)number);
    if (kind != EXTENT_DATA) {
        if (!zero_range(bytes, BLOCK_SIZE))
            blame(judge, "%s block %llu is said to be %s but reads as data", what, (unsigned long long)number,
                    kind == EXTENT_ZERO ? "zero" : "unmapped");
        return;
    }
    for (size_t i = 0; i < history->count; i++) {
        const struct model_entry *entry = &history->entry[i];
        bool whole = entry->from == 0 && entry->to == BLOCK_SIZE;
        if (!whole || entry->op->kind == MODEL_WRITE || entry->data ||
                (entry->through_base && base_may_be_data(judge, parent, index)))
            return;
    }
    blame(judge, "%s block %llu is said to be data, and nothing was ever written there", what,
            (unsigned long long)number);
}

static void judge_block(struct judge *judge, const struct rule *rule, const char *what,
        const struct model_base *parent, const struct model_history *history, uint64_t index, uint64_t number,
        const uint8_t *bytes, unsigned from, unsigned to)
{
    struct part parts[PARTS_MAX];
    unsigned count = split(history, from, to, parts);
    for (unsigned i = 0; i < count; i++) {
        struct part *part = &parts[i];
        part->shown_count =
                candidates(rule, parent, history, index, number, bytes, part->from, part->to, part->shown);
        if (part->shown_count == 0 && !judge->gathering) {
            blame_bytes(judge, rule, what, parent, history, index, number, bytes, part);
            return;
        }
        // What was seen when quiet had been written before: that moment proves nothing.
        uint64_t least = part->shown_count > 0 ? UINT64_MAX : 0;
        for (unsigned j = 0; j < part->shown_count; j++) {
            const struct model_op *op = part->shown[j]->op;
            uint64_t moment = op->kind == MODEL_OBSERVED ? 0 : op->submitted;
            least = moment < least ? moment : least;
        }
        reached(judge, part->to - part->from < 8 ? 0 : least, what, number);
    }
    judge_atomic(judge, what, number, parts, count);
}

static void judge_content(struct judge *judge, const struct rule *rule, const char *what,
        const struct model_base *parent, const struct model_history *block, bool vast,
        const struct picture_content *content)
{
    for (uint64_t i = 0; i < content->count && !judge->guilty; i++) {
        if (content->kinds[i] == PICTURE_UNREADABLE)
            continue;
        uint64_t number = layout_number(vast, i);
        const uint8_t *bytes = content->bytes + i * BLOCK_SIZE;
        uint64_t left = content->size_bytes - number * BLOCK_SIZE;
        unsigned to = left < BLOCK_SIZE ? (unsigned)left : BLOCK_SIZE;
        judge_block(judge, rule, what, parent, &block[i], i, number, bytes, 0, to);
        if (to == BLOCK_SIZE)
            judge_kind(judge, what, parent, &block[i], i, number, bytes, content->kinds[i]);
    }
    if (content->data_outside)
        blame(judge, "%s claims data where nothing was ever written", what);
}

// ---- Catalog ----

static void evidence(struct judge *judge, struct model_op *op, int value, const char *what)
{
    if (op->kind == MODEL_INITIAL)
        return;
    if (value > 0)
        reached(judge, op->submitted, what, 0);
    if (judge->gathering)
        return;
    if (op->evidence == -value)
        blame(judge, "transaction op %llu is there only in part: %s says it %s", (unsigned long long)op->id,
                what, value > 0 ? "happened" : "did not happen");
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
            if (!object->state[j].op->rejected && required(&rule, object->state[j].op))
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
        blame(judge, "%s is as op %llu left it, but op %llu (answered t=%llu%s) must be there", what,
                (unsigned long long)replaced->op->id, (unsigned long long)by->op->id,
                (unsigned long long)by->op->ended, by->op->durable ? ", durable" : "");
    else if (found == 0)
        blame(judge, "%s is %s in a state that it never had", what, shown ? "there," : "missing,");
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
            blame(judge, "%s is larger than it ever was", what);
        else
            judge_content(judge, &rule, what, volume->parent, volume->block, volume->vast, &shown->content);
        if (shown->info.kind != volume->kind || !right_parent(judge->model, volume, shown->info.parent.value))
            blame(judge, "%s has the wrong kind or parent (%llu)", what,
                    (unsigned long long)shown->info.parent.value);
    }
    for (size_t i = 0; i < judge->picture->volume_count; i++) {
        bool known = false;
        for (size_t j = 0; j < judge->model->volume_count; j++)
            known = known || judge->model->volume[j]->object.id == judge->picture->volumes[i].info.id.value;
        if (!known)
            blame(judge, "volume %llu '%s' appeared from nothing",
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
            blame(judge, "%s is there, but its transaction was refused", what);
        evidence(judge, base->op, 1, what);
        bool named = false;
        for (size_t j = 0; j < judge->picture->doc_count; j++)
            for (unsigned k = 0; k < judge->picture->docs[j].doc.base_count; k++)
                named = named || judge->picture->docs[j].doc.bases[k].value == base->id;
        if (!named)
            blame(judge, "%s is there, and no doc refers to it", what);
        struct rule rule = {judge, base};
        if (shown->info.size_bytes != base->size_bytes || shown->content.count != base->block_count)
            blame(judge, "%s has %llu bytes instead of %llu", what,
                    (unsigned long long)shown->info.size_bytes, (unsigned long long)base->size_bytes);
        else
            judge_content(judge, &rule, what, base->parent, base->block, base->vast, &shown->content);
    }
    for (size_t i = 0; i < judge->picture->base_count; i++)
        if (!known_base(judge->model, judge->picture->bases[i].info.id.value))
            blame(judge, "base %llu appeared from nothing",
                    (unsigned long long)judge->picture->bases[i].info.id.value);
}

static void judge_blob(
        struct judge *judge, const struct model_doc *doc, const struct picture_doc *shown, const char *what)
{
    uint64_t seed = 0;
    if (shown->blob_result < 0)
        return; // a tolerated read error
    if (shown->blob_bytes != doc->blob_bytes) {
        blame(judge, "%s has a blob of %zu bytes instead of %zu", what, shown->blob_bytes, doc->blob_bytes);
        return;
    }
    if (doc->blob_bytes < 8)
        return;
    memcpy(&seed, shown->blob, sizeof seed);
    if (seed != doc->blob_seed ||
            !fill_matches(seed, 8, (const uint8_t *)shown->blob + 8, doc->blob_bytes - 8))
        blame(judge, "%s has a blob with the wrong bytes", what);
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
                blame(judge, "%s refers to base %llu, which is gone", what,
                        (unsigned long long)shown->doc.bases[j].value);
        for (unsigned j = 0; shown != NULL && j < shown->doc.volume_count; j++)
            if (picture_volume(judge->picture, shown->doc.volumes[j].value) == NULL)
                blame(judge, "%s refers to volume %llu, which is gone", what,
                        (unsigned long long)shown->doc.volumes[j].value);
    }
    for (size_t i = 0; i < judge->picture->doc_count; i++) {
        bool known = false;
        for (size_t j = 0; j < judge->model->doc_count; j++)
            known = known || judge->model->doc[j]->object.id == judge->picture->docs[i].doc.id.value;
        if (!known)
            blame(judge, "doc %llu '%s' appeared from nothing",
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
        judge_block(&judge, &rule, what, volume ? volume->parent : base->parent, history, index, number,
                block, from, to);
    }
    return !judge.guilty;
}
