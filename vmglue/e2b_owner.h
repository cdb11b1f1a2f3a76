// SPDX-License-Identifier: Apache-2.0
// Whose files are that E2B's clients make: theirs belong to the user who is named (or "user") wherever they
// are made, while the agent gives what is made in a folder of root's to root. For e2b_files.c alone.
#pragma once

#include "vmglue/e2b_files.h"
#include "vmglue/sandbox.h"

struct http_request;

struct e2b_owner {
    char user[64];
    char top[E2B_PATH_CAPACITY]; // the first folder or file of the path that is not there yet; "" = all are
};

// Before something is made at that whole path.
void e2b_owner_look(
        struct e2b_owner *owner, struct http_request *request, struct sandbox_agent *use, const char *path);
// After it was made. -EINVAL: the guest has no such user.
int e2b_owner_give(const struct e2b_owner *owner, struct sandbox_agent *use, struct error *err);
