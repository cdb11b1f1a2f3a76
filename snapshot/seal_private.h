// SPDX-License-Identifier: Apache-2.0
// Shared by seal.c and seal_table.c.
#pragma once

#include "snapshot/checkpoint.h"

struct seal_writer {
    uint64_t domain;
    enum segment_kind kind;
    struct segment_writer *writer;
    struct fingerprint_key key;
};

struct seal_block { // a log block of the leaf at hand
    locator_t log;
    locator_t *forward; // its entry of the forwarding array
    struct fingerprint fingerprint;
    bool same_as_before;
    locator_t candidate; // 0 = none
    locator_t result;    // 0 = not known yet
};

struct seal_run { // consecutive blocks to read
    locator_t first;
    uint32_t count;
    unsigned at; // block of `buffer`
    void *buffer;
    int result;
};

// Fingerprints of blocks stored by this seal.
struct seal_table {
    struct seal_published *entries; // open addressing; locator 0 = free
    size_t capacity, count;
};
locator_t seal_table_find(const struct seal_table *table, struct fingerprint fingerprint);
void seal_table_put(struct seal_table *table, struct fingerprint fingerprint, locator_t locator);
void seal_table_take(struct seal_table *table, struct seal_result *result); // moves all entries
void seal_table_free(struct seal_table *table);

struct run_read;

struct seal {
    struct task *task;
    struct store *store;
    struct cut *cut;
    struct cut_root *root; // at hand
    struct error *err;
    struct seal_result *result;
    struct seal_writer *writers;
    unsigned writer_count;
    struct seal_table table;
    struct fingerprint_key public_key;
    // The leaf at hand:
    struct seal_block blocks[TREE_FANOUT];
    unsigned block_count;
    uint8_t *data, *compare; // TREE_FANOUT blocks each
    struct seal_run runs[TREE_FANOUT];
    struct run_read *reads;
    unsigned run_count;
    uint64_t windows[16];
    unsigned window_count;
};
