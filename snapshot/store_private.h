// SPDX-License-Identifier: Apache-2.0
// What the modules of this folder share: store.c (open, close, answers), catalog.c (rows and their rules),
// catalog_code.c (bytes), txn.c, volume.c, volume_write.c, volume_read.c, volume_extents.c, recovery.c.
//
// Lock: store->lock protects the catalog (rows, counts, names, next_id); rank before the log's lock. It is
// never held over I/O or a callback. Marked [loop]: touched only on the volume's own loop.
#pragma once

#include "snapshot/node_cache.h"
#include "snapshot/store.h"
#include "snapshot/tree.h"
#include "snapshot/txn.h"
#include "snapshot/volume.h"

#include <pthread.h>

struct freeze { // one freeze of one volume, on its way
    struct volume *volume;
    uint32_t epoch;     // the epoch that ends
    uint64_t remaining; // writes of that epoch not yet in the tree
    struct tree tree;   // result
    void (*done)(struct freeze *freeze);
    struct freeze *next;
    struct loop_work work;
};

struct volume {
    struct store *store;
    struct loop *loop;
    struct volume_info info;                   // lock
    unsigned opens, doc_refs;                  // lock
    bool leaving;                              // lock: a deletion is on its way, no more opens
    _Atomic uint64_t size_bytes;               // set [loop], read anywhere
    _Atomic uint32_t logged_epoch;             // epoch of the last record that was acknowledged
    struct tree tree;                          // [loop]
    uint64_t owner;                            // [loop]
    _Atomic uint32_t epoch;                    // [loop], read anywhere
    uint64_t in_flight;                        // [loop] appended pieces of the current epoch
    struct freeze *freezes, **freezes_tail;    // [loop]
    struct write_state *active;                // [loop] started writes
    struct write_state *parked, **parked_tail; // [loop] waiting for a range
    unsigned exclusive;                        // [loop] of the active ones
    uint64_t clean_file; // loop 0: no locator or node of its tree is older than this log file's checkpoint
};

struct base {
    struct store *store;
    struct base_info info;    // info.users is computed
    unsigned doc_refs, opens; // lock
    struct tree tree;         // immutable; the root is replaced by its sealed twin on loop 0
    bool listed;              // lock
    uint64_t clean_file;      // as of a volume
};

struct doc_row {
    struct doc doc;
    locator_t blob_first; // consecutive blocks in the log or in a segment; 0 = none
};

struct catalog { // all under store->lock; arrays ascend by id
    struct volume **volumes;
    struct base **bases;
    struct doc_row **docs;
    unsigned volume_count, volume_capacity, base_count, base_capacity, doc_count, doc_capacity;
    uint64_t next_id;
    uint64_t doc_bytes; // of all bodies
    bool sweep;         // some base may have lost its last user
};

struct store {
    pthread_mutex_t lock;
    struct loop **loops;
    unsigned loop_count; // shards; loops[loop_count] is the background loop if extra_loop
    bool extra_loop;
    char *directory;
    int lock_fd;      // -1: read-only, and there is none
    uint64_t end_seq; // the last record at the last clean end, 0 = not known
    uint8_t uuid[16];
    uint64_t created_wall_ns;
    struct log *log;
    struct tree_space space;
    struct catalog catalog;
    uint64_t recovery_ns;
    struct segments *segments;
    struct node_cache *node_cache;
    struct fingerprint_index *fingerprints;
    uint8_t secret[32];
    struct background *background;
    struct checkpoint *checkpoint;
    bool read_only;
    uint64_t cut_file;          // loop 0: replay of the last cut begins here
    struct store_config config; // with defaults filled in
    // Loop 0 only: transactions, one at a time.
    struct txn *txn_head, **txn_tail;
    bool txn_running;
    struct txn *txn_current;  // the one that runs; NULL: none, or a turn
    struct saved_root *saved; // recovery only
};

#define DOMAIN_OF_PARENT UINT64_MAX
#define DOMAIN_OF_BLOBS (UINT64_MAX - 1) // of device states: no volume is in it, so nobody looks there

enum txn_op_type {
    TXN_VOLUME_CREATE = 1,
    TXN_VOLUME_DELETE = 2,
    TXN_VOLUME_RESIZE = 3,
    TXN_VOLUME_RENAME = 4,
    TXN_FREEZE = 5,
    TXN_DOC_PUT = 6,
    TXN_DOC_DELETE = 7,
};

