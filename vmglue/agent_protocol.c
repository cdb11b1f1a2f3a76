// SPDX-License-Identifier: Apache-2.0
// Frame header, 40 bytes, little-endian:
//    0  8  marker F7 52 41 4D 45 54 0A F9      24  2  type
//    8  8  session epoch                        26  2  flags
//   16  4  sequence within the epoch            28  4  payload length
//   20  4  stream                               32  4  CRC-32C of the payload
//                                               36  4  CRC-32C of bytes 0 to 35
#include "vmglue/agent_protocol.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t marker[8] = {0xF7, 'R', 'A', 'M', 'E', 'T', '\n', 0xF9};

enum { DECODER_BYTES = 4 * (AGENT_PAYLOAD_MAX + AGENT_HEADER_BYTES) };

static uint32_t crc_table[8][256];

// Polynomial 0x1EDC6F41, reflected; eight bytes a step (Kounavis and Berry, "slicing by 8").
__attribute__((constructor)) static void crc_fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        crc_table[0][i] = crc;
    }
    for (int t = 1; t < 8; t++) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t before = crc_table[t - 1][i];
            crc_table[t][i] = before >> 8 ^ crc_table[0][before & 255];
        }
    }
}

uint32_t agent_crc32c(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (int t = 0; t < 8; t++)
            crc ^= crc_table[7 - t][word >> 8 * t & 255];
    }
    for (; size > 0; size--, at++)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 255];
    return ~crc;
}

static void put16(uint8_t *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, 2);
}

static void put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, 4);
}

static void put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, 8);
}

static uint16_t get16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, 2);
    return le16toh(value);
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return le32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return le64toh(value);
}

void agent_frame_header(const struct agent_frame *frame, uint8_t ret_header[AGENT_HEADER_BYTES])
{
    memcpy(ret_header, marker, sizeof marker);
    put64(ret_header + 8, frame->epoch);
    put32(ret_header + 16, frame->sequence);
    put32(ret_header + 20, frame->stream);
    put16(ret_header + 24, frame->type);
    put16(ret_header + 26, frame->flags);
    put32(ret_header + 28, frame->size);
    put32(ret_header + 32, agent_crc32c(0, frame->payload, frame->size));
    put32(ret_header + 36, agent_crc32c(0, ret_header, 36));
}

int agent_decoder_init(struct agent_decoder *decoder, bool accept_hello)
{
    *decoder = (struct agent_decoder){.accept_hello = accept_hello, .capacity = DECODER_BYTES};
    decoder->bytes = malloc(decoder->capacity);
    return decoder->bytes == NULL ? -ENOMEM : 0;
}

void agent_decoder_free(struct agent_decoder *decoder)
{
    free(decoder->bytes);
    decoder->bytes = NULL;
}

void agent_decoder_reset(struct agent_decoder *decoder)
{
    decoder->skipped_bytes += decoder->end - decoder->start;
    decoder->start = decoder->end = 0;
}

void *agent_decoder_space(struct agent_decoder *decoder, size_t *ret_size)
{
    // A partial frame is shorter than a quarter of the buffer, so that moving it is rare and cheap.
    if (decoder->start == decoder->end || decoder->end > decoder->capacity / 2) {
        memmove(decoder->bytes, decoder->bytes + decoder->start, decoder->end - decoder->start);
        decoder->end -= decoder->start;
        decoder->start = 0;
    }
    *ret_size = decoder->capacity - decoder->end;
    return decoder->bytes + decoder->end;
}

void agent_decoder_filled(struct agent_decoder *decoder, size_t size)
{
    decoder->end += size;
}

// Moves start to the next marker, or to the few last bytes that may be the beginning of one.
static void decoder_seek(struct agent_decoder *decoder)
{
    uint8_t *at = decoder->bytes + decoder->start, *end = decoder->bytes + decoder->end;
    while ((at = memchr(at, marker[0], (size_t)(end - at))) != NULL) {
        size_t have = (size_t)(end - at);
        if (memcmp(at, marker, have < sizeof marker ? have : sizeof marker) == 0)
            break;
        at++;
    }
    size_t found = at == NULL ? decoder->end : (size_t)(at - decoder->bytes);
    decoder->skipped_bytes += found - decoder->start;
    decoder->start = found;
}

static void decoder_skip(struct agent_decoder *decoder)
{
    decoder->start++;
    decoder->skipped_bytes++;
}

bool agent_decoder_next(struct agent_decoder *decoder, struct agent_frame *ret_frame)
{
    for (;;) {
        decoder_seek(decoder);
        size_t have = decoder->end - decoder->start;
        if (have < AGENT_HEADER_BYTES)
            return false;
        const uint8_t *at = decoder->bytes + decoder->start;
        struct agent_frame frame = {
                .epoch = get64(at + 8),
                .sequence = get32(at + 16),
                .stream = get32(at + 20),
                .type = get16(at + 24),
                .flags = get16(at + 26),
                .size = get32(at + 28),
                .payload = at + AGENT_HEADER_BYTES,
        };
        bool ours = (frame.epoch == decoder->epoch && frame.epoch != 0) ||
                    (decoder->accept_hello && frame.type == AGENT_HELLO && frame.epoch != 0);
        if (!ours || frame.size > AGENT_PAYLOAD_MAX || get32(at + 36) != agent_crc32c(0, at, 36)) {
            decoder_skip(decoder);
            continue;
        }
        if (have - AGENT_HEADER_BYTES < frame.size)
            return false;
        if (get32(at + 32) != agent_crc32c(0, frame.payload, frame.size)) {
            decoder_skip(decoder);
            continue;
        }
        decoder->start += AGENT_HEADER_BYTES + frame.size;
        *ret_frame = frame;
        return true;
    }
}

