// SPDX-License-Identifier: Apache-2.0
// The calls of E2B's clients (e2b, e2b-code-interpreter on PyPI; e2b, @e2b/code-interpreter on npm): their
// REST API at the root, and what they ask of the daemon inside a machine, which the header E2b-Sandbox-Id
// names. API.md has the same table for people.
#include "vmglue/alias_e2b.h"

#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <string.h>

enum { LIFE_DEFAULT_SECS = 300 }; // theirs

// ---- fields ----

static json_t *from_template(struct http_request *request, const json_t *value, struct error *err)
{
    const char *name = json_string_value(value);
    return name == NULL ? json_incref((json_t *)value) : json_string(alias_source(request, name));
}

static json_t *from_internet(struct http_request *request, const json_t *value, struct error *err)
{
    return json_is_true(value)    ? NULL
           : json_is_false(value) ? json_string("none")
                                  : json_incref((json_t *)value);
}

static json_t *from_pause(struct http_request *request, const json_t *value, struct error *err)
{
    return json_is_boolean(value) ? json_string(json_is_true(value) ? "stop" : "delete")
                                  : json_incref((json_t *)value);
}

static json_t *from_resume(struct http_request *request, const json_t *value, struct error *err)
{
    const json_t *enabled = json_object_get(value, "enabled");
    return enabled == NULL && json_is_object(value) ? NULL
           : json_is_object(value)                  ? json_incref((json_t *)enabled)
                                                    : json_incref((json_t *)value);
}

static bool is_everything(const json_t *list)
{
    const json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), "0.0.0.0/0") == 0)
            return true;
    }
    return false;
}

// Missing, or what it should be: what is meant to close the network must not open it by being of another
// type.
static bool is_list(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_array(value);
}

// What may be reached is a list here, never what may not. NULL without an error: everything.
static json_t *policy_of(const json_t *config, struct error *err)
{
    static const char *const refused[] = {
            "rules", "egressProxy", "dnsServers", "httpsPorts", "maskRequestHost", NULL};
    const json_t *allow = json_object_get(config, "allowOut"), *deny = json_object_get(config, "denyOut");
    const json_t *internet = json_object_get(config, "allow_internet_access");
    if (!is_list(allow) || !is_list(deny) ||
            (internet != NULL && !json_is_null(internet) && !json_is_boolean(internet))) {
        error_set(err, -EINVAL,
                "field \"network\": \"allowOut\" and \"denyOut\" must be lists, and "
                "\"allow_internet_access\" true or false");
        return NULL;
    }
    for (size_t i = 0; refused[i] != NULL; i++) {
        const json_t *value = json_object_get(config, refused[i]);
        if (json_is_string(value) || json_object_size(value) + json_array_size(value) > 0) {
            error_set(err, -EINVAL, "field \"network\": Ramet has no \"%s\"; leave it out", refused[i]);
            return NULL;
        }
    }
    if (json_is_false(internet))
        return json_string("none");
    if (json_array_size(deny) == 0 && json_array_size(allow) == 0)
        return NULL;
    if (!is_everything(deny)) {
        error_set(err, -EINVAL,
                "field \"network\": Ramet lets through what is named, so \"denyOut\" must be "
                "[\"0.0.0.0/0\"], "
                "with \"allowOut\" beside it");
        return NULL;
    }
    return json_array_size(allow) == 0 ? json_string("none") : json_pack("{s:O}", "allow", (json_t *)allow);
}

static json_t *from_network(struct http_request *request, const json_t *value, struct error *err)
{
    return !json_is_object(value) ? json_incref((json_t *)value) // from_internet was here
                                  : policy_of(value, err);
}

static const struct alias_field create_fields[] = {{"templateID", "from", from_template},
        {"timeout", "ttl_secs", NULL}, {"metadata", "labels", NULL}, {"envVars", "env", NULL},
        {"secure", NULL, NULL}, {"autoPause", "on_timeout", from_pause}, {"autoPauseMemory", NULL, NULL},
        {"autoResume", "auto_start", from_resume}, {"allow_internet_access", "network", from_internet},
        {"network", "network", from_network}, {0}};
static const struct alias_field timeout_fields[] = {
        {"timeout", "ttl_secs", NULL}, {"duration", "ttl_secs", NULL}, {0}};
static const struct alias_field pause_fields[] = {{"requireHealthyGuest", NULL, NULL}, {0}};
static const struct alias_field snapshot_fields[] = {{"memory", NULL, NULL}, {0}};

// ---- bodies ----

