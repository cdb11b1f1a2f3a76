// SPDX-License-Identifier: Apache-2.0
// What a runtime bundle is made of: the files of this host that a VMM needs, found by asking the VMM's own
// loader (libraries) and the VMM (firmware folders), and where each lies in the bundle.
//
// Threads: any that may wait; two short programs are run.
#pragma once

#include "blockstore/error.h"

#include <sys/types.h>

enum { RUNTIME_SOURCES_MAX = 512, RUNTIME_TARGET_SIZE = 96 };

struct runtime_source {
    char *path;                       // on the host
    char target[RUNTIME_TARGET_SIZE]; // in the bundle, relative
    mode_t mode;                      // 0555 or 0444
};

struct runtime_sources {
    struct runtime_source items[RUNTIME_SOURCES_MAX];
    unsigned count;
};

// What it is made from; paths of the host. NULL: there is none.
struct runtime_origin {
    const char *vmm_path; // NULL = qemu-system-x86_64 from PATH
    const char *preload_path, *kernel_path, *initrd_path;
};

// Where these lie in every bundle.
#define RUNTIME_VMM "bin/qemu-system-x86_64"
#define RUNTIME_PRELOAD "lib/libramet-preload.so"
#define RUNTIME_KERNEL "boot/vmlinux"
#define RUNTIME_INITRD "boot/initramfs.cpio"

// -ENOENT: a file that must be there is not; -ENOEXEC: the VMM is no program of this processor (a script).
int runtime_sources_find(
        const struct runtime_origin *origin, struct runtime_sources **ret_sources, struct error *err);
void runtime_sources_free(struct runtime_sources *sources); // accepts NULL
