// SPDX-License-Identifier: Apache-2.0
// Only the I/O thread takes pumps out of the list, others put new ones in front of it: so that thread walks
// the list without the lock, from a head that it read with it.
#include "vmglue/agent_pump.h"

#include "vmglue/agent_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int agent_pump_new(struct agent *agent, struct agent_pump **ret_pump, int *ret_fd, struct error *err)
{
    int both[2];
    pthread_mutex_lock(&agent->lock);
    bool many = agent->pump_count >= AGENT_PUMPS_MAX;
    agent->pump_count += !many;
    pthread_mutex_unlock(&agent->lock);
    if (many)
        return error_set(
                err, -EMFILE, "%d connections into this machine are open: close some first", AGENT_PUMPS_MAX);
    struct agent_pump *pump = calloc(1, sizeof *pump);
    if (pump == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) < 0) {
        int result = pump == NULL ? -ENOMEM : -errno;
        free(pump);
        pthread_mutex_lock(&agent->lock);
        agent->pump_count--;
        pthread_mutex_unlock(&agent->lock);
        return error_set(err, result, "cannot open a connection into the machine: %s", strerror(-result));
    }
    pump->fd = both[0];
    pump->call.agent = agent;
    pump->readable = pump->writable = true;
    *ret_pump = pump;
    *ret_fd = both[1];
    return 0;
}

void agent_pump_free(struct agent_pump *pump)
{
    struct agent *agent = pump->call.agent;
    pthread_mutex_lock(&agent->lock);
    if (pump->left)
        agent->pumps_left--;
    else
        agent->pump_count--;
    pthread_mutex_unlock(&agent->lock);
    if (pump->fd >= 0)
        close(pump->fd);
    free(pump->piece);
    free(pump);
}

void agent_pump_start(struct agent_pump *pump)
{
    struct agent *agent = pump->call.agent;
    pthread_mutex_lock(&agent->lock);
    bool late = agent->failure < 0; // the I/O thread may be gone
    if (!late) {
        pump->next = agent->pumps;
        agent->pumps = pump;
        agent_wake(agent);
    }
    pump->over = late;
    pthread_mutex_unlock(&agent->lock);
    if (!late)
        return;
    if (pump->kept) {
        close(pump->fd);
        pump->fd = -1;
    } else {
        agent_call_end(&pump->call);
        agent_pump_free(pump);
    }
}

void agent_pump_drop(struct agent_pump *pump)
{
    struct agent *agent = pump->call.agent;
    pthread_mutex_lock(&agent->lock);
    pump->dropped = true;
    agent_wake(agent);
    while (!pump->over)
        pthread_cond_wait(&pump->call.changed, &agent->lock);
    pthread_mutex_unlock(&agent->lock);
    agent_call_end(&pump->call);
    agent_pump_free(pump);
}

static bool is_dropped(struct agent_pump *pump)
{
    struct agent *agent = pump->call.agent;
    pthread_mutex_lock(&agent->lock);
    bool dropped = pump->dropped;
    pthread_mutex_unlock(&agent->lock);
    return dropped;
}

// The next piece for the user; NULL: none yet, or (*ret_done) none any more.
static struct agent_piece *next_piece(struct agent_pump *pump, bool *ret_done)
{
    struct agent_call *call = &pump->call;
    pthread_mutex_lock(&call->agent->lock);
    struct agent_piece *piece = call->first;
    if (piece != NULL && (call->first = piece->next) == NULL)
        call->last = &call->first;
    *ret_done = piece == NULL && (call->done || pump->dropped);
    pthread_mutex_unlock(&call->agent->lock);
    return piece;
}

// To the user. True when the stream is over.
static bool work_out(struct agent_pump *pump)
{
    for (;;) {
        bool done = false;
        if (pump->piece == NULL) {
            pump->piece = next_piece(pump, &done);
            pump->piece_written = 0;
        }
        struct agent_piece *piece = pump->piece;
        if (piece == NULL)
            return done;
        while (!pump->hung_up && piece->channel == 1 && pump->piece_written < piece->size) {
            if (!pump->writable) // who drops it reads no more, and holds his end open until it is over
                return is_dropped(pump);
            ssize_t sent = send(pump->fd, piece->bytes + pump->piece_written,
                    piece->size - pump->piece_written, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent > 0)
                pump->piece_written += (size_t)sent;
            else if (errno == EAGAIN)
                pump->writable = false;
            else if (errno != EINTR)
                pump->hung_up = true;
        }
        if (piece->end && piece->channel == 1)
            shutdown(pump->fd, SHUT_WR);
        pump->piece = NULL;
        agent_call_taken(&pump->call, piece);
    }
}

