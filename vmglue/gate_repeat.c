// SPDX-License-Identifier: Apache-2.0
// Requests that are sent again: what idempotency.h keeps, in HTTP's terms. gate_settle.c finds out what came
// of those that an earlier daemon was in the middle of.
#include "vmglue/gate_internal.h"

#include "vmglue/access.h"
#include "vmglue/alias.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { RETRY_SECS = 2, WAIT_TURNS = 120 };

// Members of answers that are shown once.
static const char *const secrets[] = {"key", "token", "url", "path", "host_url"};
static const char *const secret_routes[] = {"POST /v1/keys", "POST /v1/sandboxes/{name}/urls"};

// ---- the header ----

struct header {
    const char *value;
    unsigned count;
};

static void visit(void *context, const char *name, size_t name_size, const char *value, size_t size)
{
    struct header *header = context;
    if (name_size != strlen("Idempotency-Key") || strncasecmp(name, "Idempotency-Key", name_size) != 0)
        return;
    header->value = value;
    header->count++;
}

static const char *caller_id(const struct gate_caller *caller)
{
    return caller->keys.keys == NULL ? "local" : caller->keys.key.id;
}

bool gate_repeat_take_key(struct gate *gate, struct http_request *request)
{
    struct header header = {0};
    if ((http_request_route(request)->flags & HTTP_CREATES) == 0)
        return true;
    http_request_each_header(request, visit, &header);
    if (header.count == 0)
        return true;
    if (header.count > 1 || !idempotency_key_is_good(header.value)) {
        http_reply_error(request, 400, "validation.invalid",
                "the header Idempotency-Key must be there once, with 1 to %d printable characters, such as a "
                "UUID",
                IDEMPOTENCY_KEY_MAX);
        return false;
    }
    struct gate_caller *caller = http_request_caller(request);
    if (caller == NULL) {
        caller = gate_caller_new(request);
        if (caller == NULL)
            return false;
        http_request_set_caller(request, caller, gate_caller_release);
    }
    idempotency_tag(caller_id(caller), header.value, caller->tag);
    caller->access_is_open = idempotency_knows(gate->idempotency, caller->tag);
    return true;
}

// ---- around the handler ----

struct waiter {
    struct http_request *request;
    unsigned turns;
};

static bool go_on_waiting(void *context)
{
    struct waiter *waiter = context;
    return ++waiter->turns <= WAIT_TURNS && !http_request_is_gone(waiter->request) &&
           !http_request_is_stopping(waiter->request);
}

static void route_name(const struct http_route *route, char *ret_name, size_t capacity)
{
    snprintf(ret_name, capacity, "%s %s", route->method, route->pattern);
}

static unsigned count_things(const char *route, const void *body, size_t size)
{
    unsigned count = 1;
    if (strcmp(route, "POST /v1/sandboxes/{name}/fork") == 0) {
        JSON_AUTO json_t *json = json_loadb(body, size, JSON_ALLOW_NUL, NULL);
        size_t names = json_array_size(json_object_get(json, "names"));
        int64_t asked = json_fields_get_int(json, "count");
        count = asked > 0 ? (unsigned)asked : names > 0 ? (unsigned)names : 1;
    }
    return count;
}

static struct sha256 contents_of(struct http_request *request, const void *body, size_t size)
{
    struct sha256 sum = sha256_of(body, size);
    char hex[2 * SHA256_SIZE + 1];
    sha256_hex(&sum, hex);
    const char *texts[] = {http_request_method(request), http_request_path(request), hex};
    return sha256_of_texts(texts, 3);
}

static void replay(struct http_request *request, int status, const char *answer)
{
    http_reply_header(request, "Idempotency-Replayed", "true");
    http_reply_bytes(request, status, "application/json", answer, strlen(answer));
}

// In the words that this request is in: those of the first one, as the contents are the same.
static void replay_found(
        struct http_request *request, const void *body, size_t size, int status, const char *answer)
{
    JSON_AUTO json_t *asked = json_loadb(body, size, JSON_ALLOW_NUL, NULL);
    alias_recognize(request, asked);
    http_reply_header(request, "Idempotency-Replayed", "true");
    http_reply_json(request, status, json_loads(answer, 0, NULL));
}

static void reply_unknown(struct http_request *request)
{
    http_reply_error(request, 409, "idempotency.unknown",
            "the daemon ended while the first request with this Idempotency-Key ran, and the sandbox does "
            "not "
            "tell what came of it: when it does not run, start it and ask again; otherwise look whether what "
            "was to be made is there, then ask again with another key");
}

static void reply_verdict(struct http_request *request, enum idempotency_verdict verdict, int status,
        const char *answer, const struct error *err)
{
    switch (verdict) {
    case IDEMPOTENCY_REPLAY:
        if (answer != NULL)
            replay(request, status, answer);
        else
            http_reply_error(request, 409, "idempotency.unknown",
                    "the first request with this Idempotency-Key made what it should, but its answer was "
                    "larger "
                    "than %d KiB and is not kept: look for what it made",
                    IDEMPOTENCY_ANSWER_MAX / 1024);
        break;
    case IDEMPOTENCY_CONFLICT:
        http_reply_error(request, 409, "idempotency.conflict",
                "this Idempotency-Key was used for a request with another path or body; give each request "
                "that is not the same one a key of its own");
        break;
    case IDEMPOTENCY_BUSY:
        http_reply_retry(request, 409, "idempotency.in_progress", RETRY_SECS,
                "the first request with this Idempotency-Key still runs; ask again a little later");
        break;
    case IDEMPOTENCY_FOUND: // without an answer, as it was too long
    case IDEMPOTENCY_UNKNOWN:
        reply_unknown(request);
        break;
    default:
        http_reply_failure(request, "idempotency", err);
    }
}

