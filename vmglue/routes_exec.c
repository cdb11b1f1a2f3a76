// SPDX-License-Identifier: Apache-2.0
// Commands in a sandbox: whole (exec) or as a stream of events (exec/stream).
//
// Output that is no UTF-8 is shown with U+FFFD for each bad byte; byte-exact output is in
// stdout_base64/stderr_base64 when "encoding": "base64" is asked for. A client that leaves ends its command.
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TIMEOUT_MAX_SECS = 86400;

struct exec_call {
    struct http_request *request;
    struct sandbox_agent use;
    struct agent_exec exec;
    const char **env; // "NAME=value", NULL-terminated, malloc'ed
    bool base64;
    void *stdin_bytes; // malloc'ed, of stdin_base64
    // exec/stream: what has come but ends inside a character, per stream
    char rest[3][4];
    size_t rest_size[3];
};

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *base64(const void *bytes, size_t size)
{
    const unsigned char *in = bytes;
    char *text = malloc((size + 2) / 3 * 4 + 1), *out = text;
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)in[i] << 16 | (i + 1 < size ? (uint32_t)in[i + 1] << 8 : 0) |
                         (i + 2 < size ? in[i + 2] : 0);
        *out++ = base64_digits[three >> 18];
        *out++ = base64_digits[three >> 12 & 63];
        *out++ = i + 1 < size ? base64_digits[three >> 6 & 63] : '=';
        *out++ = i + 2 < size ? base64_digits[three & 63] : '=';
    }
    *out = '\0';
    return text;
}

