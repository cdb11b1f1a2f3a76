// SPDX-License-Identifier: Apache-2.0
// The 512 bytes before each member of a tar stream (POSIX.1-1988 ustar, and what GNU tar adds: types L and K
// carry the next member's long name and link, sizes may be binary).
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TAR_HEADER_BLOCK = 512 };
struct tar_header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
            version[2], user[32], group[32], major[8], minor[8], prefix[155], padding[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_HEADER_BLOCK, "tar");

// name and link are cut when they are too long; the caller has written L and K before.
void tar_header_make(struct tar_header *header, const char *name, char type, unsigned mode, uint64_t size,
        int64_t mtime, const char *link);
bool tar_header_is_good(const struct tar_header *header);
bool tar_header_is_end(const struct tar_header *header); // nothing but zeros
// UINT64_MAX: it is no number.
uint64_t tar_header_number(const char *field, unsigned size);
