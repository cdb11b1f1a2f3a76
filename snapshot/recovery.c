// SPDX-License-Identifier: Apache-2.0
// Rebuilding catalog and trees from the log's records, in order.
//
// A FREEZE record comes later than the first writes of the new epoch may: those stand between. So the first
// write of a higher epoch saves the root as it was, and the FREEZE record takes the saved one. A freeze that
// was never committed leaves a saved root that nobody takes; it goes at the end.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct saved_root {
    uint64_t volume;
    uint32_t first_epoch, last_epoch; // the volume was in this state when each of these epochs ended
    struct tree tree;
    struct saved_root *next;
};

int recovery_image(void *context, const void *bytes, size_t size, struct error *err)
{
    struct store *store = context;
    int r = catalog_decode_image(store, bytes, size);
    if (r < 0)
        error_set(err, r, "the catalog's image at the head of the log in %s cannot be read%s",
                store->directory, r == -EPROTO ? ": it was written by a newer version; use that one" : "");
    return r;
}

static void advance_epoch(struct store *store, struct volume *volume, uint32_t epoch)
{
    struct saved_root *saved = malloc(sizeof *saved);
    if (saved == NULL)
        abort();
    *saved = (struct saved_root){.volume = volume->info.id.value,
            .first_epoch = volume->epoch,
            .last_epoch = epoch - 1,
            .tree = tree_share(volume->tree),
            .next = store->saved};
    store->saved = saved;
    volume->owner = tree_new_owner(&store->space);
    volume->epoch = epoch;
    atomic_store(&volume->logged_epoch, epoch);
}

static struct tree root_at(struct store *store, struct volume *volume, uint32_t epoch)
{
    if (epoch >= volume->epoch)
        advance_epoch(store, volume, epoch + 1);
    for (struct saved_root **at = &store->saved; *at != NULL; at = &(*at)->next) {
        struct saved_root *saved = *at;
        if (saved->volume != volume->info.id.value || epoch < saved->first_epoch || epoch > saved->last_epoch)
            continue;
        struct tree tree = tree_share(saved->tree);
        if (epoch == saved->last_epoch) { // freezes of a volume are committed in the order of their epochs
            *at = saved->next;
            tree_drop(&store->space, &saved->tree);
            free(saved);
        }
        return tree;
    }
    // Frozen before the oldest file began: everything it held has been dropped since, or it would have kept
    // that file.
    return tree_empty(volume_blocks_of(volume->info.size_bytes));
}

static int apply_txn(struct store *store, const struct record *record, const void *body, locator_t first,
        struct error *err)
{
    struct txn_op *ops;
    unsigned count;
    int r = catalog_decode_ops(body, record->body_bytes, &ops, &count);
    if (r < 0)
        return error_set(err, r, "transaction record %llu of the log in %s cannot be read%s",
                (unsigned long long)record->seq, store->directory,
                r == -EPROTO ? ": it was written by a newer version; use that one" : "");
    // Operations are applied one at a time here: a freeze may follow the creation of its volume only in
    // another record.
    for (unsigned i = 0; i < count; i++) {
        struct volume *volume = catalog_volume(store, ops[i].id);
        if (ops[i].type == TXN_FREEZE && volume != NULL)
            ops[i].tree = root_at(store, volume, ops[i].epoch);
        if (ops[i].type == TXN_VOLUME_RESIZE && volume != NULL) {
            uint64_t blocks = volume_blocks_of(ops[i].size_bytes),
                     before = volume_blocks_of(volume->info.size_bytes);
            if (blocks < before)
                tree_fill(&store->space, &volume->tree, volume->owner, blocks, before - blocks,
                        LOCATOR_UNMAPPED);
            else
                tree_grow(&store->space, &volume->tree, volume->owner, blocks);
            atomic_store(&volume->size_bytes, ops[i].size_bytes);
        }
    }
    catalog_apply(store, ops, count, first);
    catalog_free_ops(ops, count);
    return 0;
}

int recovery_record(
        void *context, const struct record *record, const void *body, locator_t first, struct error *err)
{
    struct store *store = context;
    if (record->kind == RECORD_TXN)
        return apply_txn(store, record, body, first, err);
    struct volume *volume = catalog_volume(store, record->volume);
    if (volume == NULL) // deleted, in a file that has retired
        return 0;
    if (record->epoch > volume->epoch)
        advance_epoch(store, volume, record->epoch);
    uint64_t blocks = volume_blocks_of(volume->info.size_bytes);
    for (uint32_t i = 0; i < record->extent_count; i++) {
        const struct record_extent *extent = &record->extents[i];
        if (extent->block > blocks || extent->count > blocks - extent->block)
            return error_set(err, -EBADMSG, "record %llu of the log in %s writes outside volume %llu",
                    (unsigned long long)record->seq, store->directory, (unsigned long long)record->volume);
        if (record->kind == RECORD_WRITE)
            tree_put(&store->space, &volume->tree, volume->owner, extent->block, extent->count, first);
        else
            tree_fill(&store->space, &volume->tree, volume->owner, extent->block, extent->count,
                    record->kind == RECORD_ZERO ? LOCATOR_ZERO : LOCATOR_UNMAPPED);
        first = locator_next(first, extent->count);
    }
    return 0;
}

void recovery_finish(struct store *store)
{
    for (struct saved_root *saved = store->saved, *next; saved != NULL; saved = next) {
        next = saved->next;
        tree_drop(&store->space, &saved->tree);
        free(saved);
    }
    store->saved = NULL;
}
