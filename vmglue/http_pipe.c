// SPDX-License-Identifier: Apache-2.0
#include "vmglue/http_pipe.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blockstore/clock.h"

struct http_pipe {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *ring;
    size_t capacity;
    size_t head, used; // protected by lock, as are the flags
    bool finished, broken, asked;
};

struct http_pipe *http_pipe_create(size_t capacity_bytes)
{
    struct http_pipe *pipe = calloc(1, sizeof *pipe);
    pthread_condattr_t monotonic;
    if (pipe == NULL || (pipe->ring = malloc(capacity_bytes)) == NULL)
        abort();
    pipe->capacity = capacity_bytes;
    pthread_mutex_init(&pipe->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pipe->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return pipe;
}

struct http_pipe *http_pipe_destroy(struct http_pipe *pipe)
{
    if (pipe == NULL)
        return NULL;
    pthread_cond_destroy(&pipe->changed);
    pthread_mutex_destroy(&pipe->lock);
    free(pipe->ring);
    free(pipe);
    return NULL;
}

// Returns with room, or with the pipe broken.
static void wait_for_room_locked(struct http_pipe *pipe, bool (*is_over)(void *context), void *context)
{
    while (pipe->used == pipe->capacity && !pipe->broken) {
        if (is_over == NULL) {
            pthread_cond_wait(&pipe->changed, &pipe->lock);
            continue;
        }
        pthread_mutex_unlock(&pipe->lock);
        bool over = is_over(context);
        pthread_mutex_lock(&pipe->lock);
        if (over) {
            pipe->broken = true;
            pthread_cond_broadcast(&pipe->changed);
        }
        struct timespec until = clock_deadline(HTTP_PIPE_LOOK_MS);
        while (pipe->used == pipe->capacity && !pipe->broken &&
                pthread_cond_timedwait(&pipe->changed, &pipe->lock, &until) != ETIMEDOUT) {
        }
    }
}

int http_pipe_write(
        struct http_pipe *pipe, const void *bytes, size_t size, bool (*is_over)(void *context), void *context)
{
    const char *from = bytes;
    pthread_mutex_lock(&pipe->lock);
    while (size > 0) {
        wait_for_room_locked(pipe, is_over, context);
        if (pipe->broken)
            break;
        size_t tail = (pipe->head + pipe->used) % pipe->capacity;
        size_t room = pipe->capacity - pipe->used, straight = pipe->capacity - tail;
        size_t part = size < room ? size : room;
        part = part < straight ? part : straight;
        memcpy(pipe->ring + tail, from, part);
        pipe->used += part;
        from += part;
        size -= part;
        pthread_cond_broadcast(&pipe->changed);
    }
    int result = pipe->broken ? -EPIPE : 0;
    pthread_mutex_unlock(&pipe->lock);
    return result;
}

void http_pipe_finish(struct http_pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    pipe->finished = true;
    pthread_cond_broadcast(&pipe->changed);
    pthread_mutex_unlock(&pipe->lock);
}

void http_pipe_break(struct http_pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    pipe->broken = true;
    pthread_cond_broadcast(&pipe->changed);
    pthread_mutex_unlock(&pipe->lock);
}

void http_pipe_wait_reader(struct http_pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    while (!pipe->asked && !pipe->broken)
        pthread_cond_wait(&pipe->changed, &pipe->lock);
    pthread_mutex_unlock(&pipe->lock);
}

bool http_pipe_is_broken(struct http_pipe *pipe)
{
    pthread_mutex_lock(&pipe->lock);
    bool broken = pipe->broken;
    pthread_mutex_unlock(&pipe->lock);
    return broken;
}

ssize_t http_pipe_read(struct http_pipe *pipe, void *buffer, size_t capacity, unsigned wait_ms)
{
    struct timespec until = clock_deadline(wait_ms);
    ssize_t result = 0;
    pthread_mutex_lock(&pipe->lock);
    if (!pipe->asked) {
        pipe->asked = true;
        pthread_cond_broadcast(&pipe->changed);
    }
    while (pipe->used == 0 && !pipe->finished && !pipe->broken && result == 0) {
        if (wait_ms == 0)
            pthread_cond_wait(&pipe->changed, &pipe->lock);
        else if (pthread_cond_timedwait(&pipe->changed, &pipe->lock, &until) == ETIMEDOUT)
            result = -EAGAIN;
    }
    if (pipe->broken) {
        result = -EPIPE;
    } else if (pipe->used > 0) {
        size_t straight = pipe->capacity - pipe->head;
        size_t part = capacity < pipe->used ? capacity : pipe->used;
        part = part < straight ? part : straight;
        memcpy(buffer, pipe->ring + pipe->head, part);
        pipe->head = (pipe->head + part) % pipe->capacity;
        pipe->used -= part;
        pthread_cond_broadcast(&pipe->changed);
        result = (ssize_t)part;
    }
    pthread_mutex_unlock(&pipe->lock);
    return result;
}
