// SPDX-License-Identifier: Apache-2.0
// What node_cache.c (finding, keeping, evicting) and node_cache_load.c (reading) share.
#pragma once

#include "snapshot/node_cache.h"

#include <pthread.h>
#include <stdatomic.h>

struct cache_entry {
    struct node_cached node; // first: a node that was found is its entry
    _Atomic uint32_t pins;   // grows under the stripe's lock only, so one without pins can be evicted
    _Atomic bool recent;
    struct cache_entry *next; // in its bucket
};

struct node_fetch; // one read, and who waits for it

struct cache_stripe { // everything under its lock; no lock is taken inside
    pthread_mutex_t lock;
    struct cache_entry **buckets;
    struct cache_entry **clock; // `count` of `capacity` places are taken
    uint32_t capacity, count, hand;
    struct node_fetch *fetches;
} __attribute__((aligned(64)));

struct node_cache {
    struct segments *segments;
    uint32_t stripe_mask, bucket_mask;
    struct cache_stripe stripes[];
};

static inline uint64_t node_cache_hash(locator_t locator)
{
    uint64_t hash = locator * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

static inline struct cache_stripe *node_cache_stripe(struct node_cache *cache, locator_t locator)
{
    return &cache->stripes[node_cache_hash(locator) & cache->stripe_mask];
}

struct cache_entry *node_cache_find_locked(
        struct node_cache *cache, struct cache_stripe *stripe, locator_t locator);
void node_cache_insert_locked(
        struct node_cache *cache, struct cache_stripe *stripe, locator_t locator, const locator_t slots[512]);
