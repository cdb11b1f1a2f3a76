// SPDX-License-Identifier: Apache-2.0
// Moments and deadlines that hold across daemons, reboots of the host and changes of its clock.
//
// While the host is up, time is CLOCK_BOOTTIME, which nobody can set; the wall clock counts only between a
// moment of an earlier boot and now, since nothing else went on meanwhile. Threads: any; no state.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SANDBOX_BOOT_ID_SIZE = 40 };

// A point in time by every clock there is. boot_id "" = never.
struct sandbox_moment {
    char boot_id[SANDBOX_BOOT_ID_SIZE];
    uint64_t boot_ns, wall_ns;
};
struct sandbox_moment sandbox_moment_now(void);
// From `from` to `now`; 0 when the clocks say that `from` is later, or it is no moment.
uint64_t sandbox_moment_elapsed_ns(const struct sandbox_moment *from, const struct sandbox_moment *now);
// By how much the wall clock was set between two moments of one boot; 0 across boots.
int64_t sandbox_moment_wall_step_ns(const struct sandbox_moment *from, const struct sandbox_moment *now);
// The wall clock's time at `from` + after_ms, as people see it now.
uint64_t sandbox_moment_wall_after_ns(
        const struct sandbox_moment *from, uint64_t after_ms, const struct sandbox_moment *now);
