// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_moment.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "blockstore/clock.h"

// The wall clock is never quite as fast as the other one; less than this is no step.
static const int64_t STEP_NS = INT64_C(300) * 1000000000;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char boot_id[SANDBOX_BOOT_ID_SIZE] = "unknown"; // written once

static void read_boot_id(void)
{
    char text[SANDBOX_BOOT_ID_SIZE];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL && fscanf(file, "%39s", text) == 1)
        memcpy(boot_id, text, sizeof text);
    if (file != NULL)
        fclose(file);
}

struct sandbox_moment sandbox_moment_now(void)
{
    struct sandbox_moment now = {.boot_ns = clock_boot_ns(), .wall_ns = clock_wall_ns()};
    pthread_once(&once, read_boot_id);
    memcpy(now.boot_id, boot_id, sizeof now.boot_id);
    return now;
}

static bool same_boot(const struct sandbox_moment *a, const struct sandbox_moment *b)
{
    return strcmp(a->boot_id, b->boot_id) == 0;
}

uint64_t sandbox_moment_elapsed_ns(const struct sandbox_moment *from, const struct sandbox_moment *now)
{
    if (from->boot_id[0] == '\0')
        return 0;
    uint64_t start = same_boot(from, now) ? from->boot_ns : from->wall_ns;
    uint64_t end = same_boot(from, now) ? now->boot_ns : now->wall_ns;
    return end > start ? end - start : 0;
}

int64_t sandbox_moment_wall_step_ns(const struct sandbox_moment *from, const struct sandbox_moment *now)
{
    if (!same_boot(from, now))
        return 0;
    int64_t step = (int64_t)(now->wall_ns - from->wall_ns) - (int64_t)(now->boot_ns - from->boot_ns);
    return step > STEP_NS || step < -STEP_NS ? step : 0;
}

uint64_t sandbox_moment_wall_after_ns(
        const struct sandbox_moment *from, uint64_t after_ms, const struct sandbox_moment *now)
{
    return from->wall_ns + after_ms * 1000000 + (uint64_t)sandbox_moment_wall_step_ns(from, now);
}
