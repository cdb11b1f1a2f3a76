// SPDX-License-Identifier: Apache-2.0
// Shared by workload.c (requests, choice), workload_txn.c (transactions) and workload_chore.c.
#pragma once

#include "tests/crash/chore.h"
#include "tests/crash/fill.h"
#include "tests/crash/layout.h"
#include "tests/crash/workload.h"

enum { SLOTS_MAX = 32, WRITE_MAX_BLOCKS = 64, SCATTER_MAX = 24 };

// An existing volume, as the clients see it.
struct slot {
    struct model_volume *volume; // NULL = free
    struct volume *handle;
    uint64_t walk;      // where rewriting goes on
    unsigned in_flight; // requests and freezes
    bool exclusive;     // being created, resized, renamed, deleted
};

struct client {
    struct volume_io io; // first
    struct workload *workload;
    bool busy;
    struct model_op *op;
    struct slot *slot[2];
    struct model_base *base; // a read of a base, or one made here
    struct base *base_handle;
    uint64_t began; // reads and flushes
    uint64_t blocks[SCATTER_MAX];
    void *buffer;
    bool plain_buffer; // from malloc, not aligned
    // A read that asks for the extents first, at the same moment on the volume's loop:
    struct volume_extents look; // before a read
    struct volume_extent extents[32];
    bool looked;
    uint64_t data; // bit n: the n-th block that the range touches is said to be data
    struct chore chore;
    // A transaction:
    struct slot *created;
    bool deletes, durable, rename_or_resize;
    int wanted;    // the only right result, when not 0
    bool may_miss; // something it refers to may be gone
};

struct workload {
    struct sim_world *world;
    struct store *store;
    struct model *model;
    uint64_t random;
    struct workload_options options;
    struct client *client;
    struct slot slot[SLOTS_MAX];
    unsigned started, unanswered, answered;
    unsigned names;
    unsigned full; // requests since the log was last full; counts down
    bool paused;
    char failure[400];
};

// workload.c
uint64_t workload_pick(struct workload *workload, uint64_t limit);
bool workload_chance(struct workload *workload, unsigned percent);
__attribute__((format(printf, 2, 3))) void workload_fail(struct workload *workload, const char *format, ...);
void workload_finished(struct client *client);
bool workload_tolerated(const struct workload *workload, int result);
void workload_check_result(struct client *client, int result, const char *what);
struct slot *workload_any_slot(struct workload *workload);
uint64_t workload_size_of(const struct slot *slot);
struct model_base *workload_base_of_a_doc(struct workload *workload);

// workload_chore.c
bool workload_start_chore(struct client *client);

// workload_txn.c: each starts one transaction, or returns false when there is nothing to do it with.
void workload_reopen(struct workload *workload, struct slot *slot);
bool workload_start_create(struct client *client);
bool workload_start_fork(struct client *client, bool child, bool doc);
bool workload_start_machine(struct client *client);
bool workload_start_doc_change(struct client *client, bool delete);
bool workload_start_delete(struct client *client);
bool workload_start_rename(struct client *client);
bool workload_start_resize(struct client *client);
