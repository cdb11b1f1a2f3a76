// SPDX-License-Identifier: Apache-2.0
// The QMP client against a scripted peer: answers out of order, events, silence, refusals, rubbish, and the
// end.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/qmp.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 120000 }; // only ends a test that would hang

static const char greeting[] = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";

// The peer: greets, then hands each command's name and id to `answer`, which writes what it likes.
struct peer {
    char directory[32], path[64];
    int listen_fd, fd, passed_fd;
    pthread_t thread;
    void (*answer)(struct peer *peer, const char *command, json_int_t id);
    const char *first_words;
    json_int_t held_id;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    char events[256]; // names seen by the client, "." for its end
};

static void say(struct peer *peer, const char *text)
{
    assert_int_equal(send(peer->fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void say_answer(struct peer *peer, json_int_t id, const char *fields)
{
    char text[256];
    snprintf(text, sizeof text, "{%s, \"id\": %lld}\r\n", fields, (long long)id);
    say(peer, text);
}

// A command that was not waited for may come in one receive with the next.
static void answer_all(struct peer *peer, const char *text, size_t size)
{
    json_error_t at;
    for (size_t done = 0; done < size; done += (size_t)at.position) {
        JSON_AUTO json_t *command = json_loadb(text + done, size - done, JSON_DISABLE_EOF_CHECK, &at);
        if (command == NULL)
            return; // the end of a line
        json_int_t id = json_integer_value(json_object_get(command, "id"));
        const char *name = json_string_value(json_object_get(command, "execute"));
        if (strcmp(name, "qmp_capabilities") == 0)
            say_answer(peer, id, "\"return\": {}");
        else
            peer->answer(peer, name, id);
    }
}

static void *peer_main(void *argument)
{
    struct peer *peer = argument;
    peer->fd = accept(peer->listen_fd, NULL, NULL);
    if (peer->first_words != NULL)
        say(peer, peer->first_words);
    char text[4096];
    for (;;) {
        int passed = -1;
        ssize_t got = unix_socket_receive(peer->fd, text, sizeof text - 1, 0, &passed);
        if (got <= 0)
            break;
        if (passed >= 0)
            peer->passed_fd = passed;
        answer_all(peer, text, (size_t)got);
    }
    close(peer->fd);
    return NULL;
}

static void on_event(void *context, const char *name, const json_t *data)
{
    struct peer *peer = context;
    pthread_mutex_lock(&peer->lock);
    strcat(peer->events, name != NULL ? name : ".");
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

static void peer_start(struct peer *peer, void (*answer)(struct peer *, const char *, json_int_t))
{
    *peer = (struct peer){.answer = answer, .first_words = greeting, .fd = -1, .passed_fd = -1};
    pthread_mutex_init(&peer->lock, NULL);
    pthread_cond_init(&peer->changed, NULL);
    strcpy(peer->directory, "/tmp/qmp-test-XXXXXX");
    assert_non_null(mkdtemp(peer->directory));
    snprintf(peer->path, sizeof peer->path, "%s/qmp.sock", peer->directory);
    assert_int_equal(unix_socket_listen(peer->path, SOCK_STREAM, 0600, &peer->listen_fd, NULL), 0);
}

static struct qmp *peer_connect(struct peer *peer)
{
    struct qmp *qmp = NULL;
    struct error err;
    pthread_create(&peer->thread, NULL, peer_main, peer);
    if (qmp_connect(peer->path, PATIENCE_MS, on_event, peer, &qmp, &err) < 0)
        fail_msg("%s", err.text);
    return qmp;
}

static void peer_end(struct peer *peer, struct qmp *qmp)
{
    qmp_close(qmp);
    pthread_join(peer->thread, NULL);
    close(peer->listen_fd);
    unlink(peer->path);
    rmdir(peer->directory);
}

// ---- Answers ----

static void answer_echo(struct peer *peer, const char *command, json_int_t id)
{
    if (strcmp(command, "refuse") == 0)
        say_answer(peer, id, "\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}");
    else if (strcmp(command, "noisy") == 0) {
        // An event before, an answer for nobody, and the answer in two pieces.
        say(peer, "{\"event\": \"STOP\", \"timestamp\": {}}\r\n{\"return\": {\"n\": 1}, \"id\": 999}\r\n");
        say(peer, "{\"return\": {\"n\"");
        char rest[64];
        snprintf(rest, sizeof rest, ": 7}, \"id\": %lld}\r\n", (long long)id);
        say(peer, rest);
    } else if (strcmp(command, "late") == 0) {
        peer->held_id = id;
    } else if (strcmp(command, "after-late") == 0) {
        say_answer(peer, peer->held_id, "\"return\": {\"n\": 1}");
        say_answer(peer, id, "\"return\": {\"n\": 2}");
    } else if (strcmp(command, "hang-up") == 0) {
        say(peer, "{\"event\": \"SHUTDOWN\"}\r\n");
        shutdown(peer->fd, SHUT_RDWR);
    } else if (strcmp(command, "rubbish") == 0) {
        say(peer, "rubbish\r\n");
    } else {
        say_answer(peer, id, "\"return\": {\"n\": 5}");
    }
}

static json_int_t number(const json_t *answer)
{
    return json_integer_value(json_object_get(answer, "n"));
}

static void test_answer(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    JSON_AUTO json_t *answer = NULL;
    assert_int_equal(qmp_execute(qmp, "plain", json_pack("{s:i}", "a", 1), PATIENCE_MS, &answer, NULL), 0);
    assert_int_equal(number(answer), 5);
    peer_end(&peer, qmp);
}

static void test_refusal_has_the_peers_words(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    struct error err;
    assert_int_equal(qmp_execute(qmp, "refuse", NULL, PATIENCE_MS, NULL, &err), -EREMOTEIO);
    assert_non_null(strstr(err.text, "no such thing"));
    assert_non_null(strstr(err.text, "refuse"));
    peer_end(&peer, qmp);
}

static void test_events_come_before_the_answer_after_them(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    JSON_AUTO json_t *answer = NULL;
    assert_int_equal(qmp_execute(qmp, "noisy", NULL, PATIENCE_MS, &answer, NULL), 0);
    assert_int_equal(number(answer), 7);
    assert_string_equal(peer.events, "STOP");
    peer_end(&peer, qmp);
}

static void test_late_answer_goes_to_nobody(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    struct error err;
    assert_int_equal(qmp_execute(qmp, "late", NULL, 50, NULL, &err), -ETIMEDOUT);
    JSON_AUTO json_t *answer = NULL;
    assert_int_equal(qmp_execute(qmp, "after-late", NULL, PATIENCE_MS, &answer, NULL), 0);
    assert_int_equal(number(answer), 2);
    peer_end(&peer, qmp);
}

static void test_descriptor_goes_along(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    assert_int_equal(qmp_execute_fd(qmp, "getfd", json_pack("{s:s}", "fdname", "x"), pipe_fds[1], PATIENCE_MS,
                             NULL, NULL),
            0);
    close(pipe_fds[1]);
    assert_true(peer.passed_fd >= 0);
    assert_int_equal(write(peer.passed_fd, "y", 1), 1);
    char byte = 0;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(pipe_fds[0]);
    close(peer.passed_fd);
    peer_end(&peer, qmp);
}

static void test_end_of_connection(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    struct error err;
    assert_int_equal(qmp_execute(qmp, "hang-up", NULL, PATIENCE_MS, NULL, &err), -EPIPE);
    assert_int_equal(qmp_wait_closed(qmp, PATIENCE_MS), 0);
    assert_string_equal(peer.events, "SHUTDOWN.");
    assert_int_equal(qmp_execute(qmp, "plain", NULL, PATIENCE_MS, NULL, &err), -EPIPE);
    peer_end(&peer, qmp);
}

static void test_rubbish_ends_the_connection(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    struct qmp *qmp = peer_connect(&peer);
    struct error err;
    assert_int_equal(qmp_execute(qmp, "rubbish", NULL, PATIENCE_MS, NULL, &err), -EPIPE);
    peer_end(&peer, qmp);
}

static void test_silent_peer(void **state)
{
    struct peer peer;
    peer_start(&peer, answer_echo);
    peer.first_words = NULL;
    pthread_create(&peer.thread, NULL, peer_main, &peer);
    struct qmp *qmp = NULL;
    struct error err;
    assert_int_equal(qmp_connect(peer.path, 50, on_event, &peer, &qmp, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "did not greet"));
    peer_end(&peer, NULL);
}

static void test_nobody_listens(void **state)
{
    struct qmp *qmp = NULL;
    struct error err;
    assert_int_equal(qmp_connect("/nonexistent/qmp.sock", 50, NULL, NULL, &qmp, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/qmp.sock"));
}

enum { CALLERS = 8, CALLS = 200 };

static void *call_often(void *argument)
{
    for (int i = 0; i < CALLS; i++) {
        json_t *answer = NULL;
        if (qmp_execute(argument, "plain", NULL, PATIENCE_MS, &answer, NULL) != 0 || number(answer) != 5)
            return "wrong";
        json_decref(answer);
    }
    return NULL;
}

// Commands of several threads may arrive in one receive; this peer splits lines.
static void *line_peer_main(void *argument)
{
    struct peer *peer = argument;
    peer->fd = accept(peer->listen_fd, NULL, NULL);
    say(peer, greeting);
    FILE *stream = fdopen(dup(peer->fd), "r");
    for (;;) {
        JSON_AUTO json_t *command = json_loadf(stream, JSON_DISABLE_EOF_CHECK, NULL);
        if (command == NULL)
            break;
        say_answer(peer, json_integer_value(json_object_get(command, "id")), "\"return\": {\"n\": 5}");
    }
    fclose(stream);
    close(peer->fd);
    return NULL;
}

static void test_many_callers(void **state)
{
    struct peer peer;
    peer_start(&peer, NULL);
    struct qmp *qmp = NULL;
    pthread_create(&peer.thread, NULL, line_peer_main, &peer);
    assert_int_equal(qmp_connect(peer.path, PATIENCE_MS, NULL, NULL, &qmp, NULL), 0);
    pthread_t callers[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&callers[i], NULL, call_often, qmp);
    for (int i = 0; i < CALLERS; i++) {
        void *wrong = NULL;
        pthread_join(callers[i], &wrong);
        assert_null(wrong);
    }
    peer_end(&peer, qmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_answer),
            cmocka_unit_test(test_refusal_has_the_peers_words),
            cmocka_unit_test(test_events_come_before_the_answer_after_them),
            cmocka_unit_test(test_late_answer_goes_to_nobody),
            cmocka_unit_test(test_descriptor_goes_along),
            cmocka_unit_test(test_end_of_connection),
            cmocka_unit_test(test_rubbish_ends_the_connection),
            cmocka_unit_test(test_silent_peer),
            cmocka_unit_test(test_nobody_listens),
            cmocka_unit_test(test_many_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
