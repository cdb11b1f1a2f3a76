// SPDX-License-Identifier: Apache-2.0
// Bytes of transactions and of the catalog's image, as they stand in log records. Little-endian; a string is
// a u32 length and its bytes. A reader refuses what it does not know (-EPROTO) or what does not fit
// (-EBADMSG).
//
//   transaction: u32 version 1, u32 features a reader must know (0), u32 count, then operations: u16 type,
//   and
//     VOLUME_CREATE  u64 id, u64 base, u64 size, u16 kind, u64 wall_ns, u64 domain, name
//     VOLUME_DELETE  u64 id
//     VOLUME_RESIZE  u64 id, u64 size
//     VOLUME_RENAME  u64 id, name
//     FREEZE         u64 volume, u32 epoch, u64 base, u64 size, u64 wall_ns
//     DOC_PUT        u64 id, u16 kind, u64 wall_ns, name, body, u32 n + u64 bases, u32 n + u64 volumes, u64
//     blob bytes, u32 blob's
//                    first block within the record's payload
//     DOC_DELETE     u64 id
//   image: u32 version 1, u32 features a reader must know (0), u64 next id,
//     u32 n + volumes { u64 id, u16 kind, u64 size, u64 parent, u64 wall_ns, u64 domain, u32 epoch, name }
//     u32 n + bases   { u64 id, u16 kind, u64 size, u64 source, u64 parent, u64 wall_ns, u64 domain }
//     u32 n + docs    { as DOC_PUT up to blob bytes, then u64 locator of the blob }
#include "snapshot/checkpoint.h"
#include "snapshot/store_private.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_VERSION = 1, CODE_MUST_FEATURES = 0, CODE_STRING_MAX = DOC_BODY_MAX + 16 };

// ---- Writing: a buffer that grows ----

struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
};

