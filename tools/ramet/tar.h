// SPDX-License-Identifier: Apache-2.0
// Trees of files as tar streams: POSIX ustar with GNU's long names, which every tar reads.
//
// What is unpacked comes from a guest, so nothing of it is trusted: names with ".." are refused, no symbolic
// link is ever followed, only files, folders, links are made (set-user-id bits are dropped, devices and pipes
// are left out and counted), all of it below one folder. Packing follows no link either.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Takes bytes; -errno ends the packing.
typedef int tar_write(void *context, const void *bytes, size_t size, struct error *err);

struct tar_totals {
    uint64_t files, bytes, left_out;
};
// What packing will find.
int tar_measure(const char *path, struct tar_totals *ret_totals, struct error *err);
// The file or folder at path and all below it, under `name`. ret_totals counts while it goes.
int tar_pack(const char *path, const char *name, tar_write *write, void *context,
        struct tar_totals *ret_totals, struct error *err);

struct tar_unpack;
int tar_unpack_new(
        const char *folder, struct tar_unpack **ret_unpack, struct error *err); // an empty one, that exists
int tar_unpack_feed(struct tar_unpack *unpack, const void *bytes, size_t size, struct error *err);
// The stream has ended: -EPIPE when an archive would go on. Frees it either way.
int tar_unpack_end(struct tar_unpack *unpack, struct tar_totals *ret_totals, struct error *err);
void tar_unpack_free(struct tar_unpack *unpack); // accepts NULL
