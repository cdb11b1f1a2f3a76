// SPDX-License-Identifier: Apache-2.0
// Asks the host's resolvers one question and waits for the answer. Threads: any that may wait.
#pragma once

#include "vmglue/network_dns_message.h"

#include <sys/socket.h>

enum { NETWORK_DNS_RESOLVERS_MAX = 3, NETWORK_DNS_MESSAGE_MAX = 65535 };

struct network_dns_resolvers {
    struct sockaddr_storage addresses[NETWORK_DNS_RESOLVERS_MAX];
    socklen_t sizes[NETWORK_DNS_RESOLVERS_MAX];
    unsigned count;
};

int network_dns_upstream_parse(const char *text, struct network_dns_resolvers *ret_resolvers); // -EINVAL
// Those of the file, in its order; none: this host itself, as the C library does.
void network_dns_upstream_read(const char *path, struct network_dns_resolvers *ret_resolvers);
// Waits for fd; -ETIMEDOUT, or -ECANCELED when cancel_fd becomes readable.
int network_dns_upstream_wait(int fd, short events, int cancel_fd, int64_t until_ms);
// The query with a new id goes to one resolver after the other until one answers it; *ret_size bytes of
// `reply` (NETWORK_DNS_MESSAGE_MAX) with the query's own id. stream: by TCP. -ETIMEDOUT, -ECANCELED.
int network_dns_upstream_ask(const struct network_dns_resolvers *resolvers, bool stream, int cancel_fd,
        const uint8_t *query, size_t size, const struct network_dns_question *question, uint8_t *reply,
        size_t *ret_size, struct network_dns_answer *ret_answer);
