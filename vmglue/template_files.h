// SPDX-License-Identifier: Apache-2.0
// What template builds do with files: folders that go away whole, small texts, and a raw image that becomes a
// volume.
//
// Threads: any that is not a loop.
#pragma once

#include "snapshot/volume.h"
#include "vmglue/json.h"

#include <stdbool.h>

// A folder of our own, mode 0700. 0 also when it is there.
int template_files_make_folder(const char *path, struct error *err);
// The folder and all below it, whoever owns it; other file systems mounted there are left alone. 0 also when
// it is not there.
int template_files_remove(const char *path);
// All of a text file that is at most `limit` bytes; malloc'ed, zero-terminated. -ENOENT, -EFBIG.
int template_files_read(const char *path, size_t limit, char **ret_text);
// The file is whole or not there.
int template_files_write(const char *path, const char *text);
// The bytes of a file that are data go into a volume that is at least as large; holes stay holes.
int template_files_to_volume(
        int fd, struct volume *volume, bool (*cancelled)(void *context), void *context, struct error *err);
