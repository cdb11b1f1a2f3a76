// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy_internal.h"

#include "vmglue/http_server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// A server that does not know Expect says nothing, and waits for the body.
enum { STALL_LOOKS = 8, LEAVE_LOOKS = 4 };

// Takes interim answers away; *ret_may: one of them says that the body may come. Whether what is there then
// is the answer, or its beginning.
static bool drop_interim(struct proxy *proxy, bool *ret_may)
{
    for (;;) {
        char *text = proxy->bytes + proxy->start;
        ssize_t head = proxy_head_size(text, proxy->size);
        if (head < 0 || (proxy->size > 12 && (text[9] != '1' || memcmp(text + 9, "101", 3) == 0)))
            return true;
        if (head <= 0)
            return false;
        *ret_may = *ret_may || (head > 12 && memcmp(text + 9, "100", 3) == 0);
        proxy->start += (size_t)head;
        proxy->size -= (size_t)head;
    }
}

// The guest has answered, or will say no more.
static bool has_answered(struct proxy *proxy, bool *ret_may)
{
    struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLIN};
    if (drop_interim(proxy, ret_may))
        return true;
    if (poll(&poll_fd, 1, 0) > 0 && proxy_guest_read(proxy) <= 0)
        return true;
    return drop_interim(proxy, ret_may);
}

int proxy_guest_send(struct proxy *proxy, const char *bytes, size_t size)
{
    int fd = proxy->connection.fd;
    unsigned stalled = 0;
    bool may = false;
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            stalled = 0;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        if (poll(&poll_fd, 1, PROXY_LOOK_MS) > 0)
            continue;
        if (proxy_is_left(proxy))
            return -ECANCELED;
        if (!proxy->upgraded && has_answered(proxy, &may) && ++stalled >= STALL_LOOKS)
            return 1;
    }
    return 0;
}

static int send_chunk(struct proxy *proxy, const char *bytes, size_t size)
{
    char line[24];
    int r = proxy_guest_send(proxy, line, (size_t)snprintf(line, sizeof line, "%zx\r\n", size));
    if (r == 0)
        r = proxy_guest_send(proxy, bytes, size);
    return r != 0 ? r : proxy_guest_send(proxy, "\r\n", 2);
}

int proxy_guest_send_body(struct proxy *proxy)
{
    bool chunked = proxy->asked->chunked;
    if (!chunked && proxy->asked->length <= 0)
        return 0;
    char *bytes = malloc(PROXY_HEAD_MAX);
    int r = bytes == NULL ? -ECANCELED : 0;
    unsigned quiet = 0;
    bool may = false;
    struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLRDHUP};
    while (r == 0) {
        ssize_t got = http_request_read_wait(proxy->request, bytes, PROXY_HEAD_MAX, PROXY_LOOK_MS);
        if (got == 0)
            break;
        quiet = got == -EAGAIN ? quiet : 0;
        if (got > 0)
            r = chunked ? send_chunk(proxy, bytes, (size_t)got) : proxy_guest_send(proxy, bytes, (size_t)got);
        else if (got != -EAGAIN || proxy_must_stop(proxy))
            r = -ECANCELED;
        else if (poll(&poll_fd, 1, 0) > 0 || (has_answered(proxy, &may) && ++quiet >= STALL_LOOKS))
            r = 1; // the guest has said all that it will, or both wait for each other
    }
    free(bytes);
    return r == 0 && chunked ? proxy_guest_send(proxy, "0\r\n\r\n", 5) : r;
}

ssize_t proxy_guest_read(struct proxy *proxy)
{
    if (proxy->size == 0)
        proxy->start = 0;
    if (proxy->start > 0 && proxy->start + proxy->size == PROXY_HEAD_MAX) {
        memmove(proxy->bytes, proxy->bytes + proxy->start, proxy->size);
        proxy->start = 0;
    }
    for (;;) {
        char *to = proxy->bytes + proxy->start + proxy->size;
        ssize_t got =
                recv(proxy->connection.fd, to, (size_t)(proxy->bytes + PROXY_HEAD_MAX - to), MSG_DONTWAIT);
        if (got == 0 && proxy_must_stop(proxy))
            return -ECANCELED; // it was shut down from our side
        if (got >= 0) {
            proxy->size += (size_t)got;
            return got;
        }
        if (errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLIN};
        if (poll(&poll_fd, 1, PROXY_LOOK_MS) == 0 && proxy_is_left(proxy))
            return -ECANCELED;
    }
}

int proxy_guest_ask_leave(struct proxy *proxy)
{
    bool may = false;
    if (!proxy->asked->expects)
        return 0;
    for (unsigned looks = 0; looks < LEAVE_LOOKS; looks++) {
        if (has_answered(proxy, &may))
            return 1;
        if (may)
            return 0;
        if (proxy_is_left(proxy))
            return -ECANCELED;
        struct pollfd poll_fd = {.fd = proxy->connection.fd, .events = POLLIN};
        poll(&poll_fd, 1, PROXY_LOOK_MS);
    }
    return 0;
}
