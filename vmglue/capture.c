// SPDX-License-Identifier: Apache-2.0
// The order of a snapshot, and why:
//   1. Pre-copy while everything runs. Pages written meanwhile are found by the next round, so only time is
//   at stake.
//   2. Freeze user processes. From here to the thaw they stand still, so it comes as late as it can; it also
//   ends what
//      keeps pre-copy from converging. One round more takes what was written since the last.
//   3. Flush the log: `stop` and the device state each flush every disk, and both now find nothing to do.
//   4. Stop; device state; only then the last scan, since saving state may still write guest memory.
//   5. Commit: one log record freezes memory and disks and holds the state. The engine fixes the disks' roots
//   between
//      the call and its answer, so the guest may not run before the answer: a write of it could get in.
//   6. Continue, thaw. Waiting for the sync, if asked for, comes after that.
// A failure anywhere goes to the same two steps, continue and thaw; pages copied by then are still counted
// dirty, and what they left in the memory volume is overwritten by the next snapshot, because it copies all
// that are.
#include "vmglue/capture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "blockstore/clock.h"

enum {
    DEFAULT_FREEZE_MS = 5000,
    DEFAULT_STOP_MS = 10000,
    DEFAULT_ROUNDS = 12,
    DEFAULT_LAST_PAGES = 512,
    DEFAULT_MAX_FROZEN_PAGES = 16384, // 64 MiB: a tenth of a second, or two
    DEFAULT_MAX_PAUSE_PAGES = 4096,
    PATIENCE = 3, // times that a guest that writes a lot just now is given to calm down
};

struct capture {
    const struct capture_request *request;
    struct capture_result result;
    struct capture_copier *copier;
    bool frozen, stopped, committed;
    uint64_t started_ns, frozen_ns, stopped_ns;
    void *state;
};

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static void tell(struct capture *capture, const char *step)
{
    const struct capture_request *request = capture->request;
    if (request->progress != NULL)
        request->progress(request->context, step, capture->result.figures.pages,
                dirty_pages_round_count(request->dirty));
}

static int check(const struct capture_request *request, struct error *err)
{
    if (request->disk_count > VM_DISKS_MAX)
        return error_set(err, -EINVAL, "a machine snapshot has at most %d disks, not %u", VM_DISKS_MAX,
                request->disk_count);
    if (request->paused && !request->frozen && !request->best_effort)
        return error_set(err, -EBUSY,
                "the machine was paused without its processes being frozen first, so forks of it could draw "
                "equal random numbers: resume it first, or ask for a best-effort snapshot");
    if (request->agent == NULL && !request->best_effort && !request->paused)
        return error_set(err, -EINVAL,
                "the guest has no agent, so its processes cannot be frozen: ask for a best-effort snapshot "
                "if forks may draw equal random numbers");
    struct doc doc;
    if (request->name != NULL && request->name[0] != 0 &&
            store_doc_find(request->store, DOC_MACHINE, request->name, &doc) == 0) {
        doc_free(&doc);
        return error_set(err, -EEXIST,
                "there is a snapshot named '%s' already: choose another name or delete it", request->name);
    }
    enum vm_status status;
    int result = vm_get_status(request->vm, &status, err);
    if (result == 0 && status == VM_IO_ERROR)
        return error_set(err, -EBUSY,
                "the VM is stopped by a failed disk request, which a snapshot would carry along: make room "
                "in the store and continue the VM first");
    if (result == 0 && status != (request->paused ? VM_PAUSED : VM_RUNNING))
        return error_set(err, -EBUSY, "the VM does not run: only a running VM can be snapshotted");
    return result;
}

// ---- 1 and 2: copy while the guest runs ----

static int first_scan(struct dirty_pages *dirty, struct error *err)
{
    if (!dirty_pages_tracks(dirty))
        return dirty_pages_start(dirty, err);
    int result = dirty_pages_scan(dirty, err);
    if (result == 0)
        dirty_pages_round_all_uncommitted(dirty); // what a failed snapshot had found
    return result;
}

