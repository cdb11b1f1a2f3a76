// SPDX-License-Identifier: Apache-2.0
// libramet-preload.so: loaded into the VMM by LD_PRELOAD. README.md beside this file says what for and how it
// is set up.
//
// It stands between the VMM and a few calls of the C library. Rules: system calls are made directly (no
// dlsym: the first mmap comes before the loader is done); nothing allocates; what does not concern guest
// memory goes through untouched. Threads: the VMM maps guest memory once, from one thread, and opens files
// from any. `ram` is published by its size. Errors: whatever the library cannot do, it says on standard error
// and the VMM runs on without write tracking.
// The C library's own names are defined here, so its headers must not turn open into open64.
#undef _FILE_OFFSET_BITS
#include "vmglue/preload/preload_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    UFFD_USER_MODE = 1
}; // UFFD_USER_MODE_ONLY: needs no privilege; the kernel's own writes are tracked all the same

enum { IMAGES_MAX = 4 };

static struct {
    char image_prefix[4096]; // "" = none
    size_t image_prefix_size;
    char socket_path[108];     // "" = nobody to report to
    uint64_t anonymous_bytes;  // 0 = guest memory is an image
    int origin_fd, extents_fd; // -1 = guest memory is its own image alone
    int uffd; // -1 = none; stays open: the kernel forgets what is protected with the last copy
    int uffd_errno;
    struct {
        dev_t device;
        ino_t inode;
    } images[IMAGES_MAX];
    _Atomic unsigned image_count;
    _Atomic uintptr_t ram_address;
    _Atomic uint64_t ram_bytes; // 0 = not mapped yet
} preload = {.origin_fd = -1, .extents_fd = -1, .uffd = -1};

static void complain(const char *what, int code)
{
    char text[300];
    int size = snprintf(text, sizeof text, "ramet-preload: %s: %s\n", what, strerror(code));
    if (write(2, text, (size_t)size) < 0) {
        // nobody listens
    }
}

static void copy_setting(const char *name, char *buffer, size_t capacity)
{
    const char *value = getenv(name);
    if (value == NULL)
        return;
    if (strlen(value) >= capacity) {
        complain(name, ENAMETOOLONG);
        return;
    }
    strcpy(buffer, value);
}

static int fd_setting(const char *name)
{
    const char *value = getenv(name);
    int fd = value == NULL ? -1 : (int)strtol(value, NULL, 10);
    return fd >= 3 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

__attribute__((constructor)) static void preload_init(void)
{
    copy_setting("RAMET_PRELOAD_IMAGE", preload.image_prefix, sizeof preload.image_prefix);
    copy_setting("RAMET_PRELOAD_SOCKET", preload.socket_path, sizeof preload.socket_path);
    preload.image_prefix_size = strlen(preload.image_prefix);
    const char *bytes = getenv("RAMET_PRELOAD_RAM_BYTES");
    if (bytes != NULL)
        preload.anonymous_bytes = strtoull(bytes, NULL, 10);
    preload.origin_fd = fd_setting("RAMET_PRELOAD_ORIGIN_FD");
    preload.extents_fd = fd_setting("RAMET_PRELOAD_EXTENTS_FD");
    // This process only.
    unsetenv("LD_PRELOAD");
    unsetenv("RAMET_PRELOAD_ORIGIN_FD");
    unsetenv("RAMET_PRELOAD_EXTENTS_FD");
    unsetenv("RAMET_PRELOAD_IMAGE");
    unsetenv("RAMET_PRELOAD_SOCKET");
    unsetenv("RAMET_PRELOAD_RAM_BYTES");
    if (preload.socket_path[0] == '\0')
        return;
    // Now, before the VMM's sandbox may forbid the call.
    preload.uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE);
    if (preload.uffd < 0) {
        preload.uffd_errno = errno;
        complain("no userfaultfd, so snapshots of this VM copy all its private memory", preload.uffd_errno);
    }
}

// ---- Reporting guest memory ----

static int send_hello(int fd, const struct preload_hello *hello)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)hello, sizeof *hello};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (preload.uffd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &preload.uffd, sizeof preload.uffd);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *hello ? 0 : -errno;
}

static void report(const struct preload_hello *hello)
{
    if (preload.socket_path[0] == '\0')
        return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, preload.socket_path, sizeof address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        complain("cannot make a socket to report guest memory", errno);
        return;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        complain("cannot connect to report guest memory", errno);
    else if (send_hello(fd, hello) < 0)
        complain("cannot report guest memory", errno);
    close(fd);
}

// ---- What is mapped from the origin ----

