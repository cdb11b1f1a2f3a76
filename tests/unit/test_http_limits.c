// SPDX-License-Identifier: Apache-2.0
// What the HTTP server does about clients that are slow, silent, too many or gone, about streams that wait,
// and what its hooks see.
#include "tests/unit/http_fixture.h"
#include "vmglue/http_metrics.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { CONNECTIONS = 4 };

struct fixture {
    struct http_fixture http;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int released, broken, given, afters, after_status; // protected by lock
    bool after_had_answer;                             // protected by lock
    int allowed;                                       // protected by lock: events that may be given
    int asked;                                         // protected by lock: whether what is served is over
    atomic_bool over;
};

static struct fixture *fixture_of(struct http_request *request)
{
    return http_request_context(request);
}

static void bump(struct fixture *fixture, int *count)
{
    pthread_mutex_lock(&fixture->lock);
    (*count)++;
    pthread_cond_broadcast(&fixture->changed);
    pthread_mutex_unlock(&fixture->lock);
}

static void await(struct fixture *fixture, const int *count, int least)
{
    pthread_mutex_lock(&fixture->lock);
    while (*count < least)
        pthread_cond_wait(&fixture->changed, &fixture->lock);
    pthread_mutex_unlock(&fixture->lock);
}

// ---- handlers ----

static void quick(struct http_request *request)
{
    http_reply_json(request, 200, json_pack("{s:s}", "method", http_request_method(request)));
}

static void flood(struct http_request *request)
{
    char block[1 << 16];
    memset(block, 'x', sizeof block);
    http_reply_begin(request, 200, "application/octet-stream", -1);
    while (http_reply_write(request, block, sizeof block) == 0)
        ;
    bump(fixture_of(request), &fixture_of(request)->broken);
}

static void take(struct http_request *request)
{
    char buffer[1000];
    ssize_t got;
    while ((got = http_request_read(request, buffer, sizeof buffer)) > 0)
        ;
    bump(fixture_of(request), &fixture_of(request)->broken);
    http_reply_empty(request, got == 0 ? 204 : 400);
}

static bool is_over(void *context)
{
    struct fixture *fixture = context;
    bump(fixture, &fixture->asked);
    return fixture->over;
}

// As handlers that use a sandbox.
static void until(struct http_request *request)
{
    http_request_until(request, is_over, fixture_of(request));
    if (strcmp(http_request_method(request), "POST") == 0)
        take(request);
    else if (strcmp(http_request_path(request), "/until/flood") == 0)
        flood(request);
    else
        http_reply_event(request, "last", json_pack("{s:s}", "text", "words"));
    http_request_until(request, NULL, NULL);
}

static bool give(struct http_request *request, void *context, unsigned wait_ms)
{
    struct fixture *fixture = context;
    pthread_mutex_lock(&fixture->lock);
    int number = fixture->given < fixture->allowed ? fixture->given++ : -1;
    pthread_mutex_unlock(&fixture->lock);
    if (number < 0) {
        poll(NULL, 0, wait_ms > 10 ? 10 : (int)wait_ms);
        return true;
    }
    char *text = malloc(20001); // more than one block
    memset(text, 'a' + number, 20000);
    text[20000] = '\0';
    int r = http_reply_event(request, "tick", json_pack("{s:i, s:s}", "n", number, "text", text));
    free(text);
    return r == 0 && number != 2;
}

static void release(void *context)
{
    struct fixture *fixture = context;
    bump(fixture, &fixture->released);
}

static void source(struct http_request *request)
{
    http_reply_events_from(request, give, fixture_of(request), release);
}

static void break_off(struct http_request *request)
{
    http_reply_begin(request, 200, "text/plain", -1);
}

static void silent(struct http_request *request)
{
}

// As the proxy does when a guest's server answers before it has the body.
static void early(struct http_request *request)
{
    char byte;
    http_request_read(request, &byte, 1);
    if (strcmp(http_request_path(request), "/early/flood") == 0) {
        http_request_until(request, is_over, fixture_of(request));
        flood(request);
        http_request_until(request, NULL, NULL);
        return;
    }
    if (strcmp(http_request_path(request), "/early/stream") != 0) {
        http_reply_error(request, 413, "validation.too_large", "no more of it");
        return;
    }
    http_reply_begin(request, 200, "text/plain", -1);
    http_reply_write(request, "one", 3);
    http_reply_write(request, "two", 3);
}

