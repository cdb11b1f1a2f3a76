// SPDX-License-Identifier: Apache-2.0
// Answers about one sandbox, for PandaStack's clients.
#include "vmglue/alias_pandastack.h"

#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void alias_pandastack_copy(json_t *json, const char *name, const char *from)
{
    json_t *value = json_object_get(json, from);
    if (value != NULL)
        json_object_set(json, name, value);
}

json_t *alias_pandastack_error(struct http_request *request, json_t *body)
{
    json_t *error = json_object_get(body, "error");
    if (!json_is_object(error))
        return body;
    json_t *retry = json_object_get(error, "retry_after_secs");
    if (retry != NULL) { // their clients wait for so long and try again
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(retry));
        http_reply_header(request, "Retry-After", text);
    }
    json_t *flat = json_deep_copy(error);
    alias_pandastack_copy(flat, "error", "message");
    json_decref(body);
    return flat;
}

// ---- the sandbox ----

static const char *status_of(const json_t *box)
{
    const char *state = json_fields_get_text(box, "state");
    if (strcmp(state, "starting") == 0)
        return "creating";
    if (strcmp(state, "removing") == 0)
        return "deleted";
    if (strcmp(state, "stopped") == 0 && json_fields_get_bool(box, "memory_kept"))
        return "hibernated";
    return state;
}

static const char *boot_mode_of(const json_t *box)
{
    const char *mode = json_fields_get_text(box, "start_mode");
    if (strcmp(mode, "cold") == 0)
        return "cold";
    return strcmp(mode, "pool") == 0 ? "warm" : "snapshot";
}

static json_t *number_or_zero(const json_t *box, const char *name)
{
    json_t *value = json_object_get(box, name);
    return json_is_number(value) ? json_incref(value) : json_integer(0);
}

// Whether it is a machine snapshot that somebody took, which a template is not.
static bool is_snapshot(struct http_request *request, const char *from)
{
    struct store *store = service_of(request)->store;
    struct disks_ref ref;
    struct doc doc = {0};
    if (disks_resolve(store, from, &ref) < 0 || ref.kind != DISKS_MACHINE ||
            store_doc_get(store, ref.doc, &doc) < 0)
        return false;
    json_t *body = json_loadb(doc.body, doc.body_bytes, 0, NULL);
    bool template = json_fields_get_bool(body, "template");
    json_decref(body);
    doc_free(&doc);
    return !template;
}

static void describe(struct http_request *request, json_t *box)
{
    json_t *metadata = json_deep_copy(json_object_get(box, "labels"));
    if (metadata == NULL)
        metadata = json_object();
    if (json_object_get(box, "tree_id") != NULL) {
        json_object_set(metadata, "fork_tree_id", json_object_get(box, "tree_id"));
        json_object_set(metadata, "fork_parent_id", json_object_get(box, "parent_id"));
    }
    json_object_set_new(box, "metadata", metadata);
    json_object_set_new(box, "status", json_string(status_of(box)));
    alias_pandastack_copy(box, "template", "from");
    if (is_snapshot(request, json_fields_get_text(box, "from")))
        alias_pandastack_copy(box, "from_snapshot", "from");
    alias_pandastack_copy(box, "cpu", "cpus");
    alias_pandastack_copy(box, "boot_ms", "ready_ms");
    json_object_set_new(box, "boot_mode", json_string(boot_mode_of(box)));
    json_object_set_new(box, "ttl_seconds", number_or_zero(box, "ttl_secs"));
    json_object_set_new(box, "idle_seconds", number_or_zero(box, "idle_secs"));
}

json_t *alias_pandastack_sandbox(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    if (body != NULL)
        describe(request, body);
    return body;
}

json_t *alias_pandastack_sandboxes(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *list = json_object_get(body, "sandboxes"), *box;
    size_t i;
    json_array_foreach(list, i, box) describe(request, box);
    alias_pandastack_copy(body, "items", "sandboxes");
    return body;
}

json_t *alias_pandastack_children(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *children = json_object_get(body, "children"), *box, *first = json_array_get(children, 0);
    size_t i;
    json_array_foreach(children, i, box) describe(request, box);
    if (first != NULL)
        json_object_set(body, "parent_id", json_object_get(first, "parent_id"));
    json_object_set_new(body, "errors", json_array());
    return body;
}

// Ids alone are what they compare with; a name could be another sandbox's by then.
json_t *alias_pandastack_promoted(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *winner = json_object_get(body, "winner");
    if (!call->theirs || !json_is_object(winner))
        return body;
    json_t *id = json_incref(json_object_get(winner, "id"));
    json_object_set_new(body, "winner", id);
    alias_pandastack_copy(body, "deleted", "deleted_ids");
    return body;
}

// ---- commands ----

static json_t *timed_out(
        const struct alias_call *call, struct http_request *request, const char *what, int *status)
{
    char words[160];
    snprintf(words, sizeof words,
            "timeout: the %s did not end in the time that it was given, and was stopped", what);
    *status = 504;
    return alias_error(request, "exec.timeout", words);
}

json_t *alias_pandastack_exec(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    if (!call->theirs || !json_fields_get_bool(body, "timed_out"))
        return body;
    json_t *error = timed_out(call, request, "command", status);
    json_t *details = json_object_get(json_object_get(error, "error"), "details");
    alias_pandastack_copy(body, "exit", "exit_code");
    json_object_update(details, body); // with what it had written so far
    json_decref(body);
    return error;
}

json_t *alias_pandastack_exec_event(
        const struct alias_call *call, struct http_request *request, const char **event, json_t *data)
{
    alias_pandastack_copy(data, "chunk", "text");
    if (strcmp(*event, "error") == 0)
        alias_pandastack_copy(data, "error", "message");
    if (call->theirs && strcmp(*event, "exit") == 0 && json_fields_get_bool(data, "timed_out")) {
        int status;
        json_t *error = timed_out(call, request, "command", &status);
        *event = "error";
        json_object_set_new(data, "error", json_incref(json_object_get(error, "message")));
        json_decref(error);
    }
    return data;
}

