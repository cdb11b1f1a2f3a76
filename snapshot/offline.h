// SPDX-License-Identifier: Apache-2.0
// A store that is not opened: its superblock, its lock and its segments' directory, for what works on files
// alone (check_files.c, rebuild.c). Drives the loop: one thread, before or without any of the loop's own.
#pragma once

#include "blockstore/segment.h"
#include "blockstore/superblock.h"
#include "snapshot/store.h"

struct offline {
    struct loop *loop;
    const char *directory;
    int lock_fd;
    bool has_superblock; // else the fields below are not set
    struct superblock superblock;
    uint64_t end_seq;          // of the last clean end, 0 = not known
    struct segments *segments; // the table is empty; nothing is written
};

// write: alone, else beside other readers. Without a readable superblock: 0 and has_superblock false, words
// in err. -EBUSY: in use.
int offline_open(
        struct loop *loop, const char *directory, bool write, struct offline *ret_offline, struct error *err);
void offline_close(struct offline *offline);
// Runs a task on the loop and returns what it returned.
int offline_run(struct offline *offline, int (*run)(struct task *task, void *context), void *context);
char *offline_path(const struct offline *offline, const char *name); // malloc'ed
