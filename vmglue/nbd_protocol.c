// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t nbd_protocol_error(int result)
{
    switch (result) {
    case 0:
        return 0;
    case -EPERM:
    case -EROFS:
        return NBD_EPERM;
    case -ENOMEM:
        return NBD_ENOMEM;
    case -EINVAL:
        return NBD_EINVAL;
    case -ENOSPC:
    case -EDQUOT:
        return NBD_ENOSPC;
    case -EOVERFLOW:
        return NBD_EOVERFLOW;
    case -EOPNOTSUPP:
        return NBD_ENOTSUP;
    case -ESHUTDOWN:
        return NBD_ESHUTDOWN;
    default:
        return NBD_EIO;
    }
}

struct nbd_cursor nbd_cursor_over(const void *bytes, size_t size)
{
    return (struct nbd_cursor){.at = bytes, .end = (const uint8_t *)bytes + size};
}

size_t nbd_cursor_left(const struct nbd_cursor *cursor)
{
    return cursor->bad ? 0 : (size_t)(cursor->end - cursor->at);
}

const uint8_t *nbd_cursor_bytes(struct nbd_cursor *cursor, size_t size)
{
    if (size > nbd_cursor_left(cursor) || cursor->bad) {
        cursor->bad = true;
        return NULL;
    }
    const uint8_t *at = cursor->at;
    cursor->at += size;
    return at;
}

static uint64_t get_big_endian(struct nbd_cursor *cursor, size_t size)
{
    const uint8_t *bytes = nbd_cursor_bytes(cursor, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < size; i++)
        value = value << 8 | bytes[i];
    return value;
}

uint16_t nbd_cursor_u16(struct nbd_cursor *cursor)
{
    return (uint16_t)get_big_endian(cursor, 2);
}

uint32_t nbd_cursor_u32(struct nbd_cursor *cursor)
{
    return (uint32_t)get_big_endian(cursor, 4);
}

uint64_t nbd_cursor_u64(struct nbd_cursor *cursor)
{
    return get_big_endian(cursor, 8);
}

void nbd_cursor_string(struct nbd_cursor *cursor, char *text)
{
    text[0] = 0;
    uint32_t size = nbd_cursor_u32(cursor);
    if (size > NBD_STRING_MAX) {
        cursor->bad = true;
        return;
    }
    const uint8_t *bytes = nbd_cursor_bytes(cursor, size);
    if (!bytes)
        return;
    if (memchr(bytes, 0, size)) {
        cursor->bad = true;
        return;
    }
    memcpy(text, bytes, size);
    text[size] = 0;
}

bool nbd_cursor_finished(const struct nbd_cursor *cursor)
{
    return !cursor->bad && cursor->at == cursor->end;
}

bool nbd_protocol_decode_request(
        const uint8_t bytes[NBD_REQUEST_BYTES], struct nbd_request_header *ret_header)
{
    struct nbd_cursor cursor = nbd_cursor_over(bytes, NBD_REQUEST_BYTES);
    if (nbd_cursor_u32(&cursor) != NBD_REQUEST_MAGIC)
        return false;
    ret_header->flags = nbd_cursor_u16(&cursor);
    ret_header->type = nbd_cursor_u16(&cursor);
    ret_header->cookie = nbd_cursor_u64(&cursor);
    ret_header->offset = nbd_cursor_u64(&cursor);
    ret_header->length = nbd_cursor_u32(&cursor);
    return true;
}

void nbd_protocol_put_u16(uint8_t *to, uint16_t value)
{
    value = __builtin_bswap16(value);
    memcpy(to, &value, sizeof value);
}

void nbd_protocol_put_u32(uint8_t *to, uint32_t value)
{
    value = __builtin_bswap32(value);
    memcpy(to, &value, sizeof value);
}

void nbd_protocol_put_u64(uint8_t *to, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(to, &value, sizeof value);
}

_Static_assert(
        __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the byte swaps above assume a little-endian machine");

void nbd_protocol_simple_reply(uint8_t to[NBD_SIMPLE_REPLY_BYTES], uint32_t error, uint64_t cookie)
{
    nbd_protocol_put_u32(to, NBD_SIMPLE_REPLY_MAGIC);
    nbd_protocol_put_u32(to + 4, error);
    nbd_protocol_put_u64(to + 8, cookie);
}

void nbd_protocol_chunk(uint8_t to[NBD_CHUNK_BYTES], unsigned flags, enum nbd_chunk type, uint64_t cookie,
        uint32_t payload_bytes)
{
    nbd_protocol_put_u32(to, NBD_STRUCTURED_REPLY_MAGIC);
    nbd_protocol_put_u16(to + 4, (uint16_t)flags);
    nbd_protocol_put_u16(to + 6, (uint16_t)type);
    nbd_protocol_put_u64(to + 8, cookie);
    nbd_protocol_put_u32(to + 16, payload_bytes);
}

static uint8_t *grow(struct nbd_writer *writer, size_t size)
{
    if (writer->capacity - writer->size < size) {
        size_t capacity = writer->capacity ? writer->capacity : 256;
        while (capacity - writer->size < size)
            capacity *= 2;
        writer->bytes = realloc(writer->bytes, capacity);
        if (!writer->bytes)
            abort();
        writer->capacity = capacity;
    }
    uint8_t *at = writer->bytes + writer->size;
    writer->size += size;
    return at;
}

void nbd_writer_bytes(struct nbd_writer *writer, const void *bytes, size_t size)
{
    if (size)
        memcpy(grow(writer, size), bytes, size);
}

void nbd_writer_zeros(struct nbd_writer *writer, size_t size)
{
    memset(grow(writer, size), 0, size);
}

void nbd_writer_u16(struct nbd_writer *writer, uint16_t value)
{
    nbd_protocol_put_u16(grow(writer, sizeof value), value);
}

void nbd_writer_u32(struct nbd_writer *writer, uint32_t value)
{
    nbd_protocol_put_u32(grow(writer, sizeof value), value);
}

void nbd_writer_u64(struct nbd_writer *writer, uint64_t value)
{
    nbd_protocol_put_u64(grow(writer, sizeof value), value);
}

void nbd_writer_option_reply(
        struct nbd_writer *writer, uint32_t option, uint32_t type, uint32_t payload_bytes)
{
    nbd_writer_u64(writer, NBD_OPTION_REPLY_MAGIC);
    nbd_writer_u32(writer, option);
    nbd_writer_u32(writer, type);
    nbd_writer_u32(writer, payload_bytes);
}

void nbd_writer_free(struct nbd_writer *writer)
{
    free(writer->bytes);
    *writer = (struct nbd_writer){0};
}
