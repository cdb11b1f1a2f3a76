// SPDX-License-Identifier: Apache-2.0
// Starts QEMU for a vm_config: listening sockets in the run directory, command line, environment, process.
// Threads: any.
#pragma once

#include "blockstore/error.h"
#include "vmglue/vm.h"
#include "vmglue/vm_process.h"

struct qemu_process {
    struct vm_process_identity identity;
    int pid_fd;     // the caller's to close
    int preload_fd; // where the preload library will report (preload_host.h), the caller's to close; -1 =
                    // none is loaded
};

// The process is stopped before its first instruction of the guest (-S). Its control socket,
// run_dir/qmp.sock, can be connected to at once.
int qemu_process_start(const struct vm_config *config, const char *accel, struct qemu_process *ret_process,
        struct error *err);

// When QEMU's words say that this build has no seccomp filter: later starts of this process leave it out.
// False when it was left out already or the words are about something else.
bool qemu_process_leave_out_sandbox(const char *words);

// Rate of the host's time-stamp counter, measured once; 0 when it cannot be told.
unsigned qemu_process_tsc_khz(void);
// "DIRECTORY/NAME" as a new string, NULL without memory.
char *qemu_process_path(const char *directory, const char *name);
