// SPDX-License-Identifier: Apache-2.0
// Disks in and out: /v1/imports, /v1/exports, /v1/volumes/{name}/content.
//
// An import or export through NBD is a stream of events that the client keeps open: "ready" names the socket,
// and when the client goes, for whatever reason, what was not committed is gone too.
#include "vmglue/disk_table.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <string.h>

enum { WATCH_MS = 100, CONTENT_BYTES = 1 << 20 };

static void start_import(struct http_request *request)
{
    static const char *const known[] = {"name", "size_bytes", NULL};
    struct service *service = service_of(request);
    struct import_session *session = NULL;
    const char *name = NULL;
    uint64_t size = 0;
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "name", &name, &err);
    if (r >= 0)
        r = json_fields_uint(body, "size_bytes", 1, 1ull << DISKS_SIZE_MAX_SHIFT, &size, &err);
    if (r == 0)
        r = error_set(&err, -EINVAL, "field \"size_bytes\" is missing: how large the disk is");
    if (r >= 0)
        r = import_export_import(service->transfers, name, size, &session, &err);
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    http_reply_event(request, "ready",
            json_pack("{s:s, s:s, s:I}", "import", import_export_import_id(session), "socket",
                    import_export_import_socket(session), "size_bytes",
                    (json_int_t)(size + 511) / 512 * 512));
    while (!http_request_wait_gone(request, WATCH_MS) && !import_export_import_is_over(session))
        ;
    import_export_import_end(session);
}

// The new volume, with a word about what machines will not find on it.
static json_t *imported_json(struct service *service, struct volume_id id)
{
    json_t *json = route_json_volume_by_id(service, id);
    if (disk_table_is_for_4096(service->store, id, (struct base_id){0}))
        json_object_set_new(json, "notice", json_string(disk_table_notice));
    return json;
}

static void commit_import(struct http_request *request)
{
    struct service *service = service_of(request);
    struct volume_id id;
    struct error err;
    if (import_export_commit(service->transfers, http_request_param(request, "id"), &id, &err) < 0) {
        http_reply_failure(request, "import", &err);
        return;
    }
    http_reply_json(request, 201, imported_json(service, id));
}

static void cancel_import(struct http_request *request)
{
    struct error err;
    if (import_export_cancel(service_of(request)->transfers, http_request_param(request, "id"), &err) < 0)
        http_reply_failure(request, "import", &err);
    else
        http_reply_empty(request, 204);
}

static void start_export(struct http_request *request)
{
    static const char *const known[] = {"name", NULL};
    struct service *service = service_of(request);
    struct export_session *session = NULL;
    const char *name = NULL;
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = route_json_required(body, "name", &name, &err);
    if (r >= 0)
        r = import_export_export(service->transfers, name, &session, &err);
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    http_reply_event(request, "ready",
            json_pack("{s:s, s:I}", "socket", import_export_export_socket(session), "size_bytes",
                    (json_int_t)import_export_export_size(session)));
    while (!http_request_wait_gone(request, WATCH_MS))
        ;
    import_export_export_end(session);
}

static ssize_t body_source(void *context, void *buffer, size_t capacity)
{
    return http_request_read(context, buffer, capacity);
}

static void put_content(struct http_request *request)
{
    static const char *const known[] = {"size_bytes", NULL};
    struct service *service = service_of(request);
    uint64_t expected = 0, padding = 0;
    struct volume_id id;
    struct error err;
    int r = http_request_check_query(request, known, &err);
    if (r == 0)
        r = route_json_query_uint(request, "size_bytes", &expected, &err);
    if (r >= 0)
        r = import_export_import_stream(service->transfers, http_request_param(request, "name"), expected,
                body_source, request, &id, &padding, &err);
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    json_t *json = imported_json(service, id);
    json_object_set_new(json, "padding_bytes", json_integer((json_int_t)padding));
    http_reply_json(request, 201, json);
}

static void get_content(struct http_request *request)
{
    struct service *service = service_of(request);
    struct disks_pin pin = {0};
    struct error err;
    char name[2 * STORE_NAME_MAX];
    if (disks_pin(&service->disks, route_json_path_name(request, name, sizeof name), &pin, &err) < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    uint64_t size = base_size_bytes(pin.base);
    char *buffer = io_buffer_alloc(CONTENT_BYTES);
    http_reply_begin(request, 200, "application/octet-stream", (int64_t)size);
    for (uint64_t offset = 0; offset < size;) {
        size_t part = size - offset < CONTENT_BYTES ? (size_t)(size - offset) : CONTENT_BYTES;
        int r = base_read_wait(pin.base, offset, buffer, part);
        if (r < 0 || http_reply_write(request, buffer, part) < 0) {
            http_reply_abort(request);
            break;
        }
        offset += part;
    }
    io_buffer_free(buffer);
    disks_unpin(&service->disks, &pin);
}

const struct http_route routes_transfers[] = {
        {"POST", "/v1/imports", HTTP_STREAM, start_import},
        {"POST", "/v1/imports/{id}/commit", 0, commit_import},
        {"DELETE", "/v1/imports/{id}", 0, cancel_import},
        {"POST", "/v1/exports", HTTP_STREAM, start_export},
        {"PUT", "/v1/volumes/{name}/content", HTTP_STREAM, put_content},
        {"GET", "/v1/volumes/{name}/content", HTTP_STREAM, get_content},
        {"GET", "/v1/volumes/{name}/{part}/content", HTTP_STREAM, get_content},
        {0},
};
