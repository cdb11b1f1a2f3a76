// SPDX-License-Identifier: Apache-2.0
#include "blockstore/segment_format.h"

#include "blockstore/codec.h"
#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_CHECKSUM_AT = 16, TRAILER_CHECKSUM_AT = 8, FOOTER_HEAD_BYTES = 16 };
static const char HEADER_MAGIC[8] = "RAMETSG1", FOOTER_MAGIC[8] = "RAMETSGF", TRAILER_MAGIC[8] = "RAMETSGT";

// Places in the byte tables of FORMAT.md, next to each other so that a slip does not compile.
enum {
    HEADER_USED = 8 + 4 + 4 + 8 + 8 + 8 + 4 + 4 + 8,
    TRAILER_USED = 8 + 8 + 8 + 4 + 4 + 8 + 8 + 8 + 8 + 4 + 4 + 4 + 4,
    FRAME_USED = 4 + 4 + 2 + 1 + 1 + 1 + 3 + 8 + 8,
};
_Static_assert(HEADER_USED == 56, "header");
_Static_assert(TRAILER_USED == 80, "trailer");
_Static_assert((int)FRAME_USED == (int)SEGMENT_FRAME_ENTRY_BYTES, "frame table entry");
_Static_assert(sizeof(struct fingerprint) == SEGMENT_FINGERPRINT_BYTES, "fingerprint");

// ---- The index in memory ----

const struct segment_frame *segment_index_find(const struct segment_index *index, uint32_t slot)
{
    uint32_t low = 0, high = index->frame_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (index->frames[middle].first_slot <= slot)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || !segment_frame_holds(&index->frames[low - 1], slot))
        return NULL;
    return &index->frames[low - 1];
}

static void *grown(void *array, uint32_t *room, uint32_t wanted, size_t size)
{
    if (wanted <= *room)
        return array;
    uint32_t more = *room < 64 ? 64 : *room * 2;
    *room = more < wanted ? wanted : more;
    array = realloc(array, *room * size);
    if (array == NULL)
        abort();
    return array;
}

void segment_index_append(struct segment_index *index, const struct segment_frame *frame,
        const struct fingerprint *fingerprints)
{
    unsigned present = segment_frame_present(frame);
    index->frames = grown(index->frames, &index->frame_room, index->frame_count + 1, sizeof *index->frames);
    index->fingerprints = grown(
            index->fingerprints, &index->present_room, index->present + present, sizeof *index->fingerprints);
    index->frames[index->frame_count] = *frame;
    index->frames[index->frame_count++].present_before = index->present;
    memcpy(index->fingerprints + index->present, fingerprints, present * sizeof *fingerprints);
    index->present += present;
}

uint64_t segment_index_bytes(const struct segment_index *index)
{
    return sizeof *index + index->frame_room * sizeof *index->frames +
           index->present_room * sizeof *index->fingerprints;
}

void segment_index_clear(struct segment_index *index)
{
    free(index->frames);
    free(index->fingerprints);
    *index = (struct segment_index){0};
}

int segment_index_level(const struct segment_index *index, int otherwise)
{
    int level = index->frame_count > 0 ? index->frames[0].level : otherwise;
    for (uint32_t i = 1; i < index->frame_count; i++)
        if (index->frames[i].level < level)
            level = index->frames[i].level;
    return level;
}

// ---- Checksums ----

static uint64_t seed_for(uint64_t seed, uint64_t number, uint64_t place)
{
    uint8_t bytes[16];
    struct cursor c = cursor_make(bytes, sizeof bytes);
    cursor_put_u64(&c, number);
    cursor_put_u64(&c, place);
    return digest_bytes(bytes, sizeof bytes, seed);
}

uint64_t segment_frame_checksum(
        uint64_t seed, uint64_t number, uint32_t first_slot, const void *stored, size_t stored_bytes)
{
    return digest_bytes(stored, stored_bytes, seed_for(seed, number, first_slot));
}

