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

void *nbd_pool_get(struct nbd_pool *pool, size_t size_bytes)
{
    unsigned shift = shift_of(size_bytes);
    if (shift <= NBD_POOL_LARGEST_SHIFT) {
        struct nbd_pool_buffer **head = &pool->kept[shift - NBD_POOL_SMALLEST_SHIFT];
        struct nbd_pool_buffer *buffer = *head;
        if (buffer) {
            *head = buffer->next;
            pool->kept_bytes -= (size_t)1 << shift;
            return buffer;
        }
    }
    return io_buffer_alloc((size_t)1 << shift);
}

void nbd_pool_put(struct nbd_pool *pool, void *buffer, size_t size_bytes)
{
    if (!buffer)
        return;
    unsigned shift = shift_of(size_bytes);
    if (shift > NBD_POOL_LARGEST_SHIFT || pool->kept_bytes + ((size_t)1 << shift) > NBD_POOL_KEPT_BYTES) {
        io_buffer_free(buffer);
        return;
    }
    struct nbd_pool_buffer **head = &pool->kept[shift - NBD_POOL_SMALLEST_SHIFT];
    struct nbd_pool_buffer *link = buffer;
    link->next = *head;
    *head = link;
    pool->kept_bytes += (size_t)1 << shift;
}

void nbd_pool_drain(struct nbd_pool *pool)
{
    for (unsigned i = 0; i < NBD_POOL_CLASSES; i++) {
        while (pool->kept[i]) {
            struct nbd_pool_buffer *buffer = pool->kept[i];
            pool->kept[i] = buffer->next;
            io_buffer_free(buffer);
        }
    }
    pool->kept_bytes = 0;
}
