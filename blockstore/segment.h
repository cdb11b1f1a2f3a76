// SPDX-License-Identifier: Apache-2.0
// Segments: sealed blocks, compressed in frames, with a footer that describes them. Format: FORMAT.md.
//
// A segment's number is virtual and never reused; its file is segments/NUMBER.GENERATION. Collecting writes a
// new generation that keeps every slot number and drops dead slots, then swaps the row. A slot is one 4 KiB
// block; a frame (a "group") is up to 64 consecutive slots of one seal, compressed as one zstd frame, or raw
// where that saves less than an eighth. The footer ("index" when in memory) has, for each frame, place,
// codec, bitmap of present slots and a checksum of the stored bytes, and for each slot its fingerprint. Every
// read is verified: compressed frames by the checksum (seeded with store, segment and slot, so that misplaced
// bytes are found too), raw slots by their fingerprint.
//
// Threads: segment_read on read->loop's thread; done runs there. Functions with a `struct task *` are called
// by that task. The rest: any. Lock: one inside, rank last. A swapped or dropped generation stays readable
// until its last reader is done, then its file is closed; its file is unlinked by segments_collect_files.
// Durability: segment_writer_finish and segment_rewrite answer when file and name are durable.
#pragma once

#include "blockstore/error.h"
#include "blockstore/fingerprint.h"
#include "blockstore/io.h"
#include "blockstore/task.h"

enum segment_kind { SEGMENT_DATA = 1, SEGMENT_NODES = 2 };
enum {
    SEGMENT_SLOTS_MAX = 16384,
    SEGMENT_FRAME_SLOTS_MAX = 64,
    SEGMENT_BITMAP_WORDS = SEGMENT_SLOTS_MAX / 64,
    // zstd levels, as in `zstd -1` and `zstd -3`. (The library's "fast" level -1 was a quarter faster, but
    // took 1.31 times what `zstd -3` makes of a whole disk image; level 1 takes 1.17 in 64 KiB frames.)
    SEGMENT_LEVEL_SEAL = 1,
    SEGMENT_LEVEL_COLD = 3,
};

struct segments;

// What the checkpoint keeps of a segment.
struct segment_row {
    uint64_t number;
    uint32_t generation;
    enum segment_kind kind;
    uint64_t domain;
    uint64_t file_bytes;     // size of the file
    uint32_t slots, present; // numbers handed out; of these still there
    uint32_t frames;
    int level; // the lowest zstd level in it
};

struct segments_config {
    const char *directory; // STORE/segments; exists
    uint64_t seed;         // of checksums
    uint8_t secret[FINGERPRINT_SECRET_BYTES];
    uint64_t index_cache_bytes; // footers in memory
    uint64_t frame_cache_bytes; // uncompressed frames in memory
    bool read_only;
};
struct segments *segments_new(const struct segments_config *config);
// No reads in flight. Closes descriptors by driving `loop` (NULL: bookkeeping only, for the simulator).
struct segments *segments_free(struct segments *segments, struct loop *loop);
// Loops are still closing descriptors: they must run on before segments_free.
bool segments_closing(struct segments *segments);

// The table. A segment whose writer has finished is readable and keeps its file until it is added or dropped;
// so does the file of a rewrite until its row is added or the segment dropped.
void segments_add(
        struct segments *segments, const struct segment_row *row); // also: swaps to a new generation
void segments_drop(struct segments *segments, uint64_t number);
bool segments_get(struct segments *segments, uint64_t number, struct segment_row *ret_row);
void segments_list(
        struct segments *segments, void (*each)(void *context, const struct segment_row *row), void *context);
// Unlinks files in the directory that the table does not name and no reader or writer has open.
int segments_collect_files(struct segments *segments, struct task *task);
// The same at start-up (drives the loop).
int segments_collect_files_at_start(struct segments *segments, struct loop *loop, struct error *err);

