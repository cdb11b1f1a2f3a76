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

// The file behind RAMET_PRELOAD_EXTENTS_FD: this header, then `count` extents, ascending and apart, inside
// [0, ram_bytes), in whole pages: what of guest memory is mapped from the machine's own image. All else is
// mapped from the origin's image, RAMET_PRELOAD_ORIGIN_FD.
enum { PRELOAD_EXTENTS_MAGIC = 0x52505831, PRELOAD_EXTENTS_MAX = 4096 };

struct preload_extents_header {
    uint32_t magic, count;
    uint64_t ram_bytes;
};
struct preload_extent {
    uint64_t offset, length; // bytes
};
_Static_assert(
        sizeof(struct preload_extents_header) == 16 && sizeof(struct preload_extent) == 16, "no holes");
