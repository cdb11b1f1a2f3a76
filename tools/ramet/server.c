// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "blockstore/fd.h"

enum { PORT_HTTP = 80, PORT_HTTPS = 443 };

void server_of_run_dir(const char *run_dir, struct server *ret_server)
{
    struct server server = {.kind = SERVER_UNIX};
    snprintf(server.socket_path, sizeof server.socket_path, "%s/api.sock", run_dir);
    snprintf(server.name, sizeof server.name, "%s", server.socket_path);
    *ret_server = server;
}

static int bad(struct error *err, const char *url, const char *why)
{
    return error_set(err, -EINVAL,
            "\"%.200s\" is no address of a daemon (%s); write http://HOST:PORT, https://HOST:PORT or "
            "unix:///PATH/api.sock",
            url, why);
}

// "HOST", "HOST:PORT", "[ADDRESS]:PORT"
static bool parse_authority(const char *text, size_t size, struct server *server)
{
    const char *stop = text + size, *host = text, *host_end, *port = NULL;
    if (size > 0 && *text == '[') {
        host = text + 1;
        host_end = memchr(host, ']', (size_t)(stop - host));
        if (host_end == NULL || (host_end + 1 < stop && host_end[1] != ':'))
            return false;
        port = host_end + 1 < stop ? host_end + 2 : NULL;
    } else {
        host_end = memchr(text, ':', size);
        port = host_end == NULL ? NULL : host_end + 1;
        host_end = host_end == NULL ? stop : host_end;
    }
    if (host_end == host || (size_t)(host_end - host) >= sizeof server->host)
        return false;
    for (const char *c = host; c < host_end; c++)
        if (*c <= ' ' || *c == '@' || *c == '\\' || *c == 127)
            return false;
    memcpy(server->host, host, (size_t)(host_end - host));
    server->host[host_end - host] = '\0';
    if (port == NULL)
        return true;
    char *end;
    unsigned long number = strtoul(port, &end, 10);
    server->port = (unsigned)number;
    return port < stop && *port >= '0' && *port <= '9' && end == stop && number >= 1 && number <= 65535;
}

static int parse_unix(const char *url, struct server *server, struct error *err)
{
    const char *path = url + strlen("unix://");
    if (path[0] != '/' || strlen(path) >= sizeof server->socket_path)
        return bad(err, url, "after unix:// comes the socket's whole path");
    server->kind = SERVER_UNIX;
    snprintf(server->socket_path, sizeof server->socket_path, "%s", path);
    snprintf(server->name, sizeof server->name, "%s", path);
    return 0;
}

int server_parse(const char *url, struct server *ret_server, struct error *err)
{
    struct server server = {.kind = SERVER_TCP, .port = PORT_HTTP};
    const char *rest;
    if (strncasecmp(url, "unix://", 7) == 0) {
        int r = parse_unix(url, &server, err);
        if (r == 0)
            *ret_server = server;
        return r;
    }
    if (strncasecmp(url, "http://", 7) == 0) {
        rest = url + 7;
    } else if (strncasecmp(url, "https://", 8) == 0) {
        server.kind = SERVER_TLS;
        server.port = PORT_HTTPS;
        rest = url + 8;
    } else {
        return bad(err, url, "it does not begin with http://, https:// or unix://");
    }
    size_t size = strcspn(rest, "/?#");
    if (memchr(rest, '@', size) != NULL)
        return error_set(err, -EINVAL,
                "an address with a password in it shows in process lists; put the key into RAMET_API_KEY or "
                "a --key-file");
    if (!parse_authority(rest, size, &server))
        return bad(err, url, "its host or port is none");
    const char *path = rest + size;
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/')
        length--;
    // SDKs and other clients write the version into their base address, too.
    if (length >= 3 && strncmp(path + length - 3, "/v1", 3) == 0)
        length -= 3;
    if (strpbrk(path, "?# \r\n") != NULL || length >= sizeof server.prefix)
        return bad(err, url, "behind the port only a path may come");
    memcpy(server.prefix, path, length);
    snprintf(server.name, sizeof server.name, "%.*s%.*s", (int)(rest + size - url), url, (int)length, path);
    *ret_server = server;
    return 0;
}

int server_set_key(struct server *server, const char *key, const char *from, struct error *err)
{
    size_t length = strlen(key);
    while (length > 0 && (key[length - 1] == '\n' || key[length - 1] == '\r' || key[length - 1] == ' '))
        length--;
    for (size_t i = 0; i < length; i++)
        if (key[i] <= ' ' || key[i] >= 127)
            return error_set(err, -EINVAL, "what %s holds is no key: a key is one word of ASCII", from);
    if (length == 0 || length >= sizeof server->key)
        return error_set(err, -EINVAL,
                "%s holds no key (`ramet key create NAME` on the daemon's host makes one)", from);
    memcpy(server->key, key, length);
    server->key[length] = '\0';
    return 0;
}

int server_read_key(struct server *server, const char *file, struct error *err)
{
    char text[SERVER_KEY_MAX + 8];
    int r = (int)fd_read_text(AT_FDCWD, file, text, sizeof text);
    if (r < 0)
        return error_set(err, r, "the key file %s cannot be read: %s", file, strerror(-r));
    return server_set_key(server, text, file, err);
}

bool server_is_loopback(const struct server *server)
{
    struct in_addr four;
    return server->kind == SERVER_UNIX || strcasecmp(server->host, "localhost") == 0 ||
           (inet_pton(AF_INET, server->host, &four) == 1 && ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET) ||
           strcmp(server->host, "::1") == 0;
}
