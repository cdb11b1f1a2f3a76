// SPDX-License-Identifier: Apache-2.0
// The catalog's file: pages of LMDB and the rows in them, read without LMDB.
#include "blockstore/checkpoint_file.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("catalog", 0);
    if (fd < 0 || ftruncate(fd, 0) < 0 || pwrite(fd, bytes, size, 0) != (ssize_t)size)
        abort();
    struct checkpoint_file file;
    if (checkpoint_file_read(fd, "catalog", &file, NULL) < 0)
        return 0;
    for (size_t i = 0; i < file.count; i++)
        if (file.rows[i].size > CHECKPOINT_VALUE_MAX)
            abort();
    checkpoint_file_done(&file);
    return 0;
}
