// SPDX-License-Identifier: Apache-2.0
// libmicrohttpd with a thread per connection. A request without HTTP_STREAM: its body is collected, its
// handler runs on the connection's thread, the answer is queued whole, or its events come from a source that
// the same thread asks. A request with HTTP_STREAM: the handler gets a thread and two pipes; the connection's
// thread fills the one and drains the other. Whoever ends first breaks the pipes, and the handler's thread is
// joined before the request is freed, so nothing outlives its connection.
//
// Time-outs are not libmicrohttpd's, which would also count a handler's time: http_connections.c shuts the
// sockets of those down that are late. Its own few error pages (a head that is no HTTP) are plain text.
#include "blockstore/clock.h"
#include "vmglue/http_internal.h"
#include "vmglue/http_metrics.h"
#include "vmglue/http_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    READER_BLOCK_BYTES = 64 * 1024,
    SOURCE_BLOCK_BYTES = 4096,
    POOL_BYTES =
            192 * 1024, // of each connection: head, and the head of a proxied answer twice; touched as needed
    CLIENT_LEFT = 499,  // in logs and figures: before there was an answer
    BODY_DROP_MAX = 64 << 10, // a body that nobody wants is taken all the same when it is no larger
};

void *http_request_context(struct http_request *request)
{
    return request->server->config.context;
}

static bool is_stopping(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->lock);
    return stopping;
}

bool http_request_is_stopping(struct http_request *request)
{
    return is_stopping(request->server);
}

const struct http_words *http_server_words(struct http_server *server)
{
    return server->config.words;
}

void http_request_mask(struct http_request *request, json_t *body)
{
    const struct http_server_config *config = &request->server->config;
    if (config->mask != NULL && body != NULL && request->route != NULL)
        config->mask(config->context, request, body);
}

bool http_request_is_local(struct http_request *request)
{
    return request->server->config.local;
}

const char *http_request_header(struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

const char *http_server_reason(int status)
{
    return MHD_get_reason_phrase_for((unsigned)status);
}

void *http_server_tls_session(struct http_request *request)
{
    const union MHD_ConnectionInfo *info =
            request->server->config.tls
                    ? MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)
                    : NULL;
    return info == NULL ? NULL : info->tls_session;
}

struct header_visit {
    http_header_visitor *visit;
    void *context;
};

static enum MHD_Result visit_header(void *context, enum MHD_ValueKind kind, const char *name,
        size_t name_size, const char *value, size_t value_size)
{
    const struct header_visit *visit = context;
    visit->visit(visit->context, name, name_size, value == NULL ? "" : value, value_size);
    return MHD_YES;
}

void http_request_each_header(struct http_request *request, http_header_visitor *visit, void *context)
{
    struct header_visit visitor = {visit, context};
    MHD_get_connection_values_n(request->connection, MHD_HEADER_KIND, visit_header, &visitor);
}

static enum MHD_Result add_query(void *context, enum MHD_ValueKind kind, const char *name, size_t name_size,
        const char *value, size_t value_size)
{
    struct http_request *request = context;
    if (request->query_count == HTTP_QUERIES_MAX) {
        snprintf(request->bad_query, sizeof request->bad_query,
                "the query has more than %d parameters; no call takes so many", HTTP_QUERIES_MAX);
        return MHD_NO;
    }
    bool twice = http_request_query(request, name) != NULL;
    struct http_query *query = &request->queries[request->query_count++];
    query->name = strndup(name, name_size);
    query->value = strndup(value == NULL ? "" : value, value_size);
    if (query->name == NULL || query->value == NULL)
        abort();
    if (twice)
        snprintf(request->bad_query, sizeof request->bad_query,
                "query parameter %.60s is given twice; give it once", query->name);
    // A zero byte would cut a path short and so name another file.
    if (strlen(query->name) != name_size || strlen(query->value) != value_size)
        snprintf(request->bad_query, sizeof request->bad_query,
                "query parameter %.60s holds a zero byte (%%00), which nothing here can hold", query->name);
    return MHD_YES;
}

// ---- connections ----

static void on_connection(void *context, struct MHD_Connection *connection, void **socket_context,
        enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*socket_context != NULL)
            http_connections_remove(*socket_context);
        *socket_context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL)
        *socket_context = http_connections_add(server->connections, info->connect_fd);
}

// Called by libmicrohttpd with the first line of a request, before anything of it is decoded.
static void *on_target(void *context, const char *target, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *slot =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_request *request =
            slot == NULL || slot->socket_context == NULL ? NULL : http_run_create(context, target);
    if (request == NULL)
        return NULL;
    request->connection = connection;
    request->slot = slot->socket_context;
    const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    request->socket_fd = info == NULL ? -1 : info->connect_fd;
    return request;
}

// ---- answers ----

