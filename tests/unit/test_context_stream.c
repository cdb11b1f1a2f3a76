// SPDX-License-Identifier: Apache-2.0
// What comes from a code context becomes an Execution; what is no such thing ends in words, in bounded
// memory.
#include "vmglue/context_stream.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STARTED "{\"event\":\"started\",\"run\":\"r\",\"seq\":1,\"execution_count\":7}\n"

static unsigned events;
static char kinds[512];

static void count_event(void *context, const char *event, const json_t *data)
{
    (void)context;
    assert_non_null(data);
    events++;
    if (strlen(kinds) + strlen(event) + 2 < sizeof kinds)
        strcat(strcat(kinds, event), " ");
}

static struct context_stream *make(void)
{
    events = 0;
    kinds[0] = '\0';
    return context_stream_create("r", count_event, NULL);
}

static int feed(struct context_stream *stream, const char *text)
{
    struct error err = {0};
    int r = context_stream_feed(stream, text, strlen(text), &err);
    if (r < 0)
        assert_string_not_equal(err.text, "");
    return r;
}

// Numbered lines around `format`, whose %d is the number.
static int feed_line(struct context_stream *stream, int number, const char *members)
{
    char *line;
    assert_true(asprintf(&line, "{\"run\":\"r\",\"seq\":%d,%s}\n", number, members) > 0);
    int r = feed(stream, line);
    free(line);
    return r;
}

static void test_an_execution(void **state)
{
    (void)state;
    struct context_stream *stream = make();
    assert_int_equal(feed(stream, STARTED), 0);
    assert_int_equal(feed_line(stream, 2, "\"event\":\"stdout\",\"text\":\"out \\u2500\\u0000\""), 0);
    assert_int_equal(feed_line(stream, 3, "\"event\":\"stderr\",\"text\":\"err\""), 0);
    assert_int_equal(feed_line(stream, 4,
                             "\"event\":\"display\",\"display_id\":\"d\",\"data\":{\"image/png\":\"QQ==\","
                             "\"text/x-odd\":\"odd\",\"application/json\":{\"a\":[1]}}"),
            0);
    assert_int_equal(feed_line(stream, 5, "\"event\":\"result\",\"data\":{\"text/plain\":\"42\"}"), 0);
    assert_int_equal(
            feed_line(stream, 6, "\"event\":\"error\",\"name\":\"E\",\"value\":\"v\",\"traceback\":\"t\""),
            0);
    assert_int_equal(feed_line(stream, 7,
                             "\"event\":\"done\",\"duration_ms\":12,\"timed_out\":false,\"interrupted\":true,"
                             "\"truncated\":true,\"state_lost\":\"why\",\"exit_code\":3"),
            1);
    json_t *json = context_stream_execution(stream);
    const json_t *display = json_array_get(json_object_get(json, "results"), 0);
    assert_string_equal(kinds, "started stdout stderr display result error ");
    assert_int_equal(json_string_length(json_object_get(json, "stdout")), 8);
    assert_string_equal(json_fields_get_text(json, "stderr"), "err");
    assert_string_equal(json_fields_get_text(json, "text"), "42");
    assert_string_equal(json_fields_get_text(display, "png"), "QQ==");
    assert_string_equal(json_fields_get_text(json_object_get(display, "extra"), "text/x-odd"), "odd");
    assert_true(json_is_object(json_object_get(display, "json")));
    assert_string_equal(json_fields_get_text(json_object_get(json, "error"), "name"), "E");
    assert_int_equal(json_fields_get_int(json, "execution_count"), 7);
    assert_int_equal(json_fields_get_int(json, "duration_ms"), 12);
    assert_int_equal(json_fields_get_int(json, "exit_code"), 3);
    assert_true(json_fields_get_bool(json, "truncated") && json_fields_get_bool(json, "interrupted"));
    assert_string_equal(json_fields_get_text(json, "state_lost"), "why");
    json_decref(json);
    context_stream_destroy(stream);
}

