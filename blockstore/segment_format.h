// SPDX-License-Identifier: Apache-2.0
// The bytes of a segment's file (byte tables: FORMAT.md), and what of them is kept in memory. Everything that
// is decoded here is untrusted. Pure functions.
#pragma once

#include "blockstore/fingerprint.h"
#include "blockstore/segment.h"

enum {
    SEGMENT_VERSION = 1,
    SEGMENT_HEADER_BYTES = BLOCK_SIZE,
    SEGMENT_TRAILER_BYTES = BLOCK_SIZE,
    SEGMENT_FRAME_ALIGN = 8,
    SEGMENT_FRAME_ENTRY_BYTES = 32,
    SEGMENT_FINGERPRINT_BYTES = 16,
    // The largest frame table and all fingerprints, and room for the largest frames, all raw.
    SEGMENT_FILE_MAX =
            2 * BLOCK_SIZE +
            SEGMENT_SLOTS_MAX * (BLOCK_SIZE + SEGMENT_FRAME_ENTRY_BYTES + SEGMENT_FINGERPRINT_BYTES) +
            4 * BLOCK_SIZE,
};

struct segment_header {
    uint32_t version, must_features;
    uint64_t may_features;
    uint64_t number;
    uint32_t generation;
    uint32_t kind;
    uint64_t domain;
};

struct segment_trailer {
    uint64_t number;
    uint32_t generation;
    uint64_t footer_offset, footer_bytes, footer_checksum, file_bytes;
    uint32_t slots, present, frames;
    int32_t level;
};

struct segment_frame {
    uint32_t offset, stored_bytes;
    uint32_t present_before; // present slots of earlier frames: where its fingerprints begin
    uint16_t first_slot;
    uint8_t slots; // 1 to 64 consecutive ones; bit i of the bitmap: slot first_slot + i is present
    uint8_t codec;
    int8_t level;
    uint64_t bitmap;
    uint64_t checksum; // of the stored bytes, see segment_frame_checksum
};

struct segment_index {
    struct segment_frame *frames; // ascending, by slot and by offset
    struct fingerprint *fingerprints;
    uint32_t frame_count, frame_room, present, present_room;
};

static inline unsigned segment_frame_present(const struct segment_frame *frame)
{
    return (unsigned)__builtin_popcountll(frame->bitmap);
}

static inline size_t segment_frame_bytes(const struct segment_frame *frame) // uncompressed
{
    return (size_t)segment_frame_present(frame) * BLOCK_SIZE;
}

// How many present slots of the frame come before this one.
static inline unsigned segment_frame_rank(const struct segment_frame *frame, uint32_t slot)
{
    return (unsigned)__builtin_popcountll(frame->bitmap & ((UINT64_C(1) << (slot - frame->first_slot)) - 1));
}

static inline bool segment_frame_holds(const struct segment_frame *frame, uint32_t slot)
{
    return slot >= frame->first_slot && slot < (uint32_t)frame->first_slot + frame->slots &&
           (frame->bitmap >> (slot - frame->first_slot) & 1);
}

// The frame with this slot, or NULL when it is not there.
const struct segment_frame *segment_index_find(const struct segment_index *index, uint32_t slot);
// Appends a frame, and the fingerprints of its present slots.
void segment_index_append(struct segment_index *index, const struct segment_frame *frame,
        const struct fingerprint *fingerprints);
uint64_t segment_index_bytes(const struct segment_index *index); // of memory
void segment_index_clear(struct segment_index *index);           // frees what it holds
int segment_index_level(const struct segment_index *index, int otherwise);

uint64_t segment_frame_checksum(
        uint64_t seed, uint64_t number, uint32_t first_slot, const void *stored, size_t stored_bytes);

void segment_header_encode(const struct segment_header *header, uint64_t seed, void *block);
// 0, -EBADMSG, or -EPROTO for a newer format (*ret_header is filled then too).
int segment_header_decode(const void *block, uint64_t seed, struct segment_header *ret_header);

void segment_trailer_encode(const struct segment_trailer *trailer, uint64_t seed, void *block);
int segment_trailer_decode(const void *block, uint64_t seed, struct segment_trailer *ret_trailer);

// Bytes of a footer, a multiple of 4 KiB.
uint64_t segment_footer_bytes(uint64_t frames, uint64_t present);
// Fills `footer`, and the trailer's footer_checksum.
void segment_footer_encode(
        const struct segment_index *index, struct segment_trailer *trailer, uint64_t seed, void *footer);
// `footer` holds trailer->footer_bytes. 0 or -EBADMSG. *ret_index must be cleared by the caller.
int segment_footer_decode(const void *footer, const struct segment_trailer *trailer, enum segment_kind kind,
        uint64_t seed, struct segment_index *ret_index);
