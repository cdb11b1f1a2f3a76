// SPDX-License-Identifier: Apache-2.0
// Accounts, read straight from /etc/passwd and /etc/group: a static program cannot load libc's name services.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { USERS_GROUPS_MAX = 256 };

struct users_entry {
    char name[64], home[256], shell[256];
    uid_t uid;
    gid_t gid;
    gid_t groups[USERS_GROUPS_MAX]; // supplementary
    size_t group_count;
};

// name: a user name or a number; NULL or "" = "user", or root in an image that has no such user. -ENOENT.
int users_find(const char *name, struct users_entry *ret_entry);
// Whether the mode bits let the user write in a directory.
bool users_may_write(const struct users_entry *entry, uid_t owner, gid_t group, mode_t mode);
