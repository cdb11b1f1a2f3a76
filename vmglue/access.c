// SPDX-License-Identifier: Apache-2.0
#include "vmglue/access.h"

#include "vmglue/gate.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox.h"
#include "vmglue/service.h"
#include "vmglue/template.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const rule_names[] = {
        [ACCESS_UNKNOWN] = "unknown",
        [ACCESS_NONE] = "none",
        [ACCESS_ANY] = "any",
        [ACCESS_SANDBOX] = "sandbox",
        [ACCESS_DATA] = "data",
        [ACCESS_SOURCE] = "source",
        [ACCESS_BUILD] = "build",
};

const char *access_rule_name(enum access_rule rule)
{
    return rule_names[rule];
}

// Who asks, when that is not one from whom nothing is hidden.
static const struct keys_info *restricted(struct http_request *request)
{
    const struct keys_info *key = gate_key(request);
    return key == NULL || key->preset == KEYS_ADMIN ? NULL : key;
}

const char *access_owner(struct http_request *request)
{
    const struct keys_info *key = restricted(request);
    return key == NULL || key->preset != KEYS_CI ? NULL : key->id;
}

struct made_by access_made_by(struct http_request *request)
{
    struct made_by by = {0};
    const char *owner = access_owner(request);
    if (owner != NULL)
        snprintf(by.owner, sizeof by.owner, "%s", owner);
    snprintf(by.request, sizeof by.request, "%s", gate_request_tag(request));
    return by;
}

// ---- whose a thing is ----

static int no_such_data(const char *name, struct error *err)
{
    return error_set(err, -ENOENT,
            "there is no volume or snapshot called \"%.80s\"; `ramet template ls`, `ramet volume ls` and "
            "`ramet snapshots` list "
            "what there is",
            name);
}

static bool is_template(const json_t *body)
{
    return json_fields_get_bool(body, "template");
}

bool access_sees_doc(struct http_request *request, const struct doc *doc)
{
    const char *owner = access_owner(request);
    if (owner == NULL)
        return true;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    const char *its = json_fields_get_text(body, "owner");
    return strcmp(its, owner) == 0 || (its[0] == '\0' && is_template(body));
}

// Of what a sandbox consists of is seen by who sees the sandbox.
struct volume_search {
    struct volume_id id;
    struct made_by by;
    bool found;
};

static void look_for_volume(void *context, const struct doc *doc)
{
    struct volume_search *search = context;
    for (unsigned i = 0; i < doc->volume_count && !search->found; i++) {
        if (doc->volumes[i].value != search->id.value)
            continue;
        JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
        search->by = made_by_take(body);
        search->found = true;
    }
}

bool access_sees_volume(struct http_request *request, const struct volume_info *info)
{
    struct service *service = service_of(request);
    const char *owner = access_owner(request);
    struct volume_search search = {.id = info->id};
    if (owner == NULL)
        return true;
    if (info->name[0] != '\0')
        search.by = made_by_of_volume(service->store, info->id);
    else
        store_doc_list(service->store, DOC_SANDBOX, look_for_volume, &search);
    return strcmp(search.by.owner, owner) == 0;
}

void access_filter(struct http_request *request, json_t *list, bool nobodys)
{
    const char *owner = access_owner(request);
    for (size_t i = json_array_size(list); owner != NULL && i > 0; i--) {
        const char *its = json_fields_get_text(json_array_get(list, i - 1), "owner");
        if (strcmp(its, owner) != 0 && !(nobodys && its[0] == '\0'))
            json_array_remove(list, i - 1);
    }
}

bool access_sees_owned(struct http_request *request, const json_t *event)
{
    const char *owner = access_owner(request);
    return owner == NULL || json_object_get(event, "sandbox_id") == NULL || // a gap: it is everybody's
           strcmp(json_fields_get_text(event, "owner"), owner) == 0;
}

// templates: one that is nobody's will do. *ret_id (may be NULL) is what the name means, as an id.
static int check_data(struct http_request *request, const char *owner, const char *name, bool templates,
        char ret_id[ACCESS_ID_SIZE], struct error *err)
{
    struct service *service = service_of(request);
    struct disks_ref ref;
    struct doc doc = {0};
    if (disks_resolve(service->store, name, &ref) < 0)
        return no_such_data(name, err);
    struct made_by by = disks_made_by(&service->disks, &ref);
    bool good = strcmp(by.owner, owner) == 0 ||
                (templates && by.owner[0] == '\0' && strcmp(name, SANDBOX_DEFAULT_SOURCE) == 0);
    if (!good && templates && by.owner[0] == '\0' && ref.kind == DISKS_MACHINE && strchr(name, '/') == NULL &&
            store_doc_get(service->store, ref.doc, &doc) == 0) {
        JSON_AUTO json_t *body = json_loadb(doc.body, doc.body_bytes, 0, NULL);
        good = is_template(body);
        doc_free(&doc);
    }
    if (!good)
        return no_such_data(name, err);
    if (ret_id != NULL && ref.kind == DISKS_VOLUME)
        snprintf(ret_id, ACCESS_ID_SIZE, "vol_%" PRIu64, ref.volume.value);
    else if (ret_id != NULL)
        snprintf(ret_id, ACCESS_ID_SIZE, "snap_%" PRIu64, ref.doc.value);
    return 0;
}

static int use(struct http_request *request, const char **name, bool templates, char buffer[ACCESS_ID_SIZE],
        struct error *err)
{
    const char *owner = access_owner(request);
    int r = owner == NULL || *name == NULL ? 0 : check_data(request, owner, *name, templates, buffer, err);
    // A part of something ("web/disk") has no id of its own.
    if (owner != NULL && *name != NULL && r == 0 && strchr(*name, '/') == NULL)
        *name = buffer;
    return r;
}

