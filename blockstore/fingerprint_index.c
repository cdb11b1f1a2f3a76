// SPDX-License-Identifier: Apache-2.0
// The fingerprint index.
//
// An entry is 8 bytes: tag (28 bits of the fingerprint), ordinal of the segment (22 bits), slot (14 bits). An
// ordinal stands for a segment's number as long as an entry names it; 0 is none, so a free entry is 0.
//
// Entries live in buckets of 8 (one cache line), buckets in regions of 1024, regions in shards. The shard and
// the first bucket come from fingerprint.low, the second bucket from the first and the tag, so an entry
// can be moved between its two without knowing the fingerprint. A shard has up to 2^depth_max regions and
// picks one by the lowest bits of the tag: a region that has become full splits in two by the next bit of its
// entries' tags. So the index grows by 64 KiB at a time, what a caller waits for is the moving of 8192
// entries at most, and nothing has to be read again. When every region has its last size, new entries replace
// others.
//
// How many shards there are, and how often a region may split, is set by max_bytes at the beginning: 32 to 63
// shards, doubled as often as fits, use at least 31/32 of it.
#include "blockstore/fingerprint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOT_BITS = 14,
    ORDINAL_BITS = 22,
    TAG_BITS = 28,
    BUCKET_ENTRIES = 8,
    REGION_BUCKETS = 1024,
    REGION_ENTRIES = REGION_BUCKETS * BUCKET_ENTRIES,
    // Below this a free place is found practically always by moving one entry.
    REGION_SPLIT_AT = REGION_ENTRIES / 8 * 7,
    SHARDS_MIN = 32,
    SHARDS_MAX = 2 * SHARDS_MIN - 1,
    DEPTH_MAX = 16, // leaves 12 bits of the tag to tell entries apart
    ORDINALS_FIRST = 256,
};
_Static_assert(SLOT_BITS + ORDINAL_BITS + TAG_BITS == 64, "an entry is 8 bytes");
_Static_assert(FINGERPRINT_CANDIDATES_MAX >= 2 * BUCKET_ENTRIES, "all matches fit");

struct region {
    uint32_t depth; // bits of the tag that all its entries share
    uint32_t used;
    _Alignas(64) uint64_t buckets[REGION_BUCKETS][BUCKET_ENTRIES];
};

struct shard {
    pthread_mutex_t lock;      // rank 1; of one shard at a time
    struct region **directory; // by the tag's lowest depth_max bits
    uint64_t regions, entries, evicted;
    uint64_t random;
};

// Segment numbers and the ordinals that stand for them.
struct ordinals {
    pthread_mutex_t lock; // rank 2
    uint64_t *numbers;    // by ordinal
    uint32_t *counts;     // by ordinal: entries, and callers at work. Of a free one: the next free one
    uint32_t *slots;      // hash table of ordinals, twice as many as `room`
    uint32_t room, max;   // ordinals below `room` have memory
    uint32_t fresh, free; // first never used one; head of the free ones
};

struct fingerprint_index {
    struct ordinals ordinals;
    unsigned shard_count, depth_max;
    struct shard shards[SHARDS_MAX];
};

// Ordinals

