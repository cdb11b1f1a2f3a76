// SPDX-License-Identifier: Apache-2.0
#include "vmglue/preload_host.h"

#include "blockstore/clock.h"
#include "vmglue/preload/preload_wire.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int preload_listen(const char *path, int *ret_fd, struct error *err)
{
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return error_set(err, -ENAMETOOLONG,
                "%s is too long for a socket of the VMM (107 bytes): choose a shorter run directory", path);
    return unix_socket_listen(path, SOCK_STREAM | SOCK_NONBLOCK, 0600, ret_fd, err);
}

static int wait_readable(int fd, int64_t deadline_ms)
{
    for (;;) {
        int64_t left = deadline_ms - (int64_t)clock_monotonic_ms();
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, left > 0 ? (int)left : 0);
        if (ready > 0)
            return 0;
        if (ready == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

// Reads the whole struct and the descriptor that comes with its first byte.
static int receive_hello(int fd, int64_t deadline_ms, struct preload_hello *hello, int *ret_uffd)
{
    size_t size = 0;
    int uffd = -1, result = 0;
    while (size < sizeof *hello && (result = wait_readable(fd, deadline_ms)) == 0) {
        int got_fd = -1;
        ssize_t got =
                unix_socket_receive(fd, (char *)hello + size, sizeof *hello - size, MSG_DONTWAIT, &got_fd);
        if (got_fd >= 0 && uffd >= 0)
            close(got_fd);
        else if (got_fd >= 0)
            uffd = got_fd;
        if (got == -EAGAIN)
            continue;
        if (got <= 0) {
            result = got == 0 ? -EPROTO : (int)got;
            break;
        }
        size += (size_t)got;
    }
    bool sound = result == 0 && hello->magic == PRELOAD_MAGIC && (hello->uffd_errno == 0) == (uffd >= 0) &&
                 hello->ram_bytes > 0 && hello->ram_address % 4096 == 0 && hello->ram_bytes % 4096 == 0 &&
                 hello->ram_address + hello->ram_bytes > hello->ram_address;
    if (sound) {
        *ret_uffd = uffd;
        return 0;
    }
    if (uffd >= 0)
        close(uffd);
    return result < 0 ? result : -EPROTO;
}

static int take_report(int fd, int64_t deadline_ms, struct preload_report *report, struct error *err)
{
    struct preload_hello hello;
    int uffd;
    int result = receive_hello(fd, deadline_ms, &hello, &uffd);
    if (result == -ETIMEDOUT)
        return error_set(err, result, "the VMM (process %d) connected and did not report its memory in time",
                (int)report->pid);
    if (result < 0)
        return error_set(err, result,
                "the VMM (process %d) sent something that is no report of its memory: is the preload "
                "library of this version?",
                (int)report->pid);
    report->uffd = uffd;
    report->uffd_errno = hello.uffd_errno;
    report->ram_address = hello.ram_address;
    report->ram_bytes = hello.ram_bytes;
    report->from_image = hello.from_image != 0;
    return 0;
}

int preload_receive(int listen_fd, pid_t expected_pid, unsigned timeout_ms, struct preload_report *ret_report,
        struct error *err)
{
    int64_t deadline_ms = clock_monotonic_ms() + timeout_ms;
    for (;;) {
        int result = wait_readable(listen_fd, deadline_ms);
        if (result == -ETIMEDOUT)
            return error_set(err, result,
                    "the VMM did not report its memory within %u ms: see its log; the preload library must "
                    "be in LD_PRELOAD and guest memory as preload/README.md says",
                    timeout_ms);
        if (result < 0)
            return error_set(err, result, "cannot wait for the VMM's report: %s", strerror(-result));
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return error_set(err, -errno, "cannot accept the VMM's report: %s", strerror(errno));
        struct preload_report report = {.uffd = -1};
        result = unix_socket_peer(fd, &report.pid, &report.uid);
        if (result < 0 || (expected_pid != 0 && report.pid != expected_pid)) {
            close(fd);
            continue;
        }
        result = take_report(fd, deadline_ms, &report, err);
        close(fd);
        if (result == 0)
            *ret_report = report;
        return result;
    }
}
