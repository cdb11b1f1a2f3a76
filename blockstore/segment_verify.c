// SPDX-License-Identifier: Apache-2.0
// Verifying files past all caches, and finding what a directory holds. Every byte of a file is somebody's:
// header, trailer and footer have checksums over whole blocks, frames have theirs, and what lies between
// frames must be zero; so no changed bit goes unseen.
#include "blockstore/segment_private.h"

#include "blockstore/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verify {
    struct segments *segments;
    struct task *task;
    uint64_t number;
    uint32_t generation;
    const struct segment_row *row; // what the table says; NULL: nothing
    segment_damage_callback damaged;
    void *context;
    char *path;
    struct segment_window window; // of the file's whole blocks
    uint64_t file_bytes;
    int damages;
    int error; // the first thing that could not be looked at
    struct segment_header header;
    struct segment_trailer trailer;
    struct segment_index index;
    bool has_index;
};

__attribute__((format(printf, 4, 5))) static void report(
        struct verify *v, uint32_t first_slot, uint32_t count, const char *format, ...)
{
    char what[400], sentence[900];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(sentence, sizeof sentence, "segment file %s: %s", v->path, what);
    v->damages++;
    v->damaged(v->context, v->number, first_slot, count, sentence);
}

static uint32_t all_slots(const struct verify *v)
{
    return v->row != NULL ? v->row->slots : v->has_index ? v->trailer.slots : 0;
}

// True: the bytes are there. Else it has been reported.
static bool look(struct verify *v, uint64_t offset, uint64_t size, uint32_t first_slot, uint32_t count,
        const uint8_t **ret_bytes)
{
    int r = segment_window_get(&v->window, offset, size, ret_bytes);
    if (r == -ENODATA) {
        report(v, first_slot, count, "bytes %" PRIu64 " to %" PRIu64 " are missing, it ends at %" PRIu64,
                offset, offset + size - 1, v->file_bytes);
    } else if (r < 0) {
        if (v->error == 0)
            v->error = r;
        report(v, first_slot, count, "cannot read bytes %" PRIu64 " to %" PRIu64 ": %s", offset,
                offset + size - 1, strerror(-r));
    }
    return r == 0;
}

// ---- Header, trailer, footer ----

static void check_header(struct verify *v)
{
    const uint8_t *bytes;
    if (!look(v, 0, SEGMENT_HEADER_BYTES, 0, all_slots(v), &bytes))
        return;
    int r = segment_header_decode(bytes, v->segments->config.seed, &v->header);
    if (r == -EPROTO) {
        v->error = v->error == 0 ? r : v->error;
        report(v, 0, all_slots(v),
                "its format is version %" PRIu32 " with features %#" PRIx32
                ", newer than this program knows (version %d); use a newer Ramet",
                v->header.version, v->header.must_features, SEGMENT_VERSION);
    } else if (r < 0) {
        report(v, 0, all_slots(v), "its header (bytes 0 to %d) is damaged, or it is not of this store",
                SEGMENT_HEADER_BYTES - 1);
    } else if (v->header.number != v->number || v->header.generation != v->generation) {
        report(v, 0, all_slots(v),
                "its header (bytes 0 to %d) says that it is segment %" PRIu64 " generation %" PRIu32
                ": it was renamed or copied over",
                SEGMENT_HEADER_BYTES - 1, v->header.number, v->header.generation);
    } else if (v->row != NULL && (v->header.kind != v->row->kind || v->header.domain != v->row->domain)) {
        report(v, 0, all_slots(v),
                "its header (bytes 0 to %d) gives kind %" PRIu32 " and domain %" PRIu64
                ", the catalog %d and %" PRIu64,
                SEGMENT_HEADER_BYTES - 1, v->header.kind, v->header.domain, (int)v->row->kind,
                v->row->domain);
    }
}

static bool trailer_at(struct verify *v, uint64_t end)
{
    const uint8_t *bytes;
    return end >= SEGMENT_TRAILER_BYTES && end <= v->window.file_bytes && end % BLOCK_SIZE == 0 &&
           segment_window_get(&v->window, end - SEGMENT_TRAILER_BYTES, SEGMENT_TRAILER_BYTES, &bytes) == 0 &&
           segment_trailer_decode(bytes, v->segments->config.seed, &v->trailer) == 0;
}

