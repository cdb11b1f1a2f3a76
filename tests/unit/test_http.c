// SPDX-License-Identifier: Apache-2.0
// The HTTP server with handlers of its own on a socket, its routes, its pipe, and the JSON fields of
// requests.
#include "tests/unit/http_fixture.h"
#include "vmglue/http_pipe.h"
#include "vmglue/json_fields.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

// ---- routes ----

static void nothing(struct http_request *request)
{
}

static const struct http_route first[] = {
        {"GET", "/v1/things", 0, nothing},
        {"POST", "/v1/things", 0, nothing},
        {"GET", "/v1/things/{name}/parts/{part}", 0, nothing},
        {0},
};
static const struct http_route second[] = {{"DELETE", "/v1/things/{name}", 0, nothing}, {0}};
static const struct http_route *const tables[] = {first, second, NULL};

static void routes_find_by_method_and_segments(void **state)
{
    struct http_param params[HTTP_PARAMS_MAX] = {0};
    char allow[64];
    int status;
    assert_ptr_equal(
            http_route_find(tables, "GET", "/v1/things", params, &status, allow, sizeof allow), &first[0]);
    assert_ptr_equal(
            http_route_find(tables, "HEAD", "/v1/things", params, &status, allow, sizeof allow), &first[0]);
    assert_ptr_equal(http_route_find(tables, "DELETE", "/v1/things/a", params, &status, allow, sizeof allow),
            &second[0]);
    assert_string_equal(params[0].value, "a");
    assert_ptr_equal(
            http_route_find(tables, "GET", "/v1/things/a b/parts/..", params, &status, allow, sizeof allow),
            &first[2]);
    assert_string_equal(params[0].value, "a b");
    assert_string_equal(params[1].value, "..");
    assert_int_equal(params[1].name_size, 4);
}

// A word in a path is another resource than a parameter in its place, with methods of its own.
static void words_go_before_parameters(void **state)
{
    static const struct http_route any[] = {{"GET", "/v1/things/{name}", 0, nothing},
            {"DELETE", "/v1/things/{name}", 0, nothing}, {"GET", "/v1/things/all", 0, nothing}, {0}};
    static const struct http_route *const both[] = {any, any, NULL};
    struct http_param params[HTTP_PARAMS_MAX] = {0};
    char allow[64];
    int status = 0;
    assert_ptr_equal(
            http_route_find(both, "GET", "/v1/things/all", params, &status, allow, sizeof allow), &any[2]);
    assert_null(params[0].name);
    assert_null(http_route_find(both, "DELETE", "/v1/things/all", params, &status, allow, sizeof allow));
    assert_int_equal(status, 405);
    assert_string_equal(allow, "GET");
    assert_null(http_route_find(both, "PUT", "/v1/things/a", params, &status, allow, sizeof allow));
    assert_string_equal(allow, "GET, DELETE");
}

static void routes_say_what_is_missing(void **state)
{
    struct http_param params[HTTP_PARAMS_MAX] = {0};
    char allow[64], path[400];
    int status = 0;
    static const char *const unknown[] = {"", "/", "/v1", "/v1/things/", "/v1/things//parts/x",
            "/v1/things/a/parts/", "/v1/things/a/parts/b/c", "/v1/thingsx"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_null(http_route_find(tables, "GET", unknown[i], params, &status, allow, sizeof allow));
        assert_int_equal(status, 404);
    }
    assert_null(http_route_find(tables, "PUT", "/v1/things", params, &status, allow, sizeof allow));
    assert_int_equal(status, 405);
    assert_string_equal(allow, "GET, POST");
    snprintf(path, sizeof path, "/v1/things/%0300d", 1); // longer than a parameter may be
    assert_null(http_route_find(tables, "DELETE", path, params, &status, allow, sizeof allow));
    assert_int_equal(status, 404);
}

static void errors_map_to_statuses(void **state)
{
    char code[64];
    bool retryable;
    assert_int_equal(http_route_status("volume", -ENOENT, code, sizeof code, &retryable), 404);
    assert_string_equal(code, "volume.not_found");
    assert_false(retryable);
    assert_int_equal(http_route_status("sandbox", -EBUSY, code, sizeof code, &retryable), 409);
    assert_string_equal(code, "sandbox.invalid_state");
    assert_int_equal(http_route_status("x", -ENOSPC, code, sizeof code, &retryable), 507);
    assert_string_equal(code, "capacity.storage");
    assert_int_equal(http_route_status("x", -ETIMEDOUT, code, sizeof code, &retryable), 503);
    assert_true(retryable);
    assert_int_equal(http_route_status("x", -EXDEV, code, sizeof code, &retryable), 500);
}