// Until its client has closed: only the sending side, or altogether.
static void stay(struct http_request *request)
{
    bool altogether = strcmp(http_request_path(request), "/stay/gone") == 0;
    http_request_stay(request);
    bump(fixture_of(request), &fixture_of(request)->given);
    while (!(altogether ? http_request_is_cut(request) : http_request_is_gone(request)))
        http_request_wait_gone(request, 10);
    http_reply_json(request, 200, json_pack("{s:b}", "cut", (int)http_request_is_cut(request)));
    bump(fixture_of(request), &fixture_of(request)->broken);
}

static const struct http_route *choose(void *context, struct http_request *request)
{
    static const struct http_route early_route = {"*", "/early", HTTP_STREAM, early},
                                   stay_route = {"*", "/stay", HTTP_STREAM, stay};
    const char *path = http_request_path(request);
    return strncmp(path, "/early/", 7) == 0  ? &early_route
           : strncmp(path, "/stay/", 6) == 0 ? &stay_route
                                             : NULL;
}

static const struct http_route served[] = {
        {"GET", "/quick", 0, quick},
        {"POST", "/quick", 0, quick},
        {"GET", "/flood", HTTP_STREAM, flood},
        {"POST", "/take", HTTP_STREAM, take},
        {"GET", "/until/{what}", HTTP_STREAM, until},
        {"POST", "/until/{what}", HTTP_STREAM, until},
        {"GET", "/source", 0, source},
        {"POST", "/made", HTTP_CREATES, quick},
        {"POST", "/silent", HTTP_CREATES, silent},
        {"POST", "/stream", HTTP_CREATES | HTTP_STREAM, break_off},
        {0},
};
static const struct http_route *const served_tables[] = {served, NULL};

static bool before(void *context, struct http_request *request, const void *body, size_t size)
{
    return true;
}

static void after(void *context, struct http_request *request, int status, const void *answer, size_t size)
{
    struct fixture *fixture = context;
    pthread_mutex_lock(&fixture->lock);
    fixture->afters++;
    fixture->after_status = status;
    fixture->after_had_answer = answer != NULL && size > 0;
    pthread_mutex_unlock(&fixture->lock);
}

static const struct http_limits PATIENT = {.connections = CONNECTIONS,
        .head_secs = HTTP_FIXTURE_HANG_MS / 1000,
        .body_secs = HTTP_FIXTURE_HANG_MS / 1000,
        .stalled_secs = HTTP_FIXTURE_HANG_MS / 1000};

// Only the limit that a test is about is short: a slow machine needs more than that for all else.
static int set_up_with(void **state, struct http_limits limits)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    pthread_mutex_init(&fixture->lock, NULL);
    pthread_cond_init(&fixture->changed, NULL);
    http_fixture_start(&fixture->http, "http-limits",
            (struct http_server_config){.tables = served_tables,
                    .context = fixture,
                    .before = before,
                    .after = after,
                    .choose = choose,
                    .limits = limits});
    *state = fixture;
    return 0;
}

static int set_up(void **state)
{
    return set_up_with(state, PATIENT);
}

static int set_up_for_heads(void **state)
{
    struct http_limits limits = PATIENT;
    limits.head_secs = 1;
    return set_up_with(state, limits);
}

static int set_up_for_bodies(void **state)
{
    struct http_limits limits = PATIENT;
    limits.body_secs = 1;
    return set_up_with(state, limits);
}

static int set_up_for_stalled(void **state)
{
    struct http_limits limits = PATIENT;
    limits.stalled_secs = 1;
    return set_up_with(state, limits);
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    http_fixture_stop(&fixture->http);
    pthread_mutex_destroy(&fixture->lock);
    pthread_cond_destroy(&fixture->changed);
    free(fixture);
    return 0;
}

static int connect_to(const struct fixture *fixture)
{
    return http_fixture_connect(&fixture->http);
}

