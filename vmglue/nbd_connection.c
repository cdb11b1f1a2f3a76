// SPDX-License-Identifier: Apache-2.0
// One step function moves a connection on: it is called after every event (received, sent, request done,
// timer, stop), does all that can be done, and starts at most one receive and one send. When nothing is left,
// it frees the connection.
//
// Replies gather: while a send is in flight, or when several requests finish in one round of the loop, their
// replies leave in one sendmsg. A request that is alone gets its reply sent at once.
#include "vmglue/nbd_connection.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t stop_bound_ns = 2000000000;

#define connection_of(pointer, member)                                                                       \
    ((struct nbd_connection *)((char *)(pointer)-offsetof(struct nbd_connection, member)))

static void step(struct nbd_connection *connection);

// ---- Ending ----

static void release(struct nbd_connection *connection, struct nbd_request *request)
{
    nbd_pool_put(&connection->pool, request->buffer, request->buffer_bytes);
    request->buffer = NULL;
    request->next = connection->free_requests;
    connection->free_requests = request;
    if (--connection->active == 0)
        nbd_pool_trim(&connection->pool);
}

static void release_list(struct nbd_connection *connection, struct nbd_request *request)
{
    while (request) {
        struct nbd_request *next = request->next;
        release(connection, request);
        request = next;
    }
}

// What has been granted already comes with the posted work.
static void stop_waiting(struct nbd_connection *connection)
{
    if (connection->waits && nbd_budget_cancel(connection->pool.budget, &connection->waiter))
        connection->waits = false;
}

// No more requests; one whose payload is only half here never happened.
static void end(struct nbd_connection *connection)
{
    connection->ended = true;
    if (connection->incoming && !connection->receiving) {
        release(connection, connection->incoming);
        connection->incoming = NULL;
    }
    stop_waiting(connection);
}

// Nobody will take more replies. Operations of the socket in flight are woken and will finish.
static void break_off(struct nbd_connection *connection)
{
    connection->broken = true;
    shutdown(connection->fd, SHUT_RDWR);
    release_list(connection, connection->reply_first);
    connection->reply_first = connection->reply_last = NULL;
    end(connection);
}

static void cancel_timer(struct nbd_connection *connection)
{
    if (connection->timer.armed)
        connection->loop->ops->cancel_timer(connection->loop, &connection->timer);
}

static void leave_server(struct nbd_connection *connection)
{
    if (nbd_server_forget(connection->server, connection))
        free(connection);
}

static void finish_when_idle(struct nbd_connection *connection)
{
    if (!connection->ended || connection->receiving || connection->sending || connection->active ||
            connection->flush_posted || connection->waits || connection->finished)
        return;
    cancel_timer(connection);
    if (connection->negotiation) {
        nbd_server_close_target(&connection->negotiation->target);
        nbd_negotiation_end(connection->negotiation);
        free(connection->negotiation);
    }
    nbd_server_close_target(&connection->target);
    nbd_pool_drain(&connection->pool);
    free(connection->requests);
    free(connection->input);
    close(connection->fd);
    nbd_server_count(connection->server, connection);
    connection->finished = true;
    leave_server(connection);
}

// ---- Receiving ----

static uint32_t incoming_left(const struct nbd_connection *connection)
{
    return connection->incoming->header.length - connection->incoming_bytes;
}

static void receive_done(struct io_op *op, int64_t result)
{
    struct nbd_connection *connection = connection_of(op, receive);
    connection->receiving = false;
    connection->progress++;
    if (connection->phase == NBD_CONNECTION_SERVES)
        connection->counted.receives_total++;
    if (connection->counted.requests_total >= 64)
        nbd_server_count(connection->server, connection);
    if (result <= 0 || connection->ended)
        end(connection);
    else if (connection->receiving_payload)
        connection->incoming_bytes += (uint32_t)result;
    else
        connection->input_end += (size_t)result;
    step(connection);
}

static void receive(struct nbd_connection *connection)
{
    const struct nbd_request *incoming = connection->incoming;
    struct iovec *iov = &connection->receive_iov;
    connection->receiving_payload =
            incoming && incoming->buffer && incoming_left(connection) > NBD_CONNECTION_DIRECT_BYTES;
    if (connection->receiving_payload) {
        iov->iov_base = (uint8_t *)incoming->buffer + connection->incoming_bytes;
        iov->iov_len = incoming_left(connection);
    } else {
        size_t rest = connection->input_end - connection->input_begin;
        memmove(connection->input, connection->input + connection->input_begin, rest);
        connection->input_begin = 0;
        connection->input_end = rest;
        iov->iov_base = connection->input + rest;
        iov->iov_len = NBD_CONNECTION_INPUT_BYTES - rest;
    }
    connection->receiving = true;
    connection->receive = (struct io_op){
            .code = IO_RECV, .fd = connection->fd, .iov = iov, .iov_count = 1, .done = receive_done};
    loop_submit(connection->loop, &connection->receive);
}

