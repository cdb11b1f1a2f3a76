// SPDX-License-Identifier: Apache-2.0
// Writing an archive. First everything is pinned (handles on all bases, copies of all docs and blobs), so
// that what happens to the store meanwhile changes nothing; then the bases are written in the order of their
// ids, which puts parents before children.
#include "blockstore/clock.h"
#include "snapshot/archive_format.h"

#include "blockstore/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct source {
    struct base_info info;
    struct base *base;
    const char *volume_name; // NULL = a base of docs
};

struct exporter {
    struct store *store;
    archive_write_callback write;
    void *context;
    struct source *sources; // ascending by id
    struct doc *docs;
    void **blobs;
    unsigned source_count, doc_count;
    struct archive_contents contents;
    uint64_t running;
    struct archive_result result;
    uint8_t *piece, *stored;
};

// ---- The stream ----

static int put_bytes(struct exporter *x, const void *bytes, size_t size, struct error *err)
{
    int r = size == 0 ? 0 : x->write(x->context, bytes, size);
    if (r < 0)
        return error_set(err, r, "the archive could not be written on at byte %" PRIu64 ": %s",
                x->result.archive_bytes, strerror(-r));
    x->result.archive_bytes += size;
    return 0;
}

static int put_record(struct exporter *x, enum archive_record_type type, unsigned entry, uint64_t offset,
        uint64_t length, const void *payload, struct error *err)
{
    struct archive_record record = {.type = type, .entry = entry, .offset = offset, .length_bytes = length};
    uint8_t head[ARCHIVE_HEAD_BYTES];
    if (payload != NULL) {
        size_t smaller = archive_format_shrink(payload, length, x->stored);
        record.compressed = smaller != 0;
        record.stored_bytes = (uint32_t)(smaller != 0 ? smaller : length);
        payload = smaller != 0 ? x->stored : payload;
    }
    archive_format_head_encode(&record, payload, x->running, head);
    int r = put_bytes(x, head, sizeof head, err);
    if (r == 0)
        r = put_bytes(x, payload, record.stored_bytes, err);
    x->running = digest_bytes(head, sizeof head, x->running);
    x->result.records++;
    return r;
}

static int put_pieces(struct exporter *x, enum archive_record_type type, unsigned entry, const void *bytes,
        size_t size, struct error *err)
{
    int r = 0;
    for (size_t at = 0; at < size && r == 0; at += ARCHIVE_PIECE_BYTES) {
        size_t part = size - at < ARCHIVE_PIECE_BYTES ? size - at : ARCHIVE_PIECE_BYTES;
        r = put_record(x, type, entry, at, part, (const char *)bytes + at, err);
    }
    return r;
}

static int put_contents(struct exporter *x, struct error *err)
{
    uint8_t *bytes, head[ARCHIVE_HEADER_BYTES];
    size_t size;
    int r = archive_format_encode(&x->contents, &bytes, &size);
    if (r < 0)
        return error_set(err, r, "too much for one archive: its table of contents is larger than %d MiB",
                ARCHIVE_CONTENTS_MAX >> 20);
    struct archive_header header = {
            .version = ARCHIVE_VERSION, .created_wall_ns = clock_wall_ns(), .contents_bytes = size};
    archive_format_header_encode(&header, head);
    x->running = digest_bytes(head, sizeof head, 0);
    r = put_bytes(x, head, sizeof head, err);
    if (r == 0)
        r = put_pieces(x, ARCHIVE_CONTENTS, 0, bytes, size, err);
    free(bytes);
    return r;
}

// ---- Data ----

