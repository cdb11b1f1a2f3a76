// SPDX-License-Identifier: Apache-2.0
// WebSocket framing (RFC 6455), for both ends: the handshake's key, frames out, and a decoder that puts
// messages together and says with which code a connection must be closed. No extensions.
//
// Threads: one at a time for each decoder. No I/O. Untrusted bytes go in; memory is bounded by the longest
// message.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WEBSOCKET_KEY_BYTES = 29, // base64 of 20 bytes, and a zero
    WEBSOCKET_HEADER_MAX = 14,
    WEBSOCKET_MESSAGE_MAX = 1 << 20,
};
enum websocket_opcode {
    WEBSOCKET_TEXT = 1,
    WEBSOCKET_BINARY = 2,
    WEBSOCKET_CLOSE = 8,
    WEBSOCKET_PING = 9,
    WEBSOCKET_PONG = 10,
};
enum websocket_close {
    WEBSOCKET_CLOSE_NORMAL = 1000,
    WEBSOCKET_CLOSE_GOING_AWAY = 1001,
    WEBSOCKET_CLOSE_PROTOCOL = 1002,
    WEBSOCKET_CLOSE_UNSUPPORTED = 1003,
    WEBSOCKET_CLOSE_NO_TEXT = 1007,
    WEBSOCKET_CLOSE_TOO_BIG = 1009,
    WEBSOCKET_CLOSE_ERROR = 1011,
};

// The answer to a client's Sec-WebSocket-Key; -EINVAL when that is not base64 of 16 bytes.
int websocket_accept(const char *key, char ret_accept[WEBSOCKET_KEY_BYTES]);
// The head of a whole message in one frame. mask: NULL for a server; for a client 4 bytes that the payload
// must be masked with (websocket_mask) before it is sent.
size_t websocket_header(enum websocket_opcode opcode, size_t size, const uint8_t *mask,
        uint8_t ret_header[WEBSOCKET_HEADER_MAX]);
void websocket_mask(void *bytes, size_t size, const uint8_t mask[4], size_t offset);

struct websocket {
    bool masked;      // frames must be, as a client's; else must not be
    uint8_t *message; // what has come of the present message
    size_t size;
    int opcode; // of it, 0 = none begun
    uint8_t head[WEBSOCKET_HEADER_MAX];
    size_t head_size;
    uint64_t left; // of the present frame's payload
    bool in_payload;
    uint8_t control[125];
    size_t control_size;
    uint8_t mask[4];
    uint64_t masked_bytes;
};
struct websocket_message {
    enum websocket_opcode opcode;
    const uint8_t *bytes; // until the next call
    size_t size;
};
void websocket_init(struct websocket *websocket, bool masked);
void websocket_free(struct websocket *websocket);
// Takes bytes up to the end of one message: 1 and the message, or 0 when all were taken without one. *taken
// says how many were. Negative: -(a close code), the connection must be closed with it.
int websocket_take(struct websocket *websocket, const void *bytes, size_t size, size_t *ret_taken,
        struct websocket_message *ret_message);
