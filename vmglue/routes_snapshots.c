// SPDX-License-Identifier: Apache-2.0
// /v1/snapshots: disk snapshots and machine snapshots, by one name space. Taking one is a call of its source.
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <string.h>

struct list_context {
    struct http_request *request;
    struct service *service;
    json_t *list;
};

// Nameless ones are inner steps of a fork or a stop; they are not the user's.
static void list_one(void *context, const struct doc *doc)
{
    struct list_context *list = context;
    if (doc->name[0] != '\0' && access_sees_doc(list->request, doc))
        json_array_append_new(list->list, route_json_snapshot(list->service, doc));
}

static void list_snapshots(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct list_context context = {request, service_of(request), NULL};
    struct error err;
    if (http_request_check_query(request, known, &err) < 0) {
        http_reply_failure(request, "snapshot", &err);
        return;
    }
    context.list = json_array();
    store_doc_list(context.service->store, DOC_SNAPSHOT, list_one, &context);
    store_doc_list(context.service->store, DOC_MACHINE, list_one, &context);
    http_reply_json(request, 200, json_pack("{s:o}", "snapshots", context.list));
}

static void show_snapshot(struct http_request *request)
{
    static const char *const known[] = {"wait", NULL};
    struct service *service = service_of(request);
    const char *name = http_request_param(request, "name");
    struct disks_ref ref;
    struct error err;
    bool wait = false;
    if (http_request_check_query(request, known, &err) < 0 ||
            route_json_query_flag(request, "wait", &wait, &err) < 0) {
        http_reply_failure(request, "snapshot", &err);
        return;
    }
    if (disks_resolve(service->store, name, &ref) < 0 ||
            (ref.kind != DISKS_SNAPSHOT && ref.kind != DISKS_MACHINE)) {
        http_reply_error(request, 404, "snapshot.not_found",
                "there is no snapshot called \"%.80s\"; `ramet snapshots` lists them", name);
        return;
    }
    if (wait) {
        int r = snapshot_state_wait(service->snapshots, ref.doc);
        if (r < 0) {
            error_set(&err, r, "the snapshot \"%s\" is written, but the store cannot sync it: %s", name,
                    strerror(-r));
            http_reply_failure(request, "snapshot", &err);
            return;
        }
    }
    json_t *json = route_json_snapshot_by_id(service, ref.doc);
    if (json == NULL)
        http_reply_error(request, 404, "snapshot.not_found",
                "the snapshot \"%.80s\" was removed at this moment", name);
    else
        http_reply_json(request, 200, json);
}

static void change_snapshot(struct http_request *request)
{
    static const char *const known[] = {"name", "labels", NULL};
    struct service *service = service_of(request);
    const char *new_name = NULL;
    const json_t *labels = NULL;
    struct doc_id id;
    json_t *body;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &new_name, &err);
    if (r >= 0)
        r = json_fields_string_map(body, "labels", &labels, &err);
    if (r >= 0)
        r = disks_change_snapshot(
                &service->disks, http_request_param(request, "name"), new_name, labels, &id, &err);
    json_t *json = r < 0 ? NULL : route_json_snapshot_by_id(service, id);
    if (r >= 0 && json == NULL)
        r = error_set(&err, -ENOENT, "the snapshot was removed at this moment");
    if (r < 0)
        http_reply_failure(request, "snapshot", &err);
    else
        http_reply_json(request, 200, json);
}

static void delete_snapshot(struct http_request *request)
{
    struct error err;
    if (disks_delete_snapshot(&service_of(request)->disks, http_request_param(request, "name"), &err) < 0)
        http_reply_failure(request, "snapshot", &err);
    else
        http_reply_empty(request, 204);
    sandbox_runtime_collect(service_of(request)->sandboxes); // this may have been the last that needed one
}

const struct http_route routes_snapshots[] = {
        {"GET", "/v1/snapshots", 0, list_snapshots},
        {"GET", "/v1/snapshots/{name}", 0, show_snapshot},
        {"PATCH", "/v1/snapshots/{name}", 0, change_snapshot},
        {"DELETE", "/v1/snapshots/{name}", 0, delete_snapshot},
        {0},
};
