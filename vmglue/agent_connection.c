// SPDX-License-Identifier: Apache-2.0
// The I/O thread owns the socket and the decoder. Callers put frames into a queue and wait on their call's
// condition; they never touch the socket, so that a guest that stands still cannot hold one of them longer
// than its time-out.
#include "vmglue/agent_connection.h"

#include "vmglue/agent_client.h"
#include "vmglue/agent_hello.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct outgoing {
    struct outgoing *next;
    struct agent_frame frame; // its sequence is set when its turn comes
    uint8_t bytes[AGENT_HEADER_BYTES];
    uint8_t payload[];
};

struct queue {
    struct outgoing *first, **last;
};

struct agent {
    int fd, wake_fd;
    bool was_frozen;
    uint64_t epoch;
    struct agent_decoder decoder; // the I/O thread's, as are the next four
    uint32_t send_sequence, receive_sequence;
    struct outgoing *sending;
    size_t sent_bytes;
    pthread_t thread;

    pthread_mutex_t lock; // protects the rest
    pthread_cond_t idle;
    struct queue ready, held;
    bool gate_shut, closing;
    int failure; // once set the connection is over
    uint32_t last_stream;
    unsigned users; // calls begun and not ended
    struct agent_call *calls;
    uint64_t round_trip_ns;
};

uint64_t agent_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void queue_append(struct queue *queue, struct outgoing *out)
{
    out->next = NULL;
    *queue->last = out;
    queue->last = &out->next;
}

static void queue_free(struct queue *queue)
{
    for (struct outgoing *out = queue->first, *next; out != NULL; out = next) {
        next = out->next;
        free(out);
    }
}

static void wake(struct agent *agent)
{
    uint64_t one = 1;
    ssize_t ignored = write(agent->wake_fd, &one, sizeof one);
    (void)ignored;
}

