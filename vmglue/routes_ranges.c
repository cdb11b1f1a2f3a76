// SPDX-License-Identifier: Apache-2.0
// What volumes and snapshots hold, and how two differ: /v1/volumes/{name}/map and /diff. The answers are one
// JSON object each, written as it is found, so that no list is too long.
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include "snapshot/extent_list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranges_reply {
    struct http_request *request;
    uint64_t bytes; // of data, or changed
    uint64_t count;
    int result;
};

// {..., "ranges":[ from the fields of `head`, which it steals.
static void begin(struct ranges_reply *reply, json_t *head)
{
    char *text = json_dumps(head, JSON_COMPACT);
    json_decref(head);
    if (text == NULL) {
        reply->result = -ENOMEM;
        return;
    }
    http_reply_begin(reply->request, 200, "application/json", -1);
    reply->result = http_reply_write(reply->request, text, strlen(text) - 1); // without its last brace
    free(text);
    static const char open[] = ",\"ranges\":[";
    if (reply->result == 0)
        reply->result = http_reply_write(reply->request, open, sizeof open - 1);
}

static void write_ranges(struct ranges_reply *reply, const struct extent_list *list, bool only_data)
{
    static const char *const names[] = {
            [EXTENT_DATA] = "data", [EXTENT_ZERO] = "zero", [EXTENT_UNMAPPED] = "unmapped"};
    char buffer[8192];
    size_t used = 0;
    for (size_t i = 0; i < list->count && reply->result == 0; i++) {
        const struct extent_list_item *item = &list->items[i];
        if (!only_data || item->kind == EXTENT_DATA)
            reply->bytes += item->length;
        used += (size_t)snprintf(buffer + used, sizeof buffer - used,
                "%s{\"offset\":%" PRIu64 ",\"length\":%" PRIu64 ",\"kind\":\"%s\"}",
                reply->count++ == 0 ? "" : ",", item->offset, item->length, names[item->kind]);
        if (used > sizeof buffer - 128 || i + 1 == list->count) {
            reply->result = http_reply_write(reply->request, buffer, used);
            used = 0;
        }
    }
}

static void end(struct ranges_reply *reply, const char *sum)
{
    char text[80];
    int size = snprintf(text, sizeof text, "],\"%s\":%" PRIu64 "}", sum, reply->bytes);
    if (reply->result == 0)
        reply->result = http_reply_write(reply->request, text, (size_t)size);
    if (reply->result < 0)
        http_reply_abort(reply->request);
}

static void map_volume(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct service *service = service_of(request);
    struct disks_pin pin = {0};
    struct extent_list list = {0};
    struct ranges_reply reply = {.request = request};
    struct error err;
    char buffer[2 * STORE_NAME_MAX];
    const char *name = route_json_path_name(request, buffer, sizeof buffer);
    int r = http_request_check_query(request, known, &err);
    if (r == 0)
        r = disks_pin(&service->disks, name, &pin, &err);
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
        return;
    }
    uint64_t size = base_size_bytes(pin.base);
    for (uint64_t at = 0; at < size && reply.result == 0;) {
        bool first = at == 0;
        r = extent_list_base(&list, pin.base, at, &at);
        if (r < 0 && first) {
            error_set(&err, r, "what \"%s\" holds cannot be told: %s", name, strerror(-r));
            http_reply_failure(request, "volume", &err);
        }
        if (r == 0 && first)
            begin(&reply, json_pack("{s:s, s:I}", "name", name, "size_bytes", (json_int_t)size));
        if (r < 0)
            reply.result = r;
        write_ranges(&reply, &list, true);
    }
    if (reply.count > 0)
        end(&reply, "data_bytes");
    extent_list_free(&list);
    disks_unpin(&service->disks, &pin);
}

static void diff_volumes(struct http_request *request)
{
    static const char *const known[] = {"from", NULL};
    struct service *service = service_of(request);
    struct disks_pin newer = {0}, older = {0};
    struct extent_list list = {0};
    struct ranges_reply reply = {.request = request};
    struct error err;
    char buffer[2 * STORE_NAME_MAX];
    const char *to = route_json_path_name(request, buffer, sizeof buffer);
    int r = http_request_check_query(request, known, &err);
    const char *from = http_request_query(request, "from");
    if (r == 0 && from == NULL)
        r = error_set(&err, -EINVAL,
                "query parameter from is missing: the older volume or snapshot to compare with");
    if (r == 0)
        r = disks_pin(&service->disks, to, &newer, &err);
    if (r == 0)
        r = disks_pin(&service->disks, from, &older, &err);
    if (r == 0 && (r = extent_list_diff(&list, older.base, newer.base)) < 0)
        error_set(&err, r, "comparing \"%s\" with \"%s\" failed: %s", to, from, strerror(-r));
    if (r < 0) {
        http_reply_failure(request, "volume", &err);
    } else {
        begin(&reply, json_pack("{s:s, s:s}", "from", from, "to", to));
        write_ranges(&reply, &list, false);
        end(&reply, "changed_bytes");
    }
    extent_list_free(&list);
    if (older.base != NULL)
        disks_unpin(&service->disks, &older);
    if (newer.base != NULL)
        disks_unpin(&service->disks, &newer);
}

const struct http_route routes_ranges[] = {
        {"GET", "/v1/volumes/{name}/diff", HTTP_STREAM, diff_volumes},
        {"GET", "/v1/volumes/{name}/map", HTTP_STREAM, map_volume},
        {"GET", "/v1/volumes/{name}/{part}/diff", HTTP_STREAM, diff_volumes},
        {"GET", "/v1/volumes/{name}/{part}/map", HTTP_STREAM, map_volume},
        {0},
};
