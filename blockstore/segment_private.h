// SPDX-License-Identifier: Apache-2.0
// Shared by the segment_*.c files.
//
// A `struct segment` is one file: a generation of a segment. It is current (found by its number) until it is
// dropped or a newer generation is added; then it leaves as soon as nobody holds it. Holders (refs) are reads
// that miss the caches, loads, tasks and the writer; while there is one, neither descriptor nor index goes.
//
// Locks: the shard's lock, which protects everything of its segments; under it only segments->orphan_lock.
// Nothing is called and nothing waits with a lock held.
#pragma once

#include "blockstore/segment.h"
#include "blockstore/segment_cache.h"
#include "blockstore/segment_format.h"
#include "blockstore/segment_output.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    SEGMENT_SHARDS = 16,
    SEGMENT_SHARD_BUCKETS = 1024,
    SEGMENT_DESCRIPTORS_MAX = 256,
    SEGMENT_READ_MODE = 0600,
};

struct segment_link {
    struct segment_link *newer, *older;
};

// Somebody who needs descriptor and index; holds the segment.
struct segment_wait {
    struct loop *loop;
    void (*done)(struct segment_wait *wait, int result); // on that loop
    struct loop_work work;
    struct segment_wait *next;
    int result;
};

struct segment {
    uint64_t id; // of this struct, for the frame cache
    uint64_t number;
    struct fingerprint_key key;
    // Protected by the shard's lock:
    struct segment_row row;
    struct segment *next; // in its bucket, or among the leaving
    unsigned refs;
    bool current; // found by its number
    bool listed;  // the table names it
    bool loading; // a load is under way
    bool has_index;
    bool fd_used, index_used; // since the hand came by
    int fd;
    struct segment_index index; // without a writer: does not change while has_index
    uint64_t index_bytes;
    struct segment_wait *waiters;
    struct segment_writer *writer;
    uint32_t rewriting; // generation that a rewrite has made, or is making; 0: none
    struct segment_link fd_link, index_link;
};

struct segments_shard {
    pthread_mutex_t lock;
    struct segment *bucket[SEGMENT_SHARD_BUCKETS];
    struct segment *leaving;
    struct segment_link fd_ring, index_ring; // ring.newer is the oldest
};

// A descriptor that was given up where no loop was at hand.
struct segment_orphan {
    struct segment_orphan *next;
    int fd;
};

struct segments {
    struct segments_config config;
    char *directory;
    struct segment_cache *cache;
    struct segments_shard shard[SEGMENT_SHARDS];
    _Atomic uint64_t next_id, descriptors, index_bytes, read_bytes;
    pthread_mutex_t orphan_lock;
    struct segment_orphan *orphans; // protected by orphan_lock
    _Atomic unsigned closing;       // descriptors that loops are closing
};

// segment_table.c
void *segment_alloc(size_t size); // zeroed; aborts on exhaustion
static inline struct segments_shard *segment_shard(struct segments *segments, uint64_t number)
{
    return &segments->shard[number % SEGMENT_SHARDS];
}
struct segment *segment_find_locked(struct segments_shard *shard, uint64_t number); // current, or NULL
struct segment *segment_hold(struct segments *segments, uint64_t number);           // the same, held
void segment_release(struct segments *segments, struct segment *segment);
// The entry of a segment that is being written: current, not listed, held. NULL when the number is taken.
struct segment *segment_enter(struct segments *segments, const struct segment_row *row);
// It was not finished: not current any more. Its descriptor goes; the caller still holds it.
void segment_retract(struct segments *segments, struct segment *segment);
// Gives a segment its descriptor and (if not NULL) its index, and makes room for them. Returns the list of
// descriptors to give up; call segment_give_up after unlocking.
struct segment_orphan *segment_equip_locked(
        struct segments *segments, struct segment *segment, int fd, struct segment_index *index);
void segment_give_up(struct segments *segments, struct segment_orphan *list);
// A descriptor that nobody holds, taken away from its segment; or -1.
int segment_take_descriptor(struct segments *segments);
void segment_give_up_task(struct segments *segments, struct task *task); // closes what waits for it

// segment_files.c
char *segment_path(struct segments *segments, uint64_t number, uint32_t generation);
bool segment_name_parse(const char *name, uint64_t *ret_number, uint32_t *ret_generation);

struct segment_names { // of a directory; all zero = empty
    char **names;
    size_t count, room;
};
void segment_name_add(void *list, const char *name); // for loop_ops.list_dir
void segment_names_free(struct segment_names *list);

// A task's own reading of a file from front to back, past all caches.
struct segment_window {
    struct task *task;
    int fd;
    uint8_t *buffer;
    uint64_t start, end; // of the file, in the buffer
    uint64_t file_bytes;
};
// -errno of the opening.
int segment_window_open(
        struct segment_window *window, struct task *task, const char *path, uint64_t file_bytes);
void segment_window_close(struct segment_window *window);
// The bytes of a range of at most SEGMENT_WINDOW_BYTES, valid until the next call. -ENODATA: beyond the end.
enum { SEGMENT_WINDOW_BYTES = 1 << 20 };
int segment_window_get(
        struct segment_window *window, uint64_t offset, uint64_t size, const uint8_t **ret_bytes);

// segment_load.c
static inline bool segment_ready_locked(const struct segment *segment)
{
    return segment->writer != NULL || (segment->fd >= 0 && segment->has_index);
}
int segment_read_result(int result); // of reading a range that should be in the file
// The caller is on wait->loop and holds the segment. True: it is ready, done is not called.
bool segment_await(struct segments *segments, struct segment *segment, struct segment_wait *wait);
// Held, and with its index; to be released. -ENOENT: no such segment.
int segment_hold_task(
        struct segments *segments, struct task *task, uint64_t number, struct segment **ret_segment);

// segment_write.c, called with the shard's lock held. The block of a slot that is not in a frame yet, or
// NULL.
const void *segment_writer_open_block_locked(struct segment_writer *writer, uint32_t slot);
// Copies stored bytes of a frame that is not in the file yet; false: they are in the file.
bool segment_writer_copy_locked(struct segment_writer *writer, const struct segment_frame *frame, void *to);
// Slots handed out so far, and their fingerprints.
int segment_writer_fingerprint_locked(
        struct segment_writer *writer, uint32_t slot, struct fingerprint *ret_fingerprint);
