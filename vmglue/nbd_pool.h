// SPDX-License-Identifier: Apache-2.0
// Payload buffers of one NBD connection: page-aligned, in powers of two, a few kept for the next request.
// All of them together are bounded: NBD_POOL_OWN_BYTES belong to the connection, more is taken from a budget
// that all connections share, and goes back to it as soon as it is not needed.
//
// Threads: one at a time (the budget has a lock of its own). Memory exhaustion aborts (io_buffer_alloc).
#pragma once

#include "vmglue/nbd_budget.h"

enum {
    NBD_POOL_SMALLEST_SHIFT = 12, // 4 KiB
    NBD_POOL_LARGEST_SHIFT = 22,  // 4 MiB; larger buffers are not kept
    NBD_POOL_CLASSES = NBD_POOL_LARGEST_SHIFT - NBD_POOL_SMALLEST_SHIFT + 1,
    NBD_POOL_KEPT_BYTES = 4 * 1024 * 1024,
    NBD_POOL_OWN_BYTES = 1024 * 1024,
};

struct nbd_pool_buffer;

struct nbd_pool {
    struct nbd_budget *budget;
    struct nbd_pool_buffer *kept[NBD_POOL_CLASSES];
    size_t kept_bytes;
    size_t allocated_bytes; // kept or in use
    size_t taken_bytes;     // from the budget
};

void nbd_pool_init(struct nbd_pool *pool, struct nbd_budget *budget);
// How many bytes must be taken from the budget before a buffer of that size can be had; 0 = none. What is
// kept but cannot serve it is given up first.
size_t nbd_pool_lacks(struct nbd_pool *pool, size_t size_bytes);
// Bytes that were taken from the budget for this pool.
void nbd_pool_add(struct nbd_pool *pool, size_t bytes);
// Only when nbd_pool_lacks says 0.
void *nbd_pool_get(struct nbd_pool *pool, size_t size_bytes);
// `size_bytes` is what nbd_pool_get was asked for. Accepts NULL.
void nbd_pool_put(struct nbd_pool *pool, void *buffer, size_t size_bytes);
// How much memory a buffer of that size takes.
size_t nbd_pool_cost(size_t size_bytes);
// For a connection that has nothing to do: keeps no more than its own bytes, gives back all that it took.
void nbd_pool_trim(struct nbd_pool *pool);
void nbd_pool_drain(struct nbd_pool *pool);
