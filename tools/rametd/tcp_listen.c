// SPDX-License-Identifier: Apache-2.0
#include "tools/rametd/tcp_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024, PORT_MAX = 65535 };

// Splits into a numeric address and a port.
static int split(const char *text, char *ret_host, size_t capacity, const char **ret_port, struct error *err)
{
    const char *colon = strrchr(text, ':'), *host = text;
    size_t size = colon == NULL ? 0 : (size_t)(colon - text);
    *ret_port = colon == NULL ? text : colon + 1;
    if (size >= 2 && text[0] == '[' && text[size - 1] == ']') {
        host++;
        size -= 2;
    } else if (colon != NULL && memchr(text, ':', size) != NULL) {
        return error_set(
                err, -EINVAL, "--listen %s: write an IPv6 address in brackets, as in [::1]:7480", text);
    }
    char *end;
    unsigned long port = strtoul(*ret_port, &end, 10);
    if ((*ret_port)[0] < '0' || (*ret_port)[0] > '9' || *end != '\0' || port > PORT_MAX || size >= capacity)
        return error_set(err, -EINVAL, "--listen %s is not PORT, ADDRESS:PORT or [ADDRESS]:PORT", text);
    bool named = size == 0 || (size == 9 && strncmp(host, "localhost", 9) == 0);
    snprintf(ret_host, capacity, "%.*s", named ? 9 : (int)size, named ? "127.0.0.1" : host);
    return 0;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static int name_of(int fd, char **ret_address)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[INET6_ADDRSTRLEN], port[8];
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return -errno;
    if (getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return -EINVAL;
    bool six = address.ss_family == AF_INET6;
    return asprintf(ret_address, "%s%s%s:%s", six ? "[" : "", host, six ? "]" : "", port) < 0 ? -ENOMEM : 0;
}

int tcp_listen_bind(const char *text, int *ret_fd, char **ret_address, bool *ret_loopback, struct error *err)
{
    char host[64];
    const char *port;
    int r = split(text, host, sizeof host, &port, err), one = 1;
    if (r < 0)
        return r;
    struct addrinfo hints = {
            .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return error_set(
                err, -EINVAL, "--listen %s: \"%s\" is no IP address; names are not looked up", text, host);
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
            bind(fd, found->ai_addr, found->ai_addrlen) < 0)
        r = error_set(err, -errno, "--listen %s: %s", text,
                errno == EADDRINUSE      ? "another program listens there; end it or choose another port"
                : errno == EADDRNOTAVAIL ? "no interface of this host has that address"
                : errno == EACCES        ? "ports below 1024 need more rights; choose another port"
                                         : strerror(errno));
    bool loopback = is_loopback(found->ai_addr);
    freeaddrinfo(found);
    if (r == 0 && name_of(fd, ret_address) < 0)
        r = error_set(err, -ENOMEM, "--listen %s: no memory", text);
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        return r;
    }
    *ret_fd = fd;
    *ret_loopback = loopback;
    return 0;
}

int tcp_listen_open(int fd, struct error *err)
{
    return listen(fd, BACKLOG) < 0 ? error_set(err, -errno, "--listen: %s", strerror(errno)) : 0;
}
