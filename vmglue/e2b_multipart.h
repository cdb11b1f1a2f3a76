// SPDX-License-Identifier: Apache-2.0
// A multipart/form-data body (RFC 7578), read as it comes: part after part, each of any size.
//
// Threads: a request's own (HTTP_STREAM). Errors: -EINVAL with a sentence; a body that ends early is an
// error, never a short part.
#pragma once

#include "vmglue/http_server.h"

enum { E2B_MULTIPART_BUFFER = 65536, E2B_MULTIPART_BOUNDARY_MAX = 70, E2B_MULTIPART_NAME_MAX = 4096 };

struct e2b_multipart {
    struct http_request *request;
    char mark[E2B_MULTIPART_BOUNDARY_MAX + 5]; // "\r\n--" and the boundary
    size_t mark_size;
    char buffer[E2B_MULTIPART_BUFFER];
    size_t start, size; // what is in it
    bool in_part, failed, ended;
    char name[256], file_name[E2B_MULTIPART_NAME_MAX]; // of the part
};

int e2b_multipart_begin(struct e2b_multipart *body, struct http_request *request, struct error *err);
// 1: there is a part, and name and file_name ("" = none) are set; 0: that was the last.
int e2b_multipart_next(struct e2b_multipart *body, struct error *err);
// Bytes of the part; 0 at its end, -EINVAL when the body is damaged.
ssize_t e2b_multipart_read(struct e2b_multipart *body, void *buffer, size_t capacity);
