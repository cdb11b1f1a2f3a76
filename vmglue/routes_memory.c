// SPDX-License-Identifier: Apache-2.0
// /v1/memory.
#include "vmglue/sandbox_memory.h"
#include "vmglue/service.h"

static void get_memory(struct http_request *request)
{
    http_reply_json(request, 200, sandbox_memory_report(service_of(request)->sandboxes));
}

const struct http_route routes_memory[] = {
        {"GET", "/v1/memory", 0, get_memory},
        {0},
};
