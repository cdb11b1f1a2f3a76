// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy_internal.h"

#include "vmglue/service.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { INFORMATION_MAX = 16 };

void proxy_answer_unknown(struct http_request *request)
{
    http_reply_error(request, 404, "url.not_found",
            "this URL is not known, has expired or was revoked; `ramet url create SANDBOX PORT` makes one");
}

void proxy_answer_bad(struct proxy *proxy, const char *format, ...)
{
    char why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    http_reply_error(proxy->request, 502, "port.bad_answer",
            "the server on port %u of sandbox \"%s\" did not answer in proper HTTP: %s", proxy->url.port,
            proxy->url.sandbox_name, why);
}

void proxy_answer_ended(struct proxy *proxy)
{
    if (proxy_is_over(proxy))
        proxy_answer_unknown(proxy->request);
    else
        http_reply_error(proxy->request, 503, "capacity.stopping",
                "the call was ended before the guest's server answered");
}

int proxy_answer_read(struct proxy *proxy, struct proxy_answer *answer)
{
    struct error err;
    for (unsigned i = 0; i < INFORMATION_MAX; i++) {
        ssize_t head;
        while ((head = proxy_head_size(proxy->bytes + proxy->start, proxy->size)) == 0) {
            ssize_t got = proxy_guest_read(proxy);
            if (got > 0)
                continue;
            if (got == -ECANCELED)
                proxy_answer_ended(proxy);
            else
                proxy_answer_bad(proxy, proxy->size == 0 ? "it closed the connection without an answer"
                                                         : "it broke off in its answer's head");
            return -EPIPE;
        }
        if (head < 0) {
            proxy_answer_bad(proxy, "its answer's head is longer than 64 KiB");
            return -EPROTO;
        }
        char *text = proxy->bytes + proxy->start;
        proxy->start += (size_t)head;
        proxy->size -= (size_t)head;
        if (proxy_head_parse(text, (size_t)head, http_request_method(proxy->request), answer, &err) < 0) {
            proxy_answer_bad(proxy, "%s", err.text);
            return -EPROTO;
        }
        if (answer->status == 101 && proxy->asked->upgrade)
            return 0;
        if (answer->status == 101)
            break;
        if (answer->status >= 200)
            return 0;
    }
    proxy_answer_bad(proxy, answer->status == 101 ? "it changes to a protocol that nobody asked for"
                                                  : "it sends nothing but interim answers");
    return -EPROTO;
}

static bool is_dropped(const struct proxy *proxy, const struct proxy_field *field, const char *connection)
{
    // Our server writes the first two; the last three would act on our own site when the guest's stands below
    // it.
    static const char *const own[] = {"Content-Length", "Date", "Alt-Svc", NULL};
    static const char *const below[] = {
            "Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", NULL};
    for (size_t i = 0; own[i] != NULL; i++)
        if (strcasecmp(field->name, own[i]) == 0)
            return true;
    for (size_t i = 0; proxy->asked->prefix[0] != '\0' && below[i] != NULL; i++)
        if (strcasecmp(field->name, below[i]) == 0)
            return true;
    if (strcasecmp(field->name, "Set-Cookie") == 0 && proxy_token_is_cookie(field->value))
        return true; // it is ours to set
    // Addresses of ports hold their tokens: pages must not tell them to other sites, nor to other guests.
    if (strcasecmp(field->name, "Referrer-Policy") == 0 && strcasecmp(field->value, "no-referrer") != 0)
        return true;
    return proxy_head_is_hop(field->name, connection);
}

// Where the guest's site is says our address, not the guest: its redirections stay on it, and its cookies go
// to no neighbour's.
static char *changed_value(const struct proxy *proxy, const struct proxy_field *field)
{
    const char *prefix = proxy->asked->prefix;
    if (strcasecmp(field->name, "Set-Cookie") == 0)
        return proxy_head_cookie(field->value, prefix);
    if (prefix[0] != '\0' &&
            (strcasecmp(field->name, "Location") == 0 || strcasecmp(field->name, "Content-Location") == 0))
        return proxy_head_location(field->value, prefix, proxy->asked->host);
    return NULL;
}

// The token came by the query, and a cookie brings it from now on.
static void set_cookie(struct proxy *proxy)
{
    char cookie[160];
    unsigned i = 0;
    while (i < proxy->asked->query_tokens && strcmp(proxy->asked->tokens.list[i], proxy->token) != 0)
        i++;
    if (i == proxy->asked->query_tokens)
        return;
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Lax%s", URLS_PREVIEW_NAME,
            proxy->token, service_of(proxy->request)->tcp_is_tls ? "; Secure" : "");
    http_reply_header(proxy->request, "Set-Cookie", cookie);
}

void proxy_answer_pass_headers(struct proxy *proxy, const struct proxy_answer *answer)
{
    const char *connection = proxy_head_field(answer, "Connection");
    const char *referrer = proxy_head_field(answer, "Referrer-Policy");
    for (unsigned i = 0; i < answer->field_count; i++) {
        const struct proxy_field *field = &answer->fields[i];
        if (is_dropped(proxy, field, connection == NULL ? "" : connection))
            continue;
        char *changed = changed_value(proxy, field);
        http_reply_header(proxy->request, field->name, changed != NULL ? changed : field->value);
        free(changed);
    }
    if (referrer == NULL || strcasecmp(referrer, "no-referrer") != 0)
        http_reply_header(proxy->request, "Referrer-Policy", "same-origin");
    set_cookie(proxy);
}

// Hands out what is there of the body. 0 go on, 1 complete, negative: broken.
static int pass_bytes(struct proxy *proxy, const struct proxy_answer *answer, struct proxy_chunks *chunks,
        uint64_t *left, int (*put)(void *context, const void *bytes, size_t size), void *context)
{
    int r = 0;
    while (proxy->size > 0 && r == 0) {
        const char *body = proxy->bytes + proxy->start;
        size_t taken = proxy->size, size = proxy->size;
        if (answer->framing == PROXY_CHUNKED) {
            r = proxy_chunks_take(chunks, body, proxy->size, &taken, &body, &size);
        } else if (answer->framing == PROXY_LENGTH) {
            taken = size = proxy->size < *left ? proxy->size : (size_t)*left;
            *left -= size;
            r = *left == 0;
        }
        proxy->start += taken;
        proxy->size -= taken;
        if (size > 0 && put(context, body, size) < 0)
            return -ECANCELED;
    }
    return r;
}

int proxy_answer_pass_body(struct proxy *proxy, const struct proxy_answer *answer,
        int (*put)(void *context, const void *bytes, size_t size), void *context)
{
    struct proxy_chunks chunks = {0};
    uint64_t left = answer->length;
    if (answer->framing == PROXY_NO_BODY || (answer->framing == PROXY_LENGTH && left == 0))
        return 0;
    for (;;) {
        int r = pass_bytes(proxy, answer, &chunks, &left, put, context);
        if (r != 0)
            return r > 0 ? 0 : r;
        ssize_t got = proxy_guest_read(proxy);
        if (got == 0 && answer->framing == PROXY_UNTIL_CLOSE)
            return 0;
        if (got <= 0)
            return got == -ECANCELED ? -ECANCELED : -EPROTO;
    }
}
