// SPDX-License-Identifier: Apache-2.0
// Names that people give, and the one rule that keeps them apart.
//
// Volumes, disk snapshots and machine snapshots share one name space: a name means one of them, so an NBD
// export "web", `--from web` and `volume export web` cannot mean two things. Sandboxes have a name space of
// their own; where a sandbox's disk is meant it is written "NAME/disk", and a machine snapshot's memory
// "NAME/memory". Names are 1 to 40 of a-z 0-9 and -, not at the start; ids (vol_7, snap_9, sbx_...) hold an
// underscore, which no name can.
//
// A name is reserved while its thing is being made, so that of two racing makers one gets -EEXIST at once.
// Threads: any.
#pragma once

#include "snapshot/store.h"

#include <pthread.h>

enum names_space { NAMES_DATA, NAMES_SANDBOX };
enum { NAMES_MAX = 40, NAMES_RESERVED_MAX = 4096 };

struct names {
    struct store *store;
    pthread_mutex_t lock;
    struct {
        enum names_space space;
        char name[NAMES_MAX + 1];
    } reserved[NAMES_RESERVED_MAX]; // protected by lock, as is the count
    unsigned reserved_count;
};

void names_init(struct names *names, struct store *store);
// -EINVAL with a sentence. `what` is for it: "volume", "snapshot", "sandbox".
int names_check(const char *what, const char *name, struct error *err);
// Checks the name and that nothing has it or is about to have it: -EINVAL, -EEXIST. Release it after the
// commit.
int names_reserve(
        struct names *names, enum names_space space, const char *what, const char *name, struct error *err);
void names_release(struct names *names, enum names_space space, const char *name);
// A free name made of `prefix` and random digits, reserved. At least NAMES_MAX + 1 bytes.
int names_make(struct names *names, enum names_space space, const char *what, const char *prefix,
        char *ret_name, struct error *err);
// The number of "vol_7" for the prefix "vol_"; 0 when it is no such id.
uint64_t names_id(const char *text, const char *prefix);
