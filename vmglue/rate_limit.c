// SPDX-License-Identifier: Apache-2.0
#include "vmglue/rate_limit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 512, WAYS = RATE_LIMIT_BUCKETS / SETS };

struct bucket {
    char who[RATE_LIMIT_WHO_SIZE]; // "" = free
    double tokens;
    uint64_t touched_ns;
};

struct rate_limit {
    double rate, burst;
    pthread_mutex_t lock;
    struct bucket buckets[SETS][WAYS]; // protected by lock
};

struct rate_limit *rate_limit_new(double rate_per_sec, double burst)
{
    struct rate_limit *limit = calloc(1, sizeof *limit);
    if (limit == NULL)
        return NULL;
    limit->rate = rate_per_sec;
    limit->burst = burst < 1 ? 1 : burst;
    pthread_mutex_init(&limit->lock, NULL);
    return limit;
}

struct rate_limit *rate_limit_free(struct rate_limit *limit)
{
    if (limit == NULL)
        return NULL;
    pthread_mutex_destroy(&limit->lock);
    free(limit);
    return NULL;
}

static struct bucket *find(struct rate_limit *limit, const char *who, uint64_t now_ns)
{
    uint64_t sum = 14695981039346656037u;
    for (const char *c = who; *c != '\0'; c++)
        sum = (sum ^ (uint8_t)*c) * 1099511628211u;
    struct bucket *set = limit->buckets[(sum ^ sum >> 32) % SETS], *oldest = &set[0];
    for (unsigned i = 0; i < WAYS; i++) {
        if (strcmp(set[i].who, who) == 0)
            return &set[i];
        if (set[i].touched_ns < oldest->touched_ns)
            oldest = &set[i];
    }
    snprintf(oldest->who, sizeof oldest->who, "%s", who);
    oldest->tokens = limit->burst;
    oldest->touched_ns = now_ns;
    return oldest;
}

uint64_t rate_limit_take(struct rate_limit *limit, const char *who, uint64_t now_ns)
{
    char cut[RATE_LIMIT_WHO_SIZE];
    uint64_t wait_ns = 0;
    if (limit->rate <= 0)
        return 0;
    snprintf(cut, sizeof cut, "%s", who);
    pthread_mutex_lock(&limit->lock);
    struct bucket *bucket = find(limit, cut, now_ns);
    if (now_ns > bucket->touched_ns) {
        bucket->tokens += (double)(now_ns - bucket->touched_ns) / 1e9 * limit->rate;
        bucket->touched_ns = now_ns;
    }
    if (bucket->tokens > limit->burst)
        bucket->tokens = limit->burst;
    if (bucket->tokens >= 1)
        bucket->tokens -= 1;
    else
        wait_ns = (uint64_t)((1 - bucket->tokens) / limit->rate * 1e9) + 1;
    pthread_mutex_unlock(&limit->lock);
    return wait_ns;
}
