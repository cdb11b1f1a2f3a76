// SPDX-License-Identifier: Apache-2.0
// Moving files of a sandbox, and watching them as server-sent events.
#include "vmglue/agent_protocol.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/route_agent.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool use_agent(struct http_request *request, int r, struct sandbox_agent *ret_use, struct error *err)
{
    if (r >= 0)
        r = route_agent_use(request, http_request_param(request, "name"), ret_use, err);
    if (r < 0)
        http_reply_failure(request, "sandbox", err);
    return r >= 0;
}

static void move_file(struct http_request *request)
{
    static const char *const known[] = {"from", "to", "replace", NULL};
    struct sandbox_agent use;
    struct error err;
    json_t *body;
    const char *from, *to;
    bool replace = false;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "from", &from, &err);
    if (r >= 0)
        r = route_json_required(body, "to", &to, &err);
    if (r >= 0 && (from[0] == '\0' || to[0] == '\0'))
        r = error_set(
                &err, -EINVAL, "field \"%s\" is empty; it must be a path", from[0] == '\0' ? "from" : "to");
    if (r >= 0)
        r = json_fields_bool(body, "replace", &replace, &err);
    if (!use_agent(request, r, &use, &err))
        return;
    if (agent_file_move(use.agent, from, to, replace, &err) < 0) {
        sandbox_agent_failed(&use, &err);
        http_reply_failure(request, "file", &err);
    } else {
        http_reply_empty(request, 204);
    }
    route_agent_done(request, &use);
}

static int send_change(void *context, int kind, const char *path, const char *other)
{
    static const char *const names[] = {
            "", "ready", "created", "changed", "attributes", "removed", "moved", "overflow"};
    json_t *data = json_pack("{s:o}", "path", json_fields_text(path, strlen(path)));
    if (kind == AGENT_WATCH_MOVED)
        json_object_set_new(data, "to", json_fields_text(other, strlen(other)));
    return http_reply_event(context, names[kind], data);
}

static bool is_gone(void *context)
{
    return http_request_is_gone(context);
}

static void watch_files(struct http_request *request)
{
    static const char *const known[] = {"path", "recursive", NULL};
    struct agent_watch watch = {.path = http_request_query(request, "path"),
            .each = send_change,
            .context = request,
            .cancelled = is_gone};
    struct sandbox_agent use;
    struct error err;
    int r = http_request_check_query(request, known, &err);
    if (r >= 0)
        r = route_json_query_flag(request, "recursive", &watch.recursive, &err);
    if (r >= 0 && (watch.path == NULL || watch.path[0] == '\0'))
        r = error_set(&err, -EINVAL, "query parameter path is missing");
    if (!use_agent(request, r, &use, &err))
        return;
    r = agent_watch(use.agent, &watch, &err);
    if (r < 0) {
        sandbox_agent_failed(&use, &err);
        http_reply_event_failure(request, "error", "file", &err);
    } else {
        http_reply_event(request, "end", json_object());
    }
    route_agent_done(request, &use);
}

const struct http_route routes_watch[] = {
        {"POST", "/v1/sandboxes/{name}/files/move", 0, move_file},
        {"GET", "/v1/sandboxes/{name}/files/watch", HTTP_STREAM, watch_files},
        {0},
};
