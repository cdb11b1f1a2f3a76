// SPDX-License-Identifier: Apache-2.0
// The daemon's memory images and the keeper behind them: which mount belongs to which store, and who takes it
// over. Threads: the daemon's main one, at start and end.
#pragma once

#include "blockstore/error.h"
#include "snapshot/store.h"

struct image_access;
struct keeper_guard;
struct mem_fuse;

// Starts a keeper if there is none, guards it, and mounts RUNDIR/mem or takes over the mount of an earlier
// daemon of this store; `access` says which users may open what. -EBUSY: guests of another store still run
// from there. On failure *ret_guard may have been set: stop it.
int memory_images_start(const char *run_dir, const char *libexec_dir, struct store *store,
        struct image_access *access, struct keeper_guard **ret_guard, struct mem_fuse **ret_fuse,
        struct error *err);
