// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_dns_message.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum { CLASS_IN = 1, TYPE_CNAME = 5, LABEL_MAX = 63, POINTERS_MAX = 32, CHAIN_MAX = 16 };
enum { FLAG_ANSWER = 0x80, FLAGS_OPCODE = 0x78, FLAG_RECURSION = 0x01, FLAG_AVAILABLE = 0x80 };

// ---- a checked cursor ----

struct cursor {
    const uint8_t *bytes;
    size_t size, at;
    bool bad;
};

static unsigned take_byte(struct cursor *cursor)
{
    if (cursor->at >= cursor->size) {
        cursor->bad = true;
        return 0;
    }
    return cursor->bytes[cursor->at++];
}

static uint16_t take_u16(struct cursor *cursor)
{
    unsigned high = take_byte(cursor);
    return (uint16_t)(high << 8 | take_byte(cursor));
}

static uint32_t take_u32(struct cursor *cursor)
{
    uint32_t high = take_u16(cursor);
    return high << 16 | take_u16(cursor);
}

static void skip(struct cursor *cursor, size_t size)
{
    if (size > cursor->size - cursor->at)
        cursor->bad = true;
    else
        cursor->at += size;
}

static char host_byte(unsigned byte)
{
    return byte < 128 && (isalnum((int)byte) || byte == '-' || byte == '_') ? (char)tolower((int)byte) : '?';
}

// A name's labels with dots between. A pointer leads backwards only, so that there is an end.
static void take_name(struct cursor *cursor, char ret_name[NETWORK_NAME_MAX + 1])
{
    struct cursor reader = *cursor;
    size_t used = 0, lowest = cursor->at;
    bool followed = false;
    for (unsigned pointers = 0;;) {
        unsigned length = take_byte(&reader);
        if (reader.bad || length == 0)
            break;
        if ((length & 0xc0) == 0xc0) {
            size_t target = (length & 0x3f) << 8 | take_byte(&reader);
            if (!followed)
                cursor->at = reader.at;
            followed = true;
            reader.bad = reader.bad || target >= lowest || ++pointers > POINTERS_MAX;
            reader.at = lowest = target;
            continue;
        }
        if (length > LABEL_MAX || used + length + (used > 0) > NETWORK_NAME_MAX)
            reader.bad = true;
        if (used > 0 && !reader.bad)
            ret_name[used++] = '.';
        for (; length > 0 && !reader.bad; length--)
            ret_name[used++] = host_byte(take_byte(&reader));
        if (reader.bad)
            break;
    }
    if (!followed)
        cursor->at = reader.at;
    cursor->bad = cursor->bad || reader.bad;
    ret_name[cursor->bad ? 0 : used] = '\0';
}

// ---- queries ----

struct head {
    uint16_t id, questions, answers, authorities, additionals;
    unsigned flags;
};

static struct head take_head(struct cursor *cursor)
{
    struct head head = {.id = take_u16(cursor), .flags = take_byte(cursor)};
    take_byte(cursor);
    head.questions = take_u16(cursor);
    head.answers = take_u16(cursor);
    head.authorities = take_u16(cursor);
    head.additionals = take_u16(cursor);
    return head;
}

static void take_question(struct cursor *cursor, struct network_dns_question *question)
{
    take_name(cursor, question->name);
    question->type = take_u16(cursor);
    question->class = take_u16(cursor);
    question->end = cursor->at;
}

int network_dns_message_question(const uint8_t *bytes, size_t size, struct network_dns_question *ret_question)
{
    struct cursor cursor = {.bytes = bytes, .size = size};
    struct network_dns_question question = {0};
    struct head head = take_head(&cursor);
    // More than one record behind the question (EDNS) has no place in a query.
    if ((head.flags & (FLAG_ANSWER | FLAGS_OPCODE)) != 0 || head.questions != 1 || head.answers != 0 ||
            head.authorities != 0 || head.additionals > 1)
        return -EBADMSG;
    question.id = head.id;
    take_question(&cursor, &question);
    if (cursor.bad)
        return -EBADMSG;
    *ret_question = question;
    return 0;
}

void network_dns_message_reply(
        const uint8_t *query, const struct network_dns_question *question, unsigned code, uint8_t *out)
{
    memcpy(out, query, question->end);
    out[2] = (uint8_t)(FLAG_ANSWER | (query[2] & FLAG_RECURSION));
    out[3] = (uint8_t)(FLAG_AVAILABLE | code);
    memset(out + 6, 0, 6); // no records
}

// ---- answers ----

struct record {
    char owner[NETWORK_NAME_MAX + 1];
    uint16_t type, class;
    uint32_t ttl;
    size_t data, data_size;
};

static void take_record(struct cursor *cursor, struct record *ret_record)
{
    take_name(cursor, ret_record->owner);
    ret_record->type = take_u16(cursor);
    ret_record->class = take_u16(cursor);
    ret_record->ttl = take_u32(cursor);
    ret_record->data_size = take_u16(cursor);
    ret_record->data = cursor->at;
    skip(cursor, ret_record->data_size);
}

static void add_address(
        const struct cursor *cursor, const struct record *record, struct network_dns_answer *answer)
{
    struct cursor data = {.bytes = cursor->bytes, .size = cursor->size, .at = record->data};
    if (answer->count == NETWORK_DNS_ADDRESSES_MAX)
        return;
    answer->addresses[answer->count++] = take_u32(&data);
    if (record->ttl < answer->ttl_seconds)
        answer->ttl_seconds = record->ttl;
}

// Addresses of `name` in the answer's records from `start` on; *name becomes what it is another name for.
// true: it is one.
static bool collect(const struct cursor *start, unsigned records, char name[NETWORK_NAME_MAX + 1],
        struct network_dns_answer *answer, bool *ret_bad)
{
    struct cursor cursor = *start;
    char alias[NETWORK_NAME_MAX + 1] = "";
    for (unsigned i = 0; i < records; i++) {
        struct record record;
        take_record(&cursor, &record);
        if (cursor.bad)
            break;
        if (record.class != CLASS_IN || strcmp(record.owner, name) != 0)
            continue;
        if (record.type == NETWORK_DNS_TYPE_A && record.data_size == 4)
            add_address(&cursor, &record, answer);
        if (record.type == TYPE_CNAME) {
            struct cursor data = {.bytes = cursor.bytes, .size = cursor.size, .at = record.data};
            take_name(&data, alias);
            cursor.bad = cursor.bad || data.bad;
        }
    }
    *ret_bad = cursor.bad;
    if (alias[0] == '\0')
        return false;
    strcpy(name, alias);
    return true;
}

int network_dns_message_answer(const uint8_t *bytes, size_t size, const struct network_dns_question *question,
        struct network_dns_answer *ret_answer)
{
    struct cursor cursor = {.bytes = bytes, .size = size};
    struct network_dns_question asked = {0};
    struct network_dns_answer answer = {.ttl_seconds = UINT32_MAX};
    char name[NETWORK_NAME_MAX + 1];
    bool bad = false;
    struct head head = take_head(&cursor);
    if ((head.flags & FLAG_ANSWER) == 0 || head.id != question->id || head.questions != 1)
        return -EBADMSG;
    take_question(&cursor, &asked);
    if (cursor.bad || strcmp(asked.name, question->name) != 0 || asked.type != question->type ||
            asked.class != question->class)
        return -EBADMSG;
    strcpy(name, question->name);
    for (unsigned i = 0; i < CHAIN_MAX && !bad && collect(&cursor, head.answers, name, &answer, &bad); i++)
        ;
    if (bad)
        return -EBADMSG;
    *ret_answer = answer;
    return 0;
}
