// SPDX-License-Identifier: Apache-2.0
// The Connect protocol with JSON, as far as E2B's clients speak it: a call is one JSON object there and one
// back, or a stream of frames of one flag byte, four bytes of length (big-endian) and JSON.
//
// Threads: a request's own. Ownership: json_t is stolen where a function sends it.
#pragma once

#include "vmglue/json.h"
#include "vmglue/sandbox.h"

struct e2b_stream {
    struct http_request *request;
    uint64_t sent_ns; // when the last frame went out
    bool begun, broken;
};

// The one frame that asks (HTTP_STREAM), or the first of several. *ret_body is a new reference. -EINVAL with
// *err.
int e2b_connect_ask(struct http_request *request, json_t **ret_body, struct error *err);
// One more of them: 1, or 0 when there are none.
int e2b_connect_next(struct http_request *request, json_t **ret_body, struct error *err);
// One frame of the answer.
int e2b_connect_send(struct e2b_stream *stream, json_t *message);
// A frame {"event":{"keepalive":{}}} when none went out for long; -EPIPE: the client left.
int e2b_connect_keep(struct e2b_stream *stream, json_t *(*keepalive)(void));
// The last frame; err NULL = fine. `code` is Connect's word, NULL = what the errno says.
void e2b_connect_end(struct e2b_stream *stream, const char *code, const struct error *err);
// Who the command or file is of: from "Authorization: Basic base64(user:)"; "" = not said.
void e2b_connect_user(struct http_request *request, char *ret_user, size_t capacity);
// Bytes of a field in base64; malloc'ed. NULL: it is none.
void *e2b_connect_bytes(const char *text, size_t *ret_size);
