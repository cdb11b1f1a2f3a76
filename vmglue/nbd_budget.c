// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_budget.h"

static struct nbd_budget process_budget = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .limit_bytes = NBD_BUDGET_DEFAULT_BYTES,
};

struct nbd_budget *nbd_budget_of_process(void)
{
    return &process_budget;
}

void nbd_budget_init(struct nbd_budget *budget, size_t limit_bytes)
{
    *budget = (struct nbd_budget){
            .limit_bytes = limit_bytes > NBD_BUDGET_LEAST_BYTES ? limit_bytes : NBD_BUDGET_LEAST_BYTES};
    pthread_mutex_init(&budget->lock, NULL);
}

static bool take_locked(struct nbd_budget *budget, size_t bytes)
{
    if (bytes > budget->limit_bytes - budget->used_bytes)
        return false;
    budget->used_bytes += bytes;
    if (budget->used_bytes > budget->peak_bytes)
        budget->peak_bytes = budget->used_bytes;
    return true;
}

static void unlink_locked(struct nbd_budget *budget, struct nbd_budget_waiter *waiter)
{
    if (waiter->previous)
        waiter->previous->next = waiter->next;
    else
        budget->first = waiter->next;
    if (waiter->next)
        waiter->next->previous = waiter->previous;
    else
        budget->last = waiter->previous;
    waiter->queued = false;
    atomic_fetch_sub(&budget->waiting, 1);
}

bool nbd_budget_take(struct nbd_budget *budget, struct nbd_budget_waiter *waiter)
{
    pthread_mutex_lock(&budget->lock);
    // Nobody overtakes: a large request would never get its turn.
    bool taken = !budget->first && take_locked(budget, waiter->bytes);
    if (!taken) {
        waiter->queued = true;
        waiter->next = NULL;
        waiter->previous = budget->last;
        if (budget->last)
            budget->last->next = waiter;
        else
            budget->first = waiter;
        budget->last = waiter;
        atomic_fetch_add(&budget->waiting, 1);
    }
    pthread_mutex_unlock(&budget->lock);
    return taken;
}

static void grant_locked(struct nbd_budget *budget)
{
    while (budget->first && take_locked(budget, budget->first->bytes)) {
        struct nbd_budget_waiter *waiter = budget->first;
        unlink_locked(budget, waiter);
        waiter->granted(waiter);
    }
}

void nbd_budget_give(struct nbd_budget *budget, size_t bytes)
{
    pthread_mutex_lock(&budget->lock);
    budget->used_bytes -= bytes;
    grant_locked(budget);
    pthread_mutex_unlock(&budget->lock);
}

bool nbd_budget_cancel(struct nbd_budget *budget, struct nbd_budget_waiter *waiter)
{
    pthread_mutex_lock(&budget->lock);
    bool was_queued = waiter->queued;
    if (was_queued) {
        unlink_locked(budget, waiter);
        grant_locked(budget); // who stood behind it may want less
    }
    pthread_mutex_unlock(&budget->lock);
    return was_queued;
}

bool nbd_budget_is_short(struct nbd_budget *budget)
{
    return atomic_load_explicit(&budget->waiting, memory_order_relaxed) > 0;
}

void nbd_budget_stat(struct nbd_budget *budget, size_t *ret_used_bytes, size_t *ret_peak_bytes)
{
    pthread_mutex_lock(&budget->lock);
    *ret_used_bytes = budget->used_bytes;
    *ret_peak_bytes = budget->peak_bytes;
    pthread_mutex_unlock(&budget->lock);
}
