// SPDX-License-Identifier: Apache-2.0
// Sealed nodes in memory: stripes by hash, each with its lock, its buckets and its clock (second chance).
// A find costs one lock that is rarely contended, and one pin; giving back is one atomic.
#include "snapshot/node_cache_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRIPES_MAX = 64,
    STRIPE_NODES_MIN = 32, // more than one lookup in two trees needs at once
};

static void *allocate(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

static uint32_t power_of_two_below(uint64_t value, uint32_t most)
{
    uint32_t power = 1;
    while (power < most && (uint64_t)power * 2 <= value)
        power *= 2;
    return power;
}

struct node_cache *node_cache_new(struct segments *segments, uint64_t max_bytes)
{
    uint64_t nodes = max_bytes / sizeof(struct cache_entry);
    uint32_t stripes = power_of_two_below(nodes / STRIPE_NODES_MIN, STRIPES_MAX);
    uint64_t capacity = nodes / stripes;
    if (capacity < STRIPE_NODES_MIN)
        capacity = STRIPE_NODES_MIN;
    if (capacity > UINT32_MAX / 4)
        capacity = UINT32_MAX / 4;
    size_t size = sizeof(struct node_cache) + stripes * sizeof(struct cache_stripe);
    struct node_cache *cache = aligned_alloc(64, (size + 63) & ~(size_t)63);
    if (cache == NULL)
        abort();
    memset(cache, 0, size);
    cache->segments = segments;
    cache->stripe_mask = stripes - 1;
    cache->bucket_mask = power_of_two_below(capacity * 2, 1u << 31) - 1;
    for (uint32_t i = 0; i < stripes; i++) {
        struct cache_stripe *stripe = &cache->stripes[i];
        pthread_mutex_init(&stripe->lock, NULL);
        stripe->capacity = (uint32_t)capacity;
        stripe->buckets = allocate(((size_t)cache->bucket_mask + 1) * sizeof *stripe->buckets);
        stripe->clock = allocate(capacity * sizeof *stripe->clock);
    }
    return cache;
}

struct node_cache *node_cache_free(struct node_cache *cache)
{
    for (uint32_t i = 0; cache != NULL && i <= cache->stripe_mask; i++) {
        struct cache_stripe *stripe = &cache->stripes[i];
        for (uint32_t at = 0; at < stripe->count; at++)
            free(stripe->clock[at]);
        free(stripe->clock);
        free(stripe->buckets);
        pthread_mutex_destroy(&stripe->lock);
    }
    free(cache);
    return NULL;
}

static struct cache_entry **bucket_of(
        struct node_cache *cache, struct cache_stripe *stripe, locator_t locator)
{
    return &stripe->buckets[node_cache_hash(locator) >> 6 & cache->bucket_mask];
}

struct cache_entry *node_cache_find_locked(
        struct node_cache *cache, struct cache_stripe *stripe, locator_t locator)
{
    struct cache_entry *entry = *bucket_of(cache, stripe, locator);
    while (entry != NULL && entry->node.locator != locator)
        entry = entry->next;
    return entry;
}

const struct node_cached *node_cache_find(struct node_cache *cache, locator_t locator)
{
    struct cache_stripe *stripe = node_cache_stripe(cache, locator);
    pthread_mutex_lock(&stripe->lock);
    struct cache_entry *entry = node_cache_find_locked(cache, stripe, locator);
    if (entry != NULL)
        atomic_fetch_add_explicit(&entry->pins, 1, memory_order_relaxed);
    pthread_mutex_unlock(&stripe->lock);
    if (entry == NULL)
        return NULL;
    if (!atomic_load_explicit(&entry->recent, memory_order_relaxed))
        atomic_store_explicit(&entry->recent, true, memory_order_relaxed);
    return &entry->node;
}

void node_cache_put(struct node_cache *cache, const struct node_cached *node)
{
    struct cache_entry *entry = (struct cache_entry *)node;
    atomic_fetch_sub_explicit(&entry->pins, 1, memory_order_release);
}

// The place of an entry that was not used since the hand came by last; NULL when all are in use just now.
static struct cache_entry **evict_locked(struct node_cache *cache, struct cache_stripe *stripe)
{
    for (uint64_t tries = 0; tries < 3 * (uint64_t)stripe->capacity; tries++) {
        struct cache_entry **place = &stripe->clock[stripe->hand], *entry = *place;
        stripe->hand = (stripe->hand + 1) % stripe->capacity;
        if (atomic_exchange_explicit(&entry->recent, false, memory_order_relaxed) ||
                atomic_load_explicit(&entry->pins, memory_order_acquire) > 0)
            continue;
        struct cache_entry **link = bucket_of(cache, stripe, entry->node.locator);
        while (*link != entry)
            link = &(*link)->next;
        *link = entry->next;
        return place;
    }
    return NULL;
}

void node_cache_insert_locked(
        struct node_cache *cache, struct cache_stripe *stripe, locator_t locator, const locator_t slots[512])
{
    if (node_cache_find_locked(cache, stripe, locator) != NULL)
        return;
    struct cache_entry **place;
    if (stripe->count < stripe->capacity) {
        place = &stripe->clock[stripe->count++];
        *place = allocate(sizeof **place);
    } else if ((place = evict_locked(cache, stripe)) == NULL) {
        return; // who wants it asks again
    }
    struct cache_entry *entry = *place, **bucket = bucket_of(cache, stripe, locator);
    entry->node.locator = locator;
    memcpy(entry->node.slots, slots, sizeof entry->node.slots);
    atomic_store_explicit(&entry->recent, false, memory_order_relaxed); // until somebody finds it
    entry->next = *bucket;
    *bucket = entry;
}

void node_cache_insert(struct node_cache *cache, locator_t locator, const locator_t slots[512])
{
    struct cache_stripe *stripe = node_cache_stripe(cache, locator);
    pthread_mutex_lock(&stripe->lock);
    node_cache_insert_locked(cache, stripe, locator, slots);
    pthread_mutex_unlock(&stripe->lock);
}

int node_cache_check(const locator_t slots[512])
{
    for (unsigned i = 0; i < 512; i++) {
        locator_t slot = slots[i];
        bool named = locator_is_segment(slot) && locator_segment_slot(slot) < SEGMENT_SLOTS_MAX;
        if (!named && slot != LOCATOR_ZERO && slot != LOCATOR_UNMAPPED)
            return -EBADMSG;
    }
    return 0;
}
