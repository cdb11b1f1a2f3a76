// SPDX-License-Identifier: Apache-2.0
// Shared by the files gate*.c, not for anybody else.
#pragma once

#include "vmglue/gate.h"
#include "vmglue/idempotency.h"
#include "vmglue/rate_limit.h"

#include <stdatomic.h>

struct gate {
    struct service *service;
    struct keys *keys;
    struct rate_limit *requests, *failures;
    struct idempotency *idempotency;
};

// One of these hangs on a request that came with a key, or with an Idempotency-Key.
struct gate_caller {
    struct keys_caller keys; // keys.keys NULL: the owner, over the unix socket
    atomic_bool spared;
    bool access_is_open;            // the access check waits until it is known that nothing is replayed
    char tag[MADE_BY_REQUEST_SIZE]; // of its Idempotency-Key; "" = none
};
struct gate_caller *gate_caller_new(struct http_request *request); // NULL: it has replied; not set yet
void gate_caller_release(void *caller);

// ---- gate_repeat.c ----
// The request's Idempotency-Key, when its route honours one, as a tag. false: it has replied.
bool gate_repeat_take_key(struct gate *gate, struct http_request *request);
// The answer as it is kept; malloc'ed, or NULL when it stays as it is.
char *gate_repeat_without_secrets(const char *route, const void *answer, size_t size);

// ---- gate_settle.c ----
// What an earlier daemon was in the middle of, as far as it can be told without a guest.
void gate_settle_recover(struct gate *gate);
// What this call makes is inside a guest.
bool gate_settle_asks_guest(const char *route);
// Asks it; true: the outcome is known now.
bool gate_settle_ask(
        struct gate *gate, struct http_request *request, const struct idempotency_request *asked);
