// SPDX-License-Identifier: Apache-2.0
#include "snapshot/archive_decode.h"

#include "blockstore/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct decoder {
    archive_read_callback read;
    void *read_context;
    const struct archive_visitor *visitor;
    uint64_t position; // bytes read
    uint64_t running;  // checksum of everything before the current record
    struct archive_result result;
    struct archive_contents contents;
    uint8_t *contents_bytes;
    uint64_t contents_size, contents_got;
    // Where we are: base, doc, and how far in it.
    unsigned base, doc;
    uint64_t at;
    bool in_blob;
    uint8_t *stored, *piece; // ARCHIVE_PIECE_BYTES each; piece is what a record holds, uncompressed
};

static int read_all(struct decoder *d, void *bytes, size_t size, struct error *err)
{
    for (size_t got = 0; got < size;) {
        ssize_t part = d->read(d->read_context, (char *)bytes + got, size - got);
        if (part < 0)
            return error_set(err, (int)part, "the archive could not be read on at byte %" PRIu64 ": %s",
                    d->position, strerror((int)-part));
        if (part == 0)
            return error_set(err, -EBADMSG,
                    "the archive is cut off: it ends at byte %" PRIu64 ", in the middle", d->position);
        got += (size_t)part;
        d->position += (uint64_t)part;
    }
    return 0;
}

static int damaged(uint64_t position, const char *why, struct error *err)
{
    return error_set(err, -EBADMSG, "the archive is damaged at byte %" PRIu64 ": %s", position, why);
}

// ---- What each kind of record means ----

static int take_contents(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    if (record->offset != d->contents_got || record->length_bytes > d->contents_size - d->contents_got)
        return damaged(position, "a piece of the table of contents is out of place", err);
    memcpy(d->contents_bytes + d->contents_got, d->piece, record->length_bytes);
    d->contents_got += record->length_bytes;
    if (d->contents_got < d->contents_size)
        return 0;
    int r = archive_format_decode(d->contents_bytes, d->contents_size, &d->contents, err);
    if (r < 0) {
        error_prefix(err, "the archive's table of contents, at byte %" PRIu64 ", is of no use", position);
        return r;
    }
    for (unsigned i = 0; i < d->contents.base_count; i++)
        d->result.volumes += d->contents.bases[i].role == ARCHIVE_ROLE_VOLUME;
    d->result.bases = d->contents.base_count - d->result.volumes;
    d->result.docs = d->contents.doc_count;
    return d->visitor->contents == NULL ? 0 : d->visitor->contents(d->visitor->context, &d->contents, err);
}

static int take_range(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    if (d->base >= d->contents.base_count || record->entry != d->base)
        return damaged(position, "a range of a volume whose turn it is not", err);
    uint64_t size = d->contents.bases[d->base].size_bytes, offset = record->offset,
             length = record->length_bytes;
    if (offset < d->at || offset > size || length == 0 || length > size - offset ||
            offset % BLOCK_SIZE != 0 || (length % BLOCK_SIZE != 0 && offset + length != size))
        return damaged(position, "a range that is outside its volume, or before the one before", err);
    d->at = offset + length;
    enum extent_kind kind = record->type == ARCHIVE_DATA   ? EXTENT_DATA
                            : record->type == ARCHIVE_ZERO ? EXTENT_ZERO
                                                           : EXTENT_UNMAPPED;
    if (kind == EXTENT_DATA)
        d->result.data_bytes += length;
    if (d->visitor->range == NULL)
        return 0;
    return d->visitor->range(
            d->visitor->context, d->base, kind, offset, length, kind == EXTENT_DATA ? d->piece : NULL, err);
}

static int take_end(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    if (d->base >= d->contents.base_count || record->entry != d->base || record->offset != 0 ||
            record->length_bytes != 0)
        return damaged(position, "the end of a volume whose turn it is not", err);
    d->at = 0;
    unsigned base = d->base++;
    return d->visitor->end == NULL ? 0 : d->visitor->end(d->visitor->context, base, err);
}

// Steps over what is complete: a doc may have no body, or no blob.
static void settle_doc(struct decoder *d)
{
    while (d->doc < d->contents.doc_count) {
        const struct archive_doc *doc = &d->contents.docs[d->doc];
        if (d->at < (d->in_blob ? doc->blob_bytes : doc->body_bytes))
            return;
        d->at = 0;
        d->doc += d->in_blob ? 1 : 0;
        d->in_blob = !d->in_blob;
    }
}

static int take_doc(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    bool is_blob = record->type == ARCHIVE_BLOB;
    if (d->base < d->contents.base_count)
        return damaged(position, "a document before the last volume has ended", err);
    settle_doc(d);
    if (d->doc >= d->contents.doc_count || record->entry != d->doc || is_blob != d->in_blob)
        return damaged(position, "a piece of a document whose turn it is not", err);
    const struct archive_doc *doc = &d->contents.docs[d->doc];
    if (record->offset != d->at ||
            record->length_bytes > (is_blob ? doc->blob_bytes : doc->body_bytes) - d->at)
        return damaged(position, "a piece of a document that is out of place", err);
    d->at += record->length_bytes;
    if (d->visitor->doc == NULL)
        return 0;
    return d->visitor->doc(
            d->visitor->context, record->entry, is_blob, record->offset, d->piece, record->length_bytes, err);
}

