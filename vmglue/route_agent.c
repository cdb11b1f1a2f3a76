// SPDX-License-Identifier: Apache-2.0
#include "vmglue/route_agent.h"

static bool is_over(void *context)
{
    return sandbox_agent_is_over(context);
}

int route_agent_use(
        struct http_request *request, const char *name, struct sandbox_agent *ret_use, struct error *err)
{
    int r = sandbox_agent_use(service_of(request)->sandboxes, name, ret_use, err);
    if (r == 0)
        http_request_until(request, is_over, ret_use);
    return r;
}

void route_agent_done(struct http_request *request, struct sandbox_agent *use)
{
    http_request_until(request, NULL, NULL);
    sandbox_agent_done(use);
}
