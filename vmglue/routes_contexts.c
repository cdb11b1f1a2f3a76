// SPDX-License-Identifier: Apache-2.0
// Code contexts of a sandbox: making, listing, running code in them.
#include "vmglue/contexts.h"
#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const double TIMEOUT_MAX_SECS = 86400;

// Takes the agent of the path's sandbox; on failure it has replied.
static bool begin(struct http_request *request, struct sandbox_agent *ret_use)
{
    struct error err;
    int r = route_agent_use(request, http_request_param(request, "name"), ret_use, &err);
    if (r < 0)
        http_reply_failure(request, "sandbox", &err);
    return r == 0;
}

// Lets the agent go.
static void finish(struct http_request *request, struct sandbox_agent *use, int result, int status,
        json_t *json, struct error *err)
{
    if (result < 0)
        sandbox_agent_failed(use, err);
    if (result < 0)
        http_reply_failure(request, "context", err);
    else if (json == NULL)
        http_reply_empty(request, status);
    else
        http_reply_json(request, status, json);
    route_agent_done(request, use);
}

static void create_context(struct http_request *request)
{
    static const char *const known[] = {"id", "language", "cwd", "user", "env", NULL};
    struct contexts_create create = {0};
    struct sandbox_agent use;
    struct error err;
    json_t *body, *json = NULL;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "id", &create.id, &err);
    if (r >= 0)
        r = json_fields_string(body, "language", &create.language, &err);
    if (r >= 0)
        r = json_fields_string(body, "cwd", &create.cwd, &err);
    if (r >= 0)
        r = json_fields_string(body, "user", &create.user, &err);
    if (r >= 0)
        r = json_fields_string_map(body, "env", &create.env, &err);
    if (r < 0) {
        http_reply_failure(request, "context", &err);
        return;
    }
    if (!begin(request, &use))
        return;
    create.mark = gate_request_tag(request);
    r = gate_request_asks(request, &err);
    if (r == 0)
        r = contexts_create(&use, &create, &json, &err);
    finish(request, &use, r, 201, json, &err);
}

static void list_contexts(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    json_t *list = NULL;
    if (!begin(request, &use))
        return;
    int r = contexts_list(&use, &list, &err);
    finish(request, &use, r, 200, r < 0 ? NULL : json_pack("{s:o}", "contexts", list), &err);
}

static void show_context(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    json_t *json = NULL;
    if (!begin(request, &use))
        return;
    int r = contexts_show(&use, http_request_param(request, "id"), &json, &err);
    finish(request, &use, r, 200, json, &err);
}

static void remove_context(struct http_request *request)
{
    struct sandbox_agent use;
    struct error err;
    if (!begin(request, &use))
        return;
    int r = contexts_remove(&use, http_request_param(request, "id"), &err);
    finish(request, &use, r, 204, NULL, &err);
}

static void interrupt_context(struct http_request *request)
{
    static const char *const known[] = {"kill", NULL};
    bool kill = false, interrupted = false;
    struct sandbox_agent use;
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_bool(body, "kill", &kill, &err);
    if (r < 0) {
        http_reply_failure(request, "context", &err);
        return;
    }
    if (!begin(request, &use))
        return;
    r = contexts_interrupt(&use, http_request_param(request, "id"), kill, &interrupted, &err);
    finish(request, &use, r, 200, r < 0 ? NULL : json_pack("{s:b}", "interrupted", (int)interrupted), &err);
}

static void restart_context(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct sandbox_agent use;
    struct error err;
    json_t *body, *json = NULL;
    int r = route_json_body(request, known, &body, &err);
    if (r < 0) {
        http_reply_failure(request, "context", &err);
        return;
    }
    if (!begin(request, &use))
        return;
    r = contexts_restart(&use, http_request_param(request, "id"), &json, &err);
    finish(request, &use, r, 200, json, &err);
}

// ---- run ----

struct run_call {
    struct http_request *request;
    struct contexts_run run;
    bool streams; // as server-sent events
};

static bool is_gone(void *context)
{
    const struct run_call *call = context;
    return http_request_is_gone(call->request);
}

static void send_event(void *context, const char *event, const json_t *data)
{
    const struct run_call *call = context;
    http_reply_event(call->request, event, json_incref((json_t *)data));
}

// Strings belong to the request's body.
static int take_run(struct run_call *call, struct error *err)
{
    static const char *const known[] = {"code", "timeout_secs", NULL};
    json_t *body;
    int r = route_json_body(call->request, known, &body, err);
    if (r >= 0)
        r = json_fields_string(body, "code", &call->run.code, err);
    if (r >= 0)
        r = json_fields_seconds(body, "timeout_secs", TIMEOUT_MAX_SECS, &call->run.timeout_ms, err);
    if (r >= 0 && call->run.code == NULL)
        r = error_set(err, -EINVAL, "field \"code\" is missing: the code to run");
    call->run.id = http_request_param(call->request, "id");
    call->run.cancelled = is_gone;
    call->run.context = call;
    call->run.on_event = call->streams ? send_event : NULL;
    if (call->streams)
        http_reply_expect_events(call->request); // it may queue behind another for long
    return r < 0 ? r : 0;
}

// What its reader has by then is left out.
static void send_done(struct http_request *request, json_t *execution)
{
    static const char *const sent[] = {"stdout", "stderr", "results", "text", "error", NULL};
    for (size_t i = 0; sent[i] != NULL; i++)
        json_object_del(execution, sent[i]);
    http_reply_event(request, "done", execution);
}

static void send_failure(struct http_request *request, const struct error *err)
{
    http_reply_event_failure(request, "failed", "context", err);
}

static void run(struct http_request *request, bool streams)
{
    struct run_call call = {.request = request, .streams = streams};
    struct sandbox_agent use;
    struct error err;
    json_t *execution = NULL;
    int r = take_run(&call, &err);
    if (r < 0) {
        http_reply_failure(request, "context", &err);
        return;
    }
    if (!begin(request, &use))
        return;
    r = contexts_run(&use, &call.run, &execution, &err);
    if (!streams) {
        finish(request, &use, r, 200, execution, &err);
        return;
    }
    if (r < 0)
        sandbox_agent_failed(&use, &err);
    if (r < 0)
        send_failure(request, &err);
    else
        send_done(request, execution);
    route_agent_done(request, &use);
}

static void run_whole_or_stream(struct http_request *request)
{
    const char *accept = http_request_header(request, "Accept");
    run(request, accept != NULL && strstr(accept, "text/event-stream") != NULL);
}

static void run_stream(struct http_request *request)
{
    run(request, true);
}

const struct http_route routes_contexts[] = {
        {"POST", "/v1/sandboxes/{name}/contexts", HTTP_CREATES, create_context},
        {"GET", "/v1/sandboxes/{name}/contexts", 0, list_contexts},
        {"GET", "/v1/sandboxes/{name}/contexts/{id}", 0, show_context},
        {"DELETE", "/v1/sandboxes/{name}/contexts/{id}", 0, remove_context},
        {"POST", "/v1/sandboxes/{name}/contexts/{id}/interrupt", 0, interrupt_context},
        {"POST", "/v1/sandboxes/{name}/contexts/{id}/restart", 0, restart_context},
        {"POST", "/v1/sandboxes/{name}/contexts/{id}/run", HTTP_STREAM, run_whole_or_stream},
        {"POST", "/v1/sandboxes/{name}/contexts/{id}/run/stream", HTTP_STREAM, run_stream},
        {0},
};