static void expect(int fd, const char *until, const char *text)
{
    char *answer = http_fixture_hear(fd, until);
    if (strstr(answer, text) == NULL)
        fail_msg("expected %s in:\n%.2000s", text, answer);
    free(answer);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

// The answer to one call. When there are too many connections, one whose client is slow to ask is shut: then
// another one asks. malloc'ed.
static char *ask(const struct fixture *fixture, const char *until)
{
    for (;;) {
        int fd = connect_to(fixture);
        unix_socket_send(fd, GET("/quick"), strlen(GET("/quick")), -1);
        char *answer = http_fixture_hear(fd, until);
        close(fd);
        if (answer[0] != '\0')
            return answer;
        free(answer);
    }
}

static void heads_that_drip_in_end(void **state)
{
    int silent_fd = connect_to(*state), half = connect_to(*state), idle = -1;
    char byte;
    unix_socket_send(
            half, "GET /quick HTTP/1.1\r\nHo", 23, -1); // too late on a slow machine: it is closed then
    for (bool heard = false; !heard;) {
        if (idle >= 0)
            close(idle);
        idle = connect_to(*state);
        unix_socket_send(idle, GET("/quick"), strlen(GET("/quick")), -1);
        char *answer = http_fixture_hear(idle, "\"method\"");
        heard = strstr(answer, " 200 ") != NULL;
        free(answer);
    }
    assert_true(recv(silent_fd, &byte, 1, 0) <= 0);
    assert_true(recv(half, &byte, 1, 0) <= 0);
    assert_true(recv(idle, &byte, 1, 0) <= 0); // nothing asked for a while
    close(silent_fd);
    close(half);
    close(idle);
}

static void bodies_that_stop_end(void **state)
{
    struct fixture *fixture = *state;
    int whole = connect_to(fixture), streamed = connect_to(fixture);
    char byte;
    http_fixture_say(whole, "POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
    http_fixture_say(streamed, "POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc");
    assert_true(recv(whole, &byte, 1, 0) <= 0);
    assert_true(recv(streamed, &byte, 1, 0) <= 0);
    await(fixture, &fixture->broken, 1); // its handler knows that it has not got all
    close(whole);
    close(streamed);
}

// What answers a call without its body is not held up by one that drips in.
static void bodies_for_nobody_end(void **state)
{
    int fd = connect_to(*state);
    char byte;
    ssize_t got = -1;
    http_fixture_say(fd, "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n");
    for (unsigned i = 0; i < HTTP_FIXTURE_HANG_MS / 100 && got < 0; i++) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 100) > 0)
            got = recv(fd, &byte, 1, 0) < 0 ? 0 : 1; // it is closed, whatever was said before
        else
            send(fd, "x", 1, MSG_NOSIGNAL);
    }
    assert_true(got >= 0);
    close(fd);
}

// A client that has not said all, and waits, hears what is answered to what it has said.
static void proxied_answers_come_while_bodies_do(void **state)
{
    static const struct {
        const char *request, *status, *end;
    } rows[] = {
            {"POST /early/whole HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", " 413 ",
                    "no more of it\"}"},
            {"POST /early/whole HTTP/1.0\r\nContent-Length: 1000000\r\n\r\nx", " 413 ", "no more of it\"}"},
            {"HEAD /early/whole HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx", " 413 ",
                    "\r\n\r\n"},
            {"POST /early/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx", " 200 ",
                    "\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"},
            {"POST /early/stream HTTP/1.0\r\nContent-Length: 1000000\r\n\r\nx", " 200 ", "\r\n\r\nonetwo"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int fd = connect_to(*state);
        http_fixture_say(fd, rows[i].request);
        char *answer = http_fixture_hear(fd, NULL); // and that is its end
        size_t size = strlen(answer), end = strlen(rows[i].end);
        if (strstr(answer, rows[i].status) == NULL || strstr(answer, "Connection: close") == NULL ||
                size < end || strcmp(answer + size - end, rows[i].end) != 0)
            fail_msg("%zu: %s", i, answer);
        free(answer);
        close(fd);
    }
}

// Whoever closes the sending side is still there.
static void half_closed_clients_are_answered(void **state)
{
    struct fixture *fixture = *state;
    int fd = connect_to(fixture), gone = connect_to(fixture);
    http_fixture_say(fd, GET("/stay/half"));
    shutdown(fd, SHUT_WR);
    expect(fd, NULL, "{\"cut\":false}");
    close(fd);
    http_fixture_say(gone, GET("/stay/gone"));
    await(fixture, &fixture->given, 2); // one that closes before its request is read makes none
    close(gone);
    await(fixture, &fixture->broken, 2);
}

static void who_takes_nothing_is_dropped(void **state)
{
    struct fixture *fixture = *state;
    int fd = connect_to(fixture);
    http_fixture_say(fd, GET("/flood"));
    await(fixture, &fixture->broken, 1); // without one byte having been read
    close(fd);
}

// What is served has ended, and its end waits for the handler, which waits for the client.
static void who_waits_for_a_client_hears_of_the_end(void **state)
{
    static const char *const requests[] = {GET("/until/flood"),
            "POST /early/flood HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx",
            "POST /until/take HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"};
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        int fd = connect_to(fixture);
        fixture->over = false;
        fixture->asked = 0; // no handler runs
        http_fixture_say(fd, requests[i]);
        await(fixture, &fixture->asked, 2); // it goes on waiting
        fixture->over = true;
        await(fixture, &fixture->broken, i + 1);
        char *answer = http_fixture_hear(fd, NULL); // closed, in the middle of an answer
        size_t size = strlen(answer);
        assert_true(size < 5 || strcmp(answer + size - 5, "0\r\n\r\n") != 0);
        free(answer);
        close(fd);
    }
    int fd = connect_to(fixture); // nobody waits: the last words come whole
    http_fixture_say(fd, GET("/until/words"));
    expect(fd, "0\r\n\r\n", "event: last\ndata: {\"text\":\"words\"}\n\n");
    close(fd);
}

