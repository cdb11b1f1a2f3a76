// SPDX-License-Identifier: Apache-2.0
#include "vmglue/route_json.h"

#include "snapshot/working_set.h"
#include "vmglue/agent_client.h"
#include "vmglue/json_fields.h"
#include "vmglue/made_by.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct owner_search {
    struct volume_id id;
    char *name;
};

static void look_for_owner(void *context, const struct doc *doc)
{
    struct owner_search *search = context;
    for (unsigned i = 0; i < doc->volume_count && search->name == NULL; i++)
        if (doc->volumes[i].value == search->id.value)
            search->name = strdup(doc->name);
}

// The name of the sandbox that owns a volume, or NULL; the result is malloc'ed.
static char *volume_owner(struct service *service, struct volume_id id)
{
    struct owner_search search = {.id = id};
    store_doc_list(service->store, DOC_SANDBOX, look_for_owner, &search);
    return search.name;
}

static json_t *id_or_null(const char *prefix, uint64_t id)
{
    char text[40];
    snprintf(text, sizeof text, "%s%" PRIu64, prefix, id);
    return id == 0 ? json_null() : json_string(text);
}

json_t *route_json_volume(struct service *service, const struct volume_info *info)
{
    char *owner = info->name[0] == '\0' ? volume_owner(service, info->id) : NULL;
    json_t *name = NULL;
    if (info->name[0] != '\0')
        name = json_string(info->name);
    else if (owner != NULL)
        name = json_sprintf("%s/%s", owner, info->kind == VOLUME_MEMORY ? "memory" : "disk");
    else
        name = json_null();
    json_t *json = json_pack("{s:o, s:o, s:s, s:I, s:o, s:o, s:o}", "id", id_or_null("vol_", info->id.value),
            "name", name, "kind", info->kind == VOLUME_MEMORY ? "memory" : "disk", "size_bytes",
            (json_int_t)info->size_bytes, "parent", id_or_null("base_", info->parent.value), "sandbox",
            owner == NULL ? json_null() : json_string(owner), "created_at",
            json_fields_time(info->created_wall_ns));
    struct made_by by = made_by_of_volume(service->store, info->id);
    if (by.owner[0] != '\0')
        json_object_set_new(json, "owner", json_string(by.owner));
    free(owner);
    return json;
}

json_t *route_json_volume_by_id(struct service *service, struct volume_id id)
{
    struct volume_info info;
    return store_volume_get(service->store, id, &info) == 0 ? route_json_volume(service, &info) : NULL;
}

static json_t *milliseconds(const json_t *figures, const char *name)
{
    return json_real((double)(json_fields_get_int(figures, name) / 1000) / 1000);
}

// What the capture measured and stored with the machine.
static void add_figures(json_t *json, const json_t *figures, uint64_t logical)
{
    if (!json_is_object(figures))
        return;
    json_int_t fresh = json_fields_get_int(figures, "bytes");
    json_object_set_new(json, "pause_ms", milliseconds(figures, "pause_ns"));
    json_object_set_new(json, "frozen_ms", milliseconds(figures, "freeze_ns"));
    json_object_set_new(json, "total_ms", milliseconds(figures, "total_ns"));
    json_object_set_new(json, "new_bytes", json_integer(fresh));
    json_object_set_new(
            json, "shared_bytes", json_integer((uint64_t)fresh > logical ? 0 : (json_int_t)logical - fresh));
    json_object_set_new(json, "unique", json_boolean(json_fields_get_bool(figures, "unique")));
}

json_t *route_json_snapshot(struct service *service, const struct doc *doc)
{
    bool machine = doc->kind == DOC_MACHINE;
    json_t *body = doc->body_bytes == 0 ? NULL : json_loadb(doc->body, doc->body_bytes, 0, NULL);
    json_t *json = json_pack("{s:o, s:s, s:s, s:s}", "id", id_or_null("snap_", doc->id.value), "name",
            doc->name, "kind", machine ? "machine" : "disk", "state",
            snapshot_state_is_ready(service->snapshots, doc->id) ? "ready" : "writing");
    uint64_t logical = 0, memory = 0;
    for (unsigned i = 0; i < doc->base_count; i++) {
        struct base_info base;
        if (store_base_get(service->store, doc->bases[i], &base) != 0)
            continue;
        if (base.kind == VOLUME_MEMORY && memory > 0)
            continue; // what its memory is likely to share most with
        logical += base.size_bytes;
        memory += base.kind == VOLUME_MEMORY ? base.size_bytes : 0;
    }
    json_object_set_new(json, "logical_bytes", json_integer((json_int_t)logical));
    if (machine) {
        static const char *const members[] = {
                "cpus", "memory_mb", "network", "template", "build", "defaults"};
        json_object_set_new(json, "memory_bytes", json_integer((json_int_t)memory));
        json_object_set_new(json, "working_set", json_boolean(working_set_exists(service->store, doc->id)));
        for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
            if (json_object_get(body, members[i]) != NULL)
                json_object_set(json, members[i], json_object_get(body, members[i]));
        add_figures(json, json_object_get(json_object_get(body, "machine"), "figures"), logical);
    }
    if (json_object_get(body, "labels") != NULL)
        json_object_set(json, "labels", json_object_get(body, "labels"));
    if (json_object_get(body, "owner") != NULL)
        json_object_set(json, "owner", json_object_get(body, "owner"));
    json_t *parent = json_object_get(body, "parent");
    json_object_set(json, "parent", parent == NULL ? json_null() : parent);
    if (json_object_get(body, "parent_id") != NULL)
        json_object_set(json, "parent_id", json_object_get(body, "parent_id"));
    json_object_set_new(json, "created_at", json_fields_time(doc->created_wall_ns));
    json_decref(body);
    return json;
}

