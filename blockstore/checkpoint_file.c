// SPDX-License-Identifier: Apache-2.0
#include "blockstore/checkpoint_file.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 64 << 10, READ_TRIES = 1000 };
enum { HEADER_VERSION = 1, HEADER_MUST_KNOWN = 0 };
#define HEADER_MAGIC UINT64_C(0x5450434554454d52) // "RMETECPT"
#define SUM_SEED UINT64_C(0x636865636b70)

struct checkpoint_chunk {
    struct checkpoint_chunk *next;
    size_t used;
    uint8_t bytes[CHUNK_BYTES];
};

void checkpoint_file_key(const struct checkpoint_row *row, uint8_t ret_key[CHECKPOINT_KEY_BYTES])
{
    ret_key[0] = row->kind;
    for (unsigned i = 0; i < 8; i++) // the high byte first, so that LMDB sorts by number
        ret_key[1 + i] = (uint8_t)(row->id >> (8 * (7 - i)));
}

// Over key and value: rows that changed places are found too.
static uint64_t row_sum(const struct checkpoint_row *row)
{
    uint8_t bytes[CHECKPOINT_KEY_BYTES + CHECKPOINT_VALUE_MAX];
    checkpoint_file_key(row, bytes);
    if (row->size > 0)
        memcpy(bytes + CHECKPOINT_KEY_BYTES, row->value, row->size);
    return digest_bytes(bytes, CHECKPOINT_KEY_BYTES + row->size, SUM_SEED);
}

size_t checkpoint_file_frame(const struct checkpoint_row *row, uint8_t ret_frame[CHECKPOINT_FRAME_MAX])
{
    struct cursor c = cursor_make(ret_frame, CHECKPOINT_FRAME_MAX);
    cursor_put_bytes(&c, row->value, row->size);
    cursor_put_u64(&c, row_sum(row));
    return row->size + CHECKPOINT_SUM_BYTES;
}

struct header {
    uint64_t magic;
    uint32_t version, must_features;
    uint64_t transaction, count, sum;
};

void checkpoint_file_header(
        const struct checkpoint_row *rows, size_t count, uint64_t transaction, uint8_t *ret_header)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += row_sum(&rows[i]);
    struct cursor c = cursor_make(ret_header, CHECKPOINT_HEADER_BYTES);
    cursor_put_u64(&c, HEADER_MAGIC);
    cursor_put_u64(&c, HEADER_VERSION | (uint64_t)HEADER_MUST_KNOWN << 32);
    cursor_put_u64(&c, transaction);
    cursor_put_u64(&c, count);
    cursor_put_u64(&c, sum);
    cursor_put_u64(&c, digest_bytes(ret_header, CHECKPOINT_HEADER_BYTES - CHECKPOINT_SUM_BYTES, SUM_SEED));
}

// Reading

struct reading {
    const char *path;
    struct checkpoint_file file;
    struct header header;
    bool have_header;
    uint64_t count, sum; // of the rows seen
    bool keep;
};

static int header_get(struct reading *reading, const uint8_t *value, size_t size, struct error *err)
{
    if (size != CHECKPOINT_HEADER_BYTES)
        return error_set(err, -EBADMSG,
                "%s: the header of the catalog has %zu bytes instead of %d; put a copy of the file back, or "
                "rebuild the catalog",
                reading->path, size, CHECKPOINT_HEADER_BYTES);
    struct cursor c = cursor_make((uint8_t *)value, size);
    struct header header;
    header.magic = cursor_get_u64(&c);
    header.version = cursor_get_u32(&c);
    header.must_features = cursor_get_u32(&c);
    header.transaction = cursor_get_u64(&c);
    header.count = cursor_get_u64(&c);
    header.sum = cursor_get_u64(&c);
    if (header.magic != HEADER_MAGIC ||
            cursor_get_u64(&c) != digest_bytes(value, size - CHECKPOINT_SUM_BYTES, SUM_SEED))
        return error_set(err, -EBADMSG,
                "%s: the header of the catalog is damaged; put a copy of the file back, or rebuild the "
                "catalog",
                reading->path);
    if (header.version != HEADER_VERSION || header.must_features & ~(uint32_t)HEADER_MUST_KNOWN)
        return error_set(err, -EPROTO,
                "%s: the catalog has format %u with features %#x, this program knows %d and %#x: use a newer "
                "program",
                reading->path, header.version, header.must_features, HEADER_VERSION, HEADER_MUST_KNOWN);
    reading->header = header;
    reading->have_header = true;
    return 0;
}