// ---- JSON ----

static json_t *parse(const char *text)
{
    json_t *json = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(json);
    return json;
}

static void fields_name_what_is_wrong(void **state)
{
    static const char *const known[] = {"a", "b", NULL};
    json_t *json = parse("{\"a\":1,\"colour\":2}");
    struct error err = {0};
    assert_int_equal(json_fields_check(json, known, &err), -EINVAL);
    assert_non_null(strstr(err.text, "colour"));
    assert_non_null(strstr(err.text, "a, b"));
    json_decref(json);

    json = parse(
            "{\"s\":\"x\",\"n\":5,\"f\":1.5,\"z\":\"a\\u0000b\",\"m\":{\"k\":1},\"nil\":null,\"big\":1e300}");
    const char *text = "before";
    const json_t *map;
    uint64_t number = 7, ms = 0;
    bool flag = true;
    assert_int_equal(json_fields_string(json, "none", &text, &err), 0);
    assert_int_equal(json_fields_string(json, "nil", &text, &err), 0);
    assert_string_equal(text, "before");
    assert_int_equal(json_fields_string(json, "s", &text, &err), 1);
    assert_string_equal(text, "x");
    assert_int_equal(json_fields_string(json, "n", &text, &err), -EINVAL);
    assert_non_null(strstr(err.text, "\"n\""));
    assert_int_equal(json_fields_string(json, "z", &text, &err), -EINVAL);
    assert_int_equal(json_fields_bool(json, "n", &flag, &err), -EINVAL);
    assert_int_equal(json_fields_uint(json, "f", 0, 9, &number, &err), -EINVAL);
    assert_int_equal(json_fields_uint(json, "n", 0, 4, &number, &err), -EINVAL);
    assert_int_equal(json_fields_uint(json, "n", 6, 9, &number, &err), -EINVAL);
    assert_int_equal(number, 7);
    assert_int_equal(json_fields_uint(json, "n", 0, 9, &number, &err), 1);
    assert_int_equal(number, 5);
    assert_int_equal(json_fields_seconds(json, "f", 10, &ms, &err), 1);
    assert_int_equal(ms, 1500);
    assert_int_equal(json_fields_seconds(json, "big", 86400, &ms, &err), -EINVAL);
    assert_int_equal(json_fields_string_map(json, "m", &map, &err), -EINVAL);
    assert_non_null(strstr(err.text, "\"k\""));
    json_decref(json);
}

