// SPDX-License-Identifier: Apache-2.0
#include "snapshot/archive_format.h"

#include "blockstore/codec.h"
#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { LEVEL = 3 };                                         // of zstd: archives are kept and sent
enum { BASE_BYTES = 40, DOC_BYTES = 32, COUNTS_BYTES = 8 }; // fixed parts, without names and references
static const char MAGIC[ARCHIVE_MAGIC_BYTES] = "RAMETARC";
static const uint32_t RECORD_MAGIC = 0x43524152; // "RARC"

void archive_format_free(struct archive_contents *contents)
{
    free(contents->bases);
    free(contents->docs);
    *contents = (struct archive_contents){0};
}

// ---- Header ----

void archive_format_header_encode(const struct archive_header *header, uint8_t bytes[ARCHIVE_HEADER_BYTES])
{
    struct cursor c = cursor_make(bytes, ARCHIVE_HEADER_BYTES);
    memset(bytes, 0, ARCHIVE_HEADER_BYTES);
    cursor_put_bytes(&c, MAGIC, sizeof MAGIC);
    cursor_put_u32(&c, header->version);
    cursor_put_u32(&c, ARCHIVE_HEADER_BYTES);
    cursor_put_u64(&c, header->must_features);
    cursor_put_u64(&c, header->may_features);
    cursor_put_u64(&c, header->created_wall_ns);
    cursor_put_u64(&c, header->contents_bytes);
    c = cursor_make(bytes + ARCHIVE_HEADER_BYTES - 8, 8);
    cursor_put_u64(&c, digest_bytes(bytes, ARCHIVE_HEADER_BYTES - 8, 0));
}

bool archive_format_is_one(const uint8_t magic[ARCHIVE_MAGIC_BYTES])
{
    return memcmp(magic, MAGIC, sizeof MAGIC) == 0;
}

int archive_format_header_decode(
        uint8_t bytes[ARCHIVE_HEADER_BYTES], struct archive_header *ret_header, struct error *err)
{
    struct archive_header header;
    struct cursor sum = cursor_make(bytes + ARCHIVE_HEADER_BYTES - 8, 8);
    struct cursor c = cursor_make(bytes, ARCHIVE_HEADER_BYTES - 8);
    if (!archive_format_is_one(cursor_take(&c, sizeof MAGIC)))
        return error_set(err, -EINVAL,
                "this is no archive of a Ramet store (bytes 0 to 7 are not RAMETARC); `ramet store export` "
                "makes one, `ramet volume import` takes disk images");
    if (cursor_get_u64(&sum) != digest_bytes(bytes, ARCHIVE_HEADER_BYTES - 8, 0))
        return error_set(err, -EBADMSG,
                "the archive is damaged in its header (bytes 0 to %d): the checksum differs",
                ARCHIVE_HEADER_BYTES - 1);
    header.version = cursor_get_u32(&c);
    uint32_t header_bytes = cursor_get_u32(&c);
    header.must_features = cursor_get_u64(&c);
    header.may_features = cursor_get_u64(&c);
    header.created_wall_ns = cursor_get_u64(&c);
    header.contents_bytes = cursor_get_u64(&c);
    if (header.version != ARCHIVE_VERSION || header_bytes != ARCHIVE_HEADER_BYTES)
        return error_set(err, -EPROTO,
                "the archive has format version %" PRIu32 " (byte 8), and this program knows version %d: use "
                "the program that wrote it, or a newer one",
                header.version, ARCHIVE_VERSION);
    if (header.must_features != 0)
        return error_set(err, -EPROTO,
                "the archive needs features that this program does not know (bits %" PRIx64 " at byte 16): "
                "use the program that wrote it, or a newer one",
                header.must_features);
    if (header.contents_bytes < COUNTS_BYTES || header.contents_bytes > ARCHIVE_CONTENTS_MAX)
        return error_set(err, -EBADMSG,
                "the archive's header (byte 40) says that its table of contents has %" PRIu64
                " bytes, which no program writes",
                header.contents_bytes);
    *ret_header = header;
    return 0;
}

