// SPDX-License-Identifier: Apache-2.0
// A port of this host's loopback that leads to a port of a sandbox.
#include "tools/ramet/cli.h"
#include "vmglue/json_fields.h"
#include "vmglue/socket_pump.h"
#include "vmglue/unix_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 16384, PENDING = 64 };

struct forward {
    const char *run_dir;
    char *request;
};

struct one {
    const struct forward *forward;
    int fd;
};

static bool read_head(int fd, char *head, size_t capacity)
{
    size_t size = 0;
    while (size < 4 || memcmp(head + size - 4, "\r\n\r\n", 4) != 0) {
        if (size + 1 >= capacity || recv(fd, head + size, 1, 0) != 1)
            return false;
        size++;
    }
    head[size] = '\0';
    return true;
}

// The sandbox's end, or -1 with a sentence on standard error.
static int open_guest(const struct forward *forward)
{
    char path[PATH_MAX], head[HEAD_MAX], body[4096] = "";
    int fd;
    snprintf(path, sizeof path, "%s/api.sock", forward->run_dir);
    if (unix_socket_connect(path, SOCK_STREAM, &fd) < 0) {
        cli_note("ramet forward: no daemon answers at %s", path);
        return -1;
    }
    size_t size = strlen(forward->request);
    if (send(fd, forward->request, size, MSG_NOSIGNAL) == (ssize_t)size && read_head(fd, head, sizeof head)) {
        if (strncmp(head, "HTTP/1.1 101", 12) == 0)
            return fd;
        ssize_t got = recv(fd, body, sizeof body - 1, 0);
        body[got > 0 ? got : 0] = '\0';
        json_t *json = json_loads(body, 0, NULL);
        cli_note("ramet forward: %s", json_fields_get_text(json_object_get(json, "error"), "message"));
        json_decref(json);
    }
    close(fd);
    return -1;
}

static void *serve_one(void *argument)
{
    struct one *one = argument;
    int guest = open_guest(one->forward);
    if (guest >= 0) {
        socket_pump_run(one->fd, guest, NULL, 0, NULL, NULL);
        close(guest);
    }
    close(one->fd);
    free(one);
    return NULL;
}

static int listen_on(const struct verb *verb, unsigned port, unsigned *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof address;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, PENDING) < 0 ||
            getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        cli_fail(verb, "port %u of this host cannot be had: %s", port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

static bool parse_port(const char *text, char **ret_end, unsigned lowest, unsigned *ret_port)
{
    unsigned long port = strtoul(text, ret_end, 10);
    *ret_port = (unsigned)port;
    return text[0] >= '0' && text[0] <= '9' && port >= lowest && port <= 65535;
}

static int run(struct cli *cli, const struct verb *verb, char **argv)
{
    struct args args;
    unsigned host_port, guest_port;
    char *end;
    int status;
    if (!cli_parse(cli, verb, argv, NULL, 2, 2, 0, &args, &status))
        return status;
    bool good = parse_port(args.items[1], &end, 0, &host_port);
    if (good && *end == '\0')
        guest_port = host_port;
    else
        good = good && *end == ':' && parse_port(end + 1, &end, 1, &guest_port) && *end == '\0';
    if (!good || guest_port == 0)
        return cli_fail_usage(verb, "\"%s\" is no HOSTPORT:GUESTPORT such as 8080:80 (0:80 takes a free one)",
                args.items[1]);
    char *path = cli_path("/v1/sandboxes/", args.items[0], "");
    json_t *json = cli_call(cli, verb, "GET", path, NULL);
    struct forward forward = {.run_dir = cli_run_dir(cli)};
    if (asprintf(&forward.request,
                "GET %s/ports/%u HTTP/1.1\r\nHost: ramet\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
                path, guest_port) < 0)
        abort();
    free(path);
    int listener = json == NULL ? -1 : listen_on(verb, host_port, &host_port);
    json_decref(json);
    if (listener < 0) {
        free(forward.request);
        return CLI_FAILED;
    }
    printf("127.0.0.1:%u leads to port %u of %s; end this with Ctrl-C\n", host_port, guest_port,
            args.items[0]);
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        struct one *one = calloc(1, sizeof *one);
        if (one == NULL)
            abort();
        one->forward = &forward;
        one->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (one->fd >= 0 && pthread_create(&thread, NULL, serve_one, one) == 0) {
            pthread_detach(thread);
            continue;
        }
        if (one->fd >= 0)
            close(one->fd);
        free(one);
    }
}

const struct verb verb_forward = {"forward", "forward NAME HOSTPORT:GUESTPORT",
        "Lead a port of this host's 127.0.0.1 to a port of a sandbox",
        "Goes on until it is ended. HOSTPORT 0 takes a free one; PORT alone is PORT:PORT. It works with "
        "every network\n"
        "policy, `none` too: the bytes go through the daemon.\n",
        run};