static ssize_t feed(void *context, uint64_t position, char *buffer, size_t capacity)
{
    ssize_t got = http_feed(context, buffer, capacity);
    return got > 0 ? got : got == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

struct handover {
    struct http_request *request;
    struct MHD_UpgradeResponseHandle *handle;
    int fd;
    size_t size;
    char bytes[];
};

static void speak_other(struct http_request *request, int fd, const char *bytes, size_t size)
{
    http_upgraded *upgraded = request->upgraded;
    request->upgraded = NULL;
    upgraded(request, request->upgrade_context, fd, bytes, size);
}

static void end_request(struct http_request *request);

static void *speak_other_aside(void *context)
{
    struct handover *handover = context;
    struct http_request *request = handover->request;
    struct http_server *server = request->server;
    speak_other(request, handover->fd, handover->bytes, handover->size);
    // The connection's thread still has to look at the request once, however soon this was over. And whoever
    // breaks a request off shuts its socket down, which is another's once this one is closed.
    pthread_mutex_lock(&server->lock);
    while (!request->let_go)
        pthread_cond_wait(&server->changed, &server->lock);
    pthread_mutex_unlock(&server->lock);
    end_request(request);
    MHD_upgrade_action(handover->handle, MHD_UPGRADE_ACTION_CLOSE);
    free(handover);
    pthread_mutex_lock(&server->lock);
    server->detached--;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

// Without TLS the connection's thread waits here as long as the other protocol is spoken. With TLS that
// thread is needed to carry the bytes, so another one speaks, and the request ends with that.
static void on_upgrade(void *context, struct MHD_Connection *connection, void *request_context,
        const char *extra_in, size_t extra_in_size, MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
    struct http_request *request = context;
    struct http_server *server = request->server;
    pthread_t thread;
    http_connection_enter(request->slot, HTTP_PHASE_OTHER);
    if (!server->config.tls) {
        speak_other(request, fd, extra_in, extra_in_size);
        MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
        return;
    }
    struct handover *handover = malloc(sizeof *handover + extra_in_size);
    if (handover == NULL) {
        MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
        return;
    }
    *handover = (struct handover){request, handle, fd, extra_in_size};
    memcpy(handover->bytes, extra_in, extra_in_size);
    request->aside = true;
    pthread_mutex_lock(&server->lock);
    server->detached++;
    pthread_mutex_unlock(&server->lock);
    if (http_run_thread(&thread, true, speak_other_aside, handover) == 0)
        return;
    request->aside = false;
    free(handover);
    pthread_mutex_lock(&server->lock);
    server->detached--;
    pthread_mutex_unlock(&server->lock);
    MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}

static struct MHD_Response *make_response(struct http_request *request)
{
    if (request->upgrade_to != NULL) {
        struct MHD_Response *response = MHD_create_response_for_upgrade(on_upgrade, request);
        if (response != NULL)
            MHD_add_response_header(response, "Upgrade", request->upgrade_to);
        return response;
    }
    if (request->whole)
        return MHD_create_response_from_buffer(request->reply_size,
                request->reply == NULL ? (void *)"" : request->reply,
                MHD_RESPMEM_PERSISTENT); // freed with the request, after libmicrohttpd is done with it
    uint64_t size = request->stream_size < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)request->stream_size;
    return MHD_create_response_from_callback(
            size, request->source != NULL ? SOURCE_BLOCK_BYTES : READER_BLOCK_BYTES, feed, request, NULL);
}

static void add_cors_headers(struct http_request *request, struct MHD_Response *response)
{
    if (request->server->config.cors_origins == NULL || request->chosen)
        return;
    const char *origin = http_cors_origin(request);
    MHD_add_response_header(response, "Vary", "Origin");
    if (origin == NULL)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers",
            "X-Request-Id, Retry-After, Location, Content-Range, Content-Disposition, Idempotency-Replayed");
}

static void add_headers(struct http_request *request, struct MHD_Response *response)
{
    bool has_id = false;
    if (request->content_type[0] != '\0')
        MHD_add_response_header(response, "Content-Type", request->content_type);
    for (unsigned i = 0; i < request->header_count; i++) {
        has_id |= strcasecmp(request->headers[i].name, "X-Request-Id") == 0;
        MHD_add_response_header(response, request->headers[i].name, request->headers[i].value);
    }
    if (!has_id)
        MHD_add_response_header(response, "X-Request-Id", request->id);
    if (request->events) {
        MHD_add_response_header(response, "Cache-Control", "no-store");
        MHD_add_response_header(response, "X-Accel-Buffering", "no"); // proxies hold no event back
    }
    if (request->status == 405)
        MHD_add_response_header(response, "Allow", request->allow);
    if (http_connection_is_excess(request->slot) && request->upgrade_to == NULL)
        MHD_add_response_header(response, "Connection", "close");
    add_cors_headers(request, response);
}

