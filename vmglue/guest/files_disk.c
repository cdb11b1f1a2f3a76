// SPDX-License-Identifier: Apache-2.0
// Further disks: mounted by request, with a file system made on an empty one; file systems that grow with
// their disk.
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/job.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DISKS_MAX = 26, BLANK_BYTES = 1 << 20 };

// The kernel's own number (fs/ext4/ext4.h): the new count of blocks.
#define EXT4_RESIZE _IOW('f', 16, uint64_t)

static int device_of(uint32_t index, char ret_path[32])
{
    struct stat st;
    if (index >= DISKS_MAX)
        return -ENODEV;
    snprintf(ret_path, 32, "/dev/vd%c", (int)('a' + index));
    return stat(ret_path, &st) < 0 || !S_ISBLK(st.st_mode) ? -ENODEV : 0;
}

// Where the device is mounted; the root's entry may name it otherwise.
static bool mounted_at(const char *device, char ret_path[PATH_MAX])
{
    struct stat wanted, st;
    bool found = false;
    FILE *mounts = stat(device, &wanted) < 0 ? NULL : setmntent("/proc/self/mounts", "re");
    for (struct mntent *mount; mounts != NULL && !found && (mount = getmntent(mounts)) != NULL;) {
        if (mount->mnt_fsname[0] == '/' && stat(mount->mnt_dir, &st) == 0 && st.st_dev == wanted.st_rdev) {
            snprintf(ret_path, PATH_MAX, "%s", mount->mnt_dir);
            found = true;
        }
    }
    if (mounts != NULL)
        endmntent(mounts);
    return found;
}

static int is_blank(const char *device)
{
    static uint8_t bytes[BLANK_BYTES];
    int fd = open(device, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    int result = got < 0 ? -errno : 1;
    for (ssize_t i = 0; i < got && result == 1; i++)
        result = bytes[i] == 0;
    if (fd >= 0)
        close(fd);
    return result;
}

static int make_file_system(const char *device)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd <= STDERR_FILENO; fd++)
            dup2(null, fd);
        setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin", 1);
        execlp("mkfs.ext4", "mkfs.ext4", "-q", "-F", device, (char *)NULL);
        _exit(errno == ENOENT ? 127 : 126);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -errno;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return -ENOPKG;
    return status == 0 ? 0 : -EIO;
}

static int mount_any(const char *device, const char *path)
{
    static const char *const types[] = {"ext4", "xfs", "btrfs", "vfat", "iso9660"};
    int result = -EINVAL;
    for (size_t i = 0; i < sizeof types / sizeof *types && result == -EINVAL; i++) {
        unsigned long flags = MS_NOATIME | MS_NODEV;
        if (mount(device, path, types[i], flags, i == 0 ? "discard" : "") == 0 ||
                mount(device, path, types[i], flags, "") == 0)
            return 0;
        if (errno == EROFS || errno == EACCES)
            return mount(device, path, types[i], flags | MS_RDONLY, "") == 0 ? 0 : -errno;
        result = errno == ENODEV ? -EINVAL : -errno; // ENODEV: the kernel has no such file system
    }
    return result;
}

static int do_mount(uint32_t index, const char *path, bool make)
{
    static struct files_place place;
    char device[32], where[PATH_MAX];
    if (device_of(index, device) < 0)
        return files_answer(-ENODEV, NULL, "this machine has no disk %u", index);
    if (path[0] != '/' || files_path(path, &place) < 0)
        return files_answer(-EINVAL, NULL, "\"%.200s\": a disk is mounted on an absolute path", path);
    if (mounted_at(device, where)) {
        if (strcmp(where, place.path) == 0)
            return files_answer(0, NULL, "%s", "");
        return files_answer(-EBUSY, NULL, "disk %u is mounted on %s already", index, where);
    }
    struct stat st;
    bool missing = stat(place.path, &st) < 0;
    char inside[PATH_MAX + 2];
    snprintf(inside, sizeof inside, "%s/x", place.path);
    int result = files_make_parents(&place, inside), made = 0;
    if (result == 0 && (result = mount_any(device, place.path)) == -EINVAL && make &&
            (made = is_blank(device)) == 1) {
        result = make_file_system(device);
        if (result == 0)
            result = mount_any(device, place.path);
        if (result == 0 && geteuid() == 0)
            (void)!chown(place.path, place.user.uid, place.user.gid);
    }
    if (result == 0)
        return files_answer(0, NULL, "%s", "");
    if (missing)
        rmdir(place.path);
    if (result == -ENOPKG)
        return files_answer(
                result, NULL, "the machine has no mkfs.ext4 to make a file system on disk %u with", index);
    if (result == -EINVAL)
        return files_answer(result, NULL, "disk %u has no file system that could be mounted%s", index,
                made == 0 && make ? ", and it is not empty" : "");
    return files_answer(result, NULL, "cannot mount disk %u on %s: %s", index, place.path, strerror(-result));
}

static int do_unmount(const char *path)
{
    static struct files_place place;
    if (path[0] != '/' || files_path(path, &place) < 0 || strcmp(place.path, "/") == 0)
        return files_answer(-EINVAL, NULL, "\"%.200s\" is no path of a mounted disk", path);
    if (umount2(place.path, UMOUNT_NOFOLLOW) < 0)
        return files_answer(-errno, NULL, "cannot unmount %s: %s", place.path,
                errno == EBUSY ? "something in it is in use" : strerror(errno));
    return files_answer(0, NULL, "%s", "");
}

static int do_grow(uint32_t index)
{
    char device[32], where[PATH_MAX];
    uint64_t bytes = 0;
    struct statfs info;
    if (device_of(index, device) < 0)
        return files_answer(-ENODEV, NULL, "this machine has no disk %u", index);
    if (!mounted_at(device, where))
        return files_answer(-EINVAL, NULL, "disk %u is not mounted as a whole: mount it first", index);
    int disk = open(device, O_RDONLY | O_CLOEXEC), dir = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = disk < 0 || dir < 0 || ioctl(disk, BLKGETSIZE64, &bytes) < 0 || fstatfs(dir, &info) < 0
                         ? -errno
                         : 0;
    if (result == 0 && info.f_type != 0xEF53)
        return files_answer(-EOPNOTSUPP, NULL, "%s is no ext4: it is grown by its own tools", where);
    uint64_t blocks = result == 0 ? bytes / (uint64_t)info.f_bsize : 0;
    if (result == 0 && ioctl(dir, EXT4_RESIZE, &blocks) < 0)
        result = -errno;
    if (result < 0)
        return files_answer(result, NULL, "cannot grow the file system on %s: %s", where, strerror(-result));
    struct agent_builder fields = {0};
    agent_builder_u64(&fields, bytes);
    result = files_answer(0, &fields, "%s", "");
    agent_builder_free(&fields);
    return result;
}

int files_disk(enum agent_operation operation, struct agent_cursor fields)
{
    uint32_t index = operation == AGENT_DISK_UNMOUNT ? 0 : agent_cursor_u32(&fields);
    const char *path = operation == AGENT_DISK_GROW ? "" : agent_cursor_string(&fields);
    bool make = operation == AGENT_DISK_MOUNT && agent_cursor_u8(&fields) != 0;
    if (fields.bad)
        return files_answer(-EINVAL, NULL, "the request cannot be read");
    if (operation == AGENT_DISK_MOUNT)
        return do_mount(index, path, make);
    return operation == AGENT_DISK_UNMOUNT ? do_unmount(path) : do_grow(index);
}
