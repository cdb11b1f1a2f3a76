// SPDX-License-Identifier: Apache-2.0
// All of something through a descriptor that blocks: calls that were interrupted or did a part go on.
//
// For small files, pipes and sockets beside the engine, whose own I/O goes through struct loop
// (blockstore/io.h). Threads: any; no state. Durability: none; who needs it syncs. Errors: -errno, how much
// was moved is not known then.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int fd_write_all(int fd, const void *bytes, size_t size)
{
    for (const char *at = bytes; size > 0;) {
        ssize_t written = write(fd, at, size);
        if (written < 0 && errno != EINTR)
            return -errno;
        at += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
    return 0;
}

// The other side's end is -EPIPE, never a signal.
static inline int fd_send_all(int fd, const void *bytes, size_t size)
{
    for (const char *at = bytes; size > 0;) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return -errno;
        at += sent > 0 ? sent : 0;
        size -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

// Until the end or `size` bytes; how many they were.
static inline ssize_t fd_read_all(int fd, void *ret_bytes, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t got = read(fd, (char *)ret_bytes + used, size - used);
        if (got < 0 && errno != EINTR)
            return -errno;
        if (got == 0)
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)used;
}

// What a small file says, at most size - 1 bytes of it, ended by a zero (also on failure); how many they
// were. folder: as openat has it.
static inline ssize_t fd_read_text(int folder, const char *path, char *ret_text, size_t size)
{
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -errno : fd_read_all(fd, ret_text, size - 1);
    if (fd >= 0)
        close(fd);
    ret_text[got < 0 ? 0 : got] = '\0';
    return got;
}
