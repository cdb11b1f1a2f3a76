// SPDX-License-Identifier: Apache-2.0
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { FDS_RECEIVED_MAX = 16 };

// Splits path into an open directory and the last component.
static int open_directory(const char *path, const char **ret_name, int *ret_fd)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    if (name[0] == '\0' || strlen(name) > 60)
        return name[0] == '\0' ? -EINVAL : -ENAMETOOLONG;
    char directory[4096] = ".";
    if (slash != NULL) {
        size_t size = slash == path ? 1 : (size_t)(slash - path);
        if (size >= sizeof directory)
            return -ENAMETOOLONG;
        memcpy(directory, path, size);
        directory[size] = '\0';
    }
    int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret_name = name;
    *ret_fd = fd;
    return 0;
}

static void make_address(struct sockaddr_un *address, int directory_fd, const char *name, const char *suffix)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%.60s%s", directory_fd, name,
            suffix);
}

static int bind_and_rename(int fd, int directory_fd, const char *name, mode_t mode)
{
    // A name of its own until it listens: nobody can connect before the permissions are right.
    char suffix[24], temporary[96];
    snprintf(suffix, sizeof suffix, ".%x", (unsigned)getpid());
    snprintf(temporary, sizeof temporary, "%s%s", name, suffix);
    struct sockaddr_un address;
    make_address(&address, directory_fd, name, suffix);
    unlinkat(directory_fd, temporary, 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    if (fchmodat(directory_fd, temporary, mode, 0) < 0 || listen(fd, SOMAXCONN) < 0 ||
            renameat(directory_fd, temporary, directory_fd, name) < 0) {
        int result = -errno;
        unlinkat(directory_fd, temporary, 0);
        return result;
    }
    return 0;
}

int unix_socket_listen(const char *path, int type, mode_t mode, int *ret_fd, struct error *err)
{
    const char *name;
    int directory_fd;
    int result = open_directory(path, &name, &directory_fd);
    if (result < 0)
        return error_set(err, result, "cannot listen on %s: its directory: %s", path, strerror(-result));
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    result = fd < 0 ? -errno : bind_and_rename(fd, directory_fd, name, mode);
    close(directory_fd);
    if (result < 0) {
        if (fd >= 0)
            close(fd);
        return error_set(err, result, "cannot listen on %s: %s", path, strerror(-result));
    }
    *ret_fd = fd;
    return 0;
}

int unix_socket_connect(const char *path, int type, int *ret_fd)
{
    const char *name;
    int directory_fd;
    int result = open_directory(path, &name, &directory_fd);
    if (result < 0)
        return result;
    struct sockaddr_un address;
    make_address(&address, directory_fd, name, "");
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    result = fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    close(directory_fd);
    if (result < 0) {
        if (fd >= 0)
            close(fd);
        return result;
    }
    *ret_fd = fd;
    return 0;
}

int unix_socket_send(int fd, const void *bytes, size_t size, int pass_fd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &pass_fd, sizeof pass_fd);
    }
    while (iov.iov_len > 0) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return -errno;
        iov.iov_base = (char *)iov.iov_base + sent;
        iov.iov_len -= (size_t)sent;
        message.msg_control = NULL; // it went with the first bytes
        message.msg_controllen = 0;
    }
    return 0;
}

// Collects the descriptors of a message; keeps the first when it is the only one.
static int take_descriptors(struct msghdr *message, int *ret_fd)
{
    int fds[FDS_RECEIVED_MAX];
    unsigned count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
            header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = header->cmsg_len - CMSG_LEN(0);
        for (size_t at = 0; at + sizeof(int) <= bytes && count < FDS_RECEIVED_MAX; at += sizeof(int))
            memcpy(&fds[count++], CMSG_DATA(header) + at, sizeof(int));
    }
    if (count <= 1 && !(message->msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        *ret_fd = count == 1 ? fds[0] : -1;
        return 0;
    }
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    return -EMSGSIZE;
}

ssize_t unix_socket_receive(int fd, void *buffer, size_t capacity, int flags, int *ret_fd)
{
    union {
        char space[CMSG_SPACE(FDS_RECEIVED_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buffer, capacity};
    struct msghdr message = {.msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control.space,
            .msg_controllen = sizeof control.space};
    ssize_t got;
    do {
        got = recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    int result = take_descriptors(&message, ret_fd);
    return result < 0 ? result : got;
}

int unix_socket_peer(int fd, pid_t *ret_pid, uid_t *ret_uid)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -errno;
    *ret_pid = peer.pid;
    *ret_uid = peer.uid;
    return 0;
}
