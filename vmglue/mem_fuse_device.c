// SPDX-License-Identifier: Apache-2.0
#include "vmglue/mem_fuse_device.h"

#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// Linux 6.9, younger than Debian 12's header.
enum { NOTIFY_RESEND = 7 };

// The mountpoint's absolute name without asking a file system that may not answer: only its parent is looked
// at.
static int absolute_name(const char *mountpoint, char *buffer, size_t capacity)
{
    char copy[PATH_MAX];
    if ((size_t)snprintf(copy, sizeof copy, "%s", mountpoint) >= sizeof copy)
        return -ENAMETOOLONG;
    for (size_t size = strlen(copy); size > 1 && copy[size - 1] == '/'; size--)
        copy[size - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash == NULL ? copy : slash + 1;
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return -EINVAL;
    const char *parent = slash == NULL ? "." : slash == copy ? "/" : copy;
    if (slash != NULL && slash != copy)
        *slash = '\0';
    char *real = realpath(parent, NULL);
    if (real == NULL)
        return -errno;
    int size = snprintf(buffer, capacity, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
    free(real);
    return (size_t)size < capacity ? 0 : -ENAMETOOLONG;
}

// The mount table writes blanks, tabs, newlines and backslashes as \ooo.
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] != '\0' && from[3] != '\0') {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

// What is mounted (topmost) at an absolute name: 0 nothing, 1 an image mount of ours, 2 something else; or
// -errno.
static int mounted_kind(const char *absolute)
{
    FILE *table = fopen("/proc/self/mountinfo", "re");
    if (table == NULL)
        return -errno;
    int kind = 0;
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, table) > 0) {
        char where[PATH_MAX], type[64];
        const char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(line, "%*s %*s %*s %*s %4095s", where) != 1 ||
                sscanf(rest, " - %63s", type) != 1)
            continue;
        unescape(where);
        if (strcmp(where, absolute) == 0)
            kind = strcmp(type, "fuse." MEM_FUSE_SUBTYPE) == 0 ? 1 : 2;
    }
    free(line);
    fclose(table);
    return kind;
}

// What users other than root mount and unmount with. comm_fd, if not -1, is where it sends the connection.
static int run_fusermount(char *const argv[], int comm_fd)
{
    char comm[32];
    snprintf(comm, sizeof comm, "_FUSE_COMMFD=%d", comm_fd);
    char path[] = "PATH=/usr/local/bin:/usr/bin:/bin", *environment[] = {path, comm, NULL};
    posix_spawn_file_actions_t actions;
    int result = posix_spawn_file_actions_init(&actions);
    if (result != 0)
        return -result;
    if (comm_fd >= 0)
        result = posix_spawn_file_actions_adddup2(&actions, comm_fd, comm_fd); // inherited, unlike all others
    if (result == 0)
        result = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    if (result == 0)
        result = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    if (result != 0)
        return -result;
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

static int unmount_as_user(const char *absolute)
{
    char *const argv[] = {"fusermount3", "-u", "-z", "-q", "--", (char *)absolute, NULL};
    return run_fusermount(argv, -1);
}

static int mount_as_user(const char *absolute, int *ret_fd)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
        return -errno;
    char *const argv[] = {"fusermount3", "-o",
            "ro,nosuid,nodev,noexec,fsname=ramet,subtype=" MEM_FUSE_SUBTYPE, "--", (char *)absolute, NULL};
    int result = run_fusermount(argv, sockets[1]);
    close(sockets[1]);
    char byte;
    int fd = -1;
    if (result == 0 && (unix_socket_receive(sockets[0], &byte, 1, 0, &fd) < 0 || fd < 0))
        result = -EPROTO;
    close(sockets[0]);
    if (result == 0)
        *ret_fd = fd;
    return result;
}

static int mount_as_root(const char *absolute, int *ret_fd)
{
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    char options[160];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,allow_other", fd,
            geteuid(), getegid());
    // Read-only in the kernel's own eyes: nobody's write can reach pages that others have mapped.
    if (mount("ramet", absolute, "fuse." MEM_FUSE_SUBTYPE, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                options) < 0) {
        int result = -errno;
        close(fd);
        return result;
    }
    *ret_fd = fd;
    return 0;
}

