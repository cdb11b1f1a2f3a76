// SPDX-License-Identifier: Apache-2.0
// The networks of a daemon's sandboxes: namespaces, ways out, rules and names, each found again by the
// sandbox's id. NETWORK.md says how a packet travels.
//
// What a sandbox has outlives the daemon with its VMM, which holds the tap: rules and the veth pair stay, the
// name server's sockets do not and are opened again at adoption. Threads: any that is not a loop; calls wait
// for the kernel (milliseconds). Changes of one sandbox's network must not overlap. Errors: -EPERM,
// -EOPNOTSUPP: this host cannot, with words on what is missing; -EAGAIN: no address is free; -EADDRINUSE: the
// range is the host's own.
#pragma once

#include "vmglue/network_policy.h"

struct network;

struct network_config {
    const char *tag;       // of this store: "ramet-<store uuid>"
    uint32_t range;        // addresses of the sandboxes' ways out, host byte order
    unsigned prefix;       // 8 to 24
    bool private_networks; // "full" reaches them
    const char *resolver;  // NULL = as in /etc/resolv.conf
    void (*log)(void *context, const char *message);
    void *context;
};
#define NETWORK_DEFAULT_RANGE "10.201.0.0/16"

// -EINVAL: the range or the resolver is none. A host that cannot give sandboxes a network is no failure.
int network_open(const struct network_config *config, struct network **ret_network, struct error *err);
struct network *network_close(struct network *network); // leaves what runs alone; accepts NULL
// Whether sandboxes can have a cable at all, or (outside) one that leads somewhere. Tried once, for real.
int network_able(struct network *network, bool outside, struct error *err);

// A new namespace with the policy. *ret_tap_fd is the caller's, for the VMM: with it closed everywhere the
// network is gone, but for what network_detach takes away.
int network_attach(struct network *network, const char *id, const struct network_policy *policy,
        int *ret_tap_fd, struct error *err);
// One that an earlier daemon attached, by its tap (not kept).
int network_adopt(struct network *network, const char *id, int tap_fd, const struct network_policy *policy,
        struct error *err);
// -EBUSY: it has no cable (it was started without).
int network_change(
        struct network *network, const char *id, const struct network_policy *policy, struct error *err);
// What the guest received and sent through its way out since that is there. -ENOENT: it has none.
int network_counters(struct network *network, const char *id, uint64_t *ret_received, uint64_t *ret_sent);
// Takes away all that bears this id. Nothing there: nothing.
void network_detach(struct network *network, const char *id);
// Detaches what is of this store and not wanted; from then on the last one that leaves takes the table along.
void network_sweep(struct network *network, bool (*wanted)(void *context, const char *id), void *context);
