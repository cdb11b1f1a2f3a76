// SPDX-License-Identifier: Apache-2.0
// The confinement of a VMM: a root directory of its own that holds nothing but what it needs, a user and
// group of its own without any privilege, namespaces, limits, cgroups. CONFINEMENT.md says what a VMM that
// was taken over by its guest can still reach, and why.
//
// Use: vm_confine_make, vm_confine_add_* for what the VMM needs beyond its runtime bundle, then as
// vm_config.confine. All of it needs root. Paths of a vm_config stay paths of the host; vm_confine_path
// translates them for the VMM's command line and environment. Threads: a value belongs to one thread at a
// time.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { VM_CONFINE_MOUNTS = 8, VM_CONFINE_CGROUPS = 4, VM_CONFINE_PATH = 256 };
enum { VM_CONFINE_FDS = 1 + VM_CONFINE_MOUNTS + VM_CONFINE_CGROUPS + 1, VM_CONFINE_STEP_TAKE = 1000 };

// Where a confined VMM finds what is in its runtime bundle.
#define VM_CONFINE_LIBRARIES "/runtime/lib"
#define VM_CONFINE_MODULES "/runtime/lib/qemu"
#define VM_CONFINE_FIRMWARE "/runtime/share"

struct vm_confine_mount {
    char source[VM_CONFINE_PATH]; // on the host: a folder, a file or a socket
    char target[64];              // as the VMM sees it, "/NAME"; made as a mount point
    bool folder;
};

struct vm_confine {
    char root[VM_CONFINE_PATH]; // a runtime bundle (runtime.h); its top-level folders appear in the VMM's /
    char scratch[VM_CONFINE_PATH]; // an empty or private folder of the host to mount upon: the run directory
    uid_t uid;
    gid_t gid;
    bool kvm; // /dev/kvm is there, for this user
    struct vm_confine_mount mounts[VM_CONFINE_MOUNTS];
    unsigned mount_count;
    int cgroup_fds[VM_CONFINE_CGROUPS]; // cgroup.procs files, open for writing; not owned
    unsigned cgroup_count;
    uint64_t file_bytes_max;  // RLIMIT_FSIZE: console, log, device state
    unsigned descriptors_max; // RLIMIT_NOFILE
};

// Fills in defaults; nothing is mounted yet.
int vm_confine_make(struct vm_confine *confine, const char *runtime_root, const char *scratch, uid_t uid,
        struct error *err);
// -ENAMETOOLONG, -E2BIG: too many mounts.
int vm_confine_add(
        struct vm_confine *confine, const char *source, const char *target, bool folder, struct error *err);
// A path of the host as the VMM sees it; -ENOENT when it is outside of all that the VMM sees.
int vm_confine_path(const struct vm_confine *confine, const char *path, char *buffer, size_t size);

// ---- For vm_process.c alone ----
// In the parent: the trees to be mounted, as descriptors, the runtime's first. The image's lies in a file
// system that the daemon itself serves: the child must not have to ask for it.
int vm_confine_take(
        const struct vm_confine *confine, int ret_trees[1 + VM_CONFINE_MOUNTS], unsigned *ret_count);
// In the child, between clone and exec. It shares the memory of its parent (as vfork's does), so it makes
// system calls directly and allocates nothing. first_fd: its copies of the trees, from there on those of
// cgroup_fds, then the network namespace if has_netns (else the clone made a new one). Returns 0 or -errno;
// *ret_step is the step that failed.
int vm_confine_enter(const struct vm_confine *confine, int first_fd, bool has_netns, unsigned *ret_step);
// Words for a step: "the VMM could not be started: entering its control groups: ..."
const char *vm_confine_step(unsigned step);
// Flags of clone for the namespaces.
unsigned vm_confine_clone_flags(int netns_fd);
