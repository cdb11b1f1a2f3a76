// SPDX-License-Identifier: Apache-2.0
#include "blockstore/segment_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SHARDS = 16, BUCKETS_MIN = 64 };

struct entry {
    struct segment_cached cached; // first
    struct segment_cache_key key;
    _Atomic uint32_t refs; // being in the table is one
    // Protected by the shard's lock:
    struct entry *hash_next;
    struct entry *newer, *older; // on the shard's ring once loaded
    struct segment_cache_wait *waiters;
    bool loading, used;
};

struct shard {
    pthread_mutex_t lock;
    struct entry **buckets;
    size_t bucket_count, entries;
    struct entry ring; // ring.newer is the oldest
    uint64_t hits, misses;
} __attribute__((aligned(64)));

struct segment_cache {
    uint64_t max_bytes;
    _Atomic uint64_t bytes;
    struct shard shard[SHARDS];
};

static uint64_t hash_of(struct segment_cache_key key)
{
    uint64_t h = (key.segment * UINT64_C(0x9e3779b97f4a7c15)) ^ (key.unit * UINT64_C(0xff51afd7ed558ccd));
    h ^= h >> 32;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 29;
}

static struct shard *shard_of(struct segment_cache *cache, uint64_t hash)
{
    return &cache->shard[hash >> 60];
}

struct segment_cache *segment_cache_new(uint64_t max_bytes)
{
    struct segment_cache *cache = aligned_alloc(64, sizeof *cache);
    if (cache == NULL)
        abort();
    memset(cache, 0, sizeof *cache);
    cache->max_bytes = max_bytes;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shard[i];
        pthread_mutex_init(&shard->lock, NULL);
        shard->bucket_count = BUCKETS_MIN;
        shard->buckets = calloc(BUCKETS_MIN, sizeof(struct entry *));
        if (shard->buckets == NULL)
            abort();
        shard->ring.newer = shard->ring.older = &shard->ring;
    }
    return cache;
}

void segment_cache_put(struct segment_cached *cached)
{
    struct entry *entry = (struct entry *)cached;
    if (atomic_fetch_sub_explicit(&entry->refs, 1, memory_order_acq_rel) != 1)
        return;
    free((void *)entry->cached.bytes);
    free(entry);
}

struct segment_cache *segment_cache_free(struct segment_cache *cache)
{
    if (cache == NULL)
        return NULL;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shard[i];
        for (size_t bucket = 0; bucket < shard->bucket_count; bucket++)
            for (struct entry *entry = shard->buckets[bucket], *next; entry != NULL; entry = next) {
                next = entry->hash_next;
                segment_cache_put(&entry->cached);
            }
        free(shard->buckets);
        pthread_mutex_destroy(&shard->lock);
    }
    free(cache);
    return NULL;
}

// ---- The table of a shard ----

static struct entry **place_locked(struct shard *shard, struct segment_cache_key key, uint64_t hash)
{
    struct entry **at = &shard->buckets[hash & (shard->bucket_count - 1)];
    while (*at != NULL && ((*at)->key.segment != key.segment || (*at)->key.unit != key.unit))
        at = &(*at)->hash_next;
    return at;
}

static void grow_locked(struct shard *shard)
{
    size_t count = shard->bucket_count * 2;
    struct entry **buckets = calloc(count, sizeof(struct entry *));
    if (buckets == NULL)
        abort();
    for (size_t i = 0; i < shard->bucket_count; i++)
        for (struct entry *entry = shard->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->hash_next;
            struct entry **head = &buckets[hash_of(entry->key) & (count - 1)];
            entry->hash_next = *head;
            *head = entry;
        }
    free(shard->buckets);
    shard->buckets = buckets;
    shard->bucket_count = count;
}

static struct entry *add_locked(struct shard *shard, struct segment_cache_key key, uint64_t hash)
{
    if (shard->entries >= shard->bucket_count)
        grow_locked(shard);
    struct entry *entry = calloc(1, sizeof *entry), **at = place_locked(shard, key, hash);
    if (entry == NULL)
        abort();
    entry->key = key;
    entry->refs = 1;
    entry->hash_next = *at;
    *at = entry;
    shard->entries++;
    return entry;
}

static void remove_locked(struct shard *shard, struct entry *entry)
{
    struct entry **at = place_locked(shard, entry->key, hash_of(entry->key));
    *at = entry->hash_next;
    shard->entries--;
}

static void ring_add_locked(struct shard *shard, struct entry *entry)
{
    entry->newer = &shard->ring;
    entry->older = shard->ring.older;
    entry->older->newer = entry;
    shard->ring.older = entry;
}

static void ring_remove_locked(struct entry *entry)
{
    entry->newer->older = entry->older;
    entry->older->newer = entry->newer;
}

// Takes out what is over the cap, but never the newest one of the shard: a piece that is larger than the cap
// would else leave before anybody looked. Returns the list to put.
static struct entry *evict_locked(struct segment_cache *cache, struct shard *shard)
{
    struct entry *evicted = NULL;
    while (atomic_load_explicit(&cache->bytes, memory_order_relaxed) > cache->max_bytes) {
        struct entry *entry = shard->ring.newer;
        if (entry == &shard->ring || entry == shard->ring.older)
            break;
        ring_remove_locked(entry);
        if (entry->used) {
            entry->used = false;
            // One step before the newest, so that the newest stays recognizable as such.
            struct entry *newest = shard->ring.older;
            entry->newer = newest;
            entry->older = newest->older;
            entry->older->newer = entry;
            newest->older = entry;
            continue;
        }
        remove_locked(shard, entry);
        atomic_fetch_sub_explicit(&cache->bytes, entry->cached.size, memory_order_relaxed);
        entry->hash_next = evicted;
        evicted = entry;
    }
    return evicted;
}