static void crowds_are_told(void **state)
{
    struct fixture *fixture = *state;
    int fds[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = connect_to(fixture);
        http_fixture_say(fds[i], GET("/source"));
        free(http_fixture_hear(fds[i], "\r\n\r\n"));
    }
    char *answer = ask(fixture, NULL); // and is closed
    assert_non_null(strstr(answer, " 503 "));
    assert_non_null(strstr(answer, "capacity.connections"));
    assert_non_null(strstr(answer, "Retry-After: 1"));
    free(answer);
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
    await(fixture, &fixture->released, CONNECTIONS); // those who left were noticed
    for (bool in = false; !in;) {
        answer = ask(fixture, "}");
        in = strstr(answer, " 200 ") != NULL;
        free(answer);
    }
}

static void a_source_gives_its_events(void **state)
{
    struct fixture *fixture = *state;
    int fd = connect_to(fixture);
    http_fixture_say(fd, GET("/source"));
    expect(fd, "\r\n\r\n", "text/event-stream"); // the head comes before any event
    pthread_mutex_lock(&fixture->lock);
    fixture->allowed = 3;
    pthread_mutex_unlock(&fixture->lock);
    char *answer = http_fixture_hear(fd, "0\r\n\r\n"); // ends as it should, the connection stays
    unsigned letters[3] = {0};
    for (char *at = answer; *at != '\0'; at++)
        if (at[0] == at[1] && *at >= 'a' && *at <= 'c')
            letters[*at - 'a']++;
    for (int i = 0; i < 3; i++)
        assert_true(letters[i] > 19900);
    free(answer);
    await(fixture, &fixture->released, 1);
    http_fixture_say(fd, GET("/quick"));
    expect(fd, "}", " 200 ");
    http_fixture_say(fd, "HEAD /source HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(fd, "\r\n\r\n", " 200 ");
    await(fixture, &fixture->released, 2);
    close(fd);
}

static void stopping_ends_sources(void **state)
{
    struct fixture *fixture = *state;
    int fd = connect_to(fixture);
    http_fixture_say(fd, GET("/source"));
    free(http_fixture_hear(fd, "\r\n\r\n"));
    fixture->http.server = http_server_stop(fixture->http.server);
    await(fixture, &fixture->released, 1);
    close(fd);
}

static void after_sees_every_end(void **state)
{
    static const struct {
        const char *path;
        int status;
        bool answer;
    } cases[] = {{"/made", 200, true}, {"/silent", 500, true}, {"/stream", 200, false}};
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        char head[200];
        int fd = connect_to(fixture);
        snprintf(head, sizeof head,
                "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
                cases[i].path);
        http_fixture_say(fd, head);
        free(http_fixture_hear(fd, NULL));
        close(fd);
        pthread_mutex_lock(&fixture->lock);
        assert_int_equal(fixture->afters, i + 1);
        assert_int_equal(fixture->after_status, cases[i].status);
        assert_int_equal(fixture->after_had_answer, cases[i].answer);
        pthread_mutex_unlock(&fixture->lock);
    }
}

