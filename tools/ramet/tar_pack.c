// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/tar.h"
#include "tools/ramet/tar_header.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 18, DEPTH_MAX = 200 };

struct pack {
    tar_write *write; // NULL = only counts
    void *context;
    struct tar_totals *totals;
    struct error *err;
    char *buffer;
};

static int pad(struct pack *pack, uint64_t size)
{
    static const char zeros[TAR_HEADER_BLOCK];
    unsigned over = size % TAR_HEADER_BLOCK;
    return over == 0 ? 0 : pack->write(pack->context, zeros, TAR_HEADER_BLOCK - over, pack->err);
}

static int put_long(struct pack *pack, char type, const char *text)
{
    struct tar_header header;
    size_t size = strlen(text) + 1;
    if (size <= sizeof header.name)
        return 0;
    tar_header_make(&header, "././@LongLink", type, 0644, size, 0, "");
    int r = pack->write(pack->context, &header, sizeof header, pack->err);
    if (r == 0)
        r = pack->write(pack->context, text, size, pack->err);
    return r < 0 ? r : pad(pack, size);
}

static int put_header(struct pack *pack, const char *name, char type, const struct stat *stat, uint64_t size,
        const char *link)
{
    struct tar_header header;
    int r = put_long(pack, 'L', name);
    if (r == 0)
        r = put_long(pack, 'K', link);
    tar_header_make(&header, name, type, stat->st_mode, size, stat->st_mtime, link);
    return r < 0 ? r : pack->write(pack->context, &header, sizeof header, pack->err);
}

static int pack_file(struct pack *pack, int fd, const char *path, const char *name, const struct stat *stat)
{
    uint64_t left = (uint64_t)stat->st_size;
    pack->totals->files++;
    if (pack->write == NULL) {
        pack->totals->bytes += left;
        return 0;
    }
    int r = put_header(pack, name, '0', stat, left, "");
    while (r == 0 && left > 0) {
        ssize_t got = read(fd, pack->buffer, left < COPY_BYTES ? (size_t)left : COPY_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(pack->err, -errno, "%s cannot be read: %s", path, strerror(errno));
        if (got == 0)
            return error_set(pack->err, -EIO, "%s became shorter while it was read", path);
        r = pack->write(pack->context, pack->buffer, (size_t)got, pack->err);
        left -= (uint64_t)got;
        pack->totals->bytes += (uint64_t)got;
    }
    return r < 0 ? r : pad(pack, (uint64_t)stat->st_size);
}

static int pack_link(struct pack *pack, int folder, const char *entry, const char *path, const char *name,
        const struct stat *stat)
{
    char target[PATH_MAX];
    ssize_t size = readlinkat(folder, entry, target, sizeof target - 1);
    if (size < 0)
        return error_set(pack->err, -errno, "%s cannot be read: %s", path, strerror(errno));
    target[size] = '\0';
    pack->totals->files++;
    return pack->write == NULL ? 0 : put_header(pack, name, '2', stat, 0, target);
}

static int pack_entry(struct pack *pack, int folder, const char *entry, const char *path, const char *name,
        bool follow, unsigned depth);

static int pack_folder(struct pack *pack, int fd, const char *path, const char *name, unsigned depth)
{
    DIR *dir = fdopendir(fd);
    int r = 0;
    if (dir == NULL) {
        r = error_set(pack->err, -errno, "%s cannot be read: %s", path, strerror(errno));
        close(fd);
        return r;
    }
    for (struct dirent *entry; r == 0 && (errno = 0, entry = readdir(dir)) != NULL;) {
        char *below, *member;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (asprintf(&below, "%s/%s", path, entry->d_name) < 0 ||
                asprintf(&member, "%s/%s", name, entry->d_name) < 0)
            abort();
        r = pack_entry(pack, dirfd(dir), entry->d_name, below, member, false, depth + 1);
        free(below);
        free(member);
    }
    if (r == 0 && errno != 0)
        r = error_set(pack->err, -errno, "%s cannot be read: %s", path, strerror(errno));
    closedir(dir);
    return r;
}

static int pack_entry(struct pack *pack, int folder, const char *entry, const char *path, const char *name,
        bool follow, unsigned depth)
{
    struct stat stat;
    if (depth > DEPTH_MAX)
        return error_set(pack->err, -ELOOP, "%s lies more than %d folders deep", path, DEPTH_MAX);
    if (fstatat(folder, entry, &stat, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
        return error_set(pack->err, -errno, "%s cannot be read: %s", path, strerror(errno));
    if (S_ISLNK(stat.st_mode))
        return pack_link(pack, folder, entry, path, name, &stat);
    if (!S_ISREG(stat.st_mode) && !S_ISDIR(stat.st_mode)) {
        pack->totals->left_out++;
        return 0;
    }
    int fd = openat(folder, entry, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW));
    if (fd < 0 || fstat(fd, &stat) < 0) {
        int code = -errno;
        if (fd >= 0)
            close(fd);
        return error_set(pack->err, code, "%s cannot be opened: %s", path, strerror(-code));
    }
    if (S_ISDIR(stat.st_mode)) {
        char *with_slash;
        if (asprintf(&with_slash, "%s/", name) < 0)
            abort();
        int r = pack->write == NULL ? 0 : put_header(pack, with_slash, '5', &stat, 0, "");
        free(with_slash);
        if (r == 0)
            return pack_folder(pack, fd, path, name, depth);
        close(fd);
        return r;
    }
    int r = pack_file(pack, fd, path, name, &stat);
    close(fd);
    return r;
}

int tar_measure(const char *path, struct tar_totals *ret_totals, struct error *err)
{
    struct tar_totals totals = {0};
    struct pack pack = {.totals = &totals, .err = err};
    int r = pack_entry(&pack, AT_FDCWD, path, path, "", true, 0);
    if (r == 0)
        *ret_totals = totals;
    return r;
}

int tar_pack(const char *path, const char *name, tar_write *write, void *context,
        struct tar_totals *ret_totals, struct error *err)
{
    static const char end[2 * TAR_HEADER_BLOCK];
    struct pack pack = {write, context, ret_totals, err, malloc(COPY_BYTES)};
    *ret_totals = (struct tar_totals){0};
    int r = pack.buffer == NULL ? error_set(err, -ENOMEM, "no memory")
                                : pack_entry(&pack, AT_FDCWD, path, path, name, true, 0);
    if (r == 0)
        r = write(context, end, sizeof end, err);
    free(pack.buffer);
    return r;
}
