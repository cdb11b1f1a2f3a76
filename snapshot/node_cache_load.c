// SPDX-License-Identifier: Apache-2.0
// Reading sealed nodes: one read for all who wait for a node; each is answered on its own loop. What a
// segment returns has been verified, but not that it is a node: node_cache_check.
#include "snapshot/node_cache_private.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct node_fetch {
    struct segment_read read; // first
    struct node_cache *cache;
    locator_t locator;
    struct node_load *waiting, **waiting_tail;
    struct node_fetch *next; // of its stripe
    locator_t slots[512];
};

static int decode(locator_t slots[512])
{
    for (unsigned i = 0; i < 512; i++)
        slots[i] = le64toh(slots[i]);
    return node_cache_check(slots);
}

static void answer_later(struct loop_work *work)
{
    struct node_load *load = (struct node_load *)((char *)work - offsetof(struct node_load, work));
    load->done(load, load->result);
}

static void answer_by_post(struct node_load *load, int result)
{
    load->result = result;
    load->work.run = answer_later;
    loop_post(load->loop, &load->work);
}

static void fetch_done(struct segment_read *read, int result)
{
    struct node_fetch *fetch = (struct node_fetch *)read;
    struct node_cache *cache = fetch->cache;
    struct cache_stripe *stripe = node_cache_stripe(cache, fetch->locator);
    if (result >= 0)
        result = decode(fetch->slots);
    pthread_mutex_lock(&stripe->lock);
    if (result == 0)
        node_cache_insert_locked(cache, stripe, fetch->locator, fetch->slots);
    struct node_fetch **link = &stripe->fetches;
    while (*link != fetch)
        link = &(*link)->next;
    *link = fetch->next;
    pthread_mutex_unlock(&stripe->lock);
    struct node_load *load = fetch->waiting, *next;
    struct loop *loop = fetch->read.loop;
    free(fetch);
    for (; load != NULL; load = next) {
        next = load->next;
        if (load->loop == loop)
            load->done(load, result);
        else
            answer_by_post(load, result);
    }
}

static struct node_fetch *fetch_new(struct node_cache *cache, const struct node_load *load)
{
    struct node_fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL)
        abort();
    fetch->cache = cache;
    fetch->locator = load->locator;
    fetch->waiting_tail = &fetch->waiting;
    fetch->read = (struct segment_read){.loop = load->loop,
            .first = load->locator,
            .count = 1,
            .buffer = fetch->slots,
            .done = fetch_done};
    return fetch;
}

void node_cache_load(struct node_cache *cache, struct node_load *load)
{
    struct cache_stripe *stripe = node_cache_stripe(cache, load->locator);
    struct node_fetch *fetch = NULL, *started = NULL;
    load->cache = cache;
    load->next = NULL;
    if (cache->segments == NULL) {
        answer_by_post(load, -ENOENT);
        return;
    }
    pthread_mutex_lock(&stripe->lock);
    bool here = node_cache_find_locked(cache, stripe, load->locator) != NULL;
    if (!here) {
        for (fetch = stripe->fetches; fetch != NULL && fetch->locator != load->locator;)
            fetch = fetch->next;
        if (fetch == NULL) {
            fetch = started = fetch_new(cache, load);
            fetch->next = stripe->fetches;
            stripe->fetches = fetch;
        }
        *fetch->waiting_tail = load;
        fetch->waiting_tail = &load->next;
    }
    pthread_mutex_unlock(&stripe->lock);
    if (here)
        answer_by_post(load, 0);
    else if (started != NULL)
        segment_read(cache->segments, &started->read);
}

int node_cache_read_task(
        struct node_cache *cache, struct task *task, locator_t locator, locator_t ret_slots[512])
{
    const struct node_cached *node = node_cache_find(cache, locator);
    if (node != NULL) {
        memcpy(ret_slots, node->slots, sizeof node->slots);
        node_cache_put(cache, node);
        return 0;
    }
    locator_t *slots = malloc(sizeof node->slots);
    if (slots == NULL)
        abort();
    int r = segment_read_task(cache->segments, task, locator, 1, slots);
    if (r >= 0)
        r = decode(slots);
    if (r == 0)
        memcpy(ret_slots, slots, sizeof node->slots);
    free(slots);
    return r;
}
