// SPDX-License-Identifier: Apache-2.0
// The kernel's side of a FUSE mount, as far as libfuse 3.14 does not have it: the mount table, and the two
// messages it takes to go on with a connection that another process began. Used by mem_fuse.c alone. Threads:
// any. Errors: -errno.
#pragma once

#include "blockstore/error.h"

#include <stddef.h>

#define MEM_FUSE_SUBTYPE "ramet-mem"

enum { MEM_FUSE_DEVICE_INIT_BYTES = 256 };

// Makes the mountpoint if it is missing and detaches what an earlier daemon left mounted there (lazily: VMs
// that map it keep what they have). -EBUSY: something else is mounted there.
int mem_fuse_device_prepare(const char *mountpoint, struct error *err);
// Mounts read-only, for all users when this process is root's, otherwise (by fusermount3) for its own user.
// The descriptor is the connection: its first message is INIT.
int mem_fuse_device_mount(const char *mountpoint, int *ret_fd, struct error *err);
// Detaches our mount; nothing there: 0.
int mem_fuse_device_detach(const char *mountpoint);
// 0 when our mount is there, else -ENOTCONN.
int mem_fuse_device_check_mounted(const char *mountpoint);
// 0 when the connection behind fd is alive, else -ENOTCONN.
int mem_fuse_device_check_alive(int fd);
// Fills an INIT request as the kernel sends it once and never again; returns its size. Its reply means
// nothing to the kernel, which ignores it.
size_t mem_fuse_device_make_init(void *buffer);
// Has the kernel send again what was taken from it and not answered. -EINVAL: Linux before 6.9.
int mem_fuse_device_resend(int fd);
