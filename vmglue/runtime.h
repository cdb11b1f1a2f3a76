// SPDX-License-Identifier: Apache-2.0
// Runtimes: what a VMM and its guest are started from (the VMM, its libraries and firmware, the preload
// library, the guest's kernel and initramfs), kept in the store, so that an upgrade of the system ends no
// saved session. Each is a folder STORE/runtimes/HASH that is a confined VMM's file system; its name is the
// digest of its manifest. They never change; what nothing needs is removed.
//
// The bundle of what is installed now is made at first need and used again while nothing of it changed (by
// device, inode, size and time of each file, kept in STORE/runtimes/installed.json). A bundle is read and
// compared with its manifest before its first use in a daemon's life, and again when a size or time differs.
// One that is damaged is made again when what is installed is the same; otherwise it is refused with words.
//
// Threads: any that may wait. Errors: -ENOENT there is no such runtime (any more), -EBADMSG it is damaged,
// -ENOSPC, and what runtime_sources_find says.
#pragma once

#include "blockstore/error.h"
#include "vmglue/runtime_bundle.h"

struct runtimes;

struct runtimes_config {
    const char *folder;           // STORE/runtimes; made when missing
    struct runtime_origin origin; // kept by the caller
    void (*log)(void *context, const char *message);
    void *context;
};

int runtimes_open(const struct runtimes_config *config, struct runtimes **ret_runtimes, struct error *err);
struct runtimes *runtimes_close(struct runtimes *runtimes); // accepts NULL

// Paths of the host of one that is held.
struct runtime {
    char name[RUNTIME_NAME_SIZE];
    char root[256], vmm[320], preload[320], kernel[320], initrd[320];
};
// Of what is installed now; and keeps it from being removed until runtimes_put. Copies about 100 MB when it
// is not there yet.
int runtimes_hold_current(struct runtimes *runtimes, struct runtime *ret_runtime, struct error *err);
int runtimes_hold(
        struct runtimes *runtimes, const char *name, struct runtime *ret_runtime, struct error *err);
void runtimes_put(struct runtimes *runtimes, const char *name);
// Removes those that nobody holds, that are not of what is installed, and that needed() does not know.
void runtimes_collect(
        struct runtimes *runtimes, bool (*needed)(void *context, const char *name), void *context);
