// SPDX-License-Identifier: Apache-2.0
// The checkpoint's rows: in memory, as rows of the database, and as one string of bytes.
//
//   META 0          u32 version (1), u32 features a reader must know (0), u64 features it may ignore, u8[16]
//                   uuid of the store, u64 start file, u64 next segment, u64 checkpoints so far, u64 next
//                   segment to scrub, u64 wall ns
//   SEGMENT number  u32 generation, u16 kind, u16 zero, i32 level, u64 domain, u64 file bytes, u32 slots,
//                   u32 present, u32 frames
//   VOLUME id, BASE id   u64 root, u32 height
//   DOC id          u64 first block of the blob, u32 blocks
//   string: rows in order, each u8 kind, u64 id, u32 size, value
// A reader refuses a higher version, unknown features and unknown kinds (-EPROTO).
#include "snapshot/checkpoint.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_VERSION = 1, META_BYTES = 72, SEGMENT_BYTES = 48, ROOT_BYTES = 12, ROW_HEAD = 13 };

static void *grow(void *rows, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return rows;
    *capacity = *capacity == 0 ? 64 : *capacity * 2;
    rows = realloc(rows, *capacity * size);
    if (rows == NULL)
        abort();
    return rows;
}

void checkpoint_rows_add_root(struct checkpoint_rows *rows, const struct checkpoint_root *root)
{
    rows->roots = grow(rows->roots, &rows->root_capacity, rows->root_count, sizeof *root);
    rows->roots[rows->root_count++] = *root;
}

void checkpoint_rows_add_segment(struct checkpoint_rows *rows, const struct segment_row *row)
{
    rows->segments = grow(rows->segments, &rows->segment_capacity, rows->segment_count, sizeof *row);
    rows->segments[rows->segment_count++] = *row;
}

