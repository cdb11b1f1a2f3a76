// SPDX-License-Identifier: Apache-2.0
// Requests that are sent again: what idempotency.h keeps, in HTTP's terms; and what came of those that an
// earlier daemon was in the middle of.
#include "vmglue/gate_internal.h"

#include "vmglue/access.h"
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

// What a call makes, and where it is looked for after a crash.
enum made { MADE_NOTHING, MADE_SANDBOX, MADE_FORK, MADE_SNAPSHOT, MADE_VOLUME, MADE_KEY };
static const struct {
    const char *route;
    enum made made;
} makers[] = {
        {"POST /v1/sandboxes", MADE_SANDBOX}, {"POST /v1/sandboxes/{name}/fork", MADE_FORK},
        {"POST /v1/sandboxes/{name}/snapshots", MADE_SNAPSHOT}, {"POST /v1/volumes", MADE_VOLUME},
        {"POST /v1/volumes/{name}/fork", MADE_VOLUME}, {"POST /v1/volumes/{name}/snapshots", MADE_SNAPSHOT},
        {"POST /v1/volumes/{name}/{part}/fork", MADE_VOLUME},
        {"POST /v1/volumes/{name}/{part}/snapshots", MADE_SNAPSHOT}, {"POST /v1/keys", MADE_KEY},
        {"POST /v1/templates", MADE_NOTHING}, // a build ends with its daemon, and leaves nothing
};
// Members of answers that are shown once.
static const char *const secrets[] = {"key", "token", "url", "path", "host_url"};
static const char *const secret_routes[] = {"POST /v1/keys", "POST /v1/sandboxes/{name}/urls"};

// false: it is in a guest, or in a record of somebody else.
static bool find_maker(const char *route, enum made *ret_made)
{
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        if (strcmp(makers[i].route, route) != 0)
            continue;
        *ret_made = makers[i].made;
        return true;
    }
    return false;
}

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

static void reply_unknown(struct http_request *request)
{
    http_reply_error(request, 409, "idempotency.unknown",
            "the daemon ended while the first request with this Idempotency-Key ran, and what it made cannot "
            "be told: look whether it is there, then ask again with another key");
}