static int create_body(struct http_request *request, json_t *body, struct error *err)
{
    if (json_object_get(body, "ttl_secs") == NULL)
        json_object_set_new(body, "ttl_secs", json_integer(LIFE_DEFAULT_SECS));
    if (json_object_get(body, "on_timeout") == NULL)
        json_object_set_new(body, "on_timeout", json_string("delete"));
    if (json_is_true(json_object_get(body, "auto_start")) &&
            strcmp(json_fields_get_text(body, "on_timeout"), "delete") == 0)
        return error_set(err, -EINVAL,
                "field \"autoResume\": only a sandbox that its time-out pauses can go on by itself; set "
                "\"autoPause\" too");
    return 0;
}

static int snapshot_body(struct http_request *request, json_t *body, struct error *err)
{
    json_object_set_new(body, "wait", json_true());
    return 0;
}

// The native calls know no time-out: it is checked here, before anything is done, and set beside them.
static int no_timeout_body(struct http_request *request, json_t *body, struct error *err)
{
    struct alias_call *call = http_request_words(request);
    int r = json_fields_limit_secs(body, "timeout", SANDBOX_LIFE_MAX_SECS, &call->timeout_ms, err);
    if (r < 0)
        return r;
    call->set_timeout = r > 0;
    call->cold = json_is_false(json_object_get(body, "memory"));
    json_object_del(body, "timeout");
    json_object_del(body, "memory");
    return 0;
}

static int connect_body(struct http_request *request, json_t *body, struct error *err)
{
    struct alias_call *call = http_request_words(request);
    int r = no_timeout_body(request, body, err);
    if (r < 0)
        return r;
    if (call->cold)
        json_object_set_new(body, "cold", json_true());
    json_object_del(body, "autoPause");
    return 0;
}

// All of it is the policy, in place of the one before.
static int network_body(struct http_request *request, json_t *body, struct error *err)
{
    struct error refused = {0};
    json_t *policy = policy_of(body, &refused);
    if (refused.code < 0) {
        *err = refused;
        return refused.code;
    }
    json_object_clear(body);
    json_object_set_new(body, "network", policy != NULL ? policy : json_string("full"));
    return 0;
}

static int context_body(struct http_request *request, json_t *body, struct error *err)
{
    const char *language = json_fields_get_text(body, "language");
    if (language[0] == '\0')
        json_object_set_new(body, "language", json_string("python"));
    return 0;
}

static const struct alias_query list_queries[] = {
        {"metadata", NULL}, {"state", NULL}, {"limit", NULL}, {"nextToken", NULL}, {"order", NULL}, {0}};
static const struct alias_query snapshot_queries[] = {
        {"sandboxID", NULL}, {"name", NULL}, {"limit", NULL}, {"nextToken", NULL}, {0}};
static const struct alias_query metric_queries[] = {{"start", NULL}, {"end", NULL}, {0}};
static const struct alias_query file_queries[] = {
        {"username", NULL}, {"signature", NULL}, {"signature_expiration", NULL}, {0}};

#define BOX "/v1/sandboxes/{name}"
#define IN "/v1/sandboxes/{sandbox}"
#define RPC(path)                                                                                            \
    {                                                                                                        \
        .family = ALIAS_E2B, .method = "POST", .pattern = path, .to_method = "POST", .to = IN "/envd" path,  \
        .flags = ALIAS_INSIDE | ALIAS_RPC                                                                    \
    }
#define ABSENT(path, sentence)                                                                               \
    {                                                                                                        \
        .family = ALIAS_E2B, .method = "*", .pattern = path, .flags = ALIAS_ABSENT, .words = sentence        \
    }
#define ROW(theirs_method, path, our_method, our_path)                                                       \
    .family = ALIAS_E2B, .method = theirs_method, .pattern = path, .to_method = our_method, .to = our_path

