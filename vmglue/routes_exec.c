// SPDX-License-Identifier: Apache-2.0
// Commands in a sandbox: whole (exec) or as a stream of events (exec/stream).
//
// Output that is no UTF-8 is shown with U+FFFD for each bad byte; byte-exact output is in
// stdout_base64/stderr_base64 when "encoding": "base64" is asked for. A client that leaves ends its command.
#include "vmglue/json_fields.h"
#include "vmglue/route_exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *result_json(const struct agent_exec_result *result)
{
    json_t *json = json_pack("{s:i, s:b, s:b, s:I}", "exit_code", result->exit_code, "timed_out",
            (int)result->timed_out, "truncated", (int)result->truncated, "duration_ms",
            (json_int_t)result->duration_ms);
    if (result->signal != 0)
        json_object_set_new(json, "signal", json_integer(result->signal));
    if (result->out_of_memory)
        json_object_set_new(json, "out_of_memory", json_true());
    return json;
}

static void add_output(json_t *json, const char *name, const char *bytes, size_t size, bool as_base64)
{
    json_object_set_new(json, name, json_fields_text(bytes == NULL ? "" : bytes, size));
    if (!as_base64)
        return;
    char key[32], *text = route_exec_base64(bytes, size);
    snprintf(key, sizeof key, "%s_base64", name);
    json_object_set_new(json, key, json_string(text));
    free(text);
}

static void exec_whole(struct http_request *request)
{
    struct route_exec call = {.request = request};
    struct agent_exec_result result = {0};
    struct error err;
    if (route_exec_begin(&call, NULL, NULL)) {
        int r = agent_exec_run(call.use.agent, &call.exec, &result, &err);
        if (r < 0) {
            sandbox_agent_failed(&call.use, &err);
            http_reply_failure(request, "exec", &err);
        } else {
            json_t *json = result_json(&result);
            add_output(json, "stdout", result.out, result.out_size, call.base64);
            add_output(json, "stderr", result.err, result.err_size, call.base64);
            http_reply_json(request, 200, json);
            agent_exec_result_free(&result);
        }
    }
    route_exec_end(&call);
}

static void send_text(struct route_exec *call, int stream, const char *bytes, size_t size)
{
    if (size > 0)
        http_reply_event(
                call->request, stream == 1 ? "stdout" : "stderr", route_exec_text(bytes, size, call->base64));
}

// Pieces are cut at characters: what ends inside one waits for the next piece.
static void stream_output(void *context, int stream, const void *bytes, size_t size)
{
    struct route_exec *call = context;
    char *text;
    size_t whole = size == 0 ? 0 : route_exec_cut(&call->rest[stream], bytes, size, &text);
    if (size == 0)
        return;
    send_text(call, stream, text, whole);
    free(text);
}

static void exec_stream(struct http_request *request)
{
    struct route_exec call = {.request = request};
    struct agent_exec_result result = {0};
    struct error err;
    if (route_exec_begin(&call, NULL, NULL)) {
        http_reply_begin_events(request); // a quiet command's client waits with comments, not without a word
        call.exec.on_output = stream_output;
        int r = agent_exec_run(call.use.agent, &call.exec, &result, &err);
        for (int stream = 1; stream <= 2; stream++)
            send_text(&call, stream, call.rest[stream].bytes, call.rest[stream].size);
        if (r < 0) {
            sandbox_agent_failed(&call.use, &err);
            http_reply_event_failure(request, "error", "exec", &err);
        } else {
            http_reply_event(request, "exit", result_json(&result));
            agent_exec_result_free(&result);
        }
    }
    route_exec_end(&call);
}

const struct http_route routes_exec[] = {
        {"POST", "/v1/sandboxes/{name}/exec", 0, exec_whole},
        {"POST", "/v1/sandboxes/{name}/exec/stream", HTTP_STREAM, exec_stream},
        {0},
};
