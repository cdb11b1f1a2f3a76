// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_pool.h"

#include "blockstore/io.h"

// Lies in the buffer itself while it is kept.
struct nbd_pool_buffer {
    struct nbd_pool_buffer *next;
};

static unsigned shift_of(size_t size_bytes)
{
    unsigned shift = NBD_POOL_SMALLEST_SHIFT;
    while (((size_t)1 << shift) < size_bytes)
        shift++;
    return shift;
}

size_t nbd_pool_cost(size_t size_bytes)
{
    return (size_t)1 << shift_of(size_bytes);
}

void nbd_pool_init(struct nbd_pool *pool, struct nbd_budget *budget)
{
    *pool = (struct nbd_pool){.budget = budget};
}

void nbd_pool_add(struct nbd_pool *pool, size_t bytes)
{
    pool->taken_bytes += bytes;
}

static void give_back(struct nbd_pool *pool)
{
    size_t needed =
            pool->allocated_bytes > NBD_POOL_OWN_BYTES ? pool->allocated_bytes - NBD_POOL_OWN_BYTES : 0;
    if (pool->taken_bytes <= needed)
        return;
    size_t bytes = pool->taken_bytes - needed;
    pool->taken_bytes = needed;
    nbd_budget_give(pool->budget, bytes);
}

static void free_buffer(struct nbd_pool *pool, void *buffer, unsigned shift)
{
    io_buffer_free(buffer);
    pool->allocated_bytes -= (size_t)1 << shift;
}

// Frees kept buffers, the largest first, until no more than `bytes` are kept.
static void shrink_kept(struct nbd_pool *pool, size_t bytes)
{
    for (unsigned i = NBD_POOL_CLASSES; i-- > 0;) {
        while (pool->kept[i] && pool->kept_bytes > bytes) {
            struct nbd_pool_buffer *buffer = pool->kept[i];
            pool->kept[i] = buffer->next;
            pool->kept_bytes -= (size_t)1 << (i + NBD_POOL_SMALLEST_SHIFT);
            free_buffer(pool, buffer, i + NBD_POOL_SMALLEST_SHIFT);
        }
    }
}

static struct nbd_pool_buffer **kept_for(struct nbd_pool *pool, unsigned shift)
{
    return shift <= NBD_POOL_LARGEST_SHIFT ? &pool->kept[shift - NBD_POOL_SMALLEST_SHIFT] : NULL;
}

size_t nbd_pool_lacks(struct nbd_pool *pool, size_t size_bytes)
{
    unsigned shift = shift_of(size_bytes);
    struct nbd_pool_buffer **head = kept_for(pool, shift);
    size_t cost = (size_t)1 << shift, allowed = NBD_POOL_OWN_BYTES + pool->taken_bytes;
    if ((head && *head) || pool->allocated_bytes + cost <= allowed)
        return 0;
    shrink_kept(pool, 0);
    give_back(pool); // so that what is lacking now can only become less
    size_t needed = pool->allocated_bytes + cost;
    allowed = NBD_POOL_OWN_BYTES + pool->taken_bytes;
    return needed <= allowed ? 0 : needed - allowed;
}

void *nbd_pool_get(struct nbd_pool *pool, size_t size_bytes)
{
    unsigned shift = shift_of(size_bytes);
    struct nbd_pool_buffer **head = kept_for(pool, shift);
    if (head && *head) {
        struct nbd_pool_buffer *buffer = *head;
        *head = buffer->next;
        pool->kept_bytes -= (size_t)1 << shift;
        return buffer;
    }
    pool->allocated_bytes += (size_t)1 << shift;
    return io_buffer_alloc((size_t)1 << shift);
}

void nbd_pool_put(struct nbd_pool *pool, void *buffer, size_t size_bytes)
{
    if (!buffer)
        return;
    unsigned shift = shift_of(size_bytes);
    struct nbd_pool_buffer **head = kept_for(pool, shift);
    bool others_wait = pool->taken_bytes && nbd_budget_is_short(pool->budget);
    if (!head || others_wait || pool->kept_bytes + ((size_t)1 << shift) > NBD_POOL_KEPT_BYTES) {
        free_buffer(pool, buffer, shift);
        give_back(pool);
        return;
    }
    struct nbd_pool_buffer *link = buffer;
    link->next = *head;
    *head = link;
    pool->kept_bytes += (size_t)1 << shift;
}

void nbd_pool_trim(struct nbd_pool *pool)
{
    if (pool->allocated_bytes > NBD_POOL_OWN_BYTES) {
        size_t in_use = pool->allocated_bytes - pool->kept_bytes;
        shrink_kept(pool, in_use < NBD_POOL_OWN_BYTES ? NBD_POOL_OWN_BYTES - in_use : 0);
    }
    give_back(pool);
}

void nbd_pool_drain(struct nbd_pool *pool)
{
    shrink_kept(pool, 0);
    give_back(pool);
}
