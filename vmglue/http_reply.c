// SPDX-License-Identifier: Apache-2.0
// How a handler answers. The first call decides; later ones that would start a second answer are ignored, so
// that an error after a begun stream breaks the stream off instead of being sent as if it were data.
#include "vmglue/http_internal.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_RETRY_SECS = 5 }; // until an idle sandbox is stopped, or somebody removes one

// Publishes the answer's head.
static void begin(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    request->begun = true;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    // The connection's thread may be waiting for room in the pipe, and sends nothing before it has taken the
    // whole body.
    if (request->in != NULL)
        http_pipe_break(request->in);
    http_early_begin(request);
}

// The first who wants to answer does; it fills in the head and then publishes it.
static bool claim(struct http_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool first = !request->claimed;
    request->claimed = true;
    pthread_mutex_unlock(&request->lock);
    return first;
}

void http_reply_whole(
        struct http_request *request, int status, const char *content_type, char *text, size_t size)
{
    if (!claim(request)) {
        free(text);
        http_reply_abort(request);
        return;
    }
    request->status = status;
    request->whole = true;
    request->reply = text;
    request->reply_size = size;
    snprintf(request->content_type, sizeof request->content_type, "%s", content_type);
    begin(request);
}

// In the words of whoever asked.
static json_t *in_words(struct http_request *request, int *status, json_t *body)
{
    const struct http_words *words = http_server_words(request->server);
    return words == NULL ? body : words->answer(request, status, body);
}

void http_reply_json(struct http_request *request, int status, json_t *body)
{
    http_request_mask(request, body);
    bool given = body != NULL;
    if (given)
        body = in_words(request, &status, body);
    if (given && body == NULL && status == 204) { // they have none
        http_reply_whole(request, status, "", NULL, 0);
        return;
    }
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text == NULL) {
        http_reply_error(request, 500, "internal.memory", "no memory for the answer");
        return;
    }
    http_reply_whole(request, status, "application/json", text, strlen(text));
}

void http_reply_empty(struct http_request *request, int status)
{
    json_t *body = in_words(request, &status, NULL);
    char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    http_reply_whole(
            request, status, text == NULL ? "" : "application/json", text, text == NULL ? 0 : strlen(text));
}

void http_reply_bytes(
        struct http_request *request, int status, const char *content_type, const void *bytes, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy == NULL) {
        http_reply_error(request, 500, "internal.memory", "no memory for the answer");
        return;
    }
    memcpy(copy, bytes, size);
    http_reply_whole(request, status, content_type, copy, size);
}

// retry_after_secs 0: there is no use in trying again.
static void reply_error(struct http_request *request, int status, const char *code, unsigned retry_after_secs,
        const char *message)
{
    json_t *text = json_fields_text(message, strlen(message)); // a path may hold bytes that are no text
    json_t *error = json_pack("{s:s, s:o, s:s, s:{s:b}}", "code", code, "message", text, "request_id",
            request->id, "details", "retryable", (int)(retry_after_secs > 0));
    if (retry_after_secs > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", retry_after_secs);
        http_reply_header(request, "Retry-After", seconds);
        json_object_set_new(error, "retry_after_secs", json_integer(retry_after_secs));
    }
    // The sentence stands beside the object too: some clients look for text there and know no objects.
    json_t *body = json_pack("{s:o, s:O}", "error", error, "message", json_object_get(error, "message"));
    body = in_words(request, &status, body);
    char *dump = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    http_reply_whole(request, status, "application/json", dump, dump == NULL ? 0 : strlen(dump));
}

static unsigned retry_secs(const char *code, bool retryable)
{
    return !retryable ? 0 : strcmp(code, "capacity.memory") == 0 ? MEMORY_RETRY_SECS : 1;
}

void http_reply_error(struct http_request *request, int status, const char *code, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    reply_error(request, status, code, retry_secs(code, status == 503), message);
}

void http_reply_retry(struct http_request *request, int status, const char *code, unsigned retry_after_secs,
        const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    reply_error(request, status, code, retry_after_secs == 0 ? 1 : retry_after_secs, message);
}

void http_reply_failure(struct http_request *request, const char *kind, const struct error *err)
{
    char code[64];
    bool retryable;
    int status = http_route_status(kind, err->code, code, sizeof code, &retryable);
    reply_error(request, status, code, retry_secs(code, retryable), err->text);
}

void http_reply_begin(struct http_request *request, int status, const char *content_type, int64_t size)
{
    if (!claim(request))
        return;
    request->status = status;
    request->stream_size = size;
    snprintf(request->content_type, sizeof request->content_type, "%s", content_type);
    begin(request);
}

