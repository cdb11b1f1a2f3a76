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

_Static_assert(DIGEST_SECRET_BYTES >= XXH3_SECRET_SIZE_MIN, "XXH3 wants a longer secret");

void digest_secret_derive(const void *seed, size_t size, uint8_t ret_secret[DIGEST_SECRET_BYTES])
{
    // Fails only for missing or short buffers.
    (void)XXH3_generateSecret(ret_secret, DIGEST_SECRET_BYTES, seed, size);
}

void digest_block_keyed(
        const uint8_t secret[DIGEST_SECRET_BYTES], const void *block, uint64_t *ret_low, uint64_t *ret_high)
{
    XXH128_hash_t hash = XXH3_128bits_withSecret(block, BLOCK_SIZE, secret, DIGEST_SECRET_BYTES);
    *ret_low = hash.low64;
    *ret_high = hash.high64;
}
