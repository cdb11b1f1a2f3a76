// SPDX-License-Identifier: Apache-2.0
// What may be done to a sandbox between create and rm: PATCH, pause, resume, restore, promote.
#include "vmglue/access.h"
#include "vmglue/environment.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/route_life.h"

#include <errno.h>
#include <string.h>

static int take_on_timeout(const json_t *body, struct sandbox_change *change, struct error *err)
{
    const char *what = NULL;
    int r = json_fields_string(body, "on_timeout", &what, err);
    if (r <= 0)
        return r;
    if (strcmp(what, "stop") != 0 && strcmp(what, "delete") != 0)
        return error_set(err, -EINVAL,
                "field \"on_timeout\" must be \"stop\" (with its memory) or \"delete\", not \"%.40s\"", what);
    change->set_on_timeout = true;
    change->delete_on_timeout = strcmp(what, "delete") == 0;
    return 0;
}

int route_life_fields(const json_t *body, struct sandbox_change *change, struct error *err)
{
    int r = json_fields_limit_secs(body, "ttl_secs", SANDBOX_LIFE_MAX_SECS, &change->ttl_ms, err);
    change->set_ttl = r > 0;
    if (r >= 0) {
        r = json_fields_limit_secs(body, "idle_secs", SANDBOX_LIFE_MAX_SECS, &change->idle_ms, err);
        change->set_idle = r > 0;
    }
    if (r >= 0) {
        r = json_fields_bool(body, "persistent", &change->persistent, err);
        change->set_persistent = r > 0;
    }
    if (r >= 0) {
        r = json_fields_bool(body, "auto_start", &change->auto_start, err);
        change->set_auto_start = r > 0;
    }
    return r < 0 ? r : take_on_timeout(body, change, err);
}

int route_life_maps(const json_t *body, const json_t **ret_labels, const json_t **ret_env, struct error *err)
{
    int r = json_fields_string_map(body, "labels", ret_labels, err);
    if (r >= 0)
        r = json_fields_string_map(body, "env", ret_env, err);
    if (r >= 0 && *ret_env != NULL)
        r = environment_check(*ret_env, err);
    return r;
}

static void reply(struct http_request *request, int result, json_t *json, const struct error *err)
{
    if (result < 0)
        http_reply_failure(request, "sandbox", err);
    else
        http_reply_json(request, 200, json);
}

static void change_sandbox(struct http_request *request)
{
    static const char *const known[] = {"name", "labels", "env", "network", "ttl_secs", "idle_secs",
            "persistent", "on_timeout", "auto_start", NULL};
    struct sandbox_change change = {0};
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &change.name, &err);
    if (r >= 0)
        r = route_life_maps(body, &change.labels, &change.env, &err);
    if (r >= 0)
        r = route_life_fields(body, &change, &err);
    if (r >= 0 && !json_is_null(json_object_get(body, "network")))
        change.network = json_object_get(body, "network");
    if (r >= 0)
        r = sandbox_change(
                service_of(request)->sandboxes, http_request_param(request, "name"), &change, &json, &err);
    reply(request, r, json, &err);
}

static void pause_or_resume(struct http_request *request,
        int (*act)(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err))
{
    static const char *const known[] = {NULL};
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = act(service_of(request)->sandboxes, http_request_param(request, "name"), &json, &err);
    reply(request, r, json, &err);
}

static void pause_sandbox(struct http_request *request)
{
    pause_or_resume(request, sandbox_pause);
}

static void resume_sandbox(struct http_request *request)
{
    pause_or_resume(request, sandbox_resume_paused);
}

static void restore_sandbox(struct http_request *request)
{
    static const char *const known[] = {"snapshot", NULL};
    const char *snapshot = NULL;
    char id[ACCESS_ID_SIZE];
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "snapshot", &snapshot, &err);
    if (r >= 0)
        r = access_use_source(request, &snapshot, id, &err);
    if (r >= 0)
        r = sandbox_restore(
                service_of(request)->sandboxes, http_request_param(request, "name"), snapshot, &json, &err);
    reply(request, r, json, &err);
}

static void promote_sandbox(struct http_request *request)
{
    static const char *const known[] = {"cleanup_siblings", "tree_id", "name", NULL};
    struct sandbox_promote promote = {0};
    bool cleanup = true;
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_bool(body, "cleanup_siblings", &cleanup, &err);
    if (r >= 0)
        r = json_fields_string(body, "tree_id", &promote.tree, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &promote.name, &err);
    promote.keep_siblings = !cleanup;
    if (r >= 0)
        r = sandbox_promote(
                service_of(request)->sandboxes, http_request_param(request, "name"), &promote, &json, &err);
    reply(request, r, json, &err);
}

const struct http_route routes_life[] = {
        {"PATCH", "/v1/sandboxes/{name}", 0, change_sandbox},
        {"POST", "/v1/sandboxes/{name}/pause", 0, pause_sandbox},
        {"POST", "/v1/sandboxes/{name}/resume", 0, resume_sandbox},
        {"POST", "/v1/sandboxes/{name}/restore", 0, restore_sandbox},
        {"POST", "/v1/sandboxes/{name}/promote", 0, promote_sandbox},
        {0},
};
