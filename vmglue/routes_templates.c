// SPDX-License-Identifier: Apache-2.0
// /v1/templates: templates, their builds, and uploads for builds.
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 1000, PIECE_BYTES = 16384 };

static struct templates *templates_of(struct http_request *request)
{
    return service_of(request)->templates;
}

static void reply(struct http_request *request, int result, int status, json_t *json, const char *kind,
        const struct error *err)
{
    if (result < 0)
        http_reply_failure(request, kind, err);
    else
        http_reply_json(request, status, json);
}

static int no_query(struct http_request *request, struct error *err)
{
    static const char *const known[] = {NULL};
    return http_request_check_query(request, known, err);
}

static void list_templates(struct http_request *request)
{
    struct error err;
    int r = no_query(request, &err);
    json_t *json = r < 0 ? NULL : template_list(templates_of(request));
    access_filter(request, json_object_get(json, "templates"), true);
    reply(request, r, 200, json, "template", &err);
}

// Packages and archives become disks in programs that run as root on the daemon's host: not for whom the
// owner gave a key for machines of his own. The names become ids: a build may wait for long before it looks.
static int check_source(struct http_request *request, json_t *body, struct error *err)
{
    const char *box = json_string_value(json_object_get(body, "sandbox"));
    const char *volume = json_string_value(json_object_get(body, "volume"));
    char id[ACCESS_ID_SIZE];
    if (access_owner(request) == NULL)
        return 0;
    if ((box == NULL) == (volume == NULL) || (volume != NULL && strchr(volume, '/') != NULL))
        return error_set(err, -EACCES,
                "a ci key makes templates of its own sandboxes and volumes: give \"sandbox\" or \"volume\"; "
                "others need an admin key");
    int r = box != NULL ? access_use_sandbox(request, &box, id, err)
                        : access_use_data(request, &volume, id, err);
    if (r == 0)
        json_object_set_new(body, box != NULL ? "sandbox" : "volume", json_string(id));
    return r;
}

static void build_template(struct http_request *request)
{
    json_t *body, *json = NULL;
    struct error err;
    struct made_by by = access_made_by(request);
    int r = http_request_json(request, &body, &err);
    if (r >= 0)
        r = check_source(request, body, &err);
    if (r >= 0)
        r = template_build_begin(templates_of(request), body, &by, &json, &err);
    // What was not found is what it was to be made from.
    reply(request, r, 202, json, r == -ENOENT ? "source" : "template", &err);
}

static void show_template(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = template_show(templates_of(request), http_request_param(request, "name"), &json, &err);
    reply(request, r, 200, json, "template", &err);
}

static void remove_template(struct http_request *request)
{
    struct error err;
    if (template_remove(templates_of(request), http_request_param(request, "name"), &err) < 0)
        http_reply_failure(request, "template", &err);
    else
        http_reply_empty(request, 204);
}

static void show_log(struct http_request *request)
{
    char *text = NULL;
    struct error err;
    int r = template_log_of(templates_of(request), http_request_param(request, "name"), &text, &err);
    json_t *json = r < 0 ? NULL : json_pack("{s:o}", "log", json_fields_text(text, strlen(text)));
    free(text);
    reply(request, r, 200, json, "template", &err);
}

static void list_builds(struct http_request *request)
{
    struct error err;
    int r = no_query(request, &err);
    json_t *json = r < 0 ? NULL : template_build_list(templates_of(request));
    access_filter(request, json_object_get(json, "builds"), false);
    reply(request, r, 200, json, "build", &err);
}

static void show_build(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = template_build_show(templates_of(request), http_request_param(request, "id"), &json, &err);
    reply(request, r, 200, json, "build", &err);
}

static void cancel_build(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = template_build_cancel(templates_of(request), http_request_param(request, "id"), &json, &err);
    reply(request, r, 202, json, "build", &err);
}

// The log as events, up to the end of the build, or of what there is now.
static void follow_log(struct http_request *request)
{
    static const char *const known[] = {"follow", NULL};
    struct templates *all = templates_of(request);
    const char *id = http_request_param(request, "id");
    bool follows = false;
    char piece[PIECE_BYTES];
    uint64_t position = 0;
    struct error err;
    json_t *json = NULL;
    int r = http_request_check_query(request, known, &err);
    if (r >= 0)
        r = route_json_query_flag(request, "follow", &follows, &err);
    if (r >= 0)
        r = template_build_show(all, id, &json, &err);
    json_decref(json);
    if (r < 0) {
        http_reply_failure(request, "build", &err);
        return;
    }
    while (!http_request_is_gone(request)) {
        ssize_t got =
                template_build_read_log(all, id, &position, piece, sizeof piece, follows ? WAIT_MS : 0, &err);
        if (got == -EAGAIN && follows)
            continue;
        if (got <= 0)
            break;
        if (http_reply_event(
                    request, "log", json_pack("{s:o}", "text", json_fields_text(piece, (size_t)got))) < 0)
            return;
    }
    json = NULL;
    if (template_build_show(all, id, &json, &err) == 0) {
        json_object_del(json, "log");
        http_reply_event(request, "build", json);
    }
}

static ssize_t body_source(void *context, void *buffer, size_t capacity)
{
    return http_request_read(context, buffer, capacity);
}

static void put_upload(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = no_query(request, &err);
    if (r == 0)
        r = template_upload(templates_of(request), body_source, request, &json, &err);
    reply(request, r, 201, json, "upload", &err);
}

static void remove_upload(struct http_request *request)
{
    struct error err;
    if (template_upload_remove(templates_of(request), http_request_param(request, "id"), &err) < 0)
        http_reply_failure(request, "upload", &err);
    else
        http_reply_empty(request, 204);
}

// "builds" and "uploads" are no names of templates.
const struct http_route routes_templates[] = {
        {"GET", "/v1/templates", 0, list_templates},
        {"POST", "/v1/templates", HTTP_CREATES, build_template},
        {"GET", "/v1/templates/builds", 0, list_builds},
        {"GET", "/v1/templates/builds/{id}", 0, show_build},
        {"DELETE", "/v1/templates/builds/{id}", 0, cancel_build},
        {"GET", "/v1/templates/builds/{id}/logs", HTTP_STREAM, follow_log},
        {"PUT", "/v1/templates/uploads", HTTP_STREAM, put_upload},
        {"DELETE", "/v1/templates/uploads/{id}", 0, remove_upload},
        {"GET", "/v1/templates/{name}", 0, show_template},
        {"DELETE", "/v1/templates/{name}", 0, remove_template},
        {"GET", "/v1/templates/{name}/log", 0, show_log},
        {0},
};
