// SPDX-License-Identifier: Apache-2.0
// Reading a part of a file, moving, modes.
#include "blockstore/fd.h"
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The result has the whole file's size; beyond its end there is nothing, which is no error.
int files_read_range(const struct files_place *place, uint64_t offset, uint64_t length)
{
    static uint8_t buffer[65536];
    struct stat st;
    int fd, status;
    if (!files_open(place, &fd, &st, &status))
        return status;
    ssize_t got = 0;
    while (length > 0 && offset < INT64_MAX) {
        size_t wanted = length < sizeof buffer ? (size_t)length : sizeof buffer;
        got = pread(fd, buffer, wanted, (off_t)offset);
        if (got <= 0)
            break;
        if (fd_write_all(STDOUT_FILENO, buffer, (size_t)got) < 0)
            return 1;
        offset += (uint64_t)got;
        length -= (uint64_t)got;
    }
    if (got < 0)
        return files_answer(-errno, NULL, "reading %s: %s", place->path, strerror(errno));
    struct agent_builder fields = {0};
    agent_builder_u64(&fields, (uint64_t)st.st_size);
    int result = files_answer(0, &fields, "%s", "");
    agent_builder_free(&fields);
    return result;
}

int files_move(const struct files_place *from, struct files_place *to, bool replace)
{
    struct stat st;
    if (lstat(from->path, &st) < 0)
        return files_answer(-errno, NULL, "%s: %s", from->path, strerror(errno));
    bool directory = S_ISDIR(st.st_mode);
    if (to->directory_wanted && !directory)
        return files_answer(-EISDIR, NULL, "%s/ would be a directory: give the whole new name", to->path);
    int result = files_make_parents(to, to->path);
    if (result == 0 &&
            renameat2(AT_FDCWD, from->path, AT_FDCWD, to->path, replace ? 0 : RENAME_NOREPLACE) < 0)
        result = -errno;
    if (result == 0)
        return files_answer(0, NULL, "%s", "");
    if (result == -EEXIST && !replace)
        return files_answer(result, NULL, "%s exists already", to->path);
    if (result == -EISDIR || result == -ENOTEMPTY || result == -EEXIST)
        return files_answer(
                result, NULL, "%s is a directory that is not replaced: give the whole new name", to->path);
    if (result == -EXDEV)
        return files_answer(
                result, NULL, "%s and %s are on different file systems: copy it there", from->path, to->path);
    return files_answer(result, NULL, "cannot move %s to %s: %s", from->path, to->path, strerror(-result));
}

int files_chmod(const struct files_place *place, uint32_t mode)
{
    if (mode & ~07777u)
        return files_answer(-EINVAL, NULL, "%o is no file mode", mode);
    if (chmod(place->path, mode) < 0)
        return files_answer(-errno, NULL, "%s: %s", place->path, strerror(errno));
    return files_answer(0, NULL, "%s", "");
}
