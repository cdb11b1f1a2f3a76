// SPDX-License-Identifier: Apache-2.0
// The log: the store's only commit point. Append-only files of records (record.h) of one fixed size,
// zero-written before their first use and recycled afterwards.
//
// Order and acknowledgement: appends get consecutive sequence numbers in the order of log_append (of one
// loop; between loops any order). An append is acknowledged (done) after the kernel completed its write *and*
// those of all records before it, in log order. log_sync is answered when every record acknowledged before
// the call is on stable storage; syncs are grouped. The first failed write or sync stops the log for good
// (-ESTALE): what was not synced is in doubt. Space: at most budget_bytes. Ordinary appends leave two files'
// worth free (ZERO and TRIM one and a half, where no checkpoint will give room back), those with `reserve`
// one: the last is for a cut, without which no file could ever retire. A file retires when a checkpoint
// covers its records (log_retire_before), no tree refers to its blocks any more (log_ref/log_unref) and no
// read is in flight (pins). Threads: log_append, log_sync and log_read are called on op->loop's thread; done
// runs there. log_ref, log_unref: any.
#pragma once

#include "blockstore/error.h"
#include "blockstore/io.h"
#include "blockstore/locator.h"
#include "blockstore/record.h"

struct log;

struct log_config {
    const char *directory; // STORE/log
    uint64_t file_bytes, budget_bytes;
    unsigned spare_files;
    uint64_t seed;           // of header checksums
    uint64_t start_file;     // a checkpoint covers every record before this file; 0 = none
    bool only_by_checkpoint; // without start_file no file can have retired: the log begins with file 1
    uint64_t durable_seq;    // it is known that every record up to this one was durable; 0 = nothing is known
    uint64_t pressure_files; // call `pressure` when so many files hold records
    // Composes the image of the catalog; called on loop 0 when every record so far is applied and none is in
    // flight. *ret_bytes is malloc'ed.
    void (*image)(void *context, void **ret_bytes, size_t *ret_size);
    // A checkpoint is wanted: files to retire, or an append that finds no room. Under the log's lock: may
    // only post.
    void (*pressure)(void *context);
    // Whether ordinary data may take another log file (quota, free space). On loop 0, no lock held.
    bool (*may_grow)(void *context);
    // Whether the file at hand may be filled with data. The same.
    bool (*may_fill)(void *context);
    void *context;
};

struct log_replay {
    // Once, with the image at the head of the oldest file.
    int (*image)(void *context, const void *bytes, size_t size, struct error *err);
    // Every later WRITE, ZERO, TRIM, TXN in order. `first` locates the first payload block; body is checked.
    int (*record)(
            void *context, const struct record *record, const void *body, locator_t first, struct error *err);
    // A ROOTS record, complete, after the records before it were replayed. May be NULL.
    int (*roots)(void *context, const void *bytes, size_t size, struct error *err);
    void *context;
    bool read_only; // log_open leaves everything as it is; appends are refused with -EROFS
};

// Creates the directory's first file, durably. The directory exists and is empty.
int log_create(struct loop *loop, const struct log_config *config, struct error *err);
// Replays and makes ready for appends; drives loops[0]. *ret_log is set before the first replay callback, so
// that the callbacks can take references; NULL again on failure.
int log_open(struct loop **loops, unsigned loop_count, const struct log_config *config,
        const struct log_replay *replay, struct log **ret_log, struct error *err);
// Closes a descriptor by driving the loop; accepts -1.
void log_close_fd(struct loop *loop, int fd);
// The loops' threads have stopped; waits for what is in flight by driving them, syncs, closes.
struct log *log_close(struct log *log);
// Frees memory and descriptors' bookkeeping only: for the simulator, after a power cut.
struct log *log_abandon(struct log *log);

