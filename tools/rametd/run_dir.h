// SPDX-License-Identifier: Apache-2.0
// The daemon's run directory: who owns it, and its sockets.
#pragma once

#include "blockstore/error.h"

// Makes the directory (0700) and takes its lock; *ret_path is its absolute path, malloc'ed. -EBUSY names the
// owner.
int run_dir_take(const char *path, char **ret_path, int *ret_lock_fd, struct error *err);
// The process that holds the lock of whichever file in `directory` is locked; 0 when it cannot be told.
int run_dir_store_owner(const char *directory);
// A listening socket (0600) at RUN_DIR/name. A stale one is replaced: the lock says that nobody owns it.
int run_dir_listen(const char *run_dir, const char *name, int *ret_fd, struct error *err);
