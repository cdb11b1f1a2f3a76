// SPDX-License-Identifier: Apache-2.0
// The store: one directory, one owner process, N loops (shards). This is the engine's public face together
// with volume.h (block I/O) and txn.h (every change to the catalog).
//
// Threads: functions marked [any] may be called from any thread that is not a loop (they may wait); those
// marked [loop] only on the loop named; the rest before the loops' threads start or after they stopped.
// Durability: a change is acknowledged when it is in the log (it survives the death of the process) and
// durable when a later flush of the log is answered (it survives power loss).
// Errors: error.h. -ESTALE from writers means that an earlier write or sync of the log failed: the store has
// stopped writing, reads go on, restart recovers.
#pragma once

#include "blockstore/error.h"
#include "blockstore/ids.h"
#include "blockstore/io.h"

struct store;
struct volume;

struct store_config {
    uint64_t log_file_bytes;   // size of one log file; default 64 MiB; multiple of 4 KiB, at least 64 KiB
    uint64_t log_budget_bytes; // the log never takes more than this; 0 = default (48 GiB)
    uint32_t spare_log_files;  // how many prewritten files to keep ahead; default 2
    // Of this opening only:
    struct loop *background; // index loop_count; where sealing and collecting do their I/O; NULL = loops[0]
    bool read_only;          // nothing is written, not even the lock: for check and export of a closed store
    uint64_t quota_bytes;    // files of the store together; 0 = none. Writers get ENOSPC before it is reached
    uint64_t reserve_bytes;  // left free on the file system for sealing and collecting; 0 = default
    uint64_t seal_log_bytes; // seal when the log holds this much; 0 = default (a quarter of the budget)
    uint64_t seal_age_ns;    // and when a record is older than this; 0 = never
    uint64_t fingerprint_bytes; // cap of the index; 0 = default (256 MiB)
    uint64_t index_cache_bytes, frame_cache_bytes, node_cache_bytes; // 0 = defaults
    uint64_t catalog_map_bytes; // address space of the checkpoint; 0 = default
};

// Creates the directory (it may exist when empty) with superblock and first log file, durably.
int store_init(
        struct loop *loop, const char *directory, const struct store_config *config, struct error *err);
// Locks the store, replays the log, opens a new log file. Drives loops[0] itself. log_budget_bytes of
// `config` overrides the stored one when not 0; config may be NULL.
int store_open(struct loop **loops, unsigned loop_count, const char *directory,
        const struct store_config *config, struct store **ret_store, struct error *err);
// After the loops' threads have stopped: waits for I/O in flight, syncs the log, releases the lock.
struct store *store_close(struct store *store);

struct loop *store_loop(struct store *store, unsigned index);
unsigned store_loop_count(struct store *store);
const char *store_directory(struct store *store);
void store_uuid(struct store *store, uint8_t ret_uuid[16]);

struct store_stat {
    uint64_t log_budget_bytes, log_used_bytes; // used: files that hold records
    uint64_t log_spare_bytes;                  // prewritten, waiting
    uint64_t live_block_refs;                  // tree slots that refer to log blocks
    uint64_t logical_bytes;                    // sum of volume sizes
    uint64_t written_bytes_total;              // bytes sent to log files since open
    uint64_t sync_count_total;                 // fdatasync calls since open
    uint64_t volumes, bases, docs, tree_nodes;
    uint64_t appended_seq, acknowledged_seq, durable_seq;
    uint64_t recovered_records, recovered_bytes, recovery_ns;
    int failed; // 0, or the -errno that stopped the writers
    // Sealed:
    uint64_t segments, segment_bytes;    // files
    uint64_t segment_slots_present;      // blocks in them
    uint64_t segment_slots_dead;         // of these, dead at the last collection (reclaimable)
    uint64_t leaving_bytes;              // replaced, still being read (pinned)
    uint64_t catalog_bytes, other_bytes; // checkpoint; superblock, lock and what else lies in the directory
    uint64_t physical_log_bytes, physical_segment_bytes; // as the file system counts; with the two above:
    uint64_t physical_bytes;                             // all of it, as the file system counts
    uint64_t mapped_bytes; // sum over volumes and bases of blocks with data, at the last collection
    uint64_t unique_bytes; // distinct blocks reachable, at the last collection
    uint64_t fingerprint_entries, fingerprint_bytes;
    bool fingerprints_loaded;                                     // the index has read every footer
    uint64_t checkpoints, sealed_blocks, dedup_hits, zero_blocks; // since open
    uint64_t checkpoint_log_file;                                 // replay begins here
    int background_error; // the last checkpoint's or collection's -errno; 0 = fine
};
void store_stat(struct store *store, struct store_stat *ret_stat); // [any], also on loops

// ---- What exists. [any], also on loops; answers are copies, taken under the catalog's lock. ----

enum volume_kind { VOLUME_DISK = 1, VOLUME_MEMORY = 2 };
enum { STORE_NAME_MAX = 200 }; // bytes, without the terminating zero

