// SPDX-License-Identifier: Apache-2.0
// /v1/sandboxes: create, list, show, stop, start, snapshot, fork, rm. The rest of their life: routes_life.c.
#include "vmglue/access.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/route_life.h"
#include "vmglue/route_shape.h"
#include "vmglue/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int take_disk(const json_t *item, size_t index, struct sandbox_create_disk *disk, struct error *err)
{
    static const char *const known[] = {"volume", "size_gb", "read_only", "mount", NULL};
    uint64_t gib = 0;
    int r = json_fields_check(item, known, err);
    if (r >= 0)
        r = json_fields_string(item, "volume", &disk->volume, err);
    if (r >= 0)
        r = json_fields_uint(item, "size_gb", 1, 1 << 26, &gib, err);
    if (r >= 0)
        r = json_fields_bool(item, "read_only", &disk->read_only, err);
    if (r >= 0)
        r = json_fields_string(item, "mount", &disk->mount, err);
    if (r >= 0 && (disk->volume == NULL) == (gib == 0))
        r = error_set(err, -EINVAL,
                "give either \"volume\" (it becomes a fork of it) or \"size_gb\" (it is empty)");
    if (r >= 0 && disk->volume == NULL && disk->read_only)
        r = error_set(err, -EINVAL, "an empty disk that is read_only is of no use");
    if (r < 0)
        error_prefix(err, "field \"disks\"[%zu]", index);
    disk->size_bytes = gib << 30;
    return r < 0 ? r : 0;
}

static int take_disks(const json_t *body, struct sandbox_create_disk disks[VM_DISKS_MAX],
        struct sandbox_create *create, struct error *err)
{
    const json_t *list = json_object_get(body, "disks"), *item;
    size_t i;
    if (list == NULL || json_is_null(list))
        return 0;
    if (!json_is_array(list) || json_array_size(list) >= VM_DISKS_MAX)
        return error_set(err, -EINVAL,
                "field \"disks\" must be a list of at most %d objects, such as "
                "{\"size_gb\":1,\"mount\":\"/data\"}",
                VM_DISKS_MAX - 1);
    json_array_foreach(list, i, item)
    {
        int r = take_disk(item, i, &disks[i], err);
        if (r < 0)
            return r;
        create->disk_count++;
    }
    create->disks = disks;
    return 0;
}

static void create_sandbox(struct http_request *request)
{
    static const char *const known[] = {"name", "from", "size", "cpus", "memory_mb", "disk_gb", "labels",
            "env", "environment", "network", "ttl_secs", "idle_secs", "persistent", "on_timeout",
            "auto_start", "disks", NULL};
    struct sandbox_create create = {0};
    struct sandbox_create_disk disks[VM_DISKS_MAX] = {0};
    struct sandbox_change life = {0};
    struct route_shape shape = {0};
    struct error err;
    json_t *body, *json = NULL;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &create.name, &err);
    if (r >= 0)
        r = json_fields_string(body, "from", &create.from, &err);
    if (r >= 0)
        create.network = json_object_get(body, "network");
    if (r >= 0)
        r = route_shape_take(body, &shape, &err);
    create.cpus = shape.cpus;
    create.memory_mb = shape.memory_mb;
    create.disk_bytes = shape.disk_bytes;
    create.size_is_wish = shape.by_name;
    if (r >= 0)
        r = route_life_maps(body, &create.labels, &create.env, &err);
    if (r >= 0)
        r = route_life_fields(body, &life, &err);
    if (r >= 0)
        r = take_disks(body, disks, &create, &err);
    bool environment = true;
    if (r >= 0)
        r = json_fields_bool(body, "environment", &environment, &err);
    create.no_environment = !environment;
    create.ttl_ms = life.ttl_ms;
    create.idle_ms = life.idle_ms;
    create.persistent = life.persistent;
    create.delete_on_timeout = life.delete_on_timeout;
    create.auto_start = life.auto_start;
    if (r >= 0 && create.from == NULL) {
        create.from = SANDBOX_DEFAULT_SOURCE;
        if (access_is_foreign(request, create.from))
            r = error_set(&err, -ENOENT,
                    "what is called \"%s\" here is a thing of one of the keys, and nothing to start from by "
                    "default; say from what with the field \"from\"",
                    create.from);
    }
    if (r >= 0)
        r = access_check_source(request, create.from, &err);
    for (unsigned i = 0; r >= 0 && i < create.disk_count; i++)
        r = access_check_data(request, disks[i].volume, &err);
    create.by = access_made_by(request);
    if (r >= 0)
        r = sandbox_create(service_of(request)->sandboxes, &create, &json, &err);
    if (r < 0) // what was not found is what it was to be made from
        http_reply_failure(request, r == -ENOENT ? "source" : "sandbox", &err);
    else
        http_reply_json(request, 201, json);
}

