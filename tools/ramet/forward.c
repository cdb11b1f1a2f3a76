// SPDX-License-Identifier: Apache-2.0
// A port of this host's loopback that leads to a port of a sandbox.
#include "tools/ramet/cli.h"
#include "tools/ramet/upgrade.h"
#include "vmglue/json_fields.h"
#include "vmglue/socket_pump.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 16384, PENDING = 64, REST_NS = 100000000 };

struct forward {
    const struct server *server;
    char *path;
};

struct one {
    const struct forward *forward;
    int fd;
};

// The sandbox's end, or -1 with a sentence on standard error.
static int open_guest(const struct forward *forward)
{
    char head[HEAD_MAX];
    struct error err;
    int fd;
    if (upgrade_open(forward->server, forward->path, "tcp", "", head, sizeof head, &fd, &err) == 0)
        return fd;
    cli_note("ramet forward: %s", err.text);
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
        cli_fail(verb,
                "port %u of this host cannot be had: %s; choose another one, 0:GUESTPORT takes a free one",
                port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

// Nothing can be taken at the moment, of descriptors for the most part: those who wait stay where they are
// until others have ended.
static void rest(int problem)
{
    static bool said;
    if (problem == EINTR || problem == ECONNABORTED)
        return;
    if (!said)
        cli_note("ramet forward: no more connections can be taken (%s); the next ones wait until some end",
                strerror(problem));
    said = true;
    nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

static bool parse_port(const char *text, char **ret_end, unsigned lowest, unsigned *ret_port)
{
    unsigned long port = strtoul(text, ret_end, 10);
    *ret_port = (unsigned)port;
    return text[0] >= '0' && text[0] <= '9' && port >= lowest && port <= 65535;
}

static void say_where(const struct cli *cli, const char *sandbox, unsigned host_port, unsigned guest_port)
{
    json_t *json = json_pack("{s:s, s:i, s:s, s:i}", "address", "127.0.0.1", "host_port", (int)host_port,
            "sandbox", sandbox, "guest_port", (int)guest_port);
    if (cli->json)
        cli_print_json(json);
    else
        printf("127.0.0.1:%u leads to port %u of %s; end this with Ctrl-C\n", host_port, guest_port, sandbox);
    fflush(stdout);
    json_decref(json);
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
    struct forward forward = {.server = cli_server(cli)};
    if (asprintf(&forward.path, "%s/ports/%u", path, guest_port) < 0)
        abort();
    free(path);
    int listener = json == NULL ? -1 : listen_on(verb, host_port, &host_port);
    json_decref(json);
    if (listener < 0) {
        free(forward.path);
        return CLI_FAILED;
    }
    say_where(cli, args.items[0], host_port, guest_port);
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
        if (one->fd < 0)
            rest(errno);
        else
            close(one->fd);
        free(one);
    }
}

const struct verb verb_forward = {"forward", "forward NAME HOSTPORT:GUESTPORT",
        "Lead a port of this host's 127.0.0.1 to a port of a sandbox",
        "Goes on until it is ended. HOSTPORT 0 takes a free one; PORT alone is PORT:PORT. It works with "
        "every network\n"
        "policy, `none` too: the bytes go through the daemon.\n",
        run, .takes = "s."};