static bool read_extents(
        int fd, uint64_t length, struct preload_extents_header *header, struct preload_extent *extents)
{
    size_t most = PRELOAD_EXTENTS_MAX * sizeof *extents;
    if (pread(fd, header, sizeof *header, 0) != (ssize_t)sizeof *header ||
            header->magic != PRELOAD_EXTENTS_MAGIC || header->ram_bytes != length ||
            header->count > PRELOAD_EXTENTS_MAX ||
            pread(fd, extents, most, sizeof *header) != (ssize_t)(header->count * sizeof *extents))
        return false;
    uint64_t end = 0;
    for (uint32_t i = 0; i < header->count; i++) {
        const struct preload_extent *extent = &extents[i];
        if (extent->offset < end || extent->length == 0 || extent->offset > length ||
                extent->length > length - extent->offset || extent->offset % 4096 != 0 ||
                extent->length % 4096 != 0)
            return false;
        end = extent->offset + extent->length;
    }
    return true;
}

static bool map_origin(char *address, int protection, int flags, uint64_t start, uint64_t end)
{
    return start >= end || (void *)syscall(SYS_mmap, address + start, end - start, protection,
                                   flags | MAP_FIXED, preload.origin_fd, (off_t)start) != MAP_FAILED;
}

// Guest memory is there already, whole, from its own image: everything between the extents is put over with
// the same bytes of the origin. What cannot be is left, or put back, as it was.
static void map_from_origin(char *address, size_t length, int protection, int flags, int own_fd)
{
    static struct preload_extent extents[PRELOAD_EXTENTS_MAX];
    struct preload_extents_header header;
    struct stat stat;
    if (preload.origin_fd < 0 || preload.extents_fd < 0)
        return;
    if (fstat(preload.origin_fd, &stat) != 0 || (uint64_t)stat.st_size != length ||
            !read_extents(preload.extents_fd, length, &header, extents)) {
        complain("the memory map is not sound, so the own image is mapped alone", EINVAL);
        return;
    }
    uint64_t at = 0;
    bool mapped = true;
    for (uint32_t i = 0; i < header.count && mapped; i++) {
        mapped = map_origin(address, protection, flags, at, extents[i].offset);
        at = extents[i].offset + extents[i].length;
    }
    if (mapped && map_origin(address, protection, flags, at, length))
        return;
    complain("the origin's image cannot be mapped, so the own one is mapped alone", errno);
    if ((void *)syscall(SYS_mmap, address, length, protection, flags | MAP_FIXED, own_fd, 0) == MAP_FAILED) {
        complain("guest memory cannot be mapped", errno);
        _exit(1); // half of it would be another machine's
    }
}

static void guest_memory_mapped(void *address, size_t length, bool from_image)
{
    uintptr_t none = 0;
    if (!atomic_compare_exchange_strong(&preload.ram_address, &none, (uintptr_t)address))
        return; // the first one is guest memory
    atomic_store(&preload.ram_bytes, length);
    // Anonymous memory in huge pages would be dirty 2 MiB at a time.
    if (!from_image)
        syscall(SYS_madvise, address, length, MADV_NOHUGEPAGE);
    struct preload_hello hello = {.magic = PRELOAD_MAGIC,
            .uffd_errno = preload.uffd_errno,
            .ram_address = (uintptr_t)address,
            .ram_bytes = length,
            .from_image = from_image};
    report(&hello);
}

static bool touches_guest_memory(const void *address, size_t length)
{
    uintptr_t start = (uintptr_t)address, ram = atomic_load(&preload.ram_address);
    uint64_t bytes = atomic_load(&preload.ram_bytes);
    return bytes > 0 && start < ram + bytes && start + length > ram;
}

// ---- Opening ----

static bool is_image_path(const char *path)
{
    return preload.image_prefix_size > 0 && path != NULL &&
           strncmp(path, preload.image_prefix, preload.image_prefix_size) == 0;
}

// Images that were opened, by device and inode: a confined VMM has no /proc to ask for a descriptor's path.
// Opening one comes long before it is mapped, on the same thread.
static bool is_image_fd(int fd)
{
    struct stat stat;
    unsigned count = atomic_load(&preload.image_count);
    if (count == 0 || fd < 0 || fstat(fd, &stat) != 0)
        return false;
    for (unsigned i = 0; i < count; i++)
        if (preload.images[i].device == stat.st_dev && preload.images[i].inode == stat.st_ino)
            return true;
    return false;
}

static void remember_image(int fd)
{
    struct stat stat;
    unsigned count = atomic_load(&preload.image_count);
    if (is_image_fd(fd) || count == IMAGES_MAX || fstat(fd, &stat) != 0)
        return;
    preload.images[count].device = stat.st_dev;
    preload.images[count].inode = stat.st_ino;
    atomic_store(&preload.image_count, count + 1);
}

// A writable open would let this process change, through the page cache, the memory of every other VM of the
// image.
static int open_image_or_file(int directory_fd, const char *path, int flags, mode_t mode)
{
    if (!is_image_path(path))
        return (int)syscall(SYS_openat, directory_fd, path, flags, mode);
    flags = (flags & ~(O_ACCMODE | O_CREAT | O_TRUNC | O_EXCL | O_APPEND)) | O_RDONLY;
    int fd = (int)syscall(SYS_openat, directory_fd, path, flags, mode);
    if (fd >= 0)
        remember_image(fd);
    return fd;
}

