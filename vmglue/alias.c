// SPDX-License-Identifier: Apache-2.0
#include "vmglue/alias.h"

#include "vmglue/access.h"
#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_CAPACITY = sizeof((struct alias_call *)NULL)->native };

static const char prefix[] = "/pandastack/v1/";
static const struct alias_row *const tables[] = {alias_pandastack, alias_e2b, NULL};

static bool begins(const char *text, const char *with)
{
    return text != NULL && strncmp(text, with, strlen(with)) == 0;
}

static struct alias_call *call_of(struct http_request *request)
{
    return http_request_words(request);
}

// "/v1/databases" fits "/v1/databases" and all below it.
static bool is_below(const char *path, const char *beginning)
{
    size_t size = strlen(beginning);
    return strncmp(path, beginning, size) == 0 && (path[size] == '\0' || path[size] == '/');
}

static bool fits(const struct alias_row *row, const char *method, const char *path,
        struct http_param params[HTTP_PARAMS_MAX])
{
    if (strcmp(row->method, "*") != 0 && strcmp(row->method, method) != 0)
        return false;
    if ((row->flags & ALIAS_ABSENT) != 0)
        return is_below(path, row->pattern);
    return http_route_matches(row->pattern, path, params);
}

static const struct alias_row *find(
        const char *method, const char *path, struct http_param params[HTTP_PARAMS_MAX])
{
    for (size_t t = 0; tables[t] != NULL; t++)
        for (const struct alias_row *row = tables[t]; row->method != NULL; row++)
            if (fits(row, method, path, params))
                return row;
    return NULL;
}

// The native pattern with the values of their path. What is too long for it is nobody's name: "" then.
static void fill(const char *pattern, const struct http_param params[HTTP_PARAMS_MAX], char *path)
{
    size_t used = 0;
    while (*pattern != '\0' && used < PATH_CAPACITY) {
        if (*pattern != '{') {
            path[used++] = *pattern++;
            continue;
        }
        size_t size = strcspn(pattern + 1, "}");
        for (unsigned i = 0; i < HTTP_PARAMS_MAX && used < PATH_CAPACITY; i++)
            if (params[i].name != NULL && params[i].name_size == size &&
                    memcmp(params[i].name, pattern + 1, size) == 0)
                used += (size_t)snprintf(path + used, PATH_CAPACITY - used, "%s", params[i].value);
        pattern += size + 2;
    }
    path[used < PATH_CAPACITY ? used : 0] = '\0';
}

// PandaStack's JavaScript client does not say who it is, but it asks for JSON by name, and for events of
// logs.
static bool is_likely(struct http_request *request, const char *agent, const struct alias_row *row)
{
    const char *accept = http_request_header(request, "Accept");
    if (accept == NULL || !(begins(agent, "node") || begins(agent, "undici") || begins(agent, "Bun/") ||
                                  begins(agent, "Deno/")))
        return false;
    return strcmp(accept, "application/json") == 0 ||
           (row != NULL && strstr(row->pattern, "/logs") != NULL && strcmp(accept, "text/event-stream") == 0);
}

// Returns whether there was one of theirs.
static bool rename_queries(struct http_request *request, struct alias_call *call)
{
    const struct alias_row *row = call->row;
    bool found = false;
    unsigned asked = 0;
    for (const struct alias_query *query = row->queries; query != NULL && query->theirs != NULL; query++) {
        const char *value = http_request_query(request, query->theirs);
        unsigned place = query->native == NULL ? asked++ : 0;
        if (value == NULL)
            continue;
        found = true;
        if (query->native == NULL && place < ALIAS_ASKED_MAX)
            snprintf(call->asked[place], sizeof call->asked[place], "%s", value);
        http_request_rename_query(request, query->theirs, query->native);
    }
    return found;
}

// Their path becomes the native one.
static void take_row(struct http_request *request, struct alias_call *call,
        const struct http_param params[HTTP_PARAMS_MAX])
{
    const struct alias_row *row = call->row;
    if (row->to != NULL) {
        fill(row->to, params, call->native);
        http_request_set_target(request, row->to_method, call->native);
        call->theirs = true;
    }
    if (rename_queries(request, call))
        call->theirs = true;
}

