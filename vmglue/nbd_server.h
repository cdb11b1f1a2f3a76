// SPDX-License-Identifier: Apache-2.0
// NBD server (fixed newstyle) on the engine's loops, over unix stream sockets.
//
// Threads: start and stop from any thread that is not a loop. Connections are served on the loop of the volume they
// chose (accepted on `loop`, handed over after negotiation). The listening descriptor is the caller's: it stays open
// after nbd_server_stop (the keeper holds a second copy).
#pragma once

#include "snapshot/volume.h"

struct nbd_server;

struct nbd_export {
    bool found;
    bool read_only;
    struct volume_id volume;     // or
    struct base_id base;         // a snapshot, read-only
    uint32_t resize_generation;  // informational
};

struct nbd_server_config {
    struct store *store;
    struct loop *loop;           // accepts and negotiates here
    int listen_fd;
    unsigned max_connections;    // 0 = 256
    // Which thing a name means (an empty name is the default export). Called on the loop: must not block.
    void (*resolve)(void *context, const char *name, struct nbd_export *ret_export);
    // Calls each() for every name LIST may show; NULL = LIST answers ERR_POLICY.
    void (*list)(void *context, void (*each)(void *each_context, const char *name), void *each_context);
    void *context;
};
int nbd_server_start(const struct nbd_server_config *config, struct nbd_server **ret_server, struct error *err);
// Stops accepting, finishes requests in flight, closes connections, waits. Accepts NULL.
struct nbd_server *nbd_server_stop(struct nbd_server *server);
unsigned nbd_server_connections(struct nbd_server *server);
