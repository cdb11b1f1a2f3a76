// SPDX-License-Identifier: Apache-2.0
// Watches over the keeper from within the daemon: when the keeper dies, it is started anew and is given
// everything that it held. (Only the death of both at one moment loses what they held.)
//
// While a guard runs, keeper_put and keeper_drop of this process for its run_dir keep its copy up to date,
// and a keeper_put that finds no keeper revives it first. One guard per process. Threads: start and stop from
// any one thread; a thread of its own waits for the keeper's end.
#pragma once

#include "blockstore/error.h"

struct keeper_guard;

// A keeper must answer (keeper_ensure); what it holds already is copied. event(), which may be NULL, is told
// of a revival, or of why there is none (it is tried again every second), from the guard's thread or that of
// a keeper_put; it must not call the keeper.
int keeper_guard_start(const char *run_dir, const char *libexec_dir,
        void (*event)(void *context, const char *message), void *context, struct keeper_guard **ret_guard,
        struct error *err);
// To be called before keeper_stop. Accepts NULL, returns NULL.
struct keeper_guard *keeper_guard_stop(struct keeper_guard *guard);

// For keeper.c.
void keeper_guard_note(const char *run_dir, const char *name, int fd); // fd -1: dropped
int keeper_guard_revive(const char *run_dir, struct error *err);       // -ENOENT: no guard for that