static uint32_t ordinals_home(const struct ordinals *ordinals, uint64_t number)
{
    return (uint32_t)((number * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (2 * ordinals->room - 1));
}

static uint32_t *ordinals_slot_locked(struct ordinals *ordinals, uint64_t number)
{
    uint32_t mask = 2 * ordinals->room - 1;
    uint32_t i = ordinals_home(ordinals, number);
    while (ordinals->slots[i] != 0 && ordinals->numbers[ordinals->slots[i]] != number)
        i = (i + 1) & mask;
    return &ordinals->slots[i];
}

static bool ordinals_grow_locked(struct ordinals *ordinals, uint32_t room)
{
    uint64_t *numbers = realloc(ordinals->numbers, room * sizeof *numbers);
    if (numbers != NULL)
        ordinals->numbers = numbers;
    uint32_t *counts = realloc(ordinals->counts, room * sizeof *counts);
    if (counts != NULL)
        ordinals->counts = counts;
    uint32_t *slots = calloc(2 * (size_t)room, sizeof *slots);
    if (numbers == NULL || counts == NULL || slots == NULL) {
        free(slots);
        return false;
    }
    free(ordinals->slots);
    ordinals->slots = slots;
    ordinals->room = room;
    // Only called when no ordinal is free, so all below `fresh` are in use.
    for (uint32_t ordinal = 1; ordinal < ordinals->fresh; ordinal++)
        *ordinals_slot_locked(ordinals, ordinals->numbers[ordinal]) = ordinal;
    return true;
}

static uint32_t ordinals_take_locked(struct ordinals *ordinals)
{
    uint32_t ordinal = ordinals->free;
    if (ordinal != 0) {
        ordinals->free = ordinals->counts[ordinal];
        return ordinal;
    }
    if (ordinals->fresh == ordinals->room &&
            (ordinals->room >= ordinals->max || !ordinals_grow_locked(ordinals, 2 * ordinals->room)))
        return 0;
    return ordinals->fresh++;
}

// The ordinal of a segment, kept until ordinals_release; 0 when there is none (and none can be made).
static uint32_t ordinals_acquire(struct ordinals *ordinals, uint64_t number, bool create)
{
    pthread_mutex_lock(&ordinals->lock);
    uint32_t ordinal = *ordinals_slot_locked(ordinals, number);
    if (ordinal == 0 && create) {
        ordinal = ordinals_take_locked(ordinals);
        if (ordinal != 0) {
            ordinals->numbers[ordinal] = number;
            ordinals->counts[ordinal] = 0;
            *ordinals_slot_locked(ordinals, number) = ordinal;
        }
    }
    if (ordinal != 0)
        ordinals->counts[ordinal]++;
    pthread_mutex_unlock(&ordinals->lock);
    return ordinal;
}

// Takes an ordinal out of the hash table: what follows without a gap moves up where its own place allows it.
static void ordinals_unlink_locked(struct ordinals *ordinals, uint32_t ordinal)
{
    uint32_t mask = 2 * ordinals->room - 1;
    uint32_t hole = (uint32_t)(ordinals_slot_locked(ordinals, ordinals->numbers[ordinal]) - ordinals->slots);
    for (uint32_t i = (hole + 1) & mask; ordinals->slots[i] != 0; i = (i + 1) & mask) {
        uint32_t home = ordinals_home(ordinals, ordinals->numbers[ordinals->slots[i]]);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            ordinals->slots[hole] = ordinals->slots[i];
            hole = i;
        }
    }
    ordinals->slots[hole] = 0;
}

static void ordinals_release(struct ordinals *ordinals, uint32_t ordinal)
{
    pthread_mutex_lock(&ordinals->lock);
    if (--ordinals->counts[ordinal] == 0) {
        ordinals_unlink_locked(ordinals, ordinal);
        ordinals->counts[ordinal] = ordinals->free;
        ordinals->free = ordinal;
    }
    pthread_mutex_unlock(&ordinals->lock);
}

// Entries

static uint64_t entry_make(uint32_t tag, uint32_t ordinal, uint32_t slot)
{
    return (uint64_t)tag << (ORDINAL_BITS + SLOT_BITS) | (uint64_t)ordinal << SLOT_BITS | slot;
}

static uint32_t entry_tag(uint64_t entry)
{
    return (uint32_t)(entry >> (ORDINAL_BITS + SLOT_BITS));
}

static uint32_t entry_ordinal(uint64_t entry)
{
    return (uint32_t)(entry >> SLOT_BITS & ((1u << ORDINAL_BITS) - 1));
}

// Where a fingerprint belongs.
struct place {
    struct shard *shard;
    uint32_t tag, bucket;
};

static struct place place_of(struct fingerprint_index *index, struct fingerprint fingerprint)
{
    return (struct place){
            .shard = &index->shards[(fingerprint.low >> 32) * index->shard_count >> 32],
            .tag = (uint32_t)(fingerprint.high & ((1u << TAG_BITS) - 1)),
            .bucket = (uint32_t)fingerprint.low & (REGION_BUCKETS - 1),
    };
}