static bool is_stream(const struct http_request *request)
{
    return request->upgrade_to == NULL && !request->whole && request->stream_size < 0;
}

static enum MHD_Result queue_reply(struct http_request *request)
{
    struct MHD_Response *response = make_response(request);
    if (response == NULL)
        return MHD_NO;
    add_headers(request, response);
    http_connection_enter(request->slot, HTTP_PHASE_REPLY);
    if (is_stream(request)) {
        request->streaming = true;
        if (request->server->config.metrics != NULL)
            http_metrics_streams(request->server->config.metrics, 1);
    }
    enum MHD_Result result = MHD_queue_response(request->connection, (unsigned)request->status, response);
    MHD_destroy_response(response);
    if (request->streaming)
        http_connection_watch(request->slot, request);
    return result;
}

// ---- requests ----

static void *handler_thread(void *context)
{
    http_run_handler(context);
    return NULL;
}

static void start_handler(struct http_request *request)
{
    if (!request->threaded)
        return;
    if (http_run_thread(&request->thread, false, handler_thread, request) == 0)
        return;
    request->threaded = false;
    request->route = NULL;
    http_reply_retry(request, 503, "capacity.threads", 1, "no thread for this call; try again");
}

// The head is there. An answer that does not need the body is given before it comes, unless it is so small
// that the connection is better kept.
static enum MHD_Result take_head(
        struct http_request *request, const char *method, const char *url, const char *version)
{
    const union MHD_ConnectionInfo *size =
            MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    request->method = strdup(method);
    request->path = strdup(url);
    if (request->method == NULL || request->path == NULL || request->target == NULL)
        return MHD_NO;
    request->started = true; // what ends now is in the lists and figures
    MHD_get_connection_values_n(request->connection, MHD_GET_ARGUMENT_KIND, add_query, request);
    if (request->server->config.metrics != NULL)
        http_metrics_begin(request->server->config.metrics);
    http_connection_enter(request->slot, HTTP_PHASE_WORK);
    bool sound = http_head_check(request, version, size == NULL ? 0 : size->header_size);
    if (sound)
        http_run_start(request);
    http_run_list(request);
    start_handler(request);
    bool large = request->body_announced > BODY_DROP_MAX || request->expects;
    if (request->has_body && large && request->threaded)
        http_pipe_wait_reader(request->in); // does the handler want it?
    if (!sound || (request->has_body && large && http_run_has_begun(request))) {
        request->refused = request->has_body;
        if (http_early_take(request))
            return queue_reply(request);
        http_early_wait(request);
        return MHD_NO;
    }
    http_connection_enter(request->slot, HTTP_PHASE_BODY);
    return MHD_YES;
}

// The body has come in whole: run the handler, or wait until the streaming one has something to say.
static enum MHD_Result answer(struct http_request *request)
{
    if (!http_early_take(request)) {
        http_early_wait(request);
        return MHD_NO;
    }
    http_connection_enter(request->slot, HTTP_PHASE_WORK);
    if (request->threaded) {
        http_pipe_finish(request->in);
        http_run_wait_begun(request);
    } else if (request->route != NULL) {
        if (request->body_too_large)
            http_reply_error(request, 413, "validation.too_large",
                    "the request's body is larger than %d bytes", HTTP_JSON_MAX);
        else
            http_run_handler(request);
    }
    return queue_reply(request);
}

// A small body that changes nothing about the answer: who sends it byte by byte would hold a connection
// without a key. It has to come within the time of one piece.
static bool is_for_nobody(struct http_request *request)
{
    bool open = request->route != NULL && !request->threaded && (request->route->flags & HTTP_OPEN) != 0;
    return open || (request->body_announced <= BODY_DROP_MAX && http_run_has_begun(request));
}

static enum MHD_Result on_access(void *context, struct MHD_Connection *connection, const char *url,
        const char *method, const char *version, const char *upload_data, size_t *upload_data_size,
        void **request_context)
{
    struct http_request *request = *request_context;
    if (request == NULL)
        return MHD_NO; // no memory
    if (!request->started)
        return take_head(request, method, url, version);
    if (*upload_data_size > 0 && is_for_nobody(request)) {
        *upload_data_size = 0;
        return MHD_YES;
    }
    if (*upload_data_size > 0 && http_early_is(request)) {
        *upload_data_size = 0;
        return http_early_is_over(request) ? MHD_NO : MHD_YES;
    }
    if (*upload_data_size > 0) {
        http_connection_enter(
                request->slot, HTTP_PHASE_WORK); // a pipe that is full is not the client's fault
        http_run_take_body(request, upload_data, *upload_data_size);
        *upload_data_size = 0;
        http_connection_enter(request->slot, HTTP_PHASE_BODY);
        return MHD_YES;
    }
    return answer(request);
}

