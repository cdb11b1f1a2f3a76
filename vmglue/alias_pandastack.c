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

static json_t *from_days(struct http_request *request, const json_t *value, struct error *err)
{
    return json_is_number(value) ? json_real(json_number_value(value) * 86400) : json_incref((json_t *)value);
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
#define PANDA ALIAS_PANDASTACK

// clang-format off
const struct alias_row alias_pandastack[] = {
    {PANDA, "POST", "/v1/sandboxes", NULL, NULL, 0, create_fields, NULL, create_body, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "GET", "/v1/sandboxes", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandboxes, NULL, NULL},
    {PANDA, "GET", BOX, NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/pause", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/resume", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/stop", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/start", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/hibernate", "POST", BOX "/stop", 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/wake", "POST", BOX "/start", 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "GET", BOX "/lifecycle", "GET", BOX, 0, NULL, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "PATCH", BOX "/lifecycle", "PATCH", BOX, 0, lifecycle_fields, NULL, NULL, alias_pandastack_sandbox, NULL, NULL},
    {PANDA, "POST", BOX "/snapshots", NULL, NULL, ALIAS_WAKES, labels_fields, NULL, snapshot_body, alias_pandastack_snapshot, NULL, NULL},
    {PANDA, "POST", BOX "/fork", NULL, NULL, ALIAS_WAKES, labels_fields, NULL, NULL, alias_pandastack_children, NULL, NULL},
    {PANDA, "POST", BOX "/fork-tree", "POST", BOX "/fork", ALIAS_WAKES, labels_fields, NULL, fork_tree_body, alias_pandastack_children, NULL, NULL},
    {PANDA, "POST", BOX "/promote", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_promoted, NULL, NULL},

    {PANDA, "POST", BOX "/exec", NULL, NULL, ALIAS_WAKES, exec_fields, NULL, NULL, alias_pandastack_exec, NULL, NULL},
    {PANDA, "POST", BOX "/exec/stream", NULL, NULL, ALIAS_WAKES, exec_fields, NULL, NULL, NULL, alias_pandastack_exec_event, NULL},
    {PANDA, "GET", BOX "/logs", NULL, NULL, 0, NULL, log_queries, NULL, NULL, alias_pandastack_log_event, NULL},

    {PANDA, "GET", BOX "/fs", "GET", BOX "/files/content", ALIAS_WAKES, NULL, NULL, NULL, NULL, NULL, NULL},
    {PANDA, "PUT", BOX "/fs", "PUT", BOX "/files/content", ALIAS_WAKES, NULL, NULL, NULL, alias_pandastack_written, NULL, NULL},
    {PANDA, "DELETE", BOX "/fs", "DELETE", BOX "/files/content", ALIAS_WAKES, NULL, NULL, NULL, NULL, NULL, NULL},
    {PANDA, "GET", BOX "/fs/dir", "GET", BOX "/files", ALIAS_WAKES, NULL, NULL, NULL, alias_pandastack_files, NULL, NULL},
    {PANDA, "GET", BOX "/fs/stat", "GET", BOX "/files/stat", ALIAS_WAKES, NULL, NULL, NULL, alias_pandastack_file, NULL, NULL},

    {PANDA, "POST", BOX "/repl/sessions", "POST", BOX "/contexts", ALIAS_WAKES, NULL, NULL, NULL, alias_pandastack_context, NULL, NULL},
    {PANDA, "GET", BOX "/repl/sessions", "GET", BOX "/contexts", ALIAS_WAKES, NULL, NULL, NULL, alias_pandastack_contexts, NULL, NULL},
    {PANDA, "DELETE", BOX "/repl/sessions/{id}", "DELETE", BOX "/contexts/{id}", ALIAS_WAKES, NULL, NULL, NULL, NULL, NULL, NULL},
    {PANDA, "POST", BOX "/repl/sessions/{id}/run", "POST", BOX "/contexts/{id}/run", ALIAS_WAKES, run_fields, NULL, NULL, alias_pandastack_execution, NULL, NULL},

    {PANDA, "GET", BOX "/ports", NULL, NULL, ALIAS_WAKES, NULL, NULL, NULL, NULL, NULL, NULL},
    {PANDA, "POST", BOX "/preview-token", "POST", BOX "/urls", ALIAS_WAKES, preview_fields, NULL, NULL, alias_pandastack_preview, NULL, NULL},

    {PANDA, "GET", "/v1/snapshots", NULL, NULL, 0, NULL, snapshot_queries, NULL, alias_pandastack_snapshots, NULL, NULL},
    {PANDA, "GET", "/v1/snapshots/{name}", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_snapshot, NULL, NULL},

    {PANDA, "GET", "/v1/templates", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_templates, NULL, NULL},
    {PANDA, "GET", "/v1/templates/builds", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_builds, NULL, NULL},
    {PANDA, "GET", "/v1/templates/builds/{id}", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_build, NULL, NULL},
    {PANDA, "GET", "/v1/templates/builds/{id}/logs", NULL, NULL, 0, NULL, NULL, NULL, NULL, alias_pandastack_build_event, NULL},
    {PANDA, "GET", "/v1/templates/{name}", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_template, NULL, NULL},

    {PANDA, "POST", "/v1/volumes", NULL, NULL, 0, volume_fields, NULL, NULL, alias_pandastack_volume, NULL, NULL},
    {PANDA, "GET", "/v1/volumes", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_volumes, NULL, NULL},
    {PANDA, "GET", "/v1/volumes/{name}", NULL, NULL, 0, NULL, NULL, NULL, alias_pandastack_volume, NULL, NULL},

    {PANDA, "GET", "/v1/me/tokens", "GET", "/v1/keys", 0, NULL, NULL, NULL, alias_pandastack_tokens, NULL, NULL},
    {PANDA, "POST", "/v1/me/tokens", "POST", "/v1/keys", 0, token_fields, NULL, token_body, alias_pandastack_token, NULL, NULL},
    {PANDA, "DELETE", "/v1/me/tokens/{id}", "DELETE", "/v1/keys/{id}", 0, NULL, NULL, NULL, NULL, NULL, NULL},

    {PANDA, "*", "/v1/databases", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no managed databases; run one in a sandbox, and keep its data with snapshots"},
    {PANDA, "*", "/v1/apps", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no app hosting; run the server in a sandbox and give it a URL (POST /v1/sandboxes/{name}/urls)"},
    {PANDA, "*", "/v1/functions", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no functions; run the code in a sandbox (POST /v1/sandboxes/{name}/exec)"},
    {PANDA, "*", "/v1/schedules", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no schedules; call the API from cron or a systemd timer"},
    {PANDA, "*", "/v1/preview-repos", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no preview repositories; clone one in a sandbox"},
    {PANDA, "*", "/v1/repos", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no repositories; clone one in a sandbox"},
    {PANDA, "*", "/v1/billing", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no billing: it is your own host"},
    {PANDA, "*", "/v1/pricing", NULL, NULL, ALIAS_ABSENT, NULL, NULL, NULL, NULL, NULL, "Ramet has no prices: it is your own host"},
    {0},
};
// clang-format on
