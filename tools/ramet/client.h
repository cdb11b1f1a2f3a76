// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 client for the daemon: one connection per call, over whatever connection.h makes.
//
// Bounded: while an answer, or room for more of a request, is waited for, the daemon is asked from time to
// time whether it lives; one that does not say so ends the call with -ETIMEDOUT (SILENCE_SECS and ALIVE_SECS
// in client.c). A call may last as long as the daemon lives.
//
// Errors: client_call and client_open return -errno with *err for everything that is not an answer; an answer
// that is an error (status 400 and up) is an answer: client_error makes a sentence of it.
#pragma once

#include "blockstore/error.h"
#include "tools/ramet/server.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct client;

// Sends the head of a request. body_size: -1 = chunked, by client_write and client_write_end; otherwise
// exactly that many.
int client_open(const struct server *server, const char *method, const char *path, const char *content_type,
        int64_t body_size, struct client **ret_client, struct error *err);
int client_write(struct client *client, const void *bytes, size_t size, struct error *err);
// Ends the body and reads the answer's head.
int client_answer(struct client *client, int *ret_status, struct error *err);
// Bytes of the answer, 0 at its end; -EPIPE when it broke off.
ssize_t client_read(struct client *client, void *buffer, size_t capacity, struct error *err);
// The rest of the answer; malloc'ed, zero-terminated.
int client_read_all(struct client *client, char **ret_text, size_t *ret_size, struct error *err);
int client_fd(const struct client *client);         // to poll for the other side's end
struct client *client_close(struct client *client); // accepts NULL

// A whole call with JSON both ways. body may be NULL (stolen otherwise); *ret_json may be NULL (no content).
// Answers of 400 and up: -EREMOTEIO, with the daemon's sentence in *err and, if not NULL, the object in
// *ret_json.
int client_call(const struct server *server, const char *method, const char *path, json_t *body,
        json_t **ret_json, struct error *err);
// POST of what makes something: with an Idempotency-Key, so that it can be, and is, sent again when the
// answer was lost or the daemon says that it is worth another try.
int client_create(
        const struct server *server, const char *path, json_t *body, json_t **ret_json, struct error *err);
// The headers that say who asks, each with its line end. For requests that others write.
void client_credentials(const struct server *server, char *ret_text, size_t capacity);
// Does the daemon answer a small call? Takes as long as the answer, ALIVE_SECS at most.
bool client_is_alive(const struct server *server);
// Called each second while an answer is waited for; NULL = no more. Of the whole process.
void client_on_wait(void (*waiting)(void *context, unsigned seconds), void *context);
// The next server-sent event: 1, 0 at the end. *ret_event is malloc'ed, *ret_data a new reference.
int client_event(struct client *client, char **ret_event, json_t **ret_data, struct error *err);
// The daemon's sentence of an error answer.
int client_error(struct client *client, int status, json_t **ret_json, struct error *err);
// Percent-encodes for a path (slashes stay) or query value; malloc'ed.
char *client_escape(const char *text);
