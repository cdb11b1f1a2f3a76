// SPDX-License-Identifier: Apache-2.0
#include "blockstore/record.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <string.h>

enum { CHECKSUM_OFFSET = 8, MAGIC_VERSION_SHIFT = 24 };

size_t record_inline_room(uint32_t extent_count, uint32_t payload_blocks)
{
    size_t used = RECORD_FIXED_BYTES + (size_t)extent_count * RECORD_EXTENT_BYTES +
                  (size_t)payload_blocks * sizeof(uint64_t);
    return used >= BLOCK_SIZE ? 0 : BLOCK_SIZE - used;
}

void record_encode(const struct record *record, uint64_t seed, void *block)
{
    memset(block, 0, BLOCK_SIZE);
    struct cursor c = cursor_make(block, BLOCK_SIZE);
    cursor_put_u32(&c, RECORD_MAGIC);
    cursor_put_u16(&c, (uint16_t)record->kind);
    cursor_put_u16(&c, 0);
    cursor_put_u64(&c, 0);
    cursor_put_u64(&c, record->file);
    cursor_put_u64(&c, record->seq);
    cursor_put_u64(&c, record->durable);
    cursor_put_u64(&c, record->incarnation);
    cursor_put_u64(&c, record->volume);
    cursor_put_u32(&c, record->epoch);
    cursor_put_u32(&c, record->extent_count);
    cursor_put_u32(&c, record->payload_blocks);
    cursor_put_u32(&c, record->body_bytes);
    cursor_put_u32(&c, record->body_blocks);
    cursor_put_u32(&c, record->part);
    cursor_put_u32(&c, record->parts);
    cursor_put_u64(&c, record->previous);
    cursor_put_u32(&c, 0);
    for (uint32_t i = 0; i < record->extent_count; i++) {
        cursor_put_u64(&c, record->extents[i].block);
        cursor_put_u32(&c, record->extents[i].count);
        cursor_put_u32(&c, 0);
    }
    for (uint32_t i = 0; i < record->payload_blocks; i++)
        cursor_put_u64(&c, record->sums[i]);
    if (record->body_blocks == 0)
        cursor_put_bytes(&c, record->inline_body, record->body_bytes);
    uint64_t sum = digest_bytes(block, BLOCK_SIZE, seed);
    struct cursor at = cursor_make((char *)block + CHECKSUM_OFFSET, sizeof sum);
    cursor_put_u64(&at, sum);
}

static bool counts_fit(const struct record *r)
{
    if (r->payload_blocks > RECORD_PAYLOAD_MAX || r->extent_count > RECORD_EXTENT_MAX ||
            r->body_blocks > r->payload_blocks)
        return false;
    size_t arrays =
            (size_t)r->extent_count * RECORD_EXTENT_BYTES + (size_t)r->payload_blocks * sizeof(uint64_t);
    if (arrays > BLOCK_SIZE - RECORD_FIXED_BYTES)
        return false;
    if (r->body_blocks == 0)
        return r->body_bytes <= record_inline_room(r->extent_count, r->payload_blocks);
    return r->body_bytes <= (uint64_t)r->body_blocks * BLOCK_SIZE;
}

static bool extents_fit(const struct record *r)
{
    if (r->kind != RECORD_WRITE)
        return true;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < r->extent_count; i++)
        blocks += r->extents[i].count;
    return blocks == r->payload_blocks;
}

static bool checksum_right(const void *block, uint64_t seed, uint64_t sum)
{
    uint8_t copy[BLOCK_SIZE];
    memcpy(copy, block, BLOCK_SIZE);
    memset(copy + CHECKSUM_OFFSET, 0, sizeof sum);
    return digest_bytes(copy, BLOCK_SIZE, seed) == sum;
}

int record_decode(const void *block, uint64_t seed, struct record_arrays *arrays, struct record *ret_record)
{
    struct cursor c = cursor_make((void *)block, BLOCK_SIZE);
    struct record r = {0};
    uint32_t magic = cursor_get_u32(&c);
    if ((magic ^ RECORD_MAGIC) << (32 - MAGIC_VERSION_SHIFT) != 0)
        return -EBADMSG;
    r.kind = cursor_get_u16(&c);
    uint16_t flags = cursor_get_u16(&c);
    uint64_t sum = cursor_get_u64(&c);
    r.file = cursor_get_u64(&c);
    r.seq = cursor_get_u64(&c);
    r.durable = cursor_get_u64(&c);
    r.incarnation = cursor_get_u64(&c);
    r.volume = cursor_get_u64(&c);
    r.epoch = cursor_get_u32(&c);
    r.extent_count = cursor_get_u32(&c);
    r.payload_blocks = cursor_get_u32(&c);
    r.body_bytes = cursor_get_u32(&c);
    r.body_blocks = cursor_get_u32(&c);
    r.part = cursor_get_u32(&c);
    r.parts = cursor_get_u32(&c);
    r.previous = cursor_get_u64(&c);
    cursor_get_u32(&c);
    if (!checksum_right(block, seed, sum))
        return -EBADMSG;
    if (magic != RECORD_MAGIC || flags != 0 || r.kind < RECORD_WRITE || r.kind > RECORD_ROOTS) {
        *ret_record = (struct record){
                .file = r.file, .seq = r.seq, .durable = r.durable, .incarnation = r.incarnation};
        return -EPROTO;
    }
    if (!counts_fit(&r))
        return -EBADMSG;
    for (uint32_t i = 0; i < r.extent_count; i++) {
        arrays->extents[i].block = cursor_get_u64(&c);
        arrays->extents[i].count = cursor_get_u32(&c);
        cursor_get_u32(&c);
    }
    for (uint32_t i = 0; i < r.payload_blocks; i++)
        arrays->sums[i] = cursor_get_u64(&c);
    r.extents = arrays->extents;
    r.sums = arrays->sums;
    r.inline_body = c.at;
    if (c.bad || !extents_fit(&r))
        return -EBADMSG;
    *ret_record = r;
    return 0;
}
