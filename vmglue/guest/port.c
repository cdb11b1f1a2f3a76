// SPDX-License-Identifier: Apache-2.0
// The port is watched edge-triggered: while no host is connected it reports a hang-up for ever, and a
// level-triggered loop would spin. Each wake-up reads until there is nothing more and writes what it can.
#include "vmglue/guest/port.h"

#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "vmglue/guest/loop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT_HIGH_BYTES = 256 << 10, OUTPUT_LOW_BYTES = 64 << 10 };

static struct loop_source port = {.fd = -1};
static struct loop_source listener = {.fd = -1};
static struct agent_decoder decoder;
static uint32_t send_sequence, receive_sequence;
static port_frame_handler *frame_handler;
static port_room_handler *room_handler;

// What is to be sent: bytes[start, end).
static struct {
    uint8_t *bytes;
    size_t start, end, capacity;
    bool was_full;
} output;

static void tell_of_room(struct loop_timer *timer)
{
    room_handler();
}

// Who sends a frame may be in the middle of something that the handler would do anew: it is called by the
// loop.
static struct loop_timer room_timer = {.fire = tell_of_room};

static void port_flush(void)
{
    while (output.start < output.end && port.fd >= 0) {
        ssize_t sent =
                listener.fd >= 0
                        ? send(port.fd, output.bytes + output.start, output.end - output.start, MSG_NOSIGNAL)
                        : write(port.fd, output.bytes + output.start, output.end - output.start);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            break;
        output.start += (size_t)sent;
    }
    if (output.start == output.end)
        output.start = output.end = 0;
    if (output.was_full && output.end - output.start <= OUTPUT_LOW_BYTES) {
        output.was_full = false;
        loop_timer_set(&room_timer, clock_monotonic_ns());
    }
}

bool port_has_room(void)
{
    if (output.end - output.start >= OUTPUT_HIGH_BYTES)
        output.was_full = true;
    return !output.was_full;
}

bool port_drained(void)
{
    return output.start == output.end;
}

void port_session(uint64_t epoch)
{
    decoder.epoch = epoch;
    send_sequence = receive_sequence = 0;
    output.start = output.end = 0;
    output.was_full = false;
}

static bool output_reserve(size_t size)
{
    if (output.start > 0 && output.capacity - output.end < size) {
        memmove(output.bytes, output.bytes + output.start, output.end - output.start);
        output.end -= output.start;
        output.start = 0;
    }
    if (output.capacity - output.end >= size)
        return true;
    size_t capacity = output.end + size + OUTPUT_HIGH_BYTES;
    uint8_t *grown = realloc(output.bytes, capacity);
    if (grown == NULL)
        return false;
    output.bytes = grown;
    output.capacity = capacity;
    return true;
}

void port_send(uint16_t type, uint16_t flags, uint32_t stream, const void *payload, size_t size)
{
    // Without memory the frame is lost, the host sees the gap in the sequence and begins a new session.
    struct agent_frame frame = {.epoch = decoder.epoch,
            .sequence = send_sequence++,
            .stream = stream,
            .type = type,
            .flags = flags,
            .size = (uint32_t)size,
            .payload = payload};
    if (decoder.epoch == 0 || !output_reserve(AGENT_HEADER_BYTES + size))
        return;
    agent_frame_header(&frame, output.bytes + output.end);
    if (size > 0)
        memcpy(output.bytes + output.end + AGENT_HEADER_BYTES, payload, size);
    output.end += AGENT_HEADER_BYTES + size;
    port_flush();
}

static void take_frames(void)
{
    struct agent_frame frame;
    while (agent_decoder_next(&decoder, &frame)) {
        if (frame.type != AGENT_HELLO && frame.sequence != ++receive_sequence) {
            static const char gap[] = "frames were lost on the way to the guest";
            port_send(AGENT_BROKEN, 0, 0, gap, sizeof gap - 1);
            decoder.epoch = 0; // what is queued still goes out, and nothing after it
            frame.type = AGENT_BROKEN;
        }
        frame_handler(&frame);
    }
}

static void connection_ended(void)
{
    agent_decoder_reset(&decoder);
    if (listener.fd < 0)
        return;
    loop_disarm(&port);
    close(port.fd);
    port.fd = -1;
    loop_arm(&listener, EPOLLIN);
}

static void port_ready(struct loop_source *source, uint32_t events)
{
    for (;;) {
        size_t room;
        void *space = agent_decoder_space(&decoder, &room);
        ssize_t got = read(port.fd, space, room);
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            connection_ended();
            return;
        }
        if (got < 0)
            break;
        agent_decoder_filled(&decoder, (size_t)got);
        take_frames();
    }
    port_flush();
}

static int port_start(port_frame_handler *on_frame, port_room_handler *on_room)
{
    frame_handler = on_frame;
    room_handler = on_room;
    port.ready = port_ready;
    return agent_decoder_init(&decoder, true);
}

static int virtio_find(const char *name, char *ret_path, size_t size)
{
    DIR *ports = opendir("/sys/class/virtio-ports");
    if (ports == NULL)
        return -errno;
    int found = -ENOENT;
    struct dirent *entry;
    while (found < 0 && (entry = readdir(ports)) != NULL) {
        char path[300], text[64];
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        fd_read_text(AT_FDCWD, path, text, sizeof text);
        text[strcspn(text, "\n")] = 0;
        if (strcmp(text, name) == 0) {
            snprintf(ret_path, size, "/dev/%s", entry->d_name);
            found = 0;
        }
    }
    closedir(ports);
    return found;
}

// The port's name comes by a control message after the driver was loaded, so it may take some milliseconds.
int port_open_virtio(const char *name, port_frame_handler *on_frame, port_room_handler *on_room)
{
    int result = port_start(on_frame, on_room);
    if (result < 0)
        return result;
    char path[300];
    for (int tries = 0; (result = virtio_find(name, path, sizeof path)) < 0 && tries < 30000; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (result < 0)
        return result;
    port.fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (port.fd < 0)
        return -errno;
    return loop_arm(&port, EPOLLIN | EPOLLOUT | EPOLLET);
}

static void listener_ready(struct loop_source *source, uint32_t events)
{
    port.fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (port.fd < 0)
        return;
    loop_disarm(&listener);
    loop_arm(&port, EPOLLIN | EPOLLOUT | EPOLLET);
}

int port_open_socket(const char *path, port_frame_handler *on_frame, port_room_handler *on_room)
{
    int result = port_start(on_frame, on_room);
    if (result < 0)
        return result;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener.fd < 0 || bind(listener.fd, (struct sockaddr *)&address, sizeof address) < 0 ||
            listen(listener.fd, 8) < 0)
        return -errno;
    listener.ready = listener_ready;
    return loop_arm(&listener, EPOLLIN);
}
