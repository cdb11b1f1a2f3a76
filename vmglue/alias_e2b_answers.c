// SPDX-License-Identifier: Apache-2.0
#include "vmglue/alias_e2b.h"

#include "vmglue/gate.h"
#include "vmglue/hex.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"
#include "vmglue/service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE_DEFAULT = 100, PAGE_MAX = 1000 };
#define NEVER "9999-12-31T23:59:59Z" // they must be told an end

static void set(json_t *json, const char *name, json_t *value)
{
    json_object_set_new(json, name, value);
}

static json_t *text_of(const json_t *json, const char *name)
{
    return json_string(json_fields_get_text(json, name));
}

// ---- errors ----

// Connect's words for what an HTTP status says.
static const char *rpc_code(int status, const char *code)
{
    static const struct {
        int status;
        const char *word;
    } words[] = {{400, "invalid_argument"}, {401, "unauthenticated"}, {403, "permission_denied"},
            {404, "not_found"}, {413, "resource_exhausted"}, {429, "resource_exhausted"},
            {502, "unavailable"}, {503, "unavailable"}, {504, "deadline_exceeded"},
            {507, "resource_exhausted"}};
    const char *dot = strrchr(code, '.');
    if (status == 409)
        return dot != NULL && strcmp(dot, ".conflict") == 0 ? "already_exists" : "failed_precondition";
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (words[i].status == status)
            return words[i].word;
    return "internal";
}

json_t *alias_e2b_error(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *error = json_object_get(body, "error");
    if (!json_is_object(error))
        return body;
    const char *code = json_fields_get_text(error, "code"), *message = json_fields_get_text(error, "message");
    bool inside = call->row != NULL && (call->row->flags & ALIAS_INSIDE) != 0;
    bool gone = inside && (strcmp(code, "sandbox.not_found") == 0 || strcmp(code, "sandbox.ended") == 0 ||
                                  strcmp(code, "sandbox.invalid_state") == 0);
    if (gone) // what their proxy says of a machine that does not run
        *status = 502;
    json_t *words = json_sprintf("%s%s", gone ? "the sandbox was not found running: " : "", message);
    json_t *made = json_object();
    if (inside && (call->row->flags & ALIAS_RPC) != 0)
        set(made, "code", json_string(rpc_code(*status, code)));
    else
        set(made, "code", json_integer(*status));
    set(made, "message", words);
    set(made, "ramet_code", json_string(code));
    set(made, "request_id", json_string(http_request_id(request)));
    json_decref(body);
    return made;
}

// ---- sandboxes ----

static void add_tokens(struct http_request *request, const json_t *box, json_t *made)
{
    const struct keys_info *key = gate_key(request);
    char token[KEYS_TOKEN_SIZE];
    if (key == NULL || keys_token(gate_keys(service_of(request)->gate), key->id,
                               json_fields_get_text(box, "id"), token) < 0)
        return;
    set(made, "envdAccessToken", json_string(token));
    set(made, "trafficAccessToken", json_string(token));
}

static json_t *brief(struct http_request *request, const json_t *box)
{
    json_t *made = json_pack("{s:o, s:o, s:s, s:s, s:o}", "sandboxID", text_of(box, "id"), "templateID",
            text_of(box, "from"), "clientID", "ramet", "envdVersion", ALIAS_E2B_ENVD_VERSION, "alias",
            text_of(box, "name"));
    add_tokens(request, box, made);
    return made;
}

static json_t *detail(struct http_request *request, const json_t *box)
{
    json_t *made = brief(request, box);
    const char *state = json_fields_get_text(box, "state"), *end = json_fields_get_text(box, "expires_at");
    bool runs =
            strcmp(state, "running") == 0 || strcmp(state, "creating") == 0 || strcmp(state, "starting") == 0;
    set(made, "startedAt", text_of(box, "created_at"));
    set(made, "endAt", json_string(end[0] == '\0' ? NEVER : end));
    set(made, "state", json_string(runs ? "running" : "paused"));
    set(made, "cpuCount", json_integer(json_fields_get_int(box, "cpus")));
    set(made, "memoryMB", json_integer(json_fields_get_int(box, "memory_mb")));
    set(made, "diskSizeMB", json_integer(json_fields_get_int(box, "disk_bytes") >> 20));
    json_object_set(made, "metadata", json_object_get(box, "labels"));
    bool kills = strcmp(json_fields_get_text(box, "on_timeout"), "delete") == 0;
    set(made, "lifecycle",
            json_pack("{s:s, s:b}", "onTimeout", kills ? "kill" : "pause", "autoResume",
                    (int)json_fields_get_bool(box, "auto_start")));
    return made;
}

json_t *alias_e2b_created(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *made = brief(request, body);
    json_decref(body);
    return made;
}

json_t *alias_e2b_detail(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *made = detail(request, body);
    json_decref(body);
    return made;
}

