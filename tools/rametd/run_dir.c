// SPDX-License-Identifier: Apache-2.0
// Ownership is an advisory lock that the kernel drops with its process; what is written in the lock file is
// for people only, so a stale or wrong number in it means nothing.
#include "tools/rametd/run_dir.h"

#include "vmglue/unix_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

// One line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF".
static int owner_by_inode(dev_t device, ino_t inode)
{
    char line[256];
    FILE *locks = fopen("/proc/locks", "re");
    int owner = 0;
    while (locks != NULL && owner == 0 && fgets(line, sizeof line, locks) != NULL) {
        int pid;
        unsigned major_number, minor_number;
        unsigned long number;
        if (sscanf(line, "%*d: %*s %*s %*s %d %x:%x:%lu", &pid, &major_number, &minor_number, &number) == 4 &&
                major(device) == major_number && minor(device) == minor_number && number == inode)
            owner = pid;
    }
    if (locks != NULL)
        fclose(locks);
    return owner;
}

// The process that holds a lock on an open file, as the kernel knows it; 0 when it cannot be told.
static int lock_owner(int fd)
{
    struct stat stat;
    return fstat(fd, &stat) < 0 ? 0 : owner_by_inode(stat.st_dev, stat.st_ino);
}

int run_dir_store_owner(const char *directory)
{
    DIR *dir = opendir(directory);
    int owner = 0;
    if (dir == NULL)
        return 0;
    for (struct dirent *entry = readdir(dir); entry != NULL && owner == 0; entry = readdir(dir)) {
        struct stat stat;
        if (fstatat(dirfd(dir), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(stat.st_mode))
            owner = owner_by_inode(stat.st_dev, stat.st_ino);
    }
    closedir(dir);
    return owner;
}

static int lock(const char *path, int *ret_fd, struct error *err)
{
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/rametd.lock", path);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(err, -errno, "the lock file %s cannot be opened: %s", file, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int code = errno == EWOULDBLOCK ? -EBUSY : -errno, owner = lock_owner(fd);
        if (code == -EBUSY && owner > 0)
            error_set(err, code,
                    "the run directory %s is in use by rametd, process %d; stop that one first (`ramet --run "
                    "%s down`) or use another --run",
                    path, owner, path);
        else
            error_set(err, code, "the run directory %s is in use by another rametd (%s)", path,
                    strerror(-code));
        close(fd);
        return code;
    }
    char text[32];
    int size = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || write(fd, text, (size_t)size) != size) {
        int code = -errno;
        close(fd);
        return error_set(err, code, "the lock file %s cannot be written: %s", file, strerror(-code));
    }
    *ret_fd = fd;
    return 0;
}

// Who may write there can put his own sockets in our place; below a folder for everybody that matters.
static int check_owner(const char *path, struct error *err)
{
    struct stat stat;
    if (lstat(path, &stat) < 0)
        return error_set(err, -errno, "the run directory %s cannot be used: %s", path, strerror(errno));
    if (geteuid() != 0 && (stat.st_uid != geteuid() || (stat.st_mode & 022) != 0))
        return error_set(err, -EPERM,
                "the run directory %s belongs to somebody else, or others may write to it; name another with "
                "--run",
                path);
    return 0;
}

int run_dir_take(const char *path, char **ret_path, int *ret_lock_fd, struct error *err)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return error_set(err, -errno, "the run directory %s cannot be made: %s", path, strerror(errno));
    char *absolute = realpath(path, NULL);
    if (absolute == NULL)
        return error_set(err, -errno, "the run directory %s cannot be used: %s", path, strerror(errno));
    int r = check_owner(absolute, err);
    if (r == 0)
        r = lock(absolute, ret_lock_fd, err);
    if (r < 0)
        free(absolute);
    else
        *ret_path = absolute;
    return r;
}

int run_dir_listen(const char *run_dir, const char *name, int *ret_fd, struct error *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    return unix_socket_listen(path, SOCK_STREAM | SOCK_NONBLOCK, 0600, ret_fd, err);
}
