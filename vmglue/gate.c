// SPDX-License-Identifier: Apache-2.0
#include "blockstore/clock.h"
#include "vmglue/gate_internal.h"

#include "vmglue/access.h"
#include "vmglue/alias.h"
#include "vmglue/service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FAILURES_PER_SEC = 5, FAILURES_BURST = 30 };
#define MAKE_ONE "`ramet key create NAME` on the daemon's host makes one"

int gate_start(const struct gate_config *config, struct gate **ret_gate, struct error *err)
{
    struct gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL)
        return error_set(err, -ENOMEM, "no memory for the gate");
    gate->service = config->service;
    gate->requests = rate_limit_new(config->requests_per_sec, config->burst);
    gate->failures = rate_limit_new(config->requests_per_sec == 0 ? 0 : FAILURES_PER_SEC, FAILURES_BURST);
    int r = gate->requests == NULL || gate->failures == NULL
                    ? error_set(err, -ENOMEM, "no memory for the limits of requests")
                    : keys_start(config->service->store, &gate->keys, err);
    struct idempotency_config repeats = {.store = config->service->store};
    if (r == 0)
        r = idempotency_start(&repeats, &gate->idempotency, err);
    if (r == 0)
        gate_settle_recover(gate);
    if (r < 0)
        gate_stop(gate);
    else
        *ret_gate = gate;
    return r;
}

struct gate *gate_stop(struct gate *gate)
{
    if (gate == NULL)
        return NULL;
    gate->keys = keys_stop(gate->keys);
    gate->idempotency = idempotency_stop(gate->idempotency);
    gate->requests = rate_limit_free(gate->requests);
    gate->failures = rate_limit_free(gate->failures);
    free(gate);
    return NULL;
}

struct keys *gate_keys(struct gate *gate)
{
    return gate->keys;
}

const struct keys_info *gate_key(struct http_request *request)
{
    const struct gate_caller *caller = http_request_caller(request);
    return caller == NULL || caller->keys.keys == NULL ? NULL : &caller->keys.key;
}

static unsigned seconds_up(uint64_t wait_ns)
{
    return (unsigned)((wait_ns + 999999999u) / 1000000000u);
}

// ---- who asks ----

bool gate_refuses_guess(struct http_request *request)
{
    struct gate *gate = service_of(request)->gate;
    char peer[HTTP_PEER_SIZE];
    if (gate == NULL || http_request_is_local(request))
        return false;
    http_request_peer(request, peer);
    uint64_t wait_ns = rate_limit_take(gate->failures, peer, clock_monotonic_ns());
    if (wait_ns == 0)
        return false;
    http_reply_retry(request, 429, "rate_limit.authentication", seconds_up(wait_ns),
            "too many requests with wrong keys, or to URLs that are not known, come from %s; correct the "
            "client's key or URL",
            peer);
    return true;
}

static void reply_unknown(struct http_request *request, const char *code, const char *sentence)
{
    if (gate_refuses_guess(request))
        return;
    http_reply_header(request, "WWW-Authenticate", "Bearer realm=\"ramet\"");
    http_reply_error(request, 401, code, "%s", sentence);
}

// The token after "Bearer"; NULL: another scheme.
static const char *bearer(const char *value)
{
    if (strncasecmp(value, "Bearer", 6) != 0 || (value[6] != ' ' && value[6] != '\t' && value[6] != '\0'))
        return NULL;
    value += 6;
    return value + strspn(value, " \t");
}

// What a browser's WebSocket can say beside its address: a key as one of its subprotocols.
#define SOCKET_KEY "ramet.key."

struct credentials {
    const char *bearer, *key; // NULL = not given
    bool twice;
    char socket_key[KEYS_SECRET_SIZE + 8]; // as much as no key has
};

static void take(const char **at, const char *value, struct credentials *found)
{
    found->twice = found->twice || *at != NULL;
    *at = value;
}

// Of a list of subprotocols, by commas. The first alone counts twice when there are two.
static void take_protocols(const char *value, struct credentials *found)
{
    for (const char *at = value; *at != '\0';) {
        at += strspn(at, ", \t");
        size_t size = strcspn(at, ", \t"), prefix = strlen(SOCKET_KEY);
        if (size > prefix && strncmp(at, SOCKET_KEY, prefix) == 0) {
            snprintf(found->socket_key, sizeof found->socket_key, "%.*s", (int)(size - prefix), at + prefix);
            take(&found->key, found->socket_key, found);
        }
        at += size;
    }
}

static void visit_header(void *context, const char *name, size_t name_size, const char *value, size_t size)
{
    struct credentials *found = context;
    const char *token;
    if (name_size == 9 && strncasecmp(name, "X-API-Key", 9) == 0)
        take(&found->key, value, found);
    else if (name_size == 13 && strncasecmp(name, "Authorization", 13) == 0 &&
             (token = bearer(value)) != NULL)
        take(&found->bearer, token, found);
    else if (name_size == 22 && strncasecmp(name, "Sec-WebSocket-Protocol", 22) == 0)
        take_protocols(value, found);
}

