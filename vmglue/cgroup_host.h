// SPDX-License-Identifier: Apache-2.0
// Control groups of the host for VMMs: one group for the store ("ramet-UUID"), in it one for each sandbox,
// named by its id, with limits on memory, processes and its share of the processors.
//
// Version 2 is used where it has the controllers; otherwise the hierarchies of version 1. Groups are made
// below the daemon's own group where that is allowed (version 1; version 2 when it was delegated, as by
// systemd's Delegate=yes), else at the top. A controller that this host does not have is left out;
// cgroup_host_missing says which. A group outlives the daemon and is found again by its name. Needs root.
// Threads: any.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_HOST_FDS = 4 };

struct cgroup_host;

// name: of the store's group. cgroup_root and proc_cgroup: NULL = /sys/fs/cgroup and /proc/self/cgroup (tests
// give others). -ENOTSUP: there is no controller at all.
int cgroup_host_open(const char *name, const char *cgroup_root, const char *proc_cgroup,
        struct cgroup_host **ret_host, struct error *err);
// Leaves the groups. Accepts NULL.
struct cgroup_host *cgroup_host_close(struct cgroup_host *host);
// "memory, pids" in words, "" when nothing is missing.
const char *cgroup_host_missing(const struct cgroup_host *host);

struct cgroup_limits {
    uint64_t memory_bytes; // what is charged to it, page cache it brought in and kernel memory included
    unsigned processes;    // threads count
    unsigned cpus;         // its share grows with it
};
// Makes (or finds) a sandbox's group and sets its limits. ret_fds: its cgroup.procs files, one a hierarchy,
// open for writing: who writes "0" to each is in the group. The caller closes them.
int cgroup_host_make(struct cgroup_host *host, const char *id, const struct cgroup_limits *limits,
        int ret_fds[CGROUP_HOST_FDS], unsigned *ret_count, struct error *err);
// Nothing runs in it any more. -EBUSY: something does, after some waiting.
int cgroup_host_remove(struct cgroup_host *host, const char *id);
// How often the kernel ended something in it for want of memory.
uint64_t cgroup_host_oom_kills(struct cgroup_host *host, const char *id);
// The ids of all groups there are. Groups may be removed meanwhile.
void cgroup_host_each(struct cgroup_host *host, void (*each)(void *context, const char *id), void *context);
