// SPDX-License-Identifier: Apache-2.0
// Answers about snapshots, templates, volumes and keys, for PandaStack's clients.
#include "vmglue/alias_pandastack.h"

#include "vmglue/json_fields.h"

#include <string.h>

// Their lists of templates are bare arrays: what a client of theirs cannot read otherwise.
static json_t *bare(const struct alias_call *call, json_t *body, const char *name)
{
    json_t *list = json_incref(json_object_get(body, name));
    if (!call->theirs || list == NULL) {
        json_decref(list);
        alias_pandastack_copy(body, "items", name);
        return body;
    }
    json_decref(body);
    return list;
}

static void each(json_t *body, const char *name, void (*describe)(json_t *item))
{
    json_t *list = json_object_get(body, name), *item;
    size_t i;
    json_array_foreach(list, i, item) describe(item);
}

static void describe_snapshot(json_t *snapshot)
{
    alias_pandastack_copy(snapshot, "sandbox_id", "parent_id");
    alias_pandastack_copy(snapshot, "size_bytes", "logical_bytes");
}

json_t *alias_pandastack_snapshot(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_snapshot(body);
    return body;
}

// Newest first, and of one sandbox when asked.
json_t *alias_pandastack_snapshots(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    each(body, "snapshots", describe_snapshot);
    if (!call->theirs)
        return body;
    json_t *list = json_object_get(body, "snapshots"), *kept = json_array(), *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        const char *id = json_fields_get_text(item, "sandbox_id");
        bool machine = strcmp(json_fields_get_text(item, "kind"), "machine") == 0;
        if (machine && (call->asked[0][0] == '\0' || strcmp(call->asked[0], id) == 0))
            json_array_insert(kept, 0, item);
    }
    json_object_set_new(body, "snapshots", kept);
    return body;
}

static void describe_template(json_t *template)
{
    alias_pandastack_copy(template, "size_bytes", "logical_bytes");
    alias_pandastack_copy(template, "cpu", "cpus");
    json_object_set_new(template, "is_global", json_false());
}

json_t *alias_pandastack_template(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_template(body);
    return body;
}

json_t *alias_pandastack_templates(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    each(body, "templates", describe_template);
    return bare(call, body, "templates");
}

static void describe_build(json_t *build)
{
    const char *state = json_fields_get_text(build, "state");
    json_object_set_new(build, "status", json_string(strcmp(state, "ready") == 0 ? "done" : state));
}

static void flatten_error(json_t *build)
{
    json_t *error = json_object_get(build, "error");
    if (json_is_object(error)) {
        json_t *message = json_incref(json_object_get(error, "message"));
        json_object_set_new(build, "error", message);
    }
}

json_t *alias_pandastack_build(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_build(body);
    if (call->theirs)
        flatten_error(body);
    return body;
}

json_t *alias_pandastack_builds(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    each(body, "builds", describe_build);
    if (call->theirs)
        each(body, "builds", flatten_error);
    return bare(call, body, "builds");
}

// Their logs are lines of text, and one event that says that it is the end.
json_t *alias_pandastack_build_event(
        const struct alias_call *call, struct http_request *request, const char **event, json_t *data)
{
    json_t *text = NULL;
    if (!call->theirs) { // their JavaScript client drops a prefix here: it reads "line", and leaves out "end"
        if (strcmp(*event, "build") == 0)
            json_object_set_new(data, "line", json_string("end"));
        else
            alias_pandastack_copy(data, "line", "text");
        return data;
    }
    if (strcmp(*event, "log") == 0)
        text = json_incref(json_object_get(data, "text"));
    if (strcmp(*event, "build") == 0) {
        *event = "done";
        text = json_string("end");
    }
    if (text == NULL)
        return data;
    json_decref(data);
    return text;
}

static void describe_volume(json_t *volume)
{
    json_object_set_new(
            volume, "size_mb", json_integer((json_int_t)(json_fields_get_int(volume, "size_bytes") >> 20)));
}

json_t *alias_pandastack_volume(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_volume(body);
    return body;
}

json_t *alias_pandastack_volumes(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    each(body, "volumes", describe_volume);
    alias_pandastack_copy(body, "items", "volumes");
    return body;
}

// A token's "prefix" is what it is revoked by.
static void describe_token(json_t *key)
{
    alias_pandastack_copy(key, "prefix", "id");
    alias_pandastack_copy(key, "label", "name");
    alias_pandastack_copy(key, "token", "key");
}

json_t *alias_pandastack_token(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    describe_token(body);
    return body;
}

json_t *alias_pandastack_tokens(
        const struct alias_call *call, struct http_request *request, int *status, json_t *body)
{
    each(body, "keys", describe_token);
    alias_pandastack_copy(body, "items", "keys");
    return body;
}
