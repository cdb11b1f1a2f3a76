// SPDX-License-Identifier: Apache-2.0
// Locator: where a block is, in 8 bytes.
//
//   bits 0..3   kind: 0 unmapped (or, in memory, a pointer to a child node when not zero), 1 zero, 2 log,
//               3 segment, 4 inherit (in memory only: ask the node that this one was made over)
//   log:        bits 4..27 block within the log file, bits 28..63 log file number
//   segment:    bits 4..27 slot within the segment, bits 28..63 segment number (virtual, never reused)
// In an inner tree node a segment locator names a sealed node, in a leaf a block of data.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t locator_t;

enum {
    LOCATOR_POINTER = 0,
    LOCATOR_ZERO_KIND = 1,
    LOCATOR_LOG_KIND = 2,
    LOCATOR_SEGMENT_KIND = 3,
    LOCATOR_INHERIT_KIND = 4,
};
#define LOCATOR_UNMAPPED ((locator_t)0)
#define LOCATOR_ZERO ((locator_t)1)
#define LOCATOR_INHERIT ((locator_t)4)
#define LOCATOR_LOG_BLOCKS_MAX (UINT64_C(1) << 24)
#define LOCATOR_FILE_MAX (UINT64_C(1) << 36) // numbers of log files and segments are below it

static inline locator_t locator_log(uint64_t file, uint64_t block)
{
    return file << 28 | block << 4 | LOCATOR_LOG_KIND;
}

static inline bool locator_is_log(locator_t locator)
{
    return (locator & 15) == LOCATOR_LOG_KIND;
}

static inline uint64_t locator_log_file(locator_t locator)
{
    return locator >> 28;
}

static inline uint64_t locator_log_block(locator_t locator)
{
    return locator >> 4 & (LOCATOR_LOG_BLOCKS_MAX - 1);
}

static inline locator_t locator_segment(uint64_t segment, uint64_t slot)
{
    return segment << 28 | slot << 4 | LOCATOR_SEGMENT_KIND;
}

// A block that was damaged in the log when it was sealed. Segment 0 does not exist, so whoever reads it gets
// an error, never other bytes.
#define LOCATOR_LOST locator_segment(0, 0)

static inline bool locator_is_segment(locator_t locator)
{
    return (locator & 15) == LOCATOR_SEGMENT_KIND;
}

static inline uint64_t locator_segment_number(locator_t locator)
{
    return locator >> 28;
}

static inline uint32_t locator_segment_slot(locator_t locator)
{
    return (uint32_t)(locator >> 4 & (LOCATOR_LOG_BLOCKS_MAX - 1));
}

// The locator of the n-th block after this one (runs in the log and in segments count up; zero and unmapped
// stay).
static inline locator_t locator_next(locator_t locator, uint64_t n)
{
    return locator_is_log(locator) || locator_is_segment(locator) ? locator + (n << 4) : locator;
}
