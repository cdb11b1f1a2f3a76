// SPDX-License-Identifier: Apache-2.0
// Shared by log_replay.c (which records count) and log_apply.c (what they say).
#pragma once

#include "blockstore/log_private.h"

struct found_file {
    uint64_t number;
    struct log_file *file;
    bool head_valid;
    uint64_t oldest_claim;       // of the head
    uint64_t retire_claim;       // of the last RETIRE
    uint64_t first_seq, end_seq; // records [first, end)
    uint64_t end_block;
    uint64_t durable; // largest claim of any header in the file
    uint64_t first_incarnation, first_previous, last_incarnation;
    uint64_t limit_block; // the walk ends here at the latest
};

struct recovery {
    struct log *log;
    struct loop *loop;
    struct found_file *files;
    unsigned count, capacity;
    uint64_t *spares;
    unsigned spare_count, spare_capacity;
    uint8_t *window;
    struct log_file *window_file;
    uint64_t window_at, window_count;
    struct record_arrays arrays;
    uint8_t *payload;
    // While applying:
    uint64_t durable;
    uint8_t *image;
    size_t image_size;
    bool image_applied;
    uint8_t *roots; // parts of a ROOTS record
    size_t roots_size;
    uint32_t roots_parts; // so many so far
};

// log_replay.c
// 1 and the record, 0 when there is none at that place, -errno when the file cannot be read.
int log_record_at(struct recovery *self, struct log_file *file, uint64_t number, uint64_t block,
        struct record *ret_record);
// Whether the payload, read into self->payload, is what the record says; *ret_result < 0: it cannot be read.
bool log_payload_right(struct recovery *self, struct log_file *file, const struct record *record,
        uint64_t block, int *ret_result);
int log_damaged(struct recovery *self, const struct found_file *f, struct error *err);
int log_cannot_read(const struct log_file *file, int result, struct error *err);
// log_apply.c
int log_apply_chain(struct recovery *self, const unsigned *order, unsigned count,
        const struct log_replay *replay, struct error *err);
