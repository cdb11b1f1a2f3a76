// SPDX-License-Identifier: Apache-2.0
// Tells when a table of nftables was deleted, by whomever: `nft flush ruleset` takes every table of the host.
// Threads: the callback comes from a thread of the watch and may wait.
#pragma once

#include "blockstore/error.h"

struct network_watch;

// Also called when something may have been missed. -EPERM, -EPROTONOSUPPORT: this host has no such news.
int network_watch_start(
        const char *table, void (*deleted)(void *context), void *context, struct network_watch **ret_watch);
struct network_watch *network_watch_stop(struct network_watch *watch); // accepts NULL
