// SPDX-License-Identifier: Apache-2.0
// The description of the API (OpenAPI 3.1, JSON), made at build time of the fragments in openapi/ (README.md
// there). Constant: any thread.
#pragma once

#include <stddef.h>

extern const char openapi_document[]; // not terminated
extern const size_t openapi_document_size;

// The query parameters that a call takes: the server refuses others (http_request_check_documented).
struct openapi_query {
    const char *method, *pattern; // as in a route; NULL ends the list
    const char *const *names;     // NULL-terminated
};
extern const struct openapi_query openapi_queries[];
