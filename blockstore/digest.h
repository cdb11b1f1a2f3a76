// SPDX-License-Identifier: Apache-2.0
// Checksums: XXH3-64 (xxHash library). They detect damage; they are not proof against an attacker.
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t digest_bytes(const void *bytes, size_t size, uint64_t seed);
uint64_t digest_block(const void *block); // one 4 KiB block