static void put_list(struct entry *list)
{
    for (struct entry *next; list != NULL; list = next) {
        next = list->hash_next;
        segment_cache_put(&list->cached);
    }
}

// ---- Asking ----

struct segment_cached *segment_cache_get(struct segment_cache *cache, struct segment_cache_key key)
{
    uint64_t hash = hash_of(key);
    struct shard *shard = shard_of(cache, hash);
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = *place_locked(shard, key, hash);
    if (entry != NULL && !entry->loading) {
        entry->used = true;
        shard->hits++;
        atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
    } else {
        entry = NULL;
    }
    pthread_mutex_unlock(&shard->lock);
    return entry != NULL ? &entry->cached : NULL;
}

enum segment_cache_answer segment_cache_begin(struct segment_cache *cache, struct segment_cache_key key,
        struct segment_cache_wait *wait, struct segment_cached **ret_cached)
{
    uint64_t hash = hash_of(key);
    struct shard *shard = shard_of(cache, hash);
    enum segment_cache_answer answer = SEGMENT_CACHE_HIT;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = *place_locked(shard, key, hash);
    if (entry == NULL) {
        entry = add_locked(shard, key, hash);
        entry->loading = true;
        shard->misses++;
        answer = SEGMENT_CACHE_LOAD;
    } else if (entry->loading) {
        wait->next = entry->waiters;
        entry->waiters = wait;
        shard->misses++;
        answer = SEGMENT_CACHE_WAIT;
    } else {
        entry->used = true;
        shard->hits++;
    }
    if (answer != SEGMENT_CACHE_WAIT) {
        atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
        *ret_cached = &entry->cached;
    }
    pthread_mutex_unlock(&shard->lock);
    return answer;
}

static void wait_run(struct loop_work *work)
{
    struct segment_cache_wait *wait =
            (struct segment_cache_wait *)((char *)work - offsetof(struct segment_cache_wait, work));
    wait->done(wait, wait->result, wait->cached);
}

static void tell(struct segment_cache_wait *waiters, struct segment_cached *cached, int result)
{
    for (struct segment_cache_wait *wait = waiters, *next; wait != NULL; wait = next) {
        next = wait->next;
        wait->result = result;
        wait->cached = result < 0 ? NULL : cached;
        wait->work.run = wait_run;
        loop_post(wait->loop, &wait->work);
    }
}

void segment_cache_loaded(
        struct segment_cache *cache, struct segment_cached *cached, int result, void *bytes, size_t size)
{
    struct entry *entry = (struct entry *)cached, *evicted = NULL;
    struct shard *shard = shard_of(cache, hash_of(entry->key));
    pthread_mutex_lock(&shard->lock);
    struct segment_cache_wait *waiters = entry->waiters;
    entry->waiters = NULL;
    entry->loading = false;
    if (result < 0) {
        remove_locked(shard, entry);
    } else {
        entry->cached.bytes = bytes;
        entry->cached.size = size;
        for (struct segment_cache_wait *wait = waiters; wait != NULL; wait = wait->next)
            atomic_fetch_add_explicit(&entry->refs, 1, memory_order_relaxed);
        ring_add_locked(shard, entry);
        atomic_fetch_add_explicit(&cache->bytes, size, memory_order_relaxed);
        evicted = evict_locked(cache, shard);
    }
    pthread_mutex_unlock(&shard->lock);
    tell(waiters, cached, result);
    put_list(evicted);
    if (result < 0) // the table's reference
        segment_cache_put(cached);
}

void segment_cache_insert(
        struct segment_cache *cache, struct segment_cache_key key, const void *bytes, size_t size)
{
    uint64_t hash = hash_of(key);
    struct shard *shard = shard_of(cache, hash);
    struct entry *evicted = NULL;
    pthread_mutex_lock(&shard->lock);
    if (*place_locked(shard, key, hash) == NULL) {
        struct entry *entry = add_locked(shard, key, hash);
        uint8_t *copy = malloc(size);
        if (copy == NULL)
            abort();
        memcpy(copy, bytes, size);
        entry->cached.bytes = copy;
        entry->cached.size = size;
        ring_add_locked(shard, entry);
        atomic_fetch_add_explicit(&cache->bytes, size, memory_order_relaxed);
        evicted = evict_locked(cache, shard);
    }
    pthread_mutex_unlock(&shard->lock);
    put_list(evicted);
}

void segment_cache_stat(struct segment_cache *cache, struct segment_cache_stat *ret_stat)
{
    struct segment_cache_stat stat = {.bytes = atomic_load(&cache->bytes)};
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shard[i];
        pthread_mutex_lock(&shard->lock);
        stat.hits += shard->hits;
        stat.misses += shard->misses;
        pthread_mutex_unlock(&shard->lock);
    }
    *ret_stat = stat;
}
