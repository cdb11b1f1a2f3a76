// SPDX-License-Identifier: Apache-2.0
// Frames and packed fields: what was packed comes out again, damage is skipped, hostile bytes do no harm.
#include "vmglue/agent_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct bytes {
    uint8_t at[400000];
    size_t size;
};

static struct bytes wire;

static void append(const void *bytes, size_t size)
{
    assert_true(wire.size + size <= sizeof wire.at);
    if (size > 0)
        memcpy(wire.at + wire.size, bytes, size);
    wire.size += size;
}

static void append_frame(uint64_t epoch, uint16_t type, uint32_t stream, const void *payload, uint32_t size)
{
    struct agent_frame frame = {.epoch = epoch,
            .type = type,
            .stream = stream,
            .sequence = 9,
            .flags = 0x102,
            .size = size,
            .payload = payload};
    uint8_t header[AGENT_HEADER_BYTES];
    agent_frame_header(&frame, header);
    append(header, sizeof header);
    append(payload, size);
}

// Gives the wire's bytes to a decoder in pieces of `step` and collects the streams of the frames that come
// out.
static unsigned decode(struct agent_decoder *decoder, size_t step, uint32_t *ret_streams)
{
    unsigned count = 0;
    for (size_t done = 0; done < wire.size;) {
        size_t room, size = wire.size - done < step ? wire.size - done : step;
        void *space = agent_decoder_space(decoder, &room);
        assert_true(room > 0);
        size = size < room ? size : room;
        memcpy(space, wire.at + done, size);
        agent_decoder_filled(decoder, size);
        done += size;
        struct agent_frame frame;
        while (agent_decoder_next(decoder, &frame))
            ret_streams[count++] = frame.stream;
    }
    return count;
}

static struct agent_decoder new_decoder(uint64_t epoch, bool accept_hello)
{
    struct agent_decoder decoder;
    assert_int_equal(agent_decoder_init(&decoder, accept_hello), 0);
    decoder.epoch = epoch;
    wire.size = 0;
    return decoder;
}

