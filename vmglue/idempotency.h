// SPDX-License-Identifier: Apache-2.0
// Requests that make something and may be sent again (header Idempotency-Key): one thing is made, and every
// answer is the first one.
//
// What is known of a request is a DOC_OTHER doc "request-TAG", put before its handler runs; after it another
// one is in its place, with the answer as its blob. TAG is a hash of who asks and of the key that the client
// chose. What the handler makes has the tag in its own record (made_by.h), so a daemon that died between the
// two can tell at its next start whether the thing is there: then the doc is completed from the thing,
// otherwise it goes and the request may run again. What lives inside a guest (jobs, contexts) has the tag as
// well, but the guest has to be asked, and may have lost it: the doc says that the guest was going to be
// asked to make it (`asked`) before it is. Without that it goes; with it the outcome stays unknown, and each
// time that the client asks again the guest is.
//
// Only successes are kept: what failed has made nothing. Kept for 24 hours, of one caller at most
// IDEMPOTENCY_CALLER_MAX, then its oldest make way. Secrets are not kept: a repeated answer is without them.
//
// Threads: any that is not a loop. Durability: as the log's order, in which the doc is before the thing.
#pragma once

#include "blockstore/error.h"
#include "snapshot/store.h"
#include "vmglue/made_by.h"
#include "vmglue/sha256.h"

#include <stdbool.h>

enum {
    IDEMPOTENCY_MAX = 4000, // they take room among the store's docs
    IDEMPOTENCY_CALLER_MAX = 1000,
    IDEMPOTENCY_KEPT_SECS = 86400,
    IDEMPOTENCY_KEY_MAX = 255,
    IDEMPOTENCY_ANSWER_MAX = 192 * 1024,
};

struct idempotency;

struct idempotency_config {
    struct store *store;
    uint64_t (*wall_ns)(void); // NULL = the clock
};
int idempotency_start(
        const struct idempotency_config *config, struct idempotency **ret_all, struct error *err);
struct idempotency *idempotency_stop(struct idempotency *all); // when no request runs. Accepts NULL

// Who asks and with which key: what made_by.request is.
void idempotency_tag(const char *caller, const char *key, char ret_tag[MADE_BY_REQUEST_SIZE]);
// A header's value that can be one: 1 to 255 printable characters of ASCII.
bool idempotency_key_is_good(const char *key);

struct idempotency_request {
    char tag[MADE_BY_REQUEST_SIZE];
    const char *caller;     // an id, or "local"
    const char *route;      // "POST /v1/sandboxes"
    struct sha256 contents; // of path, query and body: the same tag with others is a mistake of the client's
    unsigned count;         // how many things it makes
};
enum idempotency_verdict {
    IDEMPOTENCY_RUN,      // it is the first: run it, then idempotency_end
    IDEMPOTENCY_FOUND,    // as IDEMPOTENCY_REPLAY, but the answer is the thing as it was found after a crash
    IDEMPOTENCY_REPLAY,   // *ret_status and *ret_answer (malloc'ed; NULL = too large) are the first one's
    IDEMPOTENCY_CONFLICT, // the key was used for another request
    IDEMPOTENCY_BUSY,     // the first one still runs; waited in vain
    IDEMPOTENCY_UNKNOWN,  // nobody knows what came of the first one
    IDEMPOTENCY_FAILED,   // *err: it cannot be written down
};
// Waits for a request with the same tag that runs, as long as `wait` says true; NULL = not at all.
enum idempotency_verdict idempotency_begin(struct idempotency *all, const struct idempotency_request *request,
        bool (*wait)(void *context), void *context, int *ret_status, char **ret_answer, struct error *err);
enum idempotency_outcome {
    IDEMPOTENCY_MADE,    // keep the answer
    IDEMPOTENCY_NOTHING, // nothing was made: forget it
    IDEMPOTENCY_LOST,    // it may have been made, and cannot be found by its tag
};
void idempotency_end(struct idempotency *all, const char *tag, enum idempotency_outcome outcome, int status,
        const char *answer, size_t answer_size);
// A guest is about to be asked to make it: durable before that, in the log's order.
int idempotency_ask(struct idempotency *all, const char *tag, struct error *err);
// There is something to replay, or it runs: asked before a handler's other checks.
bool idempotency_knows(struct idempotency *all, const char *tag);

// How many docs of the store are records of requests.
unsigned idempotency_kept(struct idempotency *all);

// ---- After a start: what an earlier daemon did not complete ----

struct idempotency_open {
    char tag[MADE_BY_REQUEST_SIZE], route[128];
    unsigned count;
    bool asked;
};
// One that is not settled yet; false: none is left.
bool idempotency_next_open(struct idempotency *all, struct idempotency_open *ret_open);
// As idempotency_end, of one that is open or whose outcome is unknown; nothing is done to others.
void idempotency_settle(struct idempotency *all, const char *tag, enum idempotency_outcome outcome,
        int status, const char *answer);