int access_use_data(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err)
{
    return use(request, name, false, buffer, err);
}

int access_use_source(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err)
{
    return use(request, name, true, buffer, err);
}

int access_check_data(struct http_request *request, const char *name, struct error *err)
{
    const char *owner = access_owner(request);
    return owner == NULL || name == NULL ? 0 : check_data(request, owner, name, false, NULL, err);
}

bool access_is_foreign(struct http_request *request, const char *name)
{
    struct service *service = service_of(request);
    const char *owner = access_owner(request);
    struct disks_ref ref;
    if (disks_resolve(service->store, name, &ref) < 0)
        return false;
    struct made_by by = disks_made_by(&service->disks, &ref);
    return by.owner[0] != '\0' && (owner == NULL || strcmp(by.owner, owner) != 0);
}

int access_check_source(struct http_request *request, const char *name, struct error *err)
{
    const char *owner = access_owner(request);
    return owner == NULL || name == NULL ? 0 : check_data(request, owner, name, true, NULL, err);
}

// ---- the check in front of the handler ----

static bool refuse(struct http_request *request, const struct keys_info *key, const char *why)
{
    http_reply_error(request, 403, "auth.forbidden", "the key \"%s\" (preset %s) may not call %s %s: %s",
            key->name, keys_preset_name(key->preset), http_request_method(request),
            http_request_route(request)->pattern, why);
    return false;
}

static int check_sandbox(struct http_request *request, const char *owner, const char *name,
        char ret_id[ACCESS_ID_SIZE], struct error *err)
{
    struct made_by by;
    int r = sandbox_made_by(service_of(request)->sandboxes, name, &by, ret_id, err);
    if (r == 0 && strcmp(by.owner, owner) != 0)
        r = error_set(err, -ENOENT, "there is no sandbox called \"%.80s\"; `ramet ls` lists them", name);
    return r;
}

int access_use_sandbox(
        struct http_request *request, const char **name, char buffer[ACCESS_ID_SIZE], struct error *err)
{
    const char *owner = access_owner(request);
    int r = owner == NULL ? 0 : check_sandbox(request, owner, *name, buffer, err);
    if (owner != NULL && r == 0)
        *name = buffer;
    return r;
}

static bool allow_build(struct http_request *request, const struct keys_info *key)
{
    const char *id = http_request_param(request, "id");
    struct templates *templates = service_of(request)->templates;
    struct made_by by;
    struct error err;
    bool own = template_build_made_by(templates, id, &by, &err) == 0 && strcmp(by.owner, key->id) == 0;
    if (!own)
        http_reply_error(request, 404, "build.not_found",
                "this key has no build \"%.40s\"; the daemon remembers the last that ended since it started",
                id);
    return own;
}

static bool allow_sandbox(struct http_request *request, const struct keys_info *key)
{
    char id[ACCESS_ID_SIZE];
    struct error err;
    int r = check_sandbox(request, key->id, http_request_param(request, "name"), id, &err);
    if (r < 0)
        http_reply_failure(request, "sandbox", &err);
    else
        http_request_set_param(request, "name", id);
    return r == 0;
}

// What the errors of these calls call it.
static const char *kind_of(const char *pattern)
{
    return strncmp(pattern, "/v1/snapshots", 13) == 0   ? "snapshot"
           : strncmp(pattern, "/v1/templates", 13) == 0 ? "template"
                                                        : "volume";
}

// {name} alone, or NAME/disk of a sandbox and NAME/memory of a machine snapshot.
static bool allow_data(struct http_request *request, const struct keys_info *key, bool templates)
{
    const char *name = http_request_param(request, "name"), *part = http_request_param(request, "part");
    char full[STORE_NAME_MAX + 1], id[ACCESS_ID_SIZE];
    struct error err;
    int r;
    if (strcmp(part, "disk") == 0) {
        r = check_sandbox(request, key->id, name, id, &err);
    } else {
        int size = snprintf(full, sizeof full, "%s%s%s", name, part[0] == '\0' ? "" : "/", part);
        r = size >= (int)sizeof full ? no_such_data("that", &err)
                                     : check_data(request, key->id, full, templates, id, &err);
    }
    if (r == -ENOENT)
        no_such_data(name, &err);
    if (r < 0) {
        http_reply_failure(request, kind_of(http_request_route(request)->pattern), &err);
        return false;
    }
    http_request_set_param(request, "name", id);
    return true;
}

static bool allow_ci(struct http_request *request, const struct keys_info *key, const struct access_row *row)
{
    switch (row == NULL ? ACCESS_UNKNOWN : row->ci) {
    case ACCESS_ANY:
        return true;
    case ACCESS_SANDBOX:
        return allow_sandbox(request, key);
    case ACCESS_DATA:
        return allow_data(request, key, false);
    case ACCESS_SOURCE:
        return allow_data(request, key, true);
    case ACCESS_BUILD:
        return allow_build(request, key);
    case ACCESS_UNKNOWN:
    case ACCESS_NONE:
    default:
        return refuse(request, key, "it concerns more than what this key made; use an admin key");
    }
}

bool access_allow(struct http_request *request)
{
    const struct keys_info *key = restricted(request);
    const struct http_route *route = http_request_route(request);
    if (key == NULL)
        return true;
    const struct access_row *row = access_find(route->method, route->pattern);
    if (key->preset == KEYS_CI)
        return allow_ci(request, key, row);
    if (row != NULL && row->read)
        return true;
    bool for_ci = row != NULL && row->ci != ACCESS_NONE && row->ci != ACCESS_UNKNOWN;
    return refuse(request, key,
            for_ci ? "it changes something, shows contents or reaches into a machine; use an admin or ci key"
                   : "it changes something or shows contents; use an admin key");
}
