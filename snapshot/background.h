// SPDX-License-Identifier: Apache-2.0
// Background work of a store: one thing at a time, in the order asked, each in a task. So a collection never
// races a seal, and nobody has to think about two of them.
//
// Threads: background_submit [any]; the rest on loop 0 unless said.
#pragma once

#include "blockstore/task.h"
#include "snapshot/store_private.h"

enum background_kind {
    BACKGROUND_SEAL,
    BACKGROUND_GC,
    BACKGROUND_SCRUB,
    BACKGROUND_CHECK,
    BACKGROUND_LOAD, // fingerprints of segments from before the opening
};

struct background_job {
    // The caller's, unchanged until done:
    enum background_kind kind;
    unsigned flags;
    void (*damaged)(void *context, const char *sentence); // SCRUB, CHECK; called in the task
    void (*done)(struct background_job *job, int result, const struct error *err); // on loop 0
    void *context;
    union {
        struct store_gc_result gc;
        struct store_scrub_result scrub;
        struct store_check_result check;
    } result;
    // Private:
    struct store *store;
    struct loop_work work;
    struct background_job *next;
};

struct background *background_new(struct store *store);
void background_start(struct store *store); // begins to load fingerprints, and to look at the age of records
// Starts a job; after background_close began: done with -ECANCELED.
void background_submit(struct store *store, struct background_job *job);
// The log asks for a checkpoint. [any]
void background_pressure(void *store);
// The loops' threads have stopped: ends the task, drives the loops until all jobs are answered.
void background_close(struct store *store);
// Whether a job waits: long jobs that can be cut in pieces look at it. [the task]
bool background_waiting(struct store *store);
int background_error(struct store *store);   // of the last checkpoint or collection [any]
bool background_loaded(struct store *store); // the fingerprints are [any]
