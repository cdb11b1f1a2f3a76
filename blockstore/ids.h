// SPDX-License-Identifier: Apache-2.0
// Ids are never reused within a store. One-field structs, so that the compiler tells them apart.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { BLOCK_SIZE = 4096 };
#define BLOCK_SHIFT 12

struct volume_id {
    uint64_t value; // 0 = none
};
struct base_id {
    uint64_t value; // 0 = none
};
struct doc_id {
    uint64_t value; // 0 = none
};
