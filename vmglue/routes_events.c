// SPDX-License-Identifier: Apache-2.0
// What happens to sandboxes (events), and what a guest wrote to its console (logs).
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4096, LOOK_MS = 500, LOGS_DEFAULT_BYTES = 64 << 10, LOGS_MAX_BYTES = 1 << 20 };

struct follower {
    struct sandbox_events *events;
    struct sandbox_events_cursor cursor;
    char id[24]; // "" = of all
};

static bool give_next(struct http_request *request, void *context, unsigned wait_ms)
{
    struct follower *follower = context;
    const char *id = follower->id[0] == '\0' ? NULL : follower->id;
    struct sandbox_event event;
    if (sandbox_events_next(follower->events, &follower->cursor, id, wait_ms, &event) == 0)
        return true;
    if (!access_sees_owned(request, event.data)) {
        json_decref(event.data);
        return true;
    }
    bool removed = id != NULL && strcmp(event.type, "removed") == 0;
    return http_reply_event_id(request, event.id, event.type, event.data) == 0 && !removed;
}

// Until the client leaves, or the sandbox that they are about is gone. There may be thousands who do.
static void follow(struct http_request *request, struct sandbox_events *events, const char *id)
{
    struct follower *follower = calloc(1, sizeof *follower);
    if (follower == NULL) {
        http_reply_error(request, 503, "capacity.memory", "no memory to follow events; try again");
        return;
    }
    follower->events = events;
    snprintf(follower->id, sizeof follower->id, "%s", id == NULL ? "" : id);
    // The answer's head, which comes after this, tells that no later event is missed.
    follower->cursor = sandbox_events_begin(events, http_request_header(request, "Last-Event-ID"), true);
    http_reply_events_from(request, give_next, follower, free);
}

static void list(struct http_request *request, struct sandbox_events *events, const char *id)
{
    struct sandbox_events_cursor cursor =
            sandbox_events_begin(events, http_request_header(request, "Last-Event-ID"), false);
    struct sandbox_event event;
    json_t *list = json_array();
    while (sandbox_events_next(events, &cursor, id, 0, &event) > 0) {
        if (!access_sees_owned(request, event.data)) {
            json_decref(event.data);
            continue;
        }
        json_object_set_new(event.data, "id", json_string(event.id));
        json_array_append_new(list, event.data);
    }
    http_reply_json(request, 200, json_pack("{s:o}", "events", list));
}

static void serve(struct http_request *request, const char *id, bool follows)
{
    static const char *const known[] = {"follow", NULL};
    struct sandbox_events *events = sandbox_events_of(service_of(request)->sandboxes);
    struct error err;
    if (http_request_check_query(request, known, &err) < 0 ||
            route_json_query_flag(request, "follow", &follows, &err) < 0)
        http_reply_failure(request, "sandbox", &err);
    else if (follows)
        follow(request, events, id);
    else
        list(request, events, id);
}

static void events_of_all(struct http_request *request)
{
    serve(request, NULL, true);
}

static void events_of_one(struct http_request *request)
{
    json_t *json = NULL;
    bool follows;
    struct error err;
    if (route_json_query_flag(request, "follow", &follows, &err) < 0 ||
            sandbox_show(service_of(request)->sandboxes, http_request_param(request, "name"), &json, &err) <
                    0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    serve(request, json_fields_get_text(json, "id"), false);
    json_decref(json);
}

static bool send_line(struct http_request *request, const char *text, size_t size)
{
    while (size > 0 && text[size - 1] == '\r')
        size--;
    return http_reply_event(request, "line", json_pack("{s:o}", "text", json_fields_text(text, size))) == 0;
}

// Line by line; what has no end of line yet goes out when nothing more came for a while.
static void follow_logs(struct http_request *request, const char *name)
{
    struct sandboxes *all = service_of(request)->sandboxes;
    struct sandbox_console_cursor cursor = {0};
    char text[LINE_MAX_BYTES];
    size_t size = 0;
    struct error err;
    ssize_t got = sandbox_console_next(all, name, &cursor, text, sizeof text, &err);
    if (got < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    http_reply_begin_events(request);
    while (got >= 0) {
        const char *end;
        size += (size_t)got;
        while ((end = memchr(text, '\n', size)) != NULL) {
            size_t line = (size_t)(end - text) + 1;
            if (!send_line(request, text, line - 1))
                return;
            memmove(text, end + 1, size - line);
            size -= line;
        }
        if (size > 0 && (got == 0 || size == sizeof text)) {
            if (!send_line(request, text, size))
                return;
            size = 0;
        }
        if (got == 0 && http_request_wait_gone(request, LOOK_MS))
            return;
        got = sandbox_console_next(all, name, &cursor, text + size, sizeof text - size, &err);
    }
}

static void logs(struct http_request *request)
{
    static const char *const known[] = {"tail_bytes", "follow", NULL};
    uint64_t limit = LOGS_DEFAULT_BYTES;
    bool follows = false;
    char *text = NULL;
    size_t size = 0;
    struct error err;
    int r = http_request_check_query(request, known, &err);
    if (r >= 0)
        r = route_json_query_range(request, "tail_bytes", 1, LOGS_MAX_BYTES, &limit, &err);
    if (r >= 0)
        r = route_json_query_flag(request, "follow", &follows, &err);
    if (r >= 0 && follows) {
        follow_logs(request, http_request_param(request, "name"));
        return;
    }
    if (r >= 0)
        r = sandbox_console(service_of(request)->sandboxes, http_request_param(request, "name"),
                (size_t)limit, &text, &size, &err);
    if (r < 0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    http_reply_begin(request, 200, "text/plain; charset=utf-8", (int64_t)size);
    http_reply_write(request, text, size);
    free(text);
}

const struct http_route routes_events[] = {
        {"GET", "/v1/events", 0, events_of_all},
        {"GET", "/v1/sandboxes/{name}/events", 0, events_of_one},
        {"GET", "/v1/sandboxes/{name}/logs", HTTP_STREAM, logs},
        {0},
};
