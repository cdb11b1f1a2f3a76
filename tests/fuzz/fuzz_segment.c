// SPDX-License-Identifier: Apache-2.0
// A segment's header, footer and trailer, in this order: header block, footer of any length, trailer block.
// The checksums are mended first, else nothing would get past them. What decodes must encode to the same
// bytes, and every place that the index names must be inside the file.
#include "blockstore/codec.h"
#include "blockstore/digest.h"
#include "blockstore/segment_format.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { SEED = 7, HEADER_CHECKSUM_AT = 16, TRAILER_CHECKSUM_AT = 8 };

static void put_u64(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void mend(uint8_t *block, unsigned at)
{
    put_u64(block + at, 0);
    put_u64(block + at, digest_bytes(block, BLOCK_SIZE, SEED));
}

static void require(bool condition)
{
    if (!condition)
        abort();
}

static enum segment_kind try_header(const uint8_t *bytes)
{
    uint8_t block[BLOCK_SIZE], again[BLOCK_SIZE];
    struct segment_header header;
    memcpy(block, bytes, BLOCK_SIZE);
    mend(block, HEADER_CHECKSUM_AT);
    int r = segment_header_decode(block, SEED, &header);
    if (r < 0)
        return SEGMENT_DATA;
    segment_header_encode(&header, SEED, again);
    struct segment_header second;
    require(segment_header_decode(again, SEED, &second) == 0 && memcmp(&second, &header, sizeof header) == 0);
    require(header.version == SEGMENT_VERSION && header.must_features == 0);
    return (enum segment_kind)header.kind;
}

static void check_index(const struct segment_index *index, const struct segment_trailer *trailer)
{
    uint64_t at = SEGMENT_HEADER_BYTES;
    uint32_t slot = 0, present = 0;
    for (uint32_t i = 0; i < index->frame_count; i++) {
        const struct segment_frame *frame = &index->frames[i];
        require(frame->offset >= at && frame->first_slot >= slot && frame->present_before == present);
        require(frame->stored_bytes <= segment_frame_bytes(frame));
        at = (uint64_t)frame->offset + frame->stored_bytes;
        slot = (uint32_t)frame->first_slot + frame->slots;
        present += segment_frame_present(frame);
        for (unsigned bit = 0; bit < frame->slots; bit++) {
            const struct segment_frame *found = segment_index_find(index, frame->first_slot + bit);
            require(found == (frame->bitmap >> bit & 1 ? frame : NULL));
        }
    }
    require(at <= trailer->footer_offset && slot <= trailer->slots && present == trailer->present);
    require(segment_index_find(index, trailer->slots) == NULL);
}

static void try_footer(const uint8_t *footer, size_t size, uint8_t *trailer_block, enum segment_kind kind)
{
    struct segment_trailer trailer;
    struct segment_index index;
    mend(trailer_block, TRAILER_CHECKSUM_AT);
    if (segment_trailer_decode(trailer_block, SEED, &trailer) < 0 || trailer.footer_bytes != size)
        return;
    uint8_t seed_bytes[16];
    put_u64(seed_bytes, trailer.number);
    put_u64(seed_bytes + 8, UINT64_C(1) << 32 | trailer.generation);
    trailer.footer_checksum = digest_bytes(footer, size, digest_bytes(seed_bytes, sizeof seed_bytes, SEED));
    if (segment_footer_decode(footer, &trailer, kind, SEED, &index) < 0)
        return;
    check_index(&index, &trailer);
    uint8_t *again = malloc(size);
    uint64_t sum = trailer.footer_checksum;
    segment_footer_encode(&index, &trailer, SEED, again);
    // Bytes after the fingerprints are covered by the checksum, but mean nothing.
    require(sum == trailer.footer_checksum || memcmp(again, footer, size) != 0);
    struct segment_index second;
    require(segment_footer_decode(again, &trailer, kind, SEED, &second) == 0);
    require(second.present == index.present && second.frame_count == index.frame_count);
    segment_index_clear(&second);
    segment_index_clear(&index);
    free(again);
}

// Whatever the bytes are, unpacking stays within its room.
static void try_codec(const uint8_t *bytes, size_t size)
{
    static uint8_t room[4 * BLOCK_SIZE];
    for (int codec = CODEC_RAW; codec <= CODEC_ZSTD_NODES; codec++)
        codec_decompress(bytes, size, (enum codec)codec, room, sizeof room);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    try_codec(bytes, size);
    if (size < 2 * BLOCK_SIZE)
        return 0;
    enum segment_kind kind = try_header(bytes);
    uint8_t trailer[BLOCK_SIZE];
    memcpy(trailer, bytes + size - BLOCK_SIZE, BLOCK_SIZE);
    try_footer(bytes + BLOCK_SIZE, size - 2 * BLOCK_SIZE, trailer, kind);
    return 0;
}
