// SPDX-License-Identifier: Apache-2.0
#include "vmglue/template_files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockstore/fd.h"

enum { COPY_BYTES = 1 << 20, OPEN_FOLDERS = 32 };

int template_files_make_folder(const char *path, struct error *err)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return error_set(err, -errno, "the folder %s cannot be made: %s", path, strerror(errno));
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    int r = kind == FTW_DP || kind == FTW_D || kind == FTW_DNR ? rmdir(path) : unlink(path);
    return r < 0 && errno != ENOENT && errno != EBUSY ? -1 : 0;
}

int template_files_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    return nftw(path, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0 ? -errno : 0;
}

int template_files_read(const char *path, size_t limit, char **ret_text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), r = 0;
    if (fd < 0)
        return -errno;
    char *text = malloc(limit + 1);
    ssize_t size = text == NULL ? -ENOMEM : fd_read_all(fd, text, limit + 1);
    close(fd);
    r = size < 0 ? (int)size : (size_t)size > limit ? -EFBIG : 0;
    if (r < 0) {
        free(text);
        return r;
    }
    text[size] = '\0';
    *ret_text = text;
    return 0;
}

int template_files_write(const char *path, const char *text)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.new", path) >= sizeof temporary)
        return -ENAMETOOLONG;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), r = fd < 0 ? -errno : 0;
    if (r == 0)
        r = fd_write_all(fd, text, strlen(text));
    if (fd >= 0)
        close(fd);
    if (r == 0 && rename(temporary, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(temporary);
    return r;
}

static int copy_range(int fd, off_t from, off_t to, struct volume *volume, char *buffer,
        bool (*cancelled)(void *context), void *context)
{
    while (from < to) {
        size_t part = to - from < COPY_BYTES ? (size_t)(to - from) : COPY_BYTES;
        ssize_t got = pread(fd, buffer, part, from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO; // it became shorter
        if (cancelled(context))
            return -ECANCELED;
        int r = volume_write_wait(volume, (uint64_t)from, buffer, (size_t)got, 0);
        if (r < 0)
            return r;
        from += got;
    }
    return 0;
}

int template_files_to_volume(
        int fd, struct volume *volume, bool (*cancelled)(void *context), void *context, struct error *err)
{
    char *buffer = io_buffer_alloc(COPY_BYTES);
    off_t at = 0;
    int r = 0;
    for (;;) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0) {
            r = errno == ENXIO ? 0 : -errno; // only a hole is left
            break;
        }
        at = lseek(fd, data, SEEK_HOLE);
        if (at < 0)
            r = -errno;
        else
            r = copy_range(fd, data, at, volume, buffer, cancelled, context);
        if (r < 0)
            break;
    }
    io_buffer_free(buffer);
    if (r == -ECANCELED)
        return error_set(err, r, "the build was cancelled");
    return r < 0 ? error_set(err, r, "the image cannot be put into the store: %s", strerror(-r)) : 0;
}