static void put_bytes(struct buffer *b, const void *bytes, size_t size)
{
    if (b->size + size > b->capacity) {
        b->capacity = (b->size + size) * 2 + 256;
        b->bytes = realloc(b->bytes, b->capacity);
        if (b->bytes == NULL)
            abort();
    }
    if (size > 0)
        memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

static void put(struct buffer *b, uint64_t value, unsigned width)
{
    uint8_t bytes[8];
    struct cursor c = cursor_make(bytes, sizeof bytes);
    cursor_put(&c, value, width);
    put_bytes(b, bytes, width);
}

static void put_string(struct buffer *b, const void *bytes, size_t size)
{
    put(b, size, 4);
    put_bytes(b, bytes, size);
}

static void put_doc(
        struct buffer *b, uint64_t id, const struct doc *doc, uint64_t wall_ns, uint64_t blob_bytes)
{
    put(b, id, 8);
    put(b, doc->kind, 2);
    put(b, wall_ns, 8);
    put_string(b, doc->name, strlen(doc->name));
    put_string(b, doc->body, doc->body_bytes);
    put(b, doc->base_count, 4);
    for (unsigned i = 0; i < doc->base_count; i++)
        put(b, doc->bases[i].value, 8);
    put(b, doc->volume_count, 4);
    for (unsigned i = 0; i < doc->volume_count; i++)
        put(b, doc->volumes[i].value, 8);
    put(b, blob_bytes, 8);
}

static void put_op(struct buffer *b, const struct txn_op *op)
{
    put(b, op->type, 2);
    if (op->type == TXN_DOC_PUT) {
        put_doc(b, op->id, &op->doc, op->wall_ns, op->blob_bytes);
        put(b, op->blob_block, 4);
        return;
    }
    put(b, op->id, 8);
    if (op->type == TXN_VOLUME_CREATE) {
        put(b, op->base, 8);
        put(b, op->size_bytes, 8);
        put(b, op->kind, 2);
        put(b, op->wall_ns, 8);
        put(b, op->domain, 8);
    } else if (op->type == TXN_VOLUME_RESIZE) {
        put(b, op->size_bytes, 8);
    } else if (op->type == TXN_FREEZE) {
        put(b, op->epoch, 4);
        put(b, op->base, 8);
        put(b, op->size_bytes, 8);
        put(b, op->wall_ns, 8);
    }
    if (op->type == TXN_VOLUME_CREATE || op->type == TXN_VOLUME_RENAME)
        put_string(b, op->name, strlen(op->name));
}

void catalog_encode_ops(const struct txn_op *ops, unsigned count, void **ret_bytes, size_t *ret_size)
{
    struct buffer b = {0};
    put(&b, CODE_VERSION, 4);
    put(&b, CODE_MUST_FEATURES, 4);
    put(&b, count, 4);
    for (unsigned i = 0; i < count; i++)
        put_op(&b, &ops[i]);
    *ret_bytes = b.bytes;
    *ret_size = b.size;
}

// ---- Reading ----

static int get_version(struct cursor *c)
{
    uint32_t version = cursor_get_u32(c), must = cursor_get_u32(c);
    if (c->bad || version == 0)
        return -EBADMSG;
    return version > CODE_VERSION || (must & ~(uint32_t)CODE_MUST_FEATURES) != 0 ? -EPROTO : 0;
}

static void get_name(struct cursor *c, char *name)
{
    uint32_t size = cursor_get_u32(c);
    if (size > STORE_NAME_MAX) {
        c->bad = true;
        size = 0;
    }
    memset(name, 0, STORE_NAME_MAX + 1);
    cursor_get_bytes(c, name, size);
}

static void get_body(struct cursor *c, struct doc *doc)
{
    uint32_t size = cursor_get_u32(c);
    if (size > CODE_STRING_MAX || (size_t)(c->end - c->at) < size) {
        c->bad = true;
        size = 0;
    }
    doc->body = calloc(1, size + 1);
    if (doc->body == NULL)
        abort();
    cursor_get_bytes(c, doc->body, size);
    doc->body_bytes = size;
}

static unsigned get_count(struct cursor *c, unsigned most)
{
    uint32_t count = cursor_get_u32(c);
    if (count > most)
        c->bad = true;
    return c->bad ? 0 : count;
}

static void get_doc(struct cursor *c, struct doc *doc)
{
    doc->id.value = cursor_get_u64(c);
    doc->kind = cursor_get_u16(c);
    doc->created_wall_ns = cursor_get_u64(c);
    get_name(c, doc->name);
    get_body(c, doc);
    doc->base_count = get_count(c, DOC_REFS_MAX);
    for (unsigned i = 0; i < doc->base_count; i++)
        doc->bases[i].value = cursor_get_u64(c);
    doc->volume_count = get_count(c, DOC_REFS_MAX);
    for (unsigned i = 0; i < doc->volume_count; i++)
        doc->volumes[i].value = cursor_get_u64(c);
    doc->blob_bytes = cursor_get_u64(c);
    if (doc->blob_bytes > DOC_BLOB_MAX)
        c->bad = true;
}

static void get_op(struct cursor *c, struct txn_op *op)
{
    op->type = cursor_get_u16(c);
    op->tree = tree_empty(1);
    if (op->type == TXN_DOC_PUT) {
        get_doc(c, &op->doc);
        op->id = op->doc.id.value;
        op->wall_ns = op->doc.created_wall_ns;
        op->blob_bytes = op->doc.blob_bytes;
        op->blob_block = cursor_get_u32(c);
        return;
    }
    op->id = cursor_get_u64(c);
    switch (op->type) {
    case TXN_VOLUME_CREATE:
        op->base = cursor_get_u64(c);
        op->size_bytes = cursor_get_u64(c);
        op->kind = cursor_get_u16(c);
        op->wall_ns = cursor_get_u64(c);
        op->domain = cursor_get_u64(c);
        get_name(c, op->name);
        break;
    case TXN_VOLUME_RESIZE:
        op->size_bytes = cursor_get_u64(c);
        break;
    case TXN_VOLUME_RENAME:
        get_name(c, op->name);
        break;
    case TXN_FREEZE:
        op->epoch = cursor_get_u32(c);
        op->base = cursor_get_u64(c);
        op->size_bytes = cursor_get_u64(c);
        op->wall_ns = cursor_get_u64(c);
        break;
    case TXN_VOLUME_DELETE:
    case TXN_DOC_DELETE:
        break;
    default:
        c->bad = true;
    }
}

void catalog_free_ops(struct txn_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        doc_free(&ops[i].doc);
        free((void *)ops[i].blob);
    }
    free(ops);
}

int catalog_decode_ops(const void *bytes, size_t size, struct txn_op **ret_ops, unsigned *ret_count)
{
    struct cursor c = cursor_make((void *)bytes, size);
    int r = get_version(&c);
    uint32_t count = cursor_get_u32(&c);
    if (r < 0)
        return r;
    if (c.bad || count > size) // an operation takes more than a byte
        return -EBADMSG;
    struct txn_op *ops = calloc(count + 1, sizeof *ops);
    if (ops == NULL)
        abort();
    for (uint32_t i = 0; i < count && !c.bad; i++)
        get_op(&c, &ops[i]);
    if (c.bad || c.at != c.end) {
        catalog_free_ops(ops, count);
        return -EBADMSG;
    }
    *ret_ops = ops;
    *ret_count = count;
    return 0;
}

// ---- Image ----

