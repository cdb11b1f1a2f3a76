// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on a listening socket (libmicrohttpd, included by http_server.c alone): a table of routes with
// path parameters, JSON bodies, bodies and answers streamed in both directions, and server-sent events.
//
// Threads: a thread per connection; a handler may block for as long as it likes and holds up only its own
// connection. Handlers of routes with HTTP_STREAM run on a thread of their own, beside the one that moves the
// bytes. Errors have one shape: {"error":{"code","message","request_id","details":{"retryable"}}}; a message
// says what is wrong and what to do. Every answer carries X-Request-Id. Ownership: strings and the JSON body
// belong to the request and end with it.
#pragma once

#include "blockstore/error.h"
#include "vmglue/http_connections.h"
#include "vmglue/http_route.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct http_server;
struct http_request;
struct http_metrics;

enum { HTTP_JSON_MAX = 32 << 20 };

// Translates calls in other people's words into native ones, and their answers back (alias.h).
struct http_words {
    // Before the route is sought: may change method, path and query. false: it has replied.
    bool (*begin)(struct http_request *request);
    // Behind the gate, before the handler. false: it has replied.
    bool (*enter)(struct http_request *request);
    // The JSON body, before the handler sees it; changes it in place.
    int (*body)(struct http_request *request, json_t *body, struct error *err);
    // An answer (NULL = without a body) or the data of one event before it goes out. Steal and return it.
    // Data that comes back as a JSON string goes out as it is, in lines.
    json_t *(*answer)(struct http_request *request, int *status, json_t *body);
    json_t *(*event)(struct http_request *request, const char **event, json_t *data);
};

struct http_server_config {
    int listen_fd;                          // stays the caller's
    const struct http_route *const *tables; // NULL-terminated list of tables
    void *context;                          // http_request_context
    // After each answer, for a log; http_request_log_path is what it may show. May be NULL.
    void (*on_request)(void *context, struct http_request *request, int status, uint64_t duration_ns);
    struct http_limits limits;
    const char *const *cors_origins; // of browsers' pages that may call; NULL-terminated. NULL = none
    bool tls;                        // by the identity of http_tls.h
    struct http_metrics *metrics;    // NULL = nobody counts
    // Asked first, before the tables: a route of its own (with flags; the gate is asked as for others), or
    // NULL. May keep something with the request (http_request_set_data). May be NULL.
    const struct http_route *(*choose)(void *context, struct http_request *request);
    bool local; // the listening socket is one that only the owner can open: no key is needed
    const struct http_words *words; // NULL = native words alone
    // The gate: called when the route is known, before the body is read. false: it has replied (401, 429,
    // ...). NULL = open.
    bool (*gate)(void *context, struct http_request *request);
    // Takes out of an answer what its caller is not to see, before it goes out. May be NULL.
    void (*mask)(void *context, struct http_request *request, json_t *body);
    // Around the handler of a route with HTTP_CREATES, with the whole body: false = it has replied (a stored
    // answer), and `after` is not called. Otherwise `after` is called in any case, before the answer goes
    // out: with what the handler answered, or with NULL and 0 for one that is no whole answer. Both or none.
    bool (*before)(void *context, struct http_request *request, const void *body, size_t size);
    void (*after)(
            void *context, struct http_request *request, int status, const void *answer, size_t answer_size);
};

int http_server_start(
        const struct http_server_config *config, struct http_server **ret_server, struct error *err);
// Stops accepting and breaks every stream; requests in flight go on until their handlers return.
void http_server_quiesce(struct http_server *server);
// Waits for the handlers. Accepts NULL.
struct http_server *http_server_stop(struct http_server *server);

