// SPDX-License-Identifier: Apache-2.0
#include "blockstore/segment_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OF_FD_LINK(link) ((struct segment *)((char *)(link)-offsetof(struct segment, fd_link)))
#define OF_INDEX_LINK(link) ((struct segment *)((char *)(link)-offsetof(struct segment, index_link)))

void *segment_alloc(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

// ---- Rings: ring->newer is the oldest, ring->older the newest ----

static void link_add(struct segment_link *ring, struct segment_link *link)
{
    link->newer = ring;
    link->older = ring->older;
    link->older->newer = link;
    ring->older = link;
}

static void link_remove(struct segment_link *link)
{
    link->newer->older = link->older;
    link->older->newer = link->newer;
}

// ---- Descriptors ----

static struct segment_orphan *orphan_add(struct segment_orphan *list, int fd)
{
    struct segment_orphan *orphan = segment_alloc(sizeof *orphan);
    orphan->fd = fd;
    orphan->next = list;
    return orphan;
}

static struct segment_orphan *drop_fd_locked(
        struct segments *segments, struct segment *segment, struct segment_orphan *list)
{
    if (segment->fd < 0)
        return list;
    list = orphan_add(list, segment->fd);
    segment->fd = -1;
    link_remove(&segment->fd_link);
    atomic_fetch_sub(&segments->descriptors, 1);
    return list;
}

static void drop_index_locked(struct segments *segments, struct segment *segment)
{
    if (segment->has_index) {
        link_remove(&segment->index_link);
        atomic_fetch_sub(&segments->index_bytes, segment->index_bytes);
    }
    segment->has_index = false;
    segment_index_clear(&segment->index);
}

struct closing {
    struct io_op op; // first
    struct segments *segments;
};

static void close_done(struct io_op *op, int64_t result)
{
    struct segments *segments = ((struct closing *)op)->segments;
    free(op);
    atomic_fetch_sub(&segments->closing, 1);
}

bool segments_closing(struct segments *segments)
{
    return atomic_load(&segments->closing) > 0;
}

void segment_give_up(struct segments *segments, struct segment_orphan *list)
{
    struct loop *loop = loop_current();
    pthread_mutex_lock(&segments->orphan_lock);
    for (struct segment_orphan *next; loop == NULL && list != NULL; list = next) {
        next = list->next;
        list->next = segments->orphans;
        segments->orphans = list;
    }
    struct segment_orphan *more = NULL;
    if (loop != NULL) {
        more = segments->orphans;
        segments->orphans = NULL;
    }
    pthread_mutex_unlock(&segments->orphan_lock);
    while (list != NULL || more != NULL) {
        struct segment_orphan **from = list != NULL ? &list : &more, *orphan = *from;
        *from = orphan->next;
        struct closing *closing = segment_alloc(sizeof *closing);
        *closing = (struct closing){
                .op = {.code = IO_CLOSE, .fd = orphan->fd, .done = close_done}, .segments = segments};
        atomic_fetch_add(&segments->closing, 1);
        loop_submit(loop, &closing->op);
        free(orphan);
    }
}

void segment_give_up_task(struct segments *segments, struct task *task)
{
    pthread_mutex_lock(&segments->orphan_lock);
    struct segment_orphan *list = segments->orphans;
    segments->orphans = NULL;
    pthread_mutex_unlock(&segments->orphan_lock);
    for (struct segment_orphan *next; list != NULL; list = next) {
        next = list->next;
        struct io_op shut = {.code = IO_CLOSE, .fd = list->fd};
        task_io(task, &shut);
        free(list);
    }
}

// ---- Making room: the oldest that nobody holds and nobody used since the hand came by ----

static struct segment_orphan *evict_fds_locked(
        struct segments *segments, struct segments_shard *shard, struct segment_orphan *list)
{
    struct segment_link *at = shard->fd_ring.newer, *next, *last = shard->fd_ring.older;
    while (at != &shard->fd_ring && atomic_load(&segments->descriptors) > SEGMENT_DESCRIPTORS_MAX) {
        next = at->newer;
        struct segment *segment = OF_FD_LINK(at);
        bool end = at == last;
        if (segment->fd_used || segment->refs > 0) {
            segment->fd_used = false;
            link_remove(at);
            link_add(&shard->fd_ring, at);
        } else {
            list = drop_fd_locked(segments, segment, list);
        }
        if (end)
            break;
        at = next;
    }
    return list;
}

static int take_fd_locked(struct segments *segments, struct segments_shard *shard)
{
    for (struct segment_link *at = shard->fd_ring.newer; at != &shard->fd_ring; at = at->newer) {
        struct segment *segment = OF_FD_LINK(at);
        if (segment->refs > 0)
            continue;
        struct segment_orphan *orphan = drop_fd_locked(segments, segment, NULL);
        int fd = orphan->fd;
        free(orphan);
        return fd;
    }
    return -1;
}

int segment_take_descriptor(struct segments *segments)
{
    int fd = -1;
    for (unsigned i = 0; i < SEGMENT_SHARDS && fd < 0; i++) {
        pthread_mutex_lock(&segments->shard[i].lock);
        fd = take_fd_locked(segments, &segments->shard[i]);
        pthread_mutex_unlock(&segments->shard[i].lock);
    }
    return fd;
}

static void evict_indexes_locked(struct segments *segments, struct segments_shard *shard)
{
    struct segment_link *at = shard->index_ring.newer, *next, *last = shard->index_ring.older;
    while (at != &shard->index_ring &&
            atomic_load(&segments->index_bytes) > segments->config.index_cache_bytes) {
        next = at->newer;
        struct segment *segment = OF_INDEX_LINK(at);
        bool end = at == last;
        if (segment->index_used || segment->refs > 0) {
            segment->index_used = false;
            link_remove(at);
            link_add(&shard->index_ring, at);
        } else {
            drop_index_locked(segments, segment);
        }
        if (end)
            break;
        at = next;
    }
}

struct segment_orphan *segment_equip_locked(
        struct segments *segments, struct segment *segment, int fd, struct segment_index *index)
{
    struct segments_shard *shard = segment_shard(segments, segment->number);
    struct segment_orphan *list = NULL;
    if (segment->fd < 0 && fd >= 0) {
        segment->fd = fd;
        link_add(&shard->fd_ring, &segment->fd_link);
        atomic_fetch_add(&segments->descriptors, 1);
        list = evict_fds_locked(segments, shard, list);
    }
    if (index != NULL) {
        segment->index = *index;
        segment->has_index = true;
        segment->index_bytes = segment_index_bytes(index);
        link_add(&shard->index_ring, &segment->index_link);
        atomic_fetch_add(&segments->index_bytes, segment->index_bytes);
        evict_indexes_locked(segments, shard);
    }
    return list;
}

// ---- Entries ----

static struct segment **place_locked(struct segments_shard *shard, uint64_t number)
{
    struct segment **at = &shard->bucket[number / SEGMENT_SHARDS % SEGMENT_SHARD_BUCKETS];
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

struct segment *segment_find_locked(struct segments_shard *shard, uint64_t number)
{
    return *place_locked(shard, number);
}

static struct segment *entry_new_locked(
        struct segments *segments, struct segments_shard *shard, const struct segment_row *row)
{
    struct segment *segment = segment_alloc(sizeof *segment), **at = place_locked(shard, row->number);
    segment->id = atomic_fetch_add(&segments->next_id, 1) + 1;
    fingerprint_key_derive(segments->config.secret, row->domain, &segment->key);
    segment->number = row->number;
    segment->row = *row;
    segment->fd = -1;
    segment->current = true;
    segment->next = *at;
    *at = segment;
    return segment;
}

// Frees an entry that is neither current nor held.
static struct segment_orphan *entry_free_locked(
        struct segments *segments, struct segment *segment, struct segment_orphan *list)
{
    list = drop_fd_locked(segments, segment, list);
    drop_index_locked(segments, segment);
    free(segment);
    return list;
}

static struct segment_orphan *leave_locked(
        struct segments *segments, struct segment *segment, struct segment_orphan *list)
{
    struct segments_shard *shard = segment_shard(segments, segment->number);
    *place_locked(shard, segment->number) = segment->next;
    segment->current = false;
    if (segment->refs == 0)
        return entry_free_locked(segments, segment, list);
    segment->next = shard->leaving;
    shard->leaving = segment;
    return list;
}

struct segment *segment_hold(struct segments *segments, uint64_t number)
{
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    struct segment *segment = segment_find_locked(shard, number);
    if (segment != NULL)
        segment->refs++;
    pthread_mutex_unlock(&shard->lock);
    return segment;
}

void segment_release(struct segments *segments, struct segment *segment)
{
    struct segments_shard *shard = segment_shard(segments, segment->number);
    struct segment_orphan *list = NULL;
    pthread_mutex_lock(&shard->lock);
    if (--segment->refs == 0 && !segment->current) {
        struct segment **at = &shard->leaving;
        while (*at != segment)
            at = &(*at)->next;
        *at = segment->next;
        list = entry_free_locked(segments, segment, NULL);
    } else if (segment->refs == 0) {
        list = evict_fds_locked(segments, shard, NULL);
        evict_indexes_locked(segments, shard);
    }
    pthread_mutex_unlock(&shard->lock);
    segment_give_up(segments, list);
}

struct segment *segment_enter(struct segments *segments, const struct segment_row *row)
{
    struct segments_shard *shard = segment_shard(segments, row->number);
    struct segment *segment = NULL;
    pthread_mutex_lock(&shard->lock);
    if (segment_find_locked(shard, row->number) == NULL) {
        segment = entry_new_locked(segments, shard, row);
        segment->refs = 1;
    }
    pthread_mutex_unlock(&shard->lock);
    return segment;
}

void segment_retract(struct segments *segments, struct segment *segment)
{
    struct segments_shard *shard = segment_shard(segments, segment->number);
    pthread_mutex_lock(&shard->lock);
    struct segment_orphan *list = NULL;
    if (segment->current)
        list = leave_locked(segments, segment, NULL);
    pthread_mutex_unlock(&shard->lock);
    segment_give_up(segments, list);
}

// ---- The table ----

void segments_add(struct segments *segments, const struct segment_row *row)
{
    struct segments_shard *shard = segment_shard(segments, row->number);
    struct segment_orphan *list = NULL;
    pthread_mutex_lock(&shard->lock);
    struct segment *segment = segment_find_locked(shard, row->number);
    if (segment != NULL && segment->row.generation != row->generation) {
        list = leave_locked(segments, segment, NULL);
        segment = NULL;
    }
    if (segment == NULL)
        segment = entry_new_locked(segments, shard, row);
    segment->row = *row;
    segment->listed = true;
    pthread_mutex_unlock(&shard->lock);
    segment_give_up(segments, list);
}

void segments_drop(struct segments *segments, uint64_t number)
{
    struct segments_shard *shard = segment_shard(segments, number);
    struct segment_orphan *list = NULL;
    pthread_mutex_lock(&shard->lock);
    struct segment *segment = segment_find_locked(shard, number);
    if (segment != NULL && segment->writer == NULL)
        list = leave_locked(segments, segment, NULL);
    pthread_mutex_unlock(&shard->lock);
    segment_give_up(segments, list);
}

bool segments_get(struct segments *segments, uint64_t number, struct segment_row *ret_row)
{
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    const struct segment *segment = segment_find_locked(shard, number);
    bool found = segment != NULL && segment->listed;
    if (found)
        *ret_row = segment->row;
    pthread_mutex_unlock(&shard->lock);
    return found;
}

struct row_bag {
    struct segment_row *rows;
    size_t count, room;
};

static void bag_add(struct row_bag *bag, const struct segment_row *row)
{
    if (bag->count == bag->room) {
        bag->room = bag->room == 0 ? 256 : bag->room * 2;
        bag->rows = realloc(bag->rows, bag->room * sizeof *bag->rows);
        if (bag->rows == NULL)
            abort();
    }
    bag->rows[bag->count++] = *row;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct segment_row *)a)->number, y = ((const struct segment_row *)b)->number;
    return x < y ? -1 : x > y;
}

