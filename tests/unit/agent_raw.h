// SPDX-License-Identifier: Apache-2.0
// A host that speaks the agent's protocol by hand, to say what the client never would.
#pragma once

#include "tests/unit/agent_fixture.h"

struct raw {
    int fd;
    uint64_t epoch;
    uint32_t sequence;
    struct agent_decoder decoder;
};

static inline int raw_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static inline void raw_write(struct raw *raw, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t sent = send(raw->fd, at, size, MSG_NOSIGNAL);
        assert_true(sent > 0);
        at += sent;
        size -= (size_t)sent;
    }
}

// The bytes of a frame; the caller sends all of them, or not.
static inline size_t raw_frame(struct raw *raw, uint16_t type, uint16_t flags, uint32_t stream,
        const void *payload, size_t size, uint8_t *ret_bytes)
{
    struct agent_frame frame = {.epoch = raw->epoch,
            .sequence = raw->sequence++,
            .stream = stream,
            .type = type,
            .flags = flags,
            .size = (uint32_t)size,
            .payload = payload};
    agent_frame_header(&frame, ret_bytes);
    if (size > 0)
        memcpy(ret_bytes + AGENT_HEADER_BYTES, payload, size);
    return AGENT_HEADER_BYTES + size;
}

static inline void raw_send(
        struct raw *raw, uint16_t type, uint16_t flags, uint32_t stream, const void *payload, size_t size)
{
    static uint8_t bytes[AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX];
    raw_write(raw, bytes, raw_frame(raw, type, flags, stream, payload, size, bytes));
}

// The next frame of the session; false when nothing comes for limit_ms.
static inline bool raw_next(struct raw *raw, struct agent_frame *ret_frame, int limit_ms)
{
    while (!agent_decoder_next(&raw->decoder, ret_frame)) {
        size_t room;
        void *space = agent_decoder_space(&raw->decoder, &room);
        struct pollfd one = {.fd = raw->fd, .events = POLLIN};
        if (poll(&one, 1, limit_ms) <= 0)
            return false;
        ssize_t got = recv(raw->fd, space, room, 0);
        assert_true(got > 0);
        agent_decoder_filled(&raw->decoder, (size_t)got);
    }
    return true;
}

// The next frame of this type and stream; *ret_ended becomes true when the command of the stream `watched`
// ended on the way.
static inline struct agent_frame raw_await_noting(
        struct raw *raw, uint16_t type, uint32_t stream, uint32_t watched, bool *ret_ended)
{
    struct agent_frame frame;
    do {
        if (!raw_next(raw, &frame, PATIENCE_MS))
            fail_msg("no frame of type %u on stream %u came", type, stream);
        *ret_ended = *ret_ended || (frame.type == AGENT_RESULT && frame.stream == watched);
    } while (frame.type != type || frame.stream != stream);
    return frame;
}

static inline struct agent_frame raw_await(struct raw *raw, uint16_t type, uint32_t stream)
{
    bool ended = false;
    return raw_await_noting(raw, type, stream, stream, &ended);
}

static inline void raw_hello(struct raw *raw, uint64_t epoch)
{
    static const uint8_t versions[8] = {AGENT_VERSION, 0, 0, 0, AGENT_VERSION, 0, 0, 0};
    raw->epoch = raw->decoder.epoch = epoch;
    raw->sequence = 0;
    raw_send(raw, AGENT_HELLO, 0, 0, versions, sizeof versions);
    raw_await(raw, AGENT_HELLO_ACK, 0);
}

static inline void raw_open(struct raw *raw, const char *path, uint64_t epoch)
{
    raw->fd = raw_socket(path);
    assert_int_equal(agent_decoder_init(&raw->decoder, false), 0);
    raw_hello(raw, epoch);
}

static inline void raw_close(struct raw *raw)
{
    close(raw->fd);
    agent_decoder_free(&raw->decoder);
}

static inline void raw_request(struct raw *raw, uint32_t stream, struct agent_builder *fields)
{
    assert_false(fields->failed);
    raw_send(raw, AGENT_REQUEST, 0, stream, fields->bytes, fields->size);
    agent_builder_free(fields);
}

static inline void raw_shell_limited(struct raw *raw, uint32_t stream, const char *command, uint64_t limit_ms)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, AGENT_EXEC);
    agent_builder_u32(&fields, AGENT_EXEC_SHELL);
    agent_builder_u64(&fields, limit_ms);
    agent_builder_string(&fields, "");
    agent_builder_string(&fields, "");
    agent_builder_u32(&fields, 1);
    agent_builder_string(&fields, command);
    agent_builder_u32(&fields, 0);
    raw_request(raw, stream, &fields);
}

static inline void raw_shell(struct raw *raw, uint32_t stream, const char *command)
{
    raw_shell_limited(raw, stream, command, 0);
}

static inline void raw_simple(struct raw *raw, uint32_t stream, enum agent_operation operation)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, operation);
    raw_request(raw, stream, &fields);
}

static inline int raw_status(const struct agent_frame *result)
{
    struct agent_cursor fields = agent_cursor_over(result->payload, result->size);
    return (int)agent_cursor_u32(&fields);
}

// The fixture's own connection makes way for a hand-made one.
static inline void lend(struct guest *guest, struct raw *raw, uint64_t epoch)
{
    guest->agent = agent_disconnect(guest->agent);
    raw_open(raw, guest->socket_path, epoch);
}

static inline void take_back(struct guest *guest, struct raw *raw)
{
    struct error err;
    if (raw != NULL)
        raw_close(raw);
    if (agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err) < 0)
        fail_msg("%s", err.text);
}
