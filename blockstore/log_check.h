// SPDX-License-Identifier: Apache-2.0
// Looks at everything that stands in the files of a log: every header, every payload, and that the records
// follow one another without a gap. Never writes.
//
// With an open log its files are held meanwhile, so that none retires, and what was not acknowledged when
// the call began is left alone: writers go on beside it. Without one (log == NULL: the log could not be
// opened) the same rules are applied to what lies in the directory.
//
// Threads: a task. Callbacks run in the task, without locks.
#pragma once

#include "blockstore/error.h"
#include "blockstore/log.h"
#include "blockstore/task.h"

struct log_damage {
    uint64_t file;         // number of the log file
    uint64_t block, count; // blocks that cannot be relied on; count 0: none in particular
    uint64_t volume;       // whose record it is; 0 = not known
    bool leftover;         // no damage: a file that does not belong to the log (any more)
    const char *sentence;
};

struct log_check {
    // The caller's:
    const char *directory; // STORE/log
    uint64_t file_bytes, seed;
    uint64_t start_file;  // a checkpoint covers every record before this file; 0 = there is none
    uint64_t durable_seq; // as in log_config
    struct log *log;      // may be NULL
    void (*damaged)(void *context, const struct log_damage *damage);
    // Every whole record of the log, in order; `body` is checked. Returns < 0 to stop with that result.
    // May be NULL.
    int (*record)(void *context, const struct record *record, const void *body);
    void *context;
    // Results:
    uint64_t files, records, bytes, damages;
    uint64_t oldest; // number of the oldest file that counts
};

// 0 when everything was looked at, whatever was found; < 0 when it could not look (words in err).
int log_check(struct task *task, struct log_check *check, struct error *err);
