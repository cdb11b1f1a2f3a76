// SPDX-License-Identifier: Apache-2.0
// Answers that are no whole ones, as the connection's thread takes them: from the pipe of a handler's thread,
// or from a source of events that it asks itself. Silence of events is filled with comments, by which proxies
// and clients know that the stream lives, and we that the client does.
#include "blockstore/clock.h"
#include "vmglue/http_internal.h"

#include <errno.h>
#include <string.h>

enum { SOURCE_WAIT_MS = 2000 }; // then it is seen that the client has left
static const char comment[] = ": still running\n\n";

static ssize_t feed_from_pipe(struct http_request *request, char *buffer, size_t capacity)
{
    for (;;) {
        ssize_t got = http_pipe_read(request->out, buffer, capacity, HTTP_QUIET_MS);
        if (got != -EAGAIN)
            return got;
        if (request->gone && (!request->stays || http_request_is_cut(request))) {
            http_pipe_break(request->out);
            return -EPIPE;
        }
        if (!request->events || capacity < sizeof comment)
            continue;
        memcpy(buffer, comment, sizeof comment - 1);
        return sizeof comment - 1;
    }
}

static ssize_t take_pending(struct http_request *request, char *buffer, size_t capacity)
{
    size_t left = request->pending_size - request->pending_sent, part = left < capacity ? left : capacity;
    memcpy(buffer, request->pending + request->pending_sent, part);
    request->pending_sent += part;
    request->quiet_since_ns = clock_monotonic_ns();
    return (ssize_t)part;
}

static ssize_t feed_from_source(struct http_request *request, char *buffer, size_t capacity)
{
    for (;;) {
        if (request->pending_size > request->pending_sent)
            return take_pending(request, buffer, capacity);
        if (request->source_over)
            return 0;
        if (request->gone || http_request_is_stopping(request))
            return -EPIPE;
        uint64_t quiet_ms = (clock_monotonic_ns() - request->quiet_since_ns) / 1000000;
        uint64_t left_ms = HTTP_QUIET_MS > quiet_ms ? HTTP_QUIET_MS - quiet_ms : 0;
        if (left_ms > 0)
            request->source_over = !request->source(request, request->source_context,
                    (unsigned)(left_ms < SOURCE_WAIT_MS ? left_ms : SOURCE_WAIT_MS));
        else if (http_reply_write(request, comment, sizeof comment - 1) < 0)
            return -EPIPE;
    }
}

// Being asked for more means that what was given before has been taken.
ssize_t http_feed(struct http_request *request, char *buffer, size_t capacity)
{
    http_connection_enter(request->slot, HTTP_PHASE_WORK); // waiting for us is not the client's fault
    ssize_t got = request->source != NULL ? feed_from_source(request, buffer, capacity)
                                          : feed_from_pipe(request, buffer, capacity);
    http_connection_enter(request->slot, HTTP_PHASE_REPLY);
    return got;
}

// An answer that is no stream of events goes on: some clients close their side when they have asked, and
// read.
void http_feed_client_gone(void *context)
{
    struct http_request *request = context;
    request->gone = true;
    if (request->events && request->out != NULL)
        http_pipe_break(request->out);
}
