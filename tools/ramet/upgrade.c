// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/upgrade.h"

#include "blockstore/fd.h"
#include "tools/ramet/client.h"
#include "tools/ramet/connection.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUEST_MAX = 16384, BODY_MAX = 8192, ANSWER_SECS = 30 };

// 1 byte, 0 at the end, -ETIMEDOUT.
static int take_byte(int fd, char *ret_byte)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    for (;;) {
        int ready = poll(&poll_fd, 1, ANSWER_SECS * 1000);
        if (ready == 0)
            return -ETIMEDOUT;
        ssize_t got = ready < 0 ? -1 : recv(fd, ret_byte, 1, 0);
        if (got >= 0)
            return (int)got;
        if (errno != EINTR)
            return -errno;
    }
}

static int read_head(int fd, char *head, size_t capacity)
{
    size_t size = 0;
    while (size < 4 || memcmp(head + size - 4, "\r\n\r\n", 4) != 0) {
        int r = size + 1 >= capacity ? -EMSGSIZE : take_byte(fd, head + size);
        if (r <= 0)
            return r < 0 ? r : -EPIPE;
        size++;
    }
    head[size] = '\0';
    return 0;
}

static int refused(int fd, const char *head, struct error *err)
{
    char body[BODY_MAX] = "";
    const char *length_at = strcasestr(head, "\r\nContent-Length:");
    size_t length = length_at == NULL ? 0 : strtoul(length_at + 17, NULL, 10), size = 0;
    while (size < length && size < sizeof body - 1 && take_byte(fd, body + size) > 0)
        size++;
    json_t *json = json_loadb(body, size, 0, NULL);
    const char *message = json_fields_get_text(json_object_get(json, "error"), "message");
    error_set(err, -EREMOTEIO, "%s", message[0] != '\0' ? message : "the daemon refused it; see its log");
    json_decref(json);
    return -EREMOTEIO;
}

int upgrade_open(const struct server *server, const char *path, const char *protocol, const char *lines,
        char *ret_head, size_t head_capacity, int *ret_fd, struct error *err)
{
    char request[REQUEST_MAX], credentials[SERVER_KEY_MAX + 64];
    int fd, r = connection_open(server, &fd, err);
    if (r < 0)
        return r;
    client_credentials(server, credentials, sizeof credentials);
    int size = snprintf(request, sizeof request,
            "GET %s%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s%s\r\n", server->prefix,
            path, server->host[0] != '\0' ? server->host : "ramet", protocol, credentials, lines);
    if ((size_t)size >= sizeof request)
        r = error_set(err, -EMSGSIZE, "the command is too long for a terminal; put it into a script");
    else if (fd_send_all(fd, request, (size_t)size) < 0)
        r = error_set(err, -EPIPE, "the daemon broke the connection off; see its log");
    else if ((r = read_head(fd, ret_head, head_capacity)) < 0)
        error_set(err, r,
                r == -ETIMEDOUT
                        ? "the daemon does not answer; is its process stopped? (its log and ps say more)"
                        : "the daemon broke the connection off; see its log");
    else if (strncmp(ret_head, "HTTP/1.1 101", 12) != 0)
        r = refused(fd, ret_head, err);
    if (r == 0)
        *ret_fd = fd;
    else
        close(fd);
    return r;
}
