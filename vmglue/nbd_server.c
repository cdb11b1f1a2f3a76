// SPDX-License-Identifier: Apache-2.0
// Listener and list of connections.
//
// An accept that is under way cannot be taken back, and it must not outlive the server (it would swallow a
// client of the next one). So the loop polls a private epoll descriptor that watches the listener and an
// eventfd; a stop writes the eventfd, the poll ends, and the listener itself is left alone for whoever serves
// it next.
#include "vmglue/nbd_connection.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const uint64_t default_negotiation_timeout_ns = 30000000000;
static const uint64_t default_stall_timeout_ns = 30000000000;
static const uint64_t retry_ns = 50000000; // of an accept without descriptors or places left
enum { SOCKET_BUFFER_BYTES = 2 * 1024 * 1024 };

struct nbd_server {
    struct nbd_server_config config;
    struct nbd_negotiation_source source;
    int epoll_fd, stop_fd;
    struct io_op poll;
    bool polling;
    struct loop_timer retry;
    struct loop_work start_work, stop_work;
    pthread_mutex_t lock; // protects what follows; only loop_post is called under it
    pthread_cond_t idle;
    bool stopping, accept_ended;
    struct nbd_connection *connections;
    unsigned connection_count;
    struct nbd_server_stat stat;
};

#define server_of(pointer, member)                                                                           \
    ((struct nbd_server *)((char *)(pointer)-offsetof(struct nbd_server, member)))

// ---- Exports ----

static int open_target(void *context, const char *name, struct nbd_target *ret_target)
{
    struct nbd_server *server = context;
    struct nbd_export export = {0};
    struct nbd_target target = {0};
    int result;
    server->config.resolve(server->config.context, name, &export);
    if (!export.found)
        return -ENOENT;
    if (export.base.value) {
        result = base_open(server->config.store, export.base, &target.base);
        if (result < 0)
            return result;
        // A base belongs to no loop: spread them.
        target.loop =
                store_loop(server->config.store, export.base.value % store_loop_count(server->config.store));
        target.size_bytes = base_size_bytes(target.base);
        target.read_only = true;
    } else {
        result = volume_open(server->config.store, export.volume, &target.volume);
        if (result < 0)
            return result;
        target.loop = volume_loop(target.volume);
        target.size_bytes = volume_size_bytes(target.volume);
        target.read_only = export.read_only;
    }
    _Static_assert(sizeof target.description == sizeof export.description, "they are copied");
    memcpy(target.description, export.description, sizeof target.description);
    *ret_target = target;
    return 0;
}

static void close_target(void *context, struct nbd_target *target)
{
    nbd_server_close_target(target);
}

void nbd_server_close_target(struct nbd_target *target)
{
    target->volume = volume_close(target->volume);
    target->base = base_close(target->base);
}

static void list_exports(void *context,
        void (*each)(void *each_context, const char *name, const char *description), void *each_context)
{
    struct nbd_server *server = context;
    server->config.list(server->config.context, each, each_context);
}

const struct nbd_negotiation_source *nbd_server_source(struct nbd_server *server)
{
    return &server->source;
}

struct nbd_budget *nbd_server_budget(struct nbd_server *server)
{
    return server->config.budget;
}

uint64_t nbd_server_stall_ns(struct nbd_server *server)
{
    return server->config.stall_timeout_ns;
}

// ---- The list ----

bool nbd_server_set_loop(struct nbd_server *server, struct nbd_connection *connection, struct loop *loop)
{
    pthread_mutex_lock(&server->lock);
    bool stays = connection->stop_posted;
    if (!stays)
        connection->loop = loop;
    pthread_mutex_unlock(&server->lock);
    return !stays;
}

static void add_counted(struct nbd_server_stat *to, const struct nbd_server_stat *counted)
{
    to->requests_total += counted->requests_total;
    to->errors_total += counted->errors_total;
    to->receives_total += counted->receives_total;
    to->sends_total += counted->sends_total;
}

void nbd_server_count(struct nbd_server *server, struct nbd_connection *connection)
{
    pthread_mutex_lock(&server->lock);
    add_counted(&server->stat, &connection->counted);
    pthread_mutex_unlock(&server->lock);
    connection->counted = (struct nbd_server_stat){0};
}

bool nbd_server_forget(struct nbd_server *server, struct nbd_connection *connection)
{
    pthread_mutex_lock(&server->lock);
    bool gone = !connection->stop_posted || connection->stop_ran;
    if (gone) {
        if (connection->previous)
            connection->previous->next = connection->next;
        else
            server->connections = connection->next;
        if (connection->next)
            connection->next->previous = connection->previous;
        server->connection_count--;
        pthread_cond_broadcast(&server->idle);
    }
    pthread_mutex_unlock(&server->lock);
    return gone;
}

static bool add_connection(struct nbd_server *server, struct nbd_connection *connection)
{
    pthread_mutex_lock(&server->lock);
    bool added = !server->stopping;
    if (added) {
        connection->next = server->connections;
        if (connection->next)
            connection->next->previous = connection;
        server->connections = connection;
        server->connection_count++;
        server->stat.connections_total++;
    }
    pthread_mutex_unlock(&server->lock);
    return added;
}

// ---- Accepting ----

static void poll_listener(struct nbd_server *server);

static void end_accepting(struct nbd_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->accept_ended = true;
    pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
}

static bool is_stopping(struct nbd_server *server)
{
    pthread_mutex_lock(&server->lock);
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->lock);
    return stopping;
}

static void retry_fired(struct loop_timer *timer)
{
    poll_listener(server_of(timer, retry));
}