// The machine that a call is for is named by a header.
static bool take_sandbox(struct http_request *request, struct http_param params[HTTP_PARAMS_MAX])
{
    static const char name[] = "sandbox";
    const char *id = http_request_header(request, "E2b-Sandbox-Id");
    unsigned i = 0;
    while (i < HTTP_PARAMS_MAX - 1 && params[i].name != NULL)
        i++;
    if (id == NULL || id[0] == '\0' || strlen(id) >= sizeof params[i].value ||
            strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != strlen(id)) {
        http_reply_error(request, 400, "validation.invalid",
                "%s is for a machine that the header E2b-Sandbox-Id names, and it names none; E2B's clients "
                "send it when E2B_SANDBOX_URL is set",
                http_request_path(request));
        return false;
    }
    params[i] = (struct http_param){.name = name, .name_size = sizeof name - 1};
    snprintf(params[i].value, sizeof params[i].value, "%s", id);
    return true;
}

static bool begin(struct http_request *request)
{
    const char *agent = http_request_header(request, "User-Agent");
    const char *path = http_request_path(request), *method = http_request_method(request);
    bool prefixed = begins(path, prefix);
    struct alias_call made = {.theirs = prefixed || begins(agent, "pandastack-")};
    struct http_param params[HTTP_PARAMS_MAX] = {0};
    if (prefixed)
        path += strlen("/pandastack");
    made.row = find(method, path, params);
    made.likely = is_likely(request, agent, made.row);
    if (made.row == NULL && !made.theirs)
        return true;
    struct alias_call *call = malloc(sizeof *call);
    if (call == NULL)
        return true;
    *call = made;
    http_request_set_words(request, call);
    if (made.row != NULL && (made.row->flags & ALIAS_ABSENT) != 0) {
        call->theirs = true;
        http_reply_error(request, 404, "route.not_found", "%s", made.row->words);
        return false;
    }
    if (prefixed)
        http_request_set_target(request, method, path);
    if (call->row != NULL && (call->row->flags & ALIAS_INSIDE) != 0 && !take_sandbox(request, params))
        return false;
    if (call->row != NULL)
        take_row(request, call, params);
    return true;
}

const char *alias_token(struct http_request *request)
{
    const struct alias_call *call = call_of(request);
    if (call == NULL || call->row == NULL || (call->row->flags & ALIAS_INSIDE) == 0)
        return NULL;
    const char *token = http_request_header(request, "X-Access-Token");
    return token != NULL ? token : http_request_header(request, "E2B-Traffic-Access-Token");
}

// A native call (or what became one) of what is inside a machine, but for the question whether it runs.
static bool is_inside(struct http_request *request)
{
    static const char box[] = "/v1/sandboxes/{name}/";
    static const char *const parts[] = {"exec", "jobs", "files", "contexts", "ports", "envd", NULL};
    const char *pattern = http_request_route(request)->pattern;
    if (!begins(pattern, box) || strcmp(pattern + strlen(box), "envd/health") == 0)
        return false;
    for (size_t i = 0; parts[i] != NULL; i++)
        if (is_below(pattern + strlen(box), parts[i]))
            return true;
    return false;
}

// PandaStack's sandboxes wake when they are called, and those that have auto_start, but not for who may only
// look.
static int wake(struct http_request *request, struct alias_call *call, struct error *err)
{
    const struct keys_info *key = gate_key(request);
    bool theirs = call != NULL && call->theirs && call->row != NULL && (call->row->flags & ALIAS_WAKES) != 0;
    if ((key != NULL && key->preset == KEYS_READ) || (!theirs && !is_inside(request)))
        return 0;
    if (theirs && call->woken)
        return 0;
    if (theirs)
        call->woken = true;
    // A call of E2B's has the token in place of a key, which was that of who may do it.
    return sandbox_wake(service_of(request)->sandboxes, http_request_param(request, "name"), theirs, err);
}

static bool enter(struct http_request *request)
{
    struct alias_call *call = call_of(request);
    struct error err;
    if (wake(request, call, &err) == 0)
        return call == NULL || call->row == NULL || call->row->enter == NULL || call->row->enter(request);
    http_reply_failure(request, "sandbox", &err);
    return false;
}