// The other bucket of an entry; never the same one.
static uint32_t bucket_other(uint32_t bucket, uint32_t tag)
{
    return bucket ^ ((tag * UINT32_C(0x9e3779b1) >> 8 & (REGION_BUCKETS - 1)) | 1);
}

static struct region *region_of_locked(struct fingerprint_index *index, const struct place *place)
{
    return place->shard->directory[place->tag & ((1u << index->depth_max) - 1)];
}

static uint64_t *region_search(struct region *region, const struct place *place, uint64_t entry)
{
    uint32_t bucket = place->bucket;
    for (unsigned choice = 0; choice < 2; choice++, bucket = bucket_other(bucket, place->tag))
        for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
            if (region->buckets[bucket][i] == entry)
                return &region->buckets[bucket][i];
    return NULL;
}

// A free place in the emptier of the two buckets, or NULL.
static uint64_t *region_free_place(struct region *region, const struct place *place)
{
    uint64_t *best = NULL;
    uint32_t bucket = place->bucket;
    unsigned most = 0;
    for (unsigned choice = 0; choice < 2; choice++, bucket = bucket_other(bucket, place->tag)) {
        unsigned room = 0;
        uint64_t *last = NULL;
        for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
            if (region->buckets[bucket][i] == 0) {
                room++;
                last = &region->buckets[bucket][i];
            }
        if (room > most) {
            most = room;
            best = last;
        }
    }
    return best;
}

// Frees a place in one of the two buckets by moving an entry to its own other bucket, or returns NULL.
static uint64_t *region_make_room(struct region *region, const struct place *place)
{
    uint32_t bucket = place->bucket;
    for (unsigned choice = 0; choice < 2; choice++, bucket = bucket_other(bucket, place->tag)) {
        for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
            uint64_t *entry = &region->buckets[bucket][i];
            uint64_t *other = region->buckets[bucket_other(bucket, entry_tag(*entry))];
            for (unsigned k = 0; k < BUCKET_ENTRIES; k++) {
                if (other[k] == 0) {
                    other[k] = *entry;
                    return entry;
                }
            }
        }
    }
    return NULL;
}

static struct region *region_new(uint32_t depth)
{
    struct region *region = aligned_alloc(_Alignof(struct region), sizeof *region);
    if (region != NULL) {
        memset(region, 0, sizeof *region);
        region->depth = depth;
    }
    return region;
}

// Halves a region by the next bit of its tags; the buckets stay the same.
static void shard_split_locked(struct fingerprint_index *index, const struct place *place, struct region *low)
{
    struct region *high = region_new(low->depth + 1);
    if (high == NULL)
        return; // goes on with what it has
    uint32_t bit = 1u << low->depth++;
    for (unsigned bucket = 0; bucket < REGION_BUCKETS; bucket++) {
        for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
            uint64_t *entry = &low->buckets[bucket][i];
            if (entry_tag(*entry) & bit) { // never a free one
                high->buckets[bucket][i] = *entry;
                *entry = 0;
                high->used++;
                low->used--;
            }
        }
    }
    struct region **directory = place->shard->directory;
    for (uint32_t i = (place->tag & (bit - 1)) | bit; i < 1u << index->depth_max; i += bit << 1)
        directory[i] = high;
    place->shard->regions++;
}

static uint64_t *shard_victim_locked(struct shard *shard, struct region *region, const struct place *place)
{
    uint64_t x = shard->random; // xorshift64
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    shard->random = x;
    uint32_t bucket = x >> 63 ? place->bucket : bucket_other(place->bucket, place->tag);
    return &region->buckets[bucket][x >> 40 & (BUCKET_ENTRIES - 1)];
}

static uint64_t *shard_find_room_locked(struct fingerprint_index *index, const struct place *place)
{
    struct region *region = region_of_locked(index, place);
    if (region->used >= REGION_SPLIT_AT && region->depth < index->depth_max) {
        shard_split_locked(index, place, region);
        region = region_of_locked(index, place);
    }
    uint64_t *where = region_free_place(region, place);
    return where != NULL ? where : region_make_room(region, place);
}

