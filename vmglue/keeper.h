// SPDX-License-Identifier: Apache-2.0
// Client of the keeper: a tiny process (ramet-keeper RUNDIR) that holds descriptors which must outlive the daemon:
// /dev/fuse, NBD listeners, userfaultfds. It listens on RUNDIR/keeper.sock, knows names and descriptors and nothing else,
// and ends when told to, or when it holds nothing and nobody is connected for a while.
//
// Threads: any. Calls wait for the keeper (milliseconds).
#pragma once

#include "blockstore/error.h"

// Starts a keeper for run_dir when none answers (it leaves the caller's session and process group). libexec_dir has ramet-keeper.
int keeper_ensure(const char *run_dir, const char *libexec_dir, struct error *err);
int keeper_put(const char *run_dir, const char *name, int fd, struct error *err);    // replaces; the keeper gets a duplicate
int keeper_get(const char *run_dir, const char *name, int *ret_fd, struct error *err);    // a duplicate; -ENOENT
int keeper_drop(const char *run_dir, const char *name, struct error *err);
int keeper_list(const char *run_dir, void (*each)(void *context, const char *name), void *context, struct error *err);
int keeper_stop(const char *run_dir, struct error *err);    // drops everything and ends it
