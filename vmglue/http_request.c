// SPDX-License-Identifier: Apache-2.0
// What a handler may ask of its request.
#include "vmglue/http_internal.h"
#include "vmglue/openapi.h"

#include "blockstore/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

const struct http_route *http_request_route(struct http_request *request)
{
    return request->route;
}

const char *http_request_method(struct http_request *request)
{
    return request->method;
}

const char *http_request_path(struct http_request *request)
{
    return request->path;
}

const char *http_request_target(struct http_request *request)
{
    return request->target;
}

const char *http_request_log_path(struct http_request *request)
{
    return request->shown_path == NULL ? request->path : request->shown_path;
}

void http_request_address(struct http_request *request, char *ret_address, size_t capacity)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    ret_address[0] = '\0';
    if (getpeername(request->socket_fd, (struct sockaddr *)&address, &size) == 0 &&
            (address.ss_family == AF_INET || address.ss_family == AF_INET6))
        getnameinfo(
                (struct sockaddr *)&address, size, ret_address, (socklen_t)capacity, NULL, 0, NI_NUMERICHOST);
}

void http_request_show_path(struct http_request *request, const char *path)
{
    free(request->shown_path);
    request->shown_path = strdup(path);
}

void http_request_set_data(struct http_request *request, void *data, void (*release)(void *data))
{
    request->data = data;
    request->data_release = release;
}

void *http_request_data(struct http_request *request)
{
    return request->data;
}

void http_request_set_caller(struct http_request *request, void *caller, void (*release)(void *caller))
{
    request->caller = caller;
    request->caller_release = release;
}

void *http_request_caller(struct http_request *request)
{
    return request->caller;
}

const char *http_request_id(struct http_request *request)
{
    return request->id;
}

void http_request_peer(struct http_request *request, char ret_peer[HTTP_PEER_SIZE])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char text[INET6_ADDRSTRLEN] = "";
    snprintf(ret_peer, HTTP_PEER_SIZE, "local");
    if (getpeername(request->socket_fd, (struct sockaddr *)&address, &size) < 0)
        return;
    if (address.ss_family == AF_INET) {
        inet_ntop(AF_INET, &((struct sockaddr_in *)&address)->sin_addr, text, sizeof text);
        snprintf(ret_peer, HTTP_PEER_SIZE, "%s", text);
    } else if (address.ss_family == AF_INET6) {
        struct in6_addr prefix = ((struct sockaddr_in6 *)&address)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&prefix);
        if (!mapped) // who has one address of IPv6 has as many as he likes behind the same prefix
            memset(prefix.s6_addr + 8, 0, 8);
        inet_ntop(AF_INET6, &prefix, text, sizeof text);
        snprintf(ret_peer, HTTP_PEER_SIZE, "%s%s", text, mapped ? "" : "/64");
    }
}

void http_request_break(struct http_request *request)
{
    shutdown(request->socket_fd, SHUT_RDWR); // whoever waits for either side looks at the socket
}

const char *http_request_param(struct http_request *request, const char *name)
{
    for (unsigned i = 0; i < HTTP_PARAMS_MAX; i++) {
        const struct http_param *param = &request->params[i];
        if (param->name != NULL && strlen(name) == param->name_size &&
                memcmp(name, param->name, param->name_size) == 0)
            return param->value;
    }
    return "";
}

void http_request_set_param(struct http_request *request, const char *name, const char *value)
{
    for (unsigned i = 0; i < HTTP_PARAMS_MAX; i++) {
        struct http_param *param = &request->params[i];
        if (param->name != NULL && strlen(name) == param->name_size &&
                memcmp(name, param->name, param->name_size) == 0)
            snprintf(param->value, sizeof param->value, "%s", value);
    }
}

const char *http_request_query(struct http_request *request, const char *name)
{
    for (unsigned i = 0; i < request->query_count; i++)
        if (strcmp(request->queries[i].name, name) == 0)
            return request->queries[i].value;
    return NULL;
}

