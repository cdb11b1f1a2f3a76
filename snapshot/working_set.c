// SPDX-License-Identifier: Apache-2.0
#include "snapshot/working_set.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, RANGE_BYTES = 8, CHECKED_HEADER_BYTES = 24 };
static const char MAGIC[] = "RAMETWS1";
static const char NAME_PREFIX[] = "working-set-";
static char BODY[] = "{}";

int working_set_init(struct working_set *set, uint64_t image_bytes)
{
    if (image_bytes == 0 || image_bytes % WORKING_SET_PAGE_BYTES != 0 ||
            image_bytes / WORKING_SET_PAGE_BYTES > UINT32_MAX)
        return -EINVAL;
    *set = (struct working_set){.image_bytes = image_bytes};
    set->ranges = malloc(WORKING_SET_RANGES_MAX * sizeof *set->ranges);
    return set->ranges == NULL ? -ENOMEM : 0;
}

void working_set_free(struct working_set *set)
{
    free(set->ranges);
    *set = (struct working_set){0};
}

bool working_set_add(struct working_set *set, uint64_t offset, uint64_t length)
{
    struct working_set_range *last = set->count > 0 ? &set->ranges[set->count - 1] : NULL;
    uint64_t end = last == NULL ? 0 : last->offset + last->length, pages = length / WORKING_SET_PAGE_BYTES;
    if (pages == 0 || offset % WORKING_SET_PAGE_BYTES != 0 || length % WORKING_SET_PAGE_BYTES != 0 ||
            offset < end || offset > set->image_bytes || length > set->image_bytes - offset)
        return false;
    bool joins = last != NULL && offset == end;
    if (set->pages + pages > WORKING_SET_PAGES_MAX || (!joins && set->count == WORKING_SET_RANGES_MAX)) {
        set->full = true;
        return false;
    }
    if (joins)
        last->length += length;
    else
        set->ranges[set->count++] = (struct working_set_range){offset, length};
    set->pages += pages;
    return true;
}

// Of the header's first bytes and the ranges, around the digest itself.
static uint64_t digest_of(const uint8_t *bytes, size_t size)
{
    uint64_t header = digest_bytes(bytes, CHECKED_HEADER_BYTES, 0);
    return digest_bytes(bytes + WORKING_SET_HEADER_BYTES, size - WORKING_SET_HEADER_BYTES, header);
}

int working_set_encode(const struct working_set *set, uint8_t **ret_bytes, size_t *ret_size)
{
    size_t size = WORKING_SET_HEADER_BYTES + (size_t)set->count * RANGE_BYTES;
    uint8_t *bytes = calloc(1, size);
    if (bytes == NULL)
        return -ENOMEM;
    struct cursor at = cursor_make(bytes, size);
    cursor_put_bytes(&at, MAGIC, sizeof MAGIC - 1);
    cursor_put_u32(&at, VERSION);
    cursor_put_u32(&at, set->count);
    cursor_put_u64(&at, set->image_bytes);
    cursor_put_u64(&at, 0);
    for (unsigned i = 0; i < set->count; i++) {
        cursor_put_u32(&at, (uint32_t)(set->ranges[i].offset / WORKING_SET_PAGE_BYTES));
        cursor_put_u32(&at, (uint32_t)(set->ranges[i].length / WORKING_SET_PAGE_BYTES));
    }
    struct cursor digest = cursor_make(bytes + CHECKED_HEADER_BYTES, sizeof(uint64_t));
    cursor_put_u64(&digest, digest_of(bytes, size));
    *ret_bytes = bytes;
    *ret_size = size;
    return 0;
}

static int damaged(struct error *err, const char *what)
{
    return error_set(
            err, -EBADMSG, "a working set %s; it is not used, and deleting the snapshot removes it", what);
}

static int decode_ranges(struct cursor *at, uint32_t count, struct working_set *set, struct error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t first = cursor_get_u32(at), pages = cursor_get_u32(at);
        unsigned before = set->count;
        if (!working_set_add(set, first * WORKING_SET_PAGE_BYTES, pages * WORKING_SET_PAGE_BYTES) ||
                set->count != before + 1)
            return damaged(err, "has ranges that are not in order, too many, or outside of the image");
    }
    return 0;
}