static void retry_later(struct nbd_server *server)
{
    struct loop *loop = server->config.loop;
    server->retry.fire = retry_fired;
    server->retry.deadline_ns = loop_now_ns(loop) + retry_ns;
    loop->ops->add_timer(loop, &server->retry);
}

static void widen_socket(int fd)
{
    // Larger than the usual limit needs a privilege; without it the limit applies, which is only slower.
    int bytes = SOCKET_BUFFER_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static void start_connection(struct nbd_server *server, int fd)
{
    struct nbd_connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        abort();
    widen_socket(fd);
    connection->server = server;
    connection->loop = server->config.loop;
    connection->fd = fd;
    if (!add_connection(server, connection)) {
        close(fd);
        free(connection);
        return;
    }
    nbd_connection_start(connection, server->config.negotiation_timeout_ns);
}

// By the word of the kernel at the time of the connect.
static bool is_welcome(struct nbd_server *server, int fd)
{
    uid_t uid;
    pid_t pid;
    return !server->config.check_peer ||
           (unix_socket_peer(fd, &pid, &uid) == 0 && (uid == 0 || uid == server->config.peer_uid));
}

// Takes every client that waits.
static void poll_done(struct io_op *op, int64_t result)
{
    struct nbd_server *server = server_of(op, poll);
    server->polling = false;
    for (;;) {
        if (is_stopping(server)) {
            end_accepting(server);
            return;
        }
        if (result < 0 || nbd_server_connections(server) >= server->config.max_connections) {
            retry_later(server);
            return;
        }
        int fd = accept4(server->config.listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && !is_welcome(server, fd)) {
            close(fd);
        } else if (fd >= 0) {
            start_connection(server, fd);
        } else if (errno == EAGAIN) {
            poll_listener(server);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            retry_later(server);
            return;
        }
    }
}

static void poll_listener(struct nbd_server *server)
{
    server->polling = true;
    server->poll =
            (struct io_op){.code = IO_POLL, .fd = server->epoll_fd, .flags = POLLIN, .done = poll_done};
    loop_submit(server->config.loop, &server->poll);
}

static void start_work(struct loop_work *work)
{
    poll_listener(server_of(work, start_work));
}

static void stop_work(struct loop_work *work)
{
    struct nbd_server *server = server_of(work, stop_work);
    struct loop *loop = server->config.loop;
    if (server->polling) {
        uint64_t one = 1;
        if (write(server->stop_fd, &one, sizeof one) != sizeof one)
            abort(); // cannot happen: the counter is empty
        return;
    }
    if (server->retry.armed)
        loop->ops->cancel_timer(loop, &server->retry);
    end_accepting(server);
}

// ---- Start and stop ----

static int watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static struct nbd_server *destroy(struct nbd_server *server)
{
    if (server->epoll_fd >= 0)
        close(server->epoll_fd);
    if (server->stop_fd >= 0)
        close(server->stop_fd);
    pthread_cond_destroy(&server->idle);
    pthread_mutex_destroy(&server->lock);
    free(server);
    return NULL;
}

int nbd_server_start(
        const struct nbd_server_config *config, struct nbd_server **ret_server, struct error *err)
{
    struct nbd_server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(err, -ENOMEM, "not enough memory for an NBD server");
    server->config = *config;
    if (server->config.max_connections == 0)
        server->config.max_connections = 256;
    if (server->config.negotiation_timeout_ns == 0)
        server->config.negotiation_timeout_ns = default_negotiation_timeout_ns;
    if (server->config.stall_timeout_ns == 0)
        server->config.stall_timeout_ns = default_stall_timeout_ns;
    if (!server->config.budget)
        server->config.budget = nbd_budget_of_process();
    server->source = (struct nbd_negotiation_source){
            .open = open_target,
            .close = close_target,
            .list = config->list ? list_exports : NULL,
            .context = server,
    };
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->idle, NULL);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->stop_fd = eventfd(0, EFD_CLOEXEC);
    int flags = fcntl(config->listen_fd, F_GETFL);
    int result = server->epoll_fd < 0 || server->stop_fd < 0 || flags < 0 ||
                                 fcntl(config->listen_fd, F_SETFL, flags | O_NONBLOCK) < 0
                         ? -errno
                         : 0;
    if (result == 0)
        result = watch(server->epoll_fd, config->listen_fd);
    if (result == 0)
        result = watch(server->epoll_fd, server->stop_fd);
    if (result < 0) {
        destroy(server);
        return error_set(err, result,
                "the NBD socket cannot be watched (%s); is it a listening socket, and is the limit of open "
                "files reached?",
                strerror(-result));
    }
    server->start_work.run = start_work;
    loop_post(config->loop, &server->start_work);
    *ret_server = server;
    return 0;
}

struct nbd_server *nbd_server_stop(struct nbd_server *server)
{
    if (!server)
        return NULL;
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    server->stop_work.run = stop_work;
    loop_post(server->config.loop, &server->stop_work);
    for (struct nbd_connection *connection = server->connections; connection; connection = connection->next) {
        connection->stop_posted = true;
        connection->stop_work.run = nbd_connection_stop_work;
        loop_post(connection->loop, &connection->stop_work);
    }
    while (!server->accept_ended || server->connections)
        pthread_cond_wait(&server->idle, &server->lock);
    pthread_mutex_unlock(&server->lock);
    return destroy(server);
}

unsigned nbd_server_connections(struct nbd_server *server)
{
    pthread_mutex_lock(&server->lock);
    unsigned count = server->connection_count;
    pthread_mutex_unlock(&server->lock);
    return count;
}

void nbd_server_stat(struct nbd_server *server, struct nbd_server_stat *ret_stat)
{
    pthread_mutex_lock(&server->lock);
    *ret_stat = server->stat;
    pthread_mutex_unlock(&server->lock);
}