static void crc_is_castagnoli(void **state)
{
    uint8_t zeros[32] = {0};
    assert_int_equal(agent_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(agent_crc32c(0, zeros, sizeof zeros), 0x8A9136AAu); // RFC 3720, B.4
    assert_int_equal(agent_crc32c(agent_crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
}

static void header_bytes_are_as_documented(void **state)
{
    static const uint8_t expected[36] = {0xF7, 'R', 'A', 'M', 'E', 'T', '\n', 0xF9, 8, 7, 6, 5, 4, 3, 2, 1,
            0x0D, 0x0C, 0x0B, 0x0A, 4, 3, 2, 1, 5, 0, 2, 1, 9, 0, 0, 0, 0x83, 0x92, 0x06, 0xE3};
    struct agent_frame frame = {.epoch = 0x0102030405060708,
            .sequence = 0x0A0B0C0D,
            .stream = 0x01020304,
            .type = AGENT_DATA,
            .flags = 0x102,
            .size = 9,
            .payload = (const uint8_t *)"123456789"};
    uint8_t header[AGENT_HEADER_BYTES];
    agent_frame_header(&frame, header);
    assert_memory_equal(header, expected, sizeof expected);
}

static void frames_round_trip_in_any_pieces(void **state)
{
    static uint8_t payload[AGENT_PAYLOAD_MAX];
    const size_t steps[] = {1, 7, 40, 41, 4096, 400000};
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 31);
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        uint32_t streams[8];
        struct agent_decoder decoder = new_decoder(5, false);
        append_frame(5, AGENT_DATA, 1, "", 0);
        append_frame(5, AGENT_DATA, 2, payload, sizeof payload);
        append_frame(5, AGENT_RESULT, 3, payload, 1);
        assert_int_equal(decode(&decoder, steps[s], streams), 3);
        assert_int_equal(streams[2], 3);
        assert_int_equal(decoder.skipped_bytes, 0);
        agent_decoder_free(&decoder);
    }
}

static void fields_of_a_frame_come_back(void **state)
{
    struct agent_decoder decoder = new_decoder(77, false);
    struct agent_frame frame;
    append_frame(77, AGENT_WINDOW, 6, "abc", 3);
    size_t room;
    memcpy(agent_decoder_space(&decoder, &room), wire.at, wire.size);
    agent_decoder_filled(&decoder, wire.size);
    assert_true(agent_decoder_next(&decoder, &frame));
    assert_int_equal(frame.epoch, 77);
    assert_int_equal(frame.sequence, 9);
    assert_int_equal(frame.type, AGENT_WINDOW);
    assert_int_equal(frame.flags, 0x102);
    assert_int_equal(frame.size, 3);
    assert_memory_equal(frame.payload, "abc", 3);
    assert_false(agent_decoder_next(&decoder, &frame));
    agent_decoder_free(&decoder);
}

static void garbage_is_skipped(void **state)
{
    uint32_t streams[8];
    struct agent_decoder decoder = new_decoder(5, false);
    append("boot messages \xF7RAME and \xF7RAMET\n almost", 36);
    append_frame(5, AGENT_DATA, 1, "x", 1);
    append("\xF7\xF7\xF7RAMET\n\xF9", 10); // a marker, and the rest of a header is another frame
    append_frame(5, AGENT_DATA, 2, "y", 1);
    assert_int_equal(decode(&decoder, 3, streams), 2);
    assert_int_equal(streams[1], 2);
    assert_int_equal(decoder.skipped_bytes, 46);
    agent_decoder_free(&decoder);
}

static void any_damaged_byte_loses_one_frame_only(void **state)
{
    for (size_t at = 0; at < AGENT_HEADER_BYTES + 5; at++) {
        uint32_t streams[8];
        struct agent_decoder decoder = new_decoder(5, false);
        append_frame(5, AGENT_DATA, 1, "hello", 5);
        append_frame(5, AGENT_DATA, 2, "world", 5);
        wire.at[at] ^= 0x10;
        assert_int_equal(decode(&decoder, 11, streams), 1);
        assert_int_equal(streams[0], 2);
        agent_decoder_free(&decoder);
    }
}

static void other_sessions_are_skipped_by_content_not_length(void **state)
{
    uint8_t inner[200];
    uint32_t streams[8];
    struct agent_decoder decoder = new_decoder(5, false);
    append_frame(5, AGENT_DATA, 42, "mine", 4);
    size_t size = wire.size;
    memcpy(inner, wire.at, size);
    wire.size = 0;
    // The head of a long frame of a dead session, of which the rest was lost; ours follows at once.
    static uint8_t long_payload[AGENT_PAYLOAD_MAX];
    append_frame(4, AGENT_DATA, 1, long_payload, sizeof long_payload);
    wire.size = AGENT_HEADER_BYTES + 100;
    append(inner, size);
    assert_int_equal(decode(&decoder, 50, streams), 1);
    assert_int_equal(streams[0], 42);
    agent_decoder_free(&decoder);
}

static void hello_is_taken_in_any_session_and_nothing_else(void **state)
{
    uint32_t streams[8];
    struct agent_decoder decoder = new_decoder(0, true);
    append_frame(3, AGENT_REQUEST, 1, "x", 1);
    append_frame(0, AGENT_REQUEST, 2, "x", 1);
    append_frame(0, AGENT_HELLO, 3, "x", 1);
    append_frame(3, AGENT_HELLO, 4, "x", 1);
    assert_int_equal(decode(&decoder, 1000, streams), 1);
    assert_int_equal(streams[0], 4);
    agent_decoder_free(&decoder);
    decoder = new_decoder(8, false);
    append_frame(3, AGENT_HELLO, 4, "x", 1);
    assert_int_equal(decode(&decoder, 1000, streams), 0);
    agent_decoder_free(&decoder);
}

// A frame of the present session was cut off: the zeros before the next HELLO end it.
static void padding_ends_a_half_frame(void **state)
{
    static uint8_t zeros[AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX];
    for (size_t cut = 1; cut < AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX; cut += 3001) {
        uint32_t streams[8];
        struct agent_decoder decoder = new_decoder(5, true);
        append_frame(5, AGENT_DATA, 1, zeros + AGENT_HEADER_BYTES, AGENT_PAYLOAD_MAX);
        wire.size = cut;
        append(zeros, sizeof zeros);
        append_frame(6, AGENT_HELLO, 9, "hello", 5);
        unsigned count = decode(&decoder, 4096, streams);
        // The cut frame's payload is zeros, too: with the padding it may become whole; it then comes before
        // the HELLO.
        assert_true(count >= 1 && streams[count - 1] == 9);
        agent_decoder_free(&decoder);
    }
}

static void hostile_lengths_are_no_frames(void **state)
{
    const uint32_t sizes[] = {
            AGENT_PAYLOAD_MAX + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFF - AGENT_HEADER_BYTES + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t streams[8];
        struct agent_decoder decoder = new_decoder(5, false);
        append_frame(5, AGENT_DATA, 1, "", 0);
        uint32_t crc;
        for (int b = 0; b < 4; b++)
            wire.at[28 + b] = (uint8_t)(sizes[i] >> 8 * b);
        crc = agent_crc32c(0, wire.at, 36);
        for (int b = 0; b < 4; b++)
            wire.at[36 + b] = (uint8_t)(crc >> 8 * b);
        append_frame(5, AGENT_DATA, 2, "next", 4);
        assert_int_equal(decode(&decoder, 16, streams), 1);
        assert_int_equal(streams[0], 2);
        agent_decoder_free(&decoder);
    }
}

static void random_bytes_with_frames_between(void **state)
{
    uint64_t seed = 88172645463325252u;
    for (int round = 0; round < 200; round++) {
        uint32_t streams[64];
        struct agent_decoder decoder = new_decoder(5, false);
        for (uint32_t i = 0; i < 20; i++) {
            for (int junk = (int)(seed % 90); junk > 0; junk--) {
                seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
                uint8_t byte = (uint8_t)(seed >> 32) & 3 ? (uint8_t)seed : 0xF7;
                append(&byte, 1);
            }
            append_frame(5, AGENT_DATA, i, &seed, sizeof seed);
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        }
        assert_int_equal(decode(&decoder, 1 + seed % 300, streams), 20);
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(streams[i], i);
        agent_decoder_free(&decoder);
    }
}

static void packed_fields_round_trip(void **state)
{
    struct agent_builder builder = {0};
    agent_builder_u8(&builder, 200);
    agent_builder_u32(&builder, 0xDEADBEEF);
    agent_builder_u64(&builder, 0x0123456789ABCDEF);
    agent_builder_string(&builder, "");
    agent_builder_string(&builder, "n\xC3\xB8t ascii");
    agent_builder_bytes(&builder, "raw", 3);
    assert_false(builder.failed);
    struct agent_cursor cursor = agent_cursor_over(builder.bytes, builder.size);
    assert_int_equal(agent_cursor_u8(&cursor), 200);
    assert_int_equal(agent_cursor_u32(&cursor), 0xDEADBEEF);
    assert_int_equal(agent_cursor_u64(&cursor), 0x0123456789ABCDEF);
    assert_string_equal(agent_cursor_string(&cursor), "");
    assert_string_equal(agent_cursor_string(&cursor), "n\xC3\xB8t ascii");
    assert_memory_equal(agent_cursor_bytes(&cursor, 3), "raw", 3);
    assert_false(cursor.bad);
    assert_int_equal(agent_cursor_u8(&cursor), 0);
    assert_true(cursor.bad);
    agent_builder_free(&builder);
}

static void cut_fields_are_refused_everywhere(void **state)
{
    struct agent_builder builder = {0};
    agent_builder_u32(&builder, 7);
    agent_builder_string(&builder, "string");
    agent_builder_u64(&builder, 9);
    for (size_t size = 0; size <= builder.size; size++) {
        uint8_t *exact = malloc(size ? size : 1); // so that asan sees a byte too many
        memcpy(exact, builder.bytes, size);
        struct agent_cursor cursor = agent_cursor_over(exact, size);
        agent_cursor_u32(&cursor);
        const char *string = agent_cursor_string(&cursor);
        agent_cursor_u64(&cursor);
        assert_int_equal(cursor.bad, size < builder.size);
        if (size < 4 + 4 + 7)
            assert_string_equal(string, "");
        free(exact);
    }
    agent_builder_free(&builder);
}

static void strings_with_zeros_or_wild_lengths_are_refused(void **state)
{
    static const uint8_t inner_zero[] = {3, 0, 0, 0, 'a', 0, 'b', 0},
                         no_end[] = {3, 0, 0, 0, 'a', 'b', 'c', 'd'},
                         wild[] = {0xFF, 0xFF, 0xFF, 0xFF, 'a', 0}, huge[] = {0, 0, 0x50, 0, 'a', 0};
    const uint8_t *cases[] = {inner_zero, no_end, wild, huge};
    const size_t sizes[] = {sizeof inner_zero, sizeof no_end, sizeof wild, sizeof huge};
    for (int i = 0; i < 4; i++) {
        struct agent_cursor cursor = agent_cursor_over(cases[i], sizes[i]);
        assert_string_equal(agent_cursor_string(&cursor), "");
        assert_true(cursor.bad);
        assert_int_equal(agent_cursor_u8(&cursor), 0);
    }
}

static void a_builder_that_grew_too_large_stays_failed(void **state)
{
    struct agent_builder builder = {0};
    char *big = malloc(AGENT_REQUEST_MAX + 2);
    memset(big, 'x', AGENT_REQUEST_MAX + 1);
    big[AGENT_REQUEST_MAX + 1] = 0;
    agent_builder_string(&builder, big);
    assert_true(builder.failed);
    agent_builder_u8(&builder, 1);
    assert_true(builder.failed);
    agent_builder_free(&builder);
    free(big);
}

static void sentences_of_guests_become_plain_text(void **state)
{
    static const char *const cases[][2] = {{"", ""},
            {"plain: \xC3\xB8 \xE2\x94\x80 \xF0\x9F\x98\x80",
                    "plain: \xC3\xB8 \xE2\x94\x80 \xF0\x9F\x98\x80"},
            {"a\nb\x1B[2Jc\x7F", "a?b?[2Jc?"},
            {"\xFF\x80 \xC0\xAF \xED\xA0\x80 \xF4\x90\x80\x80", "?? ?? ??? ????"},
            {"\xC2\x9B"
             "31m",
                    "??31m"},
            {"cut \xE2\x94", "cut ??"}, {"cut \xF0\x9F", "cut ??"}};
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        agent_clean_text(cases[i][0], text, sizeof text);
        assert_string_equal(text, cases[i][1]);
    }
    for (size_t size = 1; size < 8; size++) {
        agent_clean_text("ab\xE2\x94\x80"
                         "c",
                text, size);
        assert_string_equal(text, size == 1   ? ""
                                  : size == 2 ? "a"
                                  : size < 6  ? "ab"
                                  : size == 6 ? "ab\xE2\x94\x80"
                                              : "ab\xE2\x94\x80"
                                                "c");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(crc_is_castagnoli),
            cmocka_unit_test(header_bytes_are_as_documented),
            cmocka_unit_test(frames_round_trip_in_any_pieces),
            cmocka_unit_test(fields_of_a_frame_come_back),
            cmocka_unit_test(garbage_is_skipped),
            cmocka_unit_test(any_damaged_byte_loses_one_frame_only),
            cmocka_unit_test(other_sessions_are_skipped_by_content_not_length),
            cmocka_unit_test(hello_is_taken_in_any_session_and_nothing_else),
            cmocka_unit_test(padding_ends_a_half_frame),
            cmocka_unit_test(hostile_lengths_are_no_frames),
            cmocka_unit_test(random_bytes_with_frames_between),
            cmocka_unit_test(packed_fields_round_trip),
            cmocka_unit_test(cut_fields_are_refused_everywhere),
            cmocka_unit_test(strings_with_zeros_or_wild_lengths_are_refused),
            cmocka_unit_test(sentences_of_guests_become_plain_text),
            cmocka_unit_test(a_builder_that_grew_too_large_stays_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
