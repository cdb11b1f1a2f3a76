// SPDX-License-Identifier: Apache-2.0
// Who may open which memory image: every confined VMM has a user of its own, and each user's images are
// noted here before it is started. mem_fuse asks (its may_open); it asks at OPEN only, so that a VMM that
// has its image open needs nothing here, in this daemon or in the next one.
//
// Threads: any; nothing waits.
#pragma once

#include "snapshot/volume.h"

#include <stdbool.h>
#include <sys/types.h>

struct image_access;

struct image_access *image_access_new(void); // NULL: no memory
struct image_access *image_access_free(struct image_access *access);
int image_access_allow(struct image_access *access, uid_t uid, struct base_id base);
void image_access_forget(struct image_access *access, uid_t uid); // all of a user
// mem_fuse_config.may_open, with the access as its context.
bool image_access_may_open(void *access, struct base_id base, uid_t uid, pid_t pid);
