// SPDX-License-Identifier: Apache-2.0
// Who waits for room, and who must not. A checkpoint makes room; it needs a turn between two transactions;
// the one under way may wait for writes to the volumes that it freezes or shrinks, and for its own record.
// These overtake what else is queued. A write has no place in the log's order before it leaves the queue, and
// writes to one volume stay in their order.
#include "blockstore/log_private.h"

#include <stdlib.h>
#include <string.h>

static bool hurries_locked(const struct log *log, const struct log_append *append)
{
    if (!log->hurry || append->kind > RECORD_TXN)
        return false;
    bool hurries = append->kind == RECORD_TXN;
    for (unsigned i = 0; i < log->hurry_count; i++)
        hurries = hurries || (append->kind < RECORD_TXN && append->volume == log->hurry_volumes[i].volume &&
                                     append->epoch <= log->hurry_volumes[i].epoch);
    return hurries;
}

// The log's own records, and what is in a hurry, stand at the head of the queue.
void log_enqueue_locked(struct log *log, struct log_append *append)
{
    struct log_append **at = log->queue_tail;
    append->hurried = hurries_locked(log, append);
    if (append->hurried)
        for (at = &log->queue; *at != NULL && ((*at)->hurried || (*at)->kind > RECORD_TXN);)
            at = &(*at)->next;
    append->next = *at;
    *at = append;
    if (append->next == NULL)
        log->queue_tail = &append->next;
}

static void sort_queue_locked(struct log *log)
{
    struct log_append *list = log->queue, *late = NULL, **late_tail = &late;
    log->queue_tail = &log->queue;
    for (struct log_append *append = list, *next; append != NULL; append = next) {
        next = append->next;
        append->hurried = hurries_locked(log, append);
        struct log_append ***tail =
                append->hurried || append->kind > RECORD_TXN ? &log->queue_tail : &late_tail;
        append->next = NULL;
        **tail = append;
        *tail = &append->next;
    }
    *log->queue_tail = late;
    if (late != NULL)
        log->queue_tail = late_tail;
}

void log_begin_hurry(struct log *log, const struct log_hurry *volumes, unsigned count)
{
    struct log_append *start = NULL;
    struct log_hurry *copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL)
        abort();
    memcpy(copy, volumes, count * sizeof *copy);
    pthread_mutex_lock(&log->lock);
    free(log->hurry_volumes);
    log->hurry_volumes = copy;
    log->hurry_count = count;
    log->hurry = true;
    sort_queue_locked(log);
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

void log_end_hurry(struct log *log)
{
    pthread_mutex_lock(&log->lock);
    log->hurry = false;
    log->hurry_count = 0;
    for (struct log_append *append = log->queue; append != NULL; append = append->next)
        append->hurried = false;
    pthread_mutex_unlock(&log->lock);
}
