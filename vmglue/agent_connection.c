// SPDX-License-Identifier: Apache-2.0
// The I/O thread owns the socket and the decoder. Callers put frames into a queue and wait on their call's
// condition; they never touch the socket, so that a guest that stands still cannot hold one of them longer
// than its time-out.
#include "vmglue/agent_connection.h"

#include "blockstore/clock.h"
#include "vmglue/agent_client.h"
#include "vmglue/agent_connection_internal.h"
#include "vmglue/agent_hello.h"
#include "vmglue/agent_pump.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EMPTY_PIECES_MAX = 64 }; // a stream has one at its beginning, and one at the end of each channel

static void queue_append(struct agent_queue *queue, struct agent_outgoing *out)
{
    out->next = NULL;
    *queue->last = out;
    queue->last = &out->next;
}

static void queue_free(struct agent_queue *queue)
{
    for (struct agent_outgoing *out = queue->first, *next; out != NULL; out = next) {
        next = out->next;
        free(out);
    }
}

void agent_wake(struct agent *agent)
{
    uint64_t one = 1;
    ssize_t ignored = write(agent->wake_fd, &one, sizeof one);
    (void)ignored;
}

int agent_post_locked(struct agent *agent, const struct agent_call *call, uint16_t type, uint16_t flags,
        const void *bytes, size_t size)
{
    if (agent->failure < 0)
        return agent->failure;
    struct agent_outgoing *out = malloc(sizeof *out + size);
    if (out == NULL)
        return -ENOMEM;
    out->frame = (struct agent_frame){.epoch = agent->epoch,
            .stream = call->stream,
            .type = type,
            .flags = flags,
            .size = (uint32_t)size};
    out->frame.payload = out->payload;
    if (size > 0)
        memcpy(out->payload, bytes, size);
    queue_append(agent->gate_shut && !call->passes_gate ? &agent->held : &agent->ready, out);
    agent_wake(agent);
    return 0;
}

static void fail_all_locked(struct agent *agent, int failure)
{
    if (agent->failure == 0)
        agent->failure = failure;
    for (struct agent_call *call = agent->calls; call != NULL; call = call->next) {
        if (!call->done)
            call->failure = agent->failure;
        call->done = true;
        pthread_cond_broadcast(&call->changed);
    }
}

static struct agent_call *find_locked(struct agent *agent, uint32_t stream)
{
    struct agent_call *call = agent->calls;
    while (call != NULL && call->stream != stream)
        call = call->next;
    return call;
}

// The guest's bytes are not to be trusted: what waits for a caller is held to the window.
static int take_data_locked(struct agent_call *call, unsigned channel, const struct agent_frame *frame)
{
    if (channel > 2 || frame->size > AGENT_WINDOW_BYTES + AGENT_PAYLOAD_MAX - call->waiting_bytes[channel])
        return -EPROTO;
    if (frame->size == 0 && call->waiting_empty == EMPTY_PIECES_MAX)
        return -EPROTO;
    struct agent_piece *piece = malloc(sizeof *piece + frame->size);
    if (piece == NULL)
        return -ENOMEM;
    piece->next = NULL;
    piece->channel = channel;
    piece->end = frame->flags & AGENT_FLAG_END;
    piece->size = frame->size;
    if (frame->size > 0)
        memcpy(piece->bytes, frame->payload, frame->size);
    *call->last = piece;
    call->last = &piece->next;
    call->waiting_bytes[channel] += frame->size;
    call->waiting_empty += frame->size == 0;
    return 0;
}

static int take_result_locked(struct agent_call *call, const struct agent_frame *frame)
{
    call->result = malloc(frame->size + 1);
    if (call->result == NULL)
        return -ENOMEM;
    memcpy(call->result, frame->payload, frame->size);
    call->result_size = frame->size;
    call->done = true;
    return 0;
}

// A guest that says it took what was not even sent is not believed: no more than a window waits to be sent.
static void take_window_locked(struct agent_call *call, uint32_t bytes)
{
    uint32_t room = AGENT_WINDOW_BYTES - call->credit - call->unsent_bytes;
    call->credit += bytes < room ? bytes : room;
}

static int take_frame_locked(struct agent *agent, const struct agent_frame *frame)
{
    if (frame->type == AGENT_HELLO_ACK) { // a second answer: HELLO was repeated
        agent->receive_sequence = frame->sequence;
        return 0;
    }
    if (frame->sequence != ++agent->receive_sequence || frame->type == AGENT_BROKEN)
        return -EPROTO;
    struct agent_call *call = find_locked(agent, frame->stream);
    if (call == NULL || call->done)
        return 0;
    unsigned channel = frame->flags >> AGENT_FLAG_CHANNEL_SHIFT;
    struct agent_cursor fields = agent_cursor_over(frame->payload, frame->size);
    int result = 0;
    if (frame->type == AGENT_DATA)
        result = take_data_locked(call, channel, frame);
    else if (frame->type == AGENT_RESULT)
        result = take_result_locked(call, frame);
    else if (frame->type == AGENT_WINDOW && channel == 0)
        take_window_locked(call, agent_cursor_u32(&fields));
    pthread_cond_broadcast(&call->changed);
    return fields.bad ? -EPROTO : result;
}

