// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/staging.h"

#include "tools/ramet/interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { UNDO_TRIES = 100 };

static int open_folder(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void remove_below(int at, const char *name)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
        return;
    int fd = open_folder(at, name);
    struct stat stat;
    bool is_folder = fstatat(at, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(stat.st_mode);
    if (fd < 0 && is_folder) { // its own mode keeps it shut
        fchmodat(at, name, 0700, 0);
        fd = open_folder(at, name);
    }
    if (fd < 0)
        return;
    fchmod(fd, 0700);
    DIR *dir = fdopendir(fd);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_below(dirfd(dir), entry->d_name);
    if (dir != NULL)
        closedir(dir);
    else
        close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}

// The thread that fills it still runs, until it finds its folder gone.
static void undo(void *context)
{
    const char *path = context;
    for (unsigned i = 0; i < UNDO_TRIES && access(path, F_OK) == 0; i++)
        remove_below(AT_FDCWD, path);
}

int staging_create(const char *beside, struct staging *ret_staging, struct error *err)
{
    struct staging staging = {0};
    if (asprintf(&staging.path, "%s/.ramet-cp-XXXXXX", beside) < 0)
        abort();
    if (mkdtemp(staging.path) == NULL) {
        int r = error_set(err, -errno, "nothing can be written in %s: %s", beside, strerror(errno));
        free(staging.path);
        return r;
    }
    staging.interrupt = interrupt_add(undo, staging.path);
    *ret_staging = staging;
    return 0;
}

static int move(
        int from, const char *name, int to, const char *new_name, const char *path, struct error *err);

// What is in one open folder goes into another. Closes both.
static int move_all(int from, int to, const char *path, struct error *err)
{
    DIR *dir = fdopendir(from);
    int r = dir == NULL ? error_set(err, -errno, "%s: %s", path, strerror(errno)) : 0;
    for (struct dirent *entry; r == 0 && (entry = readdir(dir)) != NULL;) {
        char *below;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (asprintf(&below, "%s/%s", path, entry->d_name) < 0)
            abort();
        r = move(dirfd(dir), entry->d_name, to, entry->d_name, below, err);
        free(below);
    }
    if (dir != NULL)
        closedir(dir);
    else
        close(from);
    close(to);
    return r;
}

static int move(int from, const char *name, int to, const char *new_name, const char *path, struct error *err)
{
    struct stat ours, there;
    if (fstatat(from, name, &ours, AT_SYMLINK_NOFOLLOW) < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    bool exists = fstatat(to, new_name, &there, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && S_ISDIR(ours.st_mode) != S_ISDIR(there.st_mode))
        return error_set(err, -EEXIST,
                S_ISDIR(ours.st_mode) ? "%s exists and is no folder; remove it, or choose another name"
                                      : "%s is a folder there; remove it, or choose another name",
                path);
    if (!exists || !S_ISDIR(ours.st_mode)) {
        if (renameat(from, name, to, new_name) < 0)
            return error_set(err, -errno, "%s cannot be completed: %s", path, strerror(errno));
        return 0;
    }
    int from_fd = open_folder(from, name), to_fd = open_folder(to, new_name);
    if (from_fd >= 0 && to_fd >= 0)
        return move_all(from_fd, to_fd, path, err);
    int code = -errno;
    if (from_fd >= 0)
        close(from_fd);
    if (to_fd >= 0)
        close(to_fd);
    return error_set(err, code, "%s cannot be opened: %s", path, strerror(-code));
}

static int publish(struct staging *staging, const char *name, const char *target, struct error *err)
{
    bool contents = strcmp(name, ".") == 0;
    int from = open_folder(AT_FDCWD, staging->path);
    if (from < 0)
        return error_set(err, -errno, "%s: %s", staging->path, strerror(errno));
    if (!contents) {
        int r = move(from, name, AT_FDCWD, target, target, err);
        close(from);
        return r;
    }
    // The folder itself is what the person named: it may be a link.
    int to = mkdir(target, 0777) < 0 && errno != EEXIST ? -1
                                                        : open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0) {
        int code = -errno;
        close(from);
        return error_set(err, code, "%s cannot be opened: %s", target, strerror(-code));
    }
    return move_all(from, to, target, err);
}

int staging_publish(struct staging *staging, const char *name, const char *target, struct error *err)
{
    interrupt_hold(); // else it would be removed under its new name
    int r = publish(staging, name, target, err);
    interrupt_release();
    return r;
}

void staging_remove(struct staging *staging)
{
    remove_below(AT_FDCWD, staging->path);
    interrupt_remove(staging->interrupt);
    free(staging->path);
    staging->path = NULL;
}
