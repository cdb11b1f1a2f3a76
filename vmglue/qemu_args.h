// SPDX-License-Identifier: Apache-2.0
// QEMU's command line, built by us alone from a vm_config: nothing of it comes from a user unchecked.
//
// QEMU runs with the VM's run directory as its working directory, so that the sockets in it have short names.
// Every text that goes into a comma-separated option has its commas doubled. Threads: any; no state.
#pragma once

#include "blockstore/error.h"
#include "vmglue/vm.h"

enum { QEMU_ARGS_MAX = 128 };

struct qemu_args {
    char *argv[QEMU_ARGS_MAX + 1]; // malloc'ed, NULL-terminated
    unsigned count;
    bool failed; // out of memory or too many
    bool unseen; // a path that the confined VMM does not see
};

// What the config does not say.
struct qemu_args_host {
    const char *accel;    // "kvm" or "tcg"
    bool sandbox;         // QEMU's seccomp filter works here
    int qmp_fd, agent_fd; // listening sockets, numbers in the child
    int console_fd;       // open for appending, number in the child
    int tap_fd;           // number in the child; 0 = none
    unsigned tsc_khz;     // rate of the host's time-stamp counter, 0 = unknown
};

// Refuses what cannot work, naming the field.
int qemu_args_check(const struct vm_config *config, struct error *err);
int qemu_args_build(const struct vm_config *config, const struct qemu_args_host *host,
        struct qemu_args *ret_args, struct error *err);
// The command line with everything left out or replaced that may differ between a snapshot's source and the
// VM that loads it (paths, ids, addresses, memory): equal lines are compatible machines.
int qemu_args_build_canonical(
        const struct vm_config *config, const char *accel, struct qemu_args *ret_args, struct error *err);
void qemu_args_free(struct qemu_args *args);
