// SPDX-License-Identifier: Apache-2.0
// Working set of a machine snapshot: the pages of guest memory that a resume of it touches in its first
// seconds. It is recorded once and brought into the page cache by later resumes, before the guest asks.
//
// A set is a DOC_OTHER doc named "working-set-ID" (ID: the machine doc's, decimal) with the set as its blob:
// that a machine doc is replaced or labelled meanwhile does not touch it. It is only a hint: one that is
// missing, damaged or of another image is not used, and nothing depends on it. Bytes of the blob, all
// little-endian:
//
//   at  size  what
//    0     8  magic "RAMETWS1"
//    8     4  version, 1; a reader refuses others (-EPROTO)
//   12     4  number of ranges, at most WORKING_SET_RANGES_MAX
//   16     8  size of the memory image in bytes, a multiple of 4096
//   24     8  XXH3-64 of all ranges, its seed the XXH3-64 (seed 0) of bytes 0 to 23
//   32   8*n  ranges: first page (4), pages (4, at least 1); ascending, a gap of at least a page between two;
//             together at most WORKING_SET_PAGES_MAX pages, all inside the image
//
// Threads: a set belongs to one thread. load, save and clean_up wait: not on a loop.
#pragma once

#include "snapshot/txn.h"

enum {
    WORKING_SET_PAGE_BYTES = 4096,
    WORKING_SET_RANGES_MAX = 16384,
    WORKING_SET_PAGES_MAX = 65536, // 256 MiB: what does not fit is left to be asked for
    WORKING_SET_HEADER_BYTES = 32,
};

struct working_set_range {
    uint64_t offset, length; // bytes
};
struct working_set {
    uint64_t image_bytes;
    struct working_set_range *ranges; // WORKING_SET_RANGES_MAX of room
    unsigned count;
    uint64_t pages;
    bool full; // something was left out
};

int working_set_init(struct working_set *set, uint64_t image_bytes); // -EINVAL: no whole pages; -ENOMEM
void working_set_free(struct working_set *set);                      // accepts one of zeros
// Whole pages inside the image, behind everything added so far; joins what touches. False: the set is full,
// or the range is none of those (it is left out).
bool working_set_add(struct working_set *set, uint64_t offset, uint64_t length);

// *ret_bytes is malloc'ed.
int working_set_encode(const struct working_set *set, uint8_t **ret_bytes, size_t *ret_size);
// -EBADMSG damaged, -EPROTO another version. image_bytes: what the set must be of.
int working_set_decode(
        const void *bytes, size_t size, uint64_t image_bytes, struct working_set *ret_set, struct error *err);

bool working_set_exists(struct store *store, struct doc_id machine);
// -ENOENT: there is none.
int working_set_load(struct store *store, struct doc_id machine, uint64_t image_bytes,
        struct working_set *ret_set, struct error *err);
// -EEXIST: somebody was quicker. -ENOENT: the snapshot is gone.
int working_set_save(
        struct store *store, struct doc_id machine, const struct working_set *set, struct error *err);
// Deletes a snapshot's set in the transaction that deletes the snapshot, if there is one.
void working_set_delete(struct store *store, struct txn *txn, struct doc_id machine);
// Removes sets whose snapshot is gone (a set that was saved while its snapshot was deleted).
int working_set_clean_up(struct store *store, unsigned *ret_removed, struct error *err);
