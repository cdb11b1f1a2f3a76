// SPDX-License-Identifier: Apache-2.0
// Compatibility record: what a device state and a memory image need around them. VMMs check next to nothing
// (a wrong memory size loads silently), so we do. A JSON object: machine, sizes, CPU model, devices, hashes
// of command line, kernel, initramfs, the image and disks, the VMM's build and accelerator.
//
// Threads: any. Hashes of files are cached by device, inode, size and mtime.
#pragma once

#include "blockstore/error.h"
#include "vmglue/vm.h"

// The record of a VM that `config` describes, run with `accel`. *ret_json is malloc'ed.
int compat_describe(const struct vm_config *config, const char *accel, char **ret_json, struct error *err);
// 0 when a state saved under `saved` may be loaded by a VM described by `now`; otherwise -EINVAL (or
// -EBADMSG: not a record) and a sentence that names the field, both values and the remedy.
int compat_compare(const char *saved, const char *now, struct error *err);