// From the user, as far as the guest has room.
static void work_in(struct agent_pump *pump)
{
    uint8_t bytes[AGENT_PAYLOAD_MAX];
    while (!pump->input_ended && pump->readable) {
        size_t credit = agent_call_credit(&pump->call);
        if (credit == 0)
            return;
        ssize_t got = recv(pump->fd, bytes, credit < sizeof bytes ? credit : sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN) {
            pump->readable = false;
            return;
        }
        pump->input_ended = got <= 0;
        // A gap in a stream of bytes would be worse than its end.
        if (agent_call_send(&pump->call, bytes, got > 0 ? (size_t)got : 0, pump->input_ended) < 0)
            pump->hung_up = pump->input_ended = true;
    }
}

static void take_out(struct agent *agent, struct agent_pump *pump)
{
    close(pump->fd);
    pump->fd = -1;
    pthread_mutex_lock(&agent->lock);
    struct agent_pump **link = &agent->pumps;
    while (*link != pump)
        link = &(*link)->next;
    *link = pump->next;
    bool kept = pump->kept; // once it is over, its owner may free it
    pump->over = true;
    pthread_cond_broadcast(&pump->call.changed);
    pthread_mutex_unlock(&agent->lock);
    if (kept)
        return;
    agent_call_end(&pump->call);
    agent_pump_free(pump);
}

static struct agent_pump *head(struct agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    struct agent_pump *first = agent->pumps;
    pthread_mutex_unlock(&agent->lock);
    return first;
}

static void note_left(struct agent *agent, struct agent_pump *pump)
{
    if (pump->left || pump->kept) // the owner of a kept one drops it
        return;
    pthread_mutex_lock(&agent->lock);
    pump->left = true;
    agent->pump_count--;
    agent->pumps_left++;
    pthread_mutex_unlock(&agent->lock);
}

// New ones are put in front, so the last of these is the oldest.
static struct agent_pump *oldest_left(struct agent *agent)
{
    struct agent_pump *oldest = NULL;
    pthread_mutex_lock(&agent->lock);
    bool many = agent->pumps_left > AGENT_PUMPS_LEFT_MAX;
    for (struct agent_pump *pump = agent->pumps; many && pump != NULL; pump = pump->next)
        oldest = pump->left ? pump : oldest;
    pthread_mutex_unlock(&agent->lock);
    return oldest;
}

void agent_pump_work(struct agent *agent)
{
    struct agent_pump *oldest;
    for (struct agent_pump *pump = head(agent), *next; pump != NULL; pump = next) {
        next = pump->next;
        bool over = work_out(pump);
        work_in(pump);
        // Who closed his end altogether wants no more; what he had written before goes to the guest first.
        if (over || (pump->hung_up && pump->input_ended))
            take_out(agent, pump);
        else if (pump->hung_up)
            note_left(agent, pump);
    }
    while ((oldest = oldest_left(agent)) != NULL)
        take_out(agent, oldest);
}

struct pollfd *agent_pump_polls(struct agent *agent, size_t reserved, size_t *ret_count)
{
    size_t count = reserved;
    struct agent_pump *first = head(agent);
    for (struct agent_pump *pump = first; pump != NULL; pump = pump->next)
        count++;
    if (count > agent->poll_capacity) {
        struct pollfd *grown = realloc(agent->polls, 2 * count * sizeof *grown);
        if (grown == NULL)
            return NULL;
        agent->polls = grown;
        agent->poll_capacity = 2 * count;
    }
    count = reserved;
    for (struct agent_pump *pump = first; pump != NULL; pump = pump->next) {
        short events = 0;
        if (!pump->readable && !pump->input_ended)
            events |= POLLIN;
        if (!pump->writable && pump->piece != NULL)
            events |= POLLOUT;
        // A hang-up that is known would be reported again and again.
        pump->slot = pump->hung_up && events == 0 ? 0 : count;
        if (pump->slot != 0)
            agent->polls[count++] = (struct pollfd){.fd = pump->fd, .events = events};
    }
    *ret_count = count;
    return agent->polls;
}

void agent_pump_polled(struct agent *agent, const struct pollfd *polls)
{
    for (struct agent_pump *pump = head(agent); pump != NULL; pump = pump->next) {
        if (pump->slot == 0)
            continue;
        short events = polls[pump->slot].revents;
        pump->readable = pump->readable || events & (POLLIN | POLLHUP | POLLERR);
        pump->writable = pump->writable || events & (POLLOUT | POLLERR);
        pump->hung_up = pump->hung_up || events & (POLLHUP | POLLERR);
        pump->slot = 0;
    }
}

void agent_pump_end_all(struct agent *agent)
{
    struct agent_pump *pump;
    while ((pump = head(agent)) != NULL) {
        work_out(pump); // what came still reaches the user as far as there is room
        take_out(agent, pump);
    }
}
