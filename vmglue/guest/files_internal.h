// SPDX-License-Identifier: Apache-2.0
// What files*.c share; all of it runs in helper processes.
#pragma once

#include "vmglue/agent_protocol.h"
#include "vmglue/guest/users.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

struct files_place {
    char path[PATH_MAX];
    bool directory_wanted; // it was given with a slash at its end
    struct users_entry user;
};

int files_path(const char *path, struct files_place *ret_place);
// Sends the helper's result and returns its exit code.
__attribute__((format(printf, 3, 4))) int files_answer(
        int status, const struct agent_builder *fields, const char *format, ...);
// A file that can be read. false: it cannot, the answer says so, and the helper ends with *ret_status.
bool files_open(const struct files_place *place, int *ret_fd, struct stat *ret_stat, int *ret_status);

// What a file that is being written will be: its own place, where it is made, owner and mode.
struct files_target {
    char path[PATH_MAX], temporary[PATH_MAX];
    int fd;
    uid_t uid;
    gid_t gid;
    mode_t mode;
};

// files_store.c
int files_store(struct files_place *place, uint32_t mode);  // standard input becomes the file
int files_append(struct files_place *place, uint32_t mode); // ... is put at its end
int files_make_directory(struct files_place *place);        // with its parents
int files_make_parents(const struct files_place *place, const char *path);
// Where the place's file goes; parents are made, nothing else yet. Then a file beside it.
int files_target_find(const struct files_place *place, uint32_t mode, struct files_target *ret_target);
int files_target_temporary(struct files_target *target);
int files_target_commit(
        struct files_target *target); // closes fd; the temporary name is gone on success alone
int files_target_refused(const struct files_place *place, int result); // answers
int files_copy_input(int fd, uint64_t *ret_size); // -ECANCELED: the input did not end as it should

// files_change.c
int files_read_range(const struct files_place *place, uint64_t offset, uint64_t length);
int files_move(const struct files_place *from, struct files_place *to, bool replace);
int files_chmod(const struct files_place *place, uint32_t mode);

// files_upload.c: operations that begin with the upload's id but for the first
int files_upload_begin(struct files_place *place, uint32_t mode);
int files_upload(enum agent_operation operation, struct agent_cursor fields);

// files_watch.c
int files_watch(const struct files_place *place, bool recursive);

// files_disk.c
int files_disk(enum agent_operation operation, struct agent_cursor fields);
