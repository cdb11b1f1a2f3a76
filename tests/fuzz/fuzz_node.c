// SPDX-License-Identifier: Apache-2.0
// The slots of a tree node: what is accepted holds unmapped, zero and segment locators only.
#include "blockstore/cursor.h"
#include "snapshot/node_cache.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    locator_t slots[512];
    struct cursor c = cursor_make((void *)bytes, size);
    for (unsigned i = 0; i < 512; i++)
        slots[i] = cursor_get_u64(&c); // 0 behind the end
    if (node_cache_check(slots) < 0)
        return 0;
    for (unsigned i = 0; i < 512; i++) {
        bool segment = locator_is_segment(slots[i]) && locator_segment_slot(slots[i]) < SEGMENT_SLOTS_MAX;
        if (slots[i] != LOCATOR_UNMAPPED && slots[i] != LOCATOR_ZERO && !segment)
            abort();
    }
    return 0;
}
