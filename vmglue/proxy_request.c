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
    proxy->upgrade = upgrade != NULL && strncasecmp(upgrade, "h2c", 3) != 0 && all != NULL &&
                     proxy_head_lists(all, "upgrade");
}

// Cuts "name=value" out of a list that `separator` divides; true: it was there and is a token.
static bool cut_pair(char *list, const char *name, char separator, char ret_value[URLS_TOKEN_SIZE])
{
    size_t size = strlen(name);
    for (char *pair = list; *pair != '\0';) {
        char *end = strchr(pair, separator), *begin = pair;
        size_t length = end == NULL ? strlen(pair) : (size_t)(end - pair);
        begin += strspn(begin, " ");
        if (strncmp(begin, name, size) == 0 && begin[size] == '=') {
            const char *value = begin + size + 1;
            bool token = length - (size_t)(value - pair) == URLS_TOKEN_SIZE - 1;
            if (token)
                snprintf(ret_value, URLS_TOKEN_SIZE, "%s", value);
            char *rest = end == NULL ? pair + length : end + 1;
            memmove(pair, rest, strlen(rest) + 1);
            size_t left = strlen(list); // no separator is left at the end
            while (left > 0 && (list[left - 1] == separator || list[left - 1] == ' '))
                list[--left] = '\0';
            return token;
        }
        if (end == NULL)
            return false;
        pair = end + 1;
    }
    return false;
}

// The token of a host PORT-SANDBOX.NAME, which the guest is not to see.
static bool take_preview_token(struct proxy_request *proxy)
{
    char *query = strchr(proxy->target, '?');
    if (query != NULL && cut_pair(query + 1, URLS_PREVIEW_NAME, '&', proxy->token)) {
        proxy->preview_set_cookie = true;
        if (query[1] == '\0')
            *query = '\0';
        return true;
    }
    for (size_t i = 0; i < proxy->field_count; i++) {
        struct proxy_text_field *field = &proxy->fields[i];
        if (strcasecmp(field->name, URLS_PREVIEW_HEADER) == 0 &&
                strlen(field->value) == URLS_TOKEN_SIZE - 1) {
            snprintf(proxy->token, sizeof proxy->token, "%s", field->value);
            return true;
        }
        if (strcasecmp(field->name, "Cookie") == 0 &&
                cut_pair(field->value, URLS_PREVIEW_NAME, ';', proxy->token))
            return true;
    }
    return false;
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
    size_t rest;
    if (urls_token_of_host(host, url_host, proxy->token)) {
        proxy->target = strdup(target);
        proxy->prefix = strdup("");
        return true;
    }
    if (urls_preview_of_host(host, url_host, &proxy->preview_port, proxy->preview_sandbox,
                sizeof proxy->preview_sandbox)) {
        proxy->target = strdup(target);
        proxy->prefix = strdup("");
        return proxy->target != NULL && take_preview_token(proxy);
    }
    if (!urls_token_of_target(target, proxy->token, &rest))
        return false;
    proxy->prefix = strndup(target, rest);
    proxy->redirect = target[rest] != '/';
    if (asprintf(&proxy->target, "%s%s", proxy->redirect ? "/" : "", target + rest) < 0)
        proxy->target = NULL;
    return true;
}

struct proxy_request *proxy_request_take(struct http_request *request, const char *url_host)
{
    const char *target = http_request_target(request), *method = http_request_method(request);
    const char *host = http_request_header(request, "Host");
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
    if (!take_form(proxy, target, host, url_host)) {
        proxy_request_free(proxy);
        return NULL;
    }
    proxy->host = strdup(host);
    take_framing(proxy);
    take_connection(proxy);
    if (proxy->target == NULL || proxy->prefix == NULL || proxy->host == NULL || proxy->connection == NULL)
        abort();
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
           (strcasecmp(field->name, "Cookie") == 0 && field->value[0] == '\0');
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
