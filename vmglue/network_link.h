// SPDX-License-Identifier: Apache-2.0
// A sandbox's network namespace, the tap in it and the veth pair out of it, by the kernel's own interfaces.
//
// The namespace has no name: it lives as long as a descriptor of it, of a socket or of the tap does. With the
// VMM that holds the tap it vanishes, and the veth pair with it. In it stand tap0 with 10.0.2.2/24 and
// 10.0.2.3 (the guest has 10.0.2.15) and, when it leads anywhere, up0: one address of the host's range, with
// the host's end of the pair as its way out. IPv6 is off. Threads: any that is not a loop. Errors: -EPERM
// not root; -EOPNOTSUPP the kernel lacks something, with words on what to load.
#pragma once

#include "blockstore/error.h"

#include <stdint.h>

#define NETWORK_LINK_TAP "tap0"
#define NETWORK_LINK_UP "up0"
enum { NETWORK_LINK_GUEST_GATEWAY = 0x0a000202, NETWORK_LINK_GUEST_DNS = 0x0a000203 };

// Runs work() in a thread that has entered the namespace; -1 = a new one. Returns what it returned.
int network_link_run(int netns_fd, int (*work)(void *context), void *context);
// A new namespace with its tap.
int network_link_create(int *ret_netns_fd, int *ret_tap_fd, struct error *err);
// The namespace that a tap stands in.
int network_link_namespace(int tap_fd, int *ret_netns_fd);

struct network_link_pair {
    const char *name;  // of the host's end
    const char *alias; // marks it as whose it is
    uint32_t range;    // host byte order; its first address is every pair's gateway
    unsigned prefix;   // 8 to 24
    unsigned first;    // where to look for a free address
    uint32_t *ret_address;
};
// -EEXIST: there is an interface of that name. -EAGAIN: no address is free.
int network_link_connect(int netns_fd, const struct network_link_pair *pair, struct error *err);
// The address of up0; -ENODEV when it leads nowhere.
int network_link_address(int netns_fd, uint32_t *ret_address);
int network_link_remove(const char *name); // the host's end, and so both; -ENODEV
// Calls each() with every interface of the calling thread's namespace that has an alias.
int network_link_list(void (*each)(void *context, const char *name, const char *alias), void *context);
// A socket of the namespace bound to 10.0.2.3:53. type: SOCK_DGRAM, or SOCK_STREAM, which listens.
int network_link_dns_socket(int netns_fd, int type, int *ret_fd);
