// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy_request.h"

#include "vmglue/http_server.h"
#include "vmglue/proxy_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void add_field(
        struct proxy_request *proxy, const char *name, size_t name_size, const char *value, size_t value_size)
{
    if (proxy->field_count == proxy->field_capacity) {
        size_t capacity = proxy->field_capacity == 0 ? 32 : proxy->field_capacity * 2;
        struct proxy_text_field *fields = realloc(proxy->fields, capacity * sizeof *fields);
        if (fields == NULL)
            abort();
        proxy->fields = fields;
        proxy->field_capacity = capacity;
    }
    struct proxy_text_field *field = &proxy->fields[proxy->field_count++];
    field->name = strndup(name, name_size);
    field->value = strndup(value, value_size);
    if (field->name == NULL || field->value == NULL)
        abort();
}

static void take_field(
        void *context, const char *name, size_t name_size, const char *value, size_t value_size)
{
    struct proxy_request *proxy = context;
    while (value_size > 0 && (value[value_size - 1] == ' ' || value[value_size - 1] == '\t'))
        value_size--;
    if (!proxy_head_is_name(name, name_size) || !proxy_head_is_value(value, value_size))
        proxy->complaint = "a header of the request holds characters that no header may";
    else
        add_field(proxy, name, name_size, value, value_size);
}

static const char *field_of(const struct proxy_request *proxy, const char *name)
{
    for (size_t i = 0; i < proxy->field_count; i++)
        if (strcasecmp(proxy->fields[i].name, name) == 0)
            return proxy->fields[i].value;
    return NULL;
}

// How the body comes. The HTTP server has taken it by the same headers; where two readers could differ, it is
// refused.
static void take_framing(struct proxy_request *proxy)
{
    const char *length = NULL;
    proxy->length = -1;
    for (size_t i = 0; i < proxy->field_count; i++) {
        const struct proxy_text_field *field = &proxy->fields[i];
        if (strcasecmp(field->name, "Transfer-Encoding") == 0) {
            if (proxy->chunked || strcasecmp(field->value, "chunked") != 0)
                proxy->complaint = "the request's Transfer-Encoding is not just \"chunked\"";
            proxy->chunked = true;
        } else if (strcasecmp(field->name, "Content-Length") == 0) {
            size_t digits = strspn(field->value, "0123456789");
            if (digits == 0 || digits > 18 || field->value[digits] != '\0' ||
                    (length != NULL && strcmp(length, field->value) != 0))
                proxy->complaint = "the request's Content-Length is not one number";
            length = field->value;
        }
    }
    if (proxy->chunked && length != NULL)
        proxy->complaint = "the request has both Content-Length and Transfer-Encoding";
    if (length != NULL)
        proxy->length = (int64_t)strtoull(length, NULL, 10);
}

static void take_connection(struct proxy_request *proxy)
{
    char *all = strdup("");
    for (size_t i = 0; all != NULL && i < proxy->field_count; i++) {
        char *longer = NULL;
        if (strcasecmp(proxy->fields[i].name, "Connection") != 0)
            continue;
        if (asprintf(&longer, "%s,%s", all, proxy->fields[i].value) < 0)
            abort();
        free(all);
        all = longer;
    }
    proxy->connection = all;
    const char *upgrade = field_of(proxy, "Upgrade");
    // HTTP/2 without TLS is never asked of the guest: such a connection would not be seen through any more.
    proxy->upgrade = upgrade != NULL && !proxy_head_lists(upgrade, "h2c") && all != NULL &&
                     proxy_head_lists(all, "upgrade");
}

// The address of another exposed port holds that one's token.
static bool is_foreign_address(const struct proxy_request *proxy, const char *address, const char *url_host)
{
    char token[URLS_TOKEN_SIZE];
    size_t rest;
    const char *host = strstr(address, "://");
    host = host == NULL ? address : host + 3;
    const char *path = host + strcspn(host, "/?#");
    if (!urls_token_of_target(path, token, &rest) && !urls_token_of_host(host, url_host, token))
        return false;
    return proxy->tokens.count == 0 || strcmp(token, proxy->tokens.list[0]) != 0;
}

