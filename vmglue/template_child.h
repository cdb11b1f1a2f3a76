// SPDX-License-Identifier: Apache-2.0
// A builder program as a child process that leaves nothing: it is the first process of a process namespace of
// its own, with mounts of its own, so that whatever it started or mounted ends with it, and it ends with us,
// however we end.
//
// Threads: any; the call waits. The thread that calls is the one whose end ends the child.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>

struct template_child {
    const char *const *argv; // argv[0] is an absolute path; NULL-terminated. No shell is in between
    const char *folder;      // where it runs
    unsigned timeout_ms;
    // Both outputs, as they come.
    void (*on_output)(void *context, const char *bytes, size_t size);
    // Asked after each piece of output and every 100 ms; true ends it.
    bool (*cancelled)(void *context);
    void *context;
};
// 0: it ended well. -EIO: it failed (its output says why), -ECANCELED, -ETIMEDOUT, -EPERM: not root.
int template_child_run(const struct template_child *child, struct error *err);
