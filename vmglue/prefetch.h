// SPDX-License-Identifier: Apache-2.0
// Bringing a working set into the page cache, and taking one down: what the sandboxes do, and what
// benchmarks measure.
//
// Threads: a job has a thread of its own, which serves nothing; start and end from any thread that is not a
// loop. Errors of a job are no errors of anybody: what was not brought in is asked for by the guest.
#pragma once

#include "vmglue/dirty_pages.h"
#include "vmglue/mem_fuse.h"
#include "vmglue/memory_map.h"

struct working_set_job;
// map and set are taken over, on failure too. NULL: no thread or memory for it.
struct working_set_job *prefetch_start(
        struct mem_fuse *fuse, struct memory_map *map, struct working_set *set);
void prefetch_cancel(struct working_set_job *job); // does not wait
// Cancels (if asked), waits, frees. *ret_stored_bytes (may be NULL): what was brought in. Accepts NULL,
// returns NULL.
struct working_set_job *prefetch_end(struct working_set_job *job, bool cancel, uint64_t *ret_stored_bytes);

// What a VMM has mapped of its guest's memory now.
int prefetch_record(
        struct dirty_pages *dirty, uint64_t memory_bytes, struct working_set *ret_set, struct error *err);