// ---- Records ----

void archive_format_head_encode(const struct archive_record *record, const void *payload, uint64_t running,
        uint8_t bytes[ARCHIVE_HEAD_BYTES])
{
    struct cursor c = cursor_make(bytes, ARCHIVE_HEAD_BYTES);
    cursor_put_u32(&c, RECORD_MAGIC);
    cursor_put_u16(&c, (uint16_t)record->type);
    cursor_put_u16(&c, record->compressed ? 1 : 0);
    cursor_put_u32(&c, record->entry);
    cursor_put_u32(&c, record->stored_bytes);
    cursor_put_u64(&c, record->offset);
    cursor_put_u64(&c, record->length_bytes);
    cursor_put_u64(&c, digest_bytes(payload, record->stored_bytes, running));
    cursor_put_u64(&c, digest_bytes(bytes, ARCHIVE_HEAD_BYTES - 8, running));
}

int archive_format_head_decode(uint8_t bytes[ARCHIVE_HEAD_BYTES], uint64_t running,
        struct archive_record *ret_record, uint64_t *ret_sum, const char **ret_why)
{
    struct cursor c = cursor_make(bytes, ARCHIVE_HEAD_BYTES);
    struct archive_record record;
    bool magic = cursor_get_u32(&c) == RECORD_MAGIC;
    unsigned type = cursor_get_u16(&c), codec = cursor_get_u16(&c);
    record.type = (enum archive_record_type)type;
    record.compressed = codec == 1;
    record.entry = cursor_get_u32(&c);
    record.stored_bytes = cursor_get_u32(&c);
    record.offset = cursor_get_u64(&c);
    record.length_bytes = cursor_get_u64(&c);
    uint64_t sum = cursor_get_u64(&c);
    bool good = cursor_get_u64(&c) == digest_bytes(bytes, ARCHIVE_HEAD_BYTES - 8, running);
    if (!magic || !good) {
        *ret_why = magic ? "the checksum of a record's head differs" : "no record begins here";
        return -EBADMSG;
    }
    bool has_payload = type != ARCHIVE_ZERO && type != ARCHIVE_UNMAPPED && type != ARCHIVE_END;
    *ret_why = NULL;
    if (type < ARCHIVE_CONTENTS || type > ARCHIVE_TRAILER || codec > 1)
        *ret_why = "a record of an unknown kind";
    else if (!has_payload && (record.stored_bytes != 0 || codec != 0))
        *ret_why = "a record with bytes where there are none";
    else if (has_payload && (record.length_bytes == 0 || record.length_bytes > ARCHIVE_PIECE_BYTES))
        *ret_why = "a piece of an impossible size";
    else if (has_payload &&
             (codec == 1 ? record.stored_bytes == 0 || record.stored_bytes >= record.length_bytes
                         : record.stored_bytes != record.length_bytes))
        *ret_why = "a piece whose sizes contradict each other";
    if (*ret_why != NULL)
        return -EBADMSG;
    *ret_record = record;
    *ret_sum = sum;
    return 0;
}

void archive_format_trailer_encode(
        const struct archive_trailer *trailer, uint8_t bytes[ARCHIVE_TRAILER_BYTES])
{
    struct cursor c = cursor_make(bytes, ARCHIVE_TRAILER_BYTES);
    cursor_put_u64(&c, trailer->records);
    cursor_put_u64(&c, trailer->data_bytes);
    cursor_put_u64(&c, trailer->position);
    cursor_put_u64(&c, trailer->running);
}

struct archive_trailer archive_format_trailer_decode(uint8_t bytes[ARCHIVE_TRAILER_BYTES])
{
    struct cursor c = cursor_make(bytes, ARCHIVE_TRAILER_BYTES);
    struct archive_trailer trailer;
    trailer.records = cursor_get_u64(&c);
    trailer.data_bytes = cursor_get_u64(&c);
    trailer.position = cursor_get_u64(&c);
    trailer.running = cursor_get_u64(&c);
    return trailer;
}

