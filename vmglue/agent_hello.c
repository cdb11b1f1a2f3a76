// SPDX-License-Identifier: Apache-2.0
// Why HELLO is said more than once:
// - A guest that boots opens its port late; the first HELLO waits in the socket until then.
// - An earlier connection may have ended inside a frame, and the guest still waits for the rest of that. The
// second
//   HELLO comes behind as many zeros as the longest frame has: they end the broken frame, which is then
//   skipped.
// - A port whose connection was away when the guest was loaded may stay deaf to the first one: connect again.
#include "vmglue/agent_hello.h"

#include "blockstore/clock.h"
#include "vmglue/agent_connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SOCKET_WAIT_MS = 2000, FIRST_WAIT_MS = 150, SECOND_WAIT_MS = 1000, LAST_WAIT_MS = 3000 };

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Waits for the socket to be readable or writable; false at the deadline.
static bool wait_socket(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = clock_monotonic_ns();
        if (now >= deadline_ns)
            return false;
        struct pollfd one = {.fd = fd, .events = events};
        if (poll(&one, 1, (int)((deadline_ns - now) / 1000000 + 1)) > 0)
            return true;
    }
}

static int connect_once(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int result = -errno;
        close(fd);
        return result;
    }
    return fd;
}

// A VMM makes its socket right after it was started; one that never comes means that there is no VMM.
static int connect_within(const char *path, uint64_t deadline_ns, struct error *err)
{
    uint64_t missing_until_ns = earlier(deadline_ns, clock_monotonic_ns() + SOCKET_WAIT_MS * 1000000ull);
    for (;;) {
        int fd = connect_once(path);
        bool missing = fd == -ENOENT || fd == -ECONNREFUSED;
        if (fd >= 0)
            return fd;
        if (!missing && fd != -EAGAIN)
            return error_set(err, fd, "cannot connect to the guest at %s: %s", path, strerror(-fd));
        if (clock_monotonic_ns() >= (missing ? missing_until_ns : deadline_ns))
            return error_set(err, missing ? -EPIPE : -ETIMEDOUT, "no machine answers at %s: %s", path,
                    missing ? "is it running?" : "another connection holds it");
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static int send_all(int fd, const uint8_t *bytes, size_t size, uint64_t deadline_ns)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        if (sent < 0 && !wait_socket(fd, POLLOUT, deadline_ns))
            return -ETIMEDOUT;
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        }
    }
    return 0;
}

static int send_hello(int fd, uint64_t epoch, bool pad, uint64_t deadline_ns)
{
    static const uint8_t zeros[AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX];
    struct agent_builder fields = {0};
    uint8_t header[AGENT_HEADER_BYTES];
    agent_builder_u32(&fields, AGENT_VERSION_OLDEST);
    agent_builder_u32(&fields, AGENT_VERSION);
    struct agent_frame frame = {
            .epoch = epoch, .type = AGENT_HELLO, .size = (uint32_t)fields.size, .payload = fields.bytes};
    int result = fields.failed ? -ENOMEM : 0;
    if (result == 0 && pad)
        result = send_all(fd, zeros, sizeof zeros, deadline_ns);
    if (result == 0) {
        agent_frame_header(&frame, header);
        result = send_all(fd, header, sizeof header, deadline_ns);
    }
    if (result == 0)
        result = send_all(fd, fields.bytes, fields.size, deadline_ns);
    agent_builder_free(&fields);
    return result;
}

static int read_ack(const struct agent_frame *frame, struct agent_hello *hello, struct error *err)
{
    struct agent_cursor fields = agent_cursor_over(frame->payload, frame->size);
    hello->version = agent_cursor_u32(&fields);
    hello->state = agent_cursor_u32(&fields);
    char release[40];
    agent_clean_text(agent_cursor_string(&fields), release, sizeof release);
    if (fields.bad || hello->version < AGENT_VERSION_OLDEST || hello->version > AGENT_VERSION)
        return error_set(err, -EPROTO,
                "the guest's agent (release %s) speaks none of the protocol's versions %d to %d", release,
                AGENT_VERSION_OLDEST, AGENT_VERSION);
    return 1;
}

// 1 = answered, 0 = not yet.
static int await_ack(int fd, uint64_t deadline_ns, struct agent_decoder *decoder, struct agent_hello *hello,
        struct error *err)
{
    while (wait_socket(fd, POLLIN, deadline_ns)) {
        size_t room;
        void *space = agent_decoder_space(decoder, &room);
        ssize_t got = recv(fd, space, room, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return -EPIPE;
        if (got < 0)
            continue;
        agent_decoder_filled(decoder, (size_t)got);
        struct agent_frame frame;
        while (agent_decoder_next(decoder, &frame)) {
            if (frame.type == AGENT_HELLO_ACK)
                return read_ack(&frame, hello, err);
        }
    }
    return 0;
}

// One connection: 1 = a session, 0 = try another, < 0 = final.
static int hello_on(int fd, uint64_t deadline_ns, struct agent_decoder *decoder, struct agent_hello *hello,
        struct error *err)
{
    static const unsigned waits_ms[] = {FIRST_WAIT_MS, SECOND_WAIT_MS, LAST_WAIT_MS};
    if (getrandom(&hello->epoch, sizeof hello->epoch, 0) != sizeof hello->epoch)
        return error_set(err, -EIO, "the host has no random numbers for a session");
    hello->epoch |= 1; // 0 is no session
    agent_decoder_reset(decoder);
    decoder->epoch = hello->epoch;
    for (int i = 0; i < 3 && clock_monotonic_ns() < deadline_ns; i++) {
        uint64_t began_ns = clock_monotonic_ns(),
                 until_ns = earlier(deadline_ns, began_ns + waits_ms[i] * 1000000ull);
        int result = send_hello(fd, hello->epoch, i > 0, until_ns);
        if (result == 0)
            result = await_ack(fd, until_ns, decoder, hello, err);
        hello->round_trip_ns = clock_monotonic_ns() - began_ns;
        if (result == 1 || result == -EPROTO || result == -ENOMEM)
            return result;
        if (result < 0)
            return 0;
    }
    return 0;
}

int agent_hello(const char *socket_path, unsigned timeout_ms, struct agent_decoder *decoder,
        struct agent_hello *ret_hello, struct error *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + timeout_ms * 1000000ull;
    for (;;) {
        int fd = connect_within(socket_path, deadline_ns, err);
        if (fd < 0)
            return fd;
        int result = hello_on(fd, deadline_ns, decoder, ret_hello, err);
        if (result == 1) {
            ret_hello->fd = fd;
            return 0;
        }
        close(fd);
        if (result < 0)
            return result;
        if (clock_monotonic_ns() >= deadline_ns)
            return error_set(err, -ETIMEDOUT,
                    "the guest at %s did not answer within %u ms; its console log may say why", socket_path,
                    timeout_ms);
    }
}
