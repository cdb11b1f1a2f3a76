// SPDX-License-Identifier: Apache-2.0
// /v1/store/export and /v1/store/import: archives out and in, as streams.
#include "vmglue/archives.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int write_answer(void *context, const void *bytes, size_t size)
{
    struct http_request *request = context;
    http_reply_begin(request, 200, "application/octet-stream", -1);
    return http_reply_write(request, bytes, size);
}

// {"names": [...]}; *ret_names is malloc'ed, its strings are the body's.
static int take_names(const json_t *body, const char ***ret_names, unsigned *ret_count, struct error *err)
{
    json_t *list = json_object_get(body, "names"), *item;
    size_t i, count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > 4096)
        return error_set(err, -EINVAL, "field \"names\" must be an array of 1 to 4096 volumes and snapshots");
    const char **names = calloc(count, sizeof *names);
    if (names == NULL)
        return error_set(err, -ENOMEM, "no memory for the export");
    json_array_foreach(list, i, item)
    {
        names[i] = json_string_value(item);
        if (names[i] == NULL) {
            free(names);
            return error_set(err, -EINVAL, "field \"names\" must hold strings only");
        }
    }
    *ret_names = names;
    *ret_count = (unsigned)count;
    return 0;
}

static void export_archive(struct http_request *request)
{
    static const char *const known[] = {"names", NULL};
    const char **names = NULL;
    unsigned count = 0;
    struct archive_result result = {0};
    struct error err;
    json_t *body;
    int r = route_json_body(request, known, &body, &err);
    if (r == 0)
        r = take_names(body, &names, &count, &err);
    if (r == 0)
        r = archives_export(&service_of(request)->disks, names, count, write_answer, request, &result, &err);
    free(names);
    if (r < 0)
        http_reply_failure(request, "source", &err); // breaks the stream off when it has begun
}

struct import_call {
    struct http_request *request;
    struct service *service;
    json_t *volumes, *snapshots;
};

static ssize_t read_body(void *context, void *buffer, size_t capacity)
{
    struct import_call *call = context;
    return http_request_read(call->request, buffer, capacity);
}

static void add_imported(void *context, struct volume_id volume, struct doc_id doc)
{
    struct import_call *call = context;
    json_t *json = volume.value != 0 ? route_json_volume_by_id(call->service, volume)
                                     : route_json_snapshot_by_id(call->service, doc);
    if (json != NULL) // else it was removed at this moment
        json_array_append_new(volume.value != 0 ? call->volumes : call->snapshots, json);
}

static void import_archive(struct http_request *request)
{
    static const char *const known[] = {"prefix", NULL};
    struct service *service = service_of(request);
    struct import_call call = {request, service, json_array(), json_array()};
    struct archive_result result;
    struct error err;
    int r = http_request_check_query(request, known, &err);
    const char *prefix = http_request_query(request, "prefix");
    if (r == 0)
        r = archives_import(
                &service->disks, prefix == NULL ? "" : prefix, read_body, add_imported, &call, &result, &err);
    if (r < 0) {
        json_decref(call.volumes);
        json_decref(call.snapshots);
        if (r == -EBADMSG || r == -EPROTO) // what came is at fault, not this store
            err.code = -EINVAL;
        http_reply_failure(request, "name", &err);
        return;
    }
    http_reply_json(request, 201,
            json_pack("{s:o, s:o, s:I, s:I}", "volumes", call.volumes, "snapshots", call.snapshots,
                    "data_bytes", (json_int_t)result.data_bytes, "archive_bytes",
                    (json_int_t)result.archive_bytes));
}

const struct http_route routes_archives[] = {
        {"POST", "/v1/store/export", HTTP_STREAM, export_archive},
        {"POST", "/v1/store/import", HTTP_STREAM, import_archive},
        {0},
};
