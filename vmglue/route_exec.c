// SPDX-License-Identifier: Apache-2.0
#include "vmglue/route_exec.h"

#include "vmglue/environment.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox_metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KNOWN_MAX = 24 };

static const double TIMEOUT_MAX_SECS = 86400;

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *route_exec_base64(const void *bytes, size_t size)
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
void *route_exec_from_base64(const char *text, size_t *ret_size)
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

void route_exec_end(struct route_exec *call)
{
    environment_free_strings(call->env);
    free(call->stdin_bytes);
    if (call->use.sandbox != NULL)
        route_agent_done(call->request, &call->use);
}

static int take_base64_stdin(struct route_exec *call, const json_t *body, struct error *err)
{
    const char *text = NULL;
    int r = json_fields_string(body, "stdin_base64", &text, err);
    if (r <= 0)
        return r;
    if (call->exec.stdin_bytes != NULL)
        return error_set(
                err, -EINVAL, "fields \"stdin\" and \"stdin_base64\" are both given; give one of them");
    call->stdin_bytes = route_exec_from_base64(text, &call->exec.stdin_size);
    if (call->stdin_bytes == NULL)
        return error_set(err, -EINVAL, "field \"stdin_base64\" is not valid base64");
    call->exec.stdin_bytes = call->stdin_bytes;
    return 0;
}

static int take_command(struct route_exec *call, const json_t *body, struct error *err)
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
static int fill_defaults(struct route_exec *call, bool need_command, struct error *err)
{
    const json_t *defaults = call->use.defaults;
    const char *user = json_fields_get_text(defaults, "user"), *cwd = json_fields_get_text(defaults, "cwd");
    const char *command = call->exec.shell_command;
    if (call->exec.user == NULL && user[0] != '\0')
        call->exec.user = user;
    if (call->exec.cwd == NULL && cwd[0] != '\0')
        call->exec.cwd = cwd;
    if (!need_command || (command != NULL && command[0] != '\0'))
        return 0;
    command = json_fields_get_text(defaults, "command");
    if (command[0] == '\0')
        return error_set(err, -EINVAL, "field \"command\" is missing: a line for /bin/bash");
    call->exec.shell_command = command;
    return 0;
}

static bool is_cancelled(void *context)
{
    const struct route_exec *call = context;
    return http_request_is_gone(call->request);
}

bool route_exec_begin(struct route_exec *call, const char *const *more, json_t **ret_body)
{
    static const char *const own[] = {
            "command", "timeout_secs", "cwd", "env", "stdin", "user", "encoding", "stdin_base64", NULL};
    const char *known[KNOWN_MAX + 1];
    size_t count = 0;
    for (size_t i = 0; own[i] != NULL; i++)
        known[count++] = own[i];
    for (size_t i = 0; more != NULL && more[i] != NULL && count < KNOWN_MAX; i++)
        known[count++] = more[i];
    known[count] = NULL;
    json_t *body;
    struct error err;
    int r = route_json_body(call->request, known, &body, &err);
    if (r == 0)
        r = route_exec_take(call, body, true, &err);
    if (r < 0)
        http_reply_failure(call->request, "sandbox", &err);
    else if (ret_body != NULL)
        *ret_body = body;
    return r >= 0;
}

int route_exec_take(struct route_exec *call, const json_t *body, bool need_command, struct error *err)
{
    const json_t *env = NULL;
    int r = take_command(call, body, err);
    if (r >= 0)
        r = json_fields_string_map(body, "env", &env, err);
    if (r >= 0)
        r = route_agent_use(call->request, http_request_param(call->request, "name"), &call->use, err);
    if (r >= 0)
        r = fill_defaults(call, need_command, err);
    if (r >= 0)
        r = environment_strings(call->use.env, env, &call->env, err);
    call->exec.env = (const char *const *)call->env;
    if (r >= 0)
        sandbox_metrics_count(&call->use);
    call->exec.context = call;
    call->exec.cancelled = is_cancelled;
    return r;
}

json_t *route_exec_text(const char *bytes, size_t size, bool as_base64)
{
    json_t *data = json_object();
    json_object_set_new(data, "text", json_fields_text(bytes, size));
    if (as_base64) {
        char *text = route_exec_base64(bytes, size);
        json_object_set_new(data, "base64", json_string(text));
        free(text);
    }
    return data;
}

size_t route_exec_cut(struct route_exec_rest *rest, const void *bytes, size_t size, char **ret_text)
{
    size_t before = rest->size;
    char *joined = malloc(before + size + 1);
    *ret_text = joined;
    if (joined == NULL)
        return 0;
    memcpy(joined, rest->bytes, before);
    memcpy(joined + before, bytes, size);
    size_t whole = json_fields_utf8_whole(joined, before + size);
    rest->size = before + size - whole;
    memcpy(rest->bytes, joined + whole, rest->size);
    return whole;
}
