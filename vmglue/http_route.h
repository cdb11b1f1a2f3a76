// SPDX-License-Identifier: Apache-2.0
// Tables of HTTP routes, and how the project's errors look in HTTP. Pure functions, no sockets. Threads: any.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>

struct http_request;

enum {
    HTTP_STREAM = 1, // the body is read with http_request_read, the answer may be written piece by piece
    // Who may call it (enforced by the server's gate, by access_table.c: each route has its row there).
    // Without one of these: a GET needs a key that may read, anything else one that may write.
    HTTP_OPEN = 2,  // nobody needs a key
    HTTP_ADMIN = 4, // whole-store and key administration
    HTTP_READS = 8, // changes nothing although it is no GET
    // Makes something: an Idempotency-Key is honoured. Not together with HTTP_STREAM.
    HTTP_CREATES = 16,
};
enum { HTTP_PARAMS_MAX = 4 };

struct http_route {
    const char *method;  // NULL ends a table
    const char *pattern; // "/v1/sandboxes/{name}/exec": {x} is one path segment, http_request_param "x"
    unsigned flags;
    void (*handle)(struct http_request *request);
};

struct http_param {
    const char *name; // in the pattern, not terminated
    size_t name_size;
    char value[256];
};
// Does a path fit a pattern? Fills params; a parameter never is empty.
bool http_route_matches(const char *pattern, const char *path, struct http_param params[HTTP_PARAMS_MAX]);
// The route of a method and path in a NULL-terminated list of tables, with its parameters. HEAD finds GET.
// The path names the resource whose pattern has the fewest parameters ("/v1/templates/builds" is no {name}),
// and the methods are that one's. NULL: *ret_status is 404, or 405 with ret_allow (the methods that the path
// has, by commas).
const struct http_route *http_route_find(const struct http_route *const *tables, const char *method,
        const char *path, struct http_param params[HTTP_PARAMS_MAX], int *ret_status, char *ret_allow,
        size_t allow_capacity);

// The HTTP status of an errno; ret_code gets the machine's word for it ("sandbox.not_found").
int http_route_status(const char *kind, int code, char *ret_code, size_t code_capacity, bool *ret_retryable);
