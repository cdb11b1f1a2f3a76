// SPDX-License-Identifier: Apache-2.0
// Checked little-endian encoding and decoding. A cursor that ran past its end stays bad: callers decode
// everything and look at `bad` once. Header only: it is all inline. Threads: any; a
// cursor is one thread's.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    uint8_t *at, *end;
    bool bad;
};

static inline struct cursor cursor_make(void *bytes, size_t size)
{
    return (struct cursor){.at = bytes, .end = (uint8_t *)bytes + size};
}

// `size` bytes from the cursor, or NULL (and bad) when there are fewer.
static inline uint8_t *cursor_take(struct cursor *c, size_t size)
{
    if (c->bad || (size_t)(c->end - c->at) < size) {
        c->bad = true;
        return NULL;
    }
    uint8_t *bytes = c->at;
    c->at += size;
    return bytes;
}

static inline uint64_t cursor_get(struct cursor *c, unsigned width)
{
    const uint8_t *bytes = cursor_take(c, width);
    uint64_t value = 0;
    for (unsigned i = 0; bytes != NULL && i < width; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static inline void cursor_put(struct cursor *c, uint64_t value, unsigned width)
{
    uint8_t *bytes = cursor_take(c, width);
    for (unsigned i = 0; bytes != NULL && i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static inline uint16_t cursor_get_u16(struct cursor *c)
{
    return (uint16_t)cursor_get(c, 2);
}

static inline uint32_t cursor_get_u32(struct cursor *c)
{
    return (uint32_t)cursor_get(c, 4);
}

static inline uint64_t cursor_get_u64(struct cursor *c)
{
    return cursor_get(c, 8);
}

static inline void cursor_get_bytes(struct cursor *c, void *bytes, size_t size)
{
    const uint8_t *from = cursor_take(c, size);
    if (from != NULL)
        memcpy(bytes, from, size);
    else
        memset(bytes, 0, size);
}

static inline void cursor_put_u16(struct cursor *c, uint16_t value)
{
    cursor_put(c, value, 2);
}

static inline void cursor_put_u32(struct cursor *c, uint32_t value)
{
    cursor_put(c, value, 4);
}

static inline void cursor_put_u64(struct cursor *c, uint64_t value)
{
    cursor_put(c, value, 8);
}

static inline void cursor_put_bytes(struct cursor *c, const void *bytes, size_t size)
{
    uint8_t *to = cursor_take(c, size);
    if (to != NULL && size > 0)
        memcpy(to, bytes, size);
}
