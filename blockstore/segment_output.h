// SPDX-License-Identifier: Apache-2.0
// A segment's file while it is being written: header, frames in large aligned writes, footer, trailer, in the
// order data, sync, footer, sync, directory sync. One write is on its way while the task makes the next
// frames. Belongs to one task; what its readers look at (index, written, buffer) changes only under `lock`,
// where there is one.
#pragma once

#include "blockstore/segment_format.h"

#include <pthread.h>

struct segment_output {
    struct segments *segments;
    struct task *task;
    struct segment_header header;
    char *path;
    int fd;                // O_DIRECT, read and write
    pthread_mutex_t *lock; // may be NULL
    uint8_t *buffer;       // bytes of the file from `base` to `end`
    uint8_t *spare;        // the other buffer
    uint64_t base, end;
    uint64_t written;                   // up to here, in the file; a multiple of 4 KiB
    uint64_t sent;                      // up to here, in the file or on its way
    struct segment_output_write *write; // on its way, or NULL
    struct segment_index *index;
    struct segment_index own_index; // where the caller keeps none
    int failed;                     // the first -errno
};

// Creates the file; it must not exist. index NULL: one of its own.
int segment_output_begin(struct segment_output *output, struct segments *segments, struct task *task,
        const struct segment_header *header, struct segment_index *index, pthread_mutex_t *lock);
// Adds a frame: offset and checksum are filled in here. `prepared` (may be NULL) is called under the lock
// before the frame can be seen.
int segment_output_frame(struct segment_output *output, const struct segment_frame *frame, const void *stored,
        const struct fingerprint *fingerprints, void (*seen_locked)(void *context), void *context);
// Writes all that is left, durably. The descriptor stays open.
int segment_output_finish(
        struct segment_output *output, uint32_t slots, struct segment_row *ret_row, struct error *err);
// Frees everything but descriptor and a caller's index.
void segment_output_free(struct segment_output *output);
// Unlinks the file, closing `fd` first where it is >= 0.
void segment_output_remove(struct segment_output *output, int fd);