static int receive(struct agent *agent)
{
    size_t room;
    void *space = agent_decoder_space(&agent->decoder, &room);
    ssize_t got = recv(agent->fd, space, room, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -EPIPE;
    if (got == 0)
        return -EPIPE;
    agent_decoder_filled(&agent->decoder, (size_t)got);
    struct agent_frame frame;
    int result = 0;
    pthread_mutex_lock(&agent->lock);
    agent->heard_ns = clock_monotonic_ns();
    while (result == 0 && agent_decoder_next(&agent->decoder, &frame))
        result = take_frame_locked(agent, &frame);
    pthread_mutex_unlock(&agent->lock);
    return result;
}

static bool next_outgoing(struct agent *agent)
{
    if (agent->sending != NULL)
        return true;
    pthread_mutex_lock(&agent->lock);
    struct agent_outgoing *out = agent->ready.first;
    if (out != NULL) {
        agent->ready.first = out->next;
        if (out->next == NULL)
            agent->ready.last = &agent->ready.first;
        struct agent_call *call =
                out->frame.type == AGENT_DATA ? find_locked(agent, out->frame.stream) : NULL;
        if (call != NULL)
            call->unsent_bytes -= out->frame.size;
    }
    pthread_mutex_unlock(&agent->lock);
    if (out == NULL)
        return false;
    out->frame.sequence = ++agent->send_sequence;
    agent_frame_header(&out->frame, out->bytes);
    agent->sending = out;
    agent->sent_bytes = 0;
    return true;
}

static int transmit(struct agent *agent)
{
    while (next_outgoing(agent)) {
        struct agent_outgoing *out = agent->sending;
        size_t total = sizeof out->bytes + out->frame.size;
        while (agent->sent_bytes < total) {
            bool head = agent->sent_bytes < sizeof out->bytes;
            const uint8_t *at = head ? out->bytes + agent->sent_bytes
                                     : out->payload + agent->sent_bytes - sizeof out->bytes;
            size_t size = head ? sizeof out->bytes - agent->sent_bytes : total - agent->sent_bytes;
            ssize_t sent = send(agent->fd, at, size,
                    MSG_DONTWAIT | MSG_NOSIGNAL | (head && out->frame.size ? MSG_MORE : 0));
            if (sent < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -EPIPE;
            agent->sent_bytes += (size_t)sent;
        }
        free(out);
        agent->sending = NULL;
    }
    return 0;
}

// One turn: sends what it can, moves bytes of the pumps, waits, and takes what came.
static int io_turn(struct agent *agent)
{
    int result = transmit(agent);
    if (result < 0)
        return result;
    agent_pump_work(agent);
    size_t count;
    struct pollfd *polls = agent_pump_polls(agent, 2, &count);
    if (polls == NULL)
        return -ENOMEM;
    polls[0] = (struct pollfd){.fd = agent->fd, .events = POLLIN | (agent->sending != NULL ? POLLOUT : 0)};
    polls[1] = (struct pollfd){.fd = agent->wake_fd, .events = POLLIN};
    if (poll(polls, count, -1) < 0)
        return errno == EINTR ? 0 : -EPIPE;
    uint64_t wakes;
    ssize_t ignored = polls[1].revents ? read(agent->wake_fd, &wakes, sizeof wakes) : 0;
    (void)ignored;
    agent_pump_polled(agent, polls);
    if (polls[0].revents & ~POLLOUT)
        result = receive(agent);
    pthread_mutex_lock(&agent->lock);
    if (agent->closing && result == 0)
        result = -EPIPE;
    pthread_mutex_unlock(&agent->lock);
    return result;
}

static void *io_main(void *argument)
{
    struct agent *agent = argument;
    int result = 0;
    while (result == 0)
        result = io_turn(agent);
    shutdown(agent->fd, SHUT_RDWR); // the other side need not wait for agent_disconnect
    pthread_mutex_lock(&agent->lock);
    fail_all_locked(agent, result);
    pthread_mutex_unlock(&agent->lock);
    agent_pump_end_all(agent);
    return NULL;
}

static void agent_free(struct agent *agent)
{
    queue_free(&agent->ready);
    queue_free(&agent->held);
    free(agent->sending);
    free(agent->polls);
    agent_decoder_free(&agent->decoder);
    if (agent->fd >= 0)
        close(agent->fd);
    if (agent->wake_fd >= 0)
        close(agent->wake_fd);
    pthread_mutex_destroy(&agent->lock);
    pthread_cond_destroy(&agent->idle);
    free(agent);
}

int agent_connect(const char *socket_path, unsigned timeout_ms, struct agent **ret_agent, struct error *err)
{
    struct agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL)
        return error_set(err, -ENOMEM, "no memory for a connection to a guest");
    agent->fd = agent->wake_fd = -1;
    agent->ready.last = &agent->ready.first;
    agent->held.last = &agent->held.first;
    pthread_mutex_init(&agent->lock, NULL);
    pthread_cond_init(&agent->idle, NULL);
    struct agent_hello hello = {0};
    int result = agent_decoder_init(&agent->decoder, false);
    if (result == 0)
        result = agent_hello(
                socket_path, timeout_ms ? timeout_ms : AGENT_CALL_DEFAULT_MS, &agent->decoder, &hello, err);
    if (result < 0) {
        agent_free(agent);
        return result;
    }
    agent->fd = hello.fd;
    agent->epoch = hello.epoch;
    agent->version = hello.version;
    agent->was_frozen = hello.state & (AGENT_STATE_FROZEN | AGENT_STATE_FILESYSTEMS_FROZEN);
    agent->round_trip_ns = hello.round_trip_ns;
    agent->heard_ns = clock_monotonic_ns();
    agent->quiet_ms = AGENT_QUIET_MS;
    agent->answer_ms = AGENT_ANSWER_MS;
    agent->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (agent->wake_fd < 0 || pthread_create(&agent->thread, NULL, io_main, agent) != 0) {
        agent_free(agent);
        return error_set(err, -EAGAIN, "cannot start a thread for the guest at %s", socket_path);
    }
    *ret_agent = agent;
    return 0;
}

unsigned agent_version(const struct agent *agent)
{
    return agent->version;
}

bool agent_was_frozen(const struct agent *agent)
{
    return agent->was_frozen;
}

void agent_break(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    agent->closing = true;
    pthread_mutex_unlock(&agent->lock);
    agent_wake(agent);
}

bool agent_is_broken(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    bool broken = agent->closing || agent->failure != 0;
    pthread_mutex_unlock(&agent->lock);
    return broken;
}

struct agent *agent_disconnect(struct agent *agent)
{
    if (agent == NULL)
        return NULL;
    agent_break(agent);
    pthread_join(agent->thread, NULL);
    pthread_mutex_lock(&agent->lock);
    while (agent->users > 0)
        pthread_cond_wait(&agent->idle, &agent->lock);
    pthread_mutex_unlock(&agent->lock);
    agent_free(agent);
    return NULL;
}

int agent_gate_shut(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    int result = agent->gate_shut ? -EBUSY : 0;
    agent->gate_shut = true;
    pthread_mutex_unlock(&agent->lock);
    return result;
}

void agent_gate_open(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    agent->gate_shut = false;
    if (agent->held.first != NULL) {
        *agent->ready.last = agent->held.first;
        agent->ready.last = agent->held.last;
        agent->held = (struct agent_queue){.last = &agent->held.first};
    }
    pthread_mutex_unlock(&agent->lock);
    agent_wake(agent);
}

uint64_t agent_best_round_trip_ns(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    uint64_t ns = agent->round_trip_ns;
    pthread_mutex_unlock(&agent->lock);
    return ns;
}

void agent_note_round_trip(struct agent *agent, uint64_t ns)
{
    pthread_mutex_lock(&agent->lock);
    if (ns < agent->round_trip_ns)
        agent->round_trip_ns = ns;
    pthread_mutex_unlock(&agent->lock);
}

void agent_set_patience(struct agent *agent, unsigned quiet_ms, unsigned answer_ms)
{
    pthread_mutex_lock(&agent->lock);
    agent->quiet_ms = quiet_ms;
    agent->answer_ms = answer_ms;
    pthread_mutex_unlock(&agent->lock);
}

unsigned agent_quiet_ms(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    unsigned quiet_ms = agent->quiet_ms;
    pthread_mutex_unlock(&agent->lock);
    return quiet_ms;
}

// A machine that is held still (a snapshot is taken) owes no answer.
static bool is_silent(struct agent *agent, unsigned for_ms)
{
    pthread_mutex_lock(&agent->lock);
    bool silent = !agent->gate_shut && agent->failure == 0 &&
                  clock_monotonic_ns() - agent->heard_ns >= (uint64_t)for_ms * 1000000;
    pthread_mutex_unlock(&agent->lock);
    return silent;
}

int agent_check_silence(struct agent *agent, struct error *err)
{
    pthread_mutex_lock(&agent->lock);
    unsigned quiet_ms = agent->quiet_ms, answer_ms = agent->answer_ms;
    pthread_mutex_unlock(&agent->lock);
    if (!is_silent(agent, quiet_ms) || agent_ping(agent, answer_ms, NULL) != -ETIMEDOUT ||
            !is_silent(agent, answer_ms))
        return 0;
    return error_set(err, -ETIMEDOUT,
            "the agent in the machine has not answered for %u s: it was stopped or killed there, or the "
            "machine hangs",
            (quiet_ms + answer_ms) / 1000);
}