bool gate_before(void *context, struct http_request *request, const void *body, size_t size)
{
    struct gate *gate = ((struct service *)context)->gate;
    struct gate_caller *caller = http_request_caller(request);
    if (caller == NULL || caller->tag[0] == '\0')
        return true;
    char route[160], *answer = NULL;
    int status = 0;
    struct error err = {0};
    struct waiter waiter = {request, 0};
    route_name(http_request_route(request), route, sizeof route);
    struct idempotency_request asked = {.caller = caller_id(caller),
            .route = route,
            .contents = contents_of(request, body, size),
            .count = count_things(route, body, size)};
    memcpy(asked.tag, caller->tag, sizeof asked.tag);
    enum idempotency_verdict verdict =
            idempotency_begin(gate->idempotency, &asked, go_on_waiting, &waiter, &status, &answer, &err);
    if (verdict == IDEMPOTENCY_UNKNOWN && gate_settle_asks_guest(route)) {
        if (!access_allow(request)) { // a name may be another's by now
            caller->tag[0] = '\0';
            return false;
        }
        if (gate_settle_ask(gate, request, &asked))
            verdict = idempotency_begin(
                    gate->idempotency, &asked, go_on_waiting, &waiter, &status, &answer, &err);
    }
    if (verdict == IDEMPOTENCY_RUN) {
        sandbox_step(NULL, STEP_REQUEST_RECORDED);
        if (!caller->access_is_open || access_allow(request))
            return true;
        idempotency_end(gate->idempotency, caller->tag, IDEMPOTENCY_NOTHING, 0, NULL, 0);
    } else if (verdict == IDEMPOTENCY_FOUND && answer != NULL) {
        replay_found(request, body, size, status, answer);
    } else {
        reply_verdict(request, verdict, status, answer, &err);
    }
    free(answer);
    caller->tag[0] = '\0'; // not the one who ends it
    return false;
}

// In the words of other services' clients an answer may hold tokens, at any depth.
static void remove_tokens(json_t *value)
{
    json_t *item;
    const char *name;
    size_t i;
    json_object_del(value, "envdAccessToken");
    json_object_del(value, "trafficAccessToken");
    json_array_foreach(value, i, item) remove_tokens(item);
    json_object_foreach(value, name, item) remove_tokens(item);
}

static bool shows_secrets(const char *route)
{
    for (size_t i = 0; i < sizeof secret_routes / sizeof secret_routes[0]; i++)
        if (strcmp(secret_routes[i], route) == 0)
            return true;
    return false;
}

char *gate_repeat_without_secrets(const char *route, const void *answer, size_t size)
{
    bool shows = shows_secrets(route);
    if (!shows && (answer == NULL || memmem(answer, size, "AccessToken", 11) == NULL))
        return NULL;
    json_t *json = json_loadb(answer, size, 0, NULL);
    if (json == NULL)
        json = json_object();
    remove_tokens(json);
    for (size_t i = 0; shows && i < sizeof secrets / sizeof secrets[0]; i++)
        json_object_del(json, secrets[i]);
    if (shows)
        json_object_set_new(json, "notice",
                json_string(
                        "the first request with this Idempotency-Key made it; its secret was in that answer "
                        "alone: remove it and make another one if that answer was lost"));
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return text == NULL ? strdup("{}") : text;
}

// Refused before anything was begun: to be asked again, with the same key.
static bool was_refused(const void *answer, size_t size)
{
    static const char *const refusals[] = {"capacity.memory", "capacity.busy", "capacity.starting",
            "capacity.threads", "capacity.connections"};
    JSON_AUTO json_t *json = answer == NULL ? NULL : json_loadb(answer, size, 0, NULL);
    const char *code = json_fields_get_text(json_object_get(json, "error"), "code");
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (strcmp(code, refusals[i]) == 0)
            return true;
    return false;
}

void gate_after(
        void *context, struct http_request *request, int status, const void *answer, size_t answer_size)
{
    struct gate *gate = ((struct service *)context)->gate;
    struct gate_caller *caller = http_request_caller(request);
    if (caller == NULL || caller->tag[0] == '\0')
        return;
    char route[160];
    sandbox_step(NULL, STEP_REQUEST_MADE);
    route_name(http_request_route(request), route, sizeof route);
    enum idempotency_outcome outcome = status >= 200 && status < 300 ? IDEMPOTENCY_MADE
                                       : status < 500                ? IDEMPOTENCY_NOTHING
                                       : !gate_settle_asks_guest(route) || was_refused(answer, answer_size)
                                               ? IDEMPOTENCY_NOTHING
                                               : IDEMPOTENCY_LOST;
    char *kept = outcome == IDEMPOTENCY_MADE ? gate_repeat_without_secrets(route, answer, answer_size) : NULL;
    if (kept != NULL)
        idempotency_end(gate->idempotency, caller->tag, outcome, status, kept, strlen(kept));
    else
        idempotency_end(gate->idempotency, caller->tag, outcome, status, answer, answer_size);
    free(kept);
}

int gate_request_asks(struct http_request *request, struct error *err)
{
    struct gate *gate = service_of(request)->gate;
    const struct gate_caller *caller = http_request_caller(request);
    if (caller == NULL || caller->tag[0] == '\0')
        return 0;
    return idempotency_ask(gate->idempotency, caller->tag, err);
}

unsigned gate_requests_kept(struct gate *gate)
{
    return gate == NULL ? 0 : idempotency_kept(gate->idempotency);
}
