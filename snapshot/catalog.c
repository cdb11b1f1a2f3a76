// SPDX-License-Identifier: Apache-2.0
// The catalog in memory: rows in arrays by ascending id, the rules of what may change, and the one place
// where changes are applied, live and at recovery.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// ---- Arrays of pointers by id ----

static uint64_t id_at(void **rows, unsigned i, size_t id_offset)
{
    return *(const uint64_t *)((const char *)rows[i] + id_offset);
}

// Index of the first row whose id is >= id.
static unsigned lower_bound(void **rows, unsigned count, size_t id_offset, uint64_t id)
{
    unsigned low = 0, high = count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (id_at(rows, middle, id_offset) < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void *find(void **rows, unsigned count, size_t id_offset, uint64_t id)
{
    unsigned i = lower_bound(rows, count, id_offset, id);
    return i < count && id_at(rows, i, id_offset) == id ? rows[i] : NULL;
}

static void insert(void ***rows, unsigned *count, unsigned *capacity, size_t id_offset, void *row)
{
    if (*count == *capacity) {
        *capacity = *capacity == 0 ? 16 : *capacity * 2;
        *rows = realloc(*rows, *capacity * sizeof **rows);
        if (*rows == NULL)
            abort();
    }
    unsigned i = lower_bound(*rows, *count, id_offset, *(const uint64_t *)((const char *)row + id_offset));
    memmove(*rows + i + 1, *rows + i, (*count - i) * sizeof **rows);
    (*rows)[i] = row;
    (*count)++;
}

static void erase(void **rows, unsigned *count, size_t id_offset, uint64_t id)
{
    unsigned i = lower_bound(rows, *count, id_offset, id);
    (*count)--;
    memmove(rows + i, rows + i + 1, (*count - i) * sizeof *rows);
}

#define VOLUME_ID_AT offsetof(struct volume, info.id.value)
#define BASE_ID_AT offsetof(struct base, info.id.value)
#define DOC_ID_AT offsetof(struct doc_row, doc.id.value)

struct volume *catalog_volume(struct store *store, uint64_t id)
{
    return find((void **)store->catalog.volumes, store->catalog.volume_count, VOLUME_ID_AT, id);
}

struct base *catalog_base(struct store *store, uint64_t id)
{
    return find((void **)store->catalog.bases, store->catalog.base_count, BASE_ID_AT, id);
}

struct doc_row *catalog_doc(struct store *store, uint64_t id)
{
    return find((void **)store->catalog.docs, store->catalog.doc_count, DOC_ID_AT, id);
}

struct volume *catalog_volume_named(struct store *store, const char *name)
{
    for (unsigned i = 0; i < store->catalog.volume_count; i++)
        if (strcmp(store->catalog.volumes[i]->info.name, name) == 0)
            return store->catalog.volumes[i];
    return NULL;
}

struct doc_row *catalog_doc_named(struct store *store, enum doc_kind kind, const char *name)
{
    for (unsigned i = 0; i < store->catalog.doc_count; i++) {
        struct doc_row *row = store->catalog.docs[i];
        if (row->doc.kind == kind && strcmp(row->doc.name, name) == 0)
            return row;
    }
    return NULL;
}

// ---- Rows ----

static void note_id(struct store *store, uint64_t id)
{
    if (id >= store->catalog.next_id)
        store->catalog.next_id = id + 1;
}

struct volume *catalog_volume_add(
        struct store *store, const struct volume_info *info, struct tree tree, uint32_t epoch)
{
    struct volume *volume = calloc(1, sizeof *volume);
    if (volume == NULL)
        abort();
    volume->store = store;
    volume->loop = store->loops[info->id.value % store->loop_count];
    volume->info = *info;
    atomic_store(&volume->size_bytes, info->size_bytes);
    volume->tree = tree;
    volume->owner = tree_new_owner(&store->space);
    volume->epoch = epoch;
    atomic_store(&volume->logged_epoch, epoch);
    volume->clean_file = store->cut_file;
    volume->freezes_tail = &volume->freezes;
    volume->parked_tail = &volume->parked;
    insert((void ***)&store->catalog.volumes, &store->catalog.volume_count, &store->catalog.volume_capacity,
            VOLUME_ID_AT, volume);
    note_id(store, info->id.value);
    return volume;
}

struct base *catalog_base_add(struct store *store, const struct base_info *info, struct tree tree)
{
    struct base *base = calloc(1, sizeof *base);
    if (base == NULL)
        abort();
    base->store = store;
    base->info = *info;
    base->tree = tree;
    base->clean_file = store->cut_file;
    base->listed = true;
    insert((void ***)&store->catalog.bases, &store->catalog.base_count, &store->catalog.base_capacity,
            BASE_ID_AT, base);
    note_id(store, info->id.value);
    return base;
}

// These may be dead now.
static void gone(struct store *store, uint64_t blocks)
{
    atomic_fetch_add(&store->space.changed_blocks, blocks);
}

void catalog_base_release(struct store *store, struct base *base)
{
    if (base->doc_refs > 0 || base->opens > 0)
        return;
    if (base->listed)
        erase((void **)store->catalog.bases, &store->catalog.base_count, BASE_ID_AT, base->info.id.value);
    gone(store, volume_blocks_of(base->info.size_bytes));
    tree_drop(&store->space, &base->tree);
    free(base);
}

int doc_copy(const struct doc *doc, struct doc *ret_doc)
{
    struct doc copy = *doc;
    copy.body = malloc(doc->body_bytes + 1);
    if (copy.body == NULL)
        abort();
    if (doc->body_bytes > 0)
        memcpy(copy.body, doc->body, doc->body_bytes);
    copy.body[doc->body_bytes] = 0;
    *ret_doc = copy;
    return 0;
}

void doc_free(struct doc *doc)
{
    if (doc != NULL) {
        free(doc->body);
        doc->body = NULL;
    }
}

static void doc_take_refs(struct store *store, const struct doc *doc)
{
    for (unsigned i = 0; i < doc->base_count; i++) {
        struct base *base = catalog_base(store, doc->bases[i].value);
        if (base != NULL)
            base->doc_refs++;
    }
    for (unsigned i = 0; i < doc->volume_count; i++) {
        struct volume *volume = catalog_volume(store, doc->volumes[i].value);
        if (volume != NULL)
            volume->doc_refs++;
    }
}

static void doc_give_refs(struct store *store, const struct doc *doc)
{
    for (unsigned i = 0; i < doc->base_count; i++) {
        struct base *base = catalog_base(store, doc->bases[i].value);
        if (base != NULL) {
            base->doc_refs--; // swept at the end of the transaction: a later operation may name it again
            store->catalog.sweep = true;
        }
    }
    for (unsigned i = 0; i < doc->volume_count; i++) {
        struct volume *volume = catalog_volume(store, doc->volumes[i].value);
        if (volume != NULL)
            volume->doc_refs--;
    }
}

static uint64_t blob_blocks(const struct doc *doc)
{
    return (doc->blob_bytes + BLOCK_SIZE - 1) >> BLOCK_SHIFT;
}

// A blob in the log holds references on its file; one in a segment is kept by being a root of collections.
static void blob_refs(struct store *store, locator_t first, const struct doc *doc, bool take)
{
    if (!locator_is_log(first) || store->space.log == NULL)
        return;
    if (take)
        log_ref(store->space.log, first, blob_blocks(doc));
    else
        log_unref(store->space.log, first, blob_blocks(doc));
}

void catalog_doc_move_blob(struct store *store, struct doc_row *row, locator_t first)
{
    blob_refs(store, row->blob_first, &row->doc, false);
    row->blob_first = first;
    blob_refs(store, first, &row->doc, true);
}

struct doc_row *catalog_doc_add(struct store *store, const struct doc *doc, locator_t blob_first)
{
    struct doc_row *row = calloc(1, sizeof *row);
    if (row == NULL)
        abort();
    doc_copy(doc, &row->doc);
    row->blob_first = blob_first;
    blob_refs(store, blob_first, doc, true);
    insert((void ***)&store->catalog.docs, &store->catalog.doc_count, &store->catalog.doc_capacity, DOC_ID_AT,
            row);
    store->catalog.doc_bytes += row->doc.body_bytes;
    doc_take_refs(store, &row->doc);
    note_id(store, doc->id.value);
    return row;
}

static void doc_remove(struct store *store, struct doc_row *row)
{
    erase((void **)store->catalog.docs, &store->catalog.doc_count, DOC_ID_AT, row->doc.id.value);
    store->catalog.doc_bytes -= row->doc.body_bytes;
    doc_give_refs(store, &row->doc);
    blob_refs(store, row->blob_first, &row->doc, false);
    gone(store, blob_blocks(&row->doc));
    doc_free(&row->doc);
    free(row);
}

// ---- Changes ----

static void apply_create(struct store *store, const struct txn_op *op)
{
    struct volume_info info = {.id = {op->id},
            .kind = op->kind,
            .size_bytes = op->size_bytes,
            .parent = {op->base},
            .created_wall_ns = op->wall_ns,
            .domain = op->domain == DOMAIN_OF_PARENT ? 0 : op->domain};
    memcpy(info.name, op->name, sizeof info.name);
    struct tree tree = tree_empty(volume_blocks_of(op->size_bytes));
    struct base *parent = op->base != 0 ? catalog_base(store, op->base) : NULL;
    uint64_t clean_file = store->cut_file;
    if (parent != NULL) {
        clean_file = parent->clean_file;
        if (op->domain == DOMAIN_OF_PARENT)
            info.domain = parent->info.domain;
        tree = tree_share(tree_look(&parent->tree));
        tree_grow(&store->space, &tree, tree_new_owner(&store->space), volume_blocks_of(op->size_bytes));
    }
    catalog_volume_add(store, &info, tree, 1)->clean_file = clean_file;
}

static void apply_delete(struct store *store, const struct txn_op *op)
{
    struct volume *volume = catalog_volume(store, op->id);
    if (volume == NULL)
        return;
    erase((void **)store->catalog.volumes, &store->catalog.volume_count, VOLUME_ID_AT, op->id);
    gone(store, volume_blocks_of(volume->info.size_bytes));
    tree_drop(&store->space, &volume->tree);
    free(volume);
}

static void apply_freeze(struct store *store, struct txn_op *op)
{
    struct volume *volume = catalog_volume(store, op->id);
    struct base_info info = {.id = {op->base},
            .size_bytes = op->size_bytes,
            .source = {op->id},
            .created_wall_ns = op->wall_ns};
    if (volume != NULL) {
        info.kind = volume->info.kind;
        info.domain = volume->info.domain;
        info.parent = volume->info.parent;
        volume->info.parent.value = op->base;
        if (atomic_load(&volume->logged_epoch) <= op->epoch)
            atomic_store(&volume->logged_epoch, op->epoch + 1);
    }
    struct base *base = catalog_base_add(store, &info, op->tree);
    if (volume != NULL)
        base->clean_file = volume->clean_file;
    store->catalog.sweep = true;
    op->tree = tree_empty(1);
}

static void apply_doc_put(struct store *store, const struct txn_op *op, locator_t payload_first)
{
    struct doc doc = op->doc;
    doc.id.value = op->id;
    doc.created_wall_ns = op->wall_ns;
    doc.blob_bytes = op->blob_bytes;
    locator_t blob = op->blob_bytes > 0 ? locator_next(payload_first, op->blob_block) : 0;
    struct doc_row *old = catalog_doc(store, op->id);
    if (old == NULL) {
        catalog_doc_add(store, &doc, blob);
        return;
    }
    doc.created_wall_ns = old->doc.created_wall_ns;
    if (blob == 0) { // the blob stays
        blob = old->blob_first;
        doc.blob_bytes = old->doc.blob_bytes;
    }
    doc_take_refs(store, &doc); // before the old ones go, so that what both name stays
    struct doc before = old->doc;
    uint64_t blob_before = old->blob_first;
    store->catalog.doc_bytes += doc.body_bytes - before.body_bytes;
    doc_copy(&doc, &old->doc);
    old->blob_first = blob;
    blob_refs(store, blob, &doc, true);
    blob_refs(store, blob_before, &before, false);
    gone(store, blob == blob_before ? 0 : blob_blocks(&before));
    doc_give_refs(store, &before);
    doc_free(&before);
}

void catalog_apply(struct store *store, struct txn_op *ops, unsigned count, locator_t payload_first)
{
    for (unsigned i = 0; i < count; i++) {
        struct txn_op *op = &ops[i];
        struct volume *volume = catalog_volume(store, op->id);
        struct doc_row *row;
        switch (op->type) {
        case TXN_VOLUME_CREATE:
            apply_create(store, op);
            break;
        case TXN_VOLUME_DELETE:
            apply_delete(store, op);
            break;
        case TXN_VOLUME_RESIZE:
            if (volume != NULL)
                volume->info.size_bytes = op->size_bytes;
            break;
        case TXN_VOLUME_RENAME:
            if (volume != NULL)
                memcpy(volume->info.name, op->name, sizeof volume->info.name);
            break;
        case TXN_FREEZE:
            apply_freeze(store, op);
            break;
        case TXN_DOC_PUT:
            apply_doc_put(store, op, payload_first);
            break;
        case TXN_DOC_DELETE:
            if ((row = catalog_doc(store, op->id)) != NULL)
                doc_remove(store, row);
            break;
        }
    }
    if (!store->catalog.sweep)
        return;
    store->catalog.sweep = false;
    for (unsigned i = store->catalog.base_count; i-- > 0;) // releasing erases the row at i
        catalog_base_release(store, store->catalog.bases[i]);
}

void catalog_free(struct store *store)
{
    struct catalog *catalog = &store->catalog;
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        doc_free(&catalog->docs[i]->doc);
        free(catalog->docs[i]);
    }
    for (unsigned i = 0; i < catalog->volume_count; i++) {
        tree_drop(&store->space, &catalog->volumes[i]->tree);
        free(catalog->volumes[i]);
    }
    for (unsigned i = 0; i < catalog->base_count; i++) {
        tree_drop(&store->space, &catalog->bases[i]->tree);
        free(catalog->bases[i]);
    }
    free(catalog->docs);
    free(catalog->volumes);
    free(catalog->bases);
    memset(catalog, 0, sizeof *catalog);
}
