// SPDX-License-Identifier: Apache-2.0
// Extents and differences of bases as lists, for threads that do something slow with each: the callbacks of
// volume.h must return at once.
//
// Threads: any that is not a loop; a list is one thread's. Memory: 24 bytes an extent.
#pragma once

#include "snapshot/volume.h"

struct extent_list {
    struct extent_list_item {
        uint64_t offset, length; // bytes
        enum extent_kind kind;
    } * items;
    size_t count, capacity, limit; // limit 0 = none
    bool no_memory;
};
enum { EXTENT_LIST_PART = 16384 };

void extent_list_free(struct extent_list *list);
// What `base` holds from byte `offset` on: EXTENT_LIST_PART extents at most. *ret_next: where the next call
// goes on; the base's size when this was all.
int extent_list_base(struct extent_list *list, struct base *base, uint64_t offset, uint64_t *ret_next);
// What differs between two bases, as base_diff_wait says it.
int extent_list_diff(struct extent_list *list, struct base *older, struct base *newer);
