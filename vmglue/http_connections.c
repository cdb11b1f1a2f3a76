// SPDX-License-Identifier: Apache-2.0
#include "vmglue/http_connections.h"

#include "blockstore/clock.h"
#include "vmglue/http_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUND_MS = 1000, EVENTS_AT_ONCE = 64, WAKE_ID = 0 };
static const uint64_t SECOND_NS = 1000000000;

struct http_connection {
    struct http_connections *all;
    struct http_connection *next, *previous; // protected by the lock, as is all without a note
    uint64_t id;
    int fd;
    bool excess; // since it came
    _Atomic enum http_phase phase;
    _Atomic uint64_t since_ns;
    int unsent; // what the kernel held of an answer at the last look
    bool registered;
    void *watched;
};

struct http_connections {
    struct http_limits limits;
    void (*gone)(void *request);
    pthread_t thread;
    int epoll_fd, wake_fd;
    pthread_mutex_t lock;
    struct http_connection *list; // protected by lock
    unsigned count;               // protected by lock
    uint64_t last_id;             // protected by lock
    bool stopping;                // protected by lock
};

static unsigned limit_secs(const struct http_connections *all, const struct http_connection *connection)
{
    bool crowded = all->count > all->limits.connections;
    unsigned head = all->limits.head_secs;
    switch (connection->phase) {
    case HTTP_PHASE_HEAD:
        return crowded && head > HTTP_HEAD_CROWDED_SECS ? HTTP_HEAD_CROWDED_SECS : head;
    case HTTP_PHASE_BODY:
        return all->limits.body_secs;
    case HTTP_PHASE_REPLY:
        return all->limits.stalled_secs;
    default:
        return 0;
    }
}

// An answer moves when the kernel holds less of it than before, or nothing. Lock held.
static void look_at_reply_locked(struct http_connection *connection, uint64_t now)
{
    int unsent = 0;
    if (ioctl(connection->fd, SIOCOUTQ, &unsent) < 0)
        return;
    if (unsent == 0 || unsent < connection->unsent)
        connection->since_ns = now;
    connection->unsent = unsent;
}

static void look_at_all(struct http_connections *all)
{
    uint64_t now = clock_monotonic_ns();
    pthread_mutex_lock(&all->lock);
    for (struct http_connection *at = all->list; at != NULL; at = at->next) {
        if (at->phase == HTTP_PHASE_REPLY)
            look_at_reply_locked(at, now);
        unsigned secs = limit_secs(all, at);
        uint64_t since = at->since_ns;
        if (secs == 0 || now < since || now - since < secs * SECOND_NS)
            continue;
        shutdown(at->fd, SHUT_RDWR);
        if (at->watched != NULL)
            all->gone(at->watched);
    }
    pthread_mutex_unlock(&all->lock);
}

static void tell_gone(struct http_connections *all, uint64_t id)
{
    pthread_mutex_lock(&all->lock);
    struct http_connection *at = all->list;
    while (at != NULL && at->id != id)
        at = at->next;
    if (at != NULL && at->watched != NULL)
        all->gone(at->watched);
    pthread_mutex_unlock(&all->lock);
}

static void *watch_all(void *context)
{
    struct http_connections *all = context;
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t looked_ns = 0;
    for (;;) {
        pthread_mutex_lock(&all->lock);
        bool stopping = all->stopping, any = all->count > 0;
        pthread_mutex_unlock(&all->lock);
        if (stopping)
            return NULL;
        int count = epoll_wait(all->epoll_fd, events, EVENTS_AT_ONCE, any ? ROUND_MS : -1);
        for (int i = 0; i < count; i++) {
            uint64_t drained;
            if (events[i].data.u64 != WAKE_ID)
                tell_gone(all, events[i].data.u64);
            else if (read(all->wake_fd, &drained, sizeof drained) < 0 && errno != EAGAIN)
                return NULL;
        }
        uint64_t now = clock_monotonic_ns();
        if (now - looked_ns >= ROUND_MS * SECOND_NS / 1000) {
            looked_ns = now;
            look_at_all(all);
        }
    }
}

