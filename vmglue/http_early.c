// SPDX-License-Identifier: Apache-2.0
// Answers that come while their request's body does. libmicrohttpd sends an answer before the body or after
// it; of a body that is long, or has no end, the client would not hear what a guest's server thinks of it. So
// the handler of a proxied request that has begun to answer gives the body a moment to be over, and then
// speaks to the socket itself: head, body, and the end of our side. The connection's thread goes on taking
// what comes, for nobody, so that no bytes are left unread when the socket closes (which would break the
// answer off), and the connection is over with it.
//
// Who answers is decided under the request's lock: `taken` by the connection's thread, or `early` by the
// handler's.
#include "blockstore/clock.h"
#include "vmglue/http_internal.h"
#include "vmglue/http_tls.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

enum { WAIT_SECS = 1, LOOK_MS = 250, STALLED_LOOKS = HTTP_STALLED_DEFAULT_SECS * 1000 / LOOK_MS };
static const uint64_t LINGER_NS = 3000000000;

bool http_early_take(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool mine = !request->early;
    request->taken = true;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    return mine;
}

bool http_early_is(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool early = request->early;
    pthread_mutex_unlock(&request->lock);
    return early;
}

bool http_early_is_over(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool over = request->early && request->returned && clock_monotonic_ns() - request->ended_ns > LINGER_NS;
    pthread_mutex_unlock(&request->lock);
    return over;
}

void http_early_wait(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    while (!request->returned)
        pthread_cond_wait(&request->changed, &request->lock);
    pthread_mutex_unlock(&request->lock);
}

// -EPIPE: the client is gone, or takes nothing.
static int send_all(struct http_request *request, const char *bytes, size_t size)
{
    void *session = http_server_tls_session(request);
    unsigned looks = 0;
    while (size > 0 && !request->early_broken) {
        ssize_t sent = session != NULL ? http_tls_send(session, bytes, size)
                                       : send(request->socket_fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        int failure = session != NULL ? (int)-sent : errno;
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            looks = 0;
            continue;
        }
        struct pollfd poll_fd = {.fd = request->socket_fd, .events = POLLOUT};
        if ((failure != EAGAIN && failure != EINTR) ||
                (poll(&poll_fd, 1, LOOK_MS) == 0 && ++looks >= STALLED_LOOKS) ||
                http_request_is_stopping(request) || http_request_is_over(request))
            request->early_broken = true;
    }
    return request->early_broken ? -EPIPE : 0;
}

static void send_head(struct http_request *request)
{
    char *text = NULL;
    size_t size = 0;
    bool has_id = false, known = request->whole || request->stream_size >= 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) {
        request->early_broken = true;
        return;
    }
    fprintf(out, "HTTP/1.1 %d %s\r\nConnection: close\r\n", request->status,
            http_server_reason(request->status));
    if (request->content_type[0] != '\0')
        fprintf(out, "Content-Type: %s\r\n", request->content_type);
    for (unsigned i = 0; i < request->header_count; i++) {
        has_id |= strcasecmp(request->headers[i].name, "X-Request-Id") == 0;
        fprintf(out, "%s: %s\r\n", request->headers[i].name, request->headers[i].value);
    }
    if (!has_id)
        fprintf(out, "X-Request-Id: %s\r\n", request->id);
    request->early_chunks = !known && !request->http_1_0 && request->status != 204 && request->status != 304;
    if (known && request->status != 204)
        fprintf(out, "Content-Length: %lld\r\n",
                request->whole ? (long long)request->reply_size : (long long)request->stream_size);
    else if (request->early_chunks)
        fputs("Transfer-Encoding: chunked\r\n", out);
    fputs("\r\n", out);
    if (fclose(out) != 0)
        request->early_broken = true;
    else
        send_all(request, text, size);
    free(text);
}

void http_early_begin(struct http_request *request)
{
    if (!request->chosen || !request->threaded || !request->has_body || request->upgrade_to != NULL)
        return;
    struct timespec until = clock_deadline(WAIT_SECS * 1000);
    pthread_mutex_lock(&request->lock);
    while (!request->taken &&
            pthread_cond_timedwait(&request->changed, &request->lock, &until) != ETIMEDOUT) {
    }
    bool early = request->early = !request->taken;
    pthread_mutex_unlock(&request->lock);
    if (!early)
        return;
    http_connection_enter(request->slot, HTTP_PHASE_WORK);
    send_head(request);
    if (request->whole && strcmp(request->method, "HEAD") != 0)
        send_all(request, request->reply, request->reply_size);
}

int http_early_write(struct http_request *request, const void *bytes, size_t size)
{
    char line[24];
    if (size == 0 || !request->early_chunks)
        return send_all(request, bytes, size);
    int r = send_all(request, line, (size_t)snprintf(line, sizeof line, "%zx\r\n", size));
    if (r == 0)
        r = send_all(request, bytes, size);
    return r == 0 ? send_all(request, "\r\n", 2) : r;
}

void http_early_end(struct http_request *request)
{
    if (!request->early)
        return;
    if (request->early_chunks)
        send_all(request, "0\r\n\r\n", 5);
    shutdown(request->socket_fd, request->early_broken ? SHUT_RDWR : SHUT_WR);
    request->ended_ns = clock_monotonic_ns();
    http_connection_enter(request->slot, HTTP_PHASE_BODY); // who does not close now is shut down in time
}
