// SPDX-License-Identifier: Apache-2.0
// Templates by name: list, show, remove, and the logs of the builds that made them.
#include "vmglue/template_internal.h"

#include "snapshot/working_set.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/template_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOG_MAX_BYTES = 2 * TEMPLATE_LOG_MAX_BYTES };

// The description of a template; NULL when the doc is none.
static json_t *template_body(const struct doc *doc)
{
    json_t *body = doc->body_bytes == 0 ? NULL : json_loadb(doc->body, doc->body_bytes, 0, NULL);
    if (json_fields_get_bool(body, "template") && doc->name[0] != '\0')
        return body;
    json_decref(body);
    return NULL;
}

struct list_context {
    struct service *service;
    json_t *list;
};

static void list_one(void *context, const struct doc *doc)
{
    struct list_context *list = context;
    json_t *body = template_body(doc);
    if (body != NULL)
        json_array_append_new(list->list, route_json_snapshot(list->service, doc));
    json_decref(body);
}

json_t *template_list(struct templates *all)
{
    struct list_context context = {all->config.service, json_array()};
    store_doc_list(all->store, DOC_MACHINE, list_one, &context);
    return json_pack("{s:o}", "templates", context.list);
}

// The template's doc and its description, both the caller's.
static int find(
        struct templates *all, const char *name, struct doc *ret_doc, json_t **ret_body, struct error *err)
{
    struct disks_ref ref;
    struct doc doc = {0};
    json_t *body = NULL;
    int r = strchr(name, '/') != NULL ? -ENOENT : disks_resolve(all->store, name, &ref);
    bool exists = r == 0;
    if (exists && ref.kind == DISKS_MACHINE && store_doc_get(all->store, ref.doc, &doc) == 0)
        body = template_body(&doc);
    if (body != NULL) {
        *ret_doc = doc;
        *ret_body = body;
        return 0;
    }
    doc_free(&doc);
    if (exists)
        return error_set(err, -ENOENT, "\"%.60s\" is a %s, not a template; `ramet template ls` lists those",
                name, ref.kind == DISKS_VOLUME ? "volume" : "snapshot");
    return error_set(err, -ENOENT,
            "there is no template called \"%.60s\"; `ramet template ls` lists them, `ramet template build` "
            "makes one",
            name);
}

int template_show(struct templates *all, const char *name, json_t **ret_json, struct error *err)
{
    struct doc doc;
    json_t *body;
    int r = find(all, name, &doc, &body, err);
    if (r < 0)
        return r;
    *ret_json = route_json_snapshot(all->config.service, &doc);
    doc_free(&doc);
    json_decref(body);
    return 0;
}

static void log_path(const struct templates *all, const char *id, char *ret_path)
{
    snprintf(ret_path, PATH_MAX, "%s/logs/%.40s", all->folder, id);
}

// "" when the body names none that could be a file's name.
static const char *build_id(const json_t *body)
{
    const char *id = json_fields_get_text(json_object_get(body, "build"), "id");
    return strncmp(id, "bld_", 4) == 0 && strchr(id, '/') == NULL ? id : "";
}

int template_log_of(struct templates *all, const char *name, char **ret_text, struct error *err)
{
    struct doc doc;
    json_t *body;
    char path[PATH_MAX];
    int r = find(all, name, &doc, &body, err);
    if (r < 0)
        return r;
    log_path(all, build_id(body), path);
    r = build_id(body)[0] == '\0' ? -ENOENT : template_files_read(path, LOG_MAX_BYTES, ret_text);
    doc_free(&doc);
    json_decref(body);
    if (r < 0)
        return error_set(err, r, "the log of template \"%.60s\" cannot be read: %s", name, strerror(-r));
    return 0;
}

int template_remove(struct templates *all, const char *name, struct error *err)
{
    struct doc doc;
    json_t *body;
    char path[PATH_MAX];
    int r = find(all, name, &doc, &body, err);
    if (r < 0)
        return r;
    struct txn *txn = txn_begin(all->store);
    txn_doc_delete(txn, doc.id);
    working_set_delete(all->store, txn, doc.id);
    r = txn_commit_wait(txn, TXN_DURABLE | TXN_RESERVE, err);
    log_path(all, build_id(body), path);
    if (r == 0 && build_id(body)[0] != '\0')
        unlink(path);
    doc_free(&doc);
    json_decref(body);
    return r;
}

static void collect_id(void *context, const struct doc *doc)
{
    json_t *ids = context, *body = template_body(doc);
    if (body != NULL)
        json_object_set_new(ids, build_id(body), json_true());
    json_decref(body);
}

void template_names_sweep_logs(struct templates *all)
{
    char path[PATH_MAX];
    JSON_AUTO json_t *ids = json_object();
    store_doc_list(all->store, DOC_MACHINE, collect_id, ids);
    snprintf(path, sizeof path, "%s/logs", all->folder);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        if (entry->d_name[0] != '.' && json_object_get(ids, entry->d_name) == NULL)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
}