static bool is_zero(const uint8_t *bytes, size_t size)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static int put_data(struct exporter *x, unsigned index, uint64_t offset, uint64_t length, struct error *err)
{
    int r = 0;
    for (uint64_t end = offset + length; offset < end && r == 0;) {
        size_t part = end - offset < ARCHIVE_PIECE_BYTES ? (size_t)(end - offset) : ARCHIVE_PIECE_BYTES;
        r = base_read_wait(x->sources[index].base, offset, x->piece, part);
        if (r < 0)
            return error_set(err, r,
                    "reading %s%s%s at byte %" PRIu64 " failed: %s; `ramet store check` says more",
                    x->sources[index].volume_name != NULL ? "volume \"" : "a snapshot",
                    x->sources[index].volume_name != NULL ? x->sources[index].volume_name : "",
                    x->sources[index].volume_name != NULL ? "\"" : "", offset, strerror(-r));
        if (is_zero(x->piece, part)) {
            r = put_record(x, ARCHIVE_ZERO, index, offset, part, NULL, err);
        } else {
            r = put_record(x, ARCHIVE_DATA, index, offset, part, x->piece, err);
            x->result.data_bytes += part;
        }
        offset += part;
    }
    return r;
}

struct put_call {
    struct exporter *x;
    unsigned index;
    bool differs;
    struct error *err;
    int result;
};

static bool put_extent(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct put_call *call = context;
    if (kind == EXTENT_DATA)
        call->result = put_data(call->x, call->index, offset, length, call->err);
    else if (kind == EXTENT_ZERO || call->differs)
        call->result = put_record(call->x, kind == EXTENT_ZERO ? ARCHIVE_ZERO : ARCHIVE_UNMAPPED, call->index,
                offset, length, NULL, call->err);
    return call->result == 0;
}

static int put_base(struct exporter *x, unsigned index, struct error *err)
{
    uint32_t parent = x->contents.bases[index].parent;
    struct base *base = x->sources[index].base;
    struct put_call call = {.x = x, .index = index, .differs = parent != ARCHIVE_NO_PARENT, .err = err};
    int r = call.differs ? base_diff_wait(x->sources[parent].base, base, put_extent, &call)
                         : base_extents_wait(base, 0, base_size_bytes(base), put_extent, &call);
    if (call.result < 0)
        return call.result;
    if (r < 0)
        return error_set(err, r, "what a snapshot holds cannot be told: %s; `ramet store check` says more",
                strerror(-r));
    return put_record(x, ARCHIVE_END, index, 0, 0, NULL, err);
}

static int put_all(struct exporter *x, struct error *err)
{
    int r = put_contents(x, err);
    for (unsigned i = 0; i < x->source_count && r == 0; i++)
        r = put_base(x, i, err);
    for (unsigned i = 0; i < x->doc_count && r == 0; i++) {
        r = put_pieces(x, ARCHIVE_BODY, i, x->docs[i].body, x->docs[i].body_bytes, err);
        if (r == 0)
            r = put_pieces(x, ARCHIVE_BLOB, i, x->blobs[i], x->docs[i].blob_bytes, err);
    }
    if (r < 0)
        return r;
    uint8_t bytes[ARCHIVE_TRAILER_BYTES];
    struct archive_trailer trailer = {.records = x->result.records,
            .data_bytes = x->result.data_bytes,
            .position = x->result.archive_bytes,
            .running = x->running};
    archive_format_trailer_encode(&trailer, bytes);
    return put_record(x, ARCHIVE_TRAILER, 0, 0, sizeof bytes, bytes, err);
}

// ---- What to take ----

static int add_source(struct exporter *x, struct base_id id, const char *volume_name, struct error *err)
{
    for (unsigned i = 0; i < x->source_count && volume_name == NULL; i++)
        if (x->sources[i].info.id.value == id.value && x->sources[i].volume_name == NULL)
            return 0;
    struct source *source = &x->sources[x->source_count];
    *source = (struct source){.volume_name = volume_name};
    int r = base_open(x->store, id, &source->base);
    if (r == 0 && (r = store_base_get(x->store, id, &source->info)) < 0)
        source->base = base_close(source->base);
    if (r < 0)
        return error_set(err, r, "base %" PRIu64 " cannot be opened: %s", id.value, strerror(-r));
    x->source_count++;
    return 0;
}

