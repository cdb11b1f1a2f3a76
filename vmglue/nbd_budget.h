// SPDX-License-Identifier: Apache-2.0
// Payload memory that NBD connections share: a number of bytes, and those who wait for some, in order.
//
// Every connection may hold NBD_POOL_OWN_BYTES without asking (nbd_pool.h), so that small requests are never
// held up by anybody; what it needs beyond that is taken from a budget. Who cannot get it waits and does not
// read on: back-pressure, no error. By default all servers of the process share one budget.
//
// Threads: any. granted() is called under the budget's lock, on the thread that gave bytes back: it may only
// post.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { NBD_BUDGET_DEFAULT_BYTES = 256 * 1024 * 1024, NBD_BUDGET_LEAST_BYTES = 32 * 1024 * 1024 };

struct nbd_budget_waiter {
    void (*granted)(struct nbd_budget_waiter *waiter); // the bytes are the waiter's now
    size_t bytes;
    bool queued; // protected by the budget's lock, like the links
    struct nbd_budget_waiter *next, *previous;
};

struct nbd_budget {
    pthread_mutex_t lock;
    size_t limit_bytes;
    size_t used_bytes, peak_bytes; // protected by lock, like the queue
    struct nbd_budget_waiter *first, *last;
    atomic_uint waiting;
};

// A limit under NBD_BUDGET_LEAST_BYTES (the largest request) is raised to that.
void nbd_budget_init(struct nbd_budget *budget, size_t limit_bytes);
struct nbd_budget *nbd_budget_of_process(void);
// Takes waiter->bytes (at most the limit); when that is not possible now, the waiter is queued and false is
// returned.
bool nbd_budget_take(struct nbd_budget *budget, struct nbd_budget_waiter *waiter);
// Grants what has become possible to the first in the queue, and so on.
void nbd_budget_give(struct nbd_budget *budget, size_t bytes);
// Takes it out of the queue. Returns false when it was not there: it has been granted, or never waited.
bool nbd_budget_cancel(struct nbd_budget *budget, struct nbd_budget_waiter *waiter);
// Whether somebody waits: then nobody should keep what is not in use.
bool nbd_budget_is_short(struct nbd_budget *budget);
void nbd_budget_stat(struct nbd_budget *budget, size_t *ret_used_bytes, size_t *ret_peak_bytes);