struct segment_read {
    struct loop *loop;
    locator_t first;
    uint32_t count;                                      // consecutive slots, of any number of frames
    void *buffer;                                        // any alignment
    bool uncached;                                       // do not keep the frame (scrub, one-time readers)
    void (*done)(struct segment_read *read, int result); // -EBADMSG damaged; -ENOENT no such slot (a lost
                                                         // file: -EIO)
    // Private:
    void *state;
    struct segments *segments;
    struct loop_work work;
    int result;
};
void segment_read(struct segments *segments, struct segment_read *read); // done is never called inside
// The same at once, from memory: 0, or -ENOENT, or -EAGAIN when something must be read. [any thread]
int segment_read_try(struct segments *segments, locator_t first, uint32_t count, void *buffer);
int segment_read_task(
        struct segments *segments, struct task *task, locator_t first, uint32_t count, void *buffer);
// The fingerprint of one slot; -ENOENT when it is not there (any more).
int segment_fingerprint_task(
        struct segments *segments, struct task *task, locator_t locator, struct fingerprint *ret_fingerprint);
// Calls each() for every present slot, ascending.
int segment_slots_task(struct segments *segments, struct task *task, uint64_t number,
        int (*each)(void *context, locator_t locator, struct fingerprint fingerprint), void *context);

// Writing. The segment is readable through segment_read from segment_writer_begin on (blocks not yet written
// come from the writer's memory), but it is not in the table, so not listed, until segments_add.
struct segment_writer;
int segment_writer_begin(struct segments *segments, struct task *task, uint64_t number,
        enum segment_kind kind, uint64_t domain, struct segment_writer **ret_writer);
bool segment_writer_full(struct segment_writer *writer); // no slot left, or its file is large enough
// Copies one block into the open frame; *ret_locator is final. A frame ends after frame_slots blocks (as
// given for its first), or by segment_writer_end_frame. Node blocks are transformed (deltas) before
// compression.
int segment_writer_add(struct segment_writer *writer, const void *block, struct fingerprint fingerprint,
        unsigned frame_slots, locator_t *ret_locator);
int segment_writer_end_frame(struct segment_writer *writer);
// Writes footer, syncs file and directory, frees the writer. On failure the file is gone.
int segment_writer_finish(struct segment_writer *writer, struct segment_row *ret_row, struct error *err);
struct segment_writer *segment_writer_abort(struct segment_writer *writer); // unlinks; accepts NULL

// Collecting: writes generation+1 of `number` with only the slots in `live` (bitmap of SEGMENT_BITMAP_WORDS).
// level 0: frames that stay whole are copied as they are, what is left of others is compressed again at its
// level. level > 0: everything is compressed again at that level. Neighbours are joined in frames of up to
// frame_slots consecutive slots. -EBADMSG: damaged, or `live` has a slot that is not there. -ECANCELED.
int segment_rewrite(struct segments *segments, struct task *task, uint64_t number, const uint64_t *live,
        int level, unsigned frame_slots, struct segment_row *ret_row, struct error *err);

// Verifies everything that a segment's file says: header, footer, every frame, every fingerprint, past all
// caches. Calls damaged() with a sentence that names file and byte range, and the slots that cannot be read
// (count 0: all can). Returns the number of damages, what the disk would not read among them, or < 0 when it
// could not look: no such segment, file not to be opened, -ECANCELED.
typedef void (*segment_damage_callback)(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence);
int segment_verify(struct segments *segments, struct task *task, uint64_t number,
        segment_damage_callback damaged, void *context);
// For rebuilding: reads every file of the directory; calls each() with the row of the newest generation of
// each number that is whole, and damaged() for what is not. Of a number without a whole file, the row of the
// newest one whose footer is readable is given: its other slots can be read. Older generations are looked at
// only where a newer one is damaged. What cannot be read or is of a newer format makes the call fail in the
// end, after everything else was looked at: it is not an absence.
int segments_scan(struct segments *segments, struct task *task,
        void (*each)(void *context, const struct segment_row *row), segment_damage_callback damaged,
        void *context);

struct segments_stat {
    uint64_t segments, file_bytes, slots, present, leaving_bytes; // leaving: swapped out, still read
    uint64_t index_cache_bytes, frame_cache_bytes;
    uint64_t frame_hits, frame_misses, read_bytes;
};
void segments_stat(struct segments *segments, struct segments_stat *ret_stat);
