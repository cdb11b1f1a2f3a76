// SPDX-License-Identifier: Apache-2.0
// Writing a file: into a temporary name in the same directory, renamed over the target when the commit byte
// says that the input was whole. What a link points to is replaced, not the link.
#include "blockstore/fd.h"
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/job.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// Who a new entry of the directory belongs to.
static void choose_owner(
        const struct files_place *place, const struct stat *dir, uid_t *ret_uid, gid_t *ret_gid)
{
    bool users = users_may_write(&place->user, dir->st_uid, dir->st_gid, dir->st_mode);
    *ret_uid = users ? place->user.uid : dir->st_uid;
    *ret_gid = users ? place->user.gid : dir->st_gid;
    if (dir->st_mode & S_ISGID)
        *ret_gid = dir->st_gid;
}

// Makes one directory unless it is there; *parent describes the one it is in, and then this one.
static int make_one(const struct files_place *place, const char *path, struct stat *parent)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        uid_t uid;
        gid_t gid;
        if (errno != ENOENT || (mkdir(path, 0755) < 0 && errno != EEXIST))
            return -errno;
        choose_owner(place, parent, &uid, &gid);
        if (geteuid() == 0 && lchown(path, uid, gid) < 0)
            return -errno;
        if (stat(path, &st) < 0)
            return -errno;
    }
    *parent = st;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

// Makes the directory with all its parents. The path is absolute.
static int make_directories(const struct files_place *place, const char *path)
{
    char copy[PATH_MAX];
    struct stat parent;
    snprintf(copy, sizeof copy, "%s", path);
    int result = stat("/", &parent) < 0 ? -errno : 0;
    for (char *slash = copy; result == 0 && slash != NULL;) {
        slash = strchr(slash + 1, '/');
        if (slash != NULL)
            *slash = 0;
        result = make_one(place, copy, &parent);
        if (slash != NULL)
            *slash = '/';
    }
    return result;
}

int files_make_directory(struct files_place *place)
{
    struct stat st;
    if (stat(place->path, &st) == 0 && !S_ISDIR(st.st_mode))
        return files_answer(-EEXIST, NULL, "%s exists and is no directory", place->path);
    int result = make_directories(place, place->path);
    if (result < 0)
        return files_answer(result, NULL, "cannot make the directory %s: %s", place->path, strerror(-result));
    return files_answer(0, NULL, "%s", "");
}

