// SPDX-License-Identifier: Apache-2.0
// An HTTP server with a test's own routes on a unix socket, and clients that write what they like into it.
#pragma once

#include "vmglue/http_server.h"
#include "vmglue/unix_socket.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { HTTP_FIXTURE_HANG_MS = 120000 };

struct http_fixture {
    char path[64];
    int listen_fd;
    struct http_server *server; // a test may stop it and set it to NULL
};

// name: of the test, for the socket's. config.listen_fd is filled in.
static inline void http_fixture_start(
        struct http_fixture *fixture, const char *name, struct http_server_config config)
{
    struct error err = {0};
    snprintf(fixture->path, sizeof fixture->path, "/tmp/ramet-%s-%d.sock", name, (int)getpid());
    int r = unix_socket_listen(fixture->path, SOCK_STREAM | SOCK_NONBLOCK, 0600, &fixture->listen_fd, &err);
    config.listen_fd = fixture->listen_fd;
    if (r == 0)
        r = http_server_start(&config, &fixture->server, &err);
    if (r < 0)
        fail_msg("%s", err.text);
}

static inline void http_fixture_stop(struct http_fixture *fixture)
{
    fixture->server = http_server_stop(fixture->server);
    close(fixture->listen_fd);
    unlink(fixture->path);
}

static inline int http_fixture_connect(const struct http_fixture *fixture)
{
    int fd;
    assert_int_equal(unix_socket_connect(fixture->path, SOCK_STREAM, &fd), 0);
    return fd;
}

static inline void http_fixture_say(int fd, const char *text)
{
    assert_int_equal(unix_socket_send(fd, text, strlen(text), -1), 0);
}

// Until the other side closes, or `until` (NULL = nothing) has come. malloc'ed.
static inline char *http_fixture_hear(int fd, const char *until)
{
    size_t used = 0, capacity = 1 << 22;
    char *answer = malloc(capacity);
    for (answer[0] = '\0';;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&poll_fd, 1, HTTP_FIXTURE_HANG_MS), 1);
        ssize_t got = recv(fd, answer + used, capacity - used - 1, 0);
        used += got > 0 ? (size_t)got : 0;
        answer[used] = '\0';
        if (got <= 0 || (until != NULL && strstr(answer, until) != NULL))
            return answer;
    }
}