static void test_bytes_come_as_they_like(void **state)
{
    (void)state;
    static const char all[] = STARTED "{\"run\":\"r\",\"seq\":2,\"event\":\"stdout\",\"text\":\"ab\"}\n"
                                      "{\"run\":\"other\",\"seq\":9,\"event\":\"stdout\",\"text\":\"no\"}\n"
                                      "{\"event\":\"answer\",\"op\":\"interrupt\"}\n"
                                      "{\"run\":\"r\",\"seq\":3,\"event\":\"done\"}\nrubbish behind the end";
    for (size_t step = 1; step < sizeof all; step += step < 40 ? 1 : 17) {
        struct context_stream *stream = make();
        int r = 0;
        for (size_t i = 0; i < sizeof all - 1; i += step) {
            size_t size = sizeof all - 1 - i < step ? sizeof all - 1 - i : step;
            r = context_stream_feed(stream, all + i, size, NULL);
            assert_true(r >= 0);
        }
        assert_int_equal(r, 1);
        json_t *json = context_stream_execution(stream);
        assert_string_equal(json_fields_get_text(json, "stdout"), "ab");
        assert_true(json_is_null(json_object_get(json, "text")));
        assert_true(json_is_null(json_object_get(json, "error")));
        assert_true(json_is_null(json_object_get(json, "state_lost")));
        json_decref(json);
        context_stream_destroy(stream);
    }
}

static void test_clear_and_update(void **state)
{
    (void)state;
    struct context_stream *stream = make();
    feed(stream, STARTED);
    feed_line(stream, 2, "\"event\":\"stdout\",\"text\":\"old\"");
    feed_line(stream, 3, "\"event\":\"clear\",\"wait\":true");
    feed_line(stream, 4, "\"event\":\"display\",\"display_id\":\"d\",\"data\":{\"text/html\":\"1\"}");
    feed_line(stream, 5, "\"event\":\"display\",\"data\":{\"text/html\":\"other\"}");
    feed_line(stream, 6, "\"event\":\"update_display\",\"display_id\":\"d\",\"data\":{\"text/html\":\"2\"}");
    feed_line(stream, 7, "\"event\":\"update_display\",\"display_id\":\"e\",\"data\":{\"text/html\":\"3\"}");
    assert_int_equal(feed_line(stream, 8, "\"event\":\"done\""), 1);
    json_t *json = context_stream_execution(stream), *results = json_object_get(json, "results");
    assert_string_equal(json_fields_get_text(json, "stdout"), "");
    assert_int_equal(json_array_size(results), 3);
    assert_string_equal(json_fields_get_text(json_array_get(results, 0), "html"), "2");
    assert_string_equal(json_fields_get_text(json_array_get(results, 2), "html"), "3");
    json_decref(json);
    context_stream_destroy(stream);
}

static void test_what_is_no_event(void **state)
{
    (void)state;
    static const char *const bad[] = {"\n", "x\n", "[]\n", "{}\n", "{\"event\":3}\n",
            "{\"event\":\"stdout\"\n", "\xff\xfe\n",
            "{\"event\":\"stdout\",\"run\":\"r\",\"text\":\"\\ud800\",\"seq\":1}\n",
            "{\"event\":\"fly\",\"run\":\"r\",\"seq\":1}\n",
            "{\"event\":\"stdout\",\"run\":\"r\",\"seq\":2}\n",
            "{\"event\":\"stdout\",\"run\":\"r\",\"seq\":\"1\"}\n", "{\"event\":\"stdout\",\"run\":\"r\"}\n",
            "{\"event\":\"result\",\"run\":\"r\",\"seq\":1}\n",
            "{\"event\":\"result\",\"run\":\"r\",\"seq\":1,\"data\":[]}\n",
            "{\"event\":\"result\",\"run\":\"r\",\"seq\":1,\"data\":{}}trailing\n", NULL};
    for (size_t i = 0; bad[i] != NULL; i++) {
        struct context_stream *stream = make();
        int r = feed(stream, bad[i]);
        if (r != -EPROTO)
            fail_msg("line %zu was taken: %d", i, r);
        context_stream_destroy(stream);
    }
}

