// SPDX-License-Identifier: Apache-2.0
// The bytes that operations write. A seed decides them all: most seeds give bytes of their own, some give
// blocks that occur in many places, as copies of one another.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The bytes at `offset` of a volume (or of a doc's body, or a blob).
void fill_bytes(uint64_t seed, uint64_t offset, void *buffer, size_t size);
bool fill_matches(uint64_t seed, uint64_t offset, const uint8_t *bytes, size_t size);

// Bytes of operation `id` alone that compress well.
uint64_t fill_compressible(uint64_t id);
// Each block is one of `distinct` (1..256) that all such seeds have in common, whatever the place: zeros, one
// like a log record's header, ones like a segment's, one like a tree node, and others. `salt` decides which
// block is where.
uint64_t fill_shared(unsigned distinct, uint64_t salt);