// ---- Sending ----

static void send_submit(struct nbd_connection *connection, struct iovec *iov, unsigned iov_count);

static void send_finished(struct nbd_connection *connection)
{
    if (connection->phase == NBD_CONNECTION_NEGOTIATES)
        connection->negotiation->out.size = 0;
    release_list(connection, connection->sent_first);
    connection->sent_first = NULL;
}

static void send_done(struct io_op *op, int64_t result)
{
    struct nbd_connection *connection = connection_of(op, send);
    connection->sending = false;
    connection->progress++;
    if (connection->phase == NBD_CONNECTION_SERVES)
        connection->counted.sends_total++;
    if (result <= 0 || connection->broken) {
        break_off(connection);
    } else {
        struct iovec *iov = op->iov;
        unsigned left = op->iov_count;
        size_t sent = (size_t)result;
        while (left && sent >= iov->iov_len) {
            sent -= iov->iov_len;
            iov++;
            left--;
        }
        if (left) {
            iov->iov_base = (char *)iov->iov_base + sent;
            iov->iov_len -= sent;
            send_submit(connection, iov, left);
            return;
        }
    }
    send_finished(connection);
    step(connection);
}

static void send_submit(struct nbd_connection *connection, struct iovec *iov, unsigned iov_count)
{
    connection->sending = true;
    connection->send = (struct io_op){
            .code = IO_SENDMSG, .fd = connection->fd, .iov = iov, .iov_count = iov_count, .done = send_done};
    loop_submit(connection->loop, &connection->send);
}

static void send_replies(struct nbd_connection *connection)
{
    unsigned iov_count = 0;
    struct nbd_request *last = NULL;
    connection->sent_first = connection->reply_first;
    for (struct nbd_request *request = connection->reply_first;
            request && iov_count + request->iov_count <= NBD_CONNECTION_SEND_IOV; request = request->next) {
        for (unsigned i = 0; i < request->iov_count; i++)
            connection->send_iov[iov_count++] = request->iov[i];
        last = request;
    }
    connection->reply_first = last->next;
    if (!connection->reply_first)
        connection->reply_last = NULL;
    last->next = NULL;
    send_submit(connection, connection->send_iov, iov_count);
}

static void flush_work(struct loop_work *work)
{
    struct nbd_connection *connection = connection_of(work, flush_work);
    connection->flush_posted = false;
    step(connection);
}

void nbd_connection_reply(struct nbd_connection *connection, struct nbd_request *request)
{
    if (connection->broken) {
        release(connection, request);
        step(connection);
        return;
    }
    request->next = NULL;
    if (connection->reply_last)
        connection->reply_last->next = request;
    else
        connection->reply_first = request;
    connection->reply_last = request;
    if (connection->stepping || connection->sending || connection->flush_posted)
        return; // whoever is at work sends it
    if (connection->active == 1) {
        step(connection);
        return;
    }
    connection->flush_posted = true;
    connection->flush_work.run = flush_work;
    loop_post(connection->loop, &connection->flush_work);
}

// ---- Requests ----

// Returns whether the payload is complete; then the request has been started.
static bool take_payload(struct nbd_connection *connection)
{
    struct nbd_request *request = connection->incoming;
    size_t take = connection->input_end - connection->input_begin;
    if (take > incoming_left(connection))
        take = incoming_left(connection);
    if (request->buffer && take)
        memcpy((uint8_t *)request->buffer + connection->incoming_bytes,
                connection->input + connection->input_begin, take);
    connection->input_begin += take;
    connection->incoming_bytes += (uint32_t)take;
    if (incoming_left(connection))
        return false;
    connection->incoming = NULL;
    nbd_request_execute(connection, request);
    return true;
}

static void arm_timer(
        struct nbd_connection *connection, void (*fire)(struct loop_timer *timer), uint64_t after_ns);

