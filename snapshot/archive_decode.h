// SPDX-License-Identifier: Apache-2.0
// Reads an archive and checks everything that can be checked without a store: checksums, the order of
// records, ranges within their bases, counts, the end. What it hands out is right so far, but only when
// `verified` is called was it a whole archive. Threads: the caller's; blocks where its read callback does.
#pragma once

#include "snapshot/archive_format.h"

// Each may be NULL. A negative answer ends the reading and is its result.
struct archive_visitor {
    void *context;
    // Stays valid until `verified` has returned.
    int (*contents)(void *context, const struct archive_contents *contents, struct error *err);
    // Base by base, ascending; whole blocks except at the base's end. bytes: aligned, for EXTENT_DATA.
    int (*range)(void *context, unsigned base, enum extent_kind kind, uint64_t offset, uint64_t length_bytes,
            const void *bytes, struct error *err);
    int (*end)(void *context, unsigned base, struct error *err);
    // Docs follow, each with its body, then its blob, in pieces.
    int (*doc)(void *context, unsigned doc, bool is_blob, uint64_t offset, const void *bytes,
            size_t length_bytes, struct error *err);
    int (*verified)(void *context, struct error *err); // all was there, and nothing follows it
};

int archive_decode(archive_read_callback read, void *context, const struct archive_visitor *visitor,
        struct archive_result *ret_result, struct error *err);
