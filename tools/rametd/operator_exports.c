// SPDX-License-Identifier: Apache-2.0
// An export name is what the command line takes: "web" (a volume, or a snapshot, never both), "vol_7",
// "snap_9", "NAME/disk" (a sandbox's disk, read-only) and "NAME/memory" (of a machine snapshot).
#include "tools/rametd/operator_exports.h"

#include "vmglue/disks.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const kind_words[] = {
        [DISKS_VOLUME] = "volume",
        [DISKS_SNAPSHOT] = "snapshot of a volume, read-only",
        [DISKS_MACHINE] = "of a machine snapshot, read-only",
        [DISKS_SANDBOX_DISK] = "disk of a sandbox, read-only",
};

static void resolve(void *context, const char *name, struct nbd_export *ret_export)
{
    struct disks_ref ref;
    if (disks_resolve(context, name, &ref) != 0)
        return;
    *ret_export = (struct nbd_export){
            .found = true, .read_only = ref.read_only, .volume = ref.volume, .base = ref.base};
    snprintf(ret_export->description, sizeof ret_export->description, "%s, %" PRIu64 " bytes",
            kind_words[ref.kind], ref.size_bytes);
}

struct list_context {
    void (*each)(void *context, const char *name, const char *description);
    void *context;
    struct store *store;
};

static void list_volume(void *context, const struct volume_info *info)
{
    const struct list_context *list = context;
    char words[NBD_EXPORT_DESCRIPTION_MAX + 1];
    if (info->name[0] == '\0')
        return;
    snprintf(words, sizeof words, "%s, %" PRIu64 " bytes", kind_words[DISKS_VOLUME], info->size_bytes);
    list->each(list->context, info->name, words);
}

static void list_doc(void *context, const struct doc *doc)
{
    const struct list_context *list = context;
    char words[NBD_EXPORT_DESCRIPTION_MAX + 1];
    struct base_info base;
    unsigned disk = doc->kind == DOC_MACHINE ? 1 : 0; // a machine's memory comes first
    if (doc->name[0] == '\0' || disk >= doc->base_count ||
            store_base_get(list->store, doc->bases[disk], &base) != 0)
        return;
    snprintf(words, sizeof words, "%s, %" PRIu64 " bytes",
            kind_words[doc->kind == DOC_MACHINE ? DISKS_MACHINE : DISKS_SNAPSHOT], base.size_bytes);
    list->each(list->context, doc->name, words);
}

static void list_all(void *context,
        void (*each)(void *each_context, const char *name, const char *description), void *each_context)
{
    struct list_context list = {each, each_context, context};
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
