// SPDX-License-Identifier: Apache-2.0
#include "blockstore/digest.h"

#include "blockstore/ids.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

uint64_t digest_bytes(const void *bytes, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, size, seed);
}

uint64_t digest_block(const void *block)
{
    return XXH3_64bits(block, BLOCK_SIZE);
}