// Copies rounds until one is small, or `limit` rounds, or (when the guest may still be frozen) they stop
// shrinking.
static int copy_rounds(
        struct capture *capture, unsigned limit, bool until_stuck, uint64_t *ret_last, struct error *err)
{
    const struct capture_request *request = capture->request;
    uint64_t small = or_default(request->last_round_pages, DEFAULT_LAST_PAGES), previous = UINT64_MAX;
    for (unsigned round = 0; round < limit; round++) {
        bool first = capture->result.figures.rounds == 0;
        int result = first ? first_scan(request->dirty, err) : dirty_pages_scan(request->dirty, err);
        if (result < 0)
            return result;
        if (!dirty_pages_tracks(request->dirty)) {
            *ret_last = 0; // without tracking nothing copied now counts: everything is copied in the pause
            return 0;
        }
        uint64_t count = dirty_pages_round_count(request->dirty);
        tell(capture, "copying");
        result = capture_copy_round(capture->copier, &capture->result.figures, err);
        if (result < 0)
            return result;
        capture->result.figures.rounds++;
        *ret_last = count;
        if (count <= small || (until_stuck && previous != UINT64_MAX && count > previous - previous / 4))
            return 0;
        previous = count;
    }
    return 0;
}

static int freeze(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    capture->result.figures.unique = request->paused && request->frozen;
    if (request->agent == NULL || request->paused)
        return 0;
    tell(capture, "freezing");
    uint64_t start = clock_monotonic_ns();
    int result = agent_freeze(
            request->agent, (unsigned)or_default(request->freeze_timeout_ms, DEFAULT_FREEZE_MS), err);
    if (result == 0) {
        capture->frozen = true;
        capture->frozen_ns = start;
        capture->result.figures.unique = true;
        capture->result.figures.quiesce_ns = clock_monotonic_ns() - start;
    } else if (request->best_effort) {
        result = 0;
    } else {
        if (result == -EBUSY) // what froze it before is gone, and its thaw was lost
            agent_thaw(request->agent, NULL);
        error_prefix(err, "the guest's processes could not be frozen, so no snapshot was taken");
    }
    return result;
}

static int flush(const struct capture_request *request, struct error *err)
{
    int result = store_flush(request->store);
    if (result < 0)
        error_set(err, result, "the store's log cannot be synced: %s; restart the daemon, which recovers it",
                strerror(-result));
    return result;
}

// Whoever asked takes a long pause, or there is nobody who waits for it to end.
static bool may_pause_long(const struct capture_request *request)
{
    return request->best_effort || request->leave_paused || request->paused;
}

static int too_fast(
        struct capture *capture, uint64_t last, uint64_t most, const char *what, struct error *err)
{
    return error_set(err, -EBUSY,
            "the guest writes memory faster than it can be copied: %llu MiB in the last of %u rounds, and at "
            "most %llu MiB may be left when %s; it runs on as before. Try again when it has calmed down, or "
            "take the snapshot with best effort: its processes then stand still for as long as that takes",
            (unsigned long long)last >> 8, capture->result.figures.rounds, (unsigned long long)most >> 8,
            what);
}

// What the last round has found is what frozen processes will wait for.
static int check_pace(struct capture *capture, uint64_t last, struct error *err)
{
    const struct capture_request *request = capture->request;
    uint64_t most = or_default(request->max_frozen_pages, DEFAULT_MAX_FROZEN_PAGES);
    if (may_pause_long(request) || !dirty_pages_tracks(request->dirty))
        return 0;
    for (unsigned i = 0; i < PATIENCE && last > most; i++) {
        int result = copy_rounds(capture, 2, true, &last, err);
        if (result < 0)
            return result;
    }
    return last > most ? too_fast(capture, last, most, "its processes are stopped", err) : 0;
}