// A client that holds shared memory, is waited for, and has moved nothing since the last look, while others
// wait for memory, is given up.
static void stall_fired(struct loop_timer *timer)
{
    struct nbd_connection *connection = connection_of(timer, timer);
    bool client_is_slow = connection->sending || connection->incoming;
    if (connection->pool.taken_bytes == 0)
        return;
    if (client_is_slow && connection->progress == connection->progress_seen &&
            nbd_budget_is_short(connection->pool.budget)) {
        break_off(connection);
        step(connection);
        return;
    }
    connection->progress_seen = connection->progress;
    arm_timer(connection, stall_fired, nbd_server_stall_ns(connection->server));
}

static void took_memory(struct nbd_connection *connection, size_t bytes)
{
    nbd_pool_add(&connection->pool, bytes);
    if (connection->timer.armed)
        return;
    connection->progress_seen = connection->progress;
    arm_timer(connection, stall_fired, nbd_server_stall_ns(connection->server));
}

static void grant_work(struct loop_work *work)
{
    struct nbd_connection *connection = connection_of(work, grant_work);
    connection->waits = false;
    took_memory(connection, connection->waiter.bytes);
    step(connection);
}

static void granted(struct nbd_budget_waiter *waiter)
{
    struct nbd_connection *connection = connection_of(waiter, waiter);
    loop_post(connection->loop, &connection->grant_work);
}

// Whether a buffer of that size can be had now. If not, a step follows when that may have changed.
static bool has_memory(struct nbd_connection *connection, size_t size)
{
    struct nbd_pool *pool = &connection->pool;
    size_t in_use = pool->allocated_bytes - pool->kept_bytes;
    if (in_use && in_use + nbd_pool_cost(size) > NBD_CONNECTION_BUDGET_BYTES)
        return false;
    size_t lacks = nbd_pool_lacks(pool, size);
    if (lacks == 0) {
        stop_waiting(connection);
        return true;
    }
    if (connection->waits)
        return false;
    connection->waiter = (struct nbd_budget_waiter){.granted = granted, .bytes = lacks};
    connection->grant_work.run = grant_work;
    connection->waits = true;
    if (!nbd_budget_take(pool->budget, &connection->waiter))
        return false;
    connection->waits = false;
    took_memory(connection, lacks);
    return true;
}

// Takes the next request's header. Returns false when it is not there, ends the session, or must wait.
static bool take_header(struct nbd_connection *connection)
{
    struct nbd_request_header header;
    struct nbd_request *request = connection->free_requests;
    if (connection->input_end - connection->input_begin < NBD_REQUEST_BYTES)
        return false;
    if (!nbd_protocol_decode_request(connection->input + connection->input_begin, &header) ||
            header.type == NBD_CMD_DISC) {
        end(connection);
        return false;
    }
    if (!request) {
        connection->blocked = true;
        return false;
    }
    request->header = header;
    nbd_request_admit(connection, request);
    if (request->buffer_bytes && !has_memory(connection, request->buffer_bytes)) {
        connection->blocked = true;
        return false;
    }
    connection->input_begin += NBD_REQUEST_BYTES;
    connection->free_requests = request->next;
    connection->active++;
    connection->counted.requests_total++;
    if (request->buffer_bytes)
        request->buffer = nbd_pool_get(&connection->pool, request->buffer_bytes);
    if (header.type == NBD_CMD_WRITE) {
        connection->incoming = request;
        connection->incoming_bytes = 0;
    } else {
        nbd_request_execute(connection, request);
    }
    return true;
}

static void serve(struct nbd_connection *connection)
{
    bool more = !connection->receiving || !connection->receiving_payload;
    connection->blocked = false;
    while (more && !connection->ended)
        more = connection->incoming ? take_payload(connection) : take_header(connection);
    if (connection->reply_first && !connection->sending && !connection->flush_posted)
        send_replies(connection);
    if (!connection->receiving && !connection->ended && !connection->blocked)
        receive(connection);
}

// ---- The handshake ----

static void begin_serving(struct nbd_connection *connection)
{
    connection->requests = calloc(NBD_CONNECTION_REQUESTS, sizeof *connection->requests);
    if (!connection->requests)
        abort();
    for (unsigned i = 0; i < NBD_CONNECTION_REQUESTS; i++) {
        struct nbd_request *request = &connection->requests[i];
        request->connection = connection;
        request->next = connection->free_requests;
        connection->free_requests = request;
    }
    connection->phase = NBD_CONNECTION_SERVES;
}

static void move_work(struct loop_work *work)
{
    struct nbd_connection *connection = connection_of(work, move_work);
    begin_serving(connection);
    step(connection);
}

