// SPDX-License-Identifier: Apache-2.0
#include "vmglue/access.h"

#include "vmglue/gate.h"

#include <string.h>

static const char *const rule_names[] = {
        [ACCESS_UNKNOWN] = "unknown",
        [ACCESS_NONE] = "none",
        [ACCESS_ANY] = "any",
        [ACCESS_SANDBOX] = "sandbox",
        [ACCESS_DATA] = "data",
        [ACCESS_SOURCE] = "source",
};

const char *access_rule_name(enum access_rule rule)
{
    return rule_names[rule];
}

const struct keys_info *access_restricted(struct http_request *request)
{
    const struct keys_info *key = gate_key(request);
    return key == NULL || key->preset == KEYS_ADMIN ? NULL : key;
}

// ---- the check ----

static bool refuse(struct http_request *request, const struct keys_info *key, const char *why)
{
    http_reply_error(request, 403, "auth.forbidden", "the key \"%s\" (preset %s) may not call %s %s: %s",
            key->name, keys_preset_name(key->preset), http_request_method(request),
            http_request_route(request)->pattern, why);
    return false;
}

static bool allow_ci(struct http_request *request, const struct keys_info *key, const struct access_row *row)
{
    switch (row == NULL ? ACCESS_UNKNOWN : row->ci) {
    case ACCESS_ANY:
        return true;
    case ACCESS_UNKNOWN:
    case ACCESS_NONE:
    default:
        return refuse(request, key, "it concerns more than what this key made; use an admin key");
    }
}

bool access_allow(struct http_request *request)
{
    const struct keys_info *key = access_restricted(request);
    const struct http_route *route = http_request_route(request);
    if (key == NULL)
        return true;
    const struct access_row *row = access_find(route->method, route->pattern);
    if (key->preset == KEYS_CI)
        return allow_ci(request, key, row);
    if (row != NULL && row->read)
        return true;
    return refuse(request, key,
            "it changes something, shows contents or reaches into a machine; use an admin or ci key");
}
