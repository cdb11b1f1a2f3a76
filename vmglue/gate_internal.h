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
// What an earlier daemon was in the middle of.
void gate_repeat_recover(struct gate *gate);
