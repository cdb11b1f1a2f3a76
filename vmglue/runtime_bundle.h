// SPDX-License-Identifier: Apache-2.0
// One runtime bundle on disk: a folder of files and its manifest (each file's path, size, digest and mode).
// Its name is the digest of the manifest, so equal bundles have equal names on every host. runtime.h is what
// others use.
//
// Threads: any that may wait. Durability: a bundle that bears its name is whole and synced; what was cut
// short has a name ending in ".new".
#pragma once

#include "blockstore/error.h"
#include "vmglue/runtime_sources.h"

#include <stdbool.h>
#include <stdint.h>

enum { RUNTIME_NAME_SIZE = 33 }; // 128 bits in hex

// Copies the files into FOLDER/NAME, unless a whole bundle of that name is there; a damaged one is replaced.
int runtime_bundle_make(const char *folder, const struct runtime_sources *sources,
        char ret_name[RUNTIME_NAME_SIZE], struct error *err);
// Reads every file. -ENOENT: there is no such bundle; -EBADMSG: damaged, *err names the file. *ret_stamp
// stands for sizes and times of all files as they are now.
int runtime_bundle_verify(const char *folder, const char *name, uint64_t *ret_stamp, struct error *err);
// The same stamp, without reading the files; -ENOENT when one is missing.
int runtime_bundle_stamp(const char *folder, const char *name, uint64_t *ret_stamp);
// Takes the name away first, so that half a bundle never bears it. Processes that run from it go on.
int runtime_bundle_remove(const char *folder, const char *name, struct error *err);
uint64_t runtime_bundle_bytes(const char *folder, const char *name); // 0: not there
bool runtime_bundle_is_name(const char *name);
// Removes everything in FOLDER that has no bundle's name, but `keep`.
void runtime_bundle_clean(const char *folder, const char *keep);