static int take_trailer(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    settle_doc(d);
    if (d->base < d->contents.base_count || d->doc < d->contents.doc_count)
        return damaged(position, "its end comes before all is there", err);
    if (record->length_bytes != ARCHIVE_TRAILER_BYTES || record->entry != 0 || record->offset != 0)
        return damaged(position, "its end has a wrong form", err);
    struct archive_trailer trailer = archive_format_trailer_decode(d->piece);
    if (trailer.records != d->result.records || trailer.data_bytes != d->result.data_bytes ||
            trailer.position != position || trailer.running != d->running)
        return damaged(position, "what its end counts is not what came", err);
    uint8_t byte;
    ssize_t more = d->read(d->read_context, &byte, 1);
    if (more < 0)
        return error_set(err, (int)more, "the archive could not be read on at byte %" PRIu64 ": %s",
                d->position, strerror((int)-more));
    if (more > 0)
        return error_set(err, -EBADMSG,
                "the archive goes on behind its end, at byte %" PRIu64
                ": something was appended, or two were joined; give them one by one",
                d->position);
    return 0;
}

// ---- Reading ----

// One record into d->piece; its checksums are good when this returns 0.
static int read_record(
        struct decoder *d, struct archive_record *ret_record, uint64_t *ret_running, struct error *err)
{
    uint8_t head[ARCHIVE_HEAD_BYTES];
    uint64_t position = d->position, sum;
    const char *why;
    int r = read_all(d, head, sizeof head, err);
    if (r < 0)
        return r;
    if (archive_format_head_decode(head, d->running, ret_record, &sum, &why) < 0)
        return damaged(position, why, err);
    uint8_t *into = ret_record->compressed ? d->stored : d->piece;
    r = read_all(d, into, ret_record->stored_bytes, err);
    if (r < 0)
        return r;
    if (digest_bytes(into, ret_record->stored_bytes, d->running) != sum)
        return damaged(position + ARCHIVE_HEAD_BYTES, "the checksum of a record's bytes differs", err);
    if (ret_record->compressed && archive_format_expand(d->stored, ret_record->stored_bytes, d->piece,
                                          ret_record->length_bytes) < 0)
        return damaged(position + ARCHIVE_HEAD_BYTES, "a record's bytes cannot be decompressed", err);
    *ret_running = digest_bytes(head, sizeof head, d->running);
    return 0;
}

static int take_record(
        struct decoder *d, const struct archive_record *record, uint64_t position, struct error *err)
{
    bool has_contents = d->contents_got == d->contents_size;
    if (has_contents == (record->type == ARCHIVE_CONTENTS))
        return damaged(position, "a record that is out of order", err);
    switch (record->type) {
    case ARCHIVE_CONTENTS:
        return take_contents(d, record, position, err);
    case ARCHIVE_DATA:
    case ARCHIVE_ZERO:
    case ARCHIVE_UNMAPPED:
        return take_range(d, record, position, err);
    case ARCHIVE_END:
        return take_end(d, record, position, err);
    case ARCHIVE_BODY:
    case ARCHIVE_BLOB:
        return take_doc(d, record, position, err);
    case ARCHIVE_TRAILER:
        return take_trailer(d, record, position, err);
    }
    return damaged(position, "a record of an unknown kind", err);
}

static int decode(struct decoder *d, struct error *err)
{
    uint8_t bytes[ARCHIVE_HEADER_BYTES] = {0};
    struct archive_header header;
    int r = read_all(d, bytes, ARCHIVE_MAGIC_BYTES, err);
    if (r == 0 && archive_format_is_one(bytes)) // else the rest need not be there
        r = read_all(d, bytes + ARCHIVE_MAGIC_BYTES, sizeof bytes - ARCHIVE_MAGIC_BYTES, err);
    if (r == 0)
        r = archive_format_header_decode(bytes, &header, err);
    if (r < 0)
        return r;
    d->running = digest_bytes(bytes, sizeof bytes, 0);
    d->contents_size = header.contents_bytes;
    d->contents_bytes = malloc(d->contents_size);
    if (d->contents_bytes == NULL)
        return error_set(err, -ENOMEM, "no memory for the archive's table of contents");
    for (;;) {
        struct archive_record record;
        uint64_t position = d->position, running = 0;
        r = read_record(d, &record, &running, err);
        if (r == 0)
            r = take_record(d, &record, position, err);
        if (r < 0)
            return r;
        d->running = running;
        d->result.records++;
        if (record.type == ARCHIVE_TRAILER)
            return d->visitor->verified == NULL ? 0 : d->visitor->verified(d->visitor->context, err);
    }
}

int archive_decode(archive_read_callback read, void *context, const struct archive_visitor *visitor,
        struct archive_result *ret_result, struct error *err)
{
    struct decoder d = {.read = read, .read_context = context, .visitor = visitor};
    d.stored = malloc(ARCHIVE_PIECE_BYTES);
    d.piece = io_buffer_alloc(ARCHIVE_PIECE_BYTES);
    int r = d.stored == NULL || d.piece == NULL ? error_set(err, -ENOMEM, "no memory for the archive")
                                                : decode(&d, err);
    io_buffer_free(d.piece);
    free(d.stored);
    free(d.contents_bytes);
    archive_format_free(&d.contents);
    if (r == 0) {
        d.result.archive_bytes = d.position;
        *ret_result = d.result;
    }
    return r;
}

int archive_verify(
        archive_read_callback read, void *context, struct archive_result *ret_result, struct error *err)
{
    return archive_decode(read, context, &(struct archive_visitor){0}, ret_result, err);
}