static void reply_verdict(struct http_request *request, enum idempotency_verdict verdict, int status,
        const char *answer, const struct error *err)
{
    switch (verdict) {
    case IDEMPOTENCY_REPLAY:
        if (answer != NULL)
            replay(request, status, answer);
        else
            reply_unknown(request);
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
    if (verdict == IDEMPOTENCY_RUN) {
        sandbox_step(NULL, STEP_REQUEST_RECORDED);
        if (!caller->access_is_open || access_allow(request))
            return true;
        idempotency_end(gate->idempotency, caller->tag, IDEMPOTENCY_NOTHING, 0, NULL, 0);
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

// The answer as it is kept; malloc'ed, or NULL when it stays as it is.
static char *without_secrets(const char *route, const void *answer, size_t size)
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
    enum made made;
    sandbox_step(NULL, STEP_REQUEST_MADE);
    route_name(http_request_route(request), route, sizeof route);
    enum idempotency_outcome outcome = status >= 200 && status < 300 ? IDEMPOTENCY_MADE
                                       : status < 500                ? IDEMPOTENCY_NOTHING
                                       : find_maker(route, &made) || was_refused(answer, answer_size)
                                               ? IDEMPOTENCY_NOTHING
                                               : IDEMPOTENCY_LOST;
    char *kept = outcome == IDEMPOTENCY_MADE ? without_secrets(route, answer, answer_size) : NULL;
    if (kept != NULL)
        idempotency_end(gate->idempotency, caller->tag, outcome, status, kept, strlen(kept));
    else
        idempotency_end(gate->idempotency, caller->tag, outcome, status, answer, answer_size);
    free(kept);
}

// ---- after a start ----

struct search {
    const char *tag;
    struct doc_id doc; // of a snapshot
    struct volume_id volume;
};

static void match_snapshot(void *context, const struct doc *doc)
{
    struct search *search = context;
    if (search->doc.value != 0 || doc->name[0] == '\0' ||
            memmem(doc->body, doc->body_bytes, search->tag, strlen(search->tag)) == NULL)
        return;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (strcmp(made_by_take(body).request, search->tag) == 0)
        search->doc = doc->id;
}

static void match_volume(void *context, const struct doc *doc)
{
    struct search *search = context;
    struct volume_id volume = made_by_volume_of(doc);
    JSON_AUTO json_t *body = volume.value == 0 ? NULL : json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (volume.value != 0 && strcmp(made_by_take(body).request, search->tag) == 0)
        search->volume = volume;
}

static json_t *find_snapshot(struct gate *gate, const char *tag)
{
    struct search search = {.tag = tag};
    store_doc_list(gate->service->store, DOC_SNAPSHOT, match_snapshot, &search);
    store_doc_list(gate->service->store, DOC_MACHINE, match_snapshot, &search);
    return search.doc.value == 0 ? NULL : route_json_snapshot_by_id(gate->service, search.doc);
}

static json_t *find_volume(struct gate *gate, const char *tag)
{
    struct search search = {.tag = tag};
    store_doc_list(gate->service->store, DOC_OTHER, match_volume, &search);
    return search.volume.value == 0 ? NULL : route_json_volume_by_id(gate->service, search.volume);
}

// Nobody was told of them: a fork is whole or is not.
static void remove_children(struct gate *gate, json_t *children, json_t *snapshot)
{
    size_t i;
    json_t *child;
    json_array_foreach(children, i, child)
            sandbox_remove(gate->service->sandboxes, json_fields_get_text(child, "id"), NULL);
    if (snapshot != NULL)
        disks_delete_snapshot(&gate->service->disks, json_fields_get_text(snapshot, "id"), NULL);
}

// The figures of the capture went with the daemon.
static json_t *find_fork(struct gate *gate, const struct idempotency_open *open)
{
    json_t *children = sandbox_list_made_by(gate->service->sandboxes, open->tag);
    json_t *snapshot = find_snapshot(gate, open->tag), *parent = NULL, *first = json_array_get(children, 0);
    if (json_array_size(children) < open->count) {
        remove_children(gate, children, snapshot);
        json_decref(children);
        json_decref(snapshot);
        return NULL;
    }
    sandbox_show(gate->service->sandboxes, json_fields_get_text(first, "parent_id"), &parent, NULL);
    json_t *json = json_pack("{s:s, s:s, s:s?, s:O, s:i, s:i, s:i}", "tree_id",
            json_fields_get_text(first, "tree_id"), "parent",
            parent == NULL ? json_fields_get_text(first, "from") : json_fields_get_text(parent, "name"),
            "snapshot", snapshot == NULL ? NULL : json_fields_get_text(snapshot, "name"), "children",
            children, "pause_ms", 0, "frozen_ms", 0, "new_bytes", 0);
    json_decref(children);
    json_decref(snapshot);
    json_decref(parent);
    return json;
}

static json_t *find_sandbox(struct gate *gate, const char *tag)
{
    json_t *list = sandbox_list_made_by(gate->service->sandboxes, tag);
    json_t *json = json_incref(json_array_get(list, 0));
    json_decref(list);
    return json;
}

static json_t *find_key(struct gate *gate, const char *tag)
{
    struct keys_info info;
    return keys_find_request(gate->keys, tag, &info) < 0 ? NULL : gate_key_json(&info);
}

static json_t *find_made(struct gate *gate, const struct idempotency_open *open, enum made made)
{
    switch (made) {
    case MADE_SANDBOX:
        return find_sandbox(gate, open->tag);
    case MADE_FORK:
        return find_fork(gate, open);
    case MADE_SNAPSHOT:
        return find_snapshot(gate, open->tag);
    case MADE_VOLUME:
        return find_volume(gate, open->tag);
    case MADE_KEY:
        return find_key(gate, open->tag);
    case MADE_NOTHING:
    default:
        return NULL;
    }
}

void gate_repeat_recover(struct gate *gate)
{
    struct idempotency_open open;
    while (idempotency_next_open(gate->idempotency, &open)) {
        enum made made;
        bool known = find_maker(open.route, &made);
        json_t *json = known ? find_made(gate, &open, made) : NULL;
        char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
        char *kept = text == NULL ? NULL : without_secrets(open.route, text, strlen(text));
        idempotency_settle(gate->idempotency, &open,
                !known         ? IDEMPOTENCY_LOST
                : text != NULL ? IDEMPOTENCY_MADE
                               : IDEMPOTENCY_NOTHING,
                201, kept != NULL ? kept : text);
        free(kept);
        free(text);
        json_decref(json);
    }
}

unsigned gate_requests_kept(struct gate *gate)
{
    return gate == NULL ? 0 : idempotency_kept(gate->idempotency);
}
