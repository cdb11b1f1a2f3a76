// SPDX-License-Identifier: Apache-2.0
// Sealed tree nodes in memory, by locator. A capped cache: lookups of loops find nodes here or load them.
// Thread-safe; a node that was found stays until it is put back.
#pragma once

#include "blockstore/segment.h"

struct node_cache;
struct node_cached {
    locator_t locator;
    locator_t slots[512];
    // Private fields follow in node_cache.c.
};

// Keeps at least 32 nodes; much less than 4 MiB is read anew again and again by many readers at once.
struct node_cache *node_cache_new(struct segments *segments, uint64_t max_bytes);
struct node_cache *node_cache_free(struct node_cache *cache);
// NULL: not here.
const struct node_cached *node_cache_find(struct node_cache *cache, locator_t locator);
void node_cache_put(struct node_cache *cache, const struct node_cached *node);

// Loads a node into the cache and says so; several loads of one node are one read. The node may be evicted
// again before `done` looks: callers simply ask again. -EBADMSG: damaged.
struct node_load {
    struct loop *loop;
    locator_t locator;
    void (*done)(struct node_load *load, int result);
    // Private:
    struct node_cache *cache;
    struct node_load *next;
    struct loop_work work;
    int result;
};
void node_cache_load(struct node_cache *cache, struct node_load *load); // [load->loop]; done later
// A task's own reading, past the cache when it is not there (collecting, checking).
int node_cache_read_task(
        struct node_cache *cache, struct task *task, locator_t locator, locator_t ret_slots[512]);
// Checks that 512 slots read from a segment are what a node may hold: segment locators, zero, unmapped. 0 or
// -EBADMSG.
int node_cache_check(const locator_t slots[512]);
// A node that its maker has at hand.
void node_cache_insert(struct node_cache *cache, locator_t locator, const locator_t slots[512]);
