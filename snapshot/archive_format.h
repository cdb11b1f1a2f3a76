// SPDX-License-Identifier: Apache-2.0
// The bytes of an archive: header, records, contents, trailer. FORMAT.md has the tables.
//
// Everything after the header is a record: a head of 48 bytes and `stored_bytes` of payload. Checksums are
// chained: each record's are seeded with the running checksum of all before it, so that a record that is
// missing, doubled, moved or of another archive is found where it stands. Pure functions. Threads: any.
#pragma once

#include "snapshot/archive.h"

enum {
    ARCHIVE_VERSION = 1,
    ARCHIVE_MAGIC_BYTES = 8, // at the start of the header
    ARCHIVE_HEADER_BYTES = 64,
    ARCHIVE_HEAD_BYTES = 48,         // of a record
    ARCHIVE_PIECE_BYTES = 256 << 10, // payload of one record, uncompressed
    ARCHIVE_CONTENTS_MAX = 16 << 20,
    ARCHIVE_TRAILER_BYTES = 32,
};

enum archive_record_type {
    ARCHIVE_CONTENTS = 1, // a piece of the table of contents
    ARCHIVE_DATA = 2,     // bytes of a base
    ARCHIVE_ZERO = 3,     // a range of zeros
    ARCHIVE_UNMAPPED = 4, // a range of a difference that holds nothing any more
    ARCHIVE_END = 5,      // of a base
    ARCHIVE_BODY = 6,     // a piece of a doc's body
    ARCHIVE_BLOB = 7,     // a piece of a doc's blob
    ARCHIVE_TRAILER = 8,
};

struct archive_record {
    enum archive_record_type type;
    bool compressed;
    uint32_t entry; // index of the base or doc
    uint32_t stored_bytes;
    uint64_t offset, length_bytes; // of the range, or of the uncompressed piece
};

enum archive_role { ARCHIVE_ROLE_BASE = 1, ARCHIVE_ROLE_VOLUME = 2 };
enum { ARCHIVE_NO_PARENT = 0xffffffff };

struct archive_base {
    enum volume_kind kind;
    enum archive_role role;
    uint32_t parent; // index of an earlier one that this one is a difference to
    uint64_t size_bytes, source_id, created_wall_ns;
    char name[STORE_NAME_MAX + 1]; // of a volume
};
struct archive_doc {
    enum doc_kind kind;
    unsigned base_count;
    uint32_t bases[DOC_REFS_MAX]; // indexes
    uint32_t body_bytes, blob_bytes;
    uint64_t source_id, created_wall_ns;
    char name[STORE_NAME_MAX + 1];
};
struct archive_contents {
    struct archive_base *bases;
    struct archive_doc *docs;
    unsigned base_count, doc_count;
};
void archive_format_free(struct archive_contents *contents);
// *ret_bytes is malloc'ed.
int archive_format_encode(const struct archive_contents *contents, uint8_t **ret_bytes, size_t *ret_size);
// -EBADMSG, -EFBIG: says which part of the contents is wrong.
int archive_format_decode(
        uint8_t *bytes, size_t size, struct archive_contents *ret_contents, struct error *err);

struct archive_header {
    uint32_t version;
    uint64_t must_features, may_features;
    uint64_t created_wall_ns;
    uint64_t contents_bytes;
};
void archive_format_header_encode(const struct archive_header *header, uint8_t bytes[ARCHIVE_HEADER_BYTES]);
bool archive_format_is_one(const uint8_t magic[ARCHIVE_MAGIC_BYTES]);
int archive_format_header_decode(
        uint8_t bytes[ARCHIVE_HEADER_BYTES], struct archive_header *ret_header, struct error *err);

// Both directions of a record's head. `running` seeds the checksums.
void archive_format_head_encode(const struct archive_record *record, const void *payload, uint64_t running,
        uint8_t bytes[ARCHIVE_HEAD_BYTES]);
// -EBADMSG, with a word or two in *ret_why. *ret_sum: what the payload's checksum must be.
int archive_format_head_decode(uint8_t bytes[ARCHIVE_HEAD_BYTES], uint64_t running,
        struct archive_record *ret_record, uint64_t *ret_sum, const char **ret_why);

// Payloads: bytes of the smaller form, or 0 when `size` bytes do not get an eighth smaller. room: as large.
size_t archive_format_shrink(const void *bytes, size_t size, void *room);
int archive_format_expand(const void *stored, size_t stored_bytes, void *bytes, size_t size); // -EBADMSG

struct archive_trailer {
    uint64_t records, data_bytes, position, running;
};
void archive_format_trailer_encode(
        const struct archive_trailer *trailer, uint8_t bytes[ARCHIVE_TRAILER_BYTES]);
struct archive_trailer archive_format_trailer_decode(uint8_t bytes[ARCHIVE_TRAILER_BYTES]);