struct txn_op {
    enum txn_op_type type;
    uint64_t id;   // volume, or doc
    uint64_t base; // parent of a create, result of a freeze
    uint64_t size_bytes;
    enum volume_kind kind;
    uint64_t domain;    // of a create; DOMAIN_OF_PARENT: the parent's, or 0
    uint32_t epoch;     // of a freeze
    uint32_t waits_for; // it may wait for writes of epochs up to this one
    uint64_t wall_ns;
    char name[STORE_NAME_MAX + 1];
    bool name_too_long;
    bool replaces;       // DOC_PUT of a doc that must exist
    struct doc doc;      // its own body
    const uint8_t *blob; // its own copy; decode: not set
    size_t blob_bytes;
    uint32_t blob_block; // first block of the blob in the record's payload
    // While it runs:
    struct txn *txn;
    struct volume *volume;
    struct freeze freeze;
    struct loop_work work;
    struct write_state *fence; // of a shrink
    bool fenced;
    int prepare_result;
    uint64_t old_size_bytes;
    struct tree tree; // frozen root, until it is given to the base
};

// store.c
uint64_t store_seed(const uint8_t uuid[16]); // of checksums
int store_lock(struct loop *loop, const char *directory, bool read_only, int *ret_fd, struct error *err);
// store_end.c
int store_end_read(struct store *store, struct error *err); // sets end_seq
void store_end_write(struct store *store);                  // at a clean end
// catalog.c
struct volume *catalog_volume(struct store *store, uint64_t id);
struct base *catalog_base(struct store *store, uint64_t id);
struct doc_row *catalog_doc(struct store *store, uint64_t id);
struct volume *catalog_volume_named(struct store *store, const char *name);
struct doc_row *catalog_doc_named(struct store *store, enum doc_kind kind, const char *name);
struct volume *catalog_volume_add(
        struct store *store, const struct volume_info *info, struct tree tree, uint32_t epoch);
struct base *catalog_base_add(struct store *store, const struct base_info *info, struct tree tree);
struct doc_row *catalog_doc_add(
        struct store *store, const struct doc *doc, locator_t blob_first); // copies doc
int catalog_check(struct store *store, struct txn_op *ops, unsigned count, struct error *err);
void catalog_apply(struct store *store, struct txn_op *ops, unsigned count, locator_t payload_first);
void catalog_base_release(struct store *store, struct base *base); // drops it when nobody needs it
void catalog_free(struct store *store);
int doc_copy(const struct doc *doc, struct doc *ret_doc);
// Its blob is now there (the same bytes).
void catalog_doc_move_blob(struct store *store, struct doc_row *row, locator_t first);

// catalog_code.c
void catalog_encode_ops(const struct txn_op *ops, unsigned count, void **ret_bytes, size_t *ret_size);
int catalog_decode_ops(const void *bytes, size_t size, struct txn_op **ret_ops, unsigned *ret_count);
void catalog_free_ops(struct txn_op *ops, unsigned count);
void catalog_encode_image(struct store *store, void **ret_bytes, size_t *ret_size);
int catalog_decode_image(struct store *store, const void *bytes, size_t size);

// volume.c
void volume_freeze(struct volume *volume, struct freeze *freeze); // [loop]
void volume_settle(struct volume *volume, uint32_t epoch); // [loop] a piece of that epoch is in the tree
void volume_finish(struct volume_io *io, int result);
int volume_check_range(uint64_t size_bytes, const struct volume_io *io);
uint64_t volume_blocks_of(uint64_t size_bytes);
// volume_write.c, volume_read.c
void volume_write_start(struct volume *volume, struct volume_io *io);
// Calls fenced (perhaps before it returns) when every write that touches blocks [first, end) has been
// answered; later ones wait until volume_unfence. Who holds the fence writes there with VOLUME_FENCED. [loop]
struct write_state;
enum { VOLUME_FENCED = 1 << 30 };
struct write_state *volume_fence(
        struct volume *volume, uint64_t first, uint64_t end, void (*fenced)(void *context), void *context);
void volume_unfence(struct write_state *fence);
void volume_read_start(struct store *store, struct loop *loop, const struct tree *tree, struct volume_io *io);
// volume_lookup.c: lookups in trees that meet sealed nodes which are not in memory.
struct volume_lookup {
    struct store *store;
    struct loop *loop;
    void (*again)(struct volume_lookup *lookup); // ask the tree once more [loop]
    // Private:
    struct node_load load;
    locator_t failed;
    int failure;
};
// After -EAGAIN: loads `missing`, then calls again(), not before it returns. < 0: it cannot be loaded. (A
// failure is only believed when the tree asks for the same node again: it may have moved.)
int volume_lookup_load(struct volume_lookup *lookup, locator_t missing);
// recovery.c
int recovery_image(void *context, const void *bytes, size_t size, struct error *err);
int recovery_record(
        void *context, const struct record *record, const void *body, locator_t first, struct error *err);
void recovery_finish(struct store *store);
// txn.c
void txn_stop_all(struct store *store);
// A turn between transactions: begin(context) runs on loop 0 when none is under way, and none starts until
// txn_exclusive_end [loop 0].
void txn_exclusive_begin(struct store *store, void (*begin)(void *context), void *context);
void txn_exclusive_end(struct store *store);
