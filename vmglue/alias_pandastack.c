// SPDX-License-Identifier: Apache-2.0
// The calls of PandaStack's clients (pandastack on PyPI, @pandastack/sdk on npm), row by row. API.md has the
// same table for people.
#include "vmglue/alias_pandastack.h"

#include "vmglue/json_fields.h"

#include <errno.h>
#include <string.h>

enum { FORK_TREE_DEFAULT = 2 };

// ---- fields ----

static json_t *from_template(struct http_request *request, const json_t *value, struct error *err)
{
    const char *name = json_string_value(value);
    return name == NULL ? json_incref((json_t *)value) : json_string(alias_source(request, name));
}

static json_t *from_ms(struct http_request *request, const json_t *value, struct error *err)
{
    return json_is_number(value) ? json_real(json_number_value(value) / 1000) : json_incref((json_t *)value);
}

static json_t *from_mb(struct http_request *request, const json_t *value, struct error *err)
{
    json_int_t mb = json_integer_value(value);
    bool whole = json_is_integer(value) && mb > 0 && mb <= INT32_MAX;
    return whole ? json_integer(mb << 20) : json_incref((json_t *)value);
}

// So many days that their seconds are no number stay days: as seconds they are too many, and are refused.
static json_t *from_days(struct http_request *request, const json_t *value, struct error *err)
{
    json_t *secs = json_is_number(value) ? json_real(json_number_value(value) * 86400) : NULL;
    return secs == NULL ? json_incref((json_t *)value) : secs;
}

// [{name, read_only}] to disks: each becomes a fork of the volume, seen at /volumes/NAME.
static json_t *from_volumes(struct http_request *request, const json_t *value, struct error *err)
{
    json_t *disks = json_array();
    const json_t *item;
    size_t i;
    if (!json_is_array(value)) {
        json_decref(disks);
        error_set(err, -EINVAL, "field \"volumes\" must be a list of objects such as {\"name\":\"data\"}");
        return NULL;
    }
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name == NULL) {
            json_decref(disks);
            error_set(err, -EINVAL, "field \"volumes\"[%zu] has no \"name\"", i);
            return NULL;
        }
        json_array_append_new(disks, json_pack("{s:s, s:b, s:o}", "volume", name, "read_only",
                                             json_is_true(json_object_get(item, "read_only")), "mount",
                                             json_sprintf("/volumes/%s", name)));
    }
    return disks;
}

// ---- bodies ----

// A snapshot wins over the template that their clients always send. CPUs and memory are the template's there.
static int create_body(struct http_request *request, json_t *body, struct error *err)
{
    json_t *snapshot = json_object_get(body, "from_snapshot");
    if (json_is_string(snapshot) && json_string_length(snapshot) > 0)
        json_object_set(body, "from", snapshot);
    json_object_del(body, "from_snapshot");
    json_object_del(body, "memory_mb");
    json_object_del(body, "cpu");
    json_object_del(body, "vcpus");
    return 0;
}

static int fork_tree_body(struct http_request *request, json_t *body, struct error *err)
{
    if (json_object_get(body, "count") == NULL)
        json_object_set_new(body, "count", json_integer(FORK_TREE_DEFAULT));
    return 0;
}

static int snapshot_body(struct http_request *request, json_t *body, struct error *err)
{
    if (json_object_get(body, "wait") == NULL) // what is answered is kept
        json_object_set_new(body, "wait", json_true());
    return 0;
}

static int token_body(struct http_request *request, json_t *body, struct error *err)
{
    if (json_object_get(body, "name") == NULL)
        json_object_set_new(body, "name", json_string("token"));
    if (json_object_get(body, "preset") == NULL)
        json_object_set_new(body, "preset", json_string("ci"));
    return 0;
}

static const struct alias_field create_fields[] = {{"template", "from", from_template},
        {"from_snapshot", "from_snapshot", NULL}, {"ttl_seconds", "ttl_secs", NULL},
        {"metadata", "labels", NULL}, {"volumes", "disks", from_volumes}, {0}};
