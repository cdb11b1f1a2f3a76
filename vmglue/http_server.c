// SPDX-License-Identifier: Apache-2.0
// libmicrohttpd with a thread per connection. A request without HTTP_STREAM: its body is collected, its
// handler runs on the connection's thread, the answer is queued whole. A request with HTTP_STREAM: the
// handler gets a thread and two pipes; the connection's thread fills the one and drains the other. Whoever
// ends first breaks the pipes, and the handler's thread is joined before the request is freed, so nothing
// outlives its connection.
#include "vmglue/http_internal.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { READER_BLOCK_BYTES = 64 * 1024, READER_WAIT_MS = 500, CONNECTIONS_MAX = 2000 };
static const uint64_t EVENTS_QUIET_NS = 10ull * 1000000000ull;

struct http_server {
    struct http_server_config config;
    struct MHD_Daemon *daemon;
    int listen_fd; // our duplicate
    bool quiesced;
    pthread_mutex_t lock;
    struct http_request *requests; // protected by lock
    bool stopping;                 // protected by lock
};

uint64_t http_server_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void *http_request_context(struct http_request *request)
{
    return request->server->config.context;
}

bool http_request_is_stopping(struct http_request *request)
{
    pthread_mutex_lock(&request->server->lock);
    bool stopping = request->server->stopping;
    pthread_mutex_unlock(&request->server->lock);
    return stopping;
}

const struct http_words *http_server_words(struct http_server *server)
{
    return server->config.words;
}

bool http_request_is_local(struct http_request *request)
{
    return request->server->config.local;
}

const char *http_request_header(struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
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
        request->bad_query = true;
        return MHD_NO;
    }
    struct http_query *query = &request->queries[request->query_count++];
    query->name = strndup(name, name_size);
    query->value = strndup(value == NULL ? "" : value, value_size);
    // A zero byte would cut a path short and so name another file.
    if (strlen(query->name) != name_size || strlen(query->value) != value_size)
        request->bad_query = true;
    return MHD_YES;
}

static void list_add(struct http_request *request)
{
    struct http_server *server = request->server;
    pthread_mutex_lock(&server->lock);
    request->next = server->requests;
    if (request->next != NULL)
        request->next->previous = request;
    server->requests = request;
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->lock);
    if (stopping && request->in != NULL) {
        http_pipe_break(request->in);
        http_pipe_break(request->out);
    }
}

static void list_remove(struct http_request *request)
{
    struct http_server *server = request->server;
    pthread_mutex_lock(&server->lock);
    if (request->previous != NULL)
        request->previous->next = request->next;
    else
        server->requests = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    pthread_mutex_unlock(&server->lock);
}

static void run_handler(struct http_request *request)
{
    const struct http_server_config *config = &request->server->config;
    const struct http_words *words = config->words;
    bool kept = (request->route->flags & HTTP_CREATES) != 0 && config->before != NULL;
    if (!kept || config->before(config->context, request, request->body, request->body_size)) {
        if (words == NULL || words->enter(request))
            request->route->handle(request);
        if (kept && request->whole)
            config->after(config->context, request, request->status, request->reply, request->reply_size);
    }
    pthread_mutex_lock(&request->lock);
    bool begun = request->begun;
    pthread_mutex_unlock(&request->lock);
    if (!begun)
        http_reply_error(
                request, 500, "internal.error", "the call ended without an answer; see the daemon's log");
    if (request->out != NULL)
        http_pipe_finish(request->out);
    if (request->in != NULL)
        http_pipe_break(request->in); // what is still coming is not wanted
    pthread_mutex_lock(&request->lock);
    request->returned = true;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
}

static void *handler_thread(void *context)
{
    run_handler(context);
    return NULL;
}

static void make_id(char *ret_id, size_t capacity)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = http_server_now_ns();
    snprintf(ret_id, capacity, "req_%016llx", (unsigned long long)random);
}

// Called by libmicrohttpd with the first line of a request, before anything of it is decoded.
static void *on_target(void *context, const char *target, struct MHD_Connection *connection)
{
    struct http_request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return NULL;
    request->server = context;
    request->connection = connection;
    request->target = strdup(target);
    request->started_ns = http_server_now_ns();
    request->quiet_since_ns = request->started_ns;
    pthread_mutex_init(&request->lock, NULL);
    pthread_cond_init(&request->changed, NULL);
    make_id(request->id, sizeof request->id);
    const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    request->socket_fd = info == NULL ? -1 : info->connect_fd;
    return request;
}

// Its head has come in.
static void request_take_head(struct http_request *request, const char *method, const char *path)
{
    request->method = strdup(method);
    request->path = strdup(path);
    request->started = true;
    MHD_get_connection_values_n(request->connection, MHD_GET_ARGUMENT_KIND, add_query, request);
}

