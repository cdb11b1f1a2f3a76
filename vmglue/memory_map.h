// SPDX-License-Identifier: Apache-2.0
// What a resumed machine's memory is made of: the image of its origin (the template that it and its sisters
// come from), and over it the extents in which its own image differs. Sessions of one template that were
// each resumed from a snapshot of their own so share the template's page cache.
//
// There is never a third layer: a snapshot holds the whole memory by itself, and its map is made anew from
// two trees. The number of extents is bounded: small gaps between two are taken from the own image as well,
// the smallest first. A map without extents and without origin is the own image alone.
//
// Threads: a map belongs to one thread; memory_map_make waits for the store: not on a loop.
#pragma once

#include "snapshot/volume.h"
#include "snapshot/working_set.h"

enum {
    MEMORY_MAP_EXTENTS_MAX = 2048, // of 65530 mappings that a process may have, each extent takes two
    MEMORY_MAP_GAP_BYTES = 16384,  // gaps up to this are never worth a mapping: what read-ahead fetches
};

struct memory_map_extent {
    uint64_t offset, length; // bytes, whole pages
};
struct memory_map {
    struct base_id own;
    struct base_id origin; // 0: the own image alone, no extents
    uint64_t bytes;
    struct memory_map_extent *extents; // ascending, apart
    unsigned count;
    uint64_t own_bytes; // in extents
};

// Falls back to the own image alone (success) when `origin` is 0, gone, of another size, or shares less than
// half of what `own` holds.
int memory_map_make(struct store *store, struct base_id own, struct base_id origin,
        struct memory_map *ret_map, struct error *err);
void memory_map_free(struct memory_map *map); // accepts one of zeros

// The extents as the preload library takes them (preload/preload_wire.h), in a sealed memory file.
int memory_map_file(const struct memory_map *map, int *ret_fd, struct error *err);

// Cuts ranges of guest memory where the map changes from one image to the other. each() < 0 stops.
int memory_map_split(const struct memory_map *map, const struct working_set_range *ranges, unsigned count,
        int (*each)(void *context, struct base_id image, uint64_t offset, uint64_t length), void *context);

// For the tests: adds extents in order and closes gaps until at most `max` are left.
int memory_map_add(struct memory_map *map, uint64_t offset, uint64_t length);
void memory_map_close_gaps(struct memory_map *map, uint64_t gap_bytes, unsigned max);
