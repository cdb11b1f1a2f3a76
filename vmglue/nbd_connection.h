// SPDX-License-Identifier: Apache-2.0
// One NBD connection, private to vmglue/nbd_*.c. nbd_server.c creates connections, nbd_connection.c moves
// bytes and owns the states, nbd_request.c executes requests and words the replies.
//
// Threads: everything of a connection runs on connection->loop. The server's lock protects the list it is in,
// `loop` and `stop_posted`. The loop changes once, between negotiation and transmission, when nothing is in
// flight.
//
// Invariants:
//  1. A request holds its place in requests[] and its buffer from its header until its reply is sent or
//     dropped; so a client that does not read its replies stops being read itself.
//  2. A write is submitted only after all of its payload lies in a buffer of its own.
//  3. Nothing that a request waits for keeps the receiver from going on, except the limits of 1.
//  4. A connection is freed only when nothing of it is in flight: no operation, timer, posted work or
//     request, and it does not wait for memory.
//  5. No buffer is had past the pool's and the budget's bounds; who waits for memory is given it in turn.
#pragma once

#include "vmglue/nbd_negotiate.h"
#include "vmglue/nbd_pool.h"
#include "vmglue/nbd_server.h"

enum {
    NBD_CONNECTION_REQUESTS = 64,
    NBD_CONNECTION_BUDGET_BYTES = 64 * 1024 * 1024,
    NBD_CONNECTION_INPUT_BYTES = 160 * 1024, // sixteen 4 KiB writes and more in one receive
    NBD_CONNECTION_DIRECT_BYTES = 32 * 1024, // payload rests over this are received in place
    NBD_CONNECTION_SEND_IOV = 192,           // in one send
};
// One request's reply: a read of data and holes in turn has the most pieces (nbd_reply.c).
enum { NBD_REPLY_HOLES = 16, NBD_REPLY_IOV = 2 * (NBD_REPLY_HOLES + 1) + NBD_REPLY_HOLES };
_Static_assert((int)NBD_REPLY_IOV <= (int)NBD_CONNECTION_SEND_IOV, "every reply fits into a send");
_Static_assert(NBD_CONNECTION_INPUT_BYTES >= NBD_OPTION_BYTES + NBD_NEGOTIATION_OPTION_MAX, "an option fits");

enum nbd_connection_phase {
    NBD_CONNECTION_NEGOTIATES, // `negotiation` is set, the timer is armed; sends and receives take turns
    NBD_CONNECTION_MOVES,      // posted to the loop of its volume; nothing in flight
    NBD_CONNECTION_SERVES,     // requests
};

struct nbd_request {
    struct volume_io io;
    struct nbd_connection *connection;
    struct nbd_request *next; // free list or reply queue
    struct nbd_request_header header;
    void *buffer; // payload, of buffer_bytes; NULL = none
    size_t buffer_bytes;
    int refused;         // -errno known before the payload is in, 0 = execute
    uint32_t done_bytes; // of a CACHE
    struct loop_work work;
    struct volume_extents extents; // of a BLOCK_STATUS
    uint8_t head[96];              // of the reply
    struct iovec own_iov[2];
    struct iovec *iov; // the reply's bytes, in `head` and `buffer`
    unsigned iov_count;
};

struct nbd_connection {
    struct nbd_server *server;
    struct nbd_connection *next, *previous;
    struct loop *loop;
    bool stop_posted, stop_ran;
    struct loop_work stop_work;
    int fd;
    enum nbd_connection_phase phase;

    struct nbd_negotiation *negotiation;
    enum nbd_negotiation_step negotiated; // what follows when its output is sent
    struct loop_timer timer;              // bound of the negotiation, of a stall, of a stop
    struct loop_work move_work;
    struct nbd_target target;
    bool structured;
    unsigned contexts; // agreed, nbd_context.h

    bool stepping, step_again;
    bool ended;    // no more requests: DISC, end of stream, error or stop
    bool broken;   // the socket takes no more replies
    bool blocked;  // the next request waits for the limits of invariant 1
    bool finished; // everything is released but this struct

    struct io_op receive;
    struct iovec receive_iov;
    bool receiving, receiving_payload;
    uint8_t *input;
    size_t input_begin, input_end;
    struct nbd_request *incoming; // its payload is being received
    uint32_t incoming_bytes;      // so far

    struct nbd_request *requests, *free_requests;
    unsigned active; // requests that are not free
    struct nbd_pool pool;
    bool waits; // for memory: queued at the budget, or granted and grant_work is posted
    struct nbd_budget_waiter waiter;
    struct loop_work grant_work;
    uint64_t progress, progress_seen; // socket operations finished; when the timer looked last

    struct io_op send;
    struct iovec send_iov[NBD_CONNECTION_SEND_IOV];
    bool sending;
    bool flush_posted; // a posted work will send what has gathered
    struct loop_work flush_work;
    struct nbd_request *sent_first;               // being sent
    struct nbd_request *reply_first, *reply_last; // waiting
    struct nbd_server_stat counted;               // not yet added to the server's
};

// ---- nbd_connection.c ----
// Takes the descriptor. Called on the accepting loop, after the server has put it into its list.
void nbd_connection_start(struct nbd_connection *connection, uint64_t negotiation_timeout_ns);
// A work that nbd_server_stop posts to the connection's loop.
void nbd_connection_stop_work(struct loop_work *work);
// The reply of `request` is worded: send it when the time has come.
void nbd_connection_reply(struct nbd_connection *connection, struct nbd_request *request);

// ---- nbd_request.c ----
// Decides on a header before its payload is received: sets `refused` and the buffer's size (0 = no buffer).
void nbd_request_admit(struct nbd_connection *connection, struct nbd_request *request);
// Runs the request (payload complete). Its reply may be ready before this returns.
void nbd_request_execute(struct nbd_connection *connection, struct nbd_request *request);

// Words the reply of a request that is done, or failed, and sends it.
void nbd_request_finish(struct nbd_connection *connection, struct nbd_request *request, int result);

// ---- nbd_status.c ----
size_t nbd_status_buffer_bytes(void);
void nbd_status_execute(struct nbd_connection *connection, struct nbd_request *request);

// ---- nbd_reply.c: words, without sending ----
void nbd_reply_simple(struct nbd_request *request, int result);
void nbd_reply_error_chunk(struct nbd_request *request, int result);
// What a successful READ has put into the buffer: as it is, or in chunks of data and of holes.
void nbd_reply_data(struct nbd_request *request);
void nbd_reply_data_chunks(struct nbd_request *request);

// ---- nbd_server.c ----
struct nbd_budget *nbd_server_budget(struct nbd_server *server);
uint64_t nbd_server_stall_ns(struct nbd_server *server);
const struct nbd_negotiation_source *nbd_server_source(struct nbd_server *server);
void nbd_server_close_target(struct nbd_target *target);
// Returns false when the server is stopping: then the connection stays where it is and ends.
bool nbd_server_set_loop(struct nbd_server *server, struct nbd_connection *connection, struct loop *loop);
// Adds connection->counted to the server's counters and clears it.
void nbd_server_count(struct nbd_server *server, struct nbd_connection *connection);
// Takes it out of the list. Returns false when a posted stop has not run yet: that will finish it.
bool nbd_server_forget(struct nbd_server *server, struct nbd_connection *connection);
