// SPDX-License-Identifier: Apache-2.0
// What store_bench does with a store: generated content, writers with several requests in flight, readers
// that keep latencies. Everything waits, on the caller's thread (never a loop); failures end the program with
// a sentence, since a benchmark has nothing to go on with.
#pragma once

#include "snapshot/txn.h"
#include "snapshot/volume.h"

#include <stddef.h>

void store_load_die(const char *what, int result);

// ---- Content: a page is a function of seed and block number, so a file and a volume can be given the same.
enum content {
    CONTENT_RANDOM = 'r', // neither compresses nor repeats
    CONTENT_PROGRAM =
            'p', // like a program's heap: zeros, pointers of one region, small numbers; about 3 to 1
};
uint64_t store_load_mix(uint64_t value); // a hash
void store_load_page(void *page, uint64_t seed, uint64_t block, enum content content);

// `count` blocks, one in each of as many strides from block `first` (stride 1: one run), `batch` blocks a
// request: a run as one write, scattered ones as WRITE_BLOCKS. Either to a volume, durable at the end, or to
// a file.
struct pages {
    uint64_t seed, first, stride, count;
    enum content content;
    unsigned batch;
};
uint64_t store_load_block(const struct pages *pages, uint64_t i); // the i-th one's number
void store_load_pages(struct volume *volume, const struct pages *pages);
void store_load_pages_file(const char *path, const struct pages *pages);
// A guest's memory over a file that has its size: half of it zeros, a quarter blocks of `source` (a guest
// caches its disk), a quarter like a program's.
void store_load_memory_file(const char *path, uint64_t seed, const char *source);

// What the file holds between its holes, durable at the end. Answers the number of bytes.
uint64_t store_load_copy(struct volume *volume, const char *path);
// Reads from the volume what the file holds between its holes; the first difference ends the program.
void store_load_compare(struct volume *volume, const char *path);

// ---- Latencies ----

struct places { // `runs` of `span_bytes` each, at equal distances over the volume
    uint64_t span_bytes, runs;
};
struct latencies {
    uint64_t p50_ns, p99_ns, count;
};
// Random 4 KiB reads, one at a time, until `duration_ns` have passed and *go_on is false.
void store_load_reads(struct volume *volume, const struct places *places, uint64_t duration_ns,
        _Atomic bool *go_on, struct latencies *ret_latencies);
uint64_t store_load_median(uint64_t *samples, size_t count); // sorts them
