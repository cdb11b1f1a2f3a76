// SPDX-License-Identifier: Apache-2.0
// What libramet-preload.so says, once, on RAMET_PRELOAD_SOCKET when guest memory has been mapped: this struct
// in one message, with the userfaultfd as SCM_RIGHTS unless uffd_errno is set. The machine's byte order. The
// library stands alone (it runs inside the VMM), so this header includes nothing of the project.
#pragma once

#include <stdint.h>

enum { PRELOAD_MAGIC = 0x52505231 };

struct preload_hello {
    uint32_t magic;
    int32_t uffd_errno;   // 0, or why there is no userfaultfd
    uint64_t ram_address; // in the VMM
    uint64_t ram_bytes;
    uint32_t from_image; // 1: a private mapping of the image, 0: anonymous
    uint32_t reserved;
};
_Static_assert(sizeof(struct preload_hello) == 32, "preload_hello has no holes");