// Copied first: nothing is called with a lock held.
void segments_list(
        struct segments *segments, void (*each)(void *context, const struct segment_row *row), void *context)
{
    struct row_bag bag = {0};
    for (unsigned i = 0; i < SEGMENT_SHARDS; i++) {
        struct segments_shard *shard = &segments->shard[i];
        pthread_mutex_lock(&shard->lock);
        for (unsigned b = 0; b < SEGMENT_SHARD_BUCKETS; b++)
            for (struct segment *segment = shard->bucket[b]; segment != NULL; segment = segment->next)
                if (segment->listed)
                    bag_add(&bag, &segment->row);
        pthread_mutex_unlock(&shard->lock);
    }
    if (bag.count > 0)
        qsort(bag.rows, bag.count, sizeof *bag.rows, by_number);
    for (size_t i = 0; i < bag.count; i++)
        each(context, &bag.rows[i]);
    free(bag.rows);
}

void segments_stat(struct segments *segments, struct segments_stat *ret_stat)
{
    struct segments_stat stat = {
            .index_cache_bytes = atomic_load(&segments->index_bytes),
            .read_bytes = atomic_load(&segments->read_bytes),
    };
    for (unsigned i = 0; i < SEGMENT_SHARDS; i++) {
        struct segments_shard *shard = &segments->shard[i];
        pthread_mutex_lock(&shard->lock);
        for (unsigned b = 0; b < SEGMENT_SHARD_BUCKETS; b++)
            for (struct segment *segment = shard->bucket[b]; segment != NULL; segment = segment->next) {
                if (!segment->listed)
                    continue;
                stat.segments++;
                stat.file_bytes += segment->row.file_bytes;
                stat.slots += segment->row.slots;
                stat.present += segment->row.present;
            }
        for (struct segment *segment = shard->leaving; segment != NULL; segment = segment->next)
            stat.leaving_bytes += segment->row.file_bytes;
        pthread_mutex_unlock(&shard->lock);
    }
    struct segment_cache_stat cache;
    segment_cache_stat(segments->cache, &cache);
    stat.frame_cache_bytes = cache.bytes;
    stat.frame_hits = cache.hits;
    stat.frame_misses = cache.misses;
    *ret_stat = stat;
}

