// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/fill.h"

#include <string.h>

#include "blockstore/record.h"
#include "blockstore/segment_format.h"

// Marks in the upper 16 bits of a seed; ids of operations never reach them.
static const uint64_t COMPRESSIBLE = UINT64_C(0xc0) << 48, SHARED = UINT64_C(0xde) << 48;

uint64_t fill_compressible(uint64_t id)
{
    return COMPRESSIBLE | id;
}

uint64_t fill_shared(unsigned distinct, uint64_t salt)
{
    return SHARED | (uint64_t)(distinct - 1) << 40 | (salt & 0xffffffffff);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t word = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b * UINT64_C(0xd6e8feb86659fd93));
    word = (word ^ (word >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return word ^ (word >> 32);
}

enum { IMITATIONS = 3 };

// A log record, the header and the trailer of a segment, whole but for the store's seed.
static uint64_t imitated_word(unsigned which, uint64_t word)
{
    static uint64_t blocks[IMITATIONS][BLOCK_SIZE / 8];
    if (blocks[0][0] == 0) {
        struct record_extent extent = {.count = 1};
        uint64_t sum = 1;
        record_encode(&(struct record){.kind = RECORD_WRITE,
                              .file = 2,
                              .seq = 20,
                              .volume = 1,
                              .extent_count = 1,
                              .payload_blocks = 1,
                              .extents = &extent,
                              .sums = &sum},
                7, blocks[0]);
        struct segment_header header = {.version = SEGMENT_VERSION, .number = 1, .kind = SEGMENT_DATA};
        segment_header_encode(&header, 7, blocks[1]);
        struct segment_trailer trailer = {
                .number = 1, .footer_offset = BLOCK_SIZE, .footer_bytes = BLOCK_SIZE};
        segment_trailer_encode(&trailer, 7, blocks[2]);
    }
    return blocks[which][word];
}

// Blocks 0..6 are special; every second one of the others compresses well.
static uint64_t shared_word(uint64_t which, uint64_t word)
{
    switch (which) {
    case 0:
        return 0;
    case 1:
    case 2:
    case 3:
        return imitated_word((unsigned)which - 1, word);
    case 4:
        return UINT64_MAX;
    case 5: // a node: locators that count up
        return locator_segment(1, word);
    case 6: // zeros but for the last byte
        return word == BLOCK_SIZE / 8 - 1 ? UINT64_C(1) << 56 : 0;
    default:
        return which % 2 ? mix(which, word / 64) : mix(which, word);
    }
}

static uint64_t word_at(uint64_t seed, uint64_t word)
{
    const uint64_t in_block = BLOCK_SIZE / 8;
    if (seed >> 48 == SHARED >> 48) {
        uint64_t distinct = (seed >> 40 & 0xff) + 1;
        return shared_word(mix(seed, word / in_block) % distinct, word % in_block);
    }
    if (seed >> 48 == COMPRESSIBLE >> 48)
        return mix(seed, word / in_block);
    return mix(seed, word);
}

void fill_bytes(uint64_t seed, uint64_t offset, void *buffer, size_t size)
{
    uint8_t *bytes = buffer;
    for (size_t done = 0; done < size;) {
        uint64_t word = word_at(seed, (offset + done) / 8);
        size_t inside = (offset + done) % 8;
        size_t part = 8 - inside < size - done ? 8 - inside : size - done;
        memcpy(bytes + done, (const uint8_t *)&word + inside, part);
        done += part;
    }
}

bool fill_matches(uint64_t seed, uint64_t offset, const uint8_t *bytes, size_t size)
{
    uint8_t wanted[512];
    for (size_t done = 0; done < size;) {
        size_t most = done == 0 ? 16 : sizeof wanted; // most that do not match differ at once
        size_t part = size - done < most ? size - done : most;
        fill_bytes(seed, offset + done, wanted, part);
        if (memcmp(wanted, bytes + done, part) != 0)
            return false;
        done += part;
    }
    return true;
}