int mem_fuse_device_mount(const char *mountpoint, int *ret_fd, struct error *err)
{
    char absolute[PATH_MAX];
    int result = absolute_name(mountpoint, absolute, sizeof absolute);
    if (result == 0)
        result = geteuid() == 0 ? mount_as_root(absolute, ret_fd) : mount_as_user(absolute, ret_fd);
    if (result == 0)
        return 0;
    if (geteuid() == 0)
        return error_set(err, result,
                "cannot mount memory images at %s: %s (is /dev/fuse there, and CAP_SYS_ADMIN?)", mountpoint,
                strerror(-result));
    return error_set(err, result,
            "cannot mount memory images at %s: %s (start it as root, or: without root it takes fusermount3 "
            "and access to "
            "/dev/fuse; try "
            "`fusermount3 -o ro -- %s` by hand to see its words)",
            mountpoint, strerror(-result), mountpoint);
}

int mem_fuse_device_detach(const char *mountpoint)
{
    char absolute[PATH_MAX];
    int result = absolute_name(mountpoint, absolute, sizeof absolute);
    // Several daemons may have died one after the other.
    while (result == 0 && (result = mounted_kind(absolute)) == 1) {
        result = umount2(absolute, MNT_DETACH | UMOUNT_NOFOLLOW) < 0 ? -errno : 0;
        if (result == -EPERM)
            result = unmount_as_user(absolute);
    }
    return result == 2 ? -EBUSY : result;
}

int mem_fuse_device_prepare(const char *mountpoint, struct error *err)
{
    int result = mem_fuse_device_detach(mountpoint);
    if (result == -EBUSY)
        return error_set(err, result,
                "something that is not ours is mounted at %s: unmount it or choose another run directory",
                mountpoint);
    if (result < 0)
        return error_set(err, result, "cannot clear %s for memory images: %s", mountpoint, strerror(-result));
    if (mkdir(mountpoint, 0711) < 0 && errno != EEXIST)
        return error_set(err, -errno, "cannot make %s for memory images: %s", mountpoint, strerror(errno));
    return 0;
}

int mem_fuse_device_check_mounted(const char *mountpoint)
{
    char absolute[PATH_MAX];
    int result = absolute_name(mountpoint, absolute, sizeof absolute);
    if (result == 0)
        result = mounted_kind(absolute);
    return result == 1 ? 0 : result < 0 ? result : -ENOTCONN;
}

int mem_fuse_device_check_alive(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, 0) < 0)
        return -errno;
    return poll_fd.revents & (POLLERR | POLLNVAL) ? -ENOTCONN : 0;
}

size_t mem_fuse_device_make_init(void *buffer)
{
    struct fuse_in_header header = {
            .len = sizeof header + sizeof(struct fuse_init_in),
            .opcode = FUSE_INIT,
            // Even, as the kernel counts, and out of its reach: the reply finds no request and is dropped.
            .unique = 0x7ffffffffffffffe,
    };
    struct fuse_init_in init = {
            .major = FUSE_KERNEL_VERSION,
            .minor = FUSE_KERNEL_MINOR_VERSION,
            .max_readahead = 128 * 1024,
            // Those that shape how libfuse reads and writes messages.
            .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
                     FUSE_EXPLICIT_INVAL_DATA,
    };
    _Static_assert(sizeof header + sizeof init <= MEM_FUSE_DEVICE_INIT_BYTES, "fits");
    memcpy(buffer, &header, sizeof header);
    memcpy((char *)buffer + sizeof header, &init, sizeof init);
    return sizeof header + sizeof init;
}

int mem_fuse_device_resend(int fd)
{
    struct fuse_out_header message = {.len = sizeof message, .error = NOTIFY_RESEND, .unique = 0};
    return write(fd, &message, sizeof message) < 0 ? -errno : 0;
}