// Members of a wrong type are as if they were not there.
static void test_wrong_types(void **state)
{
    (void)state;
    static const char *const lines[] = {"\"event\":\"started\",\"execution_count\":\"x\"",
            "\"event\":\"stdout\",\"text\":7", "\"event\":\"stderr\"",
            "\"event\":\"display\",\"display_id\":9,\"data\":{\"text/plain\":{\"deep\":[null]}}",
            "\"event\":\"result\",\"data\":{\"text/plain\":5}", "\"event\":\"clear\",\"wait\":\"yes\"",
            "\"event\":\"error\",\"name\":[],\"value\":{}",
            "\"event\":\"done\",\"duration_ms\":\"long\",\"timed_out\":1,\"state_lost\":4,\"exit_code\":"
            "\"3\""};
    struct context_stream *stream = make();
    int count = sizeof lines / sizeof lines[0];
    for (int i = 0; i < count; i++)
        assert_int_equal(feed_line(stream, i + 1, lines[i]), i + 1 == count ? 1 : 0);
    json_t *json = context_stream_execution(stream);
    assert_true(json_is_null(json_object_get(json, "text")));
    assert_true(json_is_null(json_object_get(json, "state_lost")));
    assert_null(json_object_get(json, "exit_code"));
    assert_string_equal(json_fields_get_text(json_object_get(json, "error"), "name"), "");
    json_decref(json);
    context_stream_destroy(stream);
}

static void test_a_line_that_does_not_end(void **state)
{
    (void)state;
    struct context_stream *stream = make();
    char *piece = malloc(1 << 20);
    memset(piece, 'x', 1 << 20);
    int r = 0;
    unsigned pieces = 0;
    while (r == 0 && pieces++ < 100)
        r = context_stream_feed(stream, piece, 1 << 20, NULL);
    assert_int_equal(r, -EPROTO);
    assert_int_equal(pieces, (CONTEXT_STREAM_LINE_MAX >> 20) + 1);
    free(piece);
    context_stream_destroy(stream);
}

