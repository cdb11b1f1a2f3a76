// SPDX-License-Identifier: Apache-2.0
// Block I/O on volumes (mutable) and bases (immutable).
//
// A volume belongs to one loop. volume_submit may be called from any thread: on the volume's own loop it
// starts at once, elsewhere it is posted there; `done` runs on the volume's loop, and may run before
// volume_submit returns when that was called on the loop. The request and its buffer stay put until done.
// Offsets and lengths are bytes, any alignment (whole 4 KiB blocks are quick, the rest is read, changed and
// written under a range lock); a range outside the volume is -EINVAL, and length 0 succeeds. Write buffers
// must be private to the request (nobody changes them until done) and, for speed, 4 KiB-aligned
// (io_buffer_alloc); unaligned ones are copied. Ordering: a read sees every write answered before it was
// submitted. Writes in flight at one time may be ordered either way, but the same way for readers and for
// recovery. Durability: an answered write survives the process. VOLUME_FLUSH is answered when every write,
// zero and trim answered before it was submitted, on any volume, is durable. VOLUME_FUA makes one request
// durable. Errors: -ENOSPC (log budget or file system full), -EBADMSG (stored bytes damaged), -ESTALE,
// -EINVAL, -ENOENT (deleted).
#pragma once

#include "snapshot/store.h"

enum volume_op { VOLUME_READ, VOLUME_WRITE, VOLUME_ZERO, VOLUME_TRIM, VOLUME_FLUSH, VOLUME_WRITE_BLOCKS };
enum {
    VOLUME_FUA = 1,
    VOLUME_DIRECT = 2
}; // DIRECT: a read past the page cache (memory images, which are cached elsewhere)

struct volume_io {
    enum volume_op op;
    unsigned flags;
    uint64_t offset, length; // bytes
    void *buffer;            // READ, WRITE, WRITE_BLOCKS
    const uint64_t *blocks;  // WRITE_BLOCKS: block numbers, ascending, without doubles; buffer holds
    unsigned block_count;    //   block_count whole blocks in that order (scattered pages in few records)
    void (*done)(struct volume_io *io, int result); // 0 or -errno
    void *context;                                  // the caller's
    // Private to the engine:
    struct volume *volume;
    struct base *base;
    struct volume_io *next, *previous;
    struct loop_work work;
    void *state;
};

// Handles. An open volume cannot be deleted, one that is being deleted cannot be opened (-EBUSY). [any], also
// on loops.
int volume_open(struct store *store, struct volume_id id, struct volume **ret_volume);
struct volume *volume_close(struct volume *volume); // accepts NULL, returns NULL
struct loop *volume_loop(struct volume *volume);
uint64_t volume_size_bytes(struct volume *volume);
struct volume_id volume_get_id(struct volume *volume);
void volume_submit(struct volume *volume, struct volume_io *io);

// Bases: VOLUME_READ only. `loop` is where the request runs and done is called; an open base stays.
struct base;
int base_open(struct store *store, struct base_id id, struct base **ret_base);
struct base *base_close(struct base *base);
uint64_t base_size_bytes(struct base *base);
void base_submit(struct base *base, struct loop *loop, struct volume_io *io);

// What a range holds, from the same state that reads use. Extents come in order, merged, clipped to the
// range, whole 4 KiB blocks except at the volume's end.
enum extent_kind { EXTENT_DATA = 1, EXTENT_ZERO = 2, EXTENT_UNMAPPED = 3 };
struct volume_extent {
    uint64_t offset, length; // bytes
    enum extent_kind kind;
    // With EXTENTS_SHARED: stored at the same place as the same block of the base that this volume or base
    // came from, as long as that exists. (While a checkpoint moves blocks, a shared one may not be called
    // so.)
    bool shared;
};
enum { EXTENTS_SHARED = 1 };
struct volume_extents {
    uint64_t offset, length; // bytes
    unsigned flags;
    struct volume_extent *extents; // the caller's room for `capacity` (at least 1)
    unsigned capacity;
    // Results: `count` extents that cover the first covered_bytes of the range (all of it unless room ran
    // out).
    unsigned count;
    uint64_t covered_bytes;
    void (*done)(struct volume_extents *call, int result);
    void *context;
    void *state; // private
};
void volume_extents_submit(struct volume *volume, struct volume_extents *call); // [any]; done on its loop
void base_extents_submit(struct base *base, struct loop *loop, struct volume_extents *call); // [any]

// Ranges whose bytes differ between two bases: O(changed), since shared subtrees are stepped over; where only
// the places differ the bytes are compared. kind = what `newer` holds there. Unmapped is told apart from
// zeros, though it reads the same. What only the larger of two sizes has counts as unmapped in the other.
struct base_diff {
    struct base *older, *newer;    // stay open until done
    bool by_place;                 // no bytes are compared: what is not stored at one place differs (bytes
                                   // may still be equal), and zeros and unmapped are the same
    uint64_t offset;               // bytes, whole blocks: where to begin
    struct volume_extent *extents; // the caller's room for `capacity` (at least 1)
    unsigned capacity;
    // Results: `count` extents in [offset, next_offset). Unless finished, go on from there.
    unsigned count;
    uint64_t next_offset;
    bool finished;
    void (*done)(struct base_diff *call, int result);
    void *context;
    void *state; // private
};
void base_diff_submit(struct base_diff *call, struct loop *loop); // [any]; done on the loop

// each() returns false to stop; it runs on the caller's thread.
typedef bool (*extent_callback)(void *context, uint64_t offset, uint64_t length, enum extent_kind kind);

// The waiting twins, for threads that are not loops.
int volume_read_wait(struct volume *volume, uint64_t offset, void *buffer, uint64_t length);
int volume_write_wait(
        struct volume *volume, uint64_t offset, const void *buffer, uint64_t length, unsigned flags);
int volume_zero_wait(struct volume *volume, uint64_t offset, uint64_t length, bool trim, unsigned flags);
int volume_write_blocks_wait(
        struct volume *volume, const uint64_t *blocks, unsigned count, const void *buffer);
int volume_flush_wait(struct volume *volume);
// Extents are merged over the whole range; what is written meanwhile may be seen in a part of it.
int volume_extents_wait(
        struct volume *volume, uint64_t offset, uint64_t length, extent_callback each, void *context);
int base_extents_wait(
        struct base *base, uint64_t offset, uint64_t length, extent_callback each, void *context);
int base_diff_wait(struct base *older, struct base *newer, extent_callback each, void *context);
int base_diff_places_wait(struct base *older, struct base *newer, extent_callback each, void *context);
int base_read_wait(struct base *base, uint64_t offset, void *buffer, uint64_t length);
