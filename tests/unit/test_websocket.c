// SPDX-License-Identifier: Apache-2.0
// WebSocket framing: the handshake's key, messages in one and in many frames, and what must be refused (A09).
#include "vmglue/websocket.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_key_of_the_specification(void **state)
{
    char accept[WEBSOCKET_KEY_BYTES];
    assert_int_equal(websocket_accept("dGhlIHNhbXBsZSBub25jZQ==", accept), 0); // RFC 6455, 1.3
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_int_equal(websocket_accept("", accept), -EINVAL);
    assert_int_equal(websocket_accept("dGhlIHNhbXBsZSBub25jZQ=", accept), -EINVAL);
    assert_int_equal(websocket_accept("dGhlIHNhbXBsZSBub25j!!==", accept), -EINVAL);
}

// Gives the bytes in pieces of `step`; returns the last answer, and its message.
static int feed(struct websocket *websocket, const void *bytes, size_t size, size_t step,
        struct websocket_message *ret_message)
{
    const uint8_t *at = bytes;
    while (size > 0) {
        size_t taken, piece = size < step ? size : step;
        int r = websocket_take(websocket, at, piece, &taken, ret_message);
        if (r != 0)
            return r;
        assert_int_equal(taken, piece);
        at += taken;
        size -= taken;
    }
    return 0;
}

static size_t frame(uint8_t first, const void *payload, size_t size, bool masked, uint8_t *ret_bytes)
{
    static const uint8_t mask[4] = {0x37, 0xFA, 0x21, 0x3D};
    size_t head = websocket_header(WEBSOCKET_BINARY, size, masked ? mask : NULL, ret_bytes);
    ret_bytes[0] = first;
    if (size > 0)
        memcpy(ret_bytes + head, payload, size);
    if (masked)
        websocket_mask(ret_bytes + head, size, mask, 0);
    return head + size;
}

static void messages_of_every_length_pass(void **state)
{
    static uint8_t payload[WEBSOCKET_MESSAGE_MAX], bytes[WEBSOCKET_MESSAGE_MAX + WEBSOCKET_HEADER_MAX];
    static const size_t sizes[] = {0, 1, 125, 126, 127, 65535, 65536, WEBSOCKET_MESSAGE_MAX};
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 7 + (i >> 9));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int masked = 0; masked < 2; masked++) {
            struct websocket websocket;
            struct websocket_message message;
            websocket_init(&websocket, masked);
            size_t size = frame(0x82, payload, sizes[i], masked, bytes);
            assert_int_equal(feed(&websocket, bytes, size, sizes[i] > 1000 ? 4099 : 1, &message), 1);
            assert_int_equal(message.opcode, WEBSOCKET_BINARY);
            assert_int_equal(message.size, sizes[i]);
            assert_memory_equal(message.bytes, payload, sizes[i]);
            websocket_free(&websocket);
        }
    }
}

static void messages_behind_each_other_have_the_limit_each(void **state)
{
    static uint8_t payload[WEBSOCKET_MESSAGE_MAX], bytes[WEBSOCKET_MESSAGE_MAX + WEBSOCKET_HEADER_MAX];
    static const size_t sizes[] = {WEBSOCKET_MESSAGE_MAX, 1, WEBSOCKET_MESSAGE_MAX, 0, WEBSOCKET_MESSAGE_MAX};
    struct websocket websocket;
    struct websocket_message message;
    websocket_init(&websocket, true);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = frame(0x82, payload, sizes[i], true, bytes);
        assert_int_equal(feed(&websocket, bytes, size, size, &message), 1);
        assert_int_equal(message.size, sizes[i]);
    }
    websocket_free(&websocket);
}

static void fragments_are_joined_around_a_ping(void **state)
{
    uint8_t bytes[100];
    struct websocket websocket;
    struct websocket_message message;
    websocket_init(&websocket, true);
    size_t size = frame(0x01, "\xE2\x94", 2, true, bytes); // text, more to come, cut inside a character
    assert_int_equal(feed(&websocket, bytes, size, 1, &message), 0);
    size = frame(0x89, "hi", 2, true, bytes);
    assert_int_equal(feed(&websocket, bytes, size, 100, &message), 1);
    assert_int_equal(message.opcode, WEBSOCKET_PING);
    assert_memory_equal(message.bytes, "hi", 2);
    size = frame(0x80, "\x80", 1, true, bytes);
    assert_int_equal(feed(&websocket, bytes, size, 1, &message), 1);
    assert_int_equal(message.opcode, WEBSOCKET_TEXT);
    assert_memory_equal(message.bytes, "\xE2\x94\x80", 3);
    websocket_free(&websocket);
}