static int take_field(
        struct http_request *request, json_t *body, const struct alias_field *field, struct error *err)
{
    json_t *value = json_incref(json_object_get(body, field->theirs)), *made = NULL;
    int r = 0;
    json_object_del(body, field->theirs);
    if (field->native != NULL && json_object_get(body, field->native) != NULL) {
        json_decref(value);
        return error_set(err, -EINVAL, "fields \"%s\" and \"%s\" mean the same; give one of them",
                field->theirs, field->native);
    }
    if (field->native != NULL && !json_is_null(value)) {
        struct error converted = {0};
        made = field->convert == NULL ? json_incref(value) : field->convert(request, value, &converted);
        if (made == NULL && converted.code < 0) {
            *err = converted;
            r = converted.code;
        }
    }
    if (made != NULL)
        json_object_set_new(body, field->native, made);
    json_decref(value);
    return r;
}

static int translate_body(struct http_request *request, json_t *body, struct error *err)
{
    struct alias_call *call = call_of(request);
    int r = 0;
    if (call == NULL || call->row == NULL)
        return 0;
    for (const struct alias_field *field = call->row->fields; field != NULL && field->theirs != NULL;
            field++) {
        if (json_object_get(body, field->theirs) == NULL)
            continue;
        call->theirs = true;
        r = take_field(request, body, field, err);
        if (r < 0)
            return r;
    }
    if (call->theirs && call->row->body != NULL)
        r = call->row->body(request, body, err);
    return r < 0 ? r : wake(request, call, err); // a call that only its body shows to be theirs
}

void alias_recognize(struct http_request *request, const json_t *body)
{
    struct alias_call *call = call_of(request);
    if (call == NULL || call->row == NULL)
        return;
    for (const struct alias_field *field = call->row->fields; field != NULL && field->theirs != NULL; field++)
        if (json_object_get(body, field->theirs) != NULL)
            call->theirs = true;
}

static json_t *translate_answer(struct http_request *request, int *status, json_t *body)
{
    struct alias_call *call = call_of(request);
    if (call == NULL || (!call->theirs && !call->likely))
        return body;
    if (*status < 400 && call->row != NULL && call->row->answer != NULL)
        body = call->row->answer(call, request, status, body);
    if (*status >= 400 && call->theirs && body != NULL)
        body = call->row != NULL && call->row->family == ALIAS_E2B
                       ? alias_e2b_error(call, request, status, body)
                       : alias_pandastack_error(request, body);
    return body;
}

static json_t *translate_event(struct http_request *request, const char **event, json_t *data)
{
    struct alias_call *call = call_of(request);
    if (call == NULL || (!call->theirs && !call->likely) || call->row == NULL || call->row->event == NULL)
        return data;
    return call->row->event(call, request, event, data);
}

const struct http_words alias_words = {begin, enter, translate_body, translate_answer, translate_event};

json_t *alias_error(struct http_request *request, const char *code, const char *message)
{
    return json_pack("{s:{s:s, s:s, s:s, s:{s:b}}, s:s}", "error", "code", code, "message", message,
            "request_id", http_request_id(request), "details", "retryable", 0, "message", message);
}

// Which of our sources their names stand for, in the order in which they are tried.
static const struct {
    const char *theirs, *native[3];
} sources[] = {
        {"ubuntu-24.04", {"agent-base", "code-interpreter", NULL}},
        {"ubuntu-22.04", {"agent-base", "code-interpreter", NULL}},
        {"base", {"agent-base", "code-interpreter", NULL}},
        {"code-interpreter", {"code-interpreter", "agent-base", NULL}},
        {"code-interpreter-v1", {"code-interpreter", "agent-base", NULL}},
};

static bool is_fit(struct http_request *request, const char *name)
{
    struct disks_ref ref;
    return disks_resolve(service_of(request)->store, name, &ref) == 0 && !access_is_foreign(request, name);
}

const char *alias_source(struct http_request *request, const char *name)
{
    if (is_fit(request, name))
        return name;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (strcmp(sources[i].theirs, name) != 0)
            continue;
        for (size_t k = 0; sources[i].native[k] != NULL; k++)
            if (is_fit(request, sources[i].native[k]))
                return sources[i].native[k];
    }
    return name;
}
