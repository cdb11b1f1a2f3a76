// SPDX-License-Identifier: Apache-2.0
#include "blockstore/fingerprint.h"

#include "blockstore/digest.h"

#include <stdatomic.h>
#include <string.h>

_Static_assert((int)FINGERPRINT_KEY_BYTES == (int)DIGEST_SECRET_BYTES, "one size");

static _Atomic unsigned strong_bits = 128;

// Fingerprints are kept in the footers of segments, so what is fed to the derivation is part of the format:
// the store's secret, then the domain as 8 bytes little-endian.
void fingerprint_key_derive(const uint8_t store_secret[FINGERPRINT_SECRET_BYTES], uint64_t domain,
        struct fingerprint_key *ret_key)
{
    uint8_t seed[FINGERPRINT_SECRET_BYTES + 8];
    memcpy(seed, store_secret, FINGERPRINT_SECRET_BYTES);
    for (unsigned i = 0; i < 8; i++)
        seed[FINGERPRINT_SECRET_BYTES + i] = (uint8_t)(domain >> (8 * i));
    digest_secret_derive(seed, sizeof seed, ret_key->secret);
}

static uint64_t low_bits(unsigned bits)
{
    return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

struct fingerprint fingerprint_of(const struct fingerprint_key *key, const void *block)
{
    struct fingerprint fingerprint;
    digest_block_keyed(key->secret, block, &fingerprint.low, &fingerprint.high);
    unsigned bits = atomic_load_explicit(&strong_bits, memory_order_relaxed);
    if (bits < 128) {
        fingerprint.low &= low_bits(bits);
        fingerprint.high &= bits > 64 ? low_bits(bits - 64) : 0;
    }
    return fingerprint;
}

void fingerprint_weaken(unsigned bits)
{
    atomic_store_explicit(&strong_bits, bits, memory_order_relaxed);
}
