// SPDX-License-Identifier: Apache-2.0
// Calls in the words of other services' clients. One table for each family (alias_pandastack.c) has one row
// per call that is accepted; a row says what it is natively, and the native handler does the work behind the
// same gate. What a row cannot say by names alone is a small function that only moves fields.
//
// When a request is in a family's words: its path begins with the family's prefix (/pandastack/v1/...), or is
// one that only the family has; its User-Agent is the family's client; or its body has one of the family's
// fields. Then errors have the family's shape and answers get its fields. Fields of native answers stay. A
// User-Agent that any JavaScript has (fetch of Node, Bun, Deno), with "Accept: application/json", gets the
// family's fields beside the native ones, and nothing else.
//
// Threads: a request's own.
#pragma once

#include "vmglue/http_server.h"

extern const struct http_words alias_words;

enum alias_family { ALIAS_PANDASTACK, ALIAS_E2B };
enum { ALIAS_ASKED_MAX = 4 };

struct alias_row;
struct alias_call {              // of one request
    const struct alias_row *row; // NULL = the call has no row, only its errors are shaped
    bool theirs;                 // it is in the family's words
    bool likely;                 // it may be: fields are added
    bool woken;
    char native[512];    // what its path became
    bool set_timeout;    // E2B: given beside what becomes another call
    uint64_t timeout_ms; // 0 = none
    bool cold, was_running;
    char asked[ALIAS_ASKED_MAX][512]; // values of the row's dropped query parameters, in its order
};

// A field of a body. convert makes the native value; without one it is moved as it is. Its result NULL with
// *err set to an error is that error, NULL without one drops the field.
typedef json_t *alias_convert(struct http_request *request, const json_t *value, struct error *err);
struct alias_field {
    const char *theirs; // NULL ends a list
    const char *native; // NULL = dropped
    alias_convert *convert;
};
struct alias_query {
    const char *theirs, *native; // native NULL = dropped
};

enum {
    ALIAS_WAKES = 1, // a sandbox that is stopped is started for it
    // It is for a machine that the header E2b-Sandbox-Id names ({sandbox} in `to`); a token of that sandbox
    // will do in place of a key.
    ALIAS_INSIDE = 4,
    ALIAS_RPC = 8,    // errors are Connect's
    ALIAS_ABSENT = 2, // the pattern is a beginning; Ramet has no such thing, `words` says so (404)
};

struct alias_row {
    enum alias_family family;
    const char *method, *pattern; // NULL ends a table; "*" as method is any
    const char *to_method, *to;   // NULL = native already
    unsigned flags;
    const struct alias_field *fields;  // may be NULL
    const struct alias_query *queries; // may be NULL
    // After the fields. May be NULL.
    int (*body)(struct http_request *request, json_t *body, struct error *err);
    // A successful answer; steals and returns it. May be NULL.
    json_t *(*answer)(const struct alias_call *call, struct http_request *request, int *status, json_t *body);
    json_t *(*event)(
            const struct alias_call *call, struct http_request *request, const char **event, json_t *data);
    const char *words;
    // Behind the gate, before the handler; false: it has replied. May be NULL.
    bool (*enter)(struct http_request *request);
};

extern const struct alias_row alias_pandastack[], alias_e2b[];

// Whose words a request is in may be seen by its body alone: looks, and changes nothing of it.
void alias_recognize(struct http_request *request, const json_t *body);
// The token that came in place of a key, with a call into a machine; NULL = none. For the gate.
const char *alias_token(struct http_request *request);

// The family's error in place of the native one; steals body.
json_t *alias_pandastack_error(struct http_request *request, json_t *body);
json_t *alias_e2b_error(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body);
// Native words for a time-out: {"error":{...},"message":...}. New.
json_t *alias_error(struct http_request *request, const char *code, const char *message);
// Of the names that stand for `name`, the first that exists in the store; `name` itself when it does, or
// none.
const char *alias_source(struct http_request *request, const char *name);
