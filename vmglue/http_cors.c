// SPDX-License-Identifier: Apache-2.0
// Which web pages may call from a browser: those of the origins that the operator named, compared as they
// are. No cookies are known here, so a page that was not named can do nothing that any program without a key
// could not; that includes one whose name was made to resolve to this host.
#include "vmglue/http_internal.h"

#include <string.h>

const char *http_cors_origin(struct http_request *request)
{
    const char *const *known = request->server->config.cors_origins;
    const char *origin = http_request_header(request, "Origin");
    if (known == NULL || origin == NULL)
        return NULL;
    for (size_t i = 0; known[i] != NULL; i++)
        if (strcmp(known[i], origin) == 0)
            return known[i];
    return NULL;
}

static void preflight(struct http_request *request)
{
    if (http_cors_origin(request) == NULL) {
        http_reply_error(request, 403, "auth.origin",
                "pages of %.200s may not call this server; rametd --cors-origin names those that may",
                http_request_header(request, "Origin"));
        return;
    }
    http_reply_header(request, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE");
    http_reply_header(request, "Access-Control-Allow-Headers",
            "Authorization, X-API-Key, Content-Type, Accept, Range, Idempotency-Key, Last-Event-ID, "
            "X-Request-Id, Cache-Control");
    http_reply_header(request, "Access-Control-Max-Age", "600");
    if (http_request_header(request, "Access-Control-Request-Private-Network") != NULL)
        http_reply_header(request, "Access-Control-Allow-Private-Network", "true");
    http_reply_empty(request, 204);
}

bool http_cors_take_options(struct http_request *request)
{
    struct http_param params[HTTP_PARAMS_MAX];
    char allow[sizeof request->allow];
    int status;
    if (strcmp(request->method, "OPTIONS") != 0)
        return false;
    if (http_request_header(request, "Origin") != NULL &&
            http_request_header(request, "Access-Control-Request-Method") != NULL) {
        preflight(request);
        return true;
    }
    http_route_find(
            request->server->config.tables, "OPTIONS", request->path, params, &status, allow, sizeof allow);
    if (status != 405 && strcmp(request->path, "*") != 0)
        return false; // 404, in the words of the route's search
    http_reply_header(request, "Allow", status == 405 ? allow : "GET, HEAD, POST, PUT, PATCH, DELETE");
    http_reply_empty(request, 204);
    return true;
}
