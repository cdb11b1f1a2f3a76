// SPDX-License-Identifier: Apache-2.0
// The agent must not wait for anything a user made: ports are connected to without blocking, and a socket's
// path is looked up below /run alone, without links and without leaving that file system (a FUSE mount there
// would hold the agent as long as it liked).
#include "vmglue/guest/dial.h"

#include "blockstore/clock.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/job_internal.h"
#include "vmglue/guest/loop.h"
#include "vmglue/guest/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { RETRY_NS = 20000000, WAITING_MAX = 256 };

struct dial {
    struct loop_source source; // a connection that is being made
    struct loop_timer timer;   // the deadline, or the time to try again
    struct dial *next;
    uint32_t stream, kind, port;
    bool second; // ::1, after 127.0.0.1 refused
    bool deadline_passed;
    uint64_t deadline_ns;
    char path[200];
};

static struct dial *dials;
static unsigned dial_count;

static void dial_free(struct dial *dial)
{
    struct dial **link = &dials;
    while (*link != dial)
        link = &(*link)->next;
    *link = dial->next;
    dial_count--;
    loop_timer_clear(&dial->timer);
    if (dial->source.fd >= 0) {
        loop_disarm(&dial->source);
        close(dial->source.fd);
    }
    free(dial);
}

static void dial_failed(struct dial *dial, int result)
{
    char sentence[400];
    if (dial->kind == AGENT_DIAL_TCP)
        snprintf(sentence, sizeof sentence, "port %u of the machine: %s%s", dial->port, strerror(-result),
                result == -ECONNREFUSED ? ": nothing listens there on 127.0.0.1 or ::1" : "");
    else
        snprintf(sentence, sizeof sentence, "%s in the machine: %s", dial->path, strerror(-result));
    job_result(dial->stream, result, sentence, NULL);
    dial_free(dial);
}

static void dial_connected(struct dial *dial)
{
    int result = 0, fd = dial->source.fd;
    loop_disarm(&dial->source);
    // Before the first byte of it; a RESULT follows at once if there is no memory for the rest.
    port_send(AGENT_DATA, 2 << AGENT_FLAG_CHANNEL_SHIFT, dial->stream, NULL, 0);
    result = job_connection(dial->stream, fd);
    if (result < 0) {
        dial_failed(dial, result);
        return;
    }
    dial->source.fd = -1;
    dial_free(dial);
}

static int open_tcp(const struct dial *dial)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)dial->port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)dial->port)};
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    six.sin6_addr = in6addr_loopback;
    int on = 1, fd = socket(dial->second ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int result = dial->second ? connect(fd, (struct sockaddr *)&six, sizeof six)
                              : connect(fd, (struct sockaddr *)&four, sizeof four);
    if (result < 0 && errno != EINPROGRESS) {
        result = -errno;
        close(fd);
        return result;
    }
    return fd;
}

// Through /proc/self/fd the address is short, and what was looked up is what is connected to.
static int open_unix(const struct dial *dial)
{
    struct open_how how = {
            .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_BENEATH};
    int run = open(identity_run(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (run < 0)
        return -errno;
    int place = (int)syscall(SYS_openat2, run, dial->path + strlen("/run/"), &how, sizeof how);
    int result = place < 0 ? -errno : 0;
    close(run);
    if (result < 0)
        return result;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", place);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        result = -errno;
        if (fd >= 0)
            close(fd);
    }
    close(place);
    return result < 0 ? result : fd;
}

static void dial_try(struct dial *dial);

static void timer_fired(struct loop_timer *timer)
{
    struct dial *dial = (struct dial *)((char *)timer - offsetof(struct dial, timer));
    if (clock_monotonic_ns() < dial->deadline_ns) {
        dial_try(dial);
        return;
    }
    dial->deadline_passed = true;
    if (!job_is_quiet())
        dial_failed(dial, -ETIMEDOUT);
}

static void source_ready(struct loop_source *source, uint32_t events)
{
    struct dial *dial = (struct dial *)source;
    int failure = 0;
    socklen_t size = sizeof failure;
    getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &failure, &size);
    if (failure == 0) {
        dial_connected(dial);
        return;
    }
    loop_disarm(source);
    close(source->fd);
    source->fd = -1;
    if (dial->second) {
        dial_failed(dial, -failure);
        return;
    }
    dial->second = true;
    dial_try(dial);
}

