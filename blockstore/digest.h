// SPDX-License-Identifier: Apache-2.0
// Checksums: XXH3-64 (xxHash library). They detect damage; they are not proof against an attacker.
// Pure functions. Threads: any.
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t digest_bytes(const void *bytes, size_t size, uint64_t seed);
uint64_t digest_block(const void *block); // one 4 KiB block

// 128 bits under a secret of 192 bytes, for fingerprint.c; and such a secret, derived from a seed of any
// size.
enum { DIGEST_SECRET_BYTES = 192 };
void digest_secret_derive(const void *seed, size_t size, uint8_t ret_secret[DIGEST_SECRET_BYTES]);
void digest_block_keyed(
        const uint8_t secret[DIGEST_SECRET_BYTES], const void *block, uint64_t *ret_low, uint64_t *ret_high);