static const struct alias_field exec_fields[] = {
        {"cmd", "command", NULL}, {"timeout_seconds", "timeout_secs", NULL}, {0}};
static const struct alias_field labels_fields[] = {{"metadata", "labels", NULL}, {0}};
static const struct alias_field lifecycle_fields[] = {
        {"ttl_seconds", "ttl_secs", NULL}, {"idle_seconds", "idle_secs", NULL}, {0}};
static const struct alias_field run_fields[] = {{"timeout_ms", "timeout_secs", from_ms}, {0}};
static const struct alias_field volume_fields[] = {{"size_mb", "size_bytes", from_mb}, {0}};
static const struct alias_field token_fields[] = {
        {"label", "name", NULL}, {"expires_in_days", "expires_in_secs", from_days}, {0}};
static const struct alias_field preview_fields[] = {
        {"port", "host_port", NULL}, {"ttl_seconds", "ttl_secs", NULL}, {0}};

static const struct alias_query log_queries[] = {{"stream", NULL}, {0}};
static const struct alias_query snapshot_queries[] = {{"sandbox_id", NULL}, {0}};

#define BOX "/v1/sandboxes/{name}"
#define ROW(theirs_method, path) .family = ALIAS_PANDASTACK, .method = theirs_method, .pattern = path
#define TO(our_method, our_path) .to_method = our_method, .to = our_path
#define ABSENT(path, sentence)                                                                               \
    {                                                                                                        \
        ROW("*", path), .flags = ALIAS_ABSENT, .words = sentence                                             \
    }