struct agent_cursor agent_cursor_over(const void *bytes, size_t size)
{
    return (struct agent_cursor){.at = bytes, .end = (const uint8_t *)bytes + size};
}

const uint8_t *agent_cursor_bytes(struct agent_cursor *cursor, size_t size)
{
    if (cursor->bad || (size_t)(cursor->end - cursor->at) < size) {
        cursor->bad = true;
        return NULL;
    }
    const uint8_t *bytes = cursor->at;
    cursor->at += size;
    return bytes;
}

uint8_t agent_cursor_u8(struct agent_cursor *cursor)
{
    const uint8_t *at = agent_cursor_bytes(cursor, 1);
    return at == NULL ? 0 : *at;
}

uint32_t agent_cursor_u32(struct agent_cursor *cursor)
{
    const uint8_t *at = agent_cursor_bytes(cursor, 4);
    return at == NULL ? 0 : get32(at);
}

uint64_t agent_cursor_u64(struct agent_cursor *cursor)
{
    const uint8_t *at = agent_cursor_bytes(cursor, 8);
    return at == NULL ? 0 : get64(at);
}

const char *agent_cursor_string(struct agent_cursor *cursor)
{
    uint32_t length = agent_cursor_u32(cursor);
    const uint8_t *at = length > AGENT_REQUEST_MAX ? NULL : agent_cursor_bytes(cursor, (size_t)length + 1);
    if (at == NULL || memchr(at, 0, (size_t)length + 1) != at + length) {
        cursor->bad = true;
        return "";
    }
    return (const char *)at;
}

void agent_builder_free(struct agent_builder *builder)
{
    free(builder->bytes);
    *builder = (struct agent_builder){0};
}

void agent_builder_bytes(struct agent_builder *builder, const void *bytes, size_t size)
{
    if (builder->failed || size == 0)
        return;
    if (size > AGENT_REQUEST_MAX || builder->size + size > 2 * (size_t)AGENT_REQUEST_MAX) {
        builder->failed = true;
        return;
    }
    if (builder->capacity - builder->size < size) {
        size_t capacity = builder->capacity * 2 + size + 64;
        uint8_t *grown = realloc(builder->bytes, capacity);
        if (grown == NULL) {
            builder->failed = true;
            return;
        }
        builder->bytes = grown;
        builder->capacity = capacity;
    }
    memcpy(builder->bytes + builder->size, bytes, size);
    builder->size += size;
}

void agent_builder_u8(struct agent_builder *builder, uint8_t value)
{
    agent_builder_bytes(builder, &value, 1);
}

void agent_builder_u32(struct agent_builder *builder, uint32_t value)
{
    uint8_t bytes[4];
    put32(bytes, value);
    agent_builder_bytes(builder, bytes, 4);
}

void agent_builder_u64(struct agent_builder *builder, uint64_t value)
{
    uint8_t bytes[8];
    put64(bytes, value);
    agent_builder_bytes(builder, bytes, 8);
}

void agent_builder_string(struct agent_builder *builder, const char *string)
{
    size_t length = strlen(string);
    if (length > AGENT_REQUEST_MAX) {
        builder->failed = true;
        return;
    }
    agent_builder_u32(builder, (uint32_t)length);
    agent_builder_bytes(builder, string, length + 1);
}

// Bytes of the UTF-8 character at `at`, 0 = none (RFC 3629: no overlong forms, no surrogates).
static size_t character_size(const unsigned char *at)
{
    if (at[0] < 0x80)
        return at[0] >= 0x20 && at[0] != 0x7F;
    size_t size = at[0] >= 0xC2 && at[0] <= 0xDF   ? 2
                  : (at[0] & 0xF0) == 0xE0         ? 3
                  : at[0] >= 0xF0 && at[0] <= 0xF4 ? 4
                                                   : 0;
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    }
    bool bad = (at[0] == 0xC2 && at[1] < 0xA0) || (at[0] == 0xE0 && at[1] < 0xA0) ||
               (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
               (at[0] == 0xF4 && at[1] > 0x8F);
    return bad ? 0 : size;
}

void agent_clean_text(const char *text, char *ret_text, size_t size)
{
    size_t used = 0;
    while (*text != 0) {
        size_t length = character_size((const unsigned char *)text);
        if (used + (length ? length : 1) >= size)
            break;
        if (length == 0)
            ret_text[used] = '?';
        else
            memcpy(ret_text + used, text, length);
        used += length ? length : 1;
        text += length ? length : 1;
    }
    ret_text[used] = 0;
}