static void text_is_always_utf8(void **state)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
            {"plain", "plain"}, {"\xc3\xa4", "\xc3\xa4"}, {"\xff", "\xef\xbf\xbd"},
            {"a\x80z", "a\xef\xbf\xbdz"}, {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"}, // overlong
            {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},               // surrogate
            {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
            {"\xe2\x94", "\xef\xbf\xbd\xef\xbf\xbd"}, // ends inside
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *json = json_fields_text(cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(json_string_value(json), cases[i].text);
        json_decref(json);
    }
    assert_int_equal(json_fields_utf8_whole("ab\xe2\x94", 4), 2);
    assert_int_equal(json_fields_utf8_whole("ab\xe2\x94\x80", 5), 5);
    assert_int_equal(json_fields_utf8_whole("\xf0\x9f\x98", 3), 0);
    assert_int_equal(json_fields_utf8_whole("a\x80\x80\x80\x80", 5), 5); // bad anyway: nothing to wait for
    assert_int_equal(json_fields_utf8_whole("", 0), 0);
}

// ---- the pipe ----

static void *write_much(void *context)
{
    char block[1000];
    for (unsigned i = 0; i < 1000; i++) {
        memset(block, (int)(i & 0xff), sizeof block);
        if (http_pipe_write(context, block, sizeof block, NULL, NULL) < 0)
            return NULL;
    }
    http_pipe_finish(context);
    return NULL;
}

static void a_pipe_carries_more_than_it_holds(void **state)
{
    struct http_pipe *pipe = http_pipe_create(777);
    pthread_t writer;
    char buffer[333];
    size_t total = 0;
    assert_int_equal(http_pipe_read(pipe, buffer, sizeof buffer, 1), -EAGAIN);
    assert_int_equal(pthread_create(&writer, NULL, write_much, pipe), 0);
    for (ssize_t got; (got = http_pipe_read(pipe, buffer, sizeof buffer, 0)) != 0;) {
        assert_true(got > 0);
        for (ssize_t i = 0; i < got; i++, total++)
            assert_int_equal((unsigned char)buffer[i], total / 1000 & 0xff);
    }
    assert_int_equal(total, 1000000);
    pthread_join(writer, NULL);
    http_pipe_destroy(pipe);

    pipe = http_pipe_create(10); // a writer that waits is set free by a break
    assert_int_equal(pthread_create(&writer, NULL, write_much, pipe), 0);
    assert_true(http_pipe_read(pipe, buffer, 1, 0) == 1);
    http_pipe_break(pipe);
    pthread_join(writer, NULL);
    assert_int_equal(http_pipe_read(pipe, buffer, 1, 0), -EPIPE);
    http_pipe_destroy(pipe);
}

struct question {
    unsigned asked, no; // how often it was, and how often the answer is no
};

static bool is_over(void *context)
{
    struct question *question = context;
    return question->asked++ >= question->no;
}

static void *read_all(void *context)
{
    char buffer[7];
    size_t *total = calloc(1, sizeof *total);
    for (ssize_t got; (got = http_pipe_read(context, buffer, sizeof buffer, 0)) > 0;)
        *total += (size_t)got;
    return total;
}

// Nobody reads: it waits as long as it is told to. What fits in is written in any case.
static void a_writer_that_waits_asks(void **state)
{
    struct http_pipe *pipe = http_pipe_create(10);
    struct question question = {.no = 3};
    char buffer[20] = "";
    assert_int_equal(http_pipe_write(pipe, "0123456789", 10, is_over, &question), 0);
    assert_int_equal(question.asked, 0);
    assert_int_equal(http_pipe_read(pipe, buffer, 5, 0), 5);
    assert_int_equal(http_pipe_write(pipe, "01234", 5, is_over, &question), 0);
    assert_int_equal(question.asked, 0);
    assert_int_equal(http_pipe_write(pipe, "x", 1, is_over, &question), -EPIPE);
    assert_int_equal(question.asked, 4);
    assert_int_equal(http_pipe_write(pipe, "x", 1, is_over, &question), -EPIPE);
    assert_int_equal(question.asked, 4);
    assert_int_equal(http_pipe_read(pipe, buffer, sizeof buffer, 0), -EPIPE);
    http_pipe_destroy(pipe);

    // The answer is no, and somebody reads: all arrives.
    pipe = http_pipe_create(10);
    question = (struct question){.no = UINT_MAX};
    pthread_t reader;
    size_t *total;
    assert_int_equal(pthread_create(&reader, NULL, read_all, pipe), 0);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(http_pipe_write(pipe, "0123456789abcde", 15, is_over, &question), 0);
    http_pipe_finish(pipe);
    pthread_join(reader, (void **)&total);
    assert_int_equal(*total, 15000);
    free(total);
    http_pipe_destroy(pipe);
}

// ---- the server ----

static void echo(struct http_request *request)
{
    struct error err;
    json_t *body;
    if (http_request_json(request, &body, &err) < 0)
        http_reply_failure(request, "thing", &err);
    else
        http_reply_json(request, 200,
                json_pack("{s:O, s:s}", "got", body, "name", http_request_param(request, "name")));
}

// Answers with twice the bytes that came, when all have come.
static void double_up(struct http_request *request)
{
    static char bytes[1000000];
    size_t size = 0;
    ssize_t got;
    while ((got = http_request_read(request, bytes + size, sizeof bytes - size)) > 0)
        size += (size_t)got;
    http_reply_begin(request, 200, "application/octet-stream", -1);
    if (got == 0 && http_reply_write(request, bytes, size) == 0)
        http_reply_write(request, bytes, size);
}

// Does not want the body.
static void refuse(struct http_request *request)
{
    char buffer[10];
    http_request_read(request, buffer, sizeof buffer);
    http_reply_error(request, 409, "thing.conflict", "not this");
    assert_int_equal(http_request_read(request, buffer, sizeof buffer), -EPIPE);
}

static void events(struct http_request *request)
{
    for (int i = 0; i < 3; i++)
        http_reply_event(request, "tick", json_pack("{s:i, s:s}", "i", i, "text", "a\nb"));
    struct error err;
    error_set(&err, -ENOENT, "there is no caf\xc3"); // cut in the middle of a letter
    http_reply_event_failure(request, "error", "thing", &err);
}

static void silent(struct http_request *request)
{
}

static void twice(struct http_request *request)
{
    http_reply_json(request, 200, json_pack("{s:i}", "n", 1));
    http_reply_error(request, 500, "internal.error", "too late");
}

static pthread_mutex_t gone_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gone_changed = PTHREAD_COND_INITIALIZER;
static int gone_count; // protected by gone_lock

static void wait_until_gone(struct http_request *request)
{
    http_reply_event(request, "ready", json_object());
    while (!http_request_wait_gone(request, 50))
        ;
    pthread_mutex_lock(&gone_lock);
    gone_count++;
    pthread_cond_broadcast(&gone_changed);
    pthread_mutex_unlock(&gone_lock);
}

static const struct http_route served[] = {
        {"POST", "/echo/{name}", 0, echo},
        {"POST", "/open/{name}", HTTP_OPEN, echo},
        {"POST", "/double", HTTP_STREAM, double_up},
        {"POST", "/refuse", HTTP_STREAM, refuse},
        {"GET", "/events", HTTP_STREAM, events},
        {"GET", "/silent", 0, silent},
        {"GET", "/twice", 0, twice},
        {"GET", "/gone", HTTP_STREAM, wait_until_gone},
        {0},
};
static const struct http_route *const served_tables[] = {served, NULL};

static int set_up(void **state)
{
    struct http_fixture *fixture = calloc(1, sizeof *fixture);
    http_fixture_start(fixture, "http", (struct http_server_config){.tables = served_tables});
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    http_fixture_stop(*state);
    free(*state);
    return 0;
}

// Sends all, reads until the other side closes. The result is malloc'ed.
static char *talk(const struct http_fixture *fixture, const char *head, const void *body, size_t size)
{
    int fd = http_fixture_connect(fixture);
    http_fixture_say(fd, head);
    if (size > 0) { // the answer may come before all is sent, and then the end
        int sent = unix_socket_send(fd, body, size, -1);
        assert_true(sent == 0 || sent == -EPIPE || sent == -ECONNRESET);
    }
    char *answer = http_fixture_hear(fd, NULL);
    close(fd);
    return answer;
}

static void expect(const struct http_fixture *fixture, const char *head, const char *body, const char *status,
        const char *text)
{
    char *answer = talk(fixture, head, body, body == NULL ? 0 : strlen(body));
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %s ", status);
    if (strncmp(answer, line, strlen(line)) != 0 || strstr(answer, text) == NULL)
        fail_msg("%s answered:\n%s\nexpected %s and %s", head, answer, line, text);
    assert_non_null(strstr(answer, "X-Request-Id: req_"));
    free(answer);
}

#define POST(path, length)                                                                                   \
    "POST " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " length "\r\n\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static void whole_calls(void **state)
{
    const struct http_fixture *fixture = *state;
    expect(fixture, POST("/echo/a%20b", "7"), "{\"x\":1}", "200", "{\"got\":{\"x\":1},\"name\":\"a b\"}");
    expect(fixture, POST("/echo/a", "0"), NULL, "200", "\"got\":{}");
    expect(fixture, POST("/open/a", "7"), "{\"x\":1}", "200", "\"got\":{}"); // kept for nobody
    expect(fixture, POST("/echo/a", "2"), "[]", "400", "must be a JSON object");
    expect(fixture, POST("/echo/a", "1"), "{", "400", "not valid JSON");
    expect(fixture, GET("/echo/a"), NULL, "405", "Allow: POST");
    expect(fixture, GET("/none"), NULL, "404", "route.not_found");
    expect(fixture, GET("/silent"), NULL, "500", "without an answer");
    expect(fixture, GET("/twice"), NULL, "200", "{\"n\":1}");
    expect(fixture, GET("/twice?a=%00"), NULL, "400", "parameter a holds a zero byte");
    expect(fixture, GET("/twice?b=1&b=2"), NULL, "400", "parameter b is given twice");
    expect(fixture, GET("/twice%00"), NULL, "400", "holds a zero byte (%00)");
    expect(fixture, GET("/echo/a%00b?c=1"), NULL, "400", "holds a zero byte (%00)");
}

static void too_large_a_body(void **state)
{
    size_t size = HTTP_JSON_MAX + 1;
    char *body = calloc(1, size), head[200];
    snprintf(head, sizeof head,
            "POST /echo/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", size);
    char *answer = talk(*state, head, body, size);
    assert_non_null(strstr(answer, "413"));
    assert_non_null(strstr(answer, "validation.too_large"));
    free(answer);
    free(body);
}

static void streams_in_both_directions(void **state)
{
    enum { SIZE = 900000 };
    char *body = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        body[i] = (char)('g' + i / 5000 % 20); // a to f also are chunk sizes
    char *answer = talk(*state, POST("/double", "900000"), body, SIZE);
    size_t letters = 0;
    char *data = strstr(answer, "\r\n\r\n");
    assert_non_null(data);
    for (char *c = data; *c != '\0'; c++)
        letters += *c >= 'g' && *c <= 'z';
    assert_int_equal(letters, 2 * SIZE);
    free(answer);
    answer = talk(*state, POST("/refuse", "900000"), body, SIZE);
    assert_non_null(strstr(answer, "thing.conflict"));
    free(answer);
    free(body);
}

static void events_are_one_block_each(void **state)
{
    char *answer = talk(*state, GET("/events"), NULL, 0);
    assert_non_null(strstr(answer, "text/event-stream"));
    unsigned blocks = 0;
    for (char *at = answer; (at = strstr(at, "event: tick\ndata: {")) != NULL; at++)
        blocks++;
    assert_int_equal(blocks, 3);
    assert_non_null(strstr(answer, "\"text\":\"a\\nb\""));
    assert_non_null(strstr(answer, "event: error\ndata: {\"code\":\"thing.not_found\""));
    free(answer);
}

static void wait_for_gone(int count)
{
    pthread_mutex_lock(&gone_lock);
    while (gone_count < count)
        pthread_cond_wait(&gone_changed, &gone_lock);
    pthread_mutex_unlock(&gone_lock);
}

static void a_handler_learns_that_its_client_left(void **state)
{
    char buffer[4096];
    int before = gone_count, fd = http_fixture_connect(*state);
    assert_int_equal(unix_socket_send(fd, GET("/gone"), strlen(GET("/gone")), -1), 0);
    assert_true(recv(fd, buffer, sizeof buffer, 0) > 0);
    close(fd);
    wait_for_gone(before + 1);
}

static void stopping_ends_streams(void **state)
{
    struct http_fixture *fixture = *state;
    char buffer[4096];
    int before = gone_count, fd = http_fixture_connect(fixture);
    assert_int_equal(unix_socket_send(fd, GET("/gone"), strlen(GET("/gone")), -1), 0);
    assert_true(recv(fd, buffer, sizeof buffer, 0) > 0);
    fixture->server = http_server_stop(fixture->server);
    wait_for_gone(before + 1);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(routes_find_by_method_and_segments),
            cmocka_unit_test(words_go_before_parameters),
            cmocka_unit_test(routes_say_what_is_missing),
            cmocka_unit_test(errors_map_to_statuses),
            cmocka_unit_test(fields_name_what_is_wrong),
            cmocka_unit_test(text_is_always_utf8),
            cmocka_unit_test(a_pipe_carries_more_than_it_holds),
            cmocka_unit_test(a_writer_that_waits_asks),
            cmocka_unit_test_setup_teardown(whole_calls, set_up, tear_down),
            cmocka_unit_test_setup_teardown(too_large_a_body, set_up, tear_down),
            cmocka_unit_test_setup_teardown(streams_in_both_directions, set_up, tear_down),
            cmocka_unit_test_setup_teardown(events_are_one_block_each, set_up, tear_down),
            cmocka_unit_test_setup_teardown(a_handler_learns_that_its_client_left, set_up, tear_down),
            cmocka_unit_test_setup_teardown(stopping_ends_streams, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
