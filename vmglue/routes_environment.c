// SPDX-License-Identifier: Apache-2.0
// /v1/environment: variables for the commands of every sandbox. For admin keys alone, since it shows values.
#include "vmglue/environment.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"

#include <errno.h>

static void reply(struct http_request *request, int result, json_t *env, const struct error *err)
{
    if (result < 0) {
        http_reply_failure(request, "environment", err);
        return;
    }
    http_reply_header(request, "Cache-Control", "no-store");
    http_reply_json(request, 200, json_pack("{s:o}", "env", env));
}

static void show_environment(struct http_request *request)
{
    static const char *const no_query[] = {NULL};
    struct error err;
    int r = http_request_check_query(request, no_query, &err);
    reply(request, r, r < 0 ? NULL : environment_get(service_of(request)->environment), &err);
}

// Values that are no strings: in a change, null removes.
static int check_values(const json_t *env, struct error *err)
{
    JSON_AUTO json_t *strings = json_object(), *wrapped = json_object();
    const json_t *unused;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)env, key, value)
    {
        if (!json_is_null(value))
            json_object_set(strings, key, value);
    }
    json_object_set(wrapped, "env", strings);
    int r = json_fields_string_map(wrapped, "env", &unused, err);
    return r < 0 ? r : 0;
}

static void change(struct http_request *request, bool merge)
{
    static const char *const known[] = {"env", NULL};
    const json_t *env = NULL;
    json_t *body, *now = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r == 0 && merge && json_is_object(json_object_get(body, "env"))) {
        env = json_object_get(body, "env");
        r = check_values(env, &err);
    } else if (r == 0) {
        r = json_fields_string_map(body, "env", &env, &err);
    }
    if (r >= 0 && env == NULL)
        r = error_set(&err, -EINVAL,
                "field \"env\" is missing: an object of strings, such as {\"LANG\":\"C.UTF-8\"}");
    if (r >= 0)
        r = environment_set(service_of(request)->environment, env, merge, &now, &err);
    reply(request, r, now, &err);
}

static void replace_environment(struct http_request *request)
{
    change(request, false);
}

static void change_environment(struct http_request *request)
{
    change(request, true);
}

const struct http_route routes_environment[] = {
        {"GET", "/v1/environment", HTTP_ADMIN, show_environment},
        {"PUT", "/v1/environment", HTTP_ADMIN, replace_environment},
        {"PATCH", "/v1/environment", HTTP_ADMIN, change_environment},
        {0},
};
