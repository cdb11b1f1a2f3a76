// SPDX-License-Identifier: Apache-2.0
// Locator: where a block is, in 8 bytes.
//
//   bits 0..3   kind: 0 unmapped (or, in memory, a pointer to a child node when not zero), 1 zero, 2 log, 3
//   segment log:        bits 4..27 block within the log file, bits 28..63 log file number
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t locator_t;

enum { LOCATOR_POINTER = 0, LOCATOR_ZERO_KIND = 1, LOCATOR_LOG_KIND = 2 };
#define LOCATOR_UNMAPPED ((locator_t)0)
#define LOCATOR_ZERO ((locator_t)1)
#define LOCATOR_LOG_BLOCKS_MAX (UINT64_C(1) << 24)

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

// The locator of the n-th block after this one (log runs count up; zero and unmapped stay).
static inline locator_t locator_next(locator_t locator, uint64_t n)
{
    return locator_is_log(locator) ? locator + (n << 4) : locator;
}