json_t *alias_e2b_nothing(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_decref(body);
    *status = 204;
    return NULL;
}

// Their measurements over a time are one here, of now; the processors' since the machine's start.
json_t *alias_e2b_metrics(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *box = NULL, *made = json_array();
    const json_t *disk = json_object_get(body, "disk"), *memory = json_object_get(body, "memory");
    double uptime = json_number_value(json_object_get(body, "uptime_secs"));
    struct error err;
    if (json_is_object(memory) &&
            sandbox_show(service_of(request)->sandboxes, json_fields_get_text(body, "id"), &box, &err) == 0) {
        json_int_t cpus = json_fields_get_int(box, "cpus");
        double used = json_number_value(json_object_get(body, "cpu_secs"));
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        json_array_append_new(
                made, json_pack("{s:o, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "timestamp",
                              json_fields_time((uint64_t)now.tv_sec * 1000000000u), "timestampUnix",
                              (json_int_t)now.tv_sec, "cpuCount", cpus, "cpuUsedPct",
                              uptime <= 0 ? 0.0 : used / uptime * 100, "memTotal",
                              (json_int_t)json_fields_get_int(box, "memory_mb") << 20, "memUsed",
                              (json_int_t)(json_fields_get_int(memory, "private_bytes") +
                                           json_fields_get_int(memory, "shared_bytes")),
                              "memCache", (json_int_t)0, "diskUsed",
                              (json_int_t)json_fields_get_int(disk, "data_bytes"), "diskTotal",
                              (json_int_t)json_fields_get_int(disk, "logical_bytes")));
    }
    json_decref(box);
    json_decref(body);
    return made;
}

bool alias_e2b_enter_pause(struct http_request *request)
{
    json_t *box = NULL;
    struct error err;
    const char *name = http_request_param(request, "name");
    if (sandbox_show(service_of(request)->sandboxes, name, &box, &err) < 0)
        return true; // the handler says it
    bool stopped = strcmp(json_fields_get_text(box, "state"), "stopped") == 0;
    json_decref(box);
    if (stopped)
        http_reply_error(request, 409, "sandbox.invalid_state", "sandbox \"%s\" is paused already", name);
    return !stopped;
}

static int set_life(
        struct http_request *request, const char *id, uint64_t ttl_ms, json_t **ret_box, struct error *err)
{
    struct sandbox_change change = {.set_ttl = true, .ttl_ms = ttl_ms};
    return sandbox_change(service_of(request)->sandboxes, id, &change, ret_box, err);
}

// Its time-out is set before it is started: one that cannot be set leaves it as it was. One that runs needs
// no start.
bool alias_e2b_enter_connect(struct http_request *request)
{
    struct alias_call *call = http_request_words(request);
    const char *name = http_request_param(request, "name");
    json_t *box = NULL, *body;
    struct error err;
    int r = http_request_json(request, &body, &err);
    if (r >= 0)
        r = call->set_timeout ? set_life(request, name, call->timeout_ms, &box, &err)
                              : sandbox_show(service_of(request)->sandboxes, name, &box, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return false;
    }
    call->was_running = strcmp(json_fields_get_text(box, "state"), "running") == 0;
    if (!call->was_running) {
        json_decref(box);
        return true;
    }
    http_reply_json(request, 200, box);
    return false;
}

json_t *alias_e2b_connected(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    *status = call->was_running ? 200 : 201;
    return alias_e2b_created(call, request, status, body);
}

// Children that would not end when they were to are none that anybody asked for.
static json_t *forked_in_vain(
        struct http_request *request, const json_t *children, const struct error *why, int *status)
{
    char code[64], words[600], left[SANDBOX_ID_SIZE + 80] = "they were removed again";
    bool retryable;
    json_t *child;
    size_t i;
    struct error err;
    json_array_foreach((json_t *)children, i, child)
    {
        const char *id = json_fields_get_text(child, "id");
        int r = sandbox_remove(service_of(request)->sandboxes, id, &err);
        if (r < 0 && r != -ENOENT)
            snprintf(left, sizeof left, "%s could not be removed again, remove it yourself", id);
    }
    *status = http_route_status("sandbox", why->code, code, sizeof code, &retryable);
    snprintf(words, sizeof words, "the time-out of the forks could not be set, and %s: %s", left, why->text);
    return alias_error(request, code, words);
}

json_t *alias_e2b_forked(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *made = json_array(), *child, *children = json_object_get(body, "children"), *box;
    struct error err;
    int r = 0;
    size_t i;
    json_array_foreach(children, i, child)
    {
        if (call->set_timeout && r == 0 &&
                (r = set_life(request, json_fields_get_text(child, "id"), call->timeout_ms, &box, &err)) == 0)
            json_decref(box);
        json_array_append_new(made, json_pack("{s:o}", "sandbox", brief(request, child)));
    }
    if (r < 0) {
        json_decref(made);
        made = forked_in_vain(request, children, &err, status);
    }
    json_decref(body);
    return made;
}

