// SPDX-License-Identifier: Apache-2.0
// Preloaded into a daemon by tests: its wall clock, and no other, is off by RAMET_TEST_CLOCK_SHIFT_SECS. That
// is a host whose clock was set, or that was away for a day.
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    const char *shift = getenv("RAMET_TEST_CLOCK_SHIFT_SECS");
    long result = syscall(SYS_clock_gettime, clock, ret_time);
    if (result == 0 && clock == CLOCK_REALTIME && shift != NULL)
        ret_time->tv_sec += atol(shift);
    return (int)result;
}