static void A09_what_breaks_the_rules_is_refused(void **state)
{
    static const struct {
        uint8_t bytes[16];
        size_t size;
        int code;
    } cases[] = {
            {{0x82, 0x01, 'x'}, 3, WEBSOCKET_CLOSE_PROTOCOL},              // not masked
            {{0xC2, 0x81}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // a reserved bit
            {{0x83, 0x81}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // an opcode that is none
            {{0x8B, 0x80}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // ... of a control frame
            {{0x80, 0x81}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // goes on with nothing
            {{0x09, 0x80}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // a ping in pieces
            {{0x89, 0xFE}, 2, WEBSOCKET_CLOSE_PROTOCOL},                   // a long ping
            {{0x82, 0xFE, 0, 5, 1, 2, 3, 4}, 8, WEBSOCKET_CLOSE_PROTOCOL}, // not the shortest length
            {{0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, 14, WEBSOCKET_CLOSE_TOO_BIG},
            {{0x81, 0x81, 0, 0, 0, 0, 0xFF}, 7, WEBSOCKET_CLOSE_NO_TEXT},
            {{0x81, 0x82, 0, 0, 0, 0, 0xE2, 0x94}, 8, WEBSOCKET_CLOSE_NO_TEXT}, // ends inside a character
            {{0x88, 0x81, 0, 0, 0, 0, 3}, 7, WEBSOCKET_CLOSE_PROTOCOL},         // half a close code
            {{0x88, 0x82, 0, 0, 0, 0, 3, 0xED}, 8, WEBSOCKET_CLOSE_PROTOCOL},   // 1005 is never sent
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t step = 1; step < 20; step += 18) {
            struct websocket websocket;
            struct websocket_message message;
            websocket_init(&websocket, true);
            int r = feed(&websocket, cases[i].bytes, cases[i].size, step, &message);
            if (r != -cases[i].code)
                fail_msg("case %zu: %d, not %d", i, r, -cases[i].code);
            websocket_free(&websocket);
        }
    }
}

static void A09_a_message_of_many_fragments_is_bounded(void **state)
{
    static uint8_t payload[65536], bytes[65536 + WEBSOCKET_HEADER_MAX];
    struct websocket websocket;
    struct websocket_message message;
    websocket_init(&websocket, true);
    int r = 0;
    for (int i = 0; i < 17 && r == 0; i++) {
        size_t size = frame(i == 0 ? 0x02 : 0x00, payload, sizeof payload, true, bytes);
        r = feed(&websocket, bytes, size, sizeof bytes, &message);
    }
    assert_int_equal(r, -WEBSOCKET_CLOSE_TOO_BIG);
    websocket_free(&websocket);
}

static void a_message_inside_another_is_refused(void **state)
{
    uint8_t bytes[100];
    struct websocket websocket;
    struct websocket_message message;
    websocket_init(&websocket, true);
    assert_int_equal(feed(&websocket, bytes, frame(0x02, "a", 1, true, bytes), 100, &message), 0);
    assert_int_equal(feed(&websocket, bytes, frame(0x82, "b", 1, true, bytes), 100, &message),
            -WEBSOCKET_CLOSE_PROTOCOL);
    websocket_free(&websocket);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(the_key_of_the_specification),
            cmocka_unit_test(messages_of_every_length_pass),
            cmocka_unit_test(messages_behind_each_other_have_the_limit_each),
            cmocka_unit_test(fragments_are_joined_around_a_ping),
            cmocka_unit_test(A09_what_breaks_the_rules_is_refused),
            cmocka_unit_test(A09_a_message_of_many_fragments_is_bounded),
            cmocka_unit_test(a_message_inside_another_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
