// SPDX-License-Identifier: Apache-2.0
// What a sandbox's network may reach: "full", "none" or {"allow": [...]}.
//
// An entry of an allow-list is an IPv4 address or network, a name, or "*." and a name (what is below it, not
// itself), each with ":PORT" behind it or not (then every port; a port means TCP and UDP). Names are kept in
// lower case without a dot at the end. Threads: any; no state. Ownership: the entries are malloc'ed.
#pragma once

#include "blockstore/error.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stdint.h>

enum network_kind { NETWORK_NONE, NETWORK_FULL, NETWORK_ALLOW };
enum { NETWORK_ENTRIES_MAX = 200, NETWORK_NAME_MAX = 253 };

struct network_entry {
    bool is_name, below; // below: "*.name"
    char name[NETWORK_NAME_MAX + 1];
    uint32_t address; // host byte order
    unsigned prefix;
    uint16_t port; // 0 = every port
};

struct network_policy {
    enum network_kind kind;
    unsigned count;
    struct network_entry *entries;
};

// -EINVAL with *err naming the field and the entry. NULL and null are not policies.
int network_policy_parse(const json_t *json, struct network_policy *ret_policy, struct error *err);
int network_policy_copy(const struct network_policy *policy, struct network_policy *ret_copy); // -ENOMEM
void network_policy_free(struct network_policy *policy);
// Tells policies apart; not the same for the same policy written in another order.
uint64_t network_policy_digest(const struct network_policy *policy);
// A policy out of a record of ours, by whatever version: a new reference; NULL when it is none.
json_t *network_policy_stored(const json_t *stored);
// "10.1.2.3", "10.0.0.0/8" (address in host byte order): -EINVAL.
int network_policy_range(const char *text, uint32_t *ret_address, unsigned *ret_prefix);
// Whether `name` (lower case, no dot at the end) is allowed by some entry. FULL allows all, NONE nothing.
bool network_policy_allows_name(const struct network_policy *policy, const char *name);
// Whether an entry's name covers it.
bool network_policy_entry_covers(const struct network_entry *entry, const char *name);
// Whether the address is allowed by an entry that gives addresses.
bool network_policy_allows_address(const struct network_policy *policy, uint32_t address);

// Addresses that no name may lead a guest to, and "full" does not reach unless the host allows it: private
// and carriers' networks.
bool network_policy_is_private(uint32_t address);
// Addresses that no guest ever reaches: loopback, link-local (the cloud's metadata service), multicast, the
// guests' own network, reserved ones.
bool network_policy_is_never(uint32_t address);
