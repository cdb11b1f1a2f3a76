// SPDX-License-Identifier: Apache-2.0
#include "vmglue/mem_fuse_images.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "blockstore/clock.h"

enum { BUCKETS = 256 };

struct image {
    struct image *next;
    struct base_id id;
    struct base *base;
    unsigned reads; // in flight
    unsigned opens; // by this daemon's count
};

struct mem_fuse_images {
    struct store *store;
    pthread_mutex_t lock; // guards all below; taken before the catalog's
    pthread_cond_t idle;
    struct image *buckets[BUCKETS];
    unsigned reads;
};

struct mem_fuse_images *mem_fuse_images_create(struct store *store)
{
    struct mem_fuse_images *images = calloc(1, sizeof *images);
    if (images == NULL)
        return NULL;
    images->store = store;
    pthread_mutex_init(&images->lock, NULL);
    pthread_cond_init(&images->idle, NULL);
    return images;
}

static void free_image(struct image *image)
{
    if (image == NULL)
        return;
    base_close(image->base);
    free(image);
}

struct mem_fuse_images *mem_fuse_images_destroy(struct mem_fuse_images *images)
{
    if (images == NULL)
        return NULL;
    for (unsigned i = 0; i < BUCKETS; i++) {
        while (images->buckets[i] != NULL) {
            struct image *image = images->buckets[i];
            images->buckets[i] = image->next;
            free_image(image);
        }
    }
    pthread_cond_destroy(&images->idle);
    pthread_mutex_destroy(&images->lock);
    free(images);
    return NULL;
}

static struct image *find_locked(struct mem_fuse_images *images, struct base_id id)
{
    struct image *image = images->buckets[id.value % BUCKETS];
    while (image != NULL && image->id.value != id.value)
        image = image->next;
    return image;
}

static int find_or_open_locked(struct mem_fuse_images *images, struct base_id id, struct image **ret_image)
{
    struct image *image = find_locked(images, id);
    if (image == NULL) {
        image = calloc(1, sizeof *image);
        if (image == NULL)
            return -ENOMEM;
        int result = base_open(images->store, id, &image->base);
        if (result < 0) {
            free(image);
            return result == -ENOENT ? -ESTALE : result;
        }
        image->id = id;
        image->next = images->buckets[id.value % BUCKETS];
        images->buckets[id.value % BUCKETS] = image;
    }
    *ret_image = image;
    return 0;
}

// Takes an image that nobody uses any more out of the table; returns it for free_image, outside the lock, or
// NULL.
static struct image *drop_unused_locked(struct mem_fuse_images *images, struct image *image)
{
    if (image->reads > 0 || image->opens > 0)
        return NULL;
    struct image **link = &images->buckets[image->id.value % BUCKETS];
    while (*link != image)
        link = &(*link)->next;
    *link = image->next;
    return image;
}

int mem_fuse_images_open(struct mem_fuse_images *images, struct base_id id)
{
    struct image *image;
    pthread_mutex_lock(&images->lock);
    int result = find_or_open_locked(images, id, &image);
    if (result == 0)
        image->opens++;
    pthread_mutex_unlock(&images->lock);
    return result;
}

void mem_fuse_images_release(struct mem_fuse_images *images, struct base_id id)
{
    struct image *unused = NULL;
    pthread_mutex_lock(&images->lock);
    struct image *image = find_locked(images, id);
    if (image != NULL && image->opens > 0) {
        image->opens--;
        unused = drop_unused_locked(images, image);
    }
    pthread_mutex_unlock(&images->lock);
    free_image(unused);
}

int mem_fuse_images_begin_read(struct mem_fuse_images *images, struct base_id id, struct base **ret_base)
{
    struct image *image;
    pthread_mutex_lock(&images->lock);
    int result = find_or_open_locked(images, id, &image);
    if (result == 0) {
        image->reads++;
        images->reads++;
        *ret_base = image->base;
    }
    pthread_mutex_unlock(&images->lock);
    return result;
}

void mem_fuse_images_end_read(struct mem_fuse_images *images, struct base_id id)
{
    pthread_mutex_lock(&images->lock);
    struct image *image = find_locked(images, id);
    image->reads--;
    struct image *unused = drop_unused_locked(images, image);
    pthread_mutex_unlock(&images->lock);
    free_image(unused);
    // The last thing: who waits may destroy the table after this.
    pthread_mutex_lock(&images->lock);
    if (--images->reads == 0)
        pthread_cond_broadcast(&images->idle);
    pthread_mutex_unlock(&images->lock);
}

void mem_fuse_images_wait(struct mem_fuse_images *images, unsigned timeout_ms)
{
    struct timespec until = clock_deadline(timeout_ms);
    int late = 0;
    pthread_mutex_lock(&images->lock);
    while (images->reads > 0 && late == 0)
        late = timeout_ms == 0
                       ? pthread_cond_wait(&images->idle, &images->lock)
                       : pthread_cond_clockwait(&images->idle, &images->lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&images->lock);
}

struct listing {
    uint64_t *ids;
    size_t count, capacity;
    bool failed;
};

static void listing_add(void *context, const struct base_info *info)
{
    struct listing *listing = context;
    if (listing->count == listing->capacity) {
        size_t capacity = listing->capacity * 2;
        uint64_t *ids = realloc(listing->ids, capacity * sizeof *ids);
        if (ids == NULL) {
            listing->failed = true;
            return;
        }
        listing->ids = ids;
        listing->capacity = capacity;
    }
    listing->ids[listing->count++] = info->id.value;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

int mem_fuse_images_list(struct mem_fuse_images *images, uint64_t **ret_ids, size_t *ret_count)
{
    struct listing listing = {.capacity = 64};
    listing.ids = malloc(listing.capacity * sizeof *listing.ids);
    if (listing.ids == NULL)
        return -ENOMEM;
    store_base_list(images->store, listing_add, &listing);
    if (listing.failed) {
        free(listing.ids);
        return -ENOMEM;
    }
    qsort(listing.ids, listing.count, sizeof *listing.ids, compare_ids);
    *ret_ids = listing.ids;
    *ret_count = listing.count;
    return 0;
}
