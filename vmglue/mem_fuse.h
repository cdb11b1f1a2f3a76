// SPDX-License-Identifier: Apache-2.0
// Memory images: a read-only FUSE mount with one immutable regular file per base, named by the base's id in
// decimal ("MOUNT/42"). The node id is the base id, so that a new daemon can go on where a dead one stopped.
// VMMs map an image MAP_PRIVATE: clean pages of all forks are one page-cache copy.
//
// Threads: start/stop from any thread that is not a loop. READs are answered asynchronously from the store's loops.
// Errors: a damaged block is EIO to the reader (SIGBUS in a VMM), never zeros.
#pragma once

#include "snapshot/volume.h"

struct mem_fuse;

// fuse_fd -1: mounts at `mountpoint` (a stale mount there is detached first); otherwise adopts a connection
// that an earlier daemon had, from the keeper, and has the kernel resend what was in flight.
int mem_fuse_start(struct store *store, const char *mountpoint, int fuse_fd, struct mem_fuse **ret_fuse, struct error *err);
int mem_fuse_device_fd(struct mem_fuse *fuse);      // for the keeper; owned by fuse
// unmount false: leaves the mount to the keeper's copy of the descriptor. Accepts NULL.
struct mem_fuse *mem_fuse_stop(struct mem_fuse *fuse, bool unmount);
uint64_t mem_fuse_read_bytes(struct mem_fuse *fuse);     // served since start
uint64_t mem_fuse_read_count(struct mem_fuse *fuse);
