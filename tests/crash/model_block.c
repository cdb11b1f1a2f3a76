// SPDX-License-Identifier: Apache-2.0
// What the bytes of one block may be: rules 1 to 4 and 6 of model.h.
#include "tests/crash/model_block.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void model_block_blame(struct judge *judge, const char *format, ...)
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

void model_block_reached(struct judge *judge, uint64_t moment, const char *what, uint64_t number)
{
    if (!judge->gathering || moment <= judge->reached)
        return;
    judge->reached = moment;
    snprintf(judge->witness, sizeof judge->witness, "%s block %llu", what, (unsigned long long)number);
}

bool model_block_required(const struct rule *rule, const struct model_op *op)
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
        return fill_matches(entry->op->fill, number * BLOCK_SIZE + from, bytes + from, to - from);
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
        if (covers(other, from, to) && other->op->submitted > entry->op->ended &&
                model_block_required(rule, other->op))
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
            op->durable ? ", durable" : "", model_block_required(rule, op) ? ", required" : "");
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
        if (op->kind == MODEL_WRITE && fill_matches(op->fill, number * BLOCK_SIZE + part->from,
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
    model_block_blame(judge, "%s block %llu bytes %u..%u shows %s; could be: %s", what,
            (unsigned long long)number, part->from, part->to, shown, expected);
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
                model_block_blame(judge,
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
    if (shown != NULL && index < shown->content.count && shown->content.kinds[index] < PICTURE_UNKNOWN)
        return shown->content.kinds[index] == EXTENT_DATA;
    return true;
}

// Rule 6, for whole blocks.
static void judge_kind(struct judge *judge, const char *what, const struct model_base *parent,
        const struct model_history *history, uint64_t index, uint64_t number, const uint8_t *bytes,
        uint8_t kind)
{
    if (kind == 0)
        model_block_blame(judge, "%s block %llu is in no extent", what, (unsigned long long)number);
    if (kind != EXTENT_DATA) {
        if (!zero_range(bytes, BLOCK_SIZE))
            model_block_blame(judge, "%s block %llu is said to be %s but reads as data", what,
                    (unsigned long long)number, kind == EXTENT_ZERO ? "zero" : "unmapped");
        return;
    }
    for (size_t i = 0; i < history->count; i++) {
        const struct model_entry *entry = &history->entry[i];
        bool whole = entry->from == 0 && entry->to == BLOCK_SIZE;
        if (!whole || entry->op->kind == MODEL_WRITE || entry->data ||
                (entry->through_base && base_may_be_data(judge, parent, index)))
            return;
    }
    model_block_blame(judge, "%s block %llu is said to be data, and nothing was ever written there", what,
            (unsigned long long)number);
}

void model_block_judge(struct judge *judge, const struct rule *rule, const char *what,
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
        model_block_reached(judge, part->to - part->from < 8 ? 0 : least, what, number);
    }
    judge_atomic(judge, what, number, parts, count);
}

void model_block_judge_content(struct judge *judge, const struct rule *rule, const char *what,
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
        model_block_judge(judge, rule, what, parent, &block[i], i, number, bytes, 0, to);
        if (to == BLOCK_SIZE && content->kinds[i] != PICTURE_UNKNOWN)
            judge_kind(judge, what, parent, &block[i], i, number, bytes, content->kinds[i]);
    }
    if (content->data_outside)
        model_block_blame(judge, "%s claims data where nothing was ever written", what);
}