static int check_filter(const char *state, const char *label, struct error *err)
{
    static const char *const states[] = {
            "creating", "starting", "running", "paused", "stopping", "stopped", "failed", "removing"};
    size_t i = 0, count = sizeof states / sizeof states[0];
    while (state != NULL && i < count && strcmp(states[i], state) != 0)
        i++;
    if (i == count)
        return error_set(err, -EINVAL,
                "query parameter state=%.40s is no state; there are creating, starting, running, paused, "
                "stopping, stopped, failed and removing",
                state);
    if (label != NULL && label[0] == '\0')
        return error_set(err, -EINVAL, "query parameter label is empty; it is KEY or KEY=VALUE");
    return 0;
}

static void list_sandboxes(struct http_request *request)
{
    static const char *const known[] = {"state", "label", NULL};
    struct error err;
    if (http_request_check_query(request, known, &err) < 0 ||
            check_filter(http_request_query(request, "state"), http_request_query(request, "label"), &err) <
                    0) {
        http_reply_failure(request, "sandbox", &err);
        return;
    }
    json_t *list = sandbox_list(service_of(request)->sandboxes, http_request_query(request, "state"),
            http_request_query(request, "label"), access_owner(request));
    http_reply_json(request, 200, json_pack("{s:o}", "sandboxes", list));
}

static void reply(struct http_request *request, int result, int status, json_t *json, const struct error *err)
{
    if (result < 0)
        http_reply_failure(request, "sandbox", err);
    else
        http_reply_json(request, status, json);
}

static void show_sandbox(struct http_request *request)
{
    json_t *json = NULL;
    struct error err;
    int r = sandbox_show(service_of(request)->sandboxes, http_request_param(request, "name"), &json, &err);
    reply(request, r, 200, json, &err);
}

static void remove_sandbox(struct http_request *request)
{
    struct error err;
    if (sandbox_remove(service_of(request)->sandboxes, http_request_param(request, "name"), &err) < 0)
        http_reply_failure(request, "sandbox", &err);
    else
        http_reply_empty(request, 204);
}

static void stop_sandbox(struct http_request *request)
{
    static const char *const known[] = {"memory", "force", NULL};
    bool memory = true, force = false;
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_bool(body, "memory", &memory, &err);
    if (r >= 0)
        r = json_fields_bool(body, "force", &force, &err);
    if (r >= 0)
        r = sandbox_stop(service_of(request)->sandboxes, http_request_param(request, "name"), memory, force,
                &json, &err);
    reply(request, r, 200, json, &err);
}

static void start_sandbox(struct http_request *request)
{
    static const char *const known[] = {"cold", NULL};
    bool cold = false;
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_bool(body, "cold", &cold, &err);
    if (r >= 0)
        r = sandbox_start(
                service_of(request)->sandboxes, http_request_param(request, "name"), cold, &json, &err);
    reply(request, r, 200, json, &err);
}

static void snapshot_sandbox(struct http_request *request)
{
    static const char *const known[] = {"name", "labels", "wait", "best_effort", NULL};
    struct sandbox_snapshot snapshot = {0};
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_string(body, "name", &snapshot.name, &err);
    if (r >= 0)
        r = json_fields_string_map(body, "labels", &snapshot.labels, &err);
    if (r >= 0)
        r = json_fields_bool(body, "wait", &snapshot.wait, &err);
    if (r >= 0)
        r = json_fields_bool(body, "best_effort", &snapshot.best_effort, &err);
    snapshot.by = access_made_by(request);
    if (r >= 0)
        r = sandbox_snapshot(
                service_of(request)->sandboxes, http_request_param(request, "name"), &snapshot, &json, &err);
    reply(request, r, 201, json, &err);
}