json_t *alias_pandastack_log_event(
        const struct alias_call *call, struct http_request *request, const char **event, json_t *data)
{
    alias_pandastack_copy(data, "line", "text");
    return data;
}

// ---- files ----

json_t *alias_pandastack_written(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    if (body != NULL)
        return body;
    *status = 200;
    const char *path = http_request_query(request, "path");
    path = path == NULL ? "" : path;
    return json_pack("{s:o, s:I}", "path", json_fields_text(path, strlen(path)), "bytes",
            (json_int_t)http_request_read_bytes(request));
}

static json_int_t unix_time(const char *text)
{
    struct tm tm = {0};
    return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) == NULL ? 0 : (json_int_t)timegm(&tm);
}

static void describe_file(json_t *file)
{
    const char *name = json_fields_get_text(file, "name"), *slash = strrchr(name, '/');
    if (slash != NULL && slash[1] != '\0')
        json_object_set_new(file, "name", json_string(slash + 1));
    json_object_set_new(file, "is_dir", json_boolean(strcmp(json_fields_get_text(file, "type"), "dir") == 0));
    json_object_set_new(file, "mtime", json_integer(unix_time(json_fields_get_text(file, "modified_at"))));
}

json_t *alias_pandastack_file(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_file(body);
    return body;
}

json_t *alias_pandastack_files(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *entries = json_object_get(body, "entries"), *file;
    size_t i;
    json_array_foreach(entries, i, file) describe_file(file);
    return body;
}

// ---- code contexts ----

static void describe_context(json_t *context)
{
    alias_pandastack_copy(context, "session_id", "id");
    alias_pandastack_copy(context, "cells", "execution_count");
}

json_t *alias_pandastack_context(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_context(body);
    json_object_set_new(body, "sandbox_id", json_string(http_request_param(request, "name")));
    return body;
}

json_t *alias_pandastack_contexts(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    json_t *list = json_object_get(body, "contexts"), *context;
    size_t i;
    json_array_foreach(list, i, context) describe_context(context);
    alias_pandastack_copy(body, "sessions", "contexts");
    alias_pandastack_copy(body, "items", "contexts");
    return body;
}

static const struct {
    const char *native, *mime;
    bool json; // as the text of a JSON value
} bundle_types[] = {
        {"text", "text/plain", false},
        {"html", "text/html", false},
        {"markdown", "text/markdown", false},
        {"svg", "image/svg+xml", false},
        {"png", "image/png", false},
        {"jpeg", "image/jpeg", false},
        {"pdf", "application/pdf", false},
        {"latex", "text/latex", false},
        {"json", "application/json", true},
        {"javascript", "application/javascript", false},
        {"plotly", "application/vnd.plotly.v1+json", true},
};

// Their clients make a string of every value.
static void add_text(json_t *bundle, const char *mime, const json_t *value)
{
    if (json_is_string(value)) {
        json_object_set(bundle, mime, (json_t *)value);
        return;
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text != NULL)
        json_object_set_new(bundle, mime, json_string(text));
    free(text);
}

static json_t *bundle_of(const json_t *result)
{
    json_t *bundle = json_object(), *value;
    const char *mime;
    for (size_t i = 0; i < sizeof bundle_types / sizeof bundle_types[0]; i++) {
        value = json_object_get(result, bundle_types[i].native);
        if (value == NULL || (json_is_null(value) && !bundle_types[i].json))
            continue;
        if (bundle_types[i].json && json_is_string(value)) {
            char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
            json_object_set_new(bundle, bundle_types[i].mime, json_string(text));
            free(text);
        } else {
            add_text(bundle, bundle_types[i].mime, value);
        }
    }
    json_object_foreach(json_object_get(result, "extra"), mime, value) add_text(bundle, mime, value);
    return bundle;
}

// What it raised is text in `error` and at the end of stderr, as a Python that is run alone has it.
static void describe_error(json_t *execution)
{
    const json_t *error = json_object_get(execution, "error");
    if (!json_is_object(error))
        return;
    const char *traceback = json_fields_get_text(error, "traceback");
    const char *before = json_fields_get_text(execution, "stderr");
    json_t *text = traceback[0] != '\0' ? json_string(traceback)
                                        : json_sprintf("%s: %s", json_fields_get_text(error, "name"),
                                                  json_fields_get_text(error, "value"));
    size_t size = strlen(before);
    json_object_set_new(execution, "stderr",
            json_sprintf("%s%s%s\n", before, size == 0 || before[size - 1] == '\n' ? "" : "\n",
                    json_string_value(text)));
    json_object_set_new(execution, "error", text);
}

json_t *alias_pandastack_execution(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    if (json_fields_get_bool(body, "timed_out")) {
        json_decref(body);
        return timed_out(call, request, "cell", status);
    }
    json_t *results = json_object_get(body, "results"), *bundles = json_array(), *result;
    size_t i;
    json_array_foreach(results, i, result) json_array_append_new(bundles, bundle_of(result));
    bool failed = json_is_object(json_object_get(body, "error"));
    json_t *code = json_object_get(body, "exit_code");
    json_object_set_new(body, "exit", code != NULL ? json_incref(code) : json_integer(failed ? 1 : 0));
    json_object_set_new(body, "results", bundles);
    describe_error(body);
    return body;
}

json_t *alias_pandastack_preview(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    alias_pandastack_copy(body, "port", "host_port");
    json_object_set_new(body, "sandbox_id", json_string(http_request_param(request, "name")));
    return body;
}
