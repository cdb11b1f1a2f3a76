// SPDX-License-Identifier: Apache-2.0
// The rules of what a transaction may change. Checks run before anything is prepared, under the catalog's
// lock, and each refusal is a sentence.
#include "snapshot/store_private.h"

#include <errno.h>
#include <string.h>

enum { ROW_IMAGE_BYTES = 600 }; // more than any row takes in the image beside a doc's body

static bool created_before(const struct txn_op *ops, unsigned end, enum txn_op_type type, uint64_t id)
{
    for (unsigned i = 0; i < end; i++)
        if (ops[i].type == type && (type == TXN_FREEZE ? ops[i].base : ops[i].id) == id)
            return true;
    return false;
}

static bool deleted_before(const struct txn_op *ops, unsigned end, enum txn_op_type type, uint64_t id)
{
    return created_before(ops, end, type, id);
}

static int check_volume_name(struct store *store, const struct txn_op *ops, unsigned index, struct error *err)
{
    const struct txn_op *op = &ops[index];
    if (op->name_too_long)
        return error_set(err, -ENAMETOOLONG, "volume name is longer than %d bytes; choose a shorter one",
                STORE_NAME_MAX);
    if (op->name[0] == 0)
        return 0;
    struct volume *holder = catalog_volume_named(store, op->name);
    bool taken = holder != NULL && holder->info.id.value != op->id &&
                 !deleted_before(ops, index, TXN_VOLUME_DELETE, holder->info.id.value);
    for (unsigned i = 0; i < index; i++)
        if ((ops[i].type == TXN_VOLUME_CREATE || ops[i].type == TXN_VOLUME_RENAME) && ops[i].id != op->id)
            taken = taken || strcmp(ops[i].name, op->name) == 0;
    if (taken)
        return error_set(err, -EEXIST,
                "a volume named \"%s\" exists already; choose another name or remove it first", op->name);
    return 0;
}

static int check_size(uint64_t size_bytes, struct error *err)
{
    if (size_bytes == 0 || size_bytes > INT64_MAX - BLOCK_SIZE)
        return error_set(err, -EINVAL, "volume size %llu is outside 1 to 2^63 - 4097 bytes",
                (unsigned long long)size_bytes);
    return 0;
}

// A base that only an open handle keeps ends with the process, and replay will not find it: to a transaction
// it is gone.
static struct base *lasting_base(struct store *store, uint64_t id)
{
    struct base *base = catalog_base(store, id);
    return base != NULL && base->doc_refs > 0 ? base : NULL;
}

static int check_create(struct store *store, struct txn_op *ops, unsigned index, struct error *err)
{
    struct txn_op *op = &ops[index];
    if (op->domain == DOMAIN_OF_BLOBS)
        return error_set(err, -EINVAL, "dedup domain %llu is the store's own; choose another",
                (unsigned long long)op->domain);
    if (op->base != 0) {
        struct base *parent = lasting_base(store, op->base);
        if (parent != NULL && op->size_bytes == 0)
            op->size_bytes = parent->info.size_bytes;
        for (unsigned i = 0; i < index; i++)
            if (ops[i].type == TXN_FREEZE && ops[i].base == op->base && op->size_bytes == 0)
                op->size_bytes = ops[i].size_bytes;
        if (parent == NULL && !created_before(ops, index, TXN_FREEZE, op->base))
            return error_set(err, -ENOENT, "base %llu does not exist", (unsigned long long)op->base);
        // What is sealed of a private base must not come under another domain's fingerprints by way of a
        // fork.
        if (parent != NULL && parent->info.domain != 0 && op->domain != DOMAIN_OF_PARENT &&
                op->domain != parent->info.domain)
            return error_set(err, -EINVAL,
                    "a fork of a base of dedup domain %llu stays in that domain; copy the data into a new "
                    "volume to "
                    "move it",
                    (unsigned long long)parent->info.domain);
        uint64_t parent_size = parent != NULL ? parent->info.size_bytes : 0;
        if (op->size_bytes < parent_size)
            return error_set(err, -EINVAL,
                    "a fork cannot be smaller than its base (%llu bytes asked, the base has %llu)",
                    (unsigned long long)op->size_bytes, (unsigned long long)parent_size);
    }
    int r = check_size(op->size_bytes, err);
    return r < 0 ? r : check_volume_name(store, ops, index, err);
}

static unsigned count_volume(const struct doc *doc, uint64_t volume)
{
    unsigned count = 0;
    for (unsigned k = 0; k < doc->volume_count; k++)
        count += doc->volumes[k].value == volume ? 1 : 0;
    return count;
}

