// SPDX-License-Identifier: Apache-2.0
// What is wrong with a request's head whatever it asks for. libmicrohttpd lets through what RFC 9110 and 9112
// forbid; where two programs could read a head in two ways (two lengths, a coded slash), it is refused.
#include "vmglue/hex.h"
#include "vmglue/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct heads {
    unsigned hosts, lengths, codings;
};

static bool is_name(const char *name, size_t size, const char *wanted)
{
    return size == strlen(wanted) && strncasecmp(name, wanted, size) == 0;
}

static void count(void *context, const char *name, size_t name_size, const char *value, size_t value_size)
{
    struct heads *heads = context;
    heads->hosts += is_name(name, name_size, "Host");
    heads->lengths += is_name(name, name_size, "Content-Length");
    heads->codings += is_name(name, name_size, "Transfer-Encoding");
}

bool http_head_is_method(const char *method)
{
    static const char *const known[] = {
            "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY", NULL};
    size_t i = 0;
    while (known[i] != NULL && strcmp(known[i], method) != 0)
        i++;
    return known[i] != NULL;
}

// "http://host:port/path" is the same as "/path" for one who is no proxy.
static void strip_authority(char *text)
{
    size_t scheme = strncasecmp(text, "http://", 7) == 0 ? 7 : strncasecmp(text, "https://", 8) == 0 ? 8 : 0;
    if (scheme == 0)
        return;
    char *path = text + scheme + strcspn(text + scheme, "/?");
    if (*path == '/')
        memmove(text, path, strlen(path) + 1);
    else
        strcpy(text, "/"); // shorter than any scheme
}

// A coded zero would end the path for us and not for a proxy before us; a coded slash would make two segments
// of one name. NULL: fine.
static const char *path_complaint(const char *target)
{
    for (const char *at = target; *at != '\0' && *at != '?'; at++) {
        if (*at != '%')
            continue;
        int byte = hex_byte(at + 1);
        if (byte < 0)
            return "it has a % that two hexadecimal digits do not follow";
        if (byte == 0)
            return "it holds a zero byte (%00)";
        if (byte == '/')
            return "it holds a coded slash (%2F), and no name has one";
    }
    return NULL;
}

// An id from outside stands in logs and answers as it is, so it must be of harmless form.
static void take_id(struct http_request *request)
{
    const char *given = http_request_header(request, "X-Request-Id");
    size_t size = given == NULL ? 0 : strlen(given);
    if (size < 1 || size >= HTTP_ID_SIZE - 7 ||
            strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != size)
        return;
    memcpy(request->id, given, size + 1);
}

static bool check_framing(struct http_request *request, const char *version)
{
    struct heads heads = {0};
    const char *coding = http_request_header(request, "Transfer-Encoding");
    http_request_each_header(request, count, &heads);
    if (heads.hosts > 1 || (heads.hosts == 0 && strcmp(version, "HTTP/1.1") == 0))
        http_reply_error(request, 400, "validation.invalid",
                heads.hosts == 0 ? "the request has no Host header, which HTTP/1.1 demands"
                                 : "the request has more than one Host header");
    else if (heads.lengths > 1 || heads.codings > 1 || (heads.lengths > 0 && heads.codings > 0))
        http_reply_error(request, 400, "validation.invalid",
                "the length of the body is given more than once (Content-Length, Transfer-Encoding); give "
                "one");
    else if (coding != NULL && strcasecmp(coding, "chunked") != 0)
        http_reply_error(request, 501, "validation.unsupported",
                "Transfer-Encoding: %.60s is not known here; send the body \"chunked\" or with a "
                "Content-Length",
                coding);
    else
        return true;
    return false;
}

static void take_announced(struct http_request *request)
{
    const char *length = http_request_header(request, "Content-Length"),
               *expect = http_request_header(request, "Expect");
    if (http_request_header(request, "Transfer-Encoding") != NULL)
        request->body_announced = UINT64_MAX;
    else if (length != NULL)
        request->body_announced = strtoull(length, NULL, 10); // libmicrohttpd has verified it
    request->has_body = request->body_announced > 0;
    request->expects = request->has_body && expect != NULL && strcasecmp(expect, "100-continue") == 0;
}

bool http_head_check(struct http_request *request, const char *version, size_t head_size)
{
    take_id(request);
    request->http_1_0 = strcmp(version, "HTTP/1.0") == 0;
    take_announced(request);
    strip_authority(request->target);
    strip_authority(request->path);
    if (head_size <= HTTP_HEAD_MAX)
        return check_framing(request, version);
    http_reply_error(request, 431, "validation.too_large",
            "the request's head has %zu bytes; %d are taken at most", head_size, HTTP_HEAD_MAX);
    return false;
}

bool http_head_check_target(struct http_request *request)
{
    const char *complaint = path_complaint(request->target);
    bool asterisk = strcmp(request->path, "*") == 0 && strcmp(request->method, "OPTIONS") == 0;
    if (!http_head_is_method(request->method))
        http_reply_error(
                request, 501, "validation.method", "the method %.20s is not known here", request->method);
    else if (request->path[0] != '/' && !asterisk)
        http_reply_error(request, 400, "validation.invalid",
                "the request's target \"%.100s\" is no path; it must begin with /", request->target);
    else if (complaint != NULL)
        http_reply_error(request, 400, "validation.invalid", "the path %.200s is no good: %s", request->path,
                complaint);
    else if (request->bad_query[0] != '\0')
        http_reply_error(request, 400, "validation.invalid", "%s", request->bad_query);
    else
        return true;
    return false;
}