json_t *route_json_snapshot_by_id(struct service *service, struct doc_id id)
{
    struct doc doc = {0};
    if (store_doc_get(service->store, id, &doc) != 0)
        return NULL;
    json_t *json = route_json_snapshot(service, &doc);
    doc_free(&doc);
    return json;
}

const char *route_json_path_name(struct http_request *request, char *buffer, size_t capacity)
{
    const char *part = http_request_param(request, "part");
    snprintf(buffer, capacity, "%s%s%s", http_request_param(request, "name"), part[0] == '\0' ? "" : "/",
            part);
    return buffer;
}

int route_json_body(
        struct http_request *request, const char *const *known, json_t **ret_body, struct error *err)
{
    int r = http_request_json(request, ret_body, err);
    return r < 0 ? r : json_fields_check(*ret_body, known, err);
}

int route_json_required(const json_t *body, const char *field, const char **ret_value, struct error *err)
{
    int r = json_fields_string(body, field, ret_value, err);
    if (r == 0)
        return error_set(err, -EINVAL, "field \"%s\" is missing", field);
    return r < 0 ? r : 0;
}

int route_json_query_uint(
        struct http_request *request, const char *name, uint64_t *ret_value, struct error *err)
{
    const char *text = http_request_query(request, name);
    if (text == NULL)
        return 0;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > INT64_MAX)
        return error_set(err, -EINVAL, "query parameter %s=%.40s is not a whole number", name, text);
    *ret_value = value;
    return 1;
}

int route_json_query_range(struct http_request *request, const char *name, uint64_t minimum, uint64_t maximum,
        uint64_t *ret_value, struct error *err)
{
    uint64_t value;
    int r = route_json_query_uint(request, name, &value, err);
    if (r <= 0)
        return r;
    if (value < minimum || value > maximum)
        return error_set(err, -EINVAL,
                "query parameter %s is %" PRIu64 "; it must be from %" PRIu64 " to %" PRIu64, name, value,
                minimum, maximum);
    *ret_value = value;
    return 1;
}

int route_json_query_flag(struct http_request *request, const char *name, bool *ret_value, struct error *err)
{
    const char *text = http_request_query(request, name);
    if (text == NULL)
        return 0;
    bool yes = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        return error_set(err, -EINVAL, "query parameter %s=%.40s must be 1 or 0", name, text);
    *ret_value = yes;
    return 1;
}

static json_t *log_json(const struct agent_job_log *log)
{
    return json_pack(
            "{s:I, s:I}", "first_offset", (json_int_t)log->first, "next_offset", (json_int_t)log->end);
}

json_t *route_json_job(const struct agent_job *job)
{
    json_t *json = json_pack("{s:I, s:o, s:o, s:s, s:i, s:o, s:o, s:I, s:o, s:o}", "id", (json_int_t)job->id,
            "name", job->name[0] == '\0' ? json_null() : json_fields_text(job->name, strlen(job->name)),
            "command", json_fields_text(job->command, strlen(job->command)), "state",
            job->running ? "running" : "ended", "pid", job->pid, "started_at",
            json_fields_time(job->started_ns), "ended_at", json_fields_time(job->ended_ns), "duration_ms",
            (json_int_t)job->duration_ms, "stdout", log_json(&job->out), "stderr", log_json(&job->err));
    if (job->running)
        return json;
    json_object_set_new(json, "exit_code", json_integer(job->exit_code));
    json_object_set_new(json, "timed_out", json_boolean(job->timed_out));
    if (job->signal != 0)
        json_object_set_new(json, "signal", json_integer(job->signal));
    if (job->out_of_memory)
        json_object_set_new(json, "out_of_memory", json_true());
    return json;
}
