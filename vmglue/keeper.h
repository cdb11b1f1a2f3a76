// SPDX-License-Identifier: Apache-2.0
// Client of the keeper: a tiny process (ramet-keeper RUNDIR) that holds descriptors which must outlive the
// daemon: /dev/fuse, NBD listeners, userfaultfds. It listens on RUNDIR/keeper.sock (owner only; other users
// but root are turned away), knows names and descriptors and nothing else, and ends when told to, or when it
// holds nothing, or cannot be reached under its name any more, and nobody has been connected for a minute.
//
// Names: 1 to KEEPER_NAME_MAX visible ASCII characters, for example "fuse", "nbd/3", "uffd/17".
// Threads: any. Calls wait for the keeper (milliseconds; -ETIMEDOUT after ten seconds).
// Errors: -ENOTCONN no keeper answers in run_dir (keeper_ensure starts one); -EINVAL the name.
#pragma once

#include "blockstore/error.h"

enum { KEEPER_NAME_MAX = 120, KEEPER_HELD_MAX = 16384 };

// Starts a keeper for run_dir when none answers (it leaves the caller's session and process group, and keeps
// none of its descriptors). libexec_dir has ramet-keeper. Safe to call from several processes at once: one
// keeper results.
int keeper_ensure(const char *run_dir, const char *libexec_dir, struct error *err);
// The keeper gets a duplicate; what bore that name before is closed there.
int keeper_put(const char *run_dir, const char *name, int fd, struct error *err);
int keeper_get(const char *run_dir, const char *name, int *ret_fd, struct error *err); // a duplicate; -ENOENT
int keeper_drop(const char *run_dir, const char *name, struct error *err);             // -ENOENT
// Calls each() with every name held, ascending.
int keeper_list(
        const char *run_dir, void (*each)(void *context, const char *name), void *context, struct error *err);
// Closes everything it holds and ends it; returns when it is gone. No keeper: 0. VMs whose memory image no
// daemon serves die of this.
int keeper_stop(const char *run_dir, struct error *err);
