// SPDX-License-Identifier: Apache-2.0
// What a store may hold, said from outside: which operations were submitted, answered and promised durable,
// in logical time, and what follows for every byte. It knows nothing of logs and trees.
//
// Rules (a block is judged byte range by byte range):
//  1. A byte shows an operation that was submitted, or the initial state; never another volume's.
//  2. It does not show one that a required later operation replaced. "Later" = submitted after the other was
//     answered. Required: live and after a kill, what was answered; after a power cut, what a flush, FUA or
//     durable transaction promised, and (the log is a prefix) whatever was answered before something visible
//     was submitted.
//  3. Within one block an operation is there wholly or not at all.
//  4. A base shows what was answered before its freeze was submitted, nothing submitted after it was
//  answered,
//     and once it has been seen never changes.
//  5. Catalog objects obey 1 and 2 as a whole, and a transaction is visible in all its objects or in none.
//  6. Extents: what is not data reads as zeros; what was never written or wholly zeroed is not data.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/crash/picture.h"

enum model_kind { MODEL_INITIAL, MODEL_WRITE, MODEL_ZERO, MODEL_TRIM, MODEL_TXN, MODEL_OBSERVED };

struct model_op {
    uint64_t id;
    enum model_kind kind;
    uint64_t fill;             // seed of the bytes it writes (fill.h)
    uint64_t submitted, ended; // logical time; ended 0 = in flight
    bool promised;             // answered with success
    bool durable;              // and promised to survive a power cut
    bool rejected;             // answered with an error that leaves no trace
    struct model_op *tail;     // a shrink: clearing the rest of the last block, even when it is refused
    int evidence;              // during a judgement: 1 in, -1 out
};

struct model_entry { // one operation's part in one block
    struct model_op *op;
    uint16_t from, to;    // bytes of the block
    bool through_base;    // initial state of a fork: see the base
    const uint8_t *bytes; // MODEL_OBSERVED, MODEL_INITIAL: what it looked like (NULL = zeros)
    bool data;            // and whether it was data
};

struct model_history {
    struct model_entry *entry; // [0] is the initial state
    size_t count, capacity;
};

struct model_state { // of a catalog object, from one transaction on
    struct model_op *op;
    bool exists;
    char name[48];
    uint64_t size_bytes; // volumes
    uint64_t body_seed;  // docs: body and references come from these
    size_t body_bytes;
    uint64_t base[4], volume[4];
    unsigned base_count, volume_count;
};

struct model_object {
    uint64_t id;
    struct model_state *state; // [0] is the initial one
    size_t state_count, state_capacity;
};

struct model_base;

struct model_volume {
    struct model_object object; // first
    enum volume_kind kind;
    bool vast;
    struct model_base *parent; // whose content shows through; NULL = none
    uint64_t first_parent;     // the id in its row when it was made
    uint64_t domain;
    struct model_history *block;
    uint64_t block_count;
};

struct model_base {
    uint64_t id;
    struct model_volume *volume;
    uint64_t domain;
    struct model_op *op; // the transaction that froze it
    uint64_t size_bytes;
    bool vast;
    struct model_base *parent;
    struct model_history *block;
    uint64_t block_count;
};

struct model_doc {
    struct model_object object; // first
    enum doc_kind kind;
    uint64_t blob_seed;
    size_t blob_bytes;
};

enum { MODEL_READS_MAX = 32 };

struct model {
    uint64_t clock, next_id;
    struct model_op **op;
    size_t op_count, op_capacity;
    struct model_volume **volume;
    size_t volume_count, volume_capacity;
    struct model_base **base;
    size_t base_count, base_capacity;
    struct model_doc **doc;
    size_t doc_count, doc_capacity;
    struct model_op initial;
    uint64_t read[MODEL_READS_MAX]; // when the reads under way began; 0 = none
    void **kept;                    // bytes of observed blocks
    size_t kept_count, kept_capacity;
    FILE *trace;
};

struct model *model_create(uint64_t first_op_id);
struct model *model_destroy(struct model *model);
// A model in which the picture is the durable initial state.
struct model *model_from_picture(const struct picture *picture, uint64_t first_op_id);

struct model_op *model_begin(struct model *model, enum model_kind kind);
void model_end(struct model *model, struct model_op *op, int result, bool durable);
uint64_t model_tick(struct model *model);                      // now; a flush begins
void model_flushed(struct model *model, uint64_t flush_began); // its successful answer
// A read that will be judged begins (now, returned) and has been judged.
uint64_t model_read_begin(struct model *model);
void model_read_end(struct model *model, uint64_t began);
// The operation covers these bytes of the volume.
void model_touch(struct model *model, struct model_op *op, struct model_volume *volume, uint64_t offset,
        uint64_t length);

struct model_volume *model_volume_add(struct model *model, struct model_op *txn, uint64_t id,
        enum volume_kind kind, uint64_t size_bytes, const char *name, struct model_base *parent);
struct model_doc *model_doc_add(
        struct model *model, uint64_t id, enum doc_kind kind, uint64_t blob_seed, size_t blob_bytes);
struct model_base *model_base_add(
        struct model *model, struct model_op *txn, uint64_t id, struct model_volume *volume);
// A new state of the object by `txn`, a copy of the latest, to be edited.
struct model_state *model_change(struct model *model, struct model_op *txn, struct model_object *object);
const struct model_state *model_latest(const struct model_object *object); // not counting failed ones
// After a resize was added by model_change: blocks cut off are zero from then on.
void model_resized(struct model *model, struct model_op *txn, struct model_volume *volume, uint64_t old_bytes,
        uint64_t new_bytes);

enum model_mode { MODEL_LIVE, MODEL_KILLED, MODEL_POWER_CUT };
// True when the picture is allowed; else `why` says what is wrong.
bool model_judge(
        struct model *model, const struct picture *picture, enum model_mode mode, char *why, size_t why_size);
// One answered read of a live volume or base.
bool model_judge_read(struct model *model, struct model_volume *volume, struct model_base *base,
        uint64_t offset, const uint8_t *bytes, uint64_t length, uint64_t submitted, char *why,
        size_t why_size);
// The store was quiet and looked like this: from now on that is how it went.
void model_observe(struct model *model, const struct picture *picture);