static uint64_t footer_checksum(
        uint64_t seed, const struct segment_trailer *trailer, const void *footer, size_t size)
{
    return digest_bytes(
            footer, size, seed_for(seed, trailer->number, UINT64_C(1) << 32 | trailer->generation));
}

static uint64_t block_checksum(const void *block, unsigned field_at, uint64_t seed)
{
    uint8_t copy[BLOCK_SIZE];
    memcpy(copy, block, sizeof copy);
    memset(copy + field_at, 0, 8);
    return digest_bytes(copy, sizeof copy, seed);
}

static void block_seal(void *block, unsigned field_at, uint64_t seed)
{
    struct cursor at = cursor_make((uint8_t *)block + field_at, 8);
    cursor_put_u64(&at, block_checksum(block, field_at, seed));
}

// ---- Header ----

void segment_header_encode(const struct segment_header *header, uint64_t seed, void *block)
{
    memset(block, 0, BLOCK_SIZE);
    struct cursor c = cursor_make(block, BLOCK_SIZE);
    cursor_put_bytes(&c, HEADER_MAGIC, sizeof HEADER_MAGIC);
    cursor_put_u32(&c, header->version);
    cursor_put_u32(&c, header->must_features);
    cursor_put_u64(&c, 0);
    cursor_put_u64(&c, header->may_features);
    cursor_put_u64(&c, header->number);
    cursor_put_u32(&c, header->generation);
    cursor_put_u32(&c, header->kind);
    cursor_put_u64(&c, header->domain);
    block_seal(block, HEADER_CHECKSUM_AT, seed);
}

int segment_header_decode(const void *block, uint64_t seed, struct segment_header *ret_header)
{
    struct cursor c = cursor_make((void *)block, BLOCK_SIZE);
    struct segment_header header;
    char magic[sizeof HEADER_MAGIC];
    cursor_get_bytes(&c, magic, sizeof magic);
    header.version = cursor_get_u32(&c);
    header.must_features = cursor_get_u32(&c);
    uint64_t sum = cursor_get_u64(&c);
    header.may_features = cursor_get_u64(&c);
    header.number = cursor_get_u64(&c);
    header.generation = cursor_get_u32(&c);
    header.kind = cursor_get_u32(&c);
    header.domain = cursor_get_u64(&c);
    if (memcmp(magic, HEADER_MAGIC, sizeof magic) != 0 ||
            block_checksum(block, HEADER_CHECKSUM_AT, seed) != sum)
        return -EBADMSG;
    bool newer = header.version > SEGMENT_VERSION || header.must_features != 0;
    if (!newer && (header.version == 0 || header.number >= LOCATOR_FILE_MAX || header.generation == 0 ||
                          (header.kind != SEGMENT_DATA && header.kind != SEGMENT_NODES)))
        return -EBADMSG;
    *ret_header = header;
    return newer ? -EPROTO : 0;
}

// ---- Trailer ----

void segment_trailer_encode(const struct segment_trailer *trailer, uint64_t seed, void *block)
{
    memset(block, 0, BLOCK_SIZE);
    struct cursor c = cursor_make(block, BLOCK_SIZE);
    cursor_put_bytes(&c, TRAILER_MAGIC, sizeof TRAILER_MAGIC);
    cursor_put_u64(&c, 0);
    cursor_put_u64(&c, trailer->number);
    cursor_put_u32(&c, trailer->generation);
    cursor_put_u32(&c, 0);
    cursor_put_u64(&c, trailer->footer_offset);
    cursor_put_u64(&c, trailer->footer_bytes);
    cursor_put_u64(&c, trailer->footer_checksum);
    cursor_put_u64(&c, trailer->file_bytes);
    cursor_put_u32(&c, trailer->slots);
    cursor_put_u32(&c, trailer->present);
    cursor_put_u32(&c, trailer->frames);
    cursor_put_u32(&c, (uint32_t)trailer->level);
    block_seal(block, TRAILER_CHECKSUM_AT, seed);
}

