// SPDX-License-Identifier: Apache-2.0
// Takes a machine snapshot of a running VM: memory, disks and device state of one instant, committed by one
// log record (a DOC_MACHINE doc over the frozen bases, the device state as its blob).
//
// Steps: freeze user processes (agent) and drain; pre-copy rounds of dirty pages into the memory volume while
// the guest runs; group-commit the log; stop; device state; last scan and copy; commit (freezes the disks);
// cont; thaw. Why in this order: capture.c. Threads: one capture per VM at a time, on a thread that is not a
// loop, holds no lock, and serves neither NBD nor FUSE. Failure: at any step the source is continued and
// thawed, pages stay marked dirty, and *err says what happened.
#pragma once

#include "blockstore/error.h"
#include "snapshot/txn.h"
#include "snapshot/volume.h"
#include "vmglue/agent_client.h"
#include "vmglue/dirty_pages.h"
#include "vmglue/vm.h"

struct capture_ids {
    struct doc_id machine;
    struct base_id memory;
    struct base_id disks[VM_DISKS_MAX]; // as in capture_request.disks
};

struct capture_request {
    struct store *store;
    struct vm *vm;
    struct agent *agent;       // NULL: no freeze (only with best_effort)
    struct dirty_pages *dirty; // opened over vm_get_memory; started here
    struct volume *memory;     // holds what the last committed snapshot composed
    // What the machine's memory is likely to share most with: the image that it was resumed from, or that
    // one's own origin. Kept alive by the doc, for memory_map.h. 0 = none.
    struct base_id origin;
    struct volume_id disks[VM_DISKS_MAX];
    unsigned disk_count;
    const char *name; // of the DOC_MACHINE doc; NULL or "" = anonymous
    const char *body; // a JSON object whose members go into the doc's body; NULL = none
    bool durable;     // answer only after the log is synced (ready); otherwise it is written (staged)
    // Go on when the guest does not freeze in time (forks may draw equal random bytes), and when it writes
    // memory faster than it can be copied (it stands still for as long as that takes).
    bool best_effort;
    bool paused; // the VM is paused already and stays so; frozen: its user processes were frozen before
    bool frozen;
    bool leave_paused;          // do not continue and thaw after success: the caller ends this VM now
    unsigned freeze_timeout_ms; // 0 = 5 s
    unsigned stop_timeout_ms;   // 0 = 10 s
    unsigned max_rounds;        // 0 = 12
    uint64_t last_round_pages;  // pre-copy is done when a round found at most this many; 0 = 512
    uint64_t max_frozen_pages;  // give up (-EBUSY) when a round before the freeze still finds more than this;
                                // 0 = 16384, 64 MiB. Neither this nor the next with best_effort, paused, or
                                // leave_paused
    uint64_t max_pause_pages;   // the same before its CPUs are stopped; 0 = 4096
    // Adds operations to the same transaction (children's volumes, sandbox docs). Called while the guest is
    // paused: be quick. < 0 (with *err) gives the snapshot up.
    int (*extend)(void *context, struct txn *txn, const struct capture_ids *ids, struct error *err);
    // Tells how far it is, for progress bars. May be NULL.
    void (*progress)(void *context, const char *step, uint64_t done_pages, uint64_t left_pages);
    void *context;
};

struct capture_figures {
    uint64_t pause_ns;  // stop sent to cont answered: what vCPUs feel. 0 when left paused
    uint64_t freeze_ns; // freeze answered to thaw answered: what user processes feel
    uint64_t stop_ns, state_ns, scan_ns, copy_ns, commit_ns, continue_ns; // parts of the pause
    uint64_t quiesce_ns,
            settle_ns; // before it, processes frozen: the agent's freeze; copying and syncing after it
    uint64_t total_ns;
    unsigned rounds;            // before the pause
    uint64_t pages, zero_pages; // copied in all rounds; those of them that held zeros
    uint64_t last_pages;        // copied in the pause
    uint64_t bytes;             // page bytes written to the memory volume
    size_t state_bytes;
    bool unique; // user processes were frozen
};

struct capture_result {
    struct capture_ids ids;
    struct capture_figures figures;
    // code 0, or what went wrong with the source after the snapshot was committed (not continued, not
    // thawed).
    struct error source_trouble;
};
int capture_machine(
        const struct capture_request *request, struct capture_result *ret_result, struct error *err);

// A DOC_MACHINE doc's body, as capture_machine wrote it.
struct capture_doc {
    struct base_id memory;
    struct base_id origin; // 0 = none
    struct base_id disks[VM_DISKS_MAX];
    unsigned disk_count;
    char *compat; // JSON text, malloc'ed (compat_compare)
};
int capture_doc_parse(const struct doc *doc, struct capture_doc *ret_doc, struct error *err);
void capture_doc_free(struct capture_doc *doc);
// Makes the body; figures may be NULL (not known yet). *ret_body is malloc'ed.
int capture_doc_body(const struct capture_request *request, const struct capture_ids *ids,
        const struct capture_figures *figures, char **ret_body, struct error *err);

// One copy round: everything in the round's set goes into the memory volume.
struct capture_copier;
int capture_copy_open(struct volume *memory, struct dirty_pages *dirty, struct capture_copier **ret_copier,
        struct error *err);
struct capture_copier *capture_copy_close(struct capture_copier *copier); // accepts NULL
// Adds to the figures' pages, zero_pages and bytes.
int capture_copy_round(struct capture_copier *copier, struct capture_figures *figures, struct error *err);