// Until no more is left than fits into the pause; the processes stand still.
static int settle(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    uint64_t most = or_default(request->max_pause_pages, DEFAULT_MAX_PAUSE_PAGES), last = 0,
             start = clock_monotonic_ns();
    int result = 0;
    if (dirty_pages_tracks(request->dirty))
        result = copy_rounds(
                capture, (unsigned)or_default(request->max_rounds, DEFAULT_ROUNDS), false, &last, err);
    if (result == 0 && last > most && !may_pause_long(request))
        result = too_fast(capture, last, most, "its CPUs are stopped", err);
    if (result == 0)
        result = flush(request, err);
    capture->result.figures.settle_ns = clock_monotonic_ns() - start;
    return result;
}

static int prepare(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    unsigned rounds = (unsigned)or_default(request->max_rounds, DEFAULT_ROUNDS);
    uint64_t last = 0;
    int result = copy_rounds(capture, rounds, true, &last, err);
    // The sync of all that takes long, so it must not be the one that frozen processes wait for; nor what
    // they write meanwhile.
    if (result == 0)
        result = flush(request, err);
    if (result == 0 && dirty_pages_tracks(request->dirty))
        result = copy_rounds(capture, 2, true, &last, err);
    if (result == 0)
        result = check_pace(capture, last, err);
    if (result == 0)
        result = freeze(capture, err);
    if (result == 0)
        result = settle(capture, err);
    return result;
}

// ---- 4 and 5: in the pause ----

static int stop(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    tell(capture, "pausing");
    capture->stopped_ns = clock_monotonic_ns();
    if (request->paused)
        return 0;
    int result = vm_pause(request->vm, (unsigned)or_default(request->stop_timeout_ms, DEFAULT_STOP_MS), err);
    capture->stopped = result == 0;
    capture->result.figures.stop_ns = clock_monotonic_ns() - capture->stopped_ns;
    return result;
}

static int take_memory(struct capture *capture, struct error *err)
{
    struct capture_figures *figures = &capture->result.figures;
    struct dirty_pages *dirty = capture->request->dirty;
    uint64_t start = clock_monotonic_ns();
    int result = vm_save_state(capture->request->vm, &capture->state, &figures->state_bytes, err);
    uint64_t saved = clock_monotonic_ns();
    figures->state_ns = saved - start;
    if (result == 0 && figures->state_bytes > DOC_BLOB_MAX)
        result = error_set(err, -EFBIG, "the device state has %zu bytes and a snapshot can hold %d",
                figures->state_bytes, DOC_BLOB_MAX);
    if (result == 0)
        result = dirty_pages_scan(dirty, err);
    uint64_t scanned = clock_monotonic_ns(), before = figures->pages;
    figures->scan_ns = scanned - saved;
    if (result == 0)
        result = capture_copy_round(capture->copier, figures, err);
    figures->copy_ns = clock_monotonic_ns() - scanned;
    figures->last_pages = figures->pages - before;
    return result;
}

static int fill_doc(
        struct capture *capture, const struct capture_figures *figures, struct doc *doc, struct error *err)
{
    const struct capture_request *request = capture->request;
    const struct capture_ids *ids = &capture->result.ids;
    *doc = (struct doc){.id = ids->machine, .kind = DOC_MACHINE};
    if (request->name != NULL && strlen(request->name) > STORE_NAME_MAX)
        return error_set(err, -ENAMETOOLONG, "a snapshot's name has at most %d bytes", STORE_NAME_MAX);
    strcpy(doc->name, request->name != NULL ? request->name : "");
    doc->bases[doc->base_count++] = ids->memory;
    for (unsigned i = 0; i < request->disk_count; i++)
        doc->bases[doc->base_count++] = ids->disks[i];
    if (request->origin.value != 0)
        doc->bases[doc->base_count++] = request->origin;
    int result = capture_doc_body(request, ids, figures, &doc->body, err);
    doc->body_bytes = result == 0 ? strlen(doc->body) : 0;
    return result;
}

