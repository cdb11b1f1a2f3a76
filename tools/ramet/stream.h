// SPDX-License-Identifier: Apache-2.0
// Bytes between a file descriptor and a call's body, and files that appear only when they are whole.
#pragma once

#include "tools/ramet/cli.h"
#include "tools/ramet/output.h"

// A whole call whose body is what fd gives (size 0 = unknown). *ret_json: the answer, NULL when it is empty.
// When this breaks off, the daemon keeps nothing.
int stream_upload(struct cli *cli, const struct verb *verb, const char *method, const char *path, int fd,
        uint64_t size, const char *name, json_t **ret_json);
// What a command in a sandbox wrote, to standard output or error. CLI_PIPE_CLOSED: nobody reads it any more,
// without a sentence.
int stream_pass(const struct verb *verb, int fd, const void *bytes, size_t size);
// From now on this program ends within a second when nobody reads its standard output any more, also when
// there is nothing to write: for what is followed for ever.
void stream_end_with_reader(void);
// The rest of the answer into fd. `progress` may be NULL.
int stream_receive(const struct verb *verb, struct client *client, int fd, const char *name,
        struct progress *progress, uint64_t *ret_bytes);

// All that fd gives, with a zero behind it; malloc'ed. -EFBIG: more than `limit` bytes. Nobody is told why.
int stream_read_all(int fd, size_t limit, char **ret_bytes, size_t *ret_size);

// A temporary neighbour of `path`.
struct stream_file {
    const char *path;
    char *temporary;
    int fd;
    unsigned mode; // 0 = as this process makes files
    struct interrupt *interrupt;
};
int stream_file_create(const struct verb *verb, const char *path, struct stream_file *ret_file);
// CLI_DONE: the whole file is at its path, and on disk; where only its folder could not be synced, a note on
// standard error says so. Otherwise the path is as it was. Frees *file either way.
int stream_file_publish(const struct verb *verb, struct stream_file *file);
void stream_file_discard(struct stream_file *file);
