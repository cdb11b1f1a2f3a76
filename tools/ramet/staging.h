// SPDX-License-Identifier: Apache-2.0
// A folder beside the target in which a tree is put together before it appears under its name; removed when
// this program is interrupted.
#pragma once

#include "blockstore/error.h"

struct staging {
    char *path; // absolute or relative to the current folder
    struct interrupt *interrupt;
};
// In the folder that exists at `beside`.
int staging_create(const char *beside, struct staging *ret_staging, struct error *err);
// Moves staging/NAME to target. What exists there is replaced, folders are merged; nothing is moved through a
// symbolic link. Name "." = what is in the staging folder goes into the folder target, which is made when
// missing.
int staging_publish(struct staging *staging, const char *name, const char *target, struct error *err);
void staging_remove(struct staging *staging); // with all that is left in it
