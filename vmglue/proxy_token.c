// SPDX-License-Identifier: Apache-2.0
#include "vmglue/proxy_token.h"

#include "vmglue/hex.h"
#include "vmglue/keys.h"

#include <string.h>
#include <strings.h>

enum { TOKEN_DIGITS = URLS_TOKEN_SIZE - 1, KEY_DIGITS = KEYS_SECRET_SIZE - 5, LOOKUP_DIGITS = 16 };

void proxy_token_add(struct proxy_tokens *tokens, const char *text, size_t size)
{
    char token[URLS_TOKEN_SIZE];
    if (tokens == NULL || tokens->count == PROXY_TOKENS_MAX || !urls_token_parse(text, size, token))
        return;
    for (unsigned i = 0; i < tokens->count; i++)
        if (strcmp(tokens->list[i], token) == 0)
            return;
    memcpy(tokens->list[tokens->count++], token, sizeof token);
}

// What a decoder of percent signs makes of it. Cut where it is longer than anything of ours.
static size_t decode(const char *text, size_t size, char *ret_text, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < size && used < capacity; i++) {
        int byte = text[i] == '%' && i + 2 < size ? hex_byte(text + i + 1) : -1;
        ret_text[used++] = byte < 0 ? text[i] : (char)byte;
        i += byte < 0 ? 0 : 2;
    }
    return used;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static void trim(const char **text, size_t *size)
{
    while (*size > 0 && is_blank((*text)[0])) {
        (*text)++;
        (*size)--;
    }
    while (*size > 0 && is_blank((*text)[*size - 1]))
        (*size)--;
}

// Whether "name=value" is ours; then its value is added.
static bool take_pair(const char *pair, size_t size, bool coded, struct proxy_tokens *tokens)
{
    char name[sizeof URLS_PREVIEW_NAME + 1], value[TOKEN_DIGITS + 1];
    const char *equals = memchr(pair, '=', size), *text = pair;
    size_t name_size = equals == NULL ? size : (size_t)(equals - pair);
    trim(&text, &name_size);
    name_size = decode(text, name_size, name, sizeof name);
    if (name_size != sizeof URLS_PREVIEW_NAME - 1 || strncasecmp(name, URLS_PREVIEW_NAME, name_size) != 0)
        return false;
    if (equals == NULL)
        return true;
    text = equals + 1;
    size_t value_size = size - (size_t)(text - pair);
    trim(&text, &value_size);
    if (!coded && value_size >= 2 && text[0] == '"' && text[value_size - 1] == '"') {
        text++;
        value_size -= 2;
    }
    value_size = decode(text, value_size, value, sizeof value);
    proxy_token_add(tokens, value, value_size);
    return true;
}

// Of a list of pairs that `separator` divides. What stays stays as it was, one after the other.
static void cut(char *list, char separator, struct proxy_tokens *tokens)
{
    char *out = list;
    bool any = false, dropped = false;
    for (char *pair = list, *next; pair != NULL; pair = next) {
        char *end = strchr(pair, separator);
        size_t size = end == NULL ? strlen(pair) : (size_t)(end - pair);
        next = end == NULL ? NULL : end + 1;
        if (take_pair(pair, size, separator == '&', tokens)) {
            dropped = true;
            continue;
        }
        if (any)
            *out++ = separator;
        else if (dropped) // the first that stays has nobody before it
            while (size > 0 && separator == ';' && is_blank(*pair)) {
                pair++;
                size--;
            }
        memmove(out, pair, size);
        out += size;
        any = true;
    }
    *out = '\0';
}

void proxy_token_cut_query(char *query, struct proxy_tokens *tokens)
{
    cut(query, '&', tokens);
}

void proxy_token_cut_cookies(char *value, struct proxy_tokens *tokens)
{
    cut(value, ';', tokens);
}

void proxy_token_cut_address(char *address, struct proxy_tokens *tokens)
{
    char *query = strchr(address, '?'), *end = address + strlen(address);
    if (query == NULL)
        return;
    char *fragment = strchr(query, '#'), *rest = fragment == NULL ? end : fragment;
    size_t rest_size = (size_t)(end - rest) + 1;
    char kept = *rest;
    *rest = '\0';
    cut(query + 1, '&', tokens);
    size_t left = strlen(query + 1);
    *rest = kept;
    char *to = left == 0 ? query : query + 1 + left; // no question without a query
    memmove(to, rest, rest_size);
}

bool proxy_token_is_cookie(const char *value)
{
    return take_pair(value, strcspn(value, ";"), false, NULL);
}

void proxy_token_hide(char *text, const struct proxy_tokens *tokens)
{
    size_t size = strlen(text);
    for (size_t at = 0; at + TOKEN_DIGITS <= size; at++)
        for (unsigned i = 0; i < tokens->count; i++)
            if (strncasecmp(text + at, tokens->list[i], TOKEN_DIGITS) == 0)
                memset(text + at, 'x', TOKEN_DIGITS);
}

bool proxy_token_holds_key(const char *text)
{
    for (const char *at = text; (at = strchr(at, '_')) != NULL; at++) {
        size_t digits = strspn(at + 1, "0123456789abcdefABCDEF");
        if (at - text < 3)
            continue;
        if ((strncmp(at - 3, "e2b", 3) == 0 && digits >= KEY_DIGITS) ||
                (strncmp(at - 3, "rmt", 3) == 0 && digits == LOOKUP_DIGITS && at[1 + digits] == '_'))
            return true;
    }
    return false;
}