static bool check_trailer(struct verify *v)
{
    uint64_t size = v->file_bytes;
    // Of a file that has grown, the catalog still knows the place.
    bool found = (v->row != NULL && trailer_at(v, v->row->file_bytes)) || trailer_at(v, v->window.file_bytes);
    const uint8_t *bytes;
    if (!found) {
        uint64_t from = v->window.file_bytes > SEGMENT_TRAILER_BYTES
                                ? v->window.file_bytes - SEGMENT_TRAILER_BYTES
                                : 0;
        if (v->window.file_bytes == 0 || look(v, from, SEGMENT_TRAILER_BYTES, 0, all_slots(v), &bytes))
            report(v, 0, all_slots(v),
                    "there is no trailer in its last bytes (%" PRIu64 " to %" PRIu64
                    "): it is damaged, cut short, or was never finished",
                    from, size - 1);
        return false;
    }
    if (v->trailer.number != v->number || v->trailer.generation != v->generation) {
        report(v, 0, all_slots(v),
                "its trailer (last %d bytes) is that of segment %" PRIu64 " generation %" PRIu32,
                SEGMENT_TRAILER_BYTES, v->trailer.number, v->trailer.generation);
        return false;
    }
    if (v->trailer.file_bytes != size)
        report(v, 0, 0, "it has %" PRIu64 " bytes where %" PRIu64 " were written (bytes %" PRIu64 " on)",
                size, v->trailer.file_bytes, v->trailer.file_bytes);
    return true;
}

static bool row_fits(const struct segment_row *row, const struct segment_trailer *t)
{
    return row->file_bytes == t->file_bytes && row->slots == t->slots && row->present == t->present &&
           row->frames == t->frames && row->level == t->level;
}

static void check_footer(struct verify *v)
{
    const struct segment_trailer *t = &v->trailer;
    const uint8_t *bytes;
    if (!look(v, t->footer_offset, t->footer_bytes, 0, all_slots(v), &bytes))
        return;
    // Where the header is unreadable, the catalog may know the kind; a wrong one only fails.
    enum segment_kind kind = v->row != NULL ? v->row->kind : (enum segment_kind)v->header.kind;
    if (segment_footer_decode(bytes, t, kind, v->segments->config.seed, &v->index) < 0) {
        report(v, 0, all_slots(v), "its footer (bytes %" PRIu64 " to %" PRIu64 ") is damaged",
                t->footer_offset, t->footer_offset + t->footer_bytes - 1);
        return;
    }
    v->has_index = true;
    if (v->row != NULL && !row_fits(v->row, t))
        report(v, 0, v->row->slots,
                "its trailer (last %d bytes) gives %" PRIu64 " bytes, %" PRIu32 " slots, %" PRIu32
                " present, %" PRIu32 " frames; the catalog gives %" PRIu64 ", %" PRIu32 ", %" PRIu32
                ", %" PRIu32,
                SEGMENT_TRAILER_BYTES, t->file_bytes, t->slots, t->present, t->frames, v->row->file_bytes,
                v->row->slots, v->row->present, v->row->frames);
}

// ---- Frames ----

static void check_blocks(struct verify *v, const struct segment_frame *frame, const uint8_t *blocks,
        const struct fingerprint_key *key)
{
    for (unsigned bit = 0, at = 0; bit < frame->slots; bit++) {
        if (!(frame->bitmap >> bit & 1))
            continue;
        struct fingerprint is = fingerprint_of(key, blocks + (size_t)at * BLOCK_SIZE);
        struct fingerprint should = v->index.fingerprints[frame->present_before + at++];
        if (is.low != should.low || is.high != should.high)
            report(v, frame->first_slot + bit, 1,
                    "slot %u (in bytes %" PRIu32 " to %" PRIu32 ") does not match its fingerprint",
                    frame->first_slot + bit, frame->offset, frame->offset + frame->stored_bytes - 1);
    }
}

