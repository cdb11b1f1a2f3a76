// SPDX-License-Identifier: Apache-2.0
// The checkpoint: sealing everything before a cut of the log, committing the roots, letting log files retire.
//
// Order, which recovery relies on: cut (a rotation: nothing in flight, no transaction under way) -> segments
// and their names durable -> log synced (what made blocks dead, and the image at the head of the cut's file)
// -> one commit of the rows -> live trees patched -> ROOTS record -> log files before the cut may retire ->
// fingerprints published. A failure before the commit leaves everything as it was; the cut is kept for the
// next try, since a new one would need another log file. checkpoint_rows.c has the bytes, cut.c the cut,
// seal.c the work between, patch.c what follows.
// Threads: the background task's, unless a call says otherwise.
#pragma once

#include "blockstore/checkpoint_db.h"
#include "snapshot/collect.h"
#include "snapshot/node_cache.h"
#include "snapshot/space.h"
#include "snapshot/store_private.h"

enum checkpoint_kind {
    CHECKPOINT_META = 1,
    CHECKPOINT_SEGMENT = 2,
    CHECKPOINT_VOLUME = 3,
    CHECKPOINT_BASE = 4,
    CHECKPOINT_DOC = 5,
};

struct checkpoint_meta {
    uint64_t start_file; // replay begins at the head of this log file; 0 = there is no checkpoint
    uint64_t next_segment;
    uint64_t count;         // of checkpoints so far
    uint64_t scrub_segment; // where the next scrub goes on
    uint64_t wall_ns;
    uint8_t uuid[16]; // of the store
};

struct checkpoint_root {
    enum checkpoint_kind kind; // VOLUME, BASE or DOC
    uint64_t id;
    locator_t root;  // of a DOC: first block of the blob
    unsigned height; // of a DOC: how many blocks
};

// All rows, as committed last.
struct checkpoint_rows {
    struct checkpoint_meta meta;
    struct checkpoint_root *roots; // ascending by kind and id
    size_t root_count, root_capacity;
    struct segment_row *segments; // ascending
    size_t segment_count, segment_capacity;
};

// checkpoint_rows.c
void checkpoint_rows_add_root(struct checkpoint_rows *rows, const struct checkpoint_root *root);
void checkpoint_rows_add_segment(struct checkpoint_rows *rows, const struct segment_row *row);
void checkpoint_rows_sort(struct checkpoint_rows *rows);
const struct checkpoint_root *checkpoint_rows_find(
        const struct checkpoint_rows *rows, enum checkpoint_kind kind, uint64_t id);
void checkpoint_rows_free(struct checkpoint_rows *rows);
int checkpoint_rows_read(struct checkpoint_db *db, struct checkpoint_rows *ret_rows, struct error *err);
int checkpoint_rows_commit(struct checkpoint_db *db, struct checkpoint_rows *rows, struct error *err);
// As one string of bytes, for the ROOTS record.
void checkpoint_rows_encode(const struct checkpoint_rows *rows, void **ret_bytes, size_t *ret_size);
int checkpoint_rows_decode(const void *bytes, size_t size, struct checkpoint_rows *ret_rows);

// One root at the moment of a cut.
struct cut_root {
    struct checkpoint_root row; // row.root is the result of sealing
    bool lasting;               // in the catalog's image; else a base that only a handle keeps
    struct tree tree;           // a share
    locator_t blob_first;       // of a DOC
    uint64_t blob_blocks;
    uint64_t domain;
    enum volume_kind volume_kind;
};

struct cut {
    struct store *store;
    uint64_t file;
    struct cut_root *roots; // bases before volumes, the public domain first
    size_t count;
    // For each block of each log file before `file` that was sealed: where it is now. By file number -
    // first_file.
    uint64_t first_file;
    size_t file_count;
    locator_t **forward;
};

struct checkpoint { // of a store; the background task's, but for what is marked
    struct checkpoint_db *db;
    struct checkpoint_rows rows;
    struct cut *cut;                                                      // made, and not yet committed
    _Atomic uint64_t checkpoints, sealed_blocks, dedup_hits, zero_blocks; // since the opening
    uint64_t load_segment;         // footers before it are in the fingerprint index
    struct collection *collection; // under way, between slices too; else NULL
    struct collect_memory memory;
    uint64_t roots_logged;     // count of the checkpoint whose rows were appended to the log last
    bool files_leave;          // some may be there that nothing names
    bool reserve_made;         // as far as is known
    bool spend_reserve;        // the checkpoint at hand may: it begins a collection that will give room back
    struct space_use measured; // store->lock: the last time somebody looked
};

// cut.c
int cut_take(struct task *task, struct store *store, struct cut **ret_cut);
void cut_free(
        struct store *store, struct cut *cut); // after a grace period, or when its nodes are still in use
locator_t cut_forward(void *context, locator_t log); // context: the cut; 0 = not sealed
// Runs begin(context) on loop 0 between two transactions and waits until it has returned.
void cut_exclusive(struct task *task, struct store *store, void (*begin)(void *context), void *context);
// Every loop has finished the callback it was in.
void cut_grace(struct task *task, struct store *store);

// seal.c
struct seal_result {
    struct segment_row *segments;
    size_t segment_count, segment_capacity;
    struct seal_published *published; // fingerprints of new blocks
    size_t published_count, published_capacity;
    uint64_t blocks, dedup_hits, zero_blocks, bytes_read;
};
struct seal_published {
    struct fingerprint fingerprint;
    locator_t locator;
};
// Seals all roots of the cut: fills row.root, row.height and the forwarding arrays. On failure nothing is
// left but files that the table does not name.
int seal_cut(struct task *task, struct store *store, struct cut *cut, struct seal_result *ret_result,
        struct error *err);
// Nothing of a seal that is not committed may be found again. Frees the result.
void seal_undo(struct store *store, struct cut *cut, struct seal_result *result);
void seal_result_free(struct seal_result *result);

// patch.c
void patch_live(struct task *task, struct store *store, struct cut *cut);

// load.c: -EAGAIN when another job waits
int load_fingerprints(struct task *task, struct store *store, struct error *err);

// checkpoint.c
int checkpoint_open(struct store *store, struct error *err); // reads the rows, fills the segment table
// The log is open, and fits the rows: files that they do not name go.
int checkpoint_clear_files(struct store *store, struct error *err);
// Recovery met a copy of a checkpoint's rows in the log: they must not be newer than the catalog.
int checkpoint_roots_record(void *context, const void *bytes, size_t size, struct error *err);
void checkpoint_close(struct store *store);
// One whole checkpoint, in the background task.
int checkpoint_run(struct task *task, struct store *store, struct error *err);
// Recovery: the root of a row of the catalog's image. false: the checkpoint lacks it.
bool checkpoint_root(struct store *store, enum checkpoint_kind kind, uint64_t id, uint64_t size_bytes,
        struct tree *ret_tree);
locator_t checkpoint_blob(struct store *store, uint64_t id, locator_t in_image);
// Commits `rows` (consumed on success) as the present state: for collections too.
int checkpoint_commit_rows(struct store *store, struct checkpoint_rows *rows, struct error *err);
// The copy of the rows in the log, of this checkpoint (meta.count) or a later one, is durable: before
// anything goes that only earlier ones need.
int checkpoint_secure_roots(struct task *task, struct store *store, uint64_t count, struct error *err);
uint64_t checkpoint_new_segment_number(struct store *store);
