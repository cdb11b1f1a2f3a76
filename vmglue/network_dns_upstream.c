// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_dns_upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { ATTEMPT_MS = 3000, ROUNDS = 2 };

// ---- who is asked ----

static int add_resolver(const char *host, const char *port, struct network_dns_resolvers *resolvers)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM}, *found;
    if (resolvers->count == NETWORK_DNS_RESOLVERS_MAX || getaddrinfo(host, port, &hints, &found) != 0)
        return -EINVAL;
    memcpy(&resolvers->addresses[resolvers->count], found->ai_addr, found->ai_addrlen);
    resolvers->sizes[resolvers->count++] = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

int network_dns_upstream_parse(const char *text, struct network_dns_resolvers *ret_resolvers)
{
    struct network_dns_resolvers resolvers = {0};
    char host[80];
    const char *colon = strrchr(text, ':'), *port = "53";
    size_t size = strlen(text);
    if (colon != NULL && strchr(text, ':') == colon) { // more than one: an IPv6 address alone
        size = (size_t)(colon - text);
        port = colon + 1;
    }
    if (size >= sizeof host || *port == '\0')
        return -EINVAL;
    snprintf(host, sizeof host, "%.*s", (int)size, text);
    int r = add_resolver(host, port, &resolvers);
    if (r == 0)
        *ret_resolvers = resolvers;
    return r;
}

void network_dns_upstream_read(const char *path, struct network_dns_resolvers *ret_resolvers)
{
    struct network_dns_resolvers resolvers = {0};
    char line[512], word[80];
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " nameserver %79s", word) == 1)
            add_resolver(word, "53", &resolvers);
    if (file != NULL)
        fclose(file);
    if (resolvers.count == 0)
        add_resolver("127.0.0.1", "53", &resolvers);
    *ret_resolvers = resolvers;
}

// ---- waiting ----

int network_dns_upstream_wait(int fd, short events, int cancel_fd, int64_t until_ms)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = fd, .events = events}, {.fd = cancel_fd, .events = POLLIN}};
        int64_t left = until_ms - (int64_t)clock_monotonic_ms();
        int got = poll(fds, 2, left > 0 ? (int)left : 0);
        if (got < 0 && errno != EINTR)
            return -errno;
        if (got > 0 && fds[1].revents != 0)
            return -ECANCELED;
        if (got > 0)
            return 0;
        if (got == 0 && left <= 0)
            return -ETIMEDOUT;
    }
}

struct exchange {
    int fd, cancel_fd;
    int64_t until_ms;
};

static int send_all(const struct exchange *exchange, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(exchange->fd, bytes, size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int r = network_dns_upstream_wait(exchange->fd, POLLOUT, exchange->cancel_fd, exchange->until_ms);
        if (r < 0)
            return r;
    }
    return 0;
}

static int receive_all(const struct exchange *exchange, uint8_t *bytes, size_t size)
{
    while (size > 0) {
        int r = network_dns_upstream_wait(exchange->fd, POLLIN, exchange->cancel_fd, exchange->until_ms);
        ssize_t got = r < 0 ? 0 : recv(exchange->fd, bytes, size, 0);
        if (r < 0)
            return r;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return got == 0 ? -ECONNRESET : -errno;
        if (got > 0) {
            bytes += got;
            size -= (size_t)got;
        }
    }
    return 0;
}

// ---- one question to one resolver ----

// Anybody may send to our port: what is not the answer to this question is passed over.
static int ask_datagram(const struct exchange *exchange, const uint8_t *query, size_t size,
        const struct network_dns_question *sent, uint8_t *reply, size_t *ret_size,
        struct network_dns_answer *ret_answer)
{
    if (send(exchange->fd, query, size, MSG_NOSIGNAL) < 0)
        return -errno;
    for (;;) {
        int r = network_dns_upstream_wait(exchange->fd, POLLIN, exchange->cancel_fd, exchange->until_ms);
        if (r < 0)
            return r;
        ssize_t got = recv(exchange->fd, reply, NETWORK_DNS_MESSAGE_MAX, 0);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (got > 0 && network_dns_message_answer(reply, (size_t)got, sent, ret_answer) == 0) {
            *ret_size = (size_t)got;
            return 0;
        }
    }
}

static int ask_stream(const struct exchange *exchange, const uint8_t *query, size_t size,
        const struct network_dns_question *sent, uint8_t *reply, size_t *ret_size,
        struct network_dns_answer *ret_answer)
{
    uint8_t head[2] = {(uint8_t)(size >> 8), (uint8_t)size};
    int error = 0;
    socklen_t error_size = sizeof error;
    int r = network_dns_upstream_wait(exchange->fd, POLLOUT, exchange->cancel_fd, exchange->until_ms);
    if (r == 0 && getsockopt(exchange->fd, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error != 0)
        r = -error;
    if (r == 0)
        r = send_all(exchange, head, sizeof head);
    if (r == 0)
        r = send_all(exchange, query, size);
    if (r == 0)
        r = receive_all(exchange, head, sizeof head);
    size_t answer_size = (size_t)head[0] << 8 | head[1];
    if (r == 0)
        r = receive_all(exchange, reply, answer_size);
    if (r == 0)
        r = network_dns_message_answer(reply, answer_size, sent, ret_answer);
    if (r == 0)
        *ret_size = answer_size;
    return r;
}

static int ask_one(const struct sockaddr_storage *address, socklen_t address_size, bool stream, int cancel_fd,
        const uint8_t *query, size_t size, const struct network_dns_question *sent, uint8_t *reply,
        size_t *ret_size, struct network_dns_answer *ret_answer)
{
    int type = (stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK;
    struct exchange exchange = {.fd = socket(address->ss_family, type, 0),
            .cancel_fd = cancel_fd,
            .until_ms = (int64_t)clock_monotonic_ms() + ATTEMPT_MS};
    if (exchange.fd < 0)
        return -errno;
    int r = connect(exchange.fd, (const struct sockaddr *)address, address_size) < 0 ? -errno : 0;
    if (r == -EINPROGRESS)
        r = 0;
    if (r == 0)
        r = (stream ? ask_stream : ask_datagram)(&exchange, query, size, sent, reply, ret_size, ret_answer);
    close(exchange.fd);
    return r;
}

int network_dns_upstream_ask(const struct network_dns_resolvers *resolvers, bool stream, int cancel_fd,
        const uint8_t *query, size_t size, const struct network_dns_question *question, uint8_t *reply,
        size_t *ret_size, struct network_dns_answer *ret_answer)
{
    struct network_dns_question sent = *question;
    uint8_t *copy = malloc(size);
    int r = copy == NULL ? -ENOMEM : -ETIMEDOUT;
    for (unsigned i = 0; copy != NULL && r < 0 && r != -ECANCELED && i < ROUNDS * resolvers->count; i++) {
        unsigned which = i % resolvers->count;
        // Guests must not be able to guess what an answer to the host would have to look like.
        if (getrandom(&sent.id, sizeof sent.id, 0) != sizeof sent.id)
            continue;
        memcpy(copy, query, size);
        copy[0] = (uint8_t)(sent.id >> 8);
        copy[1] = (uint8_t)sent.id;
        r = ask_one(&resolvers->addresses[which], resolvers->sizes[which], stream, cancel_fd, copy, size,
                &sent, reply, ret_size, ret_answer);
    }
    free(copy);
    if (r == 0) {
        reply[0] = (uint8_t)(question->id >> 8);
        reply[1] = (uint8_t)question->id;
    }
    return r;
}
