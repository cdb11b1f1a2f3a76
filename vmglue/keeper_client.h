// SPDX-License-Identifier: Apache-2.0
// What keeper.c and keeper_guard.c share: calls on the keeper that pass the guard by.
#pragma once

#include "vmglue/keeper.h"

int keeper_client_connect(
        const char *run_dir, int *ret_fd, struct error *err); // -ENOTCONN: no keeper answers
int keeper_client_put(const char *run_dir, const char *name, int fd, struct error *err);
