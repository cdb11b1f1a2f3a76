// SPDX-License-Identifier: Apache-2.0
// The agent's only thread: descriptors that become ready, and points in time.
//
// A source or timer is a part of a bigger object, which the callback finds by its first member. Events are
// taken one at a time, so that a callback may free any object, its own too, once its sources are disarmed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct loop_source {
    int fd;
    uint32_t armed; // epoll events, 0 = not armed
    void (*ready)(struct loop_source *source, uint32_t events);
};

struct loop_timer {
    uint64_t at_ns; // CLOCK_MONOTONIC, 0 = not set
    void (*fire)(struct loop_timer *timer);
    struct loop_timer *next;
    bool linked;
};

int loop_init(void);
int loop_arm(struct loop_source *source, uint32_t events);
void loop_disarm(struct loop_source *source);
void loop_timer_set(struct loop_timer *timer, uint64_t at_ns);
void loop_timer_clear(struct loop_timer *timer);
void loop_step(void); // waits for one event or timer and runs it
