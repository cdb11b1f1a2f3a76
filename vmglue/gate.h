// SPDX-License-Identifier: Apache-2.0
// The gate in front of every call that comes by TCP: who asks (keys.h), how often (rate_limit.h), whether
// that one may (access.h). Callers on the unix socket own the daemon and pass. Requests end with their key.
//
// Threads: gate_enter runs on connections' threads, any number at once.
#pragma once

#include "vmglue/http_server.h"
#include "vmglue/keys.h"

struct service;
struct gate;

struct gate_config {
    struct service *service;
    double requests_per_sec, burst; // of one key; 0 = no limits, not for wrong keys either
};
enum { GATE_RATE_DEFAULT = 500, GATE_RATE_MAX = 1000000 };

int gate_start(const struct gate_config *config, struct gate **ret_gate, struct error *err);
struct gate *gate_stop(struct gate *gate); // after the HTTP servers have stopped. Accepts NULL
struct keys *gate_keys(struct gate *gate);

// For http_server_config.gate; the context is the service.
bool gate_enter(void *context, struct http_request *request);
// One who guesses: a key, or a URL's token, that is not known. What is guessed is hopeless at any rate; the
// limit, by the address that it comes from, keeps a client with a wrong one from filling the log and the
// daemon's time. true: it came too often, and has been answered (429).
bool gate_refuses_guess(struct http_request *request);
// For http_server_config.mask: values of "env" are replaced by null for read keys.
void gate_mask(void *context, struct http_request *request, json_t *body);
// For http_server_config.before and after: requests that are sent again (idempotency.h).
bool gate_before(void *context, struct http_request *request, const void *body, size_t size);
void gate_after(
        void *context, struct http_request *request, int status, const void *answer, size_t answer_size);
// What made_by.request is for what this request makes; "" = it has no Idempotency-Key.
const char *gate_request_tag(struct http_request *request);
// A guest is going to be asked to make what this request makes, with that tag as its mark. Without an
// Idempotency-Key nothing is to be done.
int gate_request_asks(struct http_request *request, struct error *err);
unsigned gate_requests_kept(struct gate *gate);      // docs of the store that are records of requests
json_t *gate_key_json(const struct keys_info *info); // as the API shows a key
// With what key the request came; NULL = by the unix socket, or an open call.
const struct keys_info *gate_key(struct http_request *request);
// This request does not end with its key: it is the one that revokes it.
void gate_spare(struct http_request *request);
