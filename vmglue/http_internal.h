// SPDX-License-Identifier: Apache-2.0
// A request as the HTTP server's own files see it. Not for anybody else.
#pragma once

#include "vmglue/http_connections.h"
#include "vmglue/http_pipe.h"
#include "vmglue/http_server.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    HTTP_QUERIES_MAX = 16,
    HTTP_HEADERS_MAX = 256,
    HTTP_PIPE_BYTES = 256 * 1024,
    HTTP_ID_SIZE = 72,
    HTTP_STACK_BYTES = 1 << 20, // of connections' and handlers' threads; JSON nests 2048 deep
    HTTP_HEAD_MAX = 24 * 1024,
    HTTP_QUIET_MS = 10000, // then a stream of events says that it lives
};

struct http_server {
    struct http_server_config config;
    void *daemon;  // libmicrohttpd's
    int listen_fd; // our duplicate
    bool quiesced;
    struct http_connections *connections;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct http_request *requests; // protected by lock
    unsigned detached;             // protected by lock: upgraded connections with a thread of ours
    bool stopping;                 // protected by lock
};

struct http_header {
    char *name, *value; // malloc'ed
};
struct http_query {
    char *name, *value;
};

// One request: the connection's thread moves bytes, the handler (on the same thread, or with HTTP_STREAM on
// its own) decides. Fields without a note are written before the handler starts.
struct http_request {
    struct http_server *server;
    void *connection; // libmicrohttpd's
    int socket_fd;
    struct http_connection *slot;
    char id[HTTP_ID_SIZE];
    bool started, chosen; // its head has come; its route is of http_server_config.choose
    atomic_bool gone;     // the client closed its side while its stream was watched
    bool http_1_0;
    bool taken, early; // (lock) who sends the answer: the connection's thread, the handler's (http_early.c)
    bool early_chunks, early_broken; // the handler's
    uint64_t ended_ns;               // its early answer
    atomic_bool stays;               // its client may close the sending side, and is answered all the same
    _Atomic uint64_t half_closed_ns; // since when it has been seen to, with nothing sent to it; 0 = not
    bool refused;                    // answered before its body had come
    bool streaming;                  // an answer of unknown length is under way
    bool aside;                      // a thread of its own speaks another protocol, and ends it
    bool let_go;                     // (server's lock) then, once the connection's thread is done with it
    const struct http_route *found;  // as `route`, and stays when the gate refuses
    bool has_body, expects;          // a body follows; the client waits for a word before it sends that
    uint64_t body_announced;         // UINT64_MAX = unknown
    char *target, *method, *path;
    char *shown_path; // NULL = the path itself
    void *data;       // the handler's own
    void (*data_release)(void *data);
    uint64_t started_ns;
    const struct http_route *route;
    struct http_param params[HTTP_PARAMS_MAX];
    struct http_query queries[HTTP_QUERIES_MAX];
    unsigned query_count;
    char *body; // whole body of routes without HTTP_STREAM
    size_t body_size, body_capacity;
    bool body_too_large;
    char bad_query[160]; // what is wrong with the path or the query; "" = nothing
    json_t *json;        // the handler's
    void *caller;        // the gate's
    void (*caller_release)(void *caller);

    bool (*is_over)(void *context); // the handler's, as the next: http_request_until
    void *over_context;

    void *words;         // what http_words keeps, malloc'ed
    uint64_t read_bytes; // the handler's

    struct http_pipe *in, *out; // HTTP_STREAM
    pthread_t thread;
    bool threaded;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Protected by lock: somebody fills in the answer's head; it is there; the handler is done.
    bool claimed, begun, returned;
    bool left; // its client, before anything was answered
    atomic_bool expects_events;
    // The answer: written by the handler before `begun`, read by the connection's thread after it.
    int status;
    bool whole;  // all of it is in reply
    bool events; // a stream of server-sent events
    char *reply; // malloc'ed
    size_t reply_size;
    char content_type[128];
    char allow[64];
    int64_t stream_size;
    struct http_header *headers; // more of the answer, malloc'ed
    unsigned header_count;
    // Events that the connection's own thread waits for (http_reply_events_from).
    http_event_source *source;
    void *source_context;
    void (*source_release)(void *context);
    char *pending; // malloc'ed: formatted, not yet sent
    size_t pending_size, pending_sent;
    bool source_over;
    // The connection becomes something else: what it is called, who goes on with it.
    const char *upgrade_to;
    http_upgraded *upgraded;
    void *upgrade_context;
    uint64_t quiet_since_ns;              // the connection's thread: last byte sent of an event stream
    struct http_request *next, *previous; // protected by the server's lock
};

// http_run.c: a request between its head and its answer.
struct http_request *http_run_create(struct http_server *server, const char *target);
void http_run_free(struct http_request *request);
void http_run_list(struct http_request *request);
void http_run_unlist(struct http_request *request);
void http_run_start(struct http_request *request); // chooses the route; may reply
void http_run_take_body(struct http_request *request, const char *bytes, size_t size);
void http_run_handler(struct http_request *request);
void http_run_wait_begun(struct http_request *request);
bool http_run_has_begun(struct http_request *request);
int http_run_thread(pthread_t *thread, bool detached, void *(*run)(void *), void *context); // an errno
// The client may still be sending what nobody wants. A socket that is closed over unread bytes resets the
// connection, and the answer is lost with it; so they are read for a while.
void http_run_linger(struct http_request *request);
// http_early.c: answers that come while the body does. Of the connection's thread: it is about to answer;
// false: the handler does. What comes of the body then is for nobody, until it is over.
bool http_early_take(struct http_request *request);
bool http_early_is(struct http_request *request);
bool http_early_is_over(struct http_request *request);
void http_early_wait(struct http_request *request); // until the handler has returned
// Of the handler's: the head is there. Answers itself when the body is not over soon.
void http_early_begin(struct http_request *request);
int http_early_write(struct http_request *request, const void *bytes, size_t size);
void http_early_end(struct http_request *request);
const char *http_server_reason(int status);
void *http_server_tls_session(struct http_request *request); // NULL = it is not TLS
// http_feed.c: the next bytes of an answer that is no whole one; waits for them. 0 at its end, -EPIPE when it
// is broken off.
ssize_t http_feed(struct http_request *request, char *buffer, size_t capacity);
void http_feed_client_gone(void *request);
// http_head.c: what of a head is refused whatever it asks for. false: it has replied.
bool http_head_check(struct http_request *request, const char *version, size_t head_size);
bool http_head_check_target(struct http_request *request); // for what is not proxied
bool http_head_is_method(const char *method);              // one that has a name of its own
// http_request.c: the question of http_request_until, for who waits for the client. True: the connection is
// broken off.
bool http_request_is_over(void *request);
// http_cors.c
const char *http_cors_origin(struct http_request *request); // one that may read the answer, or NULL
bool http_cors_take_options(struct http_request *request);  // true: it was OPTIONS, and has been answered
void http_request_mask(
        struct http_request *request, json_t *body); // config.mask, when there is one; accepts NULL
const struct http_words *http_server_words(struct http_server *server); // NULL = none
// Sets the whole answer; `text` is malloc'ed and taken over.
void http_reply_whole(
        struct http_request *request, int status, const char *content_type, char *text, size_t size);
