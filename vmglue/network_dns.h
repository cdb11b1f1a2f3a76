// SPDX-License-Identifier: Apache-2.0
// The name server that guests see on 10.0.2.3: it passes queries on to the host's resolvers, by UDP and TCP.
//
// With a policy "full" everything is passed on. With an allow-list only allowed names are; others do not
// exist (NXDOMAIN, which programs give up on at once), IPv6 addresses are not given, and an answer that leads
// to an address no name may lead to (private, loopback, link-local: rebinding) is not given either, unless
// the list has that address. Before an answer is given, its addresses are admitted by the caller's
// function. What waits for a resolver has a thread of its own: at most a few of each guest, more queries are
// dropped, as networks do. Threads: any that is not a loop; calls on one guest take turns.
#pragma once

#include "vmglue/network_policy.h"

struct network_dns;

struct network_dns_config {
    const char
            *resolver; // "ADDRESS" or "ADDRESS:PORT"; NULL = those of /etc/resolv.conf, read for each query
    // port 0: every port. Called from threads of the name server, with a lock of its own held.
    int (*admit)(void *context, const char *guest, const uint32_t *addresses, unsigned count, uint16_t port,
            unsigned seconds);
    void *context;
};

// -EINVAL: the resolver is no address.
int network_dns_start(
        const struct network_dns_config *config, struct network_dns **ret_dns, struct error *err);
struct network_dns *network_dns_stop(struct network_dns *dns); // forgets every guest; accepts NULL
// Takes the two sockets (non-blocking; tcp listens) over, whether or not it succeeds; copies the policy.
int network_dns_serve(struct network_dns *dns, const char *guest, const struct network_policy *policy,
        int udp_fd, int tcp_fd);
// From its return on nothing is admitted by the old policy. -ENOENT.
int network_dns_change(struct network_dns *dns, const char *guest, const struct network_policy *policy);
// Ends what waits, closes the sockets. Unknown: nothing.
void network_dns_forget(struct network_dns *dns, const char *guest);