static void wake(struct http_connections *all)
{
    uint64_t one = 1;
    ssize_t written = write(all->wake_fd, &one, sizeof one);
    (void)written; // full: it wakes anyway
}

static void take_defaults(struct http_limits *limits)
{
    limits->connections = limits->connections == 0 ? HTTP_CONNECTIONS_DEFAULT : limits->connections;
    limits->head_secs = limits->head_secs == 0 ? HTTP_HEAD_DEFAULT_SECS : limits->head_secs;
    limits->body_secs = limits->body_secs == 0 ? HTTP_BODY_DEFAULT_SECS : limits->body_secs;
    limits->stalled_secs = limits->stalled_secs == 0 ? HTTP_STALLED_DEFAULT_SECS : limits->stalled_secs;
}

struct http_connections *http_connections_create(
        const struct http_limits *limits, void (*gone)(void *request))
{
    struct http_connections *all = calloc(1, sizeof *all);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE_ID};
    if (all == NULL)
        return NULL;
    all->limits = *limits;
    take_defaults(&all->limits);
    all->gone = gone;
    pthread_mutex_init(&all->lock, NULL);
    all->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    all->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (all->epoll_fd >= 0 && all->wake_fd >= 0 &&
            epoll_ctl(all->epoll_fd, EPOLL_CTL_ADD, all->wake_fd, &event) == 0 &&
            pthread_create(&all->thread, NULL, watch_all, all) == 0)
        return all;
    if (all->epoll_fd >= 0)
        close(all->epoll_fd);
    if (all->wake_fd >= 0)
        close(all->wake_fd);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

struct http_connections *http_connections_destroy(struct http_connections *all)
{
    if (all == NULL)
        return NULL;
    pthread_mutex_lock(&all->lock);
    all->stopping = true;
    pthread_mutex_unlock(&all->lock);
    wake(all);
    pthread_join(all->thread, NULL);
    close(all->epoll_fd);
    close(all->wake_fd);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

struct http_connection *http_connections_add(struct http_connections *all, int fd)
{
    struct http_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return NULL;
    connection->all = all;
    connection->fd = fd;
    connection->since_ns = clock_monotonic_ns();
    pthread_mutex_lock(&all->lock);
    bool first = all->count++ == 0;
    connection->id = ++all->last_id;
    connection->excess = all->count > all->limits.connections;
    connection->next = all->list;
    if (connection->next != NULL)
        connection->next->previous = connection;
    all->list = connection;
    pthread_mutex_unlock(&all->lock);
    if (first)
        wake(all); // it may be waiting for ever
    return connection;
}

void http_connections_remove(struct http_connection *connection)
{
    struct http_connections *all = connection->all;
    pthread_mutex_lock(&all->lock);
    all->count--;
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        all->list = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    if (connection->registered)
        epoll_ctl(all->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    pthread_mutex_unlock(&all->lock);
    free(connection);
}

bool http_connection_is_excess(const struct http_connection *connection)
{
    return connection->excess;
}

void http_connection_enter(struct http_connection *connection, enum http_phase phase)
{
    connection->since_ns = clock_monotonic_ns(); // first: a phase with a limit never begins with an old time
    connection->phase = phase;
}

void http_connection_watch(struct http_connection *connection, void *request)
{
    struct http_connections *all = connection->all;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = connection->id};
    pthread_mutex_lock(&all->lock);
    connection->watched = request;
    if (epoll_ctl(all->epoll_fd, connection->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, connection->fd,
                &event) == 0)
        connection->registered = true;
    pthread_mutex_unlock(&all->lock);
}

void http_connection_unwatch(struct http_connection *connection)
{
    pthread_mutex_lock(&connection->all->lock);
    connection->watched = NULL;
    pthread_mutex_unlock(&connection->all->lock);
}
