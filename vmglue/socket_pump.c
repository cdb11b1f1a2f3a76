// SPDX-License-Identifier: Apache-2.0
#include "vmglue/socket_pump.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { WAY_BYTES = 65536, LOOK_MS = 250 };

struct way {
    int from, to;
    size_t start, size;
    bool ended, closed; // nothing more comes; and that was passed on
    char *bytes;        // of WAY_BYTES
};

// False: the connection broke.
static bool way_read(struct way *way)
{
    ssize_t got = recv(way->from, way->bytes, WAY_BYTES, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    way->start = 0;
    way->size = (size_t)got;
    way->ended = got == 0;
    return true;
}

static bool way_write(struct way *way)
{
    ssize_t sent = send(way->to, way->bytes + way->start, way->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR;
    way->start += (size_t)sent;
    way->size -= (size_t)sent;
    return true;
}

static bool way_work(struct way *way, short from_events, short to_events)
{
    if (way->size > 0 && to_events & (POLLOUT | POLLERR | POLLHUP) && !way_write(way))
        return false;
    if (way->size == 0 && !way->ended && from_events & (POLLIN | POLLERR | POLLHUP) && !way_read(way))
        return false;
    if (way->size > 0 && !way_write(way))
        return false;
    if (way->ended && way->size == 0 && !way->closed) {
        shutdown(way->to, SHUT_WR);
        way->closed = true;
    }
    return true;
}

static short wanted(const struct way *out, const struct way *in)
{
    return (short)((out->size == 0 && !out->ended ? POLLIN : 0) | (in->size > 0 ? POLLOUT : 0));
}

static void pump(struct way *there, struct way *back, bool (*stop)(void *context), void *context)
{
    while (!(there->closed && back->closed) && !(stop != NULL && stop(context))) {
        struct pollfd polls[2] = {{.fd = there->from, .events = wanted(there, back)},
                {.fd = back->from, .events = wanted(back, there)}};
        const bool watched[2] = {there->closed && !back->closed, back->closed && !there->closed};
        for (int i = 0; i < 2; i++) // a hang-up that is known would be reported for ever
            polls[i].fd = polls[i].events == 0 && !watched[i] ? -1 : polls[i].fd;
        if (poll(polls, 2, LOOK_MS) < 0 && errno != EINTR)
            return;
        // Who had ended his side, and is gone altogether now, takes nothing any more.
        for (int i = 0; i < 2; i++)
            if (watched[i] && polls[i].revents & (POLLHUP | POLLERR))
                return;
        if (!way_work(there, polls[0].revents, polls[1].revents) ||
                !way_work(back, polls[1].revents, polls[0].revents))
            return;
    }
}

void socket_pump_run(
        int a, int b, const void *first, size_t first_size, bool (*stop)(void *context), void *context)
{
    struct way there = {.from = a, .to = b, .bytes = malloc(first_size > WAY_BYTES ? first_size : WAY_BYTES)};
    struct way back = {.from = b, .to = a, .bytes = malloc(WAY_BYTES)};
    if (there.bytes != NULL && back.bytes != NULL) {
        if (first_size > 0)
            memcpy(there.bytes, first, first_size);
        there.size = first_size;
        pump(&there, &back, stop, context);
    }
    free(there.bytes);
    free(back.bytes);
}
