// SPDX-License-Identifier: Apache-2.0
// Shared by log.c (append, acknowledge, sync), log_files.c (spares, rotation, retirement), log_read.c and
// log_replay.c.
//
// Lock: log->lock, rank last: nothing else is taken under it and no callback runs under it.
// Life of a file: spare (named spare.N, prewritten) -> renamed to its number, image written -> current ->
// closed for appends -> unreferenced -> a RETIRE record says so and is synced -> renamed to spare.N. Rotation
// waits until nothing is in flight and every acknowledgement has been delivered, so that the image at the
// head of the new file is the state after every record before it.
#pragma once

#include "blockstore/log.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LOG_TABLE_SIZE = 1 << 16, LOG_FILES_MIN = 4 };

struct log_file {
    uint64_t number;       // 0 while a spare
    int fd;                // O_DIRECT, read and write
    int read_fd;           // buffered, read only
    uint64_t *sums;        // per block of the file
    _Atomic uint64_t refs; // tree slots and blobs that refer to blocks here
    _Atomic uint64_t pins; // reads in flight
    uint64_t used_blocks;
    bool dirty;            // completed writes since the last sync began
    struct log_file *next; // towards newer
    char *path;
};

struct log_ack_queue {
    struct log_append *head, **tail;
    struct log_sync *sync_head, **sync_tail;
    struct loop_work work;
    struct log *log;
    struct loop *loop;
    bool scheduled;
};

enum log_rotation { ROTATION_IDLE, ROTATION_DRAIN, ROTATION_SPARE, ROTATION_RUN };

struct log_sync_op {
    struct io_op op;
    struct log *log;
};

struct log_sync_run {
    struct loop *loop;
    uint64_t covers;
    unsigned left;
    int result;
    struct log_sync_op *ops;
};

struct log_prepare {
    struct log_file *file;
    struct io_op op;
    struct io_full write;
    void *zeros;
    uint64_t at;
    char *spare_path; // its name when it is whole
};

struct log {
    pthread_mutex_t lock;
    struct loop **loops;
    unsigned loop_count;
    struct log_config config;
    char *directory;
    uint64_t file_blocks;
    unsigned budget_files;
    uint64_t incarnation, previous_incarnation;

    // Protected by lock:
    uint64_t next_seq, acknowledged_seq, durable_seq, changed_seq;
    uint64_t last_change_seq; // of the last record that was recovered and is no mere mark (RETIRE, OPEN)
    uint64_t opened_seq; // next_seq when this opening began its work; 0 = it must leave a mark at its end
    struct log_append *in_flight, **in_flight_tail; // in log order
    struct log_append *queue, **queue_tail;         // waiting for room
    unsigned undelivered;                           // acknowledged, done not yet run
    struct log_ack_queue *acks;                     // per loop
    struct log_file *oldest, *current;
    struct log_file *spares;
    struct log_file *graveyard; // structures of unlinked files
    unsigned used_files, spare_files;
    uint64_t checkpoint_file; // records before this file are covered
    struct log_cut *cut;      // waits for the next rotation
    struct log_cut *cut_made; // waits for the image's acknowledgement
    enum log_relief relief;   // what a checkpoint will make room for
    bool hurry;               // TXN records and writes to hurry_volumes hold up a checkpoint
    struct log_hurry *hurry_volumes;
    unsigned hurry_count;
    bool grow_refused; // may_grow said no
    bool fill_refused; // may_fill said no
    bool read_only;
    uint64_t next_file_number, next_spare_number;
    enum log_rotation rotation;
    bool broken; // a record before in_flight failed
    int failed;
    struct log_sync *syncs, **syncs_tail; // waiting for the next run
    bool sync_running, dir_dirty, sync_scheduled;
    bool preparing, prepare_failed;
    uint64_t prepare_failed_ns;
    bool retiring, retire_blocked;
    void **header_pool;
    unsigned header_count, header_capacity;
    bool closing;
    bool recovering; // replay drops references, but nothing may be appended before the whole log is known

    // Loop 0 only:
    struct loop_work rotate_work, prepare_work, retire_work, sync_work;
    _Atomic bool rotate_posted, prepare_posted, retire_posted;
    struct log_prepare prepare;
    struct io_op rotate_op;
    char *rotate_path;
    struct log_file *rotate_file;
    struct log_append retire_append;
    struct log_sync retire_sync;
    uint64_t retire_to;
    struct io_op retire_op;
    char *retire_path;
    struct log_sync_run sync_run;

    _Atomic(struct log_file *) table[LOG_TABLE_SIZE];
    _Atomic uint64_t written_bytes, sync_count;
    uint64_t recovered_records, recovered_bytes;
};

// log.c
void log_deliver_locked(struct log *log, struct log_append *append, int result);
void log_pump_locked(
        struct log *log, struct log_append **start); // moves what fits from the queue to in flight
void log_start_writes(struct log *log, struct log_append *start);  // without the lock
void log_append_first(struct log *log, struct log_append *append); // before what waits for room
void log_fail_locked(struct log *log, int result);
uint64_t log_free_blocks_locked(struct log *log);
int log_state_init(struct log *log, struct loop **loops, unsigned loop_count);
// log_hurry.c
void log_enqueue_locked(struct log *log, struct log_append *append);
// log_files.c
void log_kick_rotation_locked(struct log *log);
void log_kick_prepare(struct log *log);
void log_kick_retire(struct log *log);
bool log_retire_expected_locked(struct log *log);
bool log_can_prepare_locked(struct log *log);
void log_files_init(struct log *log);
void log_kick(struct log *log, _Atomic bool *posted, struct loop_work *work);
void log_cut_finish_locked(struct log *log, int result);
void log_cut_advance_locked(struct log *log);
// log_retire.c
void log_retire_init(struct log *log);
char *log_path(const char *directory, const char *prefix, uint64_t number);
int log_file_open(struct loop *loop, const char *path, int access, struct log_file *file); // drives the loop
struct log_file *log_file_free(struct log_file *file);
int log_image_appends(
        struct log *log, const void *image, size_t size, struct loop *loop, struct log_append **ret_list);
struct log_file *log_file_new(uint64_t blocks, char *path);
// log_replay.c
// *ret_leftovers: paths of files that do not count, to unlink once the log is durable; malloc'ed,
// NULL-terminated.
int log_recover(struct log *log, const struct log_replay *replay, char ***ret_leftovers, struct error *err);
// log_files.c, start-up only: these drive the loop
int log_prewrite_sync(struct loop *loop, const char *path, uint64_t bytes);
int log_sync_dir(struct loop *loop, const char *directory);
