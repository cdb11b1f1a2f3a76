// SPDX-License-Identifier: Apache-2.0
// The handshake without sockets: every prefix and every damaged byte of a good handshake, and what stays open
// after it.
#include "vmglue/nbd_negotiate.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int open_count;

static int open_export(void *context, const char *name, struct nbd_target *ret_target)
{
    if (strcmp(name, "disk") != 0)
        return strcmp(name, "broken") == 0 ? -ESTALE : -ENOENT;
    *ret_target = (struct nbd_target){.size_bytes = 1000001};
    open_count++;
    return 0;
}

static void close_export(void *context, struct nbd_target *target)
{
    open_count--;
}

static void list_exports(void *context,
        void (*each)(void *each_context, const char *name, const char *description), void *each_context)
{
    each(each_context, "disk", "a disk");
    each(each_context, "other", NULL);
}

static const struct nbd_negotiation_source source = {
        .open = open_export, .close = close_export, .list = list_exports};
static const struct nbd_negotiation_source closed_source = {.open = open_export, .close = close_export};

static void put_option(struct nbd_writer *to, uint32_t option, const void *data, uint32_t size)
{
    nbd_writer_u64(to, NBD_OPTION_MAGIC);
    nbd_writer_u32(to, option);
    nbd_writer_u32(to, size);
    nbd_writer_bytes(to, data, size);
}

static void put_named(struct nbd_writer *to, uint32_t option, const char *name, const char *query)
{
    struct nbd_writer data = {0};
    nbd_writer_u32(&data, (uint32_t)strlen(name));
    nbd_writer_bytes(&data, name, strlen(name));
    if (query) {
        nbd_writer_u32(&data, 1);
        nbd_writer_u32(&data, (uint32_t)strlen(query));
        nbd_writer_bytes(&data, query, strlen(query));
    } else {
        nbd_writer_u16(&data, 1);
        nbd_writer_u16(&data, NBD_INFO_BLOCK_SIZE);
    }
    put_option(to, option, data.bytes, (uint32_t)data.size);
    nbd_writer_free(&data);
}

static void put_handshake(struct nbd_writer *to)
{
    nbd_writer_u32(to, NBD_HANDSHAKE_FIXED_NEWSTYLE | NBD_HANDSHAKE_NO_ZEROES);
    put_option(to, NBD_OPT_STRUCTURED_REPLY, "", 0);
    put_named(to, NBD_OPT_SET_META_CONTEXT, "disk", "base:allocation");
    put_named(to, NBD_OPT_INFO, "disk", NULL);
    put_named(to, NBD_OPT_GO, "disk", NULL);
}

// Feeds the bytes in pieces; stops at the first step that is neither waiting nor an answer.
static enum nbd_negotiation_step feed(
        struct nbd_negotiation *negotiation, const uint8_t *bytes, size_t size, size_t piece)
{
    size_t begin = 0, end = 0;
    enum nbd_negotiation_step step = NBD_NEGOTIATION_WAIT;
    while (step == NBD_NEGOTIATION_WAIT || step == NBD_NEGOTIATION_ANSWERED) {
        size_t consumed;
        step = nbd_negotiation_input(negotiation, bytes + begin, end - begin, &consumed);
        assert_true(consumed <= end - begin);
        begin += consumed;
        if (step == NBD_NEGOTIATION_WAIT) {
            if (end == size)
                break;
            end = size - end < piece ? size : end + piece;
        }
    }
    return step;
}

static void finish(struct nbd_negotiation *negotiation, enum nbd_negotiation_step step)
{
    if (step == NBD_NEGOTIATION_TRANSMIT)
        open_count--;
    nbd_negotiation_end(negotiation);
    assert_int_equal(open_count, 0);
}

static void a_handshake_in_any_pieces_says_the_same(void **state)
{
    struct nbd_writer bytes = {0}, first_answer = {0};
    put_handshake(&bytes);
    for (size_t piece = 1; piece <= bytes.size; piece++) {
        struct nbd_negotiation negotiation;
        nbd_negotiation_begin(&negotiation, &source);
        enum nbd_negotiation_step step = feed(&negotiation, bytes.bytes, bytes.size, piece);
        assert_int_equal(step, NBD_NEGOTIATION_TRANSMIT);
        assert_true(negotiation.structured && negotiation.contexts);
        if (piece == 1)
            nbd_writer_bytes(&first_answer, negotiation.out.bytes, negotiation.out.size);
        assert_int_equal(negotiation.out.size, first_answer.size);
        assert_memory_equal(negotiation.out.bytes, first_answer.bytes, first_answer.size);
        finish(&negotiation, step);
    }
    nbd_writer_free(&first_answer);
    nbd_writer_free(&bytes);
}

static void a_handshake_cut_anywhere_waits_and_keeps_nothing_open(void **state)
{
    struct nbd_writer bytes = {0};
    put_handshake(&bytes);
    for (size_t size = 0; size < bytes.size; size++) {
        struct nbd_negotiation negotiation;
        uint8_t *copy = malloc(size + 1); // exact, so that a sanitizer sees a read beyond it
        memcpy(copy, bytes.bytes, size);
        nbd_negotiation_begin(&negotiation, &source);
        assert_int_equal(feed(&negotiation, copy, size, size + 1), NBD_NEGOTIATION_WAIT);
        finish(&negotiation, NBD_NEGOTIATION_WAIT);
        free(copy);
    }
    nbd_writer_free(&bytes);
}