static int take_names(const json_t *body, struct sandbox_fork *fork, struct error *err)
{
    json_t *names = json_object_get(body, "names");
    if (names == NULL || json_is_null(names))
        return 0;
    if (!json_is_array(names))
        return error_set(err, -EINVAL, "field \"names\" must be a list of strings");
    size_t count = json_array_size(names);
    if (count == 0)
        return error_set(err, -EINVAL, "field \"names\" is empty; leave it out, or name each child");
    if (json_object_get(body, "count") == NULL || json_is_null(json_object_get(body, "count")))
        fork->count = (unsigned)(count > SANDBOX_FORKS_MAX ? SANDBOX_FORKS_MAX + 1 : count);
    if (count != fork->count)
        return error_set(err, -EINVAL,
                "field \"names\" has %zu names, but count is %u; they must agree and be at most %d", count,
                fork->count, SANDBOX_FORKS_MAX);
    for (size_t i = 0; i < count; i++) {
        fork->names[i] = json_string_value(json_array_get(names, i));
        if (fork->names[i] == NULL)
            return error_set(
                    err, -EINVAL, "field \"names\" must be a list of strings; number %zu is none", i + 1);
        for (size_t before = 0; before < i; before++) {
            if (strcmp(fork->names[before], fork->names[i]) == 0)
                return error_set(err, -EINVAL, "field \"names\" has \"%.60s\" twice", fork->names[i]);
        }
    }
    return 0;
}

static void fork_sandbox(struct http_request *request)
{
    static const char *const known[] = {"count", "names", "labels", "env", "snapshot", "best_effort", NULL};
    struct sandbox_fork fork = {0};
    uint64_t count = 1;
    json_t *body, *json = NULL;
    struct error err;
    int r = route_json_body(request, known, &body, &err);
    if (r >= 0)
        r = json_fields_uint(body, "count", 1, SANDBOX_FORKS_MAX, &count, &err);
    fork.count = (unsigned)count;
    if (r >= 0)
        r = take_names(body, &fork, &err);
    if (r >= 0)
        r = route_life_maps(body, &fork.labels, &fork.env, &err);
    if (r >= 0)
        r = json_fields_string(body, "snapshot", &fork.snapshot, &err);
    if (r >= 0)
        r = json_fields_bool(body, "best_effort", &fork.best_effort, &err);
    fork.by = access_made_by(request);
    if (r >= 0)
        r = sandbox_fork(
                service_of(request)->sandboxes, http_request_param(request, "name"), &fork, &json, &err);
    reply(request, r, 201, json, &err);
}

const struct http_route routes_sandboxes[] = {
        {"POST", "/v1/sandboxes", HTTP_CREATES, create_sandbox},
        {"GET", "/v1/sandboxes", 0, list_sandboxes},
        {"GET", "/v1/sandboxes/{name}", 0, show_sandbox},
        {"DELETE", "/v1/sandboxes/{name}", 0, remove_sandbox},
        {"POST", "/v1/sandboxes/{name}/stop", 0, stop_sandbox},
        {"POST", "/v1/sandboxes/{name}/start", 0, start_sandbox},
        {"POST", "/v1/sandboxes/{name}/snapshots", HTTP_CREATES, snapshot_sandbox},
        {"POST", "/v1/sandboxes/{name}/fork", HTTP_CREATES, fork_sandbox},
        {0},
};

#define NATIVE                                                                                               \
    routes_store, routes_archives, routes_maintenance, routes_transfers, routes_ranges, routes_volumes,      \
            routes_snapshots, routes_memory, routes_pool, routes_prometheus, routes_urls,                    \
            routes_environment, routes_metrics, routes_sandboxes, routes_life, routes_events, routes_exec,   \
            routes_jobs, routes_pty, routes_files, routes_watch, routes_ports, routes_contexts,              \
            routes_templates, routes_keys, routes_openapi
const struct http_route *const routes_all[] = {NATIVE, NULL};
const struct http_route *const routes_served[] = {NATIVE, routes_e2b_process, routes_e2b_files,
        routes_e2b_watch, routes_e2b_code, routes_pandastack_build, NULL};