static bool trailer_fits(const struct segment_trailer *t)
{
    return t->slots <= SEGMENT_SLOTS_MAX && t->present <= t->slots && t->frames <= t->present &&
           t->footer_offset % BLOCK_SIZE == 0 && t->footer_offset >= SEGMENT_HEADER_BYTES &&
           t->file_bytes <= SEGMENT_FILE_MAX && t->footer_offset <= t->file_bytes &&
           t->footer_bytes == segment_footer_bytes(t->frames, t->present) &&
           t->file_bytes == t->footer_offset + t->footer_bytes + SEGMENT_TRAILER_BYTES &&
           t->level >= INT8_MIN && t->level <= INT8_MAX;
}

int segment_trailer_decode(const void *block, uint64_t seed, struct segment_trailer *ret_trailer)
{
    struct cursor c = cursor_make((void *)block, BLOCK_SIZE);
    struct segment_trailer t;
    char magic[sizeof TRAILER_MAGIC];
    cursor_get_bytes(&c, magic, sizeof magic);
    uint64_t sum = cursor_get_u64(&c);
    t.number = cursor_get_u64(&c);
    t.generation = cursor_get_u32(&c);
    uint32_t zero = cursor_get_u32(&c);
    t.footer_offset = cursor_get_u64(&c);
    t.footer_bytes = cursor_get_u64(&c);
    t.footer_checksum = cursor_get_u64(&c);
    t.file_bytes = cursor_get_u64(&c);
    t.slots = cursor_get_u32(&c);
    t.present = cursor_get_u32(&c);
    t.frames = cursor_get_u32(&c);
    t.level = (int32_t)cursor_get_u32(&c);
    if (memcmp(magic, TRAILER_MAGIC, sizeof magic) != 0 ||
            block_checksum(block, TRAILER_CHECKSUM_AT, seed) != sum || zero != 0 || !trailer_fits(&t))
        return -EBADMSG;
    *ret_trailer = t;
    return 0;
}

// ---- Footer ----

