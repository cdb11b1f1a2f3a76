// SPDX-License-Identifier: Apache-2.0
// Scrubbing: reads everything that is stored past all caches and verifies it, a segment at a time. It goes on
// where the last one stopped, also after a restart (the position is a part of the checkpoint).
// Threads: the background task's.
#pragma once

#include "snapshot/checkpoint.h"

// One slice of the background task. -EAGAIN: another job waits; call again with the same ret_result. When a
// segment is damaged, damaged() is called with a sentence that names file and bytes, and what it touches.
int scrub_run(struct task *task, struct store *store, void (*damaged)(void *context, const char *sentence),
        void *context, struct store_scrub_result *ret_result, struct error *err);

// ---- scrub_touched.c: who has damaged slots ----

struct scrub_damage {
    uint64_t number; // segment
    uint32_t first_slot, count;
    char *sentence;
};
// Walks all roots and calls damaged() for each damage, with what it touches at its end. [the task]
void scrub_tell(struct task *task, struct store *store, const struct scrub_damage *damages, size_t count,
        void (*damaged)(void *context, const char *sentence), void *context);