static void refusals_come_before_bodies(void **state)
{
    static const char *const heads[] = {
            "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n",
            "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
            "POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"};
    for (size_t i = 0; i < 3; i++) {
        int fd = connect_to(*state);
        http_fixture_say(fd, heads[i]);
        expect(fd, "}}", " 404 ");
        close(fd);
    }
    int fd = connect_to(*state); // a small one is taken, so that the connection can go on
    http_fixture_say(fd, "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" GET("/quick"));
    expect(fd, "\"GET\"", " 404 ");
    close(fd);
}

static void metrics_add_up(void **state)
{
    struct http_metrics *metrics = http_metrics_create();
    char *text = NULL, pattern[3000][8];
    size_t size;
    http_metrics_begin(metrics);
    http_metrics_end(metrics, "GET", "/a/{b}", 200, 1500000, false);
    http_metrics_begin(metrics);
    http_metrics_end(metrics, "GET", "/a/{b}", 404, 2000000000, false);
    http_metrics_begin(metrics);
    http_metrics_end(metrics, "GET", "/a/{b}", 200, 99000000000, true);
    http_metrics_begin(metrics);
    http_metrics_end(metrics, "BREW", NULL, 404, 1, false);
    for (int i = 0; i < 3000; i++) { // a guest's calls, in methods that nobody knows
        snprintf(pattern[i], sizeof pattern[i], "A\"%d", i);
        http_metrics_begin(metrics);
        http_metrics_end(metrics, pattern[i], "/u/{token}", 200, 1, true);
    }
    for (int i = 0; i < 3000; i++) { // more than there is room for
        snprintf(pattern[i], sizeof pattern[i], "/%d", i);
        http_metrics_begin(metrics);
        http_metrics_end(metrics, "PUT", pattern[i], 200, 1, true);
    }
    FILE *out = open_memstream(&text, &size);
    http_metrics_print(metrics, out);
    fclose(out);
    assert_non_null(strstr(text, "requests_total{method=\"GET\",route=\"/a/{b}\",status=\"200\"} 2\n"));
    assert_non_null(strstr(text, "requests_total{method=\"\",route=\"\",status=\"404\"} 1\n"));
    assert_non_null(
            strstr(text, "requests_total{method=\"other\",route=\"/u/{token}\",status=\"200\"} 3000\n"));
    assert_non_null(strstr(text, "bucket{method=\"GET\",route=\"/a/{b}\",le=\"0.001\"} 0\n"));
    assert_non_null(strstr(text, "bucket{method=\"GET\",route=\"/a/{b}\",le=\"0.0025\"} 1\n"));
    assert_non_null(strstr(text, "bucket{method=\"GET\",route=\"/a/{b}\",le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(text, "duration_seconds_sum{method=\"GET\",route=\"/a/{b}\"} 2.001500\n"));
    assert_non_null(strstr(text, "ramet_http_requests_in_flight 0\n"));
    assert_non_null(strstr(text, "ramet_http_requests_uncounted_total 1980\n"));
    free(text);
    http_metrics_destroy(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(heads_that_drip_in_end, set_up_for_heads, tear_down),
            cmocka_unit_test_setup_teardown(bodies_that_stop_end, set_up_for_bodies, tear_down),
            cmocka_unit_test_setup_teardown(bodies_for_nobody_end, set_up_for_bodies, tear_down),
            cmocka_unit_test_setup_teardown(who_takes_nothing_is_dropped, set_up_for_stalled, tear_down),
            cmocka_unit_test_setup_teardown(proxied_answers_come_while_bodies_do, set_up, tear_down),
            cmocka_unit_test_setup_teardown(half_closed_clients_are_answered, set_up, tear_down),
            cmocka_unit_test_setup_teardown(who_waits_for_a_client_hears_of_the_end, set_up, tear_down),
            cmocka_unit_test_setup_teardown(crowds_are_told, set_up, tear_down),
            cmocka_unit_test_setup_teardown(a_source_gives_its_events, set_up, tear_down),
            cmocka_unit_test_setup_teardown(stopping_ends_sources, set_up, tear_down),
            cmocka_unit_test_setup_teardown(after_sees_every_end, set_up, tear_down),
            cmocka_unit_test_setup_teardown(refusals_come_before_bodies, set_up, tear_down),
            cmocka_unit_test(metrics_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
