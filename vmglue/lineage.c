// SPDX-License-Identifier: Apache-2.0
// Snapshots know the id of the sandbox they were taken of; forks know their parent's. Others know the name of
// what they were made from. A sandbox that was restored to a snapshot of itself would be its own ancestor: of
// such a ring the oldest hangs nowhere.
#include "vmglue/lineage.h"

#include "vmglue/json_fields.h"
#include "vmglue/route_json.h"
#include "vmglue/sandbox.h"

#include <stdlib.h>
#include <string.h>

struct list {
    struct service *service;
    json_t *nodes, *by_id, *by_name; // by_name: of snapshots, templates and volumes
};

static const char *text_of(const json_t *node, const char *field)
{
    return json_fields_get_text(node, field);
}

static void add(struct list *list, json_t *node)
{
    json_object_set(list->by_id, text_of(node, "id"), node);
    if (strcmp(text_of(node, "kind"), "sandbox") != 0)
        json_object_set(list->by_name, text_of(node, "name"), node);
    json_array_append_new(list->nodes, node);
}

// Fields of what the API shows elsewhere, as they are.
static json_t *node_of(const json_t *shown, const char *kind, const char *const *fields)
{
    json_t *node = json_pack("{s:s}", "kind", kind);
    for (size_t i = 0; fields[i] != NULL; i++)
        if (json_object_get(shown, fields[i]) != NULL)
            json_object_set(node, fields[i], json_object_get(shown, fields[i]));
    return node;
}

static void add_snapshot(void *context, const struct doc *doc)
{
    static const char *const fields[] = {
            "id", "name", "state", "created_at", "logical_bytes", "new_bytes", "parent_id", NULL};
    struct list *list = context;
    if (doc->name[0] == '\0')
        return; // an inner step of a fork or a stop
    JSON_AUTO json_t *shown = route_json_snapshot(list->service, doc);
    json_t *node =
            node_of(shown, json_object_get(shown, "template") != NULL ? "template" : "snapshot", fields);
    if (json_object_get(shown, "parent") != NULL)
        json_object_set(node, "from", json_object_get(shown, "parent"));
    add(list, node);
}

static void add_sandboxes(struct list *list)
{
    static const char *const fields[] = {
            "id", "name", "state", "created_at", "tree_id", "parent_id", "from", NULL};
    JSON_AUTO json_t *sandboxes = sandbox_list(list->service->sandboxes, NULL, NULL, NULL);
    size_t i;
    json_t *shown;
    json_array_foreach(sandboxes, i, shown)
    {
        json_t *node = node_of(shown, "sandbox", fields);
        json_object_set(node, "logical_bytes", json_object_get(shown, "disk_bytes"));
        add(list, node);
    }
}

// Whether `ancestor` is reached from the node by parents that are set.
static bool descends(const struct list *list, const char *node, const char *ancestor)
{
    while (node[0] != '\0') {
        if (strcmp(node, ancestor) == 0)
            return true;
        node = text_of(json_object_get(list->by_id, node), "parent");
    }
    return false;
}

static void find_parent(const struct list *list, json_t *node)
{
    const char *id = text_of(node, "id");
    const json_t *parent = json_object_get(list->by_id, text_of(node, "parent_id"));
    bool is_fork = text_of(node, "parent_id")[0] != '\0';
    if (!is_fork && strcmp(text_of(node, "kind"), "sandbox") == 0)
        parent = json_object_get(list->by_name, text_of(node, "from"));
    const char *parent_id = text_of(parent, "id");
    if (parent_id[0] == '\0' || descends(list, parent_id, id))
        json_object_set_new(node, "parent", json_null());
    else
        json_object_set_new(node, "parent", json_string(parent_id));
    json_object_del(node, "parent_id");
}

static int is_older(const void *a, const void *b)
{
    const json_t *const *one = a, *const *other = b;
    int order = strcmp(text_of(*one, "created_at"), text_of(*other, "created_at"));
    return order != 0 ? order : strcmp(text_of(*one, "id"), text_of(*other, "id"));
}

static json_t *in_order(json_t *nodes)
{
    size_t count = json_array_size(nodes);
    json_t **order = calloc(count + 1, sizeof *order), *list = json_array();
    if (order == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        order[i] = json_array_get(nodes, i);
    qsort(order, count, sizeof *order, is_older);
    for (size_t i = 0; i < count; i++)
        json_array_append(list, order[i]);
    free(order);
    return list;
}

json_t *lineage_nodes(struct service *service)
{
    struct list list = {service, json_array(), json_object(), json_object()};
    size_t i;
    store_doc_list(service->store, DOC_SNAPSHOT, add_snapshot, &list);
    store_doc_list(service->store, DOC_MACHINE, add_snapshot, &list);
    add_sandboxes(&list);
    json_t *ordered = in_order(list.nodes);
    for (i = json_array_size(ordered); i > 0; i--) // so the ring is seen at its oldest
        find_parent(&list, json_array_get(ordered, i - 1));
    json_decref(list.nodes);
    json_decref(list.by_id);
    json_decref(list.by_name);
    return ordered;
}