// Events of a source wait here for the connection's thread, which is the one that made them.
static int keep_pending(struct http_request *request, const void *bytes, size_t size)
{
    if (request->pending_sent == request->pending_size)
        request->pending_sent = request->pending_size = 0;
    char *pending = realloc(request->pending, request->pending_size + size);
    if (pending == NULL)
        return -ENOMEM;
    memcpy(pending + request->pending_size, bytes, size);
    request->pending = pending;
    request->pending_size += size;
    return 0;
}

int http_reply_write(struct http_request *request, const void *bytes, size_t size)
{
    atomic_store(&request->half_closed_ns, 0); // whoever is gone does not take it
    if (request->source != NULL)
        return keep_pending(request, bytes, size);
    return request->early ? http_early_write(request, bytes, size)
                          : http_pipe_write(request->out, bytes, size,
                                    request->is_over == NULL ? NULL : http_request_is_over, request);
}

void http_reply_abort(struct http_request *request)
{
    request->early_broken = true;
    if (request->out != NULL)
        http_pipe_break(request->out);
}

void http_reply_begin_events(struct http_request *request)
{
    if (!claim(request))
        return;
    request->events = true;
    request->status = 200;
    request->stream_size = -1;
    snprintf(request->content_type, sizeof request->content_type, "text/event-stream");
    begin(request);
}

void http_reply_events_from(struct http_request *request, http_event_source *source, void *context,
        void (*release)(void *context))
{
    request->source = source;
    request->source_context = context;
    request->source_release = release;
    http_reply_begin_events(request);
}

void http_reply_expect_events(struct http_request *request)
{
    request->expects_events = true;
}

int http_reply_event(struct http_request *request, const char *event, json_t *data)
{
    return http_reply_event_id(request, NULL, event, data);
}

void http_reply_event_failure(
        struct http_request *request, const char *event, const char *kind, const struct error *err)
{
    char code[64];
    bool retryable;
    http_route_status(kind, err->code, code, sizeof code, &retryable);
    json_t *text = json_fields_text(err->text, strlen(err->text)); // as in reply_error
    http_reply_event(request, event,
            json_pack("{s:s, s:o, s:s}", "code", code, "message", text, "request_id", request->id));
}

// An event whose data is text in lines, as some clients expect. Steals data.
static int send_lines(struct http_request *request, const char *event, json_t *data)
{
    const char *line = json_string_value(data);
    size_t capacity = strlen(event) + 32 + 7 * json_string_length(data), used = 0;
    char *block = malloc(capacity);
    if (block != NULL)
        used = (size_t)snprintf(block, capacity, "event: %s\n", event);
    while (block != NULL) {
        size_t length = strcspn(line, "\n");
        used += (size_t)snprintf(block + used, capacity - used, "data: %.*s\n", (int)length, line);
        if (line[length] == '\0' || line[length + 1] == '\0')
            break;
        line += length + 1;
    }
    json_decref(data);
    if (block == NULL)
        return -ENOMEM;
    block[used++] = '\n';
    int result = http_reply_write(request, block, used);
    free(block);
    return result;
}

int http_reply_event_id(struct http_request *request, const char *id, const char *event, json_t *data)
{
    http_reply_begin_events(request);
    const struct http_words *words = http_server_words(request->server);
    if (words != NULL)
        data = words->event(request, &event, data);
    if (json_is_string(data))
        return send_lines(request, event, data);
    char *text = json_dumps(data, JSON_COMPACT); // compact: no line breaks, so one data line
    json_decref(data);
    if (text == NULL)
        return -ENOMEM;
    char *block = NULL;
    int size = asprintf(&block, "%s%s%sevent: %s\ndata: %s\n\n",
            id == NULL ? "" : "id: ", id == NULL ? "" : id, id == NULL ? "" : "\n", event, text);
    free(text);
    if (size < 0)
        return -ENOMEM;
    int result = http_reply_write(request, block, (size_t)size);
    free(block);
    return result;
}

void http_reply_header(struct http_request *request, const char *name, const char *value)
{
    if (request->header_count == HTTP_HEADERS_MAX)
        return;
    if (request->headers == NULL)
        request->headers = calloc(HTTP_HEADERS_MAX, sizeof *request->headers);
    struct http_header header = {strdup(name), strdup(value)};
    if (request->headers == NULL || header.name == NULL || header.value == NULL) {
        free(header.name);
        free(header.value);
        return;
    }
    request->headers[request->header_count++] = header;
}

void http_reply_upgrade(struct http_request *request, const char *protocol, const char *header,
        const char *value, http_upgraded *upgraded, void *context)
{
    if (!claim(request))
        return;
    request->status = 101;
    request->upgrade_to = protocol;
    if (header != NULL)
        http_reply_header(request, header, value);
    request->upgraded = upgraded;
    request->upgrade_context = context;
    begin(request);
}