// Those of a host PORT-SANDBOX.NAME: from the query, then the header, then cookies. Whatever the form, the
// guest gets none of the three.
static void take_out_tokens(struct proxy_request *proxy, const char *url_host)
{
    struct proxy_tokens *tokens = proxy->preview_port != 0 ? &proxy->tokens : NULL;
    char *query = strchr(proxy->target, '?');
    if (query != NULL)
        proxy_token_cut_address(proxy->target, tokens);
    proxy->query_tokens = tokens == NULL ? 0 : tokens->count;
    for (size_t i = 0; tokens != NULL && i < proxy->field_count; i++)
        if (strcasecmp(proxy->fields[i].name, URLS_PREVIEW_HEADER) == 0)
            proxy_token_add(tokens, proxy->fields[i].value, strlen(proxy->fields[i].value));
    for (size_t i = 0; i < proxy->field_count; i++)
        if (strcasecmp(proxy->fields[i].name, "Cookie") == 0)
            proxy_token_cut_cookies(proxy->fields[i].value, tokens);
    struct proxy_tokens seen = proxy->tokens; // those that addresses hold are no way in, and hidden as well
    for (size_t i = 0; i < proxy->field_count; i++) {
        struct proxy_text_field *field = &proxy->fields[i];
        if (strcasestr(field->value, URLS_PREVIEW_NAME) != NULL)
            proxy_token_cut_address(field->value, &seen);
        if (strcasecmp(field->name, "Referer") == 0 && is_foreign_address(proxy, field->value, url_host))
            field->value[0] = '\0';
    }
    if (tokens == NULL)
        return;
    proxy_token_hide(proxy->target, &seen);
    for (size_t i = 0; i < proxy->field_count; i++)
        proxy_token_hide(proxy->fields[i].value, &seen);
}

static bool is_clean_target(const char *target)
{
    for (const unsigned char *c = (const unsigned char *)target; *c != '\0'; c++)
        if (*c <= ' ' || *c == 0x7f || *c == '#')
            return false;
    return target[0] == '/';
}

// Which form it has; false: none.
static bool take_form(struct proxy_request *proxy, const char *target, const char *host, const char *url_host)
{
    char *token = proxy->tokens.list[0];
    size_t rest = 0;
    if (urls_token_of_host(host, url_host, token))
        proxy->tokens.count = 1;
    else if (urls_preview_of_host(host, url_host, &proxy->preview_port, proxy->preview_sandbox,
                     sizeof proxy->preview_sandbox))
        proxy->tokens.count = 0;
    else if (urls_token_of_target(target, token, &rest))
        proxy->tokens.count = 1;
    else
        return false;
    proxy->prefix = strndup(target, rest);
    proxy->redirect = rest > 0 && target[rest] != '/';
    if (asprintf(&proxy->target, "%s%s", proxy->redirect ? "/" : "", target + rest) < 0)
        proxy->target = NULL;
    return true;
}

struct proxy_request *proxy_request_take(struct http_request *request, const char *url_host)
{
    const char *target = http_request_target(request), *method = http_request_method(request);
    const char *host = http_request_header(request, "Host"), *expect;
    char token[URLS_TOKEN_SIZE], sandbox[48];
    size_t rest;
    unsigned port;
    host = host == NULL ? "" : host;
    if (!urls_token_of_target(target, token, &rest) && !urls_token_of_host(host, url_host, token) &&
            !urls_preview_of_host(host, url_host, &port, sandbox, sizeof sandbox))
        return NULL; // nearly all requests: nothing was copied
    struct proxy_request *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL)
        abort();
    http_request_each_header(request, take_field, proxy);
    proxy->host = strdup(host);
    if (!take_form(proxy, target, host, url_host) || proxy->target == NULL || proxy->prefix == NULL ||
            proxy->host == NULL)
        abort();
    take_out_tokens(proxy, url_host);
    if (proxy->tokens.count == 0) { // a preview host without a token is no exposed port
        proxy_request_free(proxy);
        return NULL;
    }
    take_framing(proxy);
    take_connection(proxy);
    if (proxy->connection == NULL)
        abort();
    expect = field_of(proxy, "Expect");
    proxy->expects = expect != NULL && strcasecmp(expect, "100-continue") == 0 &&
                     (proxy->chunked || proxy->length > 0);
    if (!is_clean_target(proxy->target))
        proxy->complaint = "the request's path must begin with / and hold no blanks or control characters";
    if (!proxy_head_is_name(method, strlen(method)))
        proxy->complaint = "the request's method is not a word";
    return proxy;
}