static int compare_roots(const void *a, const void *b)
{
    const struct checkpoint_root *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_segments(const void *a, const void *b)
{
    const struct segment_row *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

void checkpoint_rows_sort(struct checkpoint_rows *rows)
{
    if (rows->root_count > 1)
        qsort(rows->roots, rows->root_count, sizeof *rows->roots, compare_roots);
    if (rows->segment_count > 1)
        qsort(rows->segments, rows->segment_count, sizeof *rows->segments, compare_segments);
}

const struct checkpoint_root *checkpoint_rows_find(
        const struct checkpoint_rows *rows, enum checkpoint_kind kind, uint64_t id)
{
    struct checkpoint_root key = {.kind = kind, .id = id};
    return rows->root_count == 0 ? NULL
                                 : bsearch(&key, rows->roots, rows->root_count, sizeof key, compare_roots);
}

void checkpoint_rows_free(struct checkpoint_rows *rows)
{
    free(rows->roots);
    free(rows->segments);
    memset(rows, 0, sizeof *rows);
}

// ---- Values ----

static size_t encode_meta(const struct checkpoint_meta *meta, uint8_t *bytes)
{
    struct cursor c = cursor_make(bytes, META_BYTES);
    cursor_put_u32(&c, ROWS_VERSION);
    cursor_put_u32(&c, 0);
    cursor_put_u64(&c, 0);
    cursor_put_bytes(&c, meta->uuid, sizeof meta->uuid);
    cursor_put_u64(&c, meta->start_file);
    cursor_put_u64(&c, meta->next_segment);
    cursor_put_u64(&c, meta->count);
    cursor_put_u64(&c, meta->scrub_segment);
    cursor_put_u64(&c, meta->wall_ns);
    return META_BYTES;
}

static size_t encode_segment(const struct segment_row *row, uint8_t *bytes)
{
    struct cursor c = cursor_make(bytes, SEGMENT_BYTES);
    cursor_put_u32(&c, row->generation);
    cursor_put_u16(&c, (uint16_t)row->kind);
    cursor_put_u16(&c, 0);
    cursor_put_u32(&c, (uint32_t)row->level);
    cursor_put_u64(&c, row->domain);
    cursor_put_u64(&c, row->file_bytes);
    cursor_put_u32(&c, row->slots);
    cursor_put_u32(&c, row->present);
    cursor_put_u32(&c, row->frames);
    cursor_put_u32(&c, 0);
    cursor_put_u32(&c, 0);
    return SEGMENT_BYTES;
}

static size_t encode_root(const struct checkpoint_root *root, uint8_t *bytes)
{
    struct cursor c = cursor_make(bytes, ROOT_BYTES);
    cursor_put_u64(&c, root->root);
    cursor_put_u32(&c, root->height);
    return ROOT_BYTES;
}

static int decode_meta(struct cursor *c, struct checkpoint_meta *meta)
{
    uint32_t version = cursor_get_u32(c), features = cursor_get_u32(c);
    if (!c->bad && (version > ROWS_VERSION || features != 0))
        return -EPROTO;
    cursor_get_u64(c);
    cursor_get_bytes(c, meta->uuid, sizeof meta->uuid);
    meta->start_file = cursor_get_u64(c);
    meta->next_segment = cursor_get_u64(c);
    meta->count = cursor_get_u64(c);
    meta->scrub_segment = cursor_get_u64(c);
    meta->wall_ns = cursor_get_u64(c);
    return version == 0 ? -EBADMSG : 0;
}

static int decode_segment(struct cursor *c, uint64_t number, struct segment_row *row)
{
    row->number = number;
    row->generation = cursor_get_u32(c);
    row->kind = cursor_get_u16(c);
    cursor_get_u16(c);
    row->level = (int32_t)cursor_get_u32(c);
    row->domain = cursor_get_u64(c);
    row->file_bytes = cursor_get_u64(c);
    row->slots = cursor_get_u32(c);
    row->present = cursor_get_u32(c);
    row->frames = cursor_get_u32(c);
    cursor_get_u32(c);
    cursor_get_u32(c);
    bool known = row->kind == SEGMENT_DATA || row->kind == SEGMENT_NODES;
    bool fits = row->slots <= SEGMENT_SLOTS_MAX && row->present <= row->slots && number < LOCATOR_FILE_MAX;
    return !known ? -EPROTO : fits ? 0 : -EBADMSG;
}

static int decode_root(struct cursor *c, struct checkpoint_root *root)
{
    root->root = cursor_get_u64(c);
    root->height = cursor_get_u32(c);
    bool sealed = locator_is_segment(root->root) && locator_segment_slot(root->root) < SEGMENT_SLOTS_MAX;
    if (root->kind == CHECKPOINT_DOC)
        return sealed && root->height >= 1 && root->height <= DOC_BLOB_MAX / BLOCK_SIZE ? 0 : -EBADMSG;
    bool fill = root->root == LOCATOR_ZERO || root->root == LOCATOR_UNMAPPED;
    return (sealed || fill) && root->height >= 1 && root->height <= TREE_HEIGHT_MAX ? 0 : -EBADMSG;
}

static int add_row(struct checkpoint_rows *rows, const struct checkpoint_row *row)
{
    struct cursor c = cursor_make((void *)row->value, row->size);
    struct segment_row segment;
    struct checkpoint_root root = {.kind = row->kind, .id = row->id};
    int r;
    switch (row->kind) {
    case CHECKPOINT_META:
        r = decode_meta(&c, &rows->meta);
        break;
    case CHECKPOINT_SEGMENT:
        r = decode_segment(&c, row->id, &segment);
        if (r == 0 && !c.bad)
            checkpoint_rows_add_segment(rows, &segment);
        break;
    case CHECKPOINT_VOLUME:
    case CHECKPOINT_BASE:
    case CHECKPOINT_DOC:
        r = decode_root(&c, &root);
        if (r == 0 && !c.bad)
            checkpoint_rows_add_root(rows, &root);
        break;
    default:
        return -EPROTO;
    }
    return r < 0 ? r : c.bad || c.at != c.end ? -EBADMSG : 0;
}

// ---- Database ----

struct read_context {
    struct checkpoint_rows rows;
    struct error err; // what the row says is wrong
};

static int read_row(void *context, const struct checkpoint_row *row)
{
    struct read_context *read = context;
    int r = add_row(&read->rows, row);
    if (r == 0)
        return 0;
    return error_set(&read->err, r, "row %u/%llu of the catalog %s", row->kind, (unsigned long long)row->id,
            r == -EPROTO ? "was written by a newer version; use that one"
                         : "is damaged; run 'ramet store check --rebuild-catalog'");
}

int checkpoint_rows_read(struct checkpoint_db *db, struct checkpoint_rows *ret_rows, struct error *err)
{
    struct read_context read = {0};
    int r = checkpoint_db_read(db, read_row, &read, err);
    if (r < 0 && read.err.code != 0)
        r = error_set(err, r, "%s", read.err.text);
    if (r == 0 && read.rows.meta.start_file == 0 && read.rows.root_count + read.rows.segment_count > 0)
        r = error_set(err, -EBADMSG,
                "the catalog has rows but does not say where they end in the log; run 'ramet store check "
                "--rebuild-catalog'");
    if (r < 0) {
        checkpoint_rows_free(&read.rows);
        return r;
    }
    checkpoint_rows_sort(&read.rows);
    *ret_rows = read.rows;
    return 0;
}

// Every row with its value, in the database's order. Freed by one free(*ret_values) and free(the array).
static struct checkpoint_row *list_rows(
        const struct checkpoint_rows *rows, uint8_t **ret_values, size_t *ret_count)
{
    size_t count = 1 + rows->segment_count + rows->root_count, n = 0;
    struct checkpoint_row *list = calloc(count, sizeof *list);
    uint8_t *values = malloc(count * META_BYTES), *at = values;
    if (list == NULL || values == NULL)
        abort();
    list[n++] = (struct checkpoint_row){CHECKPOINT_META, 0, at, encode_meta(&rows->meta, at)};
    at += META_BYTES;
    for (size_t i = 0; i < rows->segment_count; i++, at += SEGMENT_BYTES)
        list[n++] = (struct checkpoint_row){
                CHECKPOINT_SEGMENT, rows->segments[i].number, at, encode_segment(&rows->segments[i], at)};
    for (size_t i = 0; i < rows->root_count; i++, at += ROOT_BYTES)
        list[n++] = (struct checkpoint_row){
                (uint8_t)rows->roots[i].kind, rows->roots[i].id, at, encode_root(&rows->roots[i], at)};
    *ret_values = values;
    *ret_count = count;
    return list;
}

int checkpoint_rows_commit(struct checkpoint_db *db, struct checkpoint_rows *rows, struct error *err)
{
    uint8_t *values;
    size_t count;
    checkpoint_rows_sort(rows);
    struct checkpoint_row *list = list_rows(rows, &values, &count);
    int r = checkpoint_db_commit(db, list, count, err);
    free(list);
    free(values);
    return r;
}

// ---- One string ----

void checkpoint_rows_encode(const struct checkpoint_rows *rows, void **ret_bytes, size_t *ret_size)
{
    uint8_t *values;
    size_t count, size = 0;
    struct checkpoint_row *list = list_rows(rows, &values, &count);
    for (size_t i = 0; i < count; i++)
        size += ROW_HEAD + list[i].size;
    uint8_t *bytes = malloc(size);
    if (bytes == NULL)
        abort();
    struct cursor c = cursor_make(bytes, size);
    for (size_t i = 0; i < count; i++) {
        cursor_put(&c, list[i].kind, 1);
        cursor_put_u64(&c, list[i].id);
        cursor_put_u32(&c, (uint32_t)list[i].size);
        cursor_put_bytes(&c, list[i].value, list[i].size);
    }
    free(list);
    free(values);
    *ret_bytes = bytes;
    *ret_size = size;
}

int checkpoint_rows_decode(const void *bytes, size_t size, struct checkpoint_rows *ret_rows)
{
    struct cursor c = cursor_make((void *)bytes, size);
    struct checkpoint_rows rows = {0};
    int r = 0;
    while (r == 0 && !c.bad && c.at != c.end) {
        struct checkpoint_row row;
        row.kind = (uint8_t)cursor_get(&c, 1);
        row.id = cursor_get_u64(&c);
        row.size = cursor_get_u32(&c);
        row.value = cursor_take(&c, row.size);
        r = c.bad ? -EBADMSG : add_row(&rows, &row);
    }
    if (r == 0 && rows.meta.start_file == 0)
        r = -EBADMSG;
    if (r < 0) {
        checkpoint_rows_free(&rows);
        return r;
    }
    checkpoint_rows_sort(&rows);
    *ret_rows = rows;
    return 0;
}