// How many docs name the volume once the operations before `index` are done: docs may go or change in them.
static unsigned doc_refs_at(struct store *store, struct txn_op *ops, unsigned index)
{
    unsigned refs = ops[index].volume->doc_refs;
    for (unsigned i = 0; i < index; i++) {
        bool last = ops[i].type == TXN_DOC_DELETE || ops[i].type == TXN_DOC_PUT;
        for (unsigned j = i + 1; j < index && last; j++)
            last = ops[j].id != ops[i].id || (ops[j].type != TXN_DOC_DELETE && ops[j].type != TXN_DOC_PUT);
        struct doc_row *row = last ? catalog_doc(store, ops[i].id) : NULL;
        refs -= row != NULL ? count_volume(&row->doc, ops[index].id) : 0;
        refs += last && ops[i].type == TXN_DOC_PUT ? count_volume(&ops[i].doc, ops[index].id) : 0;
    }
    return refs;
}

// A resize has steps before and after the record, which leave no order with another of these.
static bool resize_clashes(const struct txn_op *ops, unsigned index)
{
    for (unsigned i = 0; i < index; i++) {
        bool same = ops[i].id == ops[index].id;
        bool other = ops[i].type == TXN_FREEZE || ops[i].type == TXN_VOLUME_RESIZE;
        bool mine = ops[index].type != TXN_VOLUME_RENAME;
        if (same && ((ops[i].type == TXN_VOLUME_RESIZE && mine) ||
                            (ops[index].type == TXN_VOLUME_RESIZE && other)))
            return true;
    }
    return false;
}

static int check_existing_volume(struct store *store, struct txn_op *ops, unsigned index, struct error *err)
{
    struct txn_op *op = &ops[index];
    op->volume = catalog_volume(store, op->id);
    if (op->volume == NULL || deleted_before(ops, index, TXN_VOLUME_DELETE, op->id))
        return error_set(err, -ENOENT, "volume %llu does not exist", (unsigned long long)op->id);
    const char *name = op->volume->info.name;
    if (resize_clashes(ops, index))
        return error_set(err, -EINVAL,
                "a transaction that resizes volume \"%s\" cannot resize it twice, freeze or delete it", name);
    if (op->type == TXN_VOLUME_DELETE && op->volume->opens > 0)
        return error_set(err, -EBUSY,
                "volume \"%s\" is in use (%u open); stop its sandbox or disconnect its NBD clients first",
                name, op->volume->opens);
    if (op->type == TXN_VOLUME_DELETE) {
        unsigned refs = doc_refs_at(store, ops, index);
        if (refs > 0)
            return error_set(err, -EBUSY, "volume \"%s\" (%llu) belongs to a sandbox; remove that first",
                    name, (unsigned long long)op->id);
    }
    if (op->type == TXN_VOLUME_RESIZE) {
        op->old_size_bytes = op->volume->info.size_bytes;
        return check_size(op->size_bytes, err);
    }
    if (op->type == TXN_VOLUME_RENAME)
        return check_volume_name(store, ops, index, err);
    if (op->type == TXN_FREEZE)
        op->size_bytes = op->volume->info.size_bytes;
    return 0;
}

static int check_doc_refs(struct store *store, const struct txn_op *ops, unsigned index, struct error *err)
{
    const struct doc *doc = &ops[index].doc;
    if (doc->base_count > DOC_REFS_MAX || doc->volume_count > DOC_REFS_MAX)
        return error_set(err, -EINVAL, "a document refers to more than %d bases or volumes", DOC_REFS_MAX);
    for (unsigned i = 0; i < doc->base_count; i++)
        if (lasting_base(store, doc->bases[i].value) == NULL &&
                !created_before(ops, index, TXN_FREEZE, doc->bases[i].value))
            return error_set(
                    err, -ENOENT, "base %llu does not exist", (unsigned long long)doc->bases[i].value);
    for (unsigned i = 0; i < doc->volume_count; i++)
        if (catalog_volume(store, doc->volumes[i].value) == NULL &&
                !created_before(ops, index, TXN_VOLUME_CREATE, doc->volumes[i].value))
            return error_set(
                    err, -ENOENT, "volume %llu does not exist", (unsigned long long)doc->volumes[i].value);
    return 0;
}

static const char *kind_name(enum doc_kind kind)
{
    return kind == DOC_SNAPSHOT  ? "snapshot"
           : kind == DOC_MACHINE ? "machine snapshot"
           : kind == DOC_SANDBOX ? "sandbox"
                                 : "document";
}