static uint8_t *chunk_take(struct checkpoint_file *file, size_t size)
{
    struct checkpoint_chunk *chunk = file->chunks;
    if (chunk == NULL || CHUNK_BYTES - chunk->used < size) {
        chunk = malloc(sizeof *chunk);
        if (chunk == NULL)
            return NULL;
        chunk->next = file->chunks;
        chunk->used = 0;
        file->chunks = chunk;
    }
    uint8_t *bytes = chunk->bytes + chunk->used;
    chunk->used += size;
    return bytes;
}

static int row_keep(struct checkpoint_file *file, const struct checkpoint_row *row)
{
    if (file->count == file->room) {
        size_t room = file->room == 0 ? 256 : 2 * file->room;
        struct checkpoint_row *rows = realloc(file->rows, room * sizeof *rows);
        if (rows == NULL)
            return -ENOMEM;
        file->rows = rows;
        file->room = room;
    }
    uint8_t *value = chunk_take(file, row->size);
    if (value == NULL)
        return -ENOMEM;
    memcpy(value, row->value, row->size);
    file->rows[file->count] = *row;
    file->rows[file->count++].value = value;
    return 0;
}

static int row_get(void *context, const uint8_t *key, size_t key_size, const uint8_t *value, size_t size,
        struct error *err)
{
    struct reading *reading = context;
    if (key_size == CHECKPOINT_HEADER_KEY_BYTES && key[0] == 0)
        return header_get(reading, value, size, err);
    if (!reading->have_header || key_size != CHECKPOINT_KEY_BYTES || size < CHECKPOINT_SUM_BYTES ||
            size > CHECKPOINT_FRAME_MAX)
        return error_set(err, -EBADMSG,
                "%s holds something else than a catalog of this program, or is damaged; put a copy of the "
                "file "
                "back, or rebuild the catalog",
                reading->path);
    struct checkpoint_row row = {.kind = key[0], .value = value, .size = size - CHECKPOINT_SUM_BYTES};
    for (unsigned i = 1; i < CHECKPOINT_KEY_BYTES; i++)
        row.id = row.id << 8 | key[i];
    struct cursor c = cursor_make((uint8_t *)value + row.size, CHECKPOINT_SUM_BYTES);
    uint64_t sum = row_sum(&row);
    if (cursor_get_u64(&c) != sum)
        return error_set(err, -EBADMSG,
                "%s: the row of kind %u and id %llu does not match its checksum; put a copy of the file "
                "back, or "
                "rebuild the catalog",
                reading->path, row.kind, (unsigned long long)row.id);
    reading->sum += sum;
    reading->count++;
    int r = reading->keep ? row_keep(&reading->file, &row) : 0;
    return r < 0 ? error_set(err, r, "no memory to read %s", reading->path) : 0;
}

static int state_read(int fd, const char *path, bool older, struct reading *reading, struct error *err)
{
    *reading = (struct reading){.path = path, .keep = !older};
    int r = checkpoint_pages_read(fd, path, older, row_get, reading, &reading->file.state, err);
    if (r < 0)
        return r;
    uint64_t transaction = reading->file.state.transaction;
    if (older && transaction == 0 && !reading->have_header)
        return 0; // the state before the first commit
    if (!reading->have_header || reading->header.transaction != transaction ||
            reading->header.count != reading->count || reading->header.sum != reading->sum)
        return error_set(err, -EBADMSG,
                "%s: the rows of transaction %llu are not those that its header speaks of; put a copy of the "
                "file back, or rebuild the catalog",
                path, (unsigned long long)transaction);
    return 0;
}

int checkpoint_file_read(int fd, const char *path, struct checkpoint_file *ret_file, struct error *err)
{
    struct reading newest, older;
    int r = -ESTALE;
    for (unsigned tries = 0; r == -ESTALE && tries < READ_TRIES; tries++) {
        r = state_read(fd, path, false, &newest, err);
        if (r == 0) {
            r = state_read(fd, path, true, &older, err);
            // Written over: somebody commits beside us, so nothing can bring back what was older then.
            if (r == -ESTALE)
                r = 0;
        }
        if (r < 0)
            checkpoint_file_done(&newest.file);
    }
    if (r == -ESTALE)
        r = error_set(err, -EAGAIN, "%s is written faster than it can be read; try again", path);
    if (r == 0)
        *ret_file = newest.file;
    return r;
}

void checkpoint_file_done(struct checkpoint_file *file)
{
    while (file->chunks != NULL) {
        struct checkpoint_chunk *next = file->chunks->next;
        free(file->chunks);
        file->chunks = next;
    }
    free(file->rows);
    *file = (struct checkpoint_file){0};
}