// More than may be kept: passed on, but cut in the Execution, between characters.
static void test_limits(void **state)
{
    (void)state;
    enum { PIECE = 999999 }; // of three bytes each
    struct context_stream *stream = make();
    char *text = malloc(3 * PIECE + 64), *member = NULL;
    int number = 0;
    for (size_t i = 0; i < PIECE; i++)
        memcpy(text + 3 * i, "\xe2\x94\x80", 3);
    text[3 * PIECE] = '\0';
    assert_true(asprintf(&member, "\"event\":\"stdout\",\"text\":\"%s\"", text) > 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(feed_line(stream, ++number, member), 0);
    free(member);
    assert_true(asprintf(&member, "\"event\":\"display\",\"data\":{\"text/html\":\"%s\"}", text) > 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(feed_line(stream, ++number, member), 0);
    free(member);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(
                feed_line(stream, ++number, "\"event\":\"display\",\"data\":{\"text/html\":\"s\"}"), 0);
    assert_int_equal(feed_line(stream, ++number, "\"event\":\"done\""), 1);
    assert_int_equal(events, number - 1);
    json_t *json = context_stream_execution(stream);
    size_t size = json_string_length(json_object_get(json, "stdout"));
    assert_true(json_fields_get_bool(json, "truncated"));
    assert_true(size <= CONTEXT_STREAM_TEXT_MAX && size > CONTEXT_STREAM_TEXT_MAX - 3 && size % 3 == 0);
    assert_int_equal(json_array_size(json_object_get(json, "results")), CONTEXT_STREAM_RESULT_COUNT_MAX);
    char *dump = json_dumps(json, JSON_COMPACT);
    assert_true(strlen(dump) < 70u << 20);
    free(dump);
    free(text);
    json_decref(json);
    context_stream_destroy(stream);
}

// Updates of one display take no more than the display does.
static void test_many_updates(void **state)
{
    (void)state;
    struct context_stream *stream = make();
    char *text = malloc((1 << 20) + 1), *member;
    memset(text, 'h', 1 << 20);
    text[1 << 20] = '\0';
    for (int i = 1; i <= 120; i++) {
        assert_true(asprintf(&member,
                            "\"event\":\"update_display\",\"display_id\":\"d\",\"data\":{\"text/html\":\"%d "
                            "%s\"}",
                            i, text) > 0);
        assert_int_equal(feed_line(stream, i, member), 0);
        free(member);
    }
    assert_int_equal(feed_line(stream, 121, "\"event\":\"done\""), 1);
    json_t *json = context_stream_execution(stream), *results = json_object_get(json, "results");
    assert_false(json_fields_get_bool(json, "truncated"));
    assert_int_equal(json_array_size(results), 1);
    assert_int_equal(atoi(json_fields_get_text(json_array_get(results, 0), "html")), 120);
    free(text);
    json_decref(json);
    context_stream_destroy(stream);
}

static void test_refusals_and_answers(void **state)
{
    (void)state;
    struct context_stream *stream = make();
    struct error err;
    json_t *answer = NULL;
    assert_int_equal(
            feed(stream, "{\"event\":\"refused\",\"run\":\"r\",\"code\":\"busy\",\"message\":\"16 wait\"}\n"),
            -EAGAIN);
    context_stream_destroy(stream);
    static const struct {
        const char *line;
        int result;
    } lines[] = {{"{\"event\":\"answer\",\"op\":\"status\",\"state\":\"idle\"}", 0}, {"", -EPROTO},
            {"{}", -EPROTO}, {"{\"event\":\"stdout\"}", -EPROTO}, {"{\"event\":\"refused\"}", -EINVAL},
            {"{\"event\":\"refused\",\"code\":\"unavailable\",\"message\":\"no IPython\"}", -ENOTSUP}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int r = context_stream_answer(lines[i].line, strlen(lines[i].line), &answer, &err);
        assert_int_equal(r, lines[i].result);
        if (r < 0)
            assert_string_not_equal(err.text, "");
    }
    assert_string_equal(json_fields_get_text(answer, "state"), "idle");
    json_decref(answer);
}

// Lines of a good stream with bytes changed: whatever it comes to, it comes to something.
static void test_changed_bytes(void **state)
{
    (void)state;
    static const char good[] =
            STARTED "{\"run\":\"r\",\"seq\":2,\"event\":\"stdout\",\"text\":\"ab\\u2500\"}\n"
                    "{\"run\":\"r\",\"seq\":3,\"event\":\"display\",\"data\":{\"image/png\":\"QQ==\"}}\n"
                    "{\"run\":\"r\",\"seq\":4,\"event\":\"done\",\"truncated\":false}\n";
    uint32_t random = 12345;
    unsigned ended = 0, refused = 0;
    for (unsigned round = 0; round < 20000; round++) {
        char bytes[sizeof good];
        memcpy(bytes, good, sizeof good);
        for (unsigned i = 0; i < 1 + round % 4; i++) {
            random = random * 1664525 + 1013904223;
            bytes[(random >> 8) % (sizeof good - 1)] = (char)(random >> 24);
        }
        struct context_stream *stream = make();
        int r = context_stream_feed(stream, bytes, sizeof good - 1, NULL);
        ended += r == 1;
        refused += r < 0;
        if (r == 1)
            json_decref(context_stream_execution(stream));
        context_stream_destroy(stream);
    }
    assert_true(ended > 0 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_an_execution),
            cmocka_unit_test(test_bytes_come_as_they_like),
            cmocka_unit_test(test_clear_and_update),
            cmocka_unit_test(test_what_is_no_event),
            cmocka_unit_test(test_wrong_types),
            cmocka_unit_test(test_a_line_that_does_not_end),
            cmocka_unit_test(test_limits),
            cmocka_unit_test(test_many_updates),
            cmocka_unit_test(test_refusals_and_answers),
            cmocka_unit_test(test_changed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