int working_set_decode(
        const void *bytes, size_t size, uint64_t image_bytes, struct working_set *ret_set, struct error *err)
{
    struct cursor at = cursor_make((void *)bytes, size); // only read
    char magic[sizeof MAGIC - 1];
    cursor_get_bytes(&at, magic, sizeof magic);
    uint32_t version = cursor_get_u32(&at), count = cursor_get_u32(&at);
    uint64_t image = cursor_get_u64(&at), digest = cursor_get_u64(&at);
    if (at.bad || memcmp(magic, MAGIC, sizeof magic) != 0)
        return damaged(err, "does not begin as one");
    if (version != VERSION)
        return error_set(
                err, -EPROTO, "a working set has format %u and this program knows %d", version, VERSION);
    if (count > WORKING_SET_RANGES_MAX || size != WORKING_SET_HEADER_BYTES + (size_t)count * RANGE_BYTES ||
            digest != digest_of(bytes, size))
        return damaged(err, "does not fit its checksum");
    if (image != image_bytes)
        return damaged(err, "is of a memory image of another size");
    struct working_set set;
    int result = working_set_init(&set, image_bytes);
    if (result < 0)
        return error_set(err, result, "no memory for a working set");
    result = decode_ranges(&at, count, &set, err);
    if (result < 0)
        working_set_free(&set);
    else
        *ret_set = set;
    return result;
}

// ---- In the store ----

static void name_of(struct doc_id machine, char ret_name[STORE_NAME_MAX + 1])
{
    snprintf(ret_name, STORE_NAME_MAX + 1, "%s%" PRIu64, NAME_PREFIX, machine.value);
}

static bool find(struct store *store, struct doc_id machine, struct doc_id *ret_id)
{
    char name[STORE_NAME_MAX + 1];
    struct doc doc;
    name_of(machine, name);
    if (store_doc_find(store, DOC_OTHER, name, &doc) < 0)
        return false;
    *ret_id = doc.id;
    doc_free(&doc);
    return true;
}

bool working_set_exists(struct store *store, struct doc_id machine)
{
    struct doc_id id;
    return find(store, machine, &id);
}

int working_set_load(struct store *store, struct doc_id machine, uint64_t image_bytes,
        struct working_set *ret_set, struct error *err)
{
    struct doc_id id;
    void *bytes;
    size_t size;
    if (!find(store, machine, &id))
        return error_set(err, -ENOENT, "the snapshot has no working set yet");
    int result = store_doc_blob(store, id, &bytes, &size);
    if (result < 0)
        return error_set(err, result, "a working set cannot be read: %s", strerror(-result));
    result = working_set_decode(bytes, size, image_bytes, ret_set, err);
    free(bytes);
    return result;
}

int working_set_save(
        struct store *store, struct doc_id machine, const struct working_set *set, struct error *err)
{
    struct doc snapshot, doc = {.kind = DOC_OTHER, .body = BODY, .body_bytes = sizeof BODY - 1};
    uint8_t *bytes;
    size_t size;
    int result = store_doc_get(store, machine, &snapshot);
    if (result < 0)
        return error_set(err, result, "the snapshot of a working set is gone");
    doc_free(&snapshot);
    result = working_set_encode(set, &bytes, &size);
    if (result < 0)
        return error_set(err, result, "no memory for a working set");
    name_of(machine, doc.name);
    struct txn *txn = txn_begin(store);
    txn_doc_put(txn, &doc, bytes, size);
    free(bytes);
    return txn_commit_wait(txn, 0, err);
}

void working_set_delete(struct store *store, struct txn *txn, struct doc_id machine)
{
    struct doc_id id;
    if (find(store, machine, &id))
        txn_doc_delete(txn, id);
}

struct search {
    struct store *store;
    struct doc_id *ids;
    size_t count;
};

static void collect(void *context, const struct doc *doc)
{
    struct search *search = context;
    if (strncmp(doc->name, NAME_PREFIX, sizeof NAME_PREFIX - 1) != 0)
        return;
    struct doc_id *ids = realloc(search->ids, (search->count + 1) * sizeof *ids);
    if (ids == NULL)
        return; // the next start tries again
    search->ids = ids;
    search->ids[search->count++] = doc->id;
}

static bool is_orphan(struct store *store, struct doc_id id)
{
    struct doc doc, machine;
    if (store_doc_get(store, id, &doc) < 0)
        return false;
    struct doc_id owner = {strtoull(doc.name + sizeof NAME_PREFIX - 1, NULL, 10)};
    doc_free(&doc);
    if (store_doc_get(store, owner, &machine) < 0)
        return true;
    bool other = machine.kind != DOC_MACHINE;
    doc_free(&machine);
    return other;
}

int working_set_clean_up(struct store *store, unsigned *ret_removed, struct error *err)
{
    struct search search = {.store = store};
    int result = 0;
    unsigned removed = 0;
    store_doc_list(store, DOC_OTHER, collect, &search);
    for (size_t i = 0; i < search.count && result == 0; i++) {
        if (!is_orphan(store, search.ids[i]))
            continue;
        struct txn *txn = txn_begin(store);
        txn_doc_delete(txn, search.ids[i]);
        result = txn_commit_wait(txn, TXN_RESERVE, err);
        removed += result == 0;
    }
    free(search.ids);
    *ret_removed = removed;
    return result;
}