static void count(struct http_request *request, uint64_t duration_ns)
{
    struct http_metrics *metrics = request->server->config.metrics;
    if (metrics == NULL)
        return;
    if (request->streaming)
        http_metrics_streams(metrics, -1);
    // A guest may make up any number of statuses.
    int status = request->chosen ? request->status / 100 * 100 : request->status;
    http_metrics_end(metrics, request->method, request->found == NULL ? NULL : request->found->pattern,
            status, duration_ns, request->streaming || request->upgrade_to != NULL);
}

static void end_request(struct http_request *request)
{
    struct http_server *server = request->server;
    uint64_t duration_ns = clock_monotonic_ns() - request->started_ns;
    if (request->status == 0 || request->left)
        request->status = CLIENT_LEFT;
    http_run_unlist(request);
    count(request, duration_ns);
    if (server->config.on_request != NULL)
        server->config.on_request(server->config.context, request, request->status, duration_ns);
    http_run_free(request);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request_context,
        enum MHD_RequestTerminationCode how)
{
    struct http_request *request = *request_context;
    *request_context = NULL;
    if (request == NULL)
        return;
    if (request->aside) { // its thread may end it from here on
        struct http_server *server = request->server;
        pthread_mutex_lock(&server->lock);
        request->let_go = true;
        pthread_cond_broadcast(&server->changed);
        pthread_mutex_unlock(&server->lock);
        return;
    }
    if (!request->started) { // its head was no good, or never came
        http_run_free(request);
        return;
    }
    if (request->threaded) {
        http_pipe_break(request->in);
        http_pipe_break(request->out);
        pthread_join(request->thread, NULL);
    }
    http_connection_unwatch(request->slot);
    if (request->upgraded != NULL) // the client left before the answer
        request->upgraded(request, request->upgrade_context, -1, NULL, 0);
    if (request->refused && how == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        http_run_linger(request);
    http_connection_enter(request->slot, HTTP_PHASE_HEAD);
    end_request(request);
}

// ---- the server ----

static struct MHD_Daemon *start_library(struct http_server *server)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
                     MHD_ALLOW_UPGRADE;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK, 0, http_tls_callback()},
            {MHD_OPTION_HTTPS_PRIORITIES, 0, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
            {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(flags | (server->config.tls ? MHD_USE_TLS : 0), 0, NULL, NULL, on_access, server,
            MHD_OPTION_URI_LOG_CALLBACK, on_target, server, MHD_OPTION_LISTEN_SOCKET, server->listen_fd,
            MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
            server, MHD_OPTION_CONNECTION_LIMIT,
            server->config.limits.connections + 2 * HTTP_CONNECTIONS_SPARE, MHD_OPTION_THREAD_STACK_SIZE,
            (size_t)HTTP_STACK_BYTES, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
            MHD_OPTION_ARRAY, server->config.tls ? tls : none, MHD_OPTION_END);
}

static void free_server(struct http_server *server)
{
    server->connections = http_connections_destroy(server->connections);
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

int http_server_start(
        const struct http_server_config *config, struct http_server **ret_server, struct error *err)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return error_set(err, -ENOMEM, "no memory for the HTTP server");
    server->config = *config;
    if (server->config.limits.connections == 0)
        server->config.limits.connections = HTTP_CONNECTIONS_DEFAULT;
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->listen_fd = fcntl(config->listen_fd, F_DUPFD_CLOEXEC, 0);
    if (server->listen_fd >= 0)
        server->connections = http_connections_create(&server->config.limits, http_feed_client_gone);
    if (server->connections != NULL)
        server->daemon = start_library(server);
    if (server->daemon == NULL) {
        int code = errno == 0 ? -EIO : -errno;
        free_server(server);
        return error_set(err, code, "the HTTP server cannot start: %s", strerror(-code));
    }
    *ret_server = server;
    return 0;
}

void http_server_quiesce(struct http_server *server)
{
    if (server->quiesced)
        return;
    server->quiesced = true;
    MHD_quiesce_daemon(server->daemon);
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    for (struct http_request *request = server->requests; request != NULL; request = request->next) {
        if (request->in == NULL)
            continue;
        http_pipe_break(request->in);
        http_pipe_break(request->out);
    }
    pthread_mutex_unlock(&server->lock);
}

struct http_server *http_server_stop(struct http_server *server)
{
    if (server == NULL)
        return NULL;
    http_server_quiesce(server);
    pthread_mutex_lock(&server->lock);
    while (server->detached > 0) // they need the library's threads for their last words
        pthread_cond_wait(&server->changed, &server->lock);
    pthread_mutex_unlock(&server->lock);
    MHD_stop_daemon(server->daemon);
    free_server(server);
    return NULL;
}
