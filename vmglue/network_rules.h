// SPDX-License-Identifier: Apache-2.0
// The rules of sandboxes' networks as nftables' text. One table on the host for each store; in it, for each
// sandbox that leads anywhere, a chain for what it sends and one for what it gets, found by the name of its
// interface, and sets of what an allow-list allows. Every text may be run again.
//
// A packet out of a sandbox comes by `input` (to the host itself: refused, whatever the address) or by
// `forward` and its chain: wrong source: dropped; addresses nobody reaches, other sandboxes: refused; then
// the policy. A connection that was allowed bears the chain's mark; a new policy has a new mark, so that
// connections it does not allow end with it. Threads: any; no state. Texts are malloc'ed, NULL = no memory.
#pragma once

#include "vmglue/network_policy.h"

enum { NETWORK_RULES_NAME_SIZE = 16, NETWORK_RULES_TABLE_SIZE = 64 };

struct network_rules_host {
    char table[NETWORK_RULES_TABLE_SIZE];
    uint32_t range; // of all sandboxes of this host
    unsigned prefix;
    bool private_networks; // "full" reaches them
};

struct network_rules_guest {
    char name[NETWORK_RULES_NAME_SIZE]; // of the host's interface
    uint32_t address;                   // of what comes out of it
    uint32_t mark;
};

// The table without any sandbox in it.
char *network_rules_base(const struct network_rules_host *host);
// Nothing comes out of the interface or gets to it, until its sandbox has a policy. For before it is there.
char *network_rules_close(const struct network_rules_host *host, const char *name);
// A sandbox with its policy (FULL or ALLOW), whatever it had before.
char *network_rules_guest(const struct network_rules_host *host, const struct network_rules_guest *guest,
        const struct network_policy *policy);
char *network_rules_remove(const struct network_rules_host *host, const char *name);
// Addresses that an allowed name led to, for `seconds`; port 0 = every port.
char *network_rules_admit(const struct network_rules_host *host, const char *name, const uint32_t *addresses,
        unsigned count, uint16_t port, unsigned seconds);
// Inside a sandbox's own namespace: what leaves has the address of its way out.
const char *network_rules_inside(void);
const char *network_rules_inside_remove(void);