const struct alias_row alias_e2b[] = {
        {ROW("POST", "/sandboxes", "POST", "/v1/sandboxes"), .fields = create_fields, .body = create_body,
                .answer = alias_e2b_created},
        {ROW("POST", "/v2/sandboxes", "POST", "/v1/sandboxes"), .fields = create_fields, .body = create_body,
                .answer = alias_e2b_created},
        {ROW("GET", "/sandboxes", "GET", "/v1/sandboxes"), .queries = list_queries,
                .answer = alias_e2b_listed},
        {ROW("GET", "/v2/sandboxes", "GET", "/v1/sandboxes"), .queries = list_queries,
                .answer = alias_e2b_listed},
        {ROW("GET", "/sandboxes/{name}", "GET", BOX), .answer = alias_e2b_detail},
        {ROW("DELETE", "/sandboxes/{name}", "DELETE", BOX)},
        {ROW("POST", "/sandboxes/{name}/timeout", "PATCH", BOX), .fields = timeout_fields,
                .answer = alias_e2b_nothing},
        {ROW("POST", "/sandboxes/{name}/refreshes", "PATCH", BOX), .fields = timeout_fields,
                .answer = alias_e2b_nothing},
        {ROW("POST", "/sandboxes/{name}/pause", "POST", BOX "/stop"), .fields = pause_fields,
                .answer = alias_e2b_nothing, .enter = alias_e2b_enter_pause},
        {ROW("POST", "/sandboxes/{name}/connect", "POST", BOX "/start"), .body = connect_body,
                .answer = alias_e2b_connected, .enter = alias_e2b_enter_connect},
        {ROW("POST", "/v2/sandboxes/{name}/connect", "POST", BOX "/start"), .body = connect_body,
                .answer = alias_e2b_connected, .enter = alias_e2b_enter_connect},
        {ROW("POST", "/sandboxes/{name}/resume", "POST", BOX "/start"), .body = connect_body,
                .answer = alias_e2b_connected, .enter = alias_e2b_enter_connect},
        {ROW("POST", "/sandboxes/{name}/snapshots", "POST", BOX "/snapshots"), .fields = snapshot_fields,
                .body = snapshot_body, .answer = alias_e2b_snapshot},
        {ROW("PUT", "/sandboxes/{name}/network", "PATCH", BOX), .body = network_body,
                .answer = alias_e2b_nothing},
        {ROW("GET", "/sandboxes/{name}/metrics", "GET", BOX "/metrics"), .queries = metric_queries,
                .answer = alias_e2b_metrics},
        {ROW("POST", "/sandboxes/{name}/fork", "POST", BOX "/fork"), .body = no_timeout_body,
                .answer = alias_e2b_forked},
        {ROW("GET", "/snapshots", "GET", "/v1/snapshots"), .queries = snapshot_queries,
                .answer = alias_e2b_snapshots},
        {ROW("DELETE", "/templates/{name}", "DELETE", "/v1/snapshots/{name}")},

        // Inside a machine.
        {ROW("GET", "/health", "GET", IN "/envd/health"), .flags = ALIAS_INSIDE},
        {ROW("GET", "/files", "GET", IN "/files/content"), .queries = file_queries, .flags = ALIAS_INSIDE},
        {ROW("POST", "/files", "POST", IN "/envd/files"), .queries = file_queries, .flags = ALIAS_INSIDE},
        RPC("/process.Process/Start"),
        RPC("/process.Process/Connect"),
        RPC("/process.Process/List"),
        RPC("/process.Process/SendInput"),
        RPC("/process.Process/CloseStdin"),
        RPC("/process.Process/StreamInput"),
        RPC("/process.Process/SendSignal"),
        RPC("/process.Process/Update"),
        RPC("/filesystem.Filesystem/Stat"),
        RPC("/filesystem.Filesystem/ListDir"),
        RPC("/filesystem.Filesystem/MakeDir"),
        RPC("/filesystem.Filesystem/Move"),
        RPC("/filesystem.Filesystem/Remove"),
        RPC("/filesystem.Filesystem/WatchDir"),
        RPC("/filesystem.Filesystem/CreateWatcher"),
        RPC("/filesystem.Filesystem/GetWatcherEvents"),
        RPC("/filesystem.Filesystem/RemoveWatcher"),
        {ROW("POST", "/execute", "POST", IN "/envd/execute"), .flags = ALIAS_INSIDE},
        {ROW("POST", "/contexts", "POST", IN "/contexts"), .flags = ALIAS_INSIDE, .body = context_body,
                .answer = alias_e2b_context},
        {ROW("GET", "/contexts", "GET", IN "/contexts"), .flags = ALIAS_INSIDE, .answer = alias_e2b_contexts},
        {ROW("DELETE", "/contexts/{id}", "DELETE", IN "/contexts/{id}"), .flags = ALIAS_INSIDE},
        {ROW("POST", "/contexts/{id}/restart", "POST", IN "/contexts/{id}/restart"), .flags = ALIAS_INSIDE,
                .answer = alias_e2b_context},

        ABSENT("/process.Process", "Ramet serves Start, Connect, List, SendInput, StreamInput, CloseStdin, "
                                   "SendSignal and Update of process.Process, and not this call"),
        ABSENT("/filesystem.Filesystem", "Ramet serves Stat, ListDir, MakeDir, Move, Remove, WatchDir and "
                                         "watchers of filesystem.Filesystem, and not this call"),
        ABSENT("/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/v2/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/v3/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/volumes", "Ramet's volumes are at /v1/volumes, and attached by \"disks\" of a create"),
        ABSENT("/volumecontent", "Ramet's volumes are at /v1/volumes, and attached by \"disks\" of a create"),
        ABSENT("/secrets", "Ramet has no store of secrets; give them as \"envs\""),
        ABSENT("/teams", "Ramet has no teams"),
        {0},
};
