// SPDX-License-Identifier: Apache-2.0
// /v1/volumes: plain disks.
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct list_context {
    struct http_request *request;
    struct service *service;
    json_t *list;
    bool all;
};

static void list_one(void *context, const struct volume_info *info)
{
    struct list_context *list = context;
    if ((info->name[0] != '\0' || list->all) && access_sees_volume(list->request, info))
        json_array_append_new(list->list, route_json_volume(list->service, info));
}

static void list_volumes(struct http_request *request)
{
    static const char *const known[] = {"all", NULL};
    struct error err;
    bool all = false;
    if (http_request_check_query(request, known, &err) < 0 ||
            route_json_query_flag(request, "all", &all, &err) < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    struct list_context context = {request, service_of(request), json_array(), all};
    store_volume_list(context.service->store, list_one, &context);
    http_reply_json(request, 200, json_pack("{s:o}", "volumes", context.list));
}

// Looks the path's volume up; replies and returns false when there is none.
static bool find(struct http_request *request, struct disks_ref *ret_ref)
{
    struct error err;
    char name[2 * STORE_NAME_MAX];
    if (disks_find(&service_of(request)->disks, route_json_path_name(request, name, sizeof name), ret_ref,
                &err) == 0)
        return true;
    http_reply_failure(request, "volume", &err);
    return false;
}

static void reply_volume(struct http_request *request, int status, struct volume_id id)
{
    json_t *json = route_json_volume_by_id(service_of(request), id);
    if (json == NULL)
        http_reply_error(request, 404, "volume.not_found", "the volume was removed at this moment");
    else
        http_reply_json(request, status, json);
}

static void create_volume(struct http_request *request)
{
    static const char *const known[] = {"name", "size_bytes", "from", NULL};
    struct disks *disks = &service_of(request)->disks;
    const char *name = NULL, *from = NULL;
    uint64_t size = 0;
    struct volume_id id;
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "name", &name, &err);
    if (r >= 0)
        r = json_fields_string(body, "from", &from, &err);
    if (r >= 0)
        r = json_fields_uint(body, "size_bytes", 1, 1ull << DISKS_SIZE_MAX_SHIFT, &size, &err);
    if (r >= 0 && from == NULL && size == 0)
        r = error_set(&err, -EINVAL,
                "field \"size_bytes\" is missing (or give \"from\": a volume or snapshot to fork)");
    if (r >= 0)
        r = access_check_data(request, from, &err);
    struct made_by by = access_made_by(request);
    if (r >= 0)
        r = from != NULL ? disks_fork(disks, from, name, size, &by, &id, &err)
                         : disks_create(disks, name, size, &by, &id, &err);
    if (r < 0)
        http_reply_failure(request, "volume", &err);
    else
        reply_volume(request, 201, id);
}

static void show_volume(struct http_request *request)
{
    struct disks_ref ref;
    if (!find(request, &ref))
        return;
    if (ref.volume.value == 0)
        http_reply_error(request, 404, "volume.not_found",
                "\"%s\" is a snapshot; GET /v1/snapshots/%s shows it", http_request_param(request, "name"),
                http_request_param(request, "name"));
    else
        reply_volume(request, 200, ref.volume);
}

static void change_volume(struct http_request *request)
{
    static const char *const known[] = {"name", "size_bytes", NULL};
    struct service *service = service_of(request);
    const char *new_name = NULL, *name = http_request_param(request, "name");
    uint64_t size = 0;
    struct disks_ref ref;
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &new_name, &err);
    if (r >= 0)
        r = json_fields_uint(body, "size_bytes", 1, 1ull << DISKS_SIZE_MAX_SHIFT, &size, &err);
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    if (!find(request, &ref))
        return;
    r = disks_change_volume(&service->disks, name, new_name, size, &err);
    if (r < 0)
        http_reply_failure(request, "volume", &err);
    else
        reply_volume(request, 200, ref.volume);
}

static void delete_volume(struct http_request *request)
{
    struct error err;
    if (disks_delete_volume(&service_of(request)->disks, http_request_param(request, "name"), &err) < 0)
        http_reply_failure(request, "volume", &err);
    else
        http_reply_empty(request, 204);
}

// {"name"} of the thing to be made, in the body. `required` false: may be missing.
static int take_name(struct http_request *request, bool required, const char **ret_name, struct error *err)
{
    static const char *const known[] = {"name", NULL};
    json_t *body;
    int r = route_json_body(request, known, &body, err);
    if (r >= 0)
        r = required ? route_json_required(body, "name", ret_name, err)
                     : json_fields_string(body, "name", ret_name, err);
    return r < 0 ? r : 0;
}

static void fork_volume(struct http_request *request)
{
    struct service *service = service_of(request);
    const char *name = NULL;
    struct volume_id id;
    struct error err;
    char from[2 * STORE_NAME_MAX];
    struct made_by by = access_made_by(request);
    struct disks_ref ref;
    int r = take_name(request, true, &name, &err);
    if (r == 0)
        r = disks_find(&service->disks, route_json_path_name(request, from, sizeof from), &ref, &err);
    if (r == 0) { // a fork belongs to whom its source does, whoever asked for it
        struct made_by source = disks_made_by(&service->disks, &ref);
        by = made_by_inherit(&source, &by);
        r = disks_fork(&service->disks, from, name, 0, &by, &id, &err);
    }
    if (r < 0)
        http_reply_failure(request, "volume", &err);
    else
        reply_volume(request, 201, id);
}

static void snapshot_volume(struct http_request *request)
{
    struct service *service = service_of(request);
    const char *name = NULL;
    struct doc_id id;
    struct error err;
    char volume[2 * STORE_NAME_MAX];
    struct made_by by = access_made_by(request);
    int r = take_name(request, false, &name, &err);
    if (r == 0)
        r = disks_snapshot(
                &service->disks, route_json_path_name(request, volume, sizeof volume), name, &by, &id, &err);
    if (r < 0)
        http_reply_failure(request, "volume", &err);
    else
        http_reply_json(request, 201, route_json_snapshot_by_id(service, id));
}

const struct http_route routes_volumes[] = {
        {"GET", "/v1/volumes", 0, list_volumes},
        {"POST", "/v1/volumes", HTTP_CREATES, create_volume},
        {"GET", "/v1/volumes/{name}", 0, show_volume},
        {"PATCH", "/v1/volumes/{name}", 0, change_volume},
        {"DELETE", "/v1/volumes/{name}", 0, delete_volume},
        {"POST", "/v1/volumes/{name}/fork", HTTP_CREATES, fork_volume},
        {"POST", "/v1/volumes/{name}/snapshots", HTTP_CREATES, snapshot_volume},
        {"GET", "/v1/volumes/{name}/{part}", 0, show_volume}, // "web/disk"
        {"POST", "/v1/volumes/{name}/{part}/fork", HTTP_CREATES, fork_volume},
        {"POST", "/v1/volumes/{name}/{part}/snapshots", HTTP_CREATES, snapshot_volume},
        {0},
};
