// SPDX-License-Identifier: Apache-2.0
// A request that came for an exposed port, and how it is told to the guest's server. What came was parsed by
// the HTTP server already; here it is written anew, with our own framing, so that the guest's server sees
// exactly one request on a connection of its own. Of tokens that are not part of the address (header, query,
// cookie), and of keys of ours, it sees nothing.
//
// Threads: made on the connection's thread, read by the handler's afterwards.
#pragma once

#include "blockstore/error.h"
#include "vmglue/proxy_token.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_request;

struct proxy_text_field {
    char *name, *value; // malloc'ed
};

struct proxy_request {
    struct proxy_tokens tokens; // one of these; first those that the query had
    unsigned query_tokens;      // a token of these is kept by a cookie from now on
    char *host;                 // the Host header, "" when there is none
    char *target;               // what the guest is asked for
    char *prefix;               // below which path of ours its site stands, "" = none
    char *connection;           // values of Connection, by commas
    bool upgrade;               // a WebSocket or another protocol is asked for
    unsigned preview_port;      // of a host PORT-SANDBOX.NAME; 0 = another form
    char preview_sandbox[48];
    bool redirect;         // the site's path without its slash
    bool expects;          // the client waits for a word before it sends the body
    bool chunked;          // the body's length is not known
    int64_t length;        // of the body, -1 = none
    const char *complaint; // why it cannot be passed on, NULL = it can
    struct proxy_text_field *fields;
    size_t field_count, field_capacity;
};

// NULL: it is not for an exposed port. url_host: NULL = none but localhost.
struct proxy_request *proxy_request_take(struct http_request *request, const char *url_host);
void proxy_request_free(void *proxy);
// The head for the guest's server; malloc'ed. secure: it came by TLS. peer: who asked, "" = unknown.
char *proxy_request_head(const struct proxy_request *proxy, const char *method, bool secure, const char *peer,
        size_t *ret_size);
// How a path is shown in logs: without the token. malloc'ed.
char *proxy_request_shown(const struct proxy_request *proxy, const char *url_id);
