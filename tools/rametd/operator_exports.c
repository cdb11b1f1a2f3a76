// SPDX-License-Identifier: Apache-2.0
// An export name is what the command line takes: "web" (a volume, or a snapshot, never both), "vol_7",
// "snap_9", "NAME/disk" (a sandbox's disk, read-only) and "NAME/memory" (of a machine snapshot).
#include "tools/rametd/operator_exports.h"

#include "vmglue/disks.h"

static void resolve(void *context, const char *name, struct nbd_export *ret_export)
{
    struct disks_ref ref;
    if (disks_resolve(context, name, &ref) == 0)
        *ret_export = (struct nbd_export){
                .found = true, .read_only = ref.read_only, .volume = ref.volume, .base = ref.base};
}

struct list_context {
    void (*each)(void *context, const char *name);
    void *context;
};

static void list_volume(void *context, const struct volume_info *info)
{
    const struct list_context *list = context;
    if (info->name[0] != '\0')
        list->each(list->context, info->name);
}

static void list_doc(void *context, const struct doc *doc)
{
    const struct list_context *list = context;
    if (doc->name[0] != '\0')
        list->each(list->context, doc->name);
}

static void list_all(void *context, void (*each)(void *each_context, const char *name), void *each_context)
{
    struct list_context list = {each, each_context};
    store_volume_list(context, list_volume, &list);
    store_doc_list(context, DOC_SNAPSHOT, list_doc, &list);
    store_doc_list(context, DOC_MACHINE, list_doc, &list);
}

int operator_exports_start(
        struct store *store, int listen_fd, struct nbd_server **ret_server, struct error *err)
{
    struct nbd_server_config config = {.store = store,
            .loop = store_loop(store, 0),
            .listen_fd = listen_fd,
            .resolve = resolve,
            .list = list_all,
            .context = store};
    return nbd_server_start(&config, ret_server, err);
}