static void damaged_bytes_do_no_harm(void **state)
{
    struct nbd_writer bytes = {0};
    put_handshake(&bytes);
    srandom(1);
    for (unsigned round = 0; round < 200000; round++) {
        struct nbd_negotiation negotiation;
        uint8_t *copy = malloc(bytes.size);
        memcpy(copy, bytes.bytes, bytes.size);
        for (unsigned i = 0; i < 1 + round % 3; i++)
            copy[(size_t)random() % bytes.size] = (uint8_t)random();
        nbd_negotiation_begin(&negotiation, &source);
        finish(&negotiation, feed(&negotiation, copy, bytes.size, 64));
        free(copy);
    }
    nbd_writer_free(&bytes);
}

// Sends one option after the client flags; returns the type of the last reply.
static uint32_t answer_to(const struct nbd_negotiation_source *to, const struct nbd_writer *option)
{
    struct nbd_negotiation negotiation;
    struct nbd_writer bytes = {0};
    nbd_negotiation_begin(&negotiation, to);
    nbd_writer_u32(&bytes, NBD_HANDSHAKE_FIXED_NEWSTYLE);
    nbd_writer_bytes(&bytes, option->bytes, option->size);
    negotiation.out.size = 0;
    assert_int_equal(feed(&negotiation, bytes.bytes, bytes.size, bytes.size), NBD_NEGOTIATION_WAIT);
    struct nbd_cursor cursor = nbd_cursor_over(negotiation.out.bytes, negotiation.out.size);
    uint32_t type = 0;
    while (nbd_cursor_left(&cursor)) {
        assert_true(nbd_cursor_u64(&cursor) == NBD_OPTION_REPLY_MAGIC);
        nbd_cursor_u32(&cursor);
        type = nbd_cursor_u32(&cursor);
        nbd_cursor_bytes(&cursor, nbd_cursor_u32(&cursor));
    }
    assert_true(nbd_cursor_finished(&cursor));
    finish(&negotiation, NBD_NEGOTIATION_WAIT);
    nbd_writer_free(&bytes);
    return type;
}

static void wrong_options_get_the_right_word(void **state)
{
    static const uint8_t much[NBD_NEGOTIATION_OPTION_MAX + 1];
    static const struct {
        uint32_t option;
        const void *data;
        uint32_t size;
        uint32_t answer;
    } cases[] = {
            {4242, "", 0, NBD_REP_ERR_UNSUP}, {4242, much, sizeof much, NBD_REP_ERR_TOO_BIG},
            {NBD_OPT_STARTTLS, "", 0, NBD_REP_ERR_UNSUP}, {NBD_OPT_STARTTLS, "x", 1, NBD_REP_ERR_INVALID},
            {NBD_OPT_LIST, "", 0, NBD_REP_ACK}, {NBD_OPT_LIST, "x", 1, NBD_REP_ERR_INVALID},
            {NBD_OPT_STRUCTURED_REPLY, "x", 1, NBD_REP_ERR_INVALID}, {NBD_OPT_GO, "", 0, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\0\0\0\4disk", 8, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\0\0\0\5disk\0\0", 10, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\377\377\377\377disk\0\0", 10, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\0\0\0\4disk\0\1", 10, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\0\0\0\4disk\0\0x", 11, NBD_REP_ERR_INVALID},
            {NBD_OPT_GO, "\0\0\0\4disc\0\0", 10, NBD_REP_ERR_UNKNOWN},
            {NBD_OPT_GO, "\0\0\0\6broken\0\0", 12, NBD_REP_ERR_POLICY},
            {NBD_OPT_INFO, "\0\0\0\4disk\0\0", 10, NBD_REP_ACK},
            {NBD_OPT_SET_META_CONTEXT, "\0\0\0\4disk\0\0\0\0", 12, NBD_REP_ERR_INVALID}, // not structured
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nbd_writer option = {0};
        put_option(&option, cases[i].option, cases[i].data, cases[i].size);
        assert_int_equal(answer_to(&source, &option), cases[i].answer);
        nbd_writer_free(&option);
    }
    struct nbd_writer list = {0};
    put_option(&list, NBD_OPT_LIST, "", 0);
    assert_int_equal(answer_to(&closed_source, &list), NBD_REP_ERR_POLICY);
    nbd_writer_free(&list);
}

static void the_minimum_block_divides_the_size(void **state)
{
    struct nbd_target target = {.size_bytes = 1000001};
    assert_int_equal(nbd_negotiation_minimum_block_bytes(&target), 1);
    target.size_bytes = 1536;
    assert_int_equal(nbd_negotiation_minimum_block_bytes(&target), 512);
}

static void read_only_exports_offer_nothing_that_writes(void **state)
{
    struct nbd_target target = {.read_only = true};
    unsigned flags = nbd_negotiation_flags(&target, true);
    assert_true(flags & NBD_FLAG_READ_ONLY);
    assert_false(flags & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_handshake_in_any_pieces_says_the_same),
            cmocka_unit_test(a_handshake_cut_anywhere_waits_and_keeps_nothing_open),
            cmocka_unit_test(damaged_bytes_do_no_harm),
            cmocka_unit_test(wrong_options_get_the_right_word),
            cmocka_unit_test(the_minimum_block_divides_the_size),
            cmocka_unit_test(read_only_exports_offer_nothing_that_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
