// SPDX-License-Identifier: Apache-2.0
// Background work of a store, as the clients of the harness ask for it.
#pragma once

#include "snapshot/background.h"

enum chore_kind { CHORE_SEAL, CHORE_GC, CHORE_RECOMPRESS, CHORE_SCRUB, CHORE_CHECK };
enum { CHORE_KINDS = CHORE_CHECK + 1 };
extern const char *const chore_names[];

struct chore {
    enum chore_kind kind;
    void (*done)(struct chore *chore); // on loop 0; may be NULL
    // Results:
    bool answered;
    int result;
    struct error err;
    unsigned damages;
    char damage[300]; // the first
    struct background_job job;
};

// The chore stays put until it is answered.
void chore_submit(struct store *store, struct chore *chore);
