// SPDX-License-Identifier: Apache-2.0
// The calls of E2B's clients (e2b, e2b-code-interpreter on PyPI; e2b, @e2b/code-interpreter on npm): their
// REST API at the root, and what they ask of the daemon inside a machine, which the header E2b-Sandbox-Id
// names. API.md has the same table for people.
#include "vmglue/alias_e2b.h"

#include "vmglue/json_fields.h"

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
    return json_is_false(value) ? json_string("none") : NULL;
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

// What may be reached is a list here, never what may not.
static json_t *from_network(struct http_request *request, const json_t *value, struct error *err)
{
    const json_t *allow = json_object_get(value, "allowOut"), *deny = json_object_get(value, "denyOut");
    if (json_is_string(value)) // from_internet was here
        return json_incref((json_t *)value);
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

static const struct alias_field create_fields[] = {{"templateID", "from", from_template},
        {"timeout", "ttl_secs", NULL}, {"metadata", "labels", NULL}, {"envVars", "env", NULL},
        {"secure", NULL, NULL}, {"autoPause", NULL, NULL}, {"autoPauseMemory", NULL, NULL},
        {"autoResume", NULL, NULL}, {"allow_internet_access", "network", from_internet},
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
    return 0;
}

static int snapshot_body(struct http_request *request, json_t *body, struct error *err)
{
    json_object_set_new(body, "wait", json_true());
    return 0;
}

// The time-out is set by the answer's side, where the children are known.
static int no_timeout_body(struct http_request *request, json_t *body, struct error *err)
{
    struct alias_call *call = http_request_words(request);
    json_t *timeout = json_object_get(body, "timeout"), *memory = json_object_get(body, "memory");
    call->timeout_secs = json_is_number(timeout) ? json_number_value(timeout) : -1;
    call->cold = json_is_false(memory);
    json_object_del(body, "timeout");
    json_object_del(body, "memory");
    return 0;
}

static int connect_body(struct http_request *request, json_t *body, struct error *err)
{
    struct alias_call *call = http_request_words(request);
    int r = no_timeout_body(request, body, err);
    if (call->cold)
        json_object_set_new(body, "cold", json_true());
    json_object_del(body, "autoPause");
    return r;
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
        RPC("/process.Process/SendSignal"),
        RPC("/process.Process/Update"),
        RPC("/filesystem.Filesystem/Stat"),
        RPC("/filesystem.Filesystem/ListDir"),
        RPC("/filesystem.Filesystem/MakeDir"),
        RPC("/filesystem.Filesystem/Move"),
        RPC("/filesystem.Filesystem/Remove"),
        RPC("/filesystem.Filesystem/WatchDir"),
        {ROW("POST", "/execute", "POST", IN "/envd/execute"), .flags = ALIAS_INSIDE},
        {ROW("POST", "/contexts", "POST", IN "/contexts"), .flags = ALIAS_INSIDE, .body = context_body,
                .answer = alias_e2b_context},
        {ROW("GET", "/contexts", "GET", IN "/contexts"), .flags = ALIAS_INSIDE, .answer = alias_e2b_contexts},
        {ROW("DELETE", "/contexts/{id}", "DELETE", IN "/contexts/{id}"), .flags = ALIAS_INSIDE},
        {ROW("POST", "/contexts/{id}/restart", "POST", IN "/contexts/{id}/restart"), .flags = ALIAS_INSIDE,
                .answer = alias_e2b_context},

        ABSENT("/process.Process", "Ramet serves Start, Connect, List, SendInput, CloseStdin, SendSignal and "
                                   "Update of process.Process, and not this call"),
        ABSENT("/filesystem.Filesystem", "Ramet serves Stat, ListDir, MakeDir, Move, Remove and WatchDir of "
                                         "filesystem.Filesystem, and "
                                         "not this call; GET /v1/sandboxes/{name}/files/watch watches too"),
        ABSENT("/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/v2/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/v3/templates", "Ramet builds templates with `ramet template build`, not with this client"),
        ABSENT("/volumes", "Ramet's volumes are at /v1/volumes, and attached by \"disks\" of a create"),
        ABSENT("/volumecontent", "Ramet's volumes are at /v1/volumes, and attached by \"disks\" of a create"),
        ABSENT("/secrets", "Ramet has no store of secrets; give them as \"envs\""),
        ABSENT("/teams", "Ramet has no teams"),
        {0},
};