static int commit(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    struct capture_ids *ids = &capture->result.ids;
    uint64_t start = clock_monotonic_ns();
    struct txn *txn = txn_begin(request->store);
    for (unsigned i = 0; i < request->disk_count; i++)
        ids->disks[i] = txn_freeze(txn, request->disks[i]);
    ids->memory = txn_freeze(txn, volume_get_id(request->memory));
    struct doc doc;
    int result = fill_doc(capture, NULL, &doc, err);
    if (result == 0)
        ids->machine = txn_doc_put(txn, &doc, capture->state, capture->result.figures.state_bytes);
    free(doc.body);
    if (result == 0 && request->extend != NULL)
        result = request->extend(request->context, txn, ids, err);
    if (result < 0)
        txn_abort(txn);
    else
        result = txn_commit_wait(txn, 0, err);
    capture->result.figures.commit_ns = clock_monotonic_ns() - start;
    capture->committed = result == 0;
    return result;
}

// ---- 6: the source goes on ----

static void keep_trouble(struct capture *capture, const struct error *trouble, const char *what)
{
    struct error *kept = &capture->result.source_trouble;
    if (kept->code == 0)
        error_set(kept, trouble->code, "%s: %s", what, trouble->text);
}

// Continues and thaws, whatever came before. Tries each twice, since a source must not stay as it is.
static void release_source(struct capture *capture)
{
    const struct capture_request *request = capture->request;
    struct capture_figures *figures = &capture->result.figures;
    if (capture->committed && request->leave_paused)
        return;
    struct error trouble = {0};
    if (capture->stopped) {
        uint64_t start = clock_monotonic_ns();
        if (vm_continue(request->vm, &trouble) < 0 && vm_continue(request->vm, &trouble) < 0)
            keep_trouble(capture, &trouble, "the VM was left paused");
        uint64_t end = clock_monotonic_ns();
        figures->continue_ns = end - start;
        figures->pause_ns = end - capture->stopped_ns;
    }
    if (capture->frozen) {
        if (agent_thaw(request->agent, &trouble) < 0 && agent_thaw(request->agent, &trouble) < 0)
            keep_trouble(capture, &trouble, "the guest's processes were left frozen");
        figures->freeze_ns = clock_monotonic_ns() - capture->frozen_ns;
    }
}

// The figures of the pause are known only after it: they go into the doc by a second, small record.
static void record_figures(struct capture *capture)
{
    struct doc doc;
    if (fill_doc(capture, &capture->result.figures, &doc, NULL) == 0) {
        struct txn *txn = txn_begin(capture->request->store);
        txn_doc_put(txn, &doc, NULL, 0);
        txn_commit_wait(txn, 0, NULL); // without it the snapshot is whole, only undescribed
    }
    free(doc.body);
}

static int finish(struct capture *capture, struct error *err)
{
    const struct capture_request *request = capture->request;
    dirty_pages_committed(request->dirty);
    capture->result.figures.total_ns = clock_monotonic_ns() - capture->started_ns;
    record_figures(capture);
    int result = request->durable ? store_flush(request->store) : 0;
    if (result < 0)
        error_set(err, result,
                "the snapshot was written, but the store's log cannot be synced (%s), so it may not survive "
                "a power failure: restart the daemon, which recovers the store",
                strerror(-result));
    return result;
}

int capture_machine(
        const struct capture_request *request, struct capture_result *ret_result, struct error *err)
{
    struct capture capture = {.request = request, .started_ns = clock_monotonic_ns()};
    int result = check(request, err);
    if (result == 0)
        result = capture_copy_open(request->memory, request->dirty, &capture.copier, err);
    if (result < 0)
        return result;
    result = prepare(&capture, err);
    if (result == 0)
        result = stop(&capture, err);
    if (result == 0)
        result = take_memory(&capture, err);
    if (result == 0)
        result = commit(&capture, err);
    release_source(&capture);
    if (result == 0)
        result = finish(&capture, err);
    else if (capture.result.source_trouble.code != 0)
        error_prefix(err, "%.120s; besides", capture.result.source_trouble.text);
    capture_copy_close(capture.copier);
    free(capture.state);
    if (result == 0)
        *ret_result = capture.result;
    return result;
}