// Stores an entry; returns the ordinal that lost one (this one's when it was there already), or 0.
static uint32_t shard_put_locked(struct fingerprint_index *index, const struct place *place, uint64_t entry)
{
    struct shard *shard = place->shard;
    if (region_search(region_of_locked(index, place), place, entry) != NULL)
        return entry_ordinal(entry);
    uint64_t *where = shard_find_room_locked(index, place);
    struct region *region = region_of_locked(index, place);
    if (where != NULL) {
        *where = entry;
        region->used++;
        shard->entries++;
        return 0;
    }
    where = shard_victim_locked(shard, region, place);
    uint32_t loser = entry_ordinal(*where);
    *where = entry;
    shard->evicted++;
    return loser;
}

// The calls

static bool locator_fits(locator_t locator)
{
    return locator_is_segment(locator) && locator_segment_slot(locator) < 1u << SLOT_BITS;
}

void fingerprint_index_put(struct fingerprint_index *index, struct fingerprint fingerprint, locator_t locator)
{
    if (!locator_fits(locator))
        return;
    uint32_t ordinal = ordinals_acquire(&index->ordinals, locator_segment_number(locator), true);
    struct place place = place_of(index, fingerprint);
    pthread_mutex_lock(&place.shard->lock);
    uint32_t loser = 0;
    if (ordinal != 0)
        loser = shard_put_locked(
                index, &place, entry_make(place.tag, ordinal, locator_segment_slot(locator)));
    else // more segments than there are ordinals
        place.shard->evicted++;
    pthread_mutex_unlock(&place.shard->lock);
    if (loser != 0)
        ordinals_release(&index->ordinals, loser);
}

// Newest segment first: an older one is likelier to have been collected.
static void candidates_sort(locator_t *candidates, unsigned count)
{
    for (unsigned i = 1; i < count; i++) {
        locator_t locator = candidates[i];
        unsigned k = i;
        for (; k > 0 && candidates[k - 1] < locator; k--)
            candidates[k] = candidates[k - 1];
        candidates[k] = locator;
    }
}

unsigned fingerprint_index_find(struct fingerprint_index *index, struct fingerprint fingerprint,
        locator_t ret_candidates[FINGERPRINT_CANDIDATES_MAX])
{
    uint64_t found[FINGERPRINT_CANDIDATES_MAX];
    unsigned count = 0;
    struct place place = place_of(index, fingerprint);
    pthread_mutex_lock(&place.shard->lock);
    struct region *region = region_of_locked(index, &place);
    uint32_t bucket = place.bucket;
    for (unsigned choice = 0; choice < 2; choice++, bucket = bucket_other(bucket, place.tag))
        for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
            uint64_t entry = region->buckets[bucket][i];
            if (entry != 0 && entry_tag(entry) == place.tag)
                found[count++] = entry;
        }
    if (count > 0) { // under the shard's lock, so that the ordinals still mean what the entries meant
        pthread_mutex_lock(&index->ordinals.lock);
        for (unsigned i = 0; i < count; i++)
            ret_candidates[i] = locator_segment(
                    index->ordinals.numbers[entry_ordinal(found[i])], found[i] & ((1u << SLOT_BITS) - 1));
        pthread_mutex_unlock(&index->ordinals.lock);
    }
    pthread_mutex_unlock(&place.shard->lock);
    candidates_sort(ret_candidates, count);
    return count;
}

void fingerprint_index_forget(
        struct fingerprint_index *index, struct fingerprint fingerprint, locator_t locator)
{
    if (!locator_fits(locator))
        return;
    uint32_t ordinal = ordinals_acquire(&index->ordinals, locator_segment_number(locator), false);
    if (ordinal == 0)
        return;
    struct place place = place_of(index, fingerprint);
    pthread_mutex_lock(&place.shard->lock);
    struct region *region = region_of_locked(index, &place);
    uint64_t *entry =
            region_search(region, &place, entry_make(place.tag, ordinal, locator_segment_slot(locator)));
    if (entry != NULL) {
        *entry = 0;
        region->used--;
        place.shard->entries--;
    }
    pthread_mutex_unlock(&place.shard->lock);
    if (entry != NULL)
        ordinals_release(&index->ordinals, ordinal); // the entry's
    ordinals_release(&index->ordinals, ordinal);     // ours
}

