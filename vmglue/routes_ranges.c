// SPDX-License-Identifier: Apache-2.0
// What volumes and snapshots hold, and how two differ: /v1/volumes/{name}/map and /diff. The answers are one
// JSON object each, written as it is found, so that no list is too long.
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranges_reply {
    struct http_request *request;
    json_t *head;   // fields before the ranges
    bool only_data; // in the sum
    uint64_t sum, count;
    bool begun;
    int result;
};

// {..., "ranges":[
static void begin(struct ranges_reply *reply)
{
    static const char open[] = ",\"ranges\":[";
    char *text = json_dumps(reply->head, JSON_COMPACT);
    reply->begun = true;
    if (text == NULL) {
        reply->result = -ENOMEM;
        return;
    }
    http_reply_begin(reply->request, 200, "application/json", -1);
    reply->result = http_reply_write(reply->request, text, strlen(text) - 1); // without its last brace
    free(text);
    if (reply->result == 0)
        reply->result = http_reply_write(reply->request, open, sizeof open - 1);
}

static bool write_range(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    static const char *const names[] = {
            [EXTENT_DATA] = "data", [EXTENT_ZERO] = "zero", [EXTENT_UNMAPPED] = "unmapped"};
    struct ranges_reply *reply = context;
    char text[128];
    if (!reply->begun)
        begin(reply);
    if (!reply->only_data || kind == EXTENT_DATA)
        reply->sum += length;
    int size =
            snprintf(text, sizeof text, "%s{\"offset\":%" PRIu64 ",\"length\":%" PRIu64 ",\"kind\":\"%s\"}",
                    reply->count++ == 0 ? "" : ",", offset, length, names[kind]);
    if (reply->result == 0)
        reply->result = http_reply_write(reply->request, text, (size_t)size);
    return reply->result == 0;
}

// `result` is that of the walk; what to say when it failed before anything was written is in *err.
static void end(struct ranges_reply *reply, int result, const char *sum, const struct error *err)
{
    if (result < 0 && !reply->begun) {
        http_reply_failure(reply->request, "volume", err);
        return;
    }
    if (!reply->begun)
        begin(reply);
    char text[80];
    int size = snprintf(text, sizeof text, "],\"%s\":%" PRIu64 "}", sum, reply->sum);
    if (result == 0 && reply->result == 0)
        reply->result = http_reply_write(reply->request, text, (size_t)size);
    if (result < 0 || reply->result < 0)
        http_reply_abort(reply->request);
}

static void map_volume(struct http_request *request)
{
    static const char *const known[] = {NULL};
    struct service *service = service_of(request);
    struct disks_pin pin = {0};
    struct ranges_reply reply = {.request = request, .only_data = true};
    struct error err;
    char buffer[2 * STORE_NAME_MAX];
    const char *name = route_json_path_name(request, buffer, sizeof buffer);
    int r = http_request_check_query(request, known, &err);
    if (r == 0)
        r = disks_pin(&service->disks, name, &pin, &err);
    if (r == 0) {
        uint64_t size = base_size_bytes(pin.base);
        reply.head = json_pack("{s:s, s:I}", "name", name, "size_bytes", (json_int_t)size);
        r = base_extents_wait(pin.base, 0, size, write_range, &reply);
        if (r < 0)
            error_set(&err, r, "what \"%s\" holds cannot be told: %s", name, strerror(-r));
    }
    end(&reply, r, "data_bytes", &err);
    json_decref(reply.head);
    if (pin.base != NULL)
        disks_unpin(&service->disks, &pin);
}

static void diff_volumes(struct http_request *request)
{
    static const char *const known[] = {"from", NULL};
    struct service *service = service_of(request);
    struct disks_pin newer = {0}, older = {0};
    struct ranges_reply reply = {.request = request};
    struct error err;
    char buffer[2 * STORE_NAME_MAX];
    const char *to = route_json_path_name(request, buffer, sizeof buffer);
    int r = http_request_check_query(request, known, &err);
    const char *from = http_request_query(request, "from");
    if (r == 0 && (from == NULL || from[0] == '\0'))
        r = error_set(&err, -EINVAL,
                "query parameter from is missing: the older volume or snapshot to compare with");
    if (r == 0)
        r = access_check_data(request, from, &err);
    if (r == 0)
        r = disks_pin(&service->disks, to, &newer, &err);
    if (r == 0)
        r = disks_pin(&service->disks, from, &older, &err);
    if (r == 0) {
        reply.head = json_pack("{s:s, s:s}", "from", from, "to", to);
        r = base_diff_wait(older.base, newer.base, write_range, &reply);
        if (r < 0)
            error_set(&err, r, "comparing \"%s\" with \"%s\" failed: %s", to, from, strerror(-r));
    }
    end(&reply, r, "changed_bytes", &err);
    json_decref(reply.head);
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