uint64_t segment_footer_bytes(uint64_t frames, uint64_t present)
{
    uint64_t used =
            FOOTER_HEAD_BYTES + frames * SEGMENT_FRAME_ENTRY_BYTES + present * SEGMENT_FINGERPRINT_BYTES;
    return (used + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
}

static void frame_encode(struct cursor *c, const struct segment_frame *frame)
{
    cursor_put_u32(c, frame->offset);
    cursor_put_u32(c, frame->stored_bytes);
    cursor_put_u16(c, frame->first_slot);
    cursor_put(c, frame->slots, 1);
    cursor_put(c, frame->codec, 1);
    cursor_put(c, (uint8_t)frame->level, 1);
    cursor_put(c, 0, 3);
    cursor_put_u64(c, frame->bitmap);
    cursor_put_u64(c, frame->checksum);
}

void segment_footer_encode(
        const struct segment_index *index, struct segment_trailer *trailer, uint64_t seed, void *footer)
{
    memset(footer, 0, trailer->footer_bytes);
    struct cursor c = cursor_make(footer, trailer->footer_bytes);
    cursor_put_bytes(&c, FOOTER_MAGIC, sizeof FOOTER_MAGIC);
    cursor_put_u32(&c, index->frame_count);
    cursor_put_u32(&c, index->present);
    for (uint32_t i = 0; i < index->frame_count; i++)
        frame_encode(&c, &index->frames[i]);
    for (uint32_t i = 0; i < index->present; i++) {
        cursor_put_u64(&c, index->fingerprints[i].low);
        cursor_put_u64(&c, index->fingerprints[i].high);
    }
    trailer->footer_checksum = footer_checksum(seed, trailer, footer, trailer->footer_bytes);
}

static bool codec_fits(const struct segment_frame *frame, enum segment_kind kind)
{
    if (frame->codec == CODEC_RAW)
        return frame->stored_bytes == segment_frame_bytes(frame);
    return frame->codec == (kind == SEGMENT_NODES ? CODEC_ZSTD_NODES : CODEC_ZSTD) &&
           frame->stored_bytes > 0 && frame->stored_bytes < segment_frame_bytes(frame);
}

// Frames follow each other without a gap but for alignment, so that no byte of the file is nobody's.
static bool frame_decode(struct cursor *c, uint64_t *at, uint32_t *next_slot, struct segment_frame *ret_frame)
{
    struct segment_frame f = {0};
    f.offset = cursor_get_u32(c);
    f.stored_bytes = cursor_get_u32(c);
    f.first_slot = cursor_get_u16(c);
    f.slots = (uint8_t)cursor_get(c, 1);
    f.codec = (uint8_t)cursor_get(c, 1);
    f.level = (int8_t)cursor_get(c, 1);
    uint64_t zero = cursor_get(c, 3);
    f.bitmap = cursor_get_u64(c);
    f.checksum = cursor_get_u64(c);
    if (c->bad || zero != 0 || f.offset != *at || f.first_slot < *next_slot || f.slots == 0 ||
            f.slots > SEGMENT_FRAME_SLOTS_MAX || f.bitmap == 0 || (f.slots < 64 && f.bitmap >> f.slots != 0))
        return false;
    *next_slot = (uint32_t)f.first_slot + f.slots;
    *at = ((uint64_t)f.offset + f.stored_bytes + SEGMENT_FRAME_ALIGN - 1) / SEGMENT_FRAME_ALIGN *
          SEGMENT_FRAME_ALIGN;
    *ret_frame = f;
    return true;
}

static int frames_decode(struct cursor *c, const struct segment_trailer *trailer, enum segment_kind kind,
        struct segment_index *index)
{
    uint64_t at = SEGMENT_HEADER_BYTES;
    uint32_t next_slot = 0;
    for (uint32_t i = 0; i < trailer->frames; i++) {
        struct segment_frame *frame = &index->frames[i];
        if (!frame_decode(c, &at, &next_slot, frame) || !codec_fits(frame, kind))
            return -EBADMSG;
        frame->present_before = index->present;
        index->present += segment_frame_present(frame);
        if (next_slot > trailer->slots || index->present > trailer->present)
            return -EBADMSG;
        index->frame_count++;
    }
    at = (at + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
    bool right = index->present == trailer->present && at == trailer->footer_offset &&
                 segment_index_level(index, trailer->level) == trailer->level;
    return right ? 0 : -EBADMSG;
}

int segment_footer_decode(const void *footer, const struct segment_trailer *trailer, enum segment_kind kind,
        uint64_t seed, struct segment_index *ret_index)
{
    if (!trailer_fits(trailer) ||
            footer_checksum(seed, trailer, footer, trailer->footer_bytes) != trailer->footer_checksum)
        return -EBADMSG;
    struct cursor c = cursor_make((void *)footer, trailer->footer_bytes);
    char magic[sizeof FOOTER_MAGIC];
    cursor_get_bytes(&c, magic, sizeof magic);
    uint32_t frames = cursor_get_u32(&c), present = cursor_get_u32(&c);
    if (memcmp(magic, FOOTER_MAGIC, sizeof magic) != 0 || frames != trailer->frames ||
            present != trailer->present)
        return -EBADMSG;
    struct segment_index index = {.frame_room = frames, .present_room = present};
    index.frames = calloc(frames + 1, sizeof *index.frames);
    index.fingerprints = calloc(present + 1, sizeof *index.fingerprints);
    if (index.frames == NULL || index.fingerprints == NULL)
        abort();
    int r = frames_decode(&c, trailer, kind, &index);
    for (uint32_t i = 0; r == 0 && i < present; i++) {
        index.fingerprints[i].low = cursor_get_u64(&c);
        index.fingerprints[i].high = cursor_get_u64(&c);
    }
    if (r == 0 && c.bad)
        r = -EBADMSG;
    if (r < 0)
        segment_index_clear(&index);
    else
        *ret_index = index;
    return r;
}
