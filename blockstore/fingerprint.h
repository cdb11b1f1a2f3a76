// SPDX-License-Identifier: Apache-2.0
// Fingerprints of blocks: XXH3-128 (xxHash library) under a secret that is random per store and different for
// each dedup domain, so that nobody can construct collisions or probe another tenant's blocks. A fingerprint
// is a hint and a check against damage, never an identity: bytes are compared before a block is shared, and
// fingerprints never leave the store.
#pragma once

#include "blockstore/ids.h"
#include "blockstore/locator.h"

#include <stddef.h>

struct fingerprint {
    uint64_t low, high;
};

enum { FINGERPRINT_KEY_BYTES = 192, FINGERPRINT_SECRET_BYTES = 32 };
struct fingerprint_key {
    uint8_t secret[FINGERPRINT_KEY_BYTES];
};

void fingerprint_key_derive(const uint8_t store_secret[FINGERPRINT_SECRET_BYTES], uint64_t domain,
        struct fingerprint_key *ret_key);
struct fingerprint fingerprint_of(const struct fingerprint_key *key, const void *block); // 4 KiB
// For tests: only this many bits of every fingerprint made from now on differ (128 = all).
void fingerprint_weaken(unsigned bits);

// The index: which locators may hold a block with this fingerprint. A capped table in memory, 8 bytes an
// entry; what it forgets only costs space. Thread-safe.
struct fingerprint_index;
enum { FINGERPRINT_CANDIDATES_MAX = 16 };

struct fingerprint_index *fingerprint_index_new(uint64_t max_bytes); // grows up to it
struct fingerprint_index *fingerprint_index_free(struct fingerprint_index *index);
void fingerprint_index_put(
        struct fingerprint_index *index, struct fingerprint fingerprint, locator_t locator);
// Candidates, most likely first. They may be stale or wrong: look at the segment, then compare bytes.
unsigned fingerprint_index_find(struct fingerprint_index *index, struct fingerprint fingerprint,
        locator_t ret_candidates[FINGERPRINT_CANDIDATES_MAX]);
// Forgets this entry (a candidate that turned out stale).
void fingerprint_index_forget(
        struct fingerprint_index *index, struct fingerprint fingerprint, locator_t locator);
struct fingerprint_index_stat {
    uint64_t entries, capacity, bytes, evicted;
};
void fingerprint_index_stat(struct fingerprint_index *index, struct fingerprint_index_stat *ret_stat);
