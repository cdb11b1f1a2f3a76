// SPDX-License-Identifier: Apache-2.0
// /openapi.json.
#include "vmglue/openapi.h"
#include "vmglue/service.h"

static void get_openapi(struct http_request *request)
{
    http_reply_begin(request, 200, "application/json", (int64_t)openapi_document_size);
    http_reply_write(request, openapi_document, openapi_document_size);
}

const struct http_route routes_openapi[] = {
        {"GET", "/openapi.json", HTTP_STREAM | HTTP_OPEN, get_openapi},
        {0},
};
