// SPDX-License-Identifier: Apache-2.0
// /v1/pool: what waits to be handed out.
#include "vmglue/route_json.h"
#include "vmglue/sandbox_pool.h"

static void show_pool(struct http_request *request)
{
    http_reply_json(request, 200, sandbox_pool_json(service_of(request)->sandboxes));
}

const struct http_route routes_pool[] = {{"GET", "/v1/pool", 0, show_pool}, {0}};