// An earlier operation gave the doc another name, so that two docs can swap names in one transaction: the
// first goes nameless meanwhile.
static bool renamed_before(const struct txn_op *ops, unsigned index, uint64_t id, const char *name)
{
    bool renamed = false;
    for (unsigned i = 0; i < index; i++)
        if (ops[i].type == TXN_DOC_PUT && ops[i].id == id)
            renamed = strcmp(ops[i].doc.name, name) != 0;
    return renamed;
}

static int check_doc_put(struct store *store, const struct txn_op *ops, unsigned index, struct error *err)
{
    const struct txn_op *op = &ops[index];
    if (op->doc.body_bytes > DOC_BODY_MAX)
        return error_set(err, -EFBIG, "the labels and texts of the %s are larger than %d KiB: shorten them",
                kind_name(op->doc.kind), DOC_BODY_MAX / 1024);
    if (op->blob_bytes > DOC_BLOB_MAX)
        return error_set(err, -EFBIG, "the device state of the %s is too large", kind_name(op->doc.kind));
    struct doc_row *holder =
            op->doc.name[0] != 0 ? catalog_doc_named(store, op->doc.kind, op->doc.name) : NULL;
    bool taken = holder != NULL && holder->doc.id.value != op->id &&
                 !deleted_before(ops, index, TXN_DOC_DELETE, holder->doc.id.value) &&
                 !renamed_before(ops, index, holder->doc.id.value, op->doc.name);
    for (unsigned i = 0; i < index; i++)
        if (ops[i].type == TXN_DOC_PUT && ops[i].id != op->id && ops[i].doc.kind == op->doc.kind &&
                op->doc.name[0] != 0)
            taken = taken || strcmp(ops[i].doc.name, op->doc.name) == 0;
    bool there = catalog_doc(store, op->id) != NULL || created_before(ops, index, TXN_DOC_PUT, op->id);
    if (op->replaces && (!there || deleted_before(ops, index, TXN_DOC_DELETE, op->id)))
        return error_set(err, -ENOENT, "the %s %llu has been removed meanwhile", kind_name(op->doc.kind),
                (unsigned long long)op->id);
    if (taken)
        return error_set(err, -EEXIST,
                "a %s named \"%s\" exists already; choose another name or remove it first",
                kind_name(op->doc.kind), op->doc.name);
    return check_doc_refs(store, ops, index, err);
}

// The image of the catalog must fit into the first half of a log file, or the log could not go on.
static int check_image_size(struct store *store, const struct txn_op *ops, unsigned count, struct error *err)
{
    const struct catalog *catalog = &store->catalog;
    uint64_t rows = catalog->volume_count + catalog->base_count + catalog->doc_count,
             bytes = catalog->doc_bytes;
    bool adds = false;
    for (unsigned i = 0; i < count; i++) {
        adds = adds || ops[i].type == TXN_VOLUME_CREATE || ops[i].type == TXN_DOC_PUT;
        rows++;
        bytes += ops[i].type == TXN_DOC_PUT ? ops[i].doc.body_bytes : 0;
    }
    bytes += rows * ROW_IMAGE_BYTES;
    if (!adds || bytes <= log_image_max_bytes(store->log))
        return 0;
    return error_set(err, -ENOSPC,
            "the catalog is full (%llu volumes, snapshots and sandboxes for this log file size); remove some",
            (unsigned long long)rows);
}

int catalog_check(struct store *store, struct txn_op *ops, unsigned count, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; i < count && r == 0; i++) {
        struct doc_row *row;
        switch (ops[i].type) {
        case TXN_VOLUME_CREATE:
            r = check_create(store, ops, i, err);
            break;
        case TXN_VOLUME_DELETE:
        case TXN_VOLUME_RESIZE:
        case TXN_VOLUME_RENAME:
        case TXN_FREEZE:
            r = check_existing_volume(store, ops, i, err);
            break;
        case TXN_DOC_PUT:
            r = check_doc_put(store, ops, i, err);
            break;
        case TXN_DOC_DELETE:
            row = catalog_doc(store, ops[i].id);
            if (row == NULL || deleted_before(ops, i, TXN_DOC_DELETE, ops[i].id))
                r = error_set(err, -ENOENT, "document %llu does not exist", (unsigned long long)ops[i].id);
            break;
        }
    }
    return r < 0 ? r : check_image_size(store, ops, count, err);
}
