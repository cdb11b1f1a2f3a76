// SPDX-License-Identifier: Apache-2.0
// The connections of one HTTP server: how many there are, which of them take too long for what they are doing
// (a head that drips in, a reader that takes nothing), and which client has left while its stream was quiet.
// One thread for all of them; a connection that stands still costs nothing but a look at every round.
//
// Threads: a connection's phases are changed by its own thread; everything else by anyone. The lock is taken
// before those of pipes. Whoever is late has its socket shut down, which its own thread then notices.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct http_connections;
struct http_connection;

// Of one server. 0 = the default.
struct http_limits {
    unsigned connections;  // beyond these a call is answered 503; twice HTTP_CONNECTIONS_SPARE later nobody
                           // is let in
    unsigned head_secs;    // from the connection or the answer before it to a whole head
    unsigned body_secs;    // without a byte of a body that is wanted
    unsigned stalled_secs; // without a byte taken of an answer
};
enum {
    HTTP_CONNECTIONS_DEFAULT = 6000,
    HTTP_CONNECTIONS_SPARE = 128,
    HTTP_HEAD_DEFAULT_SECS = 60,
    HTTP_HEAD_CROWDED_SECS = 5, // when there are more connections than the limit
    HTTP_BODY_DEFAULT_SECS = 60,
    HTTP_STALLED_DEFAULT_SECS = 180,
};

enum http_phase {
    HTTP_PHASE_HEAD,  // idle, or a head is coming
    HTTP_PHASE_BODY,  // waits for bytes of the body
    HTTP_PHASE_WORK,  // the handler works: as long as it likes
    HTTP_PHASE_REPLY, // the client takes the answer
    HTTP_PHASE_OTHER, // another protocol is spoken
};

// `gone(request)` is called, with the lock held, when the client of a watched request has closed its side.
// NULL: no memory, descriptor or thread.
struct http_connections *http_connections_create(
        const struct http_limits *limits, void (*gone)(void *request));
struct http_connections *http_connections_destroy(
        struct http_connections *all); // all are removed; NULL is fine

struct http_connection *http_connections_add(struct http_connections *all, int fd); // NULL: no memory
void http_connections_remove(struct http_connection *connection); // before its socket closes
// There were more than the limit when it came.
bool http_connection_is_excess(const struct http_connection *connection);
// Begins a phase, or says that something moved within it.
void http_connection_enter(struct http_connection *connection, enum http_phase phase);
// Looks whether the client closes its side, until http_connection_unwatch.
void http_connection_watch(struct http_connection *connection, void *request);
void http_connection_unwatch(struct http_connection *connection);