static uint64_t ordinals_bytes(uint32_t room)
{
    return room * (uint64_t)(sizeof(uint64_t) + sizeof(uint32_t) + 2 * sizeof(uint32_t));
}

void fingerprint_index_stat(struct fingerprint_index *index, struct fingerprint_index_stat *ret_stat)
{
    struct fingerprint_index_stat stat = {.bytes = sizeof *index};
    for (unsigned i = 0; i < index->shard_count; i++) {
        struct shard *shard = &index->shards[i];
        pthread_mutex_lock(&shard->lock);
        stat.entries += shard->entries;
        stat.evicted += shard->evicted;
        stat.capacity += shard->regions * REGION_ENTRIES;
        stat.bytes += shard->regions * sizeof(struct region) + (sizeof(void *) << index->depth_max);
        pthread_mutex_unlock(&shard->lock);
    }
    pthread_mutex_lock(&index->ordinals.lock);
    stat.bytes += ordinals_bytes(index->ordinals.room);
    pthread_mutex_unlock(&index->ordinals.lock);
    *ret_stat = stat;
}

static bool shard_init(struct shard *shard, unsigned number, unsigned depth_max)
{
    pthread_mutex_init(&shard->lock, NULL);
    shard->random = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    shard->directory = calloc((size_t)1 << depth_max, sizeof *shard->directory);
    struct region *first = region_new(0);
    if (shard->directory == NULL || first == NULL) {
        free(first);
        return false;
    }
    shard->regions = 1;
    for (size_t i = 0; i < (size_t)1 << depth_max; i++)
        shard->directory[i] = first;
    return true;
}

static void shard_done(struct shard *shard, unsigned depth_max)
{
    // A region stands in several places; the lowest of them has no bit set above its depth.
    for (size_t i = shard->directory == NULL ? 0 : (size_t)1 << depth_max; i-- > 0;) {
        struct region *region = shard->directory[i];
        if (region != NULL && i >> region->depth == 0)
            free(region);
    }
    free(shard->directory);
    pthread_mutex_destroy(&shard->lock);
}

struct fingerprint_index *fingerprint_index_new(uint64_t max_bytes)
{
    struct fingerprint_index *index = calloc(1, sizeof *index);
    if (index == NULL)
        return NULL;
    uint64_t for_ordinals = max_bytes / 32;
    uint64_t regions = (max_bytes - for_ordinals) / (sizeof(struct region) + sizeof(void *));
    while (regions >> index->depth_max > SHARDS_MAX && index->depth_max < DEPTH_MAX)
        index->depth_max++;
    uint64_t shards = regions >> index->depth_max;
    index->shard_count = shards > SHARDS_MAX ? SHARDS_MAX : shards == 0 ? 1 : (unsigned)shards;
    pthread_mutex_init(&index->ordinals.lock, NULL);
    index->ordinals.max = ORDINALS_FIRST;
    while (index->ordinals.max < 1u << ORDINAL_BITS &&
            ordinals_bytes(2 * index->ordinals.max) <= for_ordinals)
        index->ordinals.max *= 2;
    index->ordinals.fresh = 1;
    bool good = ordinals_grow_locked(&index->ordinals, ORDINALS_FIRST);
    for (unsigned i = 0; i < index->shard_count; i++)
        good = shard_init(&index->shards[i], i, index->depth_max) && good;
    return good ? index : fingerprint_index_free(index);
}

struct fingerprint_index *fingerprint_index_free(struct fingerprint_index *index)
{
    if (index == NULL)
        return NULL;
    for (unsigned i = 0; i < index->shard_count; i++)
        shard_done(&index->shards[i], index->depth_max);
    free(index->ordinals.numbers);
    free(index->ordinals.counts);
    free(index->ordinals.slots);
    pthread_mutex_destroy(&index->ordinals.lock);
    free(index);
    return NULL;
}
