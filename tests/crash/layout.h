// SPDX-License-Identifier: Apache-2.0
// Which blocks of a volume the harness looks at. Small volumes: all of them. Vast ones (1 TiB): a few windows
// at the seams of the 512-way tree; between them nothing is ever written, and only zero and trim reach there.
// "Index" counts the blocks looked at; "number" is the block's place in the volume.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "blockstore/ids.h"

#define LAYOUT_VAST_BYTES (UINT64_C(1) << 40)

static const struct layout_window {
    uint64_t first, count;
} layout_windows[] = {
        {0, 8}, {508, 8}, {262140, 8}, {(UINT64_C(1) << 27) - 4, 8}, {(UINT64_C(1) << 27) + 100000, 4}};
enum { LAYOUT_WINDOWS = 5 };

static inline bool layout_is_vast(uint64_t size_bytes)
{
    return size_bytes >= LAYOUT_VAST_BYTES;
}

static inline uint64_t layout_count(uint64_t size_bytes)
{
    if (!layout_is_vast(size_bytes))
        return (size_bytes + BLOCK_SIZE - 1) / BLOCK_SIZE;
    uint64_t count = 0;
    for (unsigned i = 0; i < LAYOUT_WINDOWS; i++)
        count += layout_windows[i].count;
    return count;
}

static inline uint64_t layout_number(bool vast, uint64_t index)
{
    for (unsigned i = 0; vast && i < LAYOUT_WINDOWS; i++) {
        if (index < layout_windows[i].count)
            return layout_windows[i].first + index;
        index -= layout_windows[i].count;
    }
    return index;
}

// The first index whose block ends after `offset`, for stepping through a range.
static inline uint64_t layout_first_index(bool vast, uint64_t offset)
{
    uint64_t number = offset / BLOCK_SIZE, index = 0;
    if (!vast)
        return number;
    for (unsigned i = 0; i < LAYOUT_WINDOWS; i++) {
        if (number < layout_windows[i].first)
            return index;
        if (number < layout_windows[i].first + layout_windows[i].count)
            return index + number - layout_windows[i].first;
        index += layout_windows[i].count;
    }
    return index;
}