static int add_doc(struct exporter *x, struct doc_id id, struct error *err)
{
    for (unsigned i = 0; i < x->doc_count; i++)
        if (x->docs[i].id.value == id.value)
            return 0;
    struct doc *doc = &x->docs[x->doc_count];
    size_t blob_bytes = 0;
    int r = store_doc_get(x->store, id, doc);
    if (r < 0)
        return error_set(err, r, "snapshot %" PRIu64 " is gone", id.value);
    x->doc_count++;
    if (doc->kind != DOC_SNAPSHOT && doc->kind != DOC_MACHINE)
        return error_set(err, -EINVAL, "only volumes and snapshots can be exported");
    if (doc->blob_bytes > 0)
        r = store_doc_blob(x->store, id, &x->blobs[x->doc_count - 1], &blob_bytes);
    if (r < 0)
        return error_set(err, r, "the device state of \"%s\" cannot be read: %s", doc->name, strerror(-r));
    doc->blob_bytes = blob_bytes;
    for (unsigned i = 0; i < doc->base_count && r == 0; i++)
        r = add_source(x, doc->bases[i], NULL, err);
    return r;
}

static int take_roots(struct exporter *x, const struct archive_root *roots, unsigned count, struct error *err)
{
    uint64_t doc_bytes = 0;
    int r = 0;
    for (unsigned i = 0; i < count && r == 0; i++) {
        if (roots[i].volume_name != NULL)
            r = add_source(x, roots[i].base, roots[i].volume_name, err);
        else
            r = add_doc(x, roots[i].doc, err);
    }
    for (unsigned i = 0; i < x->doc_count; i++)
        doc_bytes += x->docs[i].body_bytes + x->docs[i].blob_bytes;
    if (r == 0 && (doc_bytes > ARCHIVE_DOC_BYTES_MAX || x->source_count > ARCHIVE_ENTRIES_MAX))
        r = error_set(err, -EFBIG, "too much for one archive: export fewer snapshots at a time");
    return r;
}

static int by_id(const void *a, const void *b)
{
    uint64_t left = ((const struct source *)a)->info.id.value,
             right = ((const struct source *)b)->info.id.value;
    return left < right ? -1 : left > right;
}

static uint32_t index_of(const struct exporter *x, struct base_id id, unsigned end)
{
    for (unsigned i = 0; i < end; i++)
        if (x->sources[i].info.id.value == id.value)
            return i;
    return ARCHIVE_NO_PARENT;
}

// A base of docs: a volume may have been frozen as the same one.
static uint32_t index_of_base(const struct exporter *x, struct base_id id)
{
    for (unsigned i = 0; i < x->source_count; i++)
        if (x->sources[i].info.id.value == id.value && x->sources[i].volume_name == NULL)
            return i;
    return ARCHIVE_NO_PARENT;
}

// The nearest older base of this archive that shares much: an ancestor, or else a sibling frozen of the same
// volume before. Any answer is right; a good one makes the archive small.
static uint32_t find_parent(const struct exporter *x, unsigned index)
{
    const struct base_info *info = &x->sources[index].info;
    uint32_t found = ARCHIVE_NO_PARENT;
    struct base_info older = *info;
    while (older.parent.value != 0 && older.parent.value < older.id.value && found == ARCHIVE_NO_PARENT) {
        found = index_of(x, older.parent, index);
        if (store_base_get(x->store, older.parent, &older) < 0)
            break;
    }
    for (unsigned i = index; i-- > 0 && found == ARCHIVE_NO_PARENT;)
        if (x->sources[i].info.source.value == info->source.value)
            found = i;
    if (found != ARCHIVE_NO_PARENT && (x->sources[found].info.size_bytes > info->size_bytes ||
                                              x->sources[found].info.kind != info->kind))
        return ARCHIVE_NO_PARENT;
    return found;
}

