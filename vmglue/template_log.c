// SPDX-License-Identifier: Apache-2.0
#include "vmglue/template_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blockstore/clock.h"

struct template_log {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // protected by lock:
    char bytes[TEMPLATE_LOG_MAX_BYTES];
    uint64_t start, end; // positions of the first kept byte and behind the last
    bool closed;
};

struct template_log *template_log_create(void)
{
    struct template_log *log = calloc(1, sizeof *log);
    pthread_condattr_t attributes;
    if (log == NULL)
        abort();
    pthread_mutex_init(&log->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&log->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return log;
}

struct template_log *template_log_destroy(struct template_log *log)
{
    if (log == NULL)
        return NULL;
    pthread_cond_destroy(&log->changed);
    pthread_mutex_destroy(&log->lock);
    free(log);
    return NULL;
}

// Gives up the older half, up to a line's end where there is one.
static void make_room(struct template_log *log)
{
    size_t used = (size_t)(log->end - log->start), drop = used / 2;
    const char *line = memchr(log->bytes + drop, '\n', used - drop);
    if (line != NULL && line + 1 < log->bytes + used)
        drop = (size_t)(line + 1 - log->bytes);
    memmove(log->bytes, log->bytes + drop, used - drop);
    log->start += drop;
}

void template_log_write(struct template_log *log, const char *bytes, size_t size)
{
    pthread_mutex_lock(&log->lock);
    while (size > 0) {
        size_t used = (size_t)(log->end - log->start);
        if (used == sizeof log->bytes) {
            make_room(log);
            continue;
        }
        size_t part = sizeof log->bytes - used < size ? sizeof log->bytes - used : size;
        memcpy(log->bytes + used, bytes, part);
        log->end += part;
        bytes += part;
        size -= part;
    }
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
}

void template_log_line(struct template_log *log, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    size_t length = size < 0 ? 0 : (size_t)size < sizeof line - 1 ? (size_t)size : sizeof line - 2;
    line[length] = '\n';
    template_log_write(log, line, length + 1);
}

void template_log_close(struct template_log *log)
{
    pthread_mutex_lock(&log->lock);
    log->closed = true;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
}

ssize_t template_log_read(
        struct template_log *log, uint64_t *position, char *buffer, size_t capacity, unsigned wait_ms)
{
    struct timespec until = clock_deadline(wait_ms);
    int waited = 0;
    ssize_t result = 0;
    pthread_mutex_lock(&log->lock);
    while (*position >= log->end && !log->closed && waited == 0)
        waited = pthread_cond_timedwait(&log->changed, &log->lock, &until);
    if (*position < log->start)
        *position = log->start;
    if (*position < log->end) {
        size_t there = (size_t)(log->end - *position), part = there < capacity ? there : capacity;
        memcpy(buffer, log->bytes + (*position - log->start), part);
        *position += part;
        result = (ssize_t)part;
    } else if (!log->closed) {
        result = -EAGAIN;
    }
    pthread_mutex_unlock(&log->lock);
    return result;
}

char *template_log_text(struct template_log *log)
{
    pthread_mutex_lock(&log->lock);
    size_t size = (size_t)(log->end - log->start);
    char *text = malloc(size + 1);
    if (text != NULL) {
        memcpy(text, log->bytes, size);
        text[size] = '\0';
    }
    pthread_mutex_unlock(&log->lock);
    return text;
}