// The route of a table; false: there is none, and it has replied.
static bool find_route(struct http_request *request)
{
    int status = 404;
    if (request->bad_query) {
        http_reply_error(request, 400, "validation.invalid",
                "the query has too many parameters or a zero byte (%%00)");
        return false;
    }
    const struct http_words *words = request->server->config.words;
    if (words != NULL && !words->begin(request))
        return false;
    request->route = http_route_find(request->server->config.tables, request->method, request->path,
            request->params, &status, request->allow, sizeof request->allow);
    if (request->route == NULL && status == 405)
        http_reply_error(request, 405, "validation.method", "%s does not take %.20s; it takes %s",
                request->path, request->method, request->allow);
    else if (request->route == NULL)
        http_reply_error(request, 404, "route.not_found", "there is no call at %.200s; API.md lists them all",
                request->path);
    return request->route != NULL;
}

// Chooses the route and, for a stream, sets its handler off.
static void request_start(struct http_request *request)
{
    const struct http_server_config *config = &request->server->config;
    if (config->choose != NULL)
        request->route = config->choose(config->context, request);
    if (request->route == NULL && !find_route(request))
        return;
    if (config->gate != NULL && !config->gate(config->context, request)) {
        request->route = NULL; // it has replied; the body is dropped
        return;
    }
    struct error err;
    if (http_request_check_documented(request, &err) < 0) {
        http_reply_failure(request, "route", &err);
        request->route = NULL;
        return;
    }
    if ((request->route->flags & HTTP_STREAM) == 0)
        return;
    request->in = http_pipe_create(HTTP_PIPE_BYTES);
    request->out = http_pipe_create(HTTP_PIPE_BYTES);
    request->threaded = true;
}

static void take_body(struct http_request *request, const char *bytes, size_t size)
{
    if (request->threaded) {
        http_pipe_write(request->in, bytes, size); // broken: the handler wants no more, the rest is dropped
        return;
    }
    if (request->body_size + size > HTTP_JSON_MAX)
        request->body_too_large = true;
    if (request->route == NULL || request->body_too_large)
        return;
    if (request->body_size + size > request->body_capacity) {
        size_t capacity = (request->body_size + size) * 2;
        char *body = realloc(request->body, capacity);
        if (body == NULL) {
            request->body_too_large = true;
            return;
        }
        request->body = body;
        request->body_capacity = capacity;
    }
    memcpy(request->body + request->body_size, bytes, size);
    request->body_size += size;
}

// Feeds libmicrohttpd from the handler; between two pieces it looks whether the client still is there.
static ssize_t read_reply(void *context, uint64_t position, char *buffer, size_t capacity)
{
    static const char comment[] = ": still running\n\n";
    struct http_request *request = context;
    for (;;) {
        ssize_t got = http_pipe_read(request->out, buffer, capacity, READER_WAIT_MS);
        if (got > 0) {
            request->quiet_since_ns = http_server_now_ns();
            return got;
        }
        if (got == 0)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (got == -EPIPE)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (http_request_is_gone(request)) {
            http_pipe_break(request->out);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        uint64_t now = http_server_now_ns();
        if (request->events && capacity >= sizeof comment &&
                now - request->quiet_since_ns > EVENTS_QUIET_NS) {
            request->quiet_since_ns = now;
            memcpy(buffer, comment, sizeof comment - 1);
            return sizeof comment - 1;
        }
    }
}

// The connection's thread waits here as long as the other protocol is spoken.
static void on_upgrade(void *context, struct MHD_Connection *connection, void *request_context,
        const char *extra_in, size_t extra_in_size, MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
    struct http_request *request = context;
    http_upgraded *upgraded = request->upgraded;
    request->upgraded = NULL;
    upgraded(request, request->upgrade_context, fd, extra_in, extra_in_size);
    MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}

static struct MHD_Response *upgrade_response(struct http_request *request)
{
    struct MHD_Response *response = MHD_create_response_for_upgrade(on_upgrade, request);
    if (response == NULL)
        return NULL;
    MHD_add_response_header(response, "Upgrade", request->upgrade_to);
    return response;
}

static enum MHD_Result queue_reply(struct http_request *request)
{
    struct MHD_Response *response;
    if (request->upgrade_to != NULL) {
        response = upgrade_response(request);
    } else if (request->whole) {
        response = MHD_create_response_from_buffer(request->reply_size,
                request->reply == NULL ? (void *)"" : request->reply,
                MHD_RESPMEM_PERSISTENT); // freed with the request, after libmicrohttpd is done with it
    } else {
        response = MHD_create_response_from_callback(
                request->stream_size < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)request->stream_size,
                READER_BLOCK_BYTES, read_reply, request, NULL);
    }
    if (response == NULL)
        return MHD_NO;
    if (request->content_type[0] != '\0')
        MHD_add_response_header(response, "Content-Type", request->content_type);
    bool has_id = false;
    for (unsigned i = 0; i < request->header_count; i++) {
        has_id |= strcasecmp(request->headers[i].name, "X-Request-Id") == 0;
        MHD_add_response_header(response, request->headers[i].name, request->headers[i].value);
    }
    if (!has_id)
        MHD_add_response_header(response, "X-Request-Id", request->id);
    if (request->events)
        MHD_add_response_header(response, "Cache-Control", "no-store");
    if (request->status == 405)
        MHD_add_response_header(response, "Allow", request->allow);
    enum MHD_Result result = MHD_queue_response(request->connection, (unsigned)request->status, response);
    MHD_destroy_response(response);
    return result;
}

