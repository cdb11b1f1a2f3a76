// SPDX-License-Identifier: Apache-2.0
// Short scripts over an engine in a simulated world: requests are started and awaited one by one, the model
// is told, and when asked for every step of the world is a crash point.
#pragma once

#include "tests/crash/chore.h"
#include "tests/crash/model.h"
#include "tests/crash/rig.h"

struct script_io;

struct script {
    struct rig rig;
    struct model *model;
    bool joined; // rig and model are the caller's
    uint64_t seed, points, last_io;
    bool cut_always;
    int allowed;       // an error that requests may answer
    bool damaged;      // scrubs may find something
    uint64_t fill;     // what writes are of (fill.h); 0 = by `distinct`
    unsigned distinct; // writes are copies of so many blocks; 0 = each has bytes of its own
    struct script_io **io;
    size_t io_count;
    struct volume **handle; // per model volume id, sparse
    size_t handle_count;
    bool failed;
    char text[1500];
};

// `opening` (may be NULL) as for rig_open, for this store and all that are recovered from it.
void script_begin(struct script *script, uint64_t seed, const struct store_config *config,
        const struct sim_options *sim);
void script_begin_with(struct script *script, uint64_t seed, const struct store_config *config,
        const struct store_config *opening, const struct sim_options *sim);
void script_join(struct script *script, const struct rig *rig, struct model *model);
// A script that has joined goes, and leaves rig and model as they are by now; everything has been awaited.
void script_leave(struct script *script);
// Creates a volume and waits for it; over a base when given. Never NULL.
struct model_volume *script_create(struct script *script, uint64_t size_bytes, struct model_base *parent);
// An empty one in a dedup domain.
struct model_volume *script_create_in(struct script *script, uint64_t size_bytes, uint64_t domain);
// Reads through an open handle, waits, and judges.
void script_read_base(struct script *script, struct model_base *base, struct base *handle, uint64_t offset,
        uint64_t length);
struct script_io *script_resize(struct script *script, struct model_volume *volume, uint64_t size_bytes);
struct script_io *script_delete_start(struct script *script, struct model_volume *volume);
void script_doc_delete(struct script *script, struct model_doc *doc); // waits
// Deletes it, and tries to open it again and again until the deletion is answered.
void script_open_race(struct script *script, struct model_volume *volume);
void script_delete(struct script *script, struct model_volume *volume); // waits

// Starting; the io stays valid until script_end.
struct script_io *script_write(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length, unsigned flags);
struct script_io *script_trim(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length);
// Judged when it is answered.
struct script_io *script_read(
        struct script *script, struct model_volume *volume, uint64_t offset, uint64_t length);
struct script_io *script_flush(struct script *script, struct model_volume *volume);
struct script_io *script_fork(
        struct script *script, struct model_volume *volume); // freeze, child and doc in one
struct script_io *script_doc(struct script *script, size_t body_bytes);
struct script_io *script_chore(struct script *script, enum chore_kind kind);
bool script_answered(const struct script_io *io);
int script_wait(struct script *script, struct script_io *io); // its result

// Deletes every doc and every volume there is, collects, and sees that nothing is left of them.
void script_empty(struct script *script);
// Writes, flushes without promising the model that it is durable, and leaves.
void script_raw_write_and_flush(struct script *script, struct model_volume *volume);
void script_cut_always(struct script *script, bool on);
void script_allow(struct script *script, int error); // 0 = none
void script_fail(struct script *script, const char *text);
// The live state is judged, and must be what a kill leaves.
void script_look(struct script *script);
// A recovery of what is there now is cut at every I/O, again and again, and must end in the same state.
void script_interrupt_recovery(struct script *script);
// Everything is awaited, the process ends (by a kill, or an orderly close) and another one opens the store.
void script_restart(struct script *script, bool kill);
// A recovery of what is there now meets an error at its N-th call of this kind, N = 1, 2, ... until it meets
// none.
void script_fail_recovery(struct script *script, enum io_code code);
// Waits for everything, looks once more, closes and frees. Returns false and words when anything went wrong.
bool script_end(struct script *script, uint64_t *points, char *text, size_t text_size);
