// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/background_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { FIRST_BYTES = 4096, READ_BYTES = 65536 };

static size_t used_bytes;

static size_t budget_bytes(void)
{
    struct sysinfo info;
    uint64_t total = sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0;
    uint64_t budget = total / 16;
    if (budget < 4 << 20)
        return 4 << 20;
    return budget > 64 << 20 ? 64 << 20 : (size_t)budget;
}

void background_log_free(struct background_log *log)
{
    used_bytes -= log->capacity;
    free(log->bytes);
    log->bytes = NULL;
    log->capacity = log->kept = 0;
}

// The oldest ended job that still has a log.
static bool give_up_oldest(const struct background_log *but_for)
{
    struct background *oldest = NULL;
    for (struct background *one = background_list; one != NULL; one = one->next) {
        bool holds = one->log[0].capacity + one->log[1].capacity > 0;
        if (one->job == NULL && one->started && holds && but_for != &one->log[0] && but_for != &one->log[1])
            oldest = one;
    }
    if (oldest == NULL)
        return false;
    background_log_free(&oldest->log[0]);
    background_log_free(&oldest->log[1]);
    return true;
}

static void grow(struct background_log *log)
{
    size_t capacity = log->capacity == 0 ? FIRST_BYTES : 2 * log->capacity, budget = budget_bytes();
    // The first few bytes are always had; more only within the budget.
    while (log->capacity > 0 && used_bytes + capacity - log->capacity > budget && give_up_oldest(log))
        ;
    if (log->capacity > 0 && used_bytes + capacity - log->capacity > budget)
        return;
    uint8_t *bytes = malloc(capacity);
    if (bytes == NULL)
        return;
    for (uint64_t offset = log->end - log->kept; offset < log->end; offset++)
        bytes[offset % capacity] = log->bytes[offset % log->capacity];
    free(log->bytes);
    used_bytes += capacity - log->capacity;
    log->bytes = bytes;
    log->capacity = capacity;
}

ssize_t background_log_read(struct background_log *log, int fd, uint64_t limit)
{
    static uint8_t lost[READ_BYTES];
    if (log->kept == log->capacity && log->capacity < BACKGROUND_LOG_BYTES)
        grow(log);
    size_t at = log->capacity ? log->end % log->capacity : 0;
    size_t room = log->capacity ? log->capacity - at : sizeof lost;
    if (room > limit)
        room = (size_t)limit;
    if (room > READ_BYTES)
        room = READ_BYTES;
    ssize_t got = read(fd, log->capacity ? log->bytes + at : lost, room);
    if (got < 0)
        return -errno;
    log->end += (uint64_t)got;
    log->kept = log->capacity - log->kept < (size_t)got ? log->capacity : log->kept + (size_t)got;
    return got;
}

uint64_t background_log_first(const struct background_log *log)
{
    return log->end - log->kept;
}

const uint8_t *background_log_at(const struct background_log *log, uint64_t offset, size_t *ret_size)
{
    size_t at = offset % log->capacity, run = log->capacity - at;
    *ret_size = log->end - offset < run ? (size_t)(log->end - offset) : run;
    return log->bytes + at;
}