const struct alias_row alias_pandastack[] = {
        {ROW("POST", "/v1/sandboxes"), .fields = create_fields, .body = create_body,
                .answer = alias_pandastack_sandbox},
        {ROW("GET", "/v1/sandboxes"), .answer = alias_pandastack_sandboxes},
        {ROW("GET", BOX), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/pause"), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/resume"), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/stop"), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/start"), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/hibernate"), TO("POST", BOX "/stop"), .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/wake"), TO("POST", BOX "/start"), .answer = alias_pandastack_sandbox},
        {ROW("GET", BOX "/lifecycle"), TO("GET", BOX), .answer = alias_pandastack_sandbox},
        {ROW("PATCH", BOX "/lifecycle"), TO("PATCH", BOX), .fields = lifecycle_fields,
                .answer = alias_pandastack_sandbox},
        {ROW("POST", BOX "/snapshots"), .flags = ALIAS_WAKES, .fields = labels_fields, .body = snapshot_body,
                .answer = alias_pandastack_snapshot},
        {ROW("POST", BOX "/fork"), .flags = ALIAS_WAKES, .fields = labels_fields,
                .answer = alias_pandastack_children},
        {ROW("POST", BOX "/fork-tree"), TO("POST", BOX "/fork"), .flags = ALIAS_WAKES,
                .fields = labels_fields, .body = fork_tree_body, .answer = alias_pandastack_children},
        {ROW("POST", BOX "/promote"), .answer = alias_pandastack_promoted},

        {ROW("POST", BOX "/exec"), .flags = ALIAS_WAKES, .fields = exec_fields,
                .answer = alias_pandastack_exec},
        {ROW("POST", BOX "/exec/stream"), .flags = ALIAS_WAKES, .fields = exec_fields,
                .event = alias_pandastack_exec_event},
        {ROW("GET", BOX "/logs"), .queries = log_queries, .event = alias_pandastack_log_event},

        {ROW("GET", BOX "/fs"), TO("GET", BOX "/files/content"), .flags = ALIAS_WAKES},
        {ROW("PUT", BOX "/fs"), TO("PUT", BOX "/files/content"), .flags = ALIAS_WAKES,
                .answer = alias_pandastack_written},
        {ROW("DELETE", BOX "/fs"), TO("DELETE", BOX "/files/content"), .flags = ALIAS_WAKES},
        {ROW("GET", BOX "/fs/dir"), TO("GET", BOX "/files"), .flags = ALIAS_WAKES,
                .answer = alias_pandastack_files},
        {ROW("GET", BOX "/fs/stat"), TO("GET", BOX "/files/stat"), .flags = ALIAS_WAKES,
                .answer = alias_pandastack_file},

        {ROW("POST", BOX "/repl/sessions"), TO("POST", BOX "/contexts"), .flags = ALIAS_WAKES,
                .answer = alias_pandastack_context},
        {ROW("GET", BOX "/repl/sessions"), TO("GET", BOX "/contexts"), .flags = ALIAS_WAKES,
                .answer = alias_pandastack_contexts},
        {ROW("DELETE", BOX "/repl/sessions/{id}"), TO("DELETE", BOX "/contexts/{id}"), .flags = ALIAS_WAKES},
        {ROW("POST", BOX "/repl/sessions/{id}/run"), TO("POST", BOX "/contexts/{id}/run"),
                .flags = ALIAS_WAKES, .fields = run_fields, .answer = alias_pandastack_execution},

        {ROW("GET", BOX "/ports"), .flags = ALIAS_WAKES},
        {ROW("POST", BOX "/preview-token"), TO("POST", BOX "/urls"), .flags = ALIAS_WAKES,
                .fields = preview_fields, .answer = alias_pandastack_preview},

        {ROW("GET", "/v1/snapshots"), .queries = snapshot_queries, .answer = alias_pandastack_snapshots},
        {ROW("GET", "/v1/snapshots/{name}"), .answer = alias_pandastack_snapshot},

        {ROW("GET", "/v1/templates"), .answer = alias_pandastack_templates},
        {ROW("GET", "/v1/templates/builds"), .answer = alias_pandastack_builds},
        {ROW("GET", "/v1/templates/builds/{id}"), .answer = alias_pandastack_build},
        {ROW("GET", "/v1/templates/builds/{id}/logs"), .event = alias_pandastack_build_event},
        {ROW("POST", "/v1/templates/build"), TO("POST", "/v1/pandastack/templates/build"),
                .answer = alias_pandastack_build},
        {ROW("GET", "/v1/templates/{name}"), .answer = alias_pandastack_template},

        {ROW("POST", "/v1/volumes"), .fields = volume_fields, .answer = alias_pandastack_volume},
        {ROW("GET", "/v1/volumes"), .answer = alias_pandastack_volumes},
        {ROW("GET", "/v1/volumes/{name}"), .answer = alias_pandastack_volume},

        {ROW("GET", "/v1/me/tokens"), TO("GET", "/v1/keys"), .answer = alias_pandastack_tokens},
        {ROW("POST", "/v1/me/tokens"), TO("POST", "/v1/keys"), .fields = token_fields, .body = token_body,
                .answer = alias_pandastack_token},
        {ROW("DELETE", "/v1/me/tokens/{id}"), TO("DELETE", "/v1/keys/{id}")},

        ABSENT("/v1/databases",
                "Ramet has no managed databases; run one in a sandbox, and keep its data with snapshots"),
        ABSENT("/v1/apps", "Ramet has no app hosting; run the server in a sandbox and give it a URL (POST "
                           "/v1/sandboxes/{name}/urls)"),
        ABSENT("/v1/functions",
                "Ramet has no functions; run the code in a sandbox (POST /v1/sandboxes/{name}/exec)"),
        ABSENT("/v1/schedules", "Ramet has no schedules; call the API from cron or a systemd timer"),
        ABSENT("/v1/preview-repos", "Ramet has no preview repositories; clone one in a sandbox"),
        ABSENT("/v1/repos", "Ramet has no repositories; clone one in a sandbox"),
        ABSENT("/v1/billing", "Ramet has no billing: it is your own host"),
        ABSENT("/v1/pricing", "Ramet has no prices: it is your own host"),

        {0},
};