// ---- lists ----

// Their metadata is escaped once more than a query is.
static void unescape(char *text)
{
    char *out = text;
    for (; *text != '\0'; text++) {
        int byte = text[0] == '%' ? hex_byte(text + 1) : -1;
        if (byte >= 0) {
            *out++ = (char)byte;
            text += 2;
        } else {
            *out++ = *text == '+' ? ' ' : *text;
        }
    }
    *out = '\0';
}

// "k=v&k2=v2"
static bool has_metadata(const json_t *labels, const char *wanted)
{
    char copy[512], *rest = copy, *pair;
    snprintf(copy, sizeof copy, "%s", wanted);
    while ((pair = strsep(&rest, "&")) != NULL) {
        char *value = strchr(pair, '=');
        if (pair[0] == '\0' || value == NULL)
            continue;
        *value++ = '\0';
        for (int i = 0; i < 2; i++) {
            unescape(pair);
            unescape(value);
        }
        if (strcmp(json_fields_get_text(labels, pair), value) != 0)
            return false;
    }
    return true;
}

static bool has_state(const char *state, const char *wanted)
{
    return wanted[0] == '\0' || strstr(wanted, state) != NULL;
}

// Pages: the token is how many came before.
static json_t *page(struct http_request *request, json_t *all, const char *limit_text, const char *token)
{
    size_t from = (size_t)strtoul(token, NULL, 10), limit = (size_t)strtoul(limit_text, NULL, 10);
    size_t count = json_array_size(all);
    if (limit == 0)
        limit = PAGE_DEFAULT;
    if (limit > PAGE_MAX)
        limit = PAGE_MAX;
    json_t *made = json_array();
    for (size_t i = from; i < count && i - from < limit; i++)
        json_array_append(made, json_array_get(all, i));
    if (from < count && count - from > limit) {
        char next[32];
        snprintf(next, sizeof next, "%zu", from + limit);
        http_reply_header(request, "x-next-token", next);
    }
    json_decref(all);
    return made;
}

json_t *alias_e2b_listed(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    const char *metadata = call->asked[0], *state = call->asked[1];
    json_t *all = json_array(), *box;
    size_t i;
    json_array_foreach(json_object_get(body, "sandboxes"), i, box)
    {
        json_t *made = detail(request, box);
        json_object_del(made, "envdAccessToken");
        json_object_del(made, "trafficAccessToken");
        if (has_state(json_fields_get_text(made, "state"), state) &&
                has_metadata(json_object_get(box, "labels"), metadata))
            json_array_insert(all, 0, made); // newest first
        json_decref(made);
    }
    json_decref(body);
    return page(request, all, call->asked[2], call->asked[3]);
}

static json_t *snapshot_of(const json_t *snapshot)
{
    return json_pack(
            "{s:o, s:[o]}", "snapshotID", text_of(snapshot, "id"), "names", text_of(snapshot, "name"));
}

json_t *alias_e2b_snapshot(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *made = snapshot_of(body);
    json_decref(body);
    return made;
}

json_t *alias_e2b_snapshots(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *all = json_array(), *item;
    size_t i;
    json_array_foreach(json_object_get(body, "snapshots"), i, item)
    {
        bool machine = strcmp(json_fields_get_text(item, "kind"), "machine") == 0 &&
                       json_object_get(item, "template") == NULL;
        bool its = call->asked[0][0] == '\0' ||
                   strcmp(json_fields_get_text(item, "parent_id"), call->asked[0]) == 0;
        bool named =
                call->asked[1][0] == '\0' || strcmp(json_fields_get_text(item, "name"), call->asked[1]) == 0;
        if (machine && its && named) {
            json_t *made = snapshot_of(item);
            json_array_insert_new(all, 0, made);
        }
    }
    json_decref(body);
    return page(request, all, call->asked[2], call->asked[3]);
}

// ---- code contexts ----

static json_t *context_of(const json_t *context, const char *cwd)
{
    return json_pack("{s:o, s:o, s:s}", "id", text_of(context, "id"), "language",
            text_of(context, "language"), "cwd", cwd[0] == '\0' ? "/home/user" : cwd);
}

json_t *alias_e2b_context(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *asked = NULL;
    struct error err;
    bool known = http_request_json(request, &asked, &err) == 0;
    json_t *made = context_of(body, known ? json_fields_get_text(asked, "cwd") : "");
    json_decref(body);
    *status = 200;
    return made;
}

json_t *alias_e2b_contexts(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *made = json_array(), *context;
    size_t i;
    json_array_foreach(json_object_get(body, "contexts"), i, context)
    {
        json_array_append_new(made, context_of(context, ""));
    }
    json_decref(body);
    return made;
}
