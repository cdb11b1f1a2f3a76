// SPDX-License-Identifier: Apache-2.0
// How things look in the API's JSON (API.md). Every function returns a new object, or NULL when there is no
// memory. Threads: any.
#pragma once

#include "vmglue/json.h"
#include "vmglue/service.h"

json_t *route_json_volume(struct service *service, const struct volume_info *info);
json_t *route_json_volume_by_id(struct service *service, struct volume_id id);
// A DOC_SNAPSHOT or DOC_MACHINE.
json_t *route_json_snapshot(struct service *service, const struct doc *doc);
json_t *route_json_snapshot_by_id(struct service *service, struct doc_id id);
struct agent_job;
json_t *route_json_job(const struct agent_job *job);
// What the path names: {name}, or {name}/{part} ("web/disk"). At least STORE_NAME_MAX + 1 bytes.
const char *route_json_path_name(struct http_request *request, char *buffer, size_t capacity);
// The body as an object that holds nothing but the fields of the NULL-terminated list. 0, or -EINVAL with
// *err.
int route_json_body(
        struct http_request *request, const char *const *known, json_t **ret_body, struct error *err);
// A field that is a string and must be there. 0, or -EINVAL with *err.
int route_json_required(const json_t *body, const char *field, const char **ret_value, struct error *err);
// A query parameter that is a size or count. 0 not given, 1 given, -EINVAL with *err.
int route_json_query_uint(
        struct http_request *request, const char *name, uint64_t *ret_value, struct error *err);
// The same that is a number from minimum to maximum.
int route_json_query_range(struct http_request *request, const char *name, uint64_t minimum, uint64_t maximum,
        uint64_t *ret_value, struct error *err);
// A query parameter that is 1 or 0 (true, false). 0 not given, 1 given, -EINVAL with *err.
int route_json_query_flag(struct http_request *request, const char *name, bool *ret_value, struct error *err);
