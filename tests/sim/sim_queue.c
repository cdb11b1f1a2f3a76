// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_queue.h"

#include <stdlib.h>

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void swap(struct sim_queue *queue, size_t a, size_t b)
{
    struct sim_event event = queue->event[a];
    queue->event[a] = queue->event[b];
    queue->event[b] = event;
}

static void rise(struct sim_queue *queue, size_t index)
{
    while (index > 0 && before(&queue->event[index], &queue->event[(index - 1) / 2])) {
        swap(queue, index, (index - 1) / 2);
        index = (index - 1) / 2;
    }
}

static void sink(struct sim_queue *queue, size_t index)
{
    for (;;) {
        size_t least = index;
        for (size_t child = 2 * index + 1; child <= 2 * index + 2 && child < queue->count; child++)
            if (before(&queue->event[child], &queue->event[least]))
                least = child;
        if (least == index)
            return;
        swap(queue, index, least);
        index = least;
    }
}

void sim_queue_add(
        struct sim_queue *queue, uint64_t time, uint64_t order, enum sim_event_kind kind, void *item)
{
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity ? queue->capacity * 2 : 32;
        queue->event = realloc(queue->event, queue->capacity * sizeof *queue->event);
        if (queue->event == NULL)
            abort();
    }
    queue->event[queue->count++] =
            (struct sim_event){.time = time, .order = order, .kind = kind, .item = item};
    rise(queue, queue->count - 1);
}

bool sim_queue_peek(const struct sim_queue *queue, struct sim_event *ret_event)
{
    if (queue->count == 0)
        return false;
    *ret_event = queue->event[0];
    return true;
}

static void remove_at(struct sim_queue *queue, size_t index)
{
    queue->count--;
    if (index == queue->count)
        return;
    queue->event[index] = queue->event[queue->count];
    sink(queue, index);
    rise(queue, index);
}

void sim_queue_pop(struct sim_queue *queue)
{
    remove_at(queue, 0);
}

void sim_queue_remove(struct sim_queue *queue, const void *item)
{
    for (size_t i = 0; i < queue->count; i++) {
        if (queue->event[i].item == item) {
            remove_at(queue, i);
            return;
        }
    }
}

bool sim_queue_has_other_than(const struct sim_queue *queue, enum sim_event_kind kind)
{
    for (size_t i = 0; i < queue->count; i++)
        if (queue->event[i].kind != kind)
            return true;
    return false;
}

void sim_queue_free(struct sim_queue *queue)
{
    free(queue->event);
    *queue = (struct sim_queue){0};
}