void proxy_request_free(void *context)
{
    struct proxy_request *proxy = context;
    if (proxy == NULL)
        return;
    for (size_t i = 0; i < proxy->field_count; i++) {
        free(proxy->fields[i].name);
        free(proxy->fields[i].value);
    }
    free(proxy->fields);
    free(proxy->host);
    free(proxy->target);
    free(proxy->prefix);
    free(proxy->connection);
    free(proxy);
}

// Keys of our API begin so (keys.h); whoever sends one here has taken us for the API, and the guest must not
// get it.
static bool holds_our_key(const char *name, const char *value)
{
    if (proxy_token_holds_key(value))
        return true;
    if (strcasecmp(name, "X-API-Key") == 0)
        return strncmp(value, "e2b_", 4) == 0;
    if (strcasecmp(name, "Sec-WebSocket-Protocol") == 0)
        return strstr(value, "ramet.key.") != NULL; // gate.c
    if (strcasecmp(name, "Authorization") != 0)
        return false;
    size_t scheme = strcspn(value, " ");
    return strncmp(value + scheme + strspn(value + scheme, " "), "e2b_", 4) == 0 ||
           strncmp(value, "e2b_", 4) == 0;
}

static bool is_dropped(const struct proxy_request *proxy, const struct proxy_text_field *field)
{
    static const char *const own[] = {"Host", "Content-Length", "Expect", "Forwarded", "X-Forwarded-Proto",
            "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-For",
            URLS_PREVIEW_HEADER, NULL};
    for (size_t i = 0; own[i] != NULL; i++)
        if (strcasecmp(field->name, own[i]) == 0)
            return true;
    return proxy_head_is_hop(field->name, proxy->connection) || holds_our_key(field->name, field->value) ||
           (field->value[0] == '\0' &&
                   (strcasecmp(field->name, "Cookie") == 0 || strcasecmp(field->name, "Referer") == 0));
}

static void write_forwarded(const struct proxy_request *proxy, FILE *out, bool secure, const char *peer)
{
    const char *before = field_of(proxy, "X-Forwarded-For");
    bool both = before != NULL && before[0] != '\0' && peer[0] != '\0';
    if (before != NULL || peer[0] != '\0')
        fprintf(out, "X-Forwarded-For: %s%s%s\r\n", before == NULL ? "" : before, both ? ", " : "", peer);
    fprintf(out, "X-Forwarded-Proto: %s\r\n", secure ? "https" : "http");
    if (proxy->host[0] != '\0')
        fprintf(out, "X-Forwarded-Host: %s\r\n", proxy->host);
    if (proxy->prefix[0] != '\0')
        fprintf(out, "X-Forwarded-Prefix: %s\r\n", proxy->prefix);
}

char *proxy_request_head(const struct proxy_request *proxy, const char *method, bool secure, const char *peer,
        size_t *ret_size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_size);
    if (out == NULL)
        return NULL;
    fprintf(out, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, proxy->target, proxy->host);
    for (size_t i = 0; i < proxy->field_count; i++)
        if (!is_dropped(proxy, &proxy->fields[i]))
            fprintf(out, "%s: %s\r\n", proxy->fields[i].name, proxy->fields[i].value);
    write_forwarded(proxy, out, secure, peer);
    if (proxy->chunked)
        fputs("Transfer-Encoding: chunked\r\n", out);
    else if (proxy->length >= 0)
        fprintf(out, "Content-Length: %lld\r\n", (long long)proxy->length);
    if (proxy->expects)
        fputs("Expect: 100-continue\r\n", out);
    if (proxy->upgrade)
        fprintf(out, "Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", field_of(proxy, "Upgrade"));
    else
        fputs("Connection: close\r\n\r\n", out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

char *proxy_request_shown(const struct proxy_request *proxy, const char *url_id)
{
    char *text = NULL;
    int path = (int)strcspn(proxy->target, "?");
    if (asprintf(&text, "[%s]%.*s", url_id, path < 500 ? path : 500, proxy->target) < 0)
        return NULL;
    return text;
}
