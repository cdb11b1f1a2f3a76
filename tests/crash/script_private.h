// SPDX-License-Identifier: Apache-2.0
// Shared by script.c (requests), script_chore.c and script_look.c (what is looked at).
#pragma once

#include "tests/crash/script.h"

struct script_io {
    struct volume_io io; // first
    struct script *script;
    struct model_op *op;
    struct model_volume *read; // what is read, of these two
    struct model_base *read_base;
    struct chore chore;
    uint64_t began;
    bool done, flush;
    int result;
};

__attribute__((format(printf, 2, 3))) void script_blame(struct script *script, const char *format, ...);
struct script_io *script_io_new(struct script *script);
// A crash point now. With same_as, the recovered store must look like that.
void script_crash(struct script *script, bool power, bool recheck, const struct picture *same_as);