int http_request_check_query(struct http_request *request, const char *const *known, struct error *err)
{
    for (unsigned i = 0; i < request->query_count; i++) {
        size_t k = 0;
        while (known[k] != NULL && strcmp(known[k], request->queries[i].name) != 0)
            k++;
        if (known[k] != NULL)
            continue;
        char list[300] = "";
        for (size_t used = k = 0; known[k] != NULL && used < sizeof list; k++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", k == 0 ? "" : ", ", known[k]);
        return error_set(err, -EINVAL, "unknown query parameter \"%.60s\"; this call knows: %s",
                request->queries[i].name, list[0] == '\0' ? "no parameters at all" : list);
    }
    return 0;
}

uint64_t http_request_read_bytes(struct http_request *request)
{
    return request->read_bytes;
}

void http_request_set_words(struct http_request *request, void *words)
{
    request->words = words;
}

void *http_request_words(struct http_request *request)
{
    return request->words;
}

static void replace(char **text, const char *with)
{
    char *copy = strdup(with);
    if (copy == NULL)
        return;
    free(*text);
    *text = copy;
}

void http_request_set_target(struct http_request *request, const char *method, const char *path)
{
    replace(&request->method, method);
    replace(&request->path, path);
}

void http_request_rename_query(struct http_request *request, const char *name, const char *to)
{
    for (unsigned i = 0; i < request->query_count; i++) {
        struct http_query *query = &request->queries[i];
        if (strcmp(query->name, name) != 0)
            continue;
        if (to != NULL) {
            replace(&query->name, to);
            return;
        }
        free(query->name);
        free(query->value);
        *query = request->queries[--request->query_count];
        return;
    }
}

int http_request_check_documented(struct http_request *request, struct error *err)
{
    const struct http_route *route = request->route;
    for (const struct openapi_query *query = openapi_queries; query->method != NULL; query++)
        if (strcmp(query->method, route->method) == 0 && strcmp(query->pattern, route->pattern) == 0)
            return http_request_check_query(request, query->names, err);
    return 0;
}

ssize_t http_request_read(struct http_request *request, void *buffer, size_t capacity)
{
    unsigned look_ms = request->is_over == NULL ? 0 : HTTP_PIPE_LOOK_MS;
    ssize_t got;
    while ((got = http_pipe_read(request->in, buffer, capacity, look_ms)) == -EAGAIN)
        if (http_request_is_over(request))
            return -EPIPE;
    if (got > 0)
        request->read_bytes += (uint64_t)got;
    return got;
}

ssize_t http_request_read_wait(struct http_request *request, void *buffer, size_t capacity, unsigned wait_ms)
{
    return http_pipe_read(request->in, buffer, capacity, wait_ms);
}

// Brings the rest of a streamed body into memory, within the limit for JSON.
static int collect_body(struct http_request *request, struct error *err)
{
    for (;;) {
        if (request->body_size == request->body_capacity) {
            size_t capacity = request->body_capacity == 0 ? 16384 : request->body_capacity * 2;
            char *body = realloc(request->body, capacity);
            if (body == NULL)
                return error_set(err, -ENOMEM, "no memory for the request's body");
            request->body = body;
            request->body_capacity = capacity;
        }
        ssize_t got = http_request_read(
                request, request->body + request->body_size, request->body_capacity - request->body_size);
        if (got <= 0)
            return got == 0 ? 0 : error_set(err, (int)got, "the client broke off in its request");
        request->body_size += (size_t)got;
        if (request->body_size > HTTP_JSON_MAX)
            return error_set(err, -EFBIG, "the request's body is larger than %d bytes", HTTP_JSON_MAX);
    }
}

int http_request_json(struct http_request *request, json_t **ret_body, struct error *err)
{
    bool fresh = request->json == NULL;
    if (fresh) {
        int r = request->threaded ? collect_body(request, err) : 0;
        if (r < 0)
            return r;
        size_t blank = 0;
        while (blank < request->body_size && strchr(" \t\r\n", request->body[blank]) != NULL)
            blank++;
        json_error_t where;
        request->json = blank == request->body_size
                                ? json_object()
                                : json_loadb(request->body, request->body_size,
                                          JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
        if (request->json == NULL)
            return error_set(err, -EINVAL, "the request's body is not valid JSON: %s (line %d, column %d)",
                    where.text, where.line, where.column);
    }
    if (!json_is_object(request->json))
        return error_set(err, -EINVAL, "the request's body must be a JSON object");
    const struct http_words *words = http_server_words(request->server);
    if (fresh && words != NULL) {
        int r = words->body(request, request->json, err);
        if (r < 0)
            return r;
    }
    *ret_body = request->json;
    return 0;
}

void http_request_until(struct http_request *request, bool (*is_over)(void *context), void *context)
{
    request->is_over = is_over;
    request->over_context = context;
}

bool http_request_is_over(void *context)
{
    struct http_request *request = context;
    if (request->is_over == NULL || !request->is_over(request->over_context))
        return false;
    http_request_break(request); // its thread may be in the middle of a block that nobody takes
    return true;
}

bool http_request_is_gone(struct http_request *request)
{
    return http_request_wait_gone(request, 0);
}

// One whose host is gone without a word does not answer the kernel's probes.
void http_request_stay(struct http_request *request)
{
    enum { QUIET_SECS = 15, PROBES = 5 };
    const int on = 1, secs = QUIET_SECS, probes = PROBES;
    request->stays = true;
    if (setsockopt(request->socket_fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) < 0 ||
            setsockopt(request->socket_fd, IPPROTO_TCP, TCP_KEEPIDLE, &secs, sizeof secs) < 0)
        return; // not TCP: there is no doubt who is gone
    setsockopt(request->socket_fd, IPPROTO_TCP, TCP_KEEPINTVL, &secs, sizeof secs);
    setsockopt(request->socket_fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// A client that closed altogether looks like one that closed its sending side: each has its time.
static bool is_silent_for_long(struct http_request *request)
{
    uint64_t now = clock_monotonic_ns(), since = atomic_load(&request->half_closed_ns);
    if (since == 0)
        atomic_store(&request->half_closed_ns, now);
    return since != 0 && now - since >= HTTP_HALF_CLOSED_SECS * UINT64_C(1000000000);
}

bool http_request_is_cut(struct http_request *request)
{
    if (request->out != NULL && http_pipe_is_broken(request->out))
        return true;
    struct pollfd poll_fd = {.fd = request->socket_fd, .events = POLLRDHUP};
    if (poll(&poll_fd, 1, 0) <= 0)
        return false;
    return (poll_fd.revents & (POLLHUP | POLLERR)) != 0 || is_silent_for_long(request);
}

bool http_request_wait_gone(struct http_request *request, unsigned wait_ms)
{
    struct pollfd poll_fd = {.fd = request->socket_fd, .events = POLLRDHUP};
    bool gone =
            request->gone || (request->out != NULL && http_pipe_is_broken(request->out)) ||
            (poll(&poll_fd, 1, (int)wait_ms) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
    if (gone) {
        pthread_mutex_lock(&request->lock);
        // What is answered from here on reaches nobody.
        request->left = request->left || (!request->claimed && !request->stays);
        pthread_mutex_unlock(&request->lock);
    }
    return gone;
}