// ---- What came in ----
void *http_request_context(struct http_request *request);
const char *http_request_id(struct http_request *request);
const struct http_route *http_request_route(struct http_request *request);
const char *http_request_method(struct http_request *request);
const char *http_request_path(struct http_request *request);     // percent-decoded, without the query
const char *http_request_target(struct http_request *request);   // as it was sent, with the query
const char *http_request_log_path(struct http_request *request); // without secrets and queries
// What logs show from now on in place of the path, when that holds a secret.
void http_request_show_path(struct http_request *request, const char *path);
// The address of who asks, "" over a unix socket.
void http_request_address(struct http_request *request, char *ret_address, size_t capacity);
bool http_request_is_local(struct http_request *request); // by a socket that only the owner can open
// Who asks, as the gate found out. The gate gives it with what frees it at the request's end; NULL = the
// owner.
void http_request_set_caller(struct http_request *request, void *caller, void (*release)(void *caller));
void *http_request_caller(struct http_request *request);
// Something of the handler's own, and what frees it at the request's end.
void http_request_set_data(struct http_request *request, void *data, void (*release)(void *data));
void *http_request_data(struct http_request *request);
// Every header of the request as it was sent, one call each; in `choose` alone (later ones may race with
// trailers).
typedef void http_header_visitor(
        void *context, const char *name, size_t name_size, const char *value, size_t value_size);
void http_request_each_header(struct http_request *request, http_header_visitor *visit, void *context);
const char *http_request_param(
        struct http_request *request, const char *name); // never NULL for names in the pattern
// Another value for a parameter of the path. For the gate.
void http_request_set_param(struct http_request *request, const char *name, const char *value);
const char *http_request_query(struct http_request *request, const char *name);  // NULL = not given
const char *http_request_header(struct http_request *request, const char *name); // NULL = not given
// Bytes of the body that the handler has read with http_request_read.
uint64_t http_request_read_bytes(struct http_request *request);
// For http_words.begin. The words' own data is freed with the request.
void http_request_set_words(struct http_request *request, void *words);
void *http_request_words(struct http_request *request);
void http_request_set_target(struct http_request *request, const char *method, const char *path);
void http_request_rename_query(struct http_request *request, const char *name, const char *to); // NULL = drop
enum { HTTP_PEER_SIZE = 48 };
// The other side's address without its port: "127.0.0.1", "2001:db8:1:2::/64", "local".
void http_request_peer(struct http_request *request, char ret_peer[HTTP_PEER_SIZE]);
// From any thread, as long as the caller is not released: breaks the connection off, so that a handler, a
// stream or an upgraded connection notices that its client is gone.
void http_request_break(struct http_request *request);
// -EINVAL with *err naming the first query parameter that is not in the NULL-terminated list.
int http_request_check_query(struct http_request *request, const char *const *known, struct error *err);
// The same with those that the API's document names for the route (openapi.h). The server calls it before the
// handler; a call that is not in the document checks for itself.
int http_request_check_documented(struct http_request *request, struct error *err);
// The body as an object ({} when empty). -EINVAL with *err when it is no JSON; the value belongs to the
// request.
int http_request_json(struct http_request *request, json_t **ret_body, struct error *err);
// HTTP_STREAM: bytes, 0 at the end, -EPIPE when the client broke off (then nothing that came may be kept).
ssize_t http_request_read(struct http_request *request, void *buffer, size_t capacity);
// The same, at most so long: -EAGAIN when nothing came.
ssize_t http_request_read_wait(struct http_request *request, void *buffer, size_t capacity, unsigned wait_ms);
// The client has closed its side or the server is stopping.
bool http_request_is_gone(struct http_request *request);
bool http_request_is_stopping(struct http_request *request); // the server alone
// What a handler serves may end while it waits for a client that takes nothing, or gives nothing, and that
// end may wait for the handler. So as long as http_reply_write or http_request_read waits, is_over(context)
// is asked, four times a second, on the handler's thread and with no lock held; true: the connection is
// broken off, in the middle of an answer too, as when a machine dies, and the call says -EPIPE. Who does not
// wait is not asked. NULL: nothing ends it, which is also how it begins; what is_over looks at must stay
// until then.
void http_request_until(struct http_request *request, bool (*is_over)(void *context), void *context);
// Whoever closes only the sending side after the request still gets its answer. From then on
// http_request_is_cut says whether the client is there: one that closed altogether looks the same, and is
// given up when nothing was sent to it for HTTP_HALF_CLOSED_SECS, or at once when something is.
enum { HTTP_HALF_CLOSED_SECS = 10 };
void http_request_stay(struct http_request *request);
bool http_request_is_cut(struct http_request *request);
// Waits for that, at most so long.
bool http_request_wait_gone(struct http_request *request, unsigned wait_ms);

