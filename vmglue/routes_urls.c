// SPDX-License-Identifier: Apache-2.0
// /v1/sandboxes/{name}/urls: making, listing and revoking URLs of exposed ports.
#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox_urls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

// How the answer's URLs begin: what the client called, else where this daemon listens.
static const char *authority_of(struct http_request *request, char *buffer, size_t capacity)
{
    const struct service *service = service_of(request);
    const char *host = http_request_header(request, "Host");
    bool clean = host != NULL && host[0] != '\0' &&
                 host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]")] ==
                         '\0';
    if (http_request_is_local(request) || !clean)
        return service->tcp_address;
    snprintf(buffer, capacity, "%s", host);
    return buffer;
}

// "TOKEN.NAME:PORT", when the token can stand before the host.
static json_t *host_form(
        const struct service *service, const char *scheme, const char *authority, const char *token)
{
    const char *port = strrchr(service->tcp_address, ':');
    if (service->url_host != NULL)
        return json_sprintf("%s://%s.%s%s/", scheme, token, service->url_host,
                strchr(service->url_host, ':') != NULL ? "" : port);
    if (strncmp(authority, "127.", 4) != 0 && strncmp(authority, "[::1]", 5) != 0 &&
            !urls_is_served(authority, NULL))
        return json_null();
    return json_sprintf("%s://%s.localhost%s/", scheme, token, port);
}

static void add_forms(struct http_request *request, const char *token, json_t *json)
{
    const struct service *service = service_of(request);
    const char *scheme = service->tcp_is_tls ? "https" : "http";
    char buffer[300];
    const char *authority = authority_of(request, buffer, sizeof buffer);
    json_object_set_new(json, "token", json_string(token));
    json_object_set_new(json, "path", json_sprintf("/u/%s/", token));
    json_object_set_new(json, "url",
            authority == NULL || service->tcp_address == NULL
                    ? json_null()
                    : json_sprintf("%s://%s/u/%s/", scheme, authority, token));
    json_object_set_new(json, "host_url",
            authority == NULL || service->tcp_address == NULL ? json_null()
                                                              : host_form(service, scheme, authority, token));
}

static void create_url(struct http_request *request)
{
    static const char *const known[] = {"host_port", "ttl_secs", NULL};
    uint64_t port = 0, ttl_ms = 0;
    char token[URLS_TOKEN_SIZE];
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_uint(body, "host_port", 1, 65535, &port, &err);
    if (r >= 0 && port == 0)
        r = error_set(&err, -EINVAL, "field \"host_port\" is missing: the port in the sandbox, 1 to 65535");
    if (r >= 0)
        r = json_fields_limit_secs(body, "ttl_secs", SANDBOX_LIFE_MAX_SECS, &ttl_ms, &err);
    urls_new_token(token);
    if (r >= 0)
        r = sandbox_url_add(service_of(request)->sandboxes, http_request_param(request, "name"),
                (unsigned)port, ttl_ms, token, gate_request_tag(request), &json, &err);
    if (r == -EMFILE) {
        http_reply_error(request, 409, "url.too_many", "%s", err.text);
    } else if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
    } else {
        add_forms(request, token, json);
        http_reply_header(request, "Cache-Control", "no-store");
        http_reply_json(request, 201, json);
    }
}

static void list_urls(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    json_t *list;
    struct error err;
    int r = http_request_check_query(request, no_query, &err);
    if (r == 0)
        r = sandbox_url_list(
                service_of(request)->sandboxes, http_request_param(request, "name"), &list, &err);
    if (r < 0)
        http_reply_failure(request, "sandbox", &err);
    else
        http_reply_json(request, 200, json_pack("{s:o}", "urls", list));
}

static void remove_url(struct http_request *request)
{
    struct error err;
    bool is_url;
    if (sandbox_url_remove(service_of(request)->sandboxes, http_request_param(request, "name"),
                http_request_param(request, "id"), &is_url, &err) < 0)
        http_reply_failure(request, is_url ? "url" : "sandbox", &err);
    else
        http_reply_empty(request, 204);
}

const struct http_route routes_urls[] = {
        {"POST", "/v1/sandboxes/{name}/urls", HTTP_CREATES, create_url},
        {"GET", "/v1/sandboxes/{name}/urls", 0, list_urls},
        {"DELETE", "/v1/sandboxes/{name}/urls/{id}", 0, remove_url},
        {0},
};