// ---- Life ----

struct segments *segments_new(const struct segments_config *config)
{
    struct segments *segments = segment_alloc(sizeof *segments);
    segments->config = *config;
    segments->directory = strdup(config->directory);
    if (segments->directory == NULL)
        abort();
    segments->config.directory = segments->directory;
    segments->cache = segment_cache_new(config->frame_cache_bytes);
    pthread_mutex_init(&segments->orphan_lock, NULL);
    for (unsigned i = 0; i < SEGMENT_SHARDS; i++) {
        struct segments_shard *shard = &segments->shard[i];
        pthread_mutex_init(&shard->lock, NULL);
        shard->fd_ring = (struct segment_link){&shard->fd_ring, &shard->fd_ring};
        shard->index_ring = (struct segment_link){&shard->index_ring, &shard->index_ring};
    }
    return segments;
}

static struct segment_orphan *free_list_locked(
        struct segments *segments, struct segment *list, struct segment_orphan *orphans)
{
    for (struct segment *next; list != NULL; list = next) {
        next = list->next;
        orphans = entry_free_locked(segments, list, orphans);
    }
    return orphans;
}

struct segments *segments_free(struct segments *segments, struct loop *loop)
{
    if (segments == NULL)
        return NULL;
    struct segment_orphan *list = segments->orphans;
    for (unsigned i = 0; i < SEGMENT_SHARDS; i++) {
        struct segments_shard *shard = &segments->shard[i];
        for (unsigned b = 0; b < SEGMENT_SHARD_BUCKETS; b++)
            list = free_list_locked(segments, shard->bucket[b], list);
        list = free_list_locked(segments, shard->leaving, list);
        pthread_mutex_destroy(&shard->lock);
    }
    for (struct segment_orphan *next; list != NULL; list = next) {
        next = list->next;
        struct io_op shut = {.code = IO_CLOSE, .fd = list->fd};
        if (loop != NULL)
            io_sync(loop, &shut);
        free(list);
    }
    segment_cache_free(segments->cache);
    pthread_mutex_destroy(&segments->orphan_lock);
    free(segments->directory);
    free(segments);
    return NULL;
}