static void check_frame(struct verify *v, const struct segment_frame *frame, uint64_t next, uint8_t *blocks,
        const struct fingerprint_key *key)
{
    const uint8_t *stored;
    if (!look(v, frame->offset, next - frame->offset, frame->first_slot, frame->slots, &stored))
        return;
    uint64_t end = (uint64_t)frame->offset + frame->stored_bytes;
    bool right = segment_frame_checksum(v->segments->config.seed, v->number, frame->first_slot, stored,
                         frame->stored_bytes) == frame->checksum &&
                 codec_decompress(stored, frame->stored_bytes, (enum codec)frame->codec, blocks,
                         segment_frame_bytes(frame)) == 0;
    if (right)
        check_blocks(v, frame, blocks, key);
    else
        report(v, frame->first_slot, frame->slots,
                "bytes %" PRIu32 " to %" PRIu64
                " (slots %u to %u) are damaged: their checksum does not match",
                frame->offset, end - 1, frame->first_slot, frame->first_slot + frame->slots - 1u);
    for (uint64_t at = end; at < next; at++)
        if (stored[at - frame->offset] != 0) {
            report(v, 0, 0, "bytes %" PRIu64 " to %" PRIu64 " between frames are not zero", end, next - 1);
            break;
        }
}

static int check_frames(struct verify *v)
{
    uint8_t *blocks = io_buffer_alloc(SEGMENT_FRAME_SLOTS_MAX * BLOCK_SIZE);
    struct fingerprint_key key;
    fingerprint_key_derive(
            v->segments->config.secret, v->row != NULL ? v->row->domain : v->header.domain, &key);
    int r = 0;
    for (uint32_t i = 0; i < v->index.frame_count && r == 0; i++) {
        uint64_t next =
                i + 1 < v->index.frame_count ? v->index.frames[i + 1].offset : v->trailer.footer_offset;
        check_frame(v, &v->index.frames[i], next, blocks, &key);
        r = task_stopping(v->task) ? -ECANCELED : 0;
    }
    io_buffer_free(blocks);
    return r;
}

// ---- One file ----

// There is no "how long is it" in the I/O seam; a read tells whether a place is before the end. A place that
// cannot be read is. Returns how many bytes of a block are there.
static unsigned block_there(struct verify *v, uint64_t block)
{
    struct iovec iov = {v->window.buffer, BLOCK_SIZE};
    struct io_op op = {
            .code = IO_READ, .fd = v->window.fd, .iov = &iov, .iov_count = 1, .offset = block * BLOCK_SIZE};
    int64_t n = task_io(v->task, &op);
    return n < 0 || n > BLOCK_SIZE ? BLOCK_SIZE : (unsigned)n;
}

static uint64_t length_of(struct verify *v)
{
    uint64_t low = 0, high = SEGMENT_FILE_MAX / BLOCK_SIZE + 1; // the end is in [low, high]
    uint64_t guess = v->row != NULL ? v->row->file_bytes / BLOCK_SIZE : 0;
    unsigned last = 0;
    if (guess > 0 && guess < high && (last = block_there(v, guess - 1)) > 0) {
        low = guess;
        if (block_there(v, guess) == 0)
            high = guess;
    }
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        unsigned there = block_there(v, middle);
        if (there == 0) {
            high = middle;
        } else {
            low = middle + 1;
            last = there;
        }
    }
    return low == 0 ? 0 : (low - 1) * BLOCK_SIZE + last;
}

static int verify_open_file(struct verify *v)
{
    v->file_bytes = length_of(v);
    v->window.file_bytes = v->file_bytes / BLOCK_SIZE * BLOCK_SIZE;
    if (v->file_bytes == 0) {
        report(v, 0, all_slots(v), "it is empty");
        return 0;
    }
    check_header(v);
    if (v->error < 0 || !check_trailer(v))
        return 0;
    check_footer(v);
    return v->has_index ? check_frames(v) : 0;
}

// Looks at everything. < 0 when it could not begin, or was stopped; what it found is in *v.
static int verify_file(struct verify *v)
{
    v->path = segment_path(v->segments, v->number, v->generation);
    int r = segment_window_open(&v->window, v->task, v->path, 0);
    if (r == -ENOENT && v->row != NULL) {
        report(v, 0, all_slots(v), "it is missing");
        return 0;
    }
    if (r < 0)
        return r;
    r = verify_open_file(v);
    segment_window_close(&v->window);
    return r;
}

