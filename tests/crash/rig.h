// SPDX-License-Identifier: Apache-2.0
// A store over a simulated world, and what can be asked of every world: that a store opens, shows a state,
// shows the same state when it is opened again, and closes without a leftover.
#pragma once

#include "tests/crash/picture.h"

enum { RIG_LOOPS_MAX = 4 };
#define RIG_DIRECTORY "/data/store"

struct rig {
    struct sim_world *world;
    struct store *store;
    struct loop *loops[RIG_LOOPS_MAX];
    unsigned loop_count;
    const struct store_config *opening;
};

// Creates the parent directory and the store. Returns 0 or -errno with words in `why`.
int rig_init(struct sim_world *world, const struct store_config *config, char *why, size_t why_size);
// `opening`: what only concerns this opening (caches, when to seal); NULL = defaults. It stays the caller's.
// Background work goes to the last loop.
int rig_open(struct rig *rig, struct sim_world *world, unsigned loop_count,
        const struct store_config *opening, char *why, size_t why_size);
// Closes the store. False (and words) when the world saw a breach of contract, or something is left over.
bool rig_close(struct rig *rig, char *why, size_t why_size);

// Opens a store in the world, takes its picture and closes it; `tolerant` as in picture_take. With `recheck`,
// the world is cut or killed again while the recovered store is open, recovered once more, and must show the
// same.
struct rig_options {
    unsigned loop_count;
    const struct store_config *opening; // as for rig_open
    bool tolerant;
    bool recheck;
    bool check; // the recovered store checks itself, and must find nothing
    enum {
        RIG_NOT_FIRST,
        RIG_CUT_FIRST,
        RIG_KILL_FIRST
    } first;       // recovery itself ends so at some I/O, and is done again
    uint64_t seed; // for all choices here
    FILE *trace;
};
// Consumes the world. The picture is valid when it returns 0.
int rig_recover(struct sim_world *world, const struct rig_options *options, struct picture *ret_picture,
        char *why, size_t why_size);