void catalog_encode_image(struct store *store, void **ret_bytes, size_t *ret_size)
{
    const struct catalog *catalog = &store->catalog;
    struct buffer b = {0};
    put(&b, CODE_VERSION, 4);
    put(&b, CODE_MUST_FEATURES, 4);
    put(&b, catalog->next_id, 8);
    put(&b, catalog->volume_count, 4);
    for (unsigned i = 0; i < catalog->volume_count; i++) {
        const struct volume *volume = catalog->volumes[i];
        put(&b, volume->info.id.value, 8);
        put(&b, volume->info.kind, 2);
        put(&b, volume->info.size_bytes, 8);
        put(&b, volume->info.parent.value, 8);
        put(&b, volume->info.created_wall_ns, 8);
        put(&b, volume->info.domain, 8);
        put(&b, atomic_load(&volume->logged_epoch), 4);
        put_string(&b, volume->info.name, strlen(volume->info.name));
    }
    unsigned bases = 0; // those kept only by a handle end with this process
    for (unsigned i = 0; i < catalog->base_count; i++)
        bases += catalog->bases[i]->doc_refs > 0 ? 1 : 0;
    put(&b, bases, 4);
    for (unsigned i = 0; i < catalog->base_count; i++) {
        const struct base_info *info = &catalog->bases[i]->info;
        if (catalog->bases[i]->doc_refs == 0)
            continue;
        put(&b, info->id.value, 8);
        put(&b, info->kind, 2);
        put(&b, info->size_bytes, 8);
        put(&b, info->source.value, 8);
        put(&b, info->parent.value, 8);
        put(&b, info->created_wall_ns, 8);
        put(&b, info->domain, 8);
    }
    put(&b, catalog->doc_count, 4);
    for (unsigned i = 0; i < catalog->doc_count; i++) {
        const struct doc_row *row = catalog->docs[i];
        put_doc(&b, row->doc.id.value, &row->doc, row->doc.created_wall_ns, row->doc.blob_bytes);
        put(&b, row->blob_first, 8);
    }
    *ret_bytes = b.bytes;
    *ret_size = b.size;
}

// Ids ascend within a list, and none is to be given again.
static void check_id(struct store *store, struct cursor *c, uint64_t id, uint64_t *last)
{
    if (id <= *last || id >= store->catalog.next_id)
        c->bad = true;
    *last = id;
}

static void get_volume(struct store *store, struct cursor *c, uint64_t *last)
{
    struct volume_info info = {0};
    info.id.value = cursor_get_u64(c);
    check_id(store, c, info.id.value, last);
    info.kind = cursor_get_u16(c);
    info.size_bytes = cursor_get_u64(c);
    info.parent.value = cursor_get_u64(c);
    info.created_wall_ns = cursor_get_u64(c);
    info.domain = cursor_get_u64(c);
    uint32_t epoch = cursor_get_u32(c);
    get_name(c, info.name);
    struct tree tree;
    if (!c->bad && checkpoint_root(store, CHECKPOINT_VOLUME, info.id.value, info.size_bytes, &tree))
        catalog_volume_add(store, &info, tree, epoch);
    else
        c->bad = true;
}

static void get_base(struct store *store, struct cursor *c, uint64_t *last)
{
    struct base_info info = {0};
    info.id.value = cursor_get_u64(c);
    check_id(store, c, info.id.value, last);
    info.kind = cursor_get_u16(c);
    info.size_bytes = cursor_get_u64(c);
    info.source.value = cursor_get_u64(c);
    info.parent.value = cursor_get_u64(c);
    info.created_wall_ns = cursor_get_u64(c);
    info.domain = cursor_get_u64(c);
    struct tree tree;
    if (!c->bad && checkpoint_root(store, CHECKPOINT_BASE, info.id.value, info.size_bytes, &tree))
        catalog_base_add(store, &info, tree);
    else
        c->bad = true;
}

int catalog_decode_image(struct store *store, const void *bytes, size_t size)
{
    struct cursor c = cursor_make((void *)bytes, size);
    if (size == 0) { // the image of a store that was just made
        store->catalog.next_id = 1;
        return 0;
    }
    int r = get_version(&c);
    if (r < 0)
        return r;
    store->catalog.next_id = cursor_get_u64(&c);
    uint64_t last = 0;
    uint32_t count = cursor_get_u32(&c);
    for (uint32_t i = 0; i < count && !c.bad; i++)
        get_volume(store, &c, &last);
    count = cursor_get_u32(&c);
    last = 0;
    for (uint32_t i = 0; i < count && !c.bad; i++)
        get_base(store, &c, &last);
    count = cursor_get_u32(&c);
    last = 0;
    for (uint32_t i = 0; i < count && !c.bad; i++) {
        struct doc doc = {0};
        get_doc(&c, &doc);
        locator_t blob = cursor_get_u64(&c);
        check_id(store, &c, doc.id.value, &last);
        if (!c.bad)
            catalog_doc_add(store, &doc, checkpoint_blob(store, doc.id.value, blob));
        doc_free(&doc);
    }
    return c.bad || c.at != c.end ? -EBADMSG : 0;
}
