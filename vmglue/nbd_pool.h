// SPDX-License-Identifier: Apache-2.0
// Payload buffers of one NBD connection: page-aligned, in powers of two, a few kept for the next request.
//
// Threads: one at a time. Memory exhaustion aborts (io_buffer_alloc).
#pragma once

#include <stddef.h>

enum {
    NBD_POOL_SMALLEST_SHIFT = 12, // 4 KiB
    NBD_POOL_LARGEST_SHIFT = 22,  // 4 MiB; larger buffers are not kept
    NBD_POOL_CLASSES = NBD_POOL_LARGEST_SHIFT - NBD_POOL_SMALLEST_SHIFT + 1,
    NBD_POOL_KEPT_BYTES = 4 * 1024 * 1024,
};

struct nbd_pool_buffer;

struct nbd_pool {
    struct nbd_pool_buffer *kept[NBD_POOL_CLASSES];
    size_t kept_bytes;
};

void *nbd_pool_get(struct nbd_pool *pool, size_t size_bytes);
// `size_bytes` is what nbd_pool_get was asked for. Accepts NULL.
void nbd_pool_put(struct nbd_pool *pool, void *buffer, size_t size_bytes);
// How much memory a buffer of that size takes.
size_t nbd_pool_cost(size_t size_bytes);
void nbd_pool_drain(struct nbd_pool *pool);
