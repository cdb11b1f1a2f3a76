// SPDX-License-Identifier: Apache-2.0
// Uncompressed pieces of segments in memory: whole compressed frames, and single slots of raw frames. Capped;
// what was not used since the hand came by last leaves first (CLOCK). Loads of one piece that come at the
// same time are one read: the first asker loads, the others wait.
//
// Threads: any. Locks: one per shard, rank last. The cap may be passed by one piece per shard, and by what
// readers hold.
#pragma once

#include "blockstore/io.h"

#include <stdatomic.h>

struct segment_cache;

// Keys are unique for the life of the process: `segment` is the id of an entry of the table, never reused.
struct segment_cache_key {
    uint64_t segment;
    uint32_t unit; // first slot of a frame, or a slot of a raw frame with SEGMENT_CACHE_SLOT
};
#define SEGMENT_CACHE_SLOT 0x80000000u

struct segment_cached {
    const uint8_t *bytes;
    size_t size;
    // Private fields follow in segment_cache.c.
};

struct segment_cache_wait {
    struct loop *loop; // done runs here
    void (*done)(struct segment_cache_wait *wait, int result, struct segment_cached *cached);
    // Private:
    struct loop_work work;
    struct segment_cache_wait *next;
    struct segment_cached *cached;
    int result;
};

enum segment_cache_answer { SEGMENT_CACHE_HIT, SEGMENT_CACHE_WAIT, SEGMENT_CACHE_LOAD };

struct segment_cache *segment_cache_new(uint64_t max_bytes);
struct segment_cache *segment_cache_free(struct segment_cache *cache);

// A piece that is here, held until segment_cache_put; or NULL.
struct segment_cached *segment_cache_get(struct segment_cache *cache, struct segment_cache_key key);
void segment_cache_put(struct segment_cached *cached);
// HIT: *ret_cached is held. WAIT: wait->done will say. LOAD: the caller loads and must call
// segment_cache_loaded with *ret_cached.
enum segment_cache_answer segment_cache_begin(struct segment_cache *cache, struct segment_cache_key key,
        struct segment_cache_wait *wait, struct segment_cached **ret_cached);
// The end of a load: `bytes` (from malloc) become the cache's; on a failure they are NULL and nothing stays.
// Everybody who waits is told on its own loop. The loader goes on holding the piece: segment_cache_put.
void segment_cache_loaded(
        struct segment_cache *cache, struct segment_cached *cached, int result, void *bytes, size_t size);
// A piece that was read anyway (copied); nothing happens when it is there.
void segment_cache_insert(
        struct segment_cache *cache, struct segment_cache_key key, const void *bytes, size_t size);

struct segment_cache_stat {
    uint64_t bytes, hits, misses;
};
void segment_cache_stat(struct segment_cache *cache, struct segment_cache_stat *ret_stat);