// What the headers say, with every doubt resolved against the caller. NULL: *ret_code and *ret_sentence.
static const char *find_secret(struct http_request *request, struct credentials *found, const char **ret_code,
        const char **ret_sentence)
{
    http_request_each_header(request, visit_header, found);
    const char *secret = found->bearer != NULL ? found->bearer : found->key;
    if (found->twice ||
            (found->bearer != NULL && found->key != NULL && strcmp(found->bearer, found->key) != 0)) {
        *ret_code = "auth.ambiguous";
        *ret_sentence = "the request names more than one key; send one \"Authorization: Bearer KEY\" or one "
                        "\"X-API-Key: KEY\"";
        return NULL;
    }
    if (secret != NULL && secret[0] != '\0')
        return secret;
    *ret_code = "auth.missing";
    *ret_sentence =
            "this call needs a key: send \"Authorization: Bearer KEY\" or \"X-API-Key: KEY\"; " MAKE_ONE;
    return NULL;
}

static void end_request(struct keys_caller *caller)
{
    struct gate_caller *ours = (struct gate_caller *)caller; // its first member
    if (!atomic_load(&ours->spared))
        http_request_break(caller->context);
}

void gate_spare(struct http_request *request)
{
    struct gate_caller *caller = http_request_caller(request);
    if (caller != NULL)
        atomic_store(&caller->spared, true);
}

struct gate_caller *gate_caller_new(struct http_request *request)
{
    struct gate_caller *caller = calloc(1, sizeof *caller);
    if (caller == NULL)
        http_reply_error(request, 503, "capacity.memory", "no memory for a request");
    return caller;
}

void gate_caller_release(void *context)
{
    struct gate_caller *caller = context;
    keys_leave(&caller->keys);
    free(caller);
}

static bool authenticate(struct gate *gate, struct http_request *request)
{
    struct credentials found = {0}; // the secret may lie in it
    const char *code, *sentence, *secret = find_secret(request, &found, &code, &sentence);
    const char *token = secret == NULL ? alias_token(request) : NULL;
    if (secret == NULL && token == NULL) {
        reply_unknown(request, code, sentence);
        return false;
    }
    struct gate_caller *caller = gate_caller_new(request);
    if (caller == NULL)
        return false;
    caller->keys.end = end_request;
    caller->keys.context = request;
    int r = secret != NULL
                    ? keys_admit(gate->keys, secret, &caller->keys)
                    : keys_admit_token(gate->keys, token, http_request_param(request, "name"), &caller->keys);
    if (r == 0) {
        http_request_set_caller(request, caller, gate_caller_release);
        return true;
    }
    free(caller);
    if (r == -ETIME)
        reply_unknown(request, "auth.expired", "this key has expired; " MAKE_ONE);
    else
        reply_unknown(request, "auth.invalid",
                "this key is not known here: it is mistyped, was revoked, or is another server's; " MAKE_ONE);
    return false;
}

// In place, in objects that hold an "env": these are the answer's own, whatever they share below.
static void mask_env(json_t *value)
{
    const char *name;
    json_t *item;
    size_t i;
    json_array_foreach(value, i, item) mask_env(item);
    json_object_foreach(value, name, item)
    {
        if (strcmp(name, "env") != 0 || !json_is_object(item)) {
            mask_env(item);
            continue;
        }
        json_t *masked = json_object();
        const char *variable;
        json_t *ignored;
        json_object_foreach(item, variable, ignored) json_object_set_new(masked, variable, json_null());
        json_object_set_new(value, name, masked);
    }
}

void gate_mask(void *context, struct http_request *request, json_t *body)
{
    const struct keys_info *key = gate_key(request);
    if (key != NULL && key->preset == KEYS_READ)
        mask_env(body);
}

// By the unix socket, or with a key that may ask this often.
static bool admit(struct gate *gate, struct http_request *request)
{
    if (http_request_is_local(request))
        return true;
    if (!authenticate(gate, request))
        return false;
    const struct keys_info *key = gate_key(request);
    uint64_t wait_ns = rate_limit_take(gate->requests, key->id, clock_monotonic_ns());
    if (wait_ns == 0)
        return true;
    http_reply_retry(request, 429, "rate_limit.requests", seconds_up(wait_ns),
            "the key \"%s\" asks more often than this server allows (rametd --rate-limit); try again a "
            "little "
            "later",
            key->name);
    return false;
}

bool gate_enter(void *context, struct http_request *request)
{
    struct gate *gate = ((struct service *)context)->gate;
    if ((http_request_route(request)->flags & HTTP_OPEN) != 0)
        return true;
    if (!admit(gate, request) || !gate_repeat_take_key(gate, request))
        return false;
    // A request that is sent again gets its answer although what it was about is gone; what is not replayed
    // is checked in gate_before.
    const struct gate_caller *caller = http_request_caller(request);
    return (caller != NULL && caller->access_is_open) || access_allow(request);
}

const char *gate_request_tag(struct http_request *request)
{
    const struct gate_caller *caller = http_request_caller(request);
    return caller == NULL ? "" : caller->tag;
}