struct volume_info {
    struct volume_id id;
    char name[STORE_NAME_MAX + 1]; // "" = anonymous
    enum volume_kind kind;
    uint64_t size_bytes;
    struct base_id parent; // base it was forked from, 0 = none
    uint64_t created_wall_ns;
    uint64_t domain; // dedup domain (tenant); 0 = public
};
int store_volume_find(struct store *store, const char *name, struct volume_info *ret_info); // -ENOENT
int store_volume_get(struct store *store, struct volume_id id, struct volume_info *ret_info);
// Calls each() for a copy of every volume, by id.
void store_volume_list(
        struct store *store, void (*each)(void *context, const struct volume_info *info), void *context);

struct base_info {
    struct base_id id;
    uint64_t size_bytes;
    enum volume_kind kind;
    struct volume_id source; // the volume that was frozen
    struct base_id parent;   // the base that volume came from
    uint64_t created_wall_ns;
    uint64_t domain;
    uint64_t users; // docs and open handles that keep it
};
int store_base_get(struct store *store, struct base_id id, struct base_info *ret_info);
void store_base_list(
        struct store *store, void (*each)(void *context, const struct base_info *info), void *context);

// A doc is a catalog row of the layers above: a named thing with bytes of its own (JSON by convention), that
// keeps bases and volumes alive. Names are unique per kind ("" = none). The blob (device state) is read on
// demand.
enum doc_kind { DOC_SNAPSHOT = 1, DOC_MACHINE = 2, DOC_SANDBOX = 3, DOC_OTHER = 4 };
enum { DOC_REFS_MAX = 16, DOC_BODY_MAX = 256 * 1024, DOC_BLOB_MAX = 1792 * 1024 };

struct doc {
    struct doc_id id;
    enum doc_kind kind;
    char name[STORE_NAME_MAX + 1];
    uint64_t created_wall_ns;
    struct base_id bases[DOC_REFS_MAX]; // kept alive while the doc exists
    unsigned base_count;
    struct volume_id volumes[DOC_REFS_MAX]; // a volume named here cannot be deleted before the doc
    unsigned volume_count;
    char *body; // malloc'ed, body_bytes and a zero after them
    size_t body_bytes;
    size_t blob_bytes; // 0 = no blob
};
void doc_free(struct doc *doc); // frees body; accepts NULL
int store_doc_find(struct store *store, enum doc_kind kind, const char *name, struct doc *ret_doc);
int store_doc_get(struct store *store, struct doc_id id, struct doc *ret_doc);
void store_doc_list(struct store *store, enum doc_kind kind,
        void (*each)(void *context, const struct doc *doc), void *context);
// Reads the blob, checked; bytes is malloc'ed and becomes the caller's (NULL on failure). -ENODATA: the doc
// has none. done runs on an engine loop. [any], also on loops
void store_doc_blob_read(struct store *store, struct doc_id id,
        void (*done)(void *context, int result, void *bytes, size_t size), void *context);
// The waiting twin. [any]
int store_doc_blob(struct store *store, struct doc_id id, void **ret_bytes, size_t *ret_size);

// Makes everything acknowledged so far durable. [any]
int store_flush(struct store *store);

// ---- Background work. One thing at a time, in order. [any thread that is not a loop: they wait] ----

// Seals everything that is in the log now and commits a checkpoint; log files retire.
int store_seal(struct store *store, struct error *err);
// Before a stop: ends collections, scrubs and checks that wait or run (-ECANCELED). Seals go on, since
// writers may wait for one. [any]
void store_quiesce(struct store *store);
enum { STORE_GC_RECOMPRESS = 1 }; // also compress everything again at the cold level
struct store_gc_result {
    uint64_t live_slots, dead_slots; // found
    uint64_t freed_bytes, rewritten_bytes;
    uint64_t segments_removed, segments_rewritten;
};
// Seals, then collects. Any error aborts it with nothing lost.
int store_gc(struct store *store, unsigned flags, struct store_gc_result *ret_result, struct error *err);
struct store_scrub_result {
    uint64_t segments, bytes, damages;
    uint64_t position; // next segment number
};
// Calls damaged() with a sentence for each damage: file, bytes, and what it touches.
int store_scrub(struct store *store, void (*damaged)(void *context, const char *sentence), void *context,
        struct store_scrub_result *ret_result, struct error *err);
// Everything that can be verified: scrub, log, checkpoint, trees of all roots, volumes touched. Works on an
// open store, also a read-only one.
struct store_check_result {
    uint64_t volumes, bases, docs, nodes, blocks, segments, log_records, damages;
    uint64_t leftovers; // files that nothing names: told as well, no damage
};
int store_check(struct store *store, void (*damaged)(void *context, const char *sentence), void *context,
        struct store_check_result *ret_result, struct error *err);
// What can be seen of a closed store without opening it: for one that cannot be opened.
int store_check_files(struct loop *loop, const char *directory,
        void (*damaged)(void *context, const char *sentence), void *context,
        struct store_check_result *ret_result, struct error *err);
// Writes a new checkpoint from log and segments of a closed store, beside the old one (STORE/catalog.old
// stays).
int store_rebuild_catalog(struct loop *loop, const char *directory,
        void (*note)(void *context, const char *sentence), void *context, struct error *err);