// Returns false when the connection has been given to another loop: this thread must not touch it again.
static bool leave_negotiation(struct nbd_connection *connection)
{
    struct nbd_negotiation *negotiation = connection->negotiation;
    cancel_timer(connection);
    connection->target = negotiation->target;
    connection->structured = negotiation->structured;
    connection->contexts = negotiation->contexts;
    nbd_negotiation_end(negotiation);
    free(negotiation);
    connection->negotiation = NULL;
    struct loop *loop = connection->target.loop;
    connection->step_again = true;
    if (loop == connection->loop) {
        begin_serving(connection);
        return true;
    }
    connection->phase = NBD_CONNECTION_MOVES;
    connection->step_again = connection->stepping = false;
    connection->move_work.run = move_work;
    if (!nbd_server_set_loop(connection->server, connection, loop)) {
        connection->stepping = true;
        end(connection);
        return true;
    }
    loop_post(loop, &connection->move_work);
    return false;
}

static bool negotiate(struct nbd_connection *connection)
{
    struct nbd_negotiation *negotiation = connection->negotiation;
    while (!connection->sending && !connection->receiving && !connection->ended) {
        struct nbd_writer *out = &negotiation->out;
        if (out->size) {
            connection->send_iov[0] = (struct iovec){out->bytes, out->size};
            send_submit(connection, connection->send_iov, 1);
        } else if (connection->negotiated == NBD_NEGOTIATION_CLOSE) {
            end(connection);
        } else if (connection->negotiated == NBD_NEGOTIATION_TRANSMIT) {
            return leave_negotiation(connection);
        } else {
            size_t consumed;
            connection->negotiated =
                    nbd_negotiation_input(negotiation, connection->input + connection->input_begin,
                            connection->input_end - connection->input_begin, &consumed);
            connection->input_begin += consumed;
            if (connection->negotiated == NBD_NEGOTIATION_WAIT)
                receive(connection);
        }
    }
    return true;
}

static void step(struct nbd_connection *connection)
{
    if (connection->stepping) {
        connection->step_again = true;
        return;
    }
    connection->stepping = true;
    do {
        connection->step_again = false;
        if (connection->phase == NBD_CONNECTION_NEGOTIATES) {
            if (!negotiate(connection))
                return;
        } else if (connection->phase == NBD_CONNECTION_SERVES) {
            serve(connection);
        }
    } while (connection->step_again);
    connection->stepping = false;
    if (connection->active == 0 && !connection->waits && connection->pool.taken_bytes)
        nbd_pool_trim(&connection->pool); // granted too late to be of use
    finish_when_idle(connection);
}

// The client took too long: to negotiate, or to take its last replies before a stop.
static void timer_fired(struct loop_timer *timer)
{
    struct nbd_connection *connection = connection_of(timer, timer);
    break_off(connection);
    step(connection);
}

static void arm_timer(
        struct nbd_connection *connection, void (*fire)(struct loop_timer *timer), uint64_t after_ns)
{
    connection->timer.fire = fire;
    connection->timer.deadline_ns = loop_now_ns(connection->loop) + after_ns;
    connection->loop->ops->add_timer(connection->loop, &connection->timer);
}

void nbd_connection_start(struct nbd_connection *connection, uint64_t negotiation_timeout_ns)
{
    connection->phase = NBD_CONNECTION_NEGOTIATES;
    connection->negotiated = NBD_NEGOTIATION_WAIT;
    connection->negotiation = malloc(sizeof *connection->negotiation);
    connection->input = malloc(NBD_CONNECTION_INPUT_BYTES);
    if (!connection->negotiation || !connection->input)
        abort();
    nbd_negotiation_begin(connection->negotiation, nbd_server_source(connection->server));
    nbd_pool_init(&connection->pool, nbd_server_budget(connection->server));
    arm_timer(connection, timer_fired, negotiation_timeout_ns);
    step(connection);
}

void nbd_connection_stop_work(struct loop_work *work)
{
    struct nbd_connection *connection = connection_of(work, stop_work);
    connection->stop_ran = true;
    if (connection->finished) {
        leave_server(connection);
        return;
    }
    if (connection->phase == NBD_CONNECTION_NEGOTIATES) {
        break_off(connection);
    } else {
        end(connection);
        shutdown(connection->fd, SHUT_RD);
        if (connection->phase == NBD_CONNECTION_SERVES)
            arm_timer(connection, timer_fired, stop_bound_ns);
    }
    if (connection->phase != NBD_CONNECTION_MOVES)
        step(connection);
}
