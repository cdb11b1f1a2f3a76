// SPDX-License-Identifier: Apache-2.0
// /v1/keys: who may call the API over TCP. A key's secret is in the answer that makes it, and nowhere else.
#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <string.h>

json_t *gate_key_json(const struct keys_info *info)
{
    json_t *json = json_pack("{s:s, s:s, s:s+, s:s}", "id", info->id, "name", info->name, "prefix", "e2b_",
            info->id + 4, "preset", keys_preset_name(info->preset));
    json_object_set_new(json, "created_at", json_fields_time(info->created_wall_ns));
    json_object_set_new(json, "expires_at", json_fields_time(info->expires_wall_ns));
    json_object_set_new(json, "last_used_at", json_fields_time(info->last_used_wall_ns));
    json_object_set_new(
            json, "created_by", info->created_by[0] == '\0' ? json_null() : json_string(info->created_by));
    return json;
}

static struct keys *keys_of(struct http_request *request)
{
    return gate_keys(service_of(request)->gate);
}

static void create_key(struct http_request *request)
{
    static const char *const known[] = {"name", "preset", "expires_in_secs", NULL};
    struct keys_create create = {
            .preset = KEYS_ADMIN, .maker = gate_key(request), .request = gate_request_tag(request)};
    struct keys_info info;
    char secret[KEYS_SECRET_SIZE];
    const char *preset = NULL;
    json_t *body;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "name", &create.name, &err);
    if (r >= 0)
        r = route_json_required(body, "preset", &preset, &err);
    if (r >= 0 && !keys_preset_parse(preset, &create.preset))
        r = error_set(&err, -EINVAL,
                "field \"preset\" is \"%.40s\"; it must be \"admin\" (everything), \"ci\" (what it made "
                "itself) or \"read\" (sees, changes nothing)",
                preset);
    if (r >= 0)
        r = json_fields_seconds(body, "expires_in_secs", KEYS_LIFE_MAX_SECS, &create.life_ms, &err);
    if (r >= 0)
        r = keys_create(keys_of(request), &create, &info, secret, &err);
    if (r < 0) {
        http_reply_failure(request, "key", &err);
        return;
    }
    json_t *json = gate_key_json(&info);
    json_object_set_new(json, "key", json_string(secret));
    explicit_bzero(secret, sizeof secret);
    http_reply_header(request, "Cache-Control", "no-store");
    http_reply_json(request, 201, json);
}

static void list_one(void *context, const struct keys_info *info)
{
    json_array_append_new(context, gate_key_json(info));
}

static void list_keys(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct error err;
    if (http_request_check_query(request, known, &err) < 0) {
        http_reply_failure(request, "key", &err);
        return;
    }
    json_t *list = json_array();
    keys_list(keys_of(request), list_one, list);
    http_reply_json(request, 200, json_pack("{s:o}", "keys", list));
}

static void show_key(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct keys_info info;
    struct error err;
    int r = http_request_check_query(request, known, &err);
    if (r >= 0)
        r = keys_show(keys_of(request), http_request_param(request, "id"), &info, &err);
    if (r < 0)
        http_reply_failure(request, "key", &err);
    else
        http_reply_json(request, 200, gate_key_json(&info));
}

// A key that revokes itself still gets its answer.
static void remove_key(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct error err;
    int r = http_request_check_query(request, known, &err);
    gate_spare(request);
    if (r >= 0)
        r = keys_remove(keys_of(request), http_request_param(request, "id"), &err);
    if (r < 0)
        http_reply_failure(request, "key", &err);
    else
        http_reply_empty(request, 204);
}

// Who asks. By the unix socket that is the owner, without a key.
static void show_caller(struct http_request *request)
{
    static const char *const known[] = {NULL};
    const struct keys_info *key = gate_key(request);
    struct error err;
    if (http_request_check_query(request, known, &err) < 0) {
        http_reply_failure(request, "key", &err);
        return;
    }
    http_reply_json(request, 200,
            json_pack("{s:s, s:b, s:o}", "name", key == NULL ? "owner" : key->name, "owner", key == NULL,
                    "key", key == NULL ? json_null() : gate_key_json(key)));
}

const struct http_route routes_keys[] = {
        {"GET", "/v1/me", 0, show_caller},
        {"GET", "/v1/keys", HTTP_ADMIN, list_keys},
        {"POST", "/v1/keys", HTTP_ADMIN | HTTP_CREATES, create_key},
        {"GET", "/v1/keys/{id}", HTTP_ADMIN, show_key},
        {"DELETE", "/v1/keys/{id}", HTTP_ADMIN, remove_key},
        {0},
};