static void dial_try(struct dial *dial)
{
    int fd = dial->kind == AGENT_DIAL_TCP ? open_tcp(dial) : open_unix(dial);
    if (fd < 0 && dial->kind == AGENT_DIAL_TCP && !dial->second) {
        dial->second = true;
        fd = open_tcp(dial);
        if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
            fd = -ECONNREFUSED; // a machine without IPv6
    }
    if (fd == -EAGAIN && dial->kind == AGENT_DIAL_UNIX) { // its queue of connections is full
        uint64_t again_ns = clock_monotonic_ns() + RETRY_NS;
        loop_timer_set(&dial->timer, again_ns < dial->deadline_ns ? again_ns : dial->deadline_ns);
        return;
    }
    if (fd < 0) {
        dial_failed(dial, fd);
        return;
    }
    dial->source = (struct loop_source){.fd = fd, .ready = source_ready};
    if (dial->kind == AGENT_DIAL_UNIX) {
        dial_connected(dial);
        return;
    }
    loop_timer_set(&dial->timer, dial->deadline_ns);
    loop_arm(&dial->source, EPOLLOUT);
}

void dial_start(uint32_t stream, struct agent_cursor fields)
{
    uint32_t kind = agent_cursor_u32(&fields), port = agent_cursor_u32(&fields);
    const char *path = agent_cursor_string(&fields);
    uint64_t timeout_ms = agent_cursor_u64(&fields);
    bool tcp = kind == AGENT_DIAL_TCP && port >= 1 && port <= 65535;
    bool local = kind == AGENT_DIAL_UNIX && strlen(path) < sizeof((struct dial *)0)->path;
    if (fields.bad || (!tcp && !local)) {
        job_result(stream, -EINVAL, "the request to connect cannot be read, or its path is too long", NULL);
        return;
    }
    if (local && (strncmp(path, "/run/", 5) != 0 || path[5] == 0)) {
        job_result(stream, -EINVAL, "only sockets below /run can be connected to", NULL);
        return;
    }
    struct dial *dial = dial_count < WAITING_MAX ? calloc(1, sizeof *dial) : NULL;
    if (dial == NULL) {
        job_result(stream, -EAGAIN, "too many connections are being made at once", NULL);
        return;
    }
    dial->next = dials;
    dials = dial;
    dial_count++;
    dial->stream = stream;
    dial->kind = kind;
    dial->port = port;
    dial->source.fd = -1;
    dial->timer.fire = timer_fired;
    dial->deadline_ns = clock_monotonic_ns() + (timeout_ms < 3600000 ? timeout_ms : 3600000) * 1000000;
    snprintf(dial->path, sizeof dial->path, "%s", path);
    dial_try(dial);
}

static struct dial *find(uint32_t stream)
{
    struct dial *dial = dials;
    while (dial != NULL && dial->stream != stream)
        dial = dial->next;
    return dial;
}

bool dial_waits(uint32_t stream)
{
    return find(stream) != NULL;
}

bool dial_cancel(uint32_t stream)
{
    struct dial *dial = find(stream);
    if (dial == NULL)
        return false;
    if (job_is_quiet())
        dial_free(dial);
    else
        dial_failed(dial, -ECANCELED);
    return true;
}

void dial_detach_all(void)
{
    while (dials != NULL)
        dial_free(dials);
}

void dial_quiet(bool quiet)
{
    for (struct dial *dial = dials, *next; dial != NULL; dial = next) {
        next = dial->next;
        if (quiet) {
            loop_disarm(&dial->source);
            if (dial->source.fd < 0)
                loop_timer_set(&dial->timer, dial->deadline_ns);
        } else if (dial->deadline_passed) {
            dial_failed(dial, -ETIMEDOUT);
        } else if (dial->source.fd >= 0) {
            loop_arm(&dial->source, EPOLLOUT);
        } else {
            dial_try(dial);
        }
    }
}
