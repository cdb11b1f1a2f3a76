// SPDX-License-Identifier: Apache-2.0
// A request as the HTTP server's own files see it. Not for anybody else.
#pragma once

#include "vmglue/http_pipe.h"
#include "vmglue/http_server.h"

#include <pthread.h>

enum { HTTP_QUERIES_MAX = 16, HTTP_HEADERS_MAX = 256, HTTP_PIPE_BYTES = 256 * 1024 };

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
    char id[24];
    bool started;
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
    bool body_too_large, bad_query;
    json_t *json; // the handler's
    void *caller; // the gate's
    void (*caller_release)(void *caller);

    void *words;         // what http_words keeps, malloc'ed
    uint64_t read_bytes; // the handler's

    struct http_pipe *in, *out; // HTTP_STREAM
    pthread_t thread;
    bool threaded;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool begun, returned; // protected by lock: the answer has a head; the handler is done
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
    // The connection becomes something else: what it is called, who goes on with it.
    const char *upgrade_to;
    http_upgraded *upgraded;
    void *upgrade_context;
    uint64_t quiet_since_ns;              // the connection's thread: last byte sent of an event stream
    struct http_request *next, *previous; // protected by the server's lock
};

uint64_t http_server_now_ns(void);
const struct http_words *http_server_words(struct http_server *server); // NULL = none
// Sets the whole answer; `text` is malloc'ed and taken over.
void http_reply_whole(
        struct http_request *request, int status, const char *content_type, char *text, size_t size);