struct log_append {
    // Set by the caller, unchanged until done:
    struct loop *loop;
    enum record_kind kind;
    bool reserve;
    uint64_t volume;
    uint32_t epoch;
    const struct record_extent *extents;
    uint32_t extent_count;
    void *payload; // 4 KiB-aligned, payload_blocks blocks
    uint32_t payload_blocks;
    const void *body; // inline body when body_blocks is 0 (else the first body_blocks of payload)
    uint32_t body_bytes, body_blocks;
    void (*done)(struct log_append *append, int result);
    // Set by the log:
    uint64_t seq;
    locator_t first; // of the first payload block
    // Private:
    struct log_file *file;
    uint64_t header_block, durable;
    uint32_t part, parts;
    void *header;
    struct io_full write;
    struct log *log;
    struct log_append *next, *work_next;
    struct loop_work work;
    int result;
    bool complete, hurried;
};
void log_append(struct log *log, struct log_append *append);
// Largest payload of a WRITE, and of a TXN, in blocks.
uint32_t log_payload_max(struct log *log);
uint32_t log_txn_payload_max(struct log *log);
// How large the catalog's image may be.
uint64_t log_image_max_bytes(struct log *log);

struct log_sync {
    struct loop *loop;
    void (*done)(struct log_sync *sync, int result);
    // Private:
    uint64_t target;
    struct log_sync *next;
    struct loop_work work;
    int result;
};
void log_sync(struct log *log, struct log_sync *sync);

struct log_read {
    struct loop *loop;
    locator_t first;
    uint32_t count;                                  // consecutive blocks
    void *buffer;                                    // any alignment; 4 KiB-aligned when direct
    bool direct;                                     // past the page cache
    void (*done)(struct log_read *read, int result); // -EBADMSG: bytes do not match their checksums
    // Private:
    struct log *log;
    struct log_file *file;
    struct io_full io;
    void *bounce;
    bool retried;
};
void log_read(struct log *log, struct log_read *read);

// Blocks that trees refer to. Counts are exact: a file without references and pins is free.
void log_ref(struct log *log, locator_t locator, uint64_t count);
void log_unref(struct log *log, locator_t locator, uint64_t count);
// Whether the file that the locator names is there (recovery: it may have retired).
bool log_holds(struct log *log, locator_t locator);

// A cut: rotates the log. at() runs on loop 0 at the moment when every record so far is applied and none is
// in flight, just before the image of the new file is composed; `file` is that file's number. done() follows,
// on loop 0; on failure at() has not been called. One at a time. [loop 0]
struct log_cut {
    void (*at)(struct log_cut *cut, uint64_t file);
    void (*done)(struct log_cut *cut, int result);
    // Private:
    struct loop_work work;
    struct log *log;
    uint64_t seq; // of the image's last record
    int result;
};
void log_cut(struct log *log, struct log_cut *cut);
// A committed checkpoint covers all records before this file: those files may retire. [any]
void log_retire_before(struct log *log, uint64_t file);
// Which appends that find no room shall wait for a checkpoint; the others are refused. A checkpoint that
// works but leaves no room to grow still makes a new file for ZERO and TRIM. LOG_RELIEF_ALL at first. [any]
enum log_relief { LOG_RELIEF_NONE, LOG_RELIEF_FREEING, LOG_RELIEF_ALL };
void log_set_relief(struct log *log, enum log_relief expected);
// A checkpoint waits for the transaction under way, and that may wait for writes to volumes, of epochs up to
// one: until log_end_hurry these and TXN records go before all that waits for room, may use the reserve, and
// are refused where they do not fit there. [any]
struct log_hurry {
    uint64_t volume;
    uint32_t epoch;
};
void log_begin_hurry(struct log *log, const struct log_hurry *volumes, unsigned count);
void log_end_hurry(struct log *log);
// Asks may_grow again. [loop 0]
void log_check_growth(struct log *log);

struct log_stat {
    uint64_t used_bytes, spare_bytes, budget_bytes, written_bytes, sync_count;
    uint64_t appended_seq, acknowledged_seq, durable_seq;
    uint64_t changed_seq; // of the last WRITE, ZERO, TRIM or TXN
    uint64_t recovered_records, recovered_bytes, live_refs;
    uint64_t oldest_file, current_file, checkpoint_file;
    unsigned used_files, budget_files;
    int failed;
};
void log_stat(struct log *log, struct log_stat *ret_stat);