static int describe(struct exporter *x, struct error *err)
{
    x->contents.bases = calloc(x->source_count + 1, sizeof *x->contents.bases);
    x->contents.docs = calloc(x->doc_count + 1, sizeof *x->contents.docs);
    if (x->contents.bases == NULL || x->contents.docs == NULL)
        return error_set(err, -ENOMEM, "no memory for the table of contents");
    qsort(x->sources, x->source_count, sizeof *x->sources, by_id);
    for (unsigned i = 0; i < x->source_count; i++) {
        const struct source *source = &x->sources[i];
        struct archive_base *base = &x->contents.bases[i];
        *base = (struct archive_base){.kind = source->info.kind,
                .role = source->volume_name != NULL ? ARCHIVE_ROLE_VOLUME : ARCHIVE_ROLE_BASE,
                .parent = find_parent(x, i),
                .size_bytes = source->info.size_bytes,
                .source_id = source->info.id.value,
                .created_wall_ns = source->info.created_wall_ns};
        if (source->volume_name != NULL)
            strncpy(base->name, source->volume_name, STORE_NAME_MAX);
        x->result.volumes += source->volume_name != NULL;
    }
    x->contents.base_count = x->source_count;
    for (unsigned i = 0; i < x->doc_count; i++) {
        const struct doc *from = &x->docs[i];
        struct archive_doc *doc = &x->contents.docs[i];
        *doc = (struct archive_doc){.kind = from->kind,
                .base_count = from->base_count,
                .body_bytes = (uint32_t)from->body_bytes,
                .blob_bytes = (uint32_t)from->blob_bytes,
                .source_id = from->id.value,
                .created_wall_ns = from->created_wall_ns};
        memcpy(doc->name, from->name, sizeof doc->name);
        for (unsigned k = 0; k < from->base_count; k++)
            doc->bases[k] = index_of_base(x, from->bases[k]);
    }
    x->contents.doc_count = x->doc_count;
    x->result.bases = x->source_count - x->result.volumes;
    x->result.docs = x->doc_count;
    return 0;
}

static void free_exporter(struct exporter *x)
{
    for (unsigned i = 0; i < x->source_count; i++)
        base_close(x->sources[i].base);
    for (unsigned i = 0; i < x->doc_count; i++) {
        doc_free(&x->docs[i]);
        free(x->blobs[i]);
    }
    archive_format_free(&x->contents);
    io_buffer_free(x->piece);
    free(x->stored);
    free(x->sources);
    free(x->docs);
    free(x->blobs);
}

int archive_export(struct store *store, const struct archive_root *roots, unsigned root_count,
        archive_write_callback write, void *context, struct archive_result *ret_result, struct error *err)
{
    if (root_count == 0 || root_count > ARCHIVE_ENTRIES_MAX / DOC_REFS_MAX)
        return error_set(err, -EINVAL, "an archive takes 1 to %d volumes and snapshots",
                ARCHIVE_ENTRIES_MAX / DOC_REFS_MAX);
    struct exporter x = {.store = store, .write = write, .context = context};
    x.sources = calloc((size_t)root_count * DOC_REFS_MAX, sizeof *x.sources);
    x.docs = calloc(root_count, sizeof *x.docs);
    x.blobs = calloc(root_count, sizeof *x.blobs);
    x.stored = malloc(ARCHIVE_PIECE_BYTES);
    x.piece = io_buffer_alloc(ARCHIVE_PIECE_BYTES);
    int r = 0;
    if (x.sources == NULL || x.docs == NULL || x.blobs == NULL || x.stored == NULL)
        r = error_set(err, -ENOMEM, "no memory for the export");
    if (r == 0)
        r = take_roots(&x, roots, root_count, err);
    if (r == 0)
        r = describe(&x, err);
    if (r == 0)
        r = put_all(&x, err);
    if (r == 0)
        *ret_result = x.result;
    free_exporter(&x);
    return r;
}
