// SPDX-License-Identifier: Apache-2.0
// Checking a store: everything that its files say is read and compared. Never writes.
//
// On an open store it runs as a background job, so that no seal and no collection runs beside it; writers go
// on. What must be consistent is taken in one turn between two transactions: a share of every tree, names,
// and the rows of the last checkpoint. check_files.c looks at the files of a store that cannot be opened.
// Threads: the background task's; sentences about damage come on it.
#pragma once

#include "blockstore/task.h"
#include "snapshot/store.h"

// Calls damaged() with a sentence for each damage: file, bytes, and which volumes, snapshots and machines it
// touches. 0 when everything was looked at, whatever was found.
int check_run(struct task *task, struct store *store, void (*damaged)(void *context, const char *sentence),
        void *context, struct store_check_result *ret_result, struct error *err);
