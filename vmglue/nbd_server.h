// SPDX-License-Identifier: Apache-2.0
// NBD server (fixed newstyle) on the engine's loops, over unix stream sockets.
//
// Threads: start and stop from any thread that is not a loop; the loops run until stop has returned.
// Connections are served on the loop of the volume they chose (accepted and negotiated on `loop`, then handed
// over). The listening descriptor is the caller's: it stays open after nbd_server_stop (the keeper holds a
// second copy); it is made non-blocking. Durability: a reply to FLUSH, or to a request with FUA, means what
// VOLUME_FLUSH and VOLUME_FUA mean; any other reply means that the change survives this process. Limits: 64
// requests and about 64 MiB of payload in flight a connection, and all connections together what the budget
// says (then the server stops reading from it); payloads up to 32 MiB; TRIM, WRITE_ZEROES and BLOCK_STATUS up
// to what 32 bits say. An export is open (its volume cannot be deleted) from GO or EXPORT_NAME until the
// connection's last request is done.
#pragma once

#include "snapshot/volume.h"

#include <sys/types.h>

struct nbd_server;
struct nbd_budget;

enum { NBD_EXPORT_DESCRIPTION_MAX = 127 };

struct nbd_export {
    bool found;
    bool read_only;
    struct volume_id volume;                          // or
    struct base_id base;                              // a snapshot, read-only
    char description[NBD_EXPORT_DESCRIPTION_MAX + 1]; // for people; "" = none
};

struct nbd_server_config {
    struct store *store;
    struct loop *loop; // accepts and negotiates here
    int listen_fd;
    bool check_peer; // clients other than root and peer_uid are turned away
    uid_t peer_uid;
    unsigned max_connections;        // 0 = 256; more wait in the listener's queue
    uint64_t negotiation_timeout_ns; // from accept to the transmission phase; 0 = 30 s; slower clients are
                                     // dropped
    struct nbd_budget *budget;       // payload memory shared with other servers; NULL = the process's own
    uint64_t stall_timeout_ns; // a client that holds shared memory and moves nothing for so long while others
                               // wait for memory is dropped; 0 = 30 s
    // Which thing a name means (an empty name is the default export). Called on the loop: must not block.
    void (*resolve)(void *context, const char *name, struct nbd_export *ret_export);
    // Calls each() for every name LIST may show, with words for people or NULL; NULL = LIST answers
    // ERR_POLICY.
    void (*list)(void *context, void (*each)(void *each_context, const char *name, const char *description),
            void *each_context);
    void *context;
};
int nbd_server_start(
        const struct nbd_server_config *config, struct nbd_server **ret_server, struct error *err);
// Stops accepting, finishes requests in flight, sends their replies (to clients that take them within two
// seconds), closes the connections, waits. Accepts NULL, returns NULL.
struct nbd_server *nbd_server_stop(struct nbd_server *server);

unsigned nbd_server_connections(struct nbd_server *server); // now; any thread
struct nbd_server_stat {
    uint64_t connections_total, requests_total, errors_total;
    uint64_t receives_total, sends_total; // socket operations in the transmission phase
};
// Counters since start; an open connection may be some hundred requests behind. [any]
void nbd_server_stat(struct nbd_server *server, struct nbd_server_stat *ret_stat);
