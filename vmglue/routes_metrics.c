// SPDX-License-Identifier: Apache-2.0
// GET /v1/sandboxes/{name}/metrics, GET /v1/store/lineage.
#include "vmglue/lineage.h"
#include "vmglue/sandbox_metrics.h"

static const char *const no_query[] = {NULL};

static void get_metrics(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = http_request_check_query(request, no_query, &err);
    if (r == 0)
        r = sandbox_metrics(service_of(request)->sandboxes, http_request_param(request, "name"), &json, &err);
    if (r < 0)
        http_reply_failure(request, "sandbox", &err);
    else
        http_reply_json(request, 200, json);
}

static void get_lineage(struct http_request *request)
{
    struct error err;
    if (http_request_check_query(request, no_query, &err) < 0)
        http_reply_failure(request, "store", &err);
    else
        http_reply_json(request, 200, json_pack("{s:o}", "nodes", lineage_nodes(service_of(request))));
}

const struct http_route routes_metrics[] = {
        {"GET", "/v1/sandboxes/{name}/metrics", 0, get_metrics},
        {"GET", "/v1/store/lineage", 0, get_lineage},
        {0},
};
