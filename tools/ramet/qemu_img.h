// SPDX-License-Identifier: Apache-2.0
// qemu-img, for image formats: what a file is, and copying between a file and an NBD socket.
#pragma once

#include "tools/ramet/output.h"
#include "blockstore/error.h"

#include <stdbool.h>
#include <stdint.h>

struct qemu_img_info {
    char format[32];
    uint64_t virtual_bytes;
    bool encrypted, corrupt;
    unsigned snapshots, bitmaps;
    char backing[512]; // "" = none
};
// format NULL = let qemu-img tell it by the content (never trusted for what guests may have written).
int qemu_img_probe(const char *file, const char *format, struct qemu_img_info *ret_info, struct error *err);
// `convert`; target_exists: -n. watch_fd >= 0: when its other side closes, the copy is ended and
// -EPIPE returned.
int qemu_img_convert(const char *source, const char *source_format, const char *target,
        const char *target_format, bool target_exists, int watch_fd, struct progress *progress,
        struct error *err);
// The name of an NBD socket for qemu-img; malloc'ed.
char *qemu_img_nbd(const char *socket_path);
