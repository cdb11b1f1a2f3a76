// SPDX-License-Identifier: Apache-2.0
#include "vmglue/e2b_connect.h"

#include "blockstore/clock.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_exec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HEAD_BYTES = 5, ASK_MAX = 4 << 20, END_FLAG = 2, KEEP_SECS = 15 };

// How many bytes came: fewer at the body's end.
static size_t read_all(struct http_request *request, unsigned char *buffer, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t got = http_request_read(request, buffer + used, size - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    return used;
}

static int ends_early(size_t used, size_t size, struct error *err)
{
    return error_set(err, -EINVAL, "the request's frame ends early: %zu of %zu bytes came", used, size);
}

int e2b_connect_next(struct http_request *request, json_t **ret_body, struct error *err)
{
    unsigned char head[HEAD_BYTES];
    json_error_t where;
    size_t used = read_all(request, head, sizeof head);
    if (used == 0)
        return 0;
    if (used < sizeof head)
        return ends_early(used, sizeof head, err);
    size_t size = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
    if (head[0] != 0)
        return error_set(
                err, -EINVAL, "the request's frame has flags 0x%02x; compression is not served", head[0]);
    if (size > ASK_MAX)
        return error_set(err, -EFBIG, "the request's frame has %zu bytes, more than %d", size, ASK_MAX);
    unsigned char *text = malloc(size + 1);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for a request");
    used = read_all(request, text, size);
    json_t *body = used < size ? NULL : json_loadb((char *)text, size, JSON_REJECT_DUPLICATES, &where);
    free(text);
    if (used < size)
        return ends_early(used, size, err);
    if (!json_is_object(body)) {
        json_decref(body);
        return error_set(err, -EINVAL, "the request's frame holds no JSON object (is the codec JSON?)");
    }
    *ret_body = body;
    return 1;
}

int e2b_connect_ask(struct http_request *request, json_t **ret_body, struct error *err)
{
    int r = e2b_connect_next(request, ret_body, err);
    return r == 0 ? ends_early(0, HEAD_BYTES, err) : r < 0 ? r : 0;
}

static int send_frame(struct e2b_stream *stream, unsigned char flag, json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT);
    json_decref(message);
    if (text == NULL)
        return -ENOMEM;
    size_t size = strlen(text);
    unsigned char head[HEAD_BYTES] = {flag, (unsigned char)(size >> 24), (unsigned char)(size >> 16),
            (unsigned char)(size >> 8), (unsigned char)size};
    if (!stream->begun)
        http_reply_begin(stream->request, 200, "application/connect+json", -1);
    stream->begun = true;
    int r = http_reply_write(stream->request, head, sizeof head);
    if (r == 0)
        r = http_reply_write(stream->request, text, size);
    free(text);
    stream->broken = stream->broken || r < 0;
    stream->sent_ns = clock_monotonic_ns();
    return r;
}

int e2b_connect_send(struct e2b_stream *stream, json_t *message)
{
    return send_frame(stream, 0, message);
}

int e2b_connect_keep(struct e2b_stream *stream, json_t *(*keepalive)(void))
{
    if (stream->broken || http_request_is_gone(stream->request))
        return -EPIPE;
    if (clock_monotonic_ns() - stream->sent_ns < KEEP_SECS * 1000000000ull)
        return 0;
    return send_frame(stream, 0, keepalive());
}

static const char *word_of(int code)
{
    switch (code) {
    case -ENOENT:
    case -ESRCH:
        return "not_found";
    case -EEXIST:
        return "already_exists";
    case -EACCES:
    case -EPERM:
        return "permission_denied";
    case -EBUSY:
    case -ESHUTDOWN:
    case -EPIPE:
    case -EAGAIN:
        return "unavailable";
    case -EINVAL:
        return "invalid_argument";
    case -EOPNOTSUPP:
        return "unimplemented";
    case -ENOMEM:
    case -E2BIG:
    case -EFBIG:
    case -ENOSPC:
        return "resource_exhausted";
    default:
        return "internal";
    }
}

void e2b_connect_end(struct e2b_stream *stream, const char *code, const struct error *err)
{
    json_t *message = json_object();
    if (err != NULL)
        json_object_set_new(message, "error",
                json_pack("{s:s, s:o}", "code", code != NULL ? code : word_of(err->code), "message",
                        json_fields_text(err->text, strlen(err->text)))); // a guest's bytes may be in it
    send_frame(stream, END_FLAG, message);
}

void *e2b_connect_bytes(const char *text, size_t *ret_size)
{
    return route_exec_from_base64(text, ret_size);
}

void e2b_connect_user(struct http_request *request, char *ret_user, size_t capacity)
{
    const char *value = http_request_header(request, "Authorization");
    size_t size = 0;
    ret_user[0] = '\0';
    if (value == NULL || strncasecmp(value, "Basic ", 6) != 0)
        return;
    char *pair = e2b_connect_bytes(value + 6, &size);
    if (pair != NULL) {
        size_t length = strnlen(pair, size);
        for (size_t i = 0; i < length; i++)
            if (pair[i] == ':')
                length = i;
        snprintf(ret_user, capacity, "%.*s", (int)length, pair);
    }
    free(pair);
}