static int post_locked(struct agent *agent, const struct agent_call *call, uint16_t type, uint16_t flags,
        const void *bytes, size_t size)
{
    if (agent->failure < 0)
        return agent->failure;
    struct outgoing *out = malloc(sizeof *out + size);
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
    wake(agent);
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
    struct agent_piece *piece = malloc(sizeof *piece + frame->size);
    if (piece == NULL)
        return -ENOMEM;
    piece->next = NULL;
    piece->channel = channel;
    piece->size = frame->size;
    if (frame->size > 0)
        memcpy(piece->bytes, frame->payload, frame->size);
    *call->last = piece;
    call->last = &piece->next;
    call->waiting_bytes[channel] += frame->size;
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
        call->credit += agent_cursor_u32(&fields);
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
    struct outgoing *out = agent->ready.first;
    if (out != NULL) {
        agent->ready.first = out->next;
        if (out->next == NULL)
            agent->ready.last = &agent->ready.first;
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
        struct outgoing *out = agent->sending;
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

static void *io_main(void *argument)
{
    struct agent *agent = argument;
    int result = 0;
    while (result == 0) {
        result = transmit(agent);
        struct pollfd polls[2] = {
                {.fd = agent->fd, .events = POLLIN | (agent->sending != NULL ? POLLOUT : 0)},
                {.fd = agent->wake_fd, .events = POLLIN}};
        if (result < 0 || (poll(polls, 2, -1) < 0 && errno != EINTR))
            break;
        uint64_t count;
        ssize_t ignored = polls[1].revents ? read(agent->wake_fd, &count, sizeof count) : 0;
        (void)ignored;
        if (polls[0].revents & ~POLLOUT)
            result = receive(agent);
        pthread_mutex_lock(&agent->lock);
        if (agent->closing && result == 0)
            result = -EPIPE;
        pthread_mutex_unlock(&agent->lock);
    }
    shutdown(agent->fd, SHUT_RDWR); // the other side need not wait for agent_disconnect
    pthread_mutex_lock(&agent->lock);
    fail_all_locked(agent, result < 0 ? result : -EPIPE);
    pthread_mutex_unlock(&agent->lock);
    return NULL;
}

static void agent_free(struct agent *agent)
{
    queue_free(&agent->ready);
    queue_free(&agent->held);
    free(agent->sending);
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
    agent->was_frozen = hello.state & AGENT_STATE_FROZEN;
    agent->round_trip_ns = hello.round_trip_ns;
    agent->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (agent->wake_fd < 0 || pthread_create(&agent->thread, NULL, io_main, agent) != 0) {
        agent_free(agent);
        return error_set(err, -EAGAIN, "cannot start a thread for the guest at %s", socket_path);
    }
    *ret_agent = agent;
    return 0;
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
    wake(agent);
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

static int post_request_locked(
        struct agent *agent, struct agent_call *call, const struct agent_builder *request)
{
    int result = 0;
    for (size_t done = 0; result == 0 && done < request->size;) {
        size_t size = request->size - done < AGENT_PAYLOAD_MAX ? request->size - done : AGENT_PAYLOAD_MAX;
        bool more = done + size < request->size;
        result = post_locked(
                agent, call, AGENT_REQUEST, more ? AGENT_FLAG_MORE : 0, request->bytes + done, size);
        done += size;
    }
    return result;
}

int agent_call_begin(struct agent *agent, enum agent_operation operation, const struct agent_builder *fields,
        bool passes_gate, struct agent_call *ret_call, struct error *err)
{
    struct agent_builder request = {0};
    agent_builder_u32(&request, operation);
    if (fields != NULL) {
        agent_builder_bytes(&request, fields->bytes, fields->size);
        request.failed = request.failed || fields->failed;
    }
    *ret_call = (struct agent_call){.agent = agent, .passes_gate = passes_gate, .credit = AGENT_WINDOW_BYTES};
    ret_call->last = &ret_call->first;
    if (request.failed || request.size > AGENT_REQUEST_MAX) {
        agent_builder_free(&request);
        return error_set(err, -E2BIG, "the request is larger than the %d MiB that a guest takes",
                AGENT_REQUEST_MAX >> 20);
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ret_call->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_lock(&agent->lock);
    if (++agent->last_stream == 0)
        ++agent->last_stream;
    ret_call->stream = agent->last_stream;
    int result = post_request_locked(agent, ret_call, &request);
    if (result == 0) {
        ret_call->next = agent->calls;
        agent->calls = ret_call;
        agent->users++;
    }
    pthread_mutex_unlock(&agent->lock);
    agent_builder_free(&request);
    if (result < 0) {
        pthread_cond_destroy(&ret_call->changed);
        return error_set(err, result, "%s",
                result == -ENOMEM ? "no memory for a request to the guest"
                                  : "the connection to the guest is gone: has the machine stopped?");
    }
    return 0;
}

void agent_call_end(struct agent_call *call)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    struct agent_call **link = &agent->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (!call->done)
        post_locked(agent, call, AGENT_CANCEL, 0, NULL, 0);
    if (--agent->users == 0)
        pthread_cond_broadcast(&agent->idle);
    pthread_mutex_unlock(&agent->lock);
    for (struct agent_piece *piece = call->first, *next; piece != NULL; piece = next) {
        next = piece->next;
        free(piece);
    }
    free(call->result);
    pthread_cond_destroy(&call->changed);
}

int agent_call_wait(
        struct agent_call *call, unsigned limit_ms, bool credit_too, struct agent_piece **ret_piece)
{
    struct agent *agent = call->agent;
    uint64_t until_ns = agent_clock_ns() + limit_ms * 1000000ull;
    struct timespec until = {
            .tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    int result = 0;
    pthread_mutex_lock(&agent->lock);
    while (result == 0) {
        if (call->first != NULL) {
            *ret_piece = call->first;
            call->first = call->first->next;
            if (call->first == NULL)
                call->last = &call->first;
            result = AGENT_EVENT_PIECE;
        } else if (call->done) {
            result = AGENT_EVENT_DONE;
        } else if (credit_too && call->credit > 0) {
            result = AGENT_EVENT_CREDIT;
        } else if (pthread_cond_timedwait(&call->changed, &agent->lock, &until) == ETIMEDOUT) {
            result = -ETIMEDOUT;
        }
    }
    pthread_mutex_unlock(&agent->lock);
    return result;
}

void agent_call_taken(struct agent_call *call, struct agent_piece *piece)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    unsigned channel = piece->channel;
    call->waiting_bytes[channel] -= (uint32_t)piece->size;
    call->owed_bytes[channel] += (uint32_t)piece->size;
    if (call->owed_bytes[channel] >= AGENT_WINDOW_BYTES / 4 && !call->done) {
        struct agent_builder grant = {0};
        agent_builder_u32(&grant, call->owed_bytes[channel]);
        if (!grant.failed &&
                post_locked(agent, call, AGENT_WINDOW, (uint16_t)(channel << AGENT_FLAG_CHANNEL_SHIFT),
                        grant.bytes, grant.size) == 0)
            call->owed_bytes[channel] = 0;
        agent_builder_free(&grant);
    }
    pthread_mutex_unlock(&agent->lock);
    free(piece);
}

size_t agent_call_credit(struct agent_call *call)
{
    pthread_mutex_lock(&call->agent->lock);
    size_t credit = call->credit;
    pthread_mutex_unlock(&call->agent->lock);
    return credit;
}

int agent_call_send(struct agent_call *call, const void *bytes, size_t size, bool end)
{
    struct agent *agent = call->agent;
    pthread_mutex_lock(&agent->lock);
    int result = size > call->credit || size > AGENT_PAYLOAD_MAX ? -EINVAL : 0;
    if (result == 0)
        result = post_locked(agent, call, AGENT_DATA, end ? AGENT_FLAG_END : 0, bytes, size);
    if (result == 0)
        call->credit -= (uint32_t)size;
    pthread_mutex_unlock(&agent->lock);
    return result;
}

void agent_call_cancel(struct agent_call *call)
{
    pthread_mutex_lock(&call->agent->lock);
    post_locked(call->agent, call, AGENT_CANCEL, 0, NULL, 0);
    pthread_mutex_unlock(&call->agent->lock);
}

int agent_call_result(struct agent_call *call, struct agent_cursor *ret_fields, struct error *err)
{
    if (call->failure == -EPROTO)
        return error_set(err, -EPROTO,
                "the guest's agent sent something that is not its protocol; the machine must be started "
                "again");
    if (call->failure < 0)
        return error_set(err, -EPIPE, "the connection to the guest is gone: has the machine stopped?");
    struct agent_cursor fields = agent_cursor_over(call->result, call->result_size);
    int status = (int)agent_cursor_u32(&fields);
    const char *sentence = agent_cursor_string(&fields);
    if (fields.bad || status > 0 || status < -4095)
        return error_set(err, -EPROTO, "the guest's agent sent a result that cannot be read");
    *ret_fields = fields;
    if (status == 0)
        return 0;
    char clean[sizeof err->text];
    agent_clean_text(sentence, clean, sizeof clean);
    return error_set(err, status, "%s", clean);
}

int agent_call_simple(struct agent *agent, enum agent_operation operation, struct agent_builder *fields,
        bool passes_gate, unsigned limit_ms, void *ret_bytes, size_t ret_size, struct error *err)
{
    struct agent_call call;
    struct agent_cursor rest;
    struct agent_piece *piece;
    if (limit_ms == 0)
        limit_ms = AGENT_CALL_DEFAULT_MS;
    int result = agent_call_begin(agent, operation, fields, passes_gate, &call, err);
    if (fields != NULL)
        agent_builder_free(fields);
    if (result < 0)
        return result;
    while ((result = agent_call_wait(&call, limit_ms, false, &piece)) == AGENT_EVENT_PIECE)
        agent_call_taken(&call, piece);
    if (result == -ETIMEDOUT)
        error_set(err, result, "the guest did not answer within %u ms", limit_ms);
    else if ((result = agent_call_result(&call, &rest, err)) == 0 && ret_bytes != NULL) {
        const uint8_t *bytes = agent_cursor_bytes(&rest, ret_size);
        if (bytes == NULL)
            result = error_set(err, -EPROTO, "the guest's agent sent a short result");
        else
            memcpy(ret_bytes, bytes, ret_size);
    }
    agent_call_end(&call);
    return result;
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
        agent->held = (struct queue){.last = &agent->held.first};
    }
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
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