static mode_t mode_argument(int flags, va_list args)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
}

#define DEFINE_OPEN(name)                                                                                    \
    EXPORT int name(const char *path, int flags, ...);                                                       \
    EXPORT int name(const char *path, int flags, ...)                                                        \
    {                                                                                                        \
        va_list args;                                                                                        \
        va_start(args, flags);                                                                               \
        mode_t mode = mode_argument(flags, args);                                                            \
        va_end(args);                                                                                        \
        return open_image_or_file(AT_FDCWD, path, flags, mode);                                              \
    }
#define DEFINE_OPENAT(name)                                                                                  \
    EXPORT int name(int directory_fd, const char *path, int flags, ...);                                     \
    EXPORT int name(int directory_fd, const char *path, int flags, ...)                                      \
    {                                                                                                        \
        va_list args;                                                                                        \
        va_start(args, flags);                                                                               \
        mode_t mode = mode_argument(flags, args);                                                            \
        va_end(args);                                                                                        \
        return open_image_or_file(directory_fd, path, flags, mode);                                          \
    }
// What fortified programs call when no mode is given.
#define DEFINE_OPEN_2(name)                                                                                  \
    EXPORT int name(const char *path, int flags);                                                            \
    EXPORT int name(const char *path, int flags)                                                             \
    {                                                                                                        \
        return open_image_or_file(AT_FDCWD, path, flags, 0);                                                 \
    }
#define DEFINE_OPENAT_2(name)                                                                                \
    EXPORT int name(int directory_fd, const char *path, int flags);                                          \
    EXPORT int name(int directory_fd, const char *path, int flags)                                           \
    {                                                                                                        \
        return open_image_or_file(directory_fd, path, flags, 0);                                             \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPEN_2(__open_2)
DEFINE_OPEN_2(__open64_2)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
DEFINE_OPENAT_2(__openat_2)
DEFINE_OPENAT_2(__openat64_2)

// ---- Mapping ----

static void forget(int *fd)
{
    if (*fd >= 0)
        syscall(SYS_close, *fd);
    *fd = -1;
}

static bool is_guest_memory(size_t length, int protection, int flags, int fd)
{
    if (!(protection & PROT_WRITE) || !(flags & MAP_PRIVATE) || atomic_load(&preload.ram_address) != 0)
        return false;
    if (flags & MAP_ANONYMOUS)
        return preload.anonymous_bytes != 0 && length == preload.anonymous_bytes;
    return is_image_fd(fd);
}

static void *map(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    void *mapped = (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    if (mapped != MAP_FAILED && is_guest_memory(length, protection, flags, fd)) {
        if (!(flags & MAP_ANONYMOUS) && offset == 0)
            map_from_origin(mapped, length, protection, flags, fd);
        forget(&preload.origin_fd);
        forget(&preload.extents_fd);
        guest_memory_mapped(mapped, length, !(flags & MAP_ANONYMOUS));
    }
    return mapped;
}

#define DEFINE_MMAP(name)                                                                                    \
    EXPORT void *name(void *address, size_t length, int protection, int flags, int fd, off_t offset);        \
    EXPORT void *name(void *address, size_t length, int protection, int flags, int fd, off_t offset)         \
    {                                                                                                        \
        return map(address, length, protection, flags, fd, offset);                                          \
    }
DEFINE_MMAP(mmap)
DEFINE_MMAP(mmap64)

// ---- Advice and holes ----

EXPORT int madvise(void *address, size_t length, int advice)
{
    if (!touches_guest_memory(address, length))
        return (int)syscall(SYS_madvise, address, length, advice);
    switch (advice) {
    case MADV_HUGEPAGE:  // would fetch 2 MiB of the image for each page touched
    case MADV_MERGEABLE: // a channel between VMs, and merging looks like writing
        return 0;
    case MADV_DONTNEED: // a page discarded while protected changes without being seen as written
    case MADV_FREE:
    case MADV_REMOVE:
    case 24: // MADV_DONTNEED_LOCKED
        errno = EINVAL;
        return -1;
    default:
        return (int)syscall(SYS_madvise, address, length, advice);
    }
}

static int punch_or_pass(int fd, int mode, off_t offset, off_t length)
{
    if ((mode & FALLOC_FL_PUNCH_HOLE) && is_image_fd(fd)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t length);
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
    return punch_or_pass(fd, mode, offset, length);
}

EXPORT int fallocate64(int fd, int mode, off_t offset, off_t length);
EXPORT int fallocate64(int fd, int mode, off_t offset, off_t length)
{
    return punch_or_pass(fd, mode, offset, length);
}
