// SPDX-License-Identifier: Apache-2.0
// A request between its head and its answer: route, gate, body, handler.
#include "blockstore/clock.h"
#include "vmglue/http_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

enum { BODY_LEAST_BYTES = 4096, LINGER_MS = 3000 };

static void make_id(char *ret_id, size_t capacity)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = clock_monotonic_ns();
    snprintf(ret_id, capacity, "req_%016llx", (unsigned long long)random);
}

struct http_request *http_run_create(struct http_server *server, const char *target)
{
    struct http_request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return NULL;
    request->server = server;
    request->target = strdup(target);
    request->started_ns = clock_monotonic_ns();
    request->quiet_since_ns = request->started_ns;
    pthread_mutex_init(&request->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&request->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    make_id(request->id, sizeof request->id);
    return request;
}

void http_run_free(struct http_request *request)
{
    if (request->source_release != NULL)
        request->source_release(request->source_context);
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
    free(request->pending);
    free(request->target);
    free(request->method);
    free(request->path);
    free(request->shown_path);
    free(request->body);
    free(request->reply);
    free(request->words);
    free(request);
}

void http_run_list(struct http_request *request)
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

void http_run_unlist(struct http_request *request)
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

// The route of a table; false: there is none, and it has replied.
static bool find_route(struct http_request *request)
{
    const struct http_words *words = request->server->config.words;
    int status = 404;
    if (!http_head_check_target(request) || http_cors_take_options(request) ||
            (words != NULL && !words->begin(request)))
        return false;
    request->route = http_route_find(request->server->config.tables, request->method, request->path,
            request->params, &status, request->allow, sizeof request->allow);
    if (request->route == NULL && status == 405)
        http_reply_error(request, 405, "validation.method", "%.200s does not take %.20s; it takes %s",
                request->path, request->method, request->allow);
    else if (request->route == NULL)
        http_reply_error(request, 404, "route.not_found", "there is no call at %.200s; API.md lists them all",
                request->path);
    return request->route != NULL;
}

static bool announces_too_much(struct http_request *request)
{
    bool whole = (request->route->flags & HTTP_STREAM) == 0;
    if (!whole || request->body_announced == UINT64_MAX || request->body_announced <= HTTP_JSON_MAX)
        return false;
    http_reply_error(request, 413, "validation.too_large",
            "the request's body has %llu bytes; this call takes %d at most",
            (unsigned long long)request->body_announced, HTTP_JSON_MAX);
    return true;
}

void http_run_start(struct http_request *request)
{
    const struct http_server_config *config = &request->server->config;
    if (http_connection_is_excess(request->slot)) {
        http_reply_retry(request, 503, "capacity.connections", 1,
                "too many connections are open (%u); close those that are not needed, or try again later",
                config->limits.connections);
        return;
    }
    if (config->choose != NULL)
        request->route = config->choose(config->context, request);
    request->chosen = request->route != NULL;
    if (request->route == NULL && !find_route(request))
        return;
    request->found = request->route;
    if (announces_too_much(request) || (config->gate != NULL && !config->gate(config->context, request))) {
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

void http_run_take_body(struct http_request *request, const char *bytes, size_t size)
{
    if (request->threaded) {
        // Broken: the handler wants no more, the rest is dropped.
        http_pipe_write(request->in, bytes, size, NULL, NULL);
        return;
    }
    if (request->body_size + size > HTTP_JSON_MAX)
        request->body_too_large = true;
    // What needs no key reads no body, and who has none gets no memory for one.
    if (request->route == NULL || request->body_too_large || (request->route->flags & HTTP_OPEN) != 0)
        return;
    if (request->body_size + size > request->body_capacity) {
        size_t capacity = (request->body_size + size) * 2;
        if (capacity < BODY_LEAST_BYTES)
            capacity = BODY_LEAST_BYTES;
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

bool http_run_has_begun(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool begun = request->begun;
    pthread_mutex_unlock(&request->lock);
    return begun;
}

void http_run_wait_begun(struct http_request *request)
{
    struct timespec until = clock_deadline(HTTP_QUIET_MS);
    pthread_mutex_lock(&request->lock);
    while (!request->begun) {
        int late = request->claimed ? pthread_cond_wait(&request->changed, &request->lock)
                                    : pthread_cond_timedwait(&request->changed, &request->lock, &until);
        if (late != ETIMEDOUT)
            continue;
        until.tv_sec += HTTP_QUIET_MS / 1000;
        if (!request->expects_events)
            continue;
        pthread_mutex_unlock(&request->lock);
        http_reply_begin_events(request); // unless the handler begins to answer at this moment
        pthread_mutex_lock(&request->lock);
    }
    pthread_mutex_unlock(&request->lock);
}

static void handle(struct http_request *request)
{
    const struct http_words *words = request->server->config.words;
    if (words == NULL || words->enter(request))
        request->route->handle(request);
    if (!http_run_has_begun(request))
        http_reply_error(
                request, 500, "internal.error", "the call ended without an answer; see the daemon's log");
}

void http_run_handler(struct http_request *request)
{
    const struct http_server_config *config = &request->server->config;
    bool kept = (request->route->flags & HTTP_CREATES) != 0 && config->before != NULL;
    if (!kept || config->before(config->context, request, request->body, request->body_size)) {
        handle(request);
        if (kept)
            config->after(config->context, request, request->status, request->whole ? request->reply : NULL,
                    request->whole ? request->reply_size : 0);
    }
    http_early_end(request);
    if (request->out != NULL)
        http_pipe_finish(request->out);
    if (request->in != NULL)
        http_pipe_break(request->in); // what is still coming is not wanted
    pthread_mutex_lock(&request->lock);
    request->returned = true;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
}

int http_run_thread(pthread_t *thread, bool detached, void *(*run)(void *), void *context)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, HTTP_STACK_BYTES);
    if (detached)
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int r = pthread_create(thread, &attributes, run, context);
    pthread_attr_destroy(&attributes);
    return r;
}

void http_run_linger(struct http_request *request)
{
    char dropped[16384];
    uint64_t until_ns = clock_monotonic_ns() + (uint64_t)LINGER_MS * 1000000;
    shutdown(request->socket_fd, SHUT_WR);
    for (uint64_t now = 0; (now = clock_monotonic_ns()) < until_ns;) {
        struct pollfd poll_fd = {.fd = request->socket_fd, .events = POLLIN};
        if (poll(&poll_fd, 1, (int)((until_ns - now) / 1000000) + 1) <= 0 ||
                recv(request->socket_fd, dropped, sizeof dropped, MSG_DONTWAIT) <= 0)
            return;
    }
}
