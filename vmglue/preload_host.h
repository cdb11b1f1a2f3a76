// SPDX-License-Identifier: Apache-2.0
// The host's end of the preload library (preload/README.md): takes over a VMM's userfaultfd and learns where
// its guest memory is.
//
// Use: preload_listen, start the VMM with RAMET_PRELOAD_SOCKET naming the socket, preload_receive, close the
// socket and unlink its path. Threads: any that may wait.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// The path is used as it stands by the VMM: at most 107 bytes.
int preload_listen(const char *path, int *ret_fd, struct error *err);

struct preload_report {
    pid_t pid; // of the VMM, by the kernel's word; compare it with the process you started
    uid_t uid;
    int uffd; // the caller's to close; -1: the VMM has none (uffd_errno says why), so copy all private pages
    int uffd_errno;
    uint64_t ram_address; // as the VMM says: hand it to dirty_pages_open, which looks for itself
    uint64_t ram_bytes;
    bool from_image; // guest memory is a private mapping of a memory image; else anonymous
};
// Waits for the report. expected_pid: connections of other processes are turned away (0 = any).
// -ETIMEDOUT: the VMM has not mapped its memory by then; -EPROTO: what came is no report.
int preload_receive(int listen_fd, pid_t expected_pid, unsigned timeout_ms, struct preload_report *ret_report,
        struct error *err);
