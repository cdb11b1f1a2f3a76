// SPDX-License-Identifier: Apache-2.0
// Archives: volumes, snapshots and machine snapshots as one stream of bytes that can be verified, and such a
// stream into any store. Format: blockstore/FORMAT.md, "Archive".
//
// What a base shares with an older one in the same archive is stored once, and the two are related again in
// the store that takes them. Neither secrets nor fingerprints of a store are in its archives; ids are, to
// name what bodies refer to.
//
// Threads: any that is not a loop; the calls wait, and run for as long as the data takes. Memory: O(1), and
// 64 MiB at most for bodies and blobs.
// Errors: -EBADMSG damaged, truncated or extended, -EPROTO newer, -EINVAL foreign or not allowed, -EEXIST,
// -ENOSPC, or what the stream's callback returned; each with a sentence that gives the byte.
#pragma once

#include "snapshot/volume.h"

enum {
    ARCHIVE_ENTRIES_MAX = 65536,      // bases and docs, each
    ARCHIVE_DOC_BYTES_MAX = 64 << 20, // bodies and blobs together
};

// What one export takes: a volume, as a base frozen of it under the name it shall have; or a doc with all
// bases that it names.
struct archive_root {
    const char *volume_name; // NULL = a doc
    struct base_id base;     // of a volume: kept by the caller until the export has begun reading
    struct doc_id doc;
};

struct archive_result {
    uint64_t volumes, bases, docs; // volumes are not counted as bases
    uint64_t records;
    uint64_t data_bytes;    // blocks with data, before compression
    uint64_t archive_bytes; // of the stream
};

// 0 or -errno; called with the bytes in order.
typedef int (*archive_write_callback)(void *context, const void *bytes, size_t size);
// Bytes read, 0 at the end, -errno.
typedef ssize_t (*archive_read_callback)(void *context, void *buffer, size_t capacity);

int archive_export(struct store *store, const struct archive_root *roots, unsigned root_count,
        archive_write_callback write, void *context, struct archive_result *ret_result, struct error *err);

struct archive_base_map { // a base of the archive and what it became
    struct base_id old, now;
};
struct archive_import_config {
    uint64_t domain; // dedup domain of what comes in; 0 = public
    archive_read_callback read;
    void *context; // of all callbacks
    // Called for each volume and each named doc before any data is read; may put another name (of
    // STORE_NAME_MAX bytes at most) into `name`. `doc` 0 = a volume. NULL = names stay.
    int (*choose_name)(void *context, enum doc_kind doc, char name[STORE_NAME_MAX + 1], struct error *err);
    // Bodies that refer to bases by number get the new numbers here. *ret_body is malloc'ed. NULL = as it is.
    int (*change_body)(void *context, const struct doc *doc, const struct archive_base_map *bases,
            unsigned count, char **ret_body, size_t *ret_body_bytes, struct error *err);
    // After the commit, for each thing that now exists, by its name. NULL = not wanted.
    void (*imported)(void *context, struct volume_id volume, struct doc_id doc);
};
// Nothing is visible in the store before the whole archive was verified; then all of it is, durably, by one
// record. On failure nothing is left; what a killed process leaves, passing_clean_up (passing.h) removes.
int archive_import(struct store *store, const struct archive_import_config *config,
        struct archive_result *ret_result, struct error *err);

// Reads an archive to its end without a store.
int archive_verify(
        archive_read_callback read, void *context, struct archive_result *ret_result, struct error *err);