int files_target_temporary(struct files_target *target)
{
    char copy[PATH_MAX], base[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", target->path);
    snprintf(base, sizeof base, "%s", target->path);
    for (int tries = 0; tries < 100; tries++) {
        uint64_t tag = 0;
        if (getrandom(&tag, sizeof tag, GRND_NONBLOCK) < 0)
            tag = (uint64_t)getpid() << 32 | (uint64_t)tries;
        char directory[PATH_MAX];
        snprintf(directory, sizeof directory, "%s", copy);
        int length = snprintf(target->temporary, sizeof target->temporary, "%s/.%.200s.ramet-%016llx",
                dirname(directory), basename(base), (unsigned long long)tag);
        if (length < 0 || (size_t)length >= sizeof target->temporary)
            return -ENAMETOOLONG;
        target->fd = open(target->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (target->fd >= 0 || errno != EEXIST)
            return target->fd < 0 ? -errno : 0;
    }
    return -EEXIST;
}

int files_make_parents(const struct files_place *place, const char *path)
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    return make_directories(place, dirname(parent));
}

int files_target_find(const struct files_place *place, uint32_t mode, struct files_target *ret_target)
{
    struct stat st, dir;
    char parent[PATH_MAX];
    ret_target->fd = -1;
    if (realpath(place->path, ret_target->path) == NULL)
        memcpy(ret_target->path, place->path, sizeof ret_target->path);
    if (place->directory_wanted || (stat(ret_target->path, &st) == 0 && S_ISDIR(st.st_mode)))
        return -EISDIR;
    snprintf(parent, sizeof parent, "%s", ret_target->path);
    char *above = dirname(parent);
    int result = make_directories(place, above);
    if (result < 0)
        return result;
    if (stat(above, &dir) < 0)
        return -errno;
    choose_owner(place, &dir, &ret_target->uid, &ret_target->gid);
    ret_target->mode = mode != 0 ? mode & 07777 : 0644;
    if (stat(ret_target->path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return -EINVAL;
        ret_target->uid = st.st_uid;
        ret_target->gid = st.st_gid;
        if (mode == 0)
            ret_target->mode = st.st_mode & 07777;
    }
    return 0;
}

int files_copy_input(int fd, uint64_t *ret_size)
{
    static uint8_t buffer[65536];
    ssize_t got;
    *ret_size = 0;
    while ((got = read(STDIN_FILENO, buffer, sizeof buffer)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        int result = got < 0 ? -errno : fd_write_all(fd, buffer, (size_t)got);
        if (result < 0)
            return result;
        *ret_size += (uint64_t)got;
    }
    uint8_t commit;
    return read(JOB_COMMIT_FD, &commit, 1) == 1 ? 0 : -ECANCELED;
}

int files_target_commit(struct files_target *target)
{
    int result = 0;
    if (geteuid() == 0 && fchown(target->fd, target->uid, target->gid) < 0)
        result = -errno;
    if (result == 0 && fchmod(target->fd, target->mode) < 0)
        result = -errno;
    if (close(target->fd) < 0 && result == 0)
        result = -errno;
    target->fd = -1;
    if (result == 0 && rename(target->temporary, target->path) < 0)
        result = -errno;
    return result;
}

int files_target_refused(const struct files_place *place, int result)
{
    if (result == -EISDIR)
        return files_answer(result, NULL, "%s is a directory", place->path);
    if (result == -EINVAL)
        return files_answer(
                result, NULL, "%s is a device, a pipe or a socket: only files can be written", place->path);
    if (result == -ECANCELED)
        return files_answer(result, NULL, "%s was not written: the upload was cut off", place->path);
    return files_answer(result, NULL, "cannot write %s: %s", place->path, strerror(-result));
}

int files_store(struct files_place *place, uint32_t mode)
{
    static struct files_target target;
    uint64_t size;
    int result = files_target_find(place, mode, &target);
    if (result == 0)
        result = files_target_temporary(&target);
    if (result < 0)
        return files_target_refused(place, result);
    result = files_copy_input(target.fd, &size);
    if (result == 0)
        result = files_target_commit(&target);
    if (result == 0)
        return files_answer(0, NULL, "%s", "");
    unlink(target.temporary);
    return files_target_refused(place, result);
}

// What was put there is taken away again, unless somebody else has written behind it meanwhile.
static void append_undo(const struct files_target *target, bool made, off_t before, uint64_t added)
{
    struct stat st;
    if (made)
        unlink(target->path);
    else if (fstat(target->fd, &st) == 0 && st.st_size == before + (off_t)added)
        (void)!ftruncate(target->fd, before);
}

int files_append(struct files_place *place, uint32_t mode)
{
    static struct files_target target;
    struct stat st;
    int result = files_target_find(place, mode, &target);
    bool made = false;
    if (result == 0) {
        target.fd = open(target.path, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (target.fd < 0 && errno == ENOENT) {
            made = true;
            target.fd = open(target.path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        }
        result = target.fd < 0 || fstat(target.fd, &st) < 0 ? -errno : 0;
    }
    if (result < 0)
        return files_target_refused(place, result);
    uint64_t added;
    result = files_copy_input(target.fd, &added);
    if (result == 0 && made && geteuid() == 0 && fchown(target.fd, target.uid, target.gid) < 0)
        result = -errno;
    if (result == 0 && (made || mode != 0) && fchmod(target.fd, target.mode) < 0)
        result = -errno;
    if (result == 0)
        return files_answer(0, NULL, "%s", "");
    off_t end = lseek(target.fd, 0, SEEK_END);
    // A write that failed may have left a part of its piece.
    append_undo(&target, made, st.st_size, result == -ECANCELED ? added : (uint64_t)(end - st.st_size));
    return files_target_refused(place, result);
}
