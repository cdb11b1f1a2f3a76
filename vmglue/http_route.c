// SPDX-License-Identifier: Apache-2.0
#include "vmglue/http_route.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool http_route_matches(const char *pattern, const char *path, struct http_param params[HTTP_PARAMS_MAX])
{
    unsigned count = 0;
    while (*pattern != '\0') {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t name_size = strcspn(pattern + 1, "}"), value_size = strcspn(path, "/");
        if (value_size == 0 || value_size >= sizeof params[0].value || count == HTTP_PARAMS_MAX)
            return false;
        params[count].name = pattern + 1;
        params[count].name_size = name_size;
        memcpy(params[count].value, path, value_size);
        params[count].value[value_size] = '\0';
        count++;
        pattern += name_size + 2;
        path += value_size;
    }
    return *path == '\0';
}

static unsigned count_params(const struct http_param params[HTTP_PARAMS_MAX])
{
    unsigned count = 0;
    while (count < HTTP_PARAMS_MAX && params[count].name != NULL)
        count++;
    return count;
}

static void add_method(char *allow, size_t capacity, const char *method)
{
    size_t used = strlen(allow);
    if (strstr(allow, method) == NULL)
        snprintf(allow + used, capacity - used, "%s%s", used == 0 ? "" : ", ", method);
}

const struct http_route *http_route_find(const struct http_route *const *tables, const char *method,
        const char *path, struct http_param params[HTTP_PARAMS_MAX], int *ret_status, char *ret_allow,
        size_t allow_capacity)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    const struct http_route *best = NULL;
    unsigned fewest = HTTP_PARAMS_MAX + 1;
    *ret_status = 404;
    ret_allow[0] = '\0';
    for (size_t t = 0; tables[t] != NULL; t++) {
        for (const struct http_route *route = tables[t]; route->method != NULL; route++) {
            struct http_param found[HTTP_PARAMS_MAX] = {0};
            if (!http_route_matches(route->pattern, path, found) || count_params(found) > fewest)
                continue;
            if (count_params(found) < fewest) {
                best = NULL;
                ret_allow[0] = '\0';
            }
            fewest = count_params(found);
            *ret_status = 405;
            add_method(ret_allow, allow_capacity, route->method);
            if (best != NULL || strcmp(route->method, wanted) != 0)
                continue;
            best = route;
            memcpy(params, found, sizeof found);
        }
    }
    return best;
}

int http_route_status(const char *kind, int code, char *ret_code, size_t code_capacity, bool *ret_retryable)
{
    static const struct {
        int code, status;
        const char *word; // "%s" is the kind
        bool retryable;
    } known[] = {
            {-ENOENT, 404, "%s.not_found", false},
            {-EEXIST, 409, "%s.conflict", false},
            {-EBUSY, 409, "%s.invalid_state", false},
            {-ESHUTDOWN, 409, "%s.ended", false},
            {-EINVAL, 400, "validation.invalid", false},
            {-ENAMETOOLONG, 400, "validation.invalid", false},
            {-ERANGE, 400, "validation.invalid", false},
            {-EISDIR, 400, "validation.invalid", false},
            {-ENOTDIR, 400, "validation.invalid", false},
            {-ENOTEMPTY, 400, "validation.invalid", false},
            {-EACCES, 403, "auth.forbidden", false},
            {-EPERM, 403, "auth.forbidden", false},
            {-EROFS, 403, "auth.forbidden", false},
            {-EFBIG, 413, "validation.too_large", false},
            {-E2BIG, 413, "validation.too_large", false},
            {-ENOSPC, 507, "capacity.storage", false},
            {-EDQUOT, 507, "capacity.storage", false},
            {-EOPNOTSUPP, 409, "%s.unsupported", false},
            {-ENOMEM, 503, "capacity.memory", true},
            {-EAGAIN, 503, "capacity.busy", true},
            {-ESTALE, 503, "capacity.store_stopped", false},
            {-EPIPE, 503, "capacity.guest_gone", true},
            {-ETIMEDOUT, 503, "capacity.timeout", true},
            {-EBADMSG, 500, "internal.damaged", false},
            {-EPROTO, 500, "internal.protocol", false},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].code != code)
            continue;
        const char *word = known[i].word;
        if (strncmp(word, "%s", 2) == 0)
            snprintf(ret_code, code_capacity, "%s%s", kind, word + 2);
        else
            snprintf(ret_code, code_capacity, "%s", word);
        *ret_retryable = known[i].retryable;
        return known[i].status;
    }
    snprintf(ret_code, code_capacity, "internal.error");
    *ret_retryable = false;
    return 500;
}