// ---- Payloads ----

size_t archive_format_shrink(const void *bytes, size_t size, void *room)
{
    enum codec codec;
    size_t stored = codec_compress(bytes, size, LEVEL, CODEC_ZSTD, room, &codec);
    return codec == CODEC_RAW ? 0 : stored;
}

int archive_format_expand(const void *stored, size_t stored_bytes, void *bytes, size_t size)
{
    return codec_decompress(stored, stored_bytes, CODEC_ZSTD, bytes, size);
}

// ---- Contents ----

static void put_name(struct cursor *c, const char *name)
{
    cursor_put_bytes(c, name, strlen(name));
}

int archive_format_encode(const struct archive_contents *contents, uint8_t **ret_bytes, size_t *ret_size)
{
    size_t size = COUNTS_BYTES;
    for (unsigned i = 0; i < contents->base_count; i++)
        size += BASE_BYTES + strlen(contents->bases[i].name);
    for (unsigned i = 0; i < contents->doc_count; i++)
        size += DOC_BYTES + 4 * contents->docs[i].base_count + strlen(contents->docs[i].name);
    if (size > ARCHIVE_CONTENTS_MAX)
        return -EFBIG;
    uint8_t *bytes = calloc(1, size);
    if (bytes == NULL)
        return -ENOMEM;
    struct cursor c = cursor_make(bytes, size);
    cursor_put_u32(&c, contents->base_count);
    cursor_put_u32(&c, contents->doc_count);
    for (unsigned i = 0; i < contents->base_count; i++) {
        const struct archive_base *base = &contents->bases[i];
        cursor_put(&c, base->kind, 1);
        cursor_put(&c, base->role, 1);
        cursor_put_u16(&c, (uint16_t)strlen(base->name));
        cursor_put_u32(&c, base->parent);
        cursor_put_u64(&c, base->size_bytes);
        cursor_put_u64(&c, base->source_id);
        cursor_put_u64(&c, base->created_wall_ns);
        cursor_put_u64(&c, 0);
        put_name(&c, base->name);
    }
    for (unsigned i = 0; i < contents->doc_count; i++) {
        const struct archive_doc *doc = &contents->docs[i];
        cursor_put(&c, doc->kind, 1);
        cursor_put(&c, doc->base_count, 1);
        cursor_put_u16(&c, (uint16_t)strlen(doc->name));
        cursor_put_u32(&c, doc->body_bytes);
        cursor_put_u32(&c, doc->blob_bytes);
        cursor_put_u32(&c, 0);
        cursor_put_u64(&c, doc->source_id);
        cursor_put_u64(&c, doc->created_wall_ns);
        for (unsigned k = 0; k < doc->base_count; k++)
            cursor_put_u32(&c, doc->bases[k]);
        put_name(&c, doc->name);
    }
    *ret_bytes = bytes;
    *ret_size = size;
    return 0;
}

static bool get_name(struct cursor *c, unsigned length, char name[STORE_NAME_MAX + 1])
{
    const uint8_t *bytes = length <= STORE_NAME_MAX ? cursor_take(c, length) : NULL;
    if (bytes == NULL || memchr(bytes, 0, length) != NULL)
        return false;
    memcpy(name, bytes, length);
    name[length] = '\0';
    return true;
}

static bool decode_base(struct cursor *c, const struct archive_contents *contents, unsigned index)
{
    struct archive_base *base = &contents->bases[index];
    unsigned kind = (unsigned)cursor_get(c, 1), role = (unsigned)cursor_get(c, 1), length = cursor_get_u16(c);
    base->kind = (enum volume_kind)kind;
    base->role = (enum archive_role)role;
    base->parent = cursor_get_u32(c);
    base->size_bytes = cursor_get_u64(c);
    base->source_id = cursor_get_u64(c);
    base->created_wall_ns = cursor_get_u64(c);
    cursor_get_u64(c);
    bool named = get_name(c, length, base->name);
    if (c->bad || !named || (kind != VOLUME_DISK && kind != VOLUME_MEMORY) ||
            (role != ARCHIVE_ROLE_BASE && role != ARCHIVE_ROLE_VOLUME) ||
            (role == ARCHIVE_ROLE_VOLUME) != (length > 0) || base->size_bytes == 0 ||
            base->size_bytes > INT64_MAX - BLOCK_SIZE)
        return false;
    if (base->parent == ARCHIVE_NO_PARENT)
        return true;
    return base->parent < index && contents->bases[base->parent].size_bytes <= base->size_bytes &&
           contents->bases[base->parent].kind == base->kind;
}