// ---- What goes out; one of these per request ----
void http_reply_json(struct http_request *request, int status, json_t *body); // steals body
void http_reply_empty(struct http_request *request, int status);
// Copies the bytes; content_type "" = among the headers, or none.
void http_reply_bytes(
        struct http_request *request, int status, const char *content_type, const void *bytes, size_t size);
__attribute__((format(printf, 4, 5))) void http_reply_error(
        struct http_request *request, int status, const char *code, const char *format, ...);
// Not now, but after so many seconds: says so in retry_after_secs and in the header Retry-After.
__attribute__((format(printf, 5, 6))) void http_reply_retry(struct http_request *request, int status,
        const char *code, unsigned retry_after_secs, const char *format, ...);
// From a struct error: `kind` ("sandbox", "volume", ...) makes the code; the status follows the errno.
void http_reply_failure(struct http_request *request, const char *kind, const struct error *err);
// HTTP_STREAM: begins an answer; size -1 = unknown (chunked). Then http_reply_write until the handler
// returns. HTTP sends answers after requests: what is left of the body is given up (http_request_read says
// -EPIPE).
void http_reply_begin(struct http_request *request, int status, const char *content_type, int64_t size);
int http_reply_write(
        struct http_request *request, const void *bytes, size_t size); // -EPIPE: the client is gone
// After http_reply_begin: the answer cannot be completed; the connection is broken off so that the client
// notices.
void http_reply_abort(struct http_request *request);
// One server-sent event; begins the answer (200, text/event-stream) when there is none yet. Steals data.
// Silence is filled with comment lines, so that a client that left is noticed.
int http_reply_event(struct http_request *request, const char *event, json_t *data);
// From a struct error, as http_reply_failure: what a stream that has begun ends with.
void http_reply_event_failure(
        struct http_request *request, const char *event, const char *kind, const struct error *err);
void http_reply_begin_events(struct http_request *request); // the head alone, when there is none yet
// HTTP_STREAM: the answer will be events, unless something fails before the first. When neither has come
// after ten seconds the head goes out, and comments after it, so that nobody on the way takes the call for
// dead.
void http_reply_expect_events(struct http_request *request);
// With an id that a client sends back (Last-Event-ID) when it connects again; NULL = none.
int http_reply_event_id(struct http_request *request, const char *id, const char *event, json_t *data);
// Events without a thread of their own, for streams of which there may be thousands. The handler returns at
// once; from then on the connection's thread calls `source` until that returns false (there is no more), the
// client leaves or the server stops, and then `release`. One call sends at most one event (with
// http_reply_event_id) and waits for it no longer than wait_ms. Routes without HTTP_STREAM only.
typedef bool http_event_source(struct http_request *request, void *context, unsigned wait_ms);
void http_reply_events_from(struct http_request *request, http_event_source *source, void *context,
        void (*release)(void *context));

// One more header of the answer (256 at most); before it is begun.
void http_reply_header(struct http_request *request, const char *name, const char *value);
// Answers 101 with the header (NULL = none but those of http_reply_header) and hands the connection over:
// `upgraded` is called once, on the connection's thread, with a non-blocking socket that it does not close,
// and the bytes that had come already; it blocks as long as it likes. When the client left before, it is
// called with fd -1. Routes without HTTP_STREAM only.
typedef void http_upgraded(
        struct http_request *request, void *context, int fd, const void *bytes, size_t size);
void http_reply_upgrade(struct http_request *request, const char *protocol, const char *header,
        const char *value, http_upgraded *upgraded, void *context);