// Strict: a character that is no base64 is an error, and so is a wrong length. Returns NULL then.
static void *from_base64(const char *text, size_t *ret_size)
{
    size_t length = strlen(text), size = 0;
    unsigned char *bytes = malloc(length / 4 * 3 + 3);
    uint32_t bits = 0;
    bool good = bytes != NULL && length % 4 == 0;
    for (size_t i = 0; good && i < length && text[i] != '='; i++) {
        const char *digit = strchr(base64_digits, text[i]);
        good = digit != NULL;
        bits = bits << 6 | (good ? (uint32_t)(digit - base64_digits) : 0);
        if (i % 4 != 0)
            bytes[size++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    size_t data = strcspn(text, "="), padding = length - data;
    if (!good || padding > 2 || strspn(text + data, "=") != padding) {
        free(bytes);
        return NULL;
    }
    *ret_size = size;
    return bytes;
}

// The sandbox's variables, and the call's over them.
static int make_env(struct exec_call *call, const json_t *more, struct error *err)
{
    json_t *all = call->use.env != NULL ? json_deep_copy(call->use.env) : json_object(), *value;
    const char *key;
    size_t count = 0;
    if (more != NULL)
        json_object_update(all, (json_t *)more);
    call->env = calloc(json_object_size(all) + 1, sizeof *call->env);
    int r = call->env == NULL ? error_set(err, -ENOMEM, "no memory for the environment") : 0;
    json_object_foreach(all, key, value)
    {
        if (r == 0 && (key[0] == '\0' || strchr(key, '=') != NULL))
            r = error_set(err, -EINVAL, "field \"env\": \"%.60s\" cannot be the name of a variable", key);
        char *entry = NULL;
        if (r == 0 && asprintf(&entry, "%s=%s", key, json_string_value(value)) < 0)
            r = error_set(err, -ENOMEM, "no memory for the environment");
        if (r == 0)
            call->env[count++] = entry;
    }
    json_decref(all);
    call->exec.env = call->env;
    return r;
}

static void call_end(struct exec_call *call)
{
    for (size_t i = 0; call->env != NULL && call->env[i] != NULL; i++)
        free((char *)call->env[i]);
    free(call->env);
    free(call->stdin_bytes);
    if (call->use.sandbox != NULL)
        sandbox_agent_done(&call->use);
}

static int take_base64_stdin(struct exec_call *call, const json_t *body, struct error *err)
{
    const char *text = NULL;
    int r = json_fields_string(body, "stdin_base64", &text, err);
    if (r <= 0)
        return r;
    call->stdin_bytes = from_base64(text, &call->exec.stdin_size);
    if (call->stdin_bytes == NULL)
        return error_set(err, -EINVAL, "field \"stdin_base64\" is not valid base64");
    call->exec.stdin_bytes = call->stdin_bytes;
    return 0;
}

static int take_command(struct exec_call *call, const json_t *body, struct error *err)
{
    const char *command = NULL, *stdin_text = NULL, *encoding = NULL;
    uint64_t timeout_ms = 0;
    int r = json_fields_string(body, "command", &command, err);
    if (r >= 0)
        r = json_fields_string(body, "cwd", &call->exec.cwd, err);
    if (r >= 0)
        r = json_fields_string(body, "user", &call->exec.user, err);
    if (r >= 0)
        r = json_fields_seconds(body, "timeout_secs", TIMEOUT_MAX_SECS, &timeout_ms, err);
    if (r >= 0)
        r = json_fields_string(body, "encoding", &encoding, err);
    if (r >= 0 && json_is_string(json_object_get(body, "stdin"))) { // may hold zero characters
        stdin_text = json_string_value(json_object_get(body, "stdin"));
        call->exec.stdin_size = json_string_length(json_object_get(body, "stdin"));
    } else if (r >= 0) {
        r = json_fields_string(body, "stdin", &stdin_text, err);
    }
    if (r >= 0 && encoding != NULL && strcmp(encoding, "base64") != 0 && strcmp(encoding, "text") != 0)
        r = error_set(err, -EINVAL, "field \"encoding\" must be \"text\" or \"base64\"");
    call->exec.shell_command = command;
    call->exec.stdin_bytes = stdin_text;
    call->exec.timeout_ms = (unsigned)timeout_ms;
    if (r >= 0)
        r = take_base64_stdin(call, body, err);
    call->base64 = encoding != NULL && strcmp(encoding, "base64") == 0;
    return r < 0 ? r : 0;
}

// What the call leaves open is as the sandbox's template says.
static int fill_defaults(struct exec_call *call, struct error *err)
{
    const json_t *defaults = call->use.defaults;
    const char *user = json_fields_get_text(defaults, "user"), *cwd = json_fields_get_text(defaults, "cwd");
    const char *command = call->exec.shell_command;
    if (call->exec.user == NULL && user[0] != '\0')
        call->exec.user = user;
    if (call->exec.cwd == NULL && cwd[0] != '\0')
        call->exec.cwd = cwd;
    if (command != NULL && command[0] != '\0')
        return 0;
    command = json_fields_get_text(defaults, "command");
    if (command[0] == '\0')
        return error_set(err, -EINVAL, "field \"command\" is missing: a line for /bin/bash");
    call->exec.shell_command = command;
    return 0;
}

static bool is_cancelled(void *context)
{
    const struct exec_call *call = context;
    return http_request_is_gone(call->request);
}

// Reads the request and takes the agent. On failure it has replied.
static bool call_begin(struct exec_call *call)
{
    static const char *const known[] = {
            "command", "timeout_secs", "cwd", "env", "stdin", "user", "encoding", "stdin_base64", NULL};
    const json_t *env = NULL;
    json_t *body;
    struct error err;
    int r = route_json_body(call->request, known, &body, &err);
    if (r == 0)
        r = take_command(call, body, &err);
    if (r >= 0)
        r = json_fields_string_map(body, "env", &env, &err);
    if (r >= 0)
        r = sandbox_agent_use(service_of(call->request)->sandboxes, http_request_param(call->request, "name"),
                &call->use, &err);
    if (r >= 0)
        r = fill_defaults(call, &err);
    if (r >= 0)
        r = make_env(call, env, &err);
    call->exec.context = call;
    call->exec.cancelled = is_cancelled;
    if (r < 0)
        http_reply_failure(call->request, "sandbox", &err);
    return r >= 0;
}

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
    char key[32], *text = base64(bytes, size);
    snprintf(key, sizeof key, "%s_base64", name);
    json_object_set_new(json, key, json_string(text));
    free(text);
}

static void exec_whole(struct http_request *request)
{
    struct exec_call call = {.request = request};
    struct agent_exec_result result = {0};
    struct error err;
    if (call_begin(&call)) {
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
    call_end(&call);
}

static void send_text(struct exec_call *call, int stream, const char *bytes, size_t size)
{
    if (size == 0)
        return;
    json_t *data = json_object();
    json_object_set_new(data, "text", json_fields_text(bytes, size));
    if (call->base64) {
        char *text = base64(bytes, size);
        json_object_set_new(data, "base64", json_string(text));
        free(text);
    }
    http_reply_event(call->request, stream == 1 ? "stdout" : "stderr", data);
}

// Pieces are cut at characters: what ends inside one waits for the next piece.
static void stream_output(void *context, int stream, const void *bytes, size_t size)
{
    struct exec_call *call = context;
    size_t before = call->rest_size[stream];
    char *joined = malloc(before + size);
    if (joined == NULL || size == 0) {
        free(joined);
        return;
    }
    memcpy(joined, call->rest[stream], before);
    memcpy(joined + before, bytes, size);
    size_t whole = json_fields_utf8_whole(joined, before + size);
    send_text(call, stream, joined, whole);
    call->rest_size[stream] = before + size - whole;
    memcpy(call->rest[stream], joined + whole, call->rest_size[stream]);
    free(joined);
}

static void exec_stream(struct http_request *request)
{
    struct exec_call call = {.request = request};
    struct agent_exec_result result = {0};
    struct error err;
    if (call_begin(&call)) {
        call.exec.on_output = stream_output;
        int r = agent_exec_run(call.use.agent, &call.exec, &result, &err);
        for (int stream = 1; stream <= 2; stream++)
            send_text(&call, stream, call.rest[stream], call.rest_size[stream]);
        if (r < 0) {
            bool retryable;
            char code[64];
            sandbox_agent_failed(&call.use, &err);
            http_route_status("exec", err.code, code, sizeof code, &retryable);
            http_reply_event(request, "error",
                    json_pack("{s:s, s:s, s:s}", "code", code, "message", err.text, "request_id",
                            http_request_id(request)));
        } else {
            http_reply_event(request, "exit", result_json(&result));
            agent_exec_result_free(&result);
        }
    }
    call_end(&call);
}

const struct http_route routes_exec[] = {
        {"POST", "/v1/sandboxes/{name}/exec", 0, exec_whole},
        {"POST", "/v1/sandboxes/{name}/exec/stream", HTTP_STREAM, exec_stream},
        {0},
};