static bool decode_doc(struct cursor *c, const struct archive_contents *contents, unsigned index)
{
    struct archive_doc *doc = &contents->docs[index];
    unsigned kind = (unsigned)cursor_get(c, 1), count = (unsigned)cursor_get(c, 1),
             length = cursor_get_u16(c);
    doc->kind = (enum doc_kind)kind;
    doc->base_count = count;
    doc->body_bytes = cursor_get_u32(c);
    doc->blob_bytes = cursor_get_u32(c);
    cursor_get_u32(c);
    doc->source_id = cursor_get_u64(c);
    doc->created_wall_ns = cursor_get_u64(c);
    if (c->bad || count > DOC_REFS_MAX || (kind != DOC_SNAPSHOT && kind != DOC_MACHINE) ||
            doc->body_bytes > DOC_BODY_MAX || doc->blob_bytes > DOC_BLOB_MAX)
        return false;
    for (unsigned k = 0; k < count; k++) {
        doc->bases[k] = cursor_get_u32(c);
        if (c->bad || doc->bases[k] >= contents->base_count ||
                contents->bases[doc->bases[k]].role != ARCHIVE_ROLE_BASE)
            return false;
    }
    return get_name(c, length, doc->name);
}

int archive_format_decode(
        uint8_t *bytes, size_t size, struct archive_contents *ret_contents, struct error *err)
{
    struct cursor c = cursor_make(bytes, size);
    struct archive_contents contents = {0};
    uint32_t base_count = cursor_get_u32(&c), doc_count = cursor_get_u32(&c);
    uint64_t doc_bytes = 0;
    // Every entry takes its fixed part at least, so the counts are bounded by what is there.
    if (c.bad || base_count > ARCHIVE_ENTRIES_MAX || doc_count > ARCHIVE_ENTRIES_MAX ||
            (uint64_t)base_count * BASE_BYTES + (uint64_t)doc_count * DOC_BYTES > size)
        return error_set(err, -EBADMSG, "its counts do not fit its size");
    contents.bases = calloc(base_count + 1, sizeof *contents.bases);
    contents.docs = calloc(doc_count + 1, sizeof *contents.docs);
    if (contents.bases == NULL || contents.docs == NULL) {
        archive_format_free(&contents);
        return error_set(err, -ENOMEM, "no memory for it");
    }
    contents.base_count = base_count;
    contents.doc_count = doc_count;
    int r = 0;
    for (unsigned i = 0; i < base_count && r == 0; i++)
        if (!decode_base(&c, &contents, i))
            r = error_set(err, -EBADMSG, "entry %u of its bases makes no sense", i);
    for (unsigned i = 0; i < doc_count && r == 0; i++) {
        if (!decode_doc(&c, &contents, i))
            r = error_set(err, -EBADMSG, "entry %u of its documents makes no sense", i);
        doc_bytes += (uint64_t)contents.docs[i].body_bytes + contents.docs[i].blob_bytes;
    }
    if (r == 0 && c.at != c.end)
        r = error_set(err, -EBADMSG, "it has bytes behind its last entry");
    if (r == 0 && doc_bytes > ARCHIVE_DOC_BYTES_MAX)
        r = error_set(
                err, -EFBIG, "its documents are larger than %d MiB together", ARCHIVE_DOC_BYTES_MAX >> 20);
    if (r < 0)
        archive_format_free(&contents);
    else
        *ret_contents = contents;
    return r;
}
