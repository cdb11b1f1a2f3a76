// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/loop.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>

#include "blockstore/clock.h"

static int epoll_fd = -1;
static struct loop_timer *timers;

int loop_init(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return epoll_fd < 0 ? -errno : 0;
}

int loop_arm(struct loop_source *source, uint32_t events)
{
    if (source->armed == events)
        return 0;
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(epoll_fd, source->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, source->fd, &event) < 0)
        return -errno;
    source->armed = events;
    return 0;
}

// Taken out wholly: a hang-up would be reported for a descriptor with no events, too, and the loop would
// spin.
void loop_disarm(struct loop_source *source)
{
    if (source->armed)
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    source->armed = 0;
}

void loop_timer_set(struct loop_timer *timer, uint64_t at_ns)
{
    timer->at_ns = at_ns;
    if (timer->linked)
        return;
    timer->next = timers;
    timers = timer;
    timer->linked = true;
}

void loop_timer_clear(struct loop_timer *timer)
{
    if (!timer->linked)
        return;
    struct loop_timer **link = &timers;
    while (*link != timer)
        link = &(*link)->next;
    *link = timer->next;
    timer->linked = false;
    timer->at_ns = 0;
}

// There are as many timers as running execs: a list is enough.
static struct loop_timer *first_timer(void)
{
    struct loop_timer *first = timers;
    for (struct loop_timer *timer = timers; timer != NULL; timer = timer->next) {
        if (timer->at_ns < first->at_ns)
            first = timer;
    }
    return first;
}

void loop_step(void)
{
    int timeout_ms = -1;
    struct loop_timer *timer = first_timer();
    if (timer != NULL) {
        uint64_t now = clock_monotonic_ns();
        uint64_t wait_ms = timer->at_ns <= now ? 0 : (timer->at_ns - now + 999999) / 1000000;
        timeout_ms = wait_ms > 3600000 ? 3600000 : (int)wait_ms;
    }
    struct epoll_event event;
    int count = epoll_wait(epoll_fd, &event, 1, timeout_ms);
    if (count == 1) {
        struct loop_source *source = event.data.ptr;
        source->ready(source, event.events);
    }
    // A steady stream of events must not starve the timers.
    timer = first_timer();
    if (timer != NULL && timer->at_ns <= clock_monotonic_ns()) {
        loop_timer_clear(timer);
        timer->fire(timer);
    }
}
