// SPDX-License-Identifier: Apache-2.0
// The log record: one 4 KiB header block, then payload_blocks blocks. All numbers little-endian.
//
//   off  size  field
//     0     4  magic "RLR1"
//     4     2  kind (enum record_kind)
//     6     2  flags: 0
//     8     8  checksum: XXH3-64 of the header block with this field zero, seeded with the store's uuid
//              (its first 8 bytes)
//    16     8  file number (the generation: a recycled file gets a new one)
//    24     8  sequence number, one more than the record before, across files
//    32     8  durable: every record up to this one was durable when this was written
//    40     8  incarnation: random, drawn at each opening of the store
//    48     8  volume id (WRITE, ZERO, TRIM); number of the oldest file that counts (IMAGE, RETIRE)
//    56     4  epoch of the volume
//    60     4  extent_count
//    64     4  payload_blocks (at most RECORD_PAYLOAD_MAX)
//    68     4  body_bytes: bytes of the body (TXN, IMAGE)
//    72     4  body_blocks: payload blocks that the body takes; 0 = it is inline, after the sums
//    76     4  part, for IMAGE and ROOTS: 0, 1, ...
//    80     4  parts, for IMAGE and ROOTS
//    84     8  the incarnation before this one (OPEN, IMAGE): what the first record of an opening follows
//    92     4  zero
//    96        extents: { u64 first block, u32 count, u32 zero }
//              sums: u64 XXH3-64 of each payload block
//              inline body
//
// Versions: the first 48 bytes and the checksum stay as they are for good. A header whose checksum is right,
// but whose last digit of the magic, flags or kind a reader does not know, was written by a newer version:
// the log is not read any further (-EPROTO), it does not end there. There are no flags that may be ignored.
// A header with counts that do not fit is not a record. A WRITE's extents cover
// exactly payload_blocks blocks, in order. ZERO and TRIM have extents and no payload.
#pragma once

#include "blockstore/ids.h"

#include <stddef.h>

#define RECORD_MAGIC 0x31524c52u
enum record_kind {
    RECORD_WRITE = 1,
    RECORD_ZERO = 2,
    RECORD_TRIM = 3,
    RECORD_TXN = 4,    // catalog transaction (snapshot/catalog_code.h), blob blocks after the body
    RECORD_IMAGE = 5,  // image of the catalog at the head of each file
    RECORD_OPEN = 6,   // first record of an opening
    RECORD_RETIRE = 7, // the files before `volume` do not count any more
    RECORD_ROOTS = 8,  // copy of the checkpoint's rows, in parts like IMAGE: for rebuilding a lost catalog
};

enum {
    RECORD_FIXED_BYTES = 96,
    RECORD_EXTENT_BYTES = 16,
    RECORD_PAYLOAD_MAX = 480,
};

struct record_extent {
    uint64_t block;
    uint32_t count;
};

struct record {
    enum record_kind kind;
    uint64_t file, seq, durable, incarnation;
    uint64_t volume;
    uint64_t previous; // incarnation
    uint32_t epoch;
    uint32_t extent_count, payload_blocks, body_bytes, body_blocks, part, parts;
    const struct record_extent
            *extents;     // encode: the caller's; decode: into a caller's array of RECORD_EXTENT_MAX
    const uint64_t *sums; // same, RECORD_PAYLOAD_MAX
    const void *inline_body;
};
enum { RECORD_EXTENT_MAX = (BLOCK_SIZE - RECORD_FIXED_BYTES) / RECORD_EXTENT_BYTES };

struct record_arrays {
    struct record_extent extents[RECORD_EXTENT_MAX];
    uint64_t sums[RECORD_PAYLOAD_MAX];
};

// How many bytes of body fit inline beside the arrays.
size_t record_inline_room(uint32_t extent_count, uint32_t payload_blocks);
// Fills a whole header block. The counts must fit (record_inline_room and the maxima above).
void record_encode(const struct record *record, uint64_t seed, void *block);
// 0, or -EBADMSG when the block is not a valid header. Pointers in *ret_record point into arrays and block.
// -EPROTO: a record of a newer version; only file, seq, durable and incarnation are filled in.
int record_decode(const void *block, uint64_t seed, struct record_arrays *arrays, struct record *ret_record);