static void verify_clear(struct verify *v)
{
    segment_index_clear(&v->index);
    free(v->path);
}

int segment_verify(struct segments *segments, struct task *task, uint64_t number,
        segment_damage_callback damaged, void *context)
{
    struct segment *segment = segment_hold(segments, number);
    if (segment == NULL)
        return -ENOENT;
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    struct segment_row row = segment->row;
    bool writing = segment->writer != NULL;
    pthread_mutex_unlock(&shard->lock);
    struct verify v = {.segments = segments,
            .task = task,
            .number = number,
            .generation = row.generation,
            .row = &row,
            .damaged = damaged,
            .context = context};
    int r = writing ? -EBUSY : verify_file(&v);
    verify_clear(&v);
    segment_release(segments, segment);
    return r < 0 ? r : v.damages;
}

// ---- The directory ----

struct named {
    uint64_t number;
    uint32_t generation;
};

// By number; the newest generation first.
static int by_age(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->generation > y->generation ? -1 : x->generation < y->generation;
}

static int list_files(
        struct segments *segments, struct task *task, struct named **ret_files, size_t *ret_count)
{
    struct segment_names list = {0};
    struct loop *loop = task_loop(task);
    int r = loop->ops->list_dir(loop, segments->directory, segment_name_add, &list);
    struct named *files = segment_alloc((list.count + 1) * sizeof *files);
    size_t count = 0;
    for (size_t i = 0; i < list.count; i++)
        if (segment_name_parse(list.names[i], &files[count].number, &files[count].generation))
            count++;
    segment_names_free(&list);
    qsort(files, count, sizeof *files, by_age);
    *ret_files = files;
    *ret_count = count;
    return r;
}

struct scan {
    struct segments *segments;
    struct task *task;
    segment_damage_callback damaged;
    void *context;
    int error;
};

// Whole: 1. Damaged, but with a row: 0. Else < 0.
static int scan_file(struct scan *scan, const struct named *file, struct segment_row *ret_row)
{
    struct verify v = {.segments = scan->segments,
            .task = scan->task,
            .number = file->number,
            .generation = file->generation,
            .damaged = scan->damaged,
            .context = scan->context};
    int r = verify_file(&v);
    int failed = r < 0 ? r : v.error;
    if (failed < 0 && scan->error == 0)
        scan->error = failed;
    if (r < 0 && r != -ECANCELED)
        report(&v, 0, 0, "cannot be opened: %s", strerror(-r));
    if (v.has_index && v.header.number == v.number && v.header.generation == v.generation) {
        *ret_row = (struct segment_row){.number = v.number,
                .generation = v.generation,
                .kind = (enum segment_kind)v.header.kind,
                .domain = v.header.domain,
                .file_bytes = v.trailer.file_bytes,
                .slots = v.trailer.slots,
                .present = v.trailer.present,
                .frames = v.trailer.frames,
                .level = v.trailer.level};
        r = r < 0 ? r : v.damages == 0;
    } else {
        r = -EBADMSG;
    }
    verify_clear(&v);
    return r;
}

int segments_scan(struct segments *segments, struct task *task,
        void (*each)(void *context, const struct segment_row *row), segment_damage_callback damaged,
        void *context)
{
    struct named *files;
    size_t count;
    struct scan scan = {segments, task, damaged, context, 0};
    scan.error = list_files(segments, task, &files, &count);
    for (size_t i = 0, next; i < count && scan.error != -ECANCELED; i = next) {
        struct segment_row row, best;
        int found = -1; // of the best so far: whole, damaged, none
        for (next = i; next < count && files[next].number == files[i].number; next++) {
            int is = found == 1 ? -1 : scan_file(&scan, &files[next], &row);
            if (is > found) {
                found = is;
                best = row;
            }
        }
        if (found >= 0 && scan.error != -ECANCELED)
            each(context, &best);
        if (task_stopping(task))
            scan.error = -ECANCELED;
    }
    free(files);
    return scan.error;
}
