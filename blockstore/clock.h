// SPDX-License-Identifier: Apache-2.0
// The kernel's clocks as one number, and the moment at which a wait gives up.
//
// What belongs to the engine asks its loop instead (loop_now_ns, blockstore/io.h), so that the simulator can
// give the time. Threads: any; no state. Errors: none, for Linux has each of these clocks.
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// Never goes back, nobody can set it, stands still while the host sleeps: for what takes how long.
static inline uint64_t clock_monotonic_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t clock_monotonic_ms(void)
{
    return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

// The same, but goes on while the host sleeps.
static inline uint64_t clock_boot_ns(void)
{
    return clock_ns(CLOCK_BOOTTIME);
}

// Since 1970; the host's owner may set it.
static inline uint64_t clock_wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

static inline struct timespec clock_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

// For waits on CLOCK_MONOTONIC (pthread_cond_clockwait, a condition with that clock): after_ms from now.
static inline struct timespec clock_deadline(uint64_t after_ms)
{
    return clock_timespec(clock_monotonic_ns() + after_ms * 1000000u);
}