// The body has come in whole: run the handler, or wait until the streaming one has something to say.
static enum MHD_Result answer(struct http_request *request)
{
    if (request->threaded) {
        http_pipe_finish(request->in);
        pthread_mutex_lock(&request->lock);
        while (!request->begun)
            pthread_cond_wait(&request->changed, &request->lock);
        pthread_mutex_unlock(&request->lock);
    } else if (request->route != NULL) {
        if (request->body_too_large)
            http_reply_error(request, 413, "validation.too_large",
                    "the request's body is larger than %d bytes", HTTP_JSON_MAX);
        else
            run_handler(request);
    }
    return queue_reply(request);
}

static enum MHD_Result on_access(void *context, struct MHD_Connection *connection, const char *url,
        const char *method, const char *version, const char *upload_data, size_t *upload_data_size,
        void **request_context)
{
    struct http_request *request = *request_context;
    if (request == NULL)
        return MHD_NO; // no memory
    if (!request->started) {
        request_take_head(request, method, url);
        request_start(request);
        list_add(request);
        if (request->threaded && pthread_create(&request->thread, NULL, handler_thread, request) != 0) {
            request->threaded = false;
            request->route = NULL;
            http_reply_error(request, 503, "capacity.threads", "no thread for this call; try again");
        }
        return MHD_YES;
    }
    if (*upload_data_size > 0) {
        take_body(request, upload_data, *upload_data_size);
        *upload_data_size = 0;
        return MHD_YES;
    }
    return answer(request);
}

static void request_free(struct http_request *request)
{
    if (request->caller_release != NULL)
        request->caller_release(request->caller);
    if (request->data_release != NULL)
        request->data_release(request->data);
    request->in = http_pipe_destroy(request->in);
    request->out = http_pipe_destroy(request->out);
    for (unsigned i = 0; i < request->query_count; i++) {
        free(request->queries[i].name);
        free(request->queries[i].value);
    }
    for (unsigned i = 0; i < request->header_count; i++) {
        free(request->headers[i].name);
        free(request->headers[i].value);
    }
    free(request->headers);
    json_decref(request->json);
    pthread_mutex_destroy(&request->lock);
    pthread_cond_destroy(&request->changed);
    free(request->target);
    free(request->method);
    free(request->path);
    free(request->shown_path);
    free(request->body);
    free(request->reply);
    free(request->words);
    free(request);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request_context,
        enum MHD_RequestTerminationCode how)
{
    struct http_server *server = context;
    struct http_request *request = *request_context;
    *request_context = NULL;
    if (request == NULL)
        return;
    if (!request->started) { // its head was no good, or never came
        request_free(request);
        return;
    }
    if (request->threaded) {
        http_pipe_break(request->in);
        http_pipe_break(request->out);
        pthread_join(request->thread, NULL);
    }
    if (request->upgraded != NULL) // the client left before the answer
        request->upgraded(request, request->upgrade_context, -1, NULL, 0);
    list_remove(request);
    if (server->config.on_request != NULL)
        server->config.on_request(server->config.context, request->id, request->method,
                request->shown_path == NULL ? request->path : request->shown_path, request->status,
                http_server_now_ns() - request->started_ns);
    request_free(request);
}

int http_server_start(
        const struct http_server_config *config, struct http_server **ret_server, struct error *err)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return error_set(err, -ENOMEM, "no memory for the HTTP server");
    server->config = *config;
    pthread_mutex_init(&server->lock, NULL);
    server->listen_fd = dup(config->listen_fd);
    if (server->listen_fd >= 0)
        server->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                                                  MHD_USE_POLL | MHD_ALLOW_UPGRADE,
                0, NULL, NULL, on_access, server, MHD_OPTION_URI_LOG_CALLBACK, on_target, server,
                MHD_OPTION_LISTEN_SOCKET, server->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                server, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_END);
    if (server->daemon == NULL) {
        int code = errno == 0 ? -EIO : -errno;
        if (server->listen_fd >= 0)
            close(server->listen_fd);
        pthread_mutex_destroy(&server->lock);
        free(server);
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
    MHD_stop_daemon(server->daemon);
    close(server->listen_fd);
    pthread_mutex_destroy(&server->lock);
    free(server);
    return NULL;
}
