// SPDX-License-Identifier: Apache-2.0
// What files.c and files_store.c share; all of it runs in helper processes.
#pragma once

#include "vmglue/agent_protocol.h"
#include "vmglue/guest/users.h"

#include <limits.h>

struct files_place {
    char path[PATH_MAX];
    bool directory_wanted; // it was given with a slash at its end
    struct users_entry user;
};

int files_path(const char *path, struct files_place *ret_place);
// Sends the helper's result and returns its exit code.
__attribute__((format(printf, 3, 4))) int files_answer(
        int status, const struct agent_builder *fields, const char *format, ...);
int files_write_all(int fd, const void *bytes, size_t size);

// files_store.c
int files_store(struct files_place *place, uint32_t mode); // standard input becomes the file
int files_make_directory(struct files_place *place);       // with its parents
