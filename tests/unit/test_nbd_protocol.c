// SPDX-License-Identifier: Apache-2.0
#include "vmglue/nbd_protocol.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void numbers_are_big_endian(void **state)
{
    uint8_t bytes[14];
    nbd_protocol_put_u16(bytes, 0x0102);
    nbd_protocol_put_u32(bytes + 2, 0x03040506);
    nbd_protocol_put_u64(bytes + 6, 0x0708090a0b0c0d0eull);
    for (unsigned i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], i + 1);
    struct nbd_cursor cursor = nbd_cursor_over(bytes, sizeof bytes);
    assert_int_equal(nbd_cursor_u16(&cursor), 0x0102);
    assert_int_equal(nbd_cursor_u32(&cursor), 0x03040506);
    assert_true(nbd_cursor_u64(&cursor) == 0x0708090a0b0c0d0eull);
    assert_true(nbd_cursor_finished(&cursor));
}

static void a_cursor_past_its_end_turns_bad_and_stays_bad(void **state)
{
    uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    struct nbd_cursor cursor = nbd_cursor_over(bytes, sizeof bytes);
    assert_int_equal(nbd_cursor_u32(&cursor), 0x01020304);
    assert_int_equal(nbd_cursor_u32(&cursor), 0);
    assert_true(cursor.bad);
    assert_int_equal(nbd_cursor_u16(&cursor), 0); // although two bytes are there
    assert_int_equal(nbd_cursor_left(&cursor), 0);
    assert_null(nbd_cursor_bytes(&cursor, 0));
    assert_false(nbd_cursor_finished(&cursor));
}

static void what_is_left_over_is_not_finished(void **state)
{
    uint8_t bytes[3] = {0};
    struct nbd_cursor cursor = nbd_cursor_over(bytes, sizeof bytes);
    nbd_cursor_u16(&cursor);
    assert_false(nbd_cursor_finished(&cursor));
    assert_int_equal(nbd_cursor_left(&cursor), 1);
}

static void strings_are_bounded(void **state)
{
    static uint8_t bytes[4 + NBD_STRING_MAX + 1];
    char text[NBD_STRING_MAX + 1];
    memset(bytes, 'x', sizeof bytes);

    nbd_protocol_put_u32(bytes, NBD_STRING_MAX);
    struct nbd_cursor cursor = nbd_cursor_over(bytes, 4 + NBD_STRING_MAX);
    nbd_cursor_string(&cursor, text);
    assert_true(nbd_cursor_finished(&cursor));
    assert_int_equal(strlen(text), NBD_STRING_MAX);

    nbd_protocol_put_u32(bytes, NBD_STRING_MAX + 1);
    cursor = nbd_cursor_over(bytes, sizeof bytes);
    nbd_cursor_string(&cursor, text);
    assert_true(cursor.bad);
    assert_string_equal(text, "");
}

static void strings_that_lie_are_bad(void **state)
{
    const uint32_t lengths[] = {5, 6, 0x7fffffff, 0xffffffff};
    char text[NBD_STRING_MAX + 1];
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t bytes[8] = {0, 0, 0, 0, 'd', 'i', 's', 'k'};
        nbd_protocol_put_u32(bytes, lengths[i]);
        struct nbd_cursor cursor = nbd_cursor_over(bytes, sizeof bytes);
        nbd_cursor_string(&cursor, text);
        assert_true(cursor.bad);
    }
    uint8_t with_zero[8] = {0, 0, 0, 4, 'd', 0, 's', 'k'};
    struct nbd_cursor cursor = nbd_cursor_over(with_zero, sizeof with_zero);
    nbd_cursor_string(&cursor, text);
    assert_true(cursor.bad);
}

static void requests_decode(void **state)
{
    const uint8_t bytes[NBD_REQUEST_BYTES] = {0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0,
            0, 0, 1, 0, 0, 0x10, 0, 0, 0, 2, 0};
    struct nbd_request_header header;
    assert_true(nbd_protocol_decode_request(bytes, &header));
    assert_int_equal(header.flags, NBD_CMD_FLAG_FUA);
    assert_int_equal(header.type, NBD_CMD_WRITE_ZEROES);
    assert_true(header.cookie == 0x0102030405060708ull);
    assert_true(header.offset == 0x100001000ull);
    assert_int_equal(header.length, 512);
}

static void a_wrong_request_magic_is_refused(void **state)
{
    uint8_t bytes[NBD_REQUEST_BYTES] = {0x25, 0x60, 0x95, 0x12};
    struct nbd_request_header header;
    assert_false(nbd_protocol_decode_request(bytes, &header));
}

static void reply_headers_have_the_protocols_bytes(void **state)
{
    const uint8_t simple[NBD_SIMPLE_REPLY_BYTES] = {
            0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9};
    const uint8_t chunk[NBD_CHUNK_BYTES] = {
            0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 12};
    uint8_t bytes[NBD_CHUNK_BYTES];
    nbd_protocol_simple_reply(bytes, NBD_ENOSPC, 9);
    assert_memory_equal(bytes, simple, sizeof simple);
    nbd_protocol_chunk(bytes, NBD_CHUNK_DONE, NBD_CHUNK_BLOCK_STATUS, 9, 12);
    assert_memory_equal(bytes, chunk, sizeof chunk);
}

static void errors_have_the_wires_numbers(void **state)
{
    assert_int_equal(nbd_protocol_error(0), 0);
    assert_int_equal(nbd_protocol_error(-ENOSPC), NBD_ENOSPC);
    assert_int_equal(nbd_protocol_error(-EBADMSG), NBD_EIO);
    assert_int_equal(nbd_protocol_error(-EIO), NBD_EIO);
    assert_int_equal(nbd_protocol_error(-ESTALE), NBD_EIO);
    assert_int_equal(nbd_protocol_error(-EINVAL), NBD_EINVAL);
    assert_int_equal(nbd_protocol_error(-EPERM), NBD_EPERM);
    assert_int_equal(nbd_protocol_error(-EOPNOTSUPP), NBD_ENOTSUP);
    assert_int_equal(nbd_protocol_error(-ENOENT), NBD_EIO);
}

static void a_writer_grows(void **state)
{
    struct nbd_writer writer = {0};
    for (uint32_t i = 0; i < 10000; i++)
        nbd_writer_u32(&writer, i);
    nbd_writer_zeros(&writer, 124);
    nbd_writer_option_reply(&writer, NBD_OPT_GO, NBD_REP_ACK, 0);
    assert_int_equal(writer.size, 40000 + 124 + 20);
    struct nbd_cursor cursor = nbd_cursor_over(writer.bytes, writer.size);
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(nbd_cursor_u32(&cursor), i);
    nbd_writer_free(&writer);
    assert_null(writer.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(numbers_are_big_endian),
            cmocka_unit_test(a_cursor_past_its_end_turns_bad_and_stays_bad),
            cmocka_unit_test(what_is_left_over_is_not_finished),
            cmocka_unit_test(strings_are_bounded),
            cmocka_unit_test(strings_that_lie_are_bad),
            cmocka_unit_test(requests_decode),
            cmocka_unit_test(a_wrong_request_magic_is_refused),
            cmocka_unit_test(reply_headers_have_the_protocols_bytes),
            cmocka_unit_test(errors_have_the_wires_numbers),
            cmocka_unit_test(a_writer_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
