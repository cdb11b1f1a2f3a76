// SPDX-License-Identifier: Apache-2.0
#include "vmglue/e2b_multipart.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HEAD_MAX = 8192 };

int e2b_multipart_begin(struct e2b_multipart *body, struct http_request *request, struct error *err)
{
    const char *type = http_request_header(request, "Content-Type");
    const char *at = type == NULL ? NULL : strcasestr(type, "boundary=");
    *body = (struct e2b_multipart){.request = request};
    if (type == NULL || strncasecmp(type, "multipart/form-data", 19) != 0 || at == NULL)
        return error_set(err, -EINVAL, "the body must be multipart/form-data with a boundary, not %.80s",
                type == NULL ? "without a type" : type);
    at += strlen("boundary=");
    bool quoted = *at == '"';
    at += quoted;
    size_t size = strcspn(at, quoted ? "\"" : "; \t");
    if (size == 0 || size > E2B_MULTIPART_BOUNDARY_MAX)
        return error_set(err, -EINVAL, "the body's boundary must be of 1 to %d characters",
                E2B_MULTIPART_BOUNDARY_MAX);
    body->mark_size = (size_t)snprintf(body->mark, sizeof body->mark, "\r\n--%.*s", (int)size, at);
    memcpy(body->buffer, "\r\n", 2); // the first boundary has no line before it
    body->size = 2;
    return 0;
}

// More bytes behind those that are there. false: there are none.
static bool fill(struct e2b_multipart *body)
{
    if (body->start > 0) {
        memmove(body->buffer, body->buffer + body->start, body->size);
        body->start = 0;
    }
    if (body->ended || body->size == sizeof body->buffer)
        return false;
    ssize_t got =
            http_request_read(body->request, body->buffer + body->size, sizeof body->buffer - body->size);
    if (got <= 0) {
        body->ended = true;
        return false;
    }
    body->size += (size_t)got;
    return true;
}

static void skip(struct e2b_multipart *body, size_t size)
{
    body->start += size;
    body->size -= size;
}

static const char *find_mark(const struct e2b_multipart *body)
{
    return memmem(body->buffer + body->start, body->size, body->mark, body->mark_size);
}

static int broken(struct e2b_multipart *body, struct error *err)
{
    body->failed = true;
    return error_set(err, -EINVAL, "the multipart body ends early, or has no boundary where one must be");
}

// One parameter of a Content-Disposition: name="value", with \" and \\ in it.
static void take_parameter(const char *line, const char *name, char *ret_value, size_t capacity)
{
    size_t used = 0, length = strlen(name);
    const char *at = line;
    ret_value[0] = '\0';
    while ((at = strchr(at, ';')) != NULL) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, name, length) != 0 || at[length] != '=')
            continue;
        at += length + 1;
        bool quoted = *at == '"';
        for (at += quoted; *at != '\0' && used + 1 < capacity; at++) {
            if (quoted ? *at == '"' : *at == ';')
                break;
            if (quoted && at[0] == '\\' && (at[1] == '"' || at[1] == '\\'))
                at++;
            ret_value[used++] = *at;
        }
        ret_value[used] = '\0';
        return;
    }
}

// Browsers and their libraries write the characters that would end a name so.
static void unescape(char *text)
{
    static const struct {
        const char *escaped;
        char plain;
    } known[] = {{"%22", '"'}, {"%0D", '\r'}, {"%0A", '\n'}};
    char *out = text;
    while (*text != '\0') {
        size_t i = 0;
        while (i < 3 && strncmp(text, known[i].escaped, 3) != 0)
            i++;
        *out++ = i < 3 ? known[i].plain : *text;
        text += i < 3 ? 3 : 1;
    }
    *out = '\0';
}

static int take_head(struct e2b_multipart *body, struct error *err)
{
    const char *end;
    while ((end = memmem(body->buffer + body->start, body->size, "\r\n\r\n", 4)) == NULL)
        if (body->size > HEAD_MAX || !fill(body))
            return broken(body, err);
    char head[HEAD_MAX + 1];
    size_t size = (size_t)(end - (body->buffer + body->start));
    if (size > HEAD_MAX)
        return broken(body, err);
    memcpy(head, body->buffer + body->start, size);
    head[size] = '\0';
    skip(body, size + 4);
    body->name[0] = body->file_name[0] = '\0';
    for (char *line = head, *next; line != NULL; line = next) {
        next = strstr(line, "\r\n");
        if (next != NULL) {
            *next = '\0';
            next += 2;
        }
        if (strncasecmp(line, "Content-Disposition:", 20) != 0)
            continue;
        take_parameter(line, "name", body->name, sizeof body->name);
        take_parameter(line, "filename", body->file_name, sizeof body->file_name);
        unescape(body->file_name);
    }
    body->in_part = true;
    return 1;
}

int e2b_multipart_next(struct e2b_multipart *body, struct error *err)
{
    char rest[4096];
    ssize_t got = 0;
    while (body->in_part && (got = e2b_multipart_read(body, rest, sizeof rest)) > 0)
        ;
    if (got < 0 || body->failed)
        return broken(body, err);
    while (body->size < body->mark_size + 2)
        if (!fill(body))
            return broken(body, err);
    if (memcmp(body->buffer + body->start, body->mark, body->mark_size) != 0)
        return broken(body, err);
    skip(body, body->mark_size);
    if (memcmp(body->buffer + body->start, "--", 2) == 0)
        return 0;
    if (memcmp(body->buffer + body->start, "\r\n", 2) != 0)
        return broken(body, err);
    // The line end stays: a head without a field is "\r\n\r\n" with it.
    return take_head(body, err);
}

ssize_t e2b_multipart_read(struct e2b_multipart *body, void *buffer, size_t capacity)
{
    for (;;) {
        const char *mark = find_mark(body);
        size_t sure = mark != NULL                    ? (size_t)(mark - (body->buffer + body->start))
                      : body->size >= body->mark_size ? body->size - body->mark_size + 1
                                                      : 0;
        if (sure > 0) {
            size_t take = sure < capacity ? sure : capacity;
            memcpy(buffer, body->buffer + body->start, take);
            skip(body, take);
            return (ssize_t)take;
        }
        if (mark != NULL) {
            body->in_part = false;
            return 0;
        }
        if (!fill(body)) {
            body->failed = true;
            return -EINVAL;
        }
    }
}
