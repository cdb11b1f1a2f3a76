// SPDX-License-Identifier: Apache-2.0
// Events in order of (time, order): a binary heap. Items belong to the caller. Memory exhaustion aborts.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_event_kind { SIM_EVENT_EFFECT, SIM_EVENT_DONE, SIM_EVENT_WORK, SIM_EVENT_TIMER };

struct sim_event {
    uint64_t time, order;
    enum sim_event_kind kind;
    void *item;
};

struct sim_queue { // all zero = empty
    struct sim_event *event;
    size_t count, capacity;
};

void sim_queue_add(
        struct sim_queue *queue, uint64_t time, uint64_t order, enum sim_event_kind kind, void *item);
bool sim_queue_peek(const struct sim_queue *queue, struct sim_event *ret_event); // false when empty
void sim_queue_pop(struct sim_queue *queue);
void sim_queue_remove(struct sim_queue *queue, const void *item); // nothing when it is not there
bool sim_queue_has_other_than(const struct sim_queue *queue, enum sim_event_kind kind);
void sim_queue_free(struct sim_queue *queue);
