// SPDX-License-Identifier: Apache-2.0
// Code as E2B's code interpreter runs it: one JSON object a line, as things happen.
#include "blockstore/clock.h"
#include "vmglue/contexts.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct http_request *request;
    bool begun;
};

static bool is_gone(void *context)
{
    const struct run *run = context;
    return http_request_is_gone(run->request);
}

static void send_line(struct run *run, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (text == NULL)
        return;
    if (!run->begun)
        http_reply_begin(run->request, 200, "application/x-ndjson", -1);
    run->begun = true;
    if (http_reply_write(run->request, text, strlen(text)) == 0)
        http_reply_write(run->request, "\n", 1);
    free(text);
}

static json_t *timestamp(void)
{
    return json_integer((json_int_t)clock_wall_ns());
}

// Only what their Result knows: an unknown key is an error in their client.
static json_t *result_of(const json_t *data, bool is_main)
{
    static const char *const kept[] = {
            "text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", NULL};
    json_t *result = json_pack("{s:s, s:b}", "type", "result", "is_main_result", (int)is_main);
    json_t *extra = json_object_get(data, "extra"), *value;
    for (size_t i = 0; kept[i] != NULL; i++)
        if ((value = json_object_get(data, kept[i])) != NULL && !json_is_null(value))
            json_object_set(result, kept[i], value);
    json_t *more = json_is_object(extra) ? json_copy(extra) : json_object();
    if ((value = json_object_get(data, "plotly")) != NULL && !json_is_null(value))
        json_object_set(more, "application/vnd.plotly.v1+json", value);
    if (json_object_size(more) > 0)
        json_object_set(result, "extra", more);
    json_decref(more);
    return result;
}

static void on_event(void *context, const char *event, const json_t *data)
{
    struct run *run = context;
    if (strcmp(event, "started") == 0) {
        send_line(run, json_pack("{s:s, s:O}", "type", "number_of_executions", "execution_count",
                               json_object_get(data, "execution_count")));
    } else if (strcmp(event, "stdout") == 0 || strcmp(event, "stderr") == 0) {
        send_line(run, json_pack("{s:s, s:O, s:o}", "type", event, "text", json_object_get(data, "text"),
                               "timestamp", timestamp()));
    } else if (strcmp(event, "result") == 0 || strcmp(event, "display") == 0) {
        send_line(run, result_of(data, strcmp(event, "result") == 0));
    } else if (strcmp(event, "error") == 0) {
        send_line(
                run, json_pack("{s:s, s:s, s:s, s:s}", "type", "error", "name",
                             json_fields_get_text(data, "name"), "value", json_fields_get_text(data, "value"),
                             "traceback", json_fields_get_text(data, "traceback")));
    }
}

static int take(struct http_request *request, struct contexts_run *run, struct error *err)
{
    json_t *body;
    int r = http_request_json(request, &body, err);
    if (r < 0)
        return r;
    const char *language = json_fields_get_text(body, "language");
    run->id = json_fields_get_text(body, "context_id");
    run->code = json_string_value(json_object_get(body, "code"));
    if (run->code == NULL)
        return error_set(err, -EINVAL, "field \"code\" is missing: the code to run");
    if (json_object_size(json_object_get(body, "env_vars")) > 0)
        return error_set(err, -EINVAL,
                "field \"env_vars\": a context has its variables for good; give them when the sandbox is "
                "made");
    if (run->id[0] != '\0')
        return 0;
    run->id = language[0] == '\0' ? "python" : language;
    if (strcmp(run->id, "python") != 0 && strcmp(run->id, "bash") != 0)
        return error_set(
                err, -EINVAL, "field \"language\" must be \"python\" or \"bash\", not \"%.40s\"", run->id);
    return 0;
}

static void execute(struct http_request *request)
{
    struct run run = {.request = request};
    struct contexts_run call = {.cancelled = is_gone, .on_event = on_event, .context = &run};
    struct sandbox_agent use;
    struct error err;
    json_t *execution = NULL;
    int r = take(request, &call, &err);
    if (r < 0) {
        http_reply_failure(request, "context", &err);
        return;
    }
    r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    r = contexts_run(&use, &call, &execution, &err);
    if (r < 0) {
        sandbox_agent_failed(&use, &err);
        if (run.begun)
            http_reply_abort(request);
        else
            http_reply_failure(request, "context", &err);
    } else {
        send_line(&run, json_pack("{s:s}", "type", "end_of_execution"));
    }
    json_decref(execution);
    route_agent_done(request, &use);
}

const struct http_route routes_e2b_code[] = {
        {"POST", "/v1/sandboxes/{name}/envd/execute", HTTP_STREAM, execute},
        {0},
};
