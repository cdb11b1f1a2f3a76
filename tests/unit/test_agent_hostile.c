// SPDX-License-Identifier: Apache-2.0
// The client against a guest that lies: whatever it sends, calls end with an error and memory stays bounded.
#include "tests/unit/agent_raw.h"

#include <pthread.h>
#include <unistd.h>

enum lie {
    OTHER_VERSION,
    SHORT_ACK,
    FLOOD,
    GARBAGE_RESULT,
    POSITIVE_STATUS,
    SHORT_FIELDS,
    LOST_FRAME,
    WILD_TEXT,
    WILD_ENTRY,
    HANG_UP,
    NOISE,
    NOTHING
};

static int flooded[2]; // closed for writing when a flood came to its end

struct liar {
    char path[100];
    int listener;
    enum lie lie;
    pthread_t thread;
};

static void answer_hello(struct raw *raw, enum lie lie)
{
    struct agent_frame hello;
    struct agent_builder fields = {0};
    assert_true(raw_next(raw, &hello, PATIENCE_MS));
    raw->epoch = raw->decoder.epoch = hello.epoch;
    agent_builder_u32(&fields, lie == OTHER_VERSION ? 77 : AGENT_VERSION);
    agent_builder_u32(&fields, 0);
    if (lie != SHORT_ACK)
        agent_builder_string(&fields, "9.9\x1B[2J\xFF");
    raw_send(raw, AGENT_HELLO_ACK, 0, 0, fields.bytes, fields.size);
    agent_builder_free(&fields);
}

static void send_result(struct raw *raw, uint32_t stream, uint32_t status, const char *sentence)
{
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, status);
    agent_builder_string(&fields, sentence);
    raw_send(raw, AGENT_RESULT, 0, stream, fields.bytes, fields.size);
    agent_builder_free(&fields);
}

static void tell(struct raw *raw, enum lie lie, uint32_t stream)
{
    static uint8_t bytes[AGENT_PAYLOAD_MAX];
    memset(bytes, 0xF7, sizeof bytes);
    if (lie == NOTHING) { // frames without a byte, which no window holds back
        uint8_t frame[AGENT_HEADER_BYTES];
        for (int i = 0; i < 100000; i++) {
            size_t size = raw_frame(raw, AGENT_DATA, 1 << 8, stream, NULL, 0, frame);
            if (send(raw->fd, frame, size, MSG_NOSIGNAL) < 0) {
                close(flooded[1]);
                return;
            }
        }
        fail_msg("100000 empty frames that nobody took were accepted");
    }
    if (lie == FLOOD || lie == NOISE) {
        // Until the client has had enough, which closes the connection (noise never does: its call times
        // out).
        uint8_t frame[AGENT_HEADER_BYTES + sizeof bytes];
        for (int i = 0; i < 200; i++) {
            size_t size = lie == NOISE
                                  ? sizeof bytes
                                  : raw_frame(raw, AGENT_DATA, 1 << 8, stream, bytes, sizeof bytes, frame);
            if (send(raw->fd, lie == NOISE ? bytes : frame, size, MSG_NOSIGNAL) < 0) {
                if (lie == FLOOD)
                    close(flooded[1]);
                return;
            }
        }
    }
    if (lie == FLOOD)
        fail_msg("6 MB that nobody took were accepted");
    if (lie == GARBAGE_RESULT)
        raw_send(raw, AGENT_RESULT, 0, stream, bytes, 1000);
    if (lie == POSITIVE_STATUS)
        send_result(raw, stream, 7, "");
    if (lie == SHORT_FIELDS)
        send_result(raw, stream, 0, "");
    if (lie == WILD_TEXT)
        send_result(raw, stream, (uint32_t)-EIO, "\x1B]0;title\x07 \xFF\xFE and \xE2\x82\xAC");
    if (lie == LOST_FRAME) {
        raw->sequence++;
        send_result(raw, stream, 0, "");
    }
    if (lie == WILD_ENTRY)
        raw_send(raw, AGENT_DATA, 1 << 8, stream, bytes, 64);
}

static void *lie_main(void *argument)
{
    struct liar *liar = argument;
    struct raw raw = {.fd = accept(liar->listener, NULL, NULL)};
    struct agent_frame frame;
    assert_true(raw.fd >= 0);
    assert_int_equal(agent_decoder_init(&raw.decoder, true), 0);
    answer_hello(&raw, liar->lie);
    if (liar->lie != OTHER_VERSION && liar->lie != SHORT_ACK) {
        assert_true(raw_next(&raw, &frame, PATIENCE_MS));
        assert_int_equal(frame.type, AGENT_REQUEST);
        tell(&raw, liar->lie, frame.stream);
    }
    // Until the client is gone.
    while (liar->lie != HANG_UP && recv(raw.fd, &frame, sizeof frame, 0) > 0)
        ;
    raw_close(&raw);
    return NULL;
}

static int meet(struct liar *liar, enum lie lie, struct agent **ret_agent, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *liar = (struct liar){.lie = lie, .listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    snprintf(liar->path, sizeof liar->path, "/tmp/ramet-liar-%d.sock", (int)getpid());
    strcpy(address.sun_path, liar->path);
    unlink(liar->path);
    assert_int_equal(bind(liar->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(liar->listener, 4), 0);
    assert_int_equal(pthread_create(&liar->thread, NULL, lie_main, liar), 0);
    return agent_connect(liar->path, PATIENCE_MS, ret_agent, err);
}

static void part(struct liar *liar, struct agent *agent)
{
    agent_disconnect(agent);
    pthread_join(liar->thread, NULL);
    close(liar->listener);
    unlink(liar->path);
}

static void versions_that_do_not_fit(void **state)
{
    struct liar liar;
    struct agent *agent;
    struct error err;
    assert_int_equal(meet(&liar, OTHER_VERSION, &agent, &err), -EPROTO);
    assert_non_null(strstr(err.text, "9.9?[2J?"));
    part(&liar, NULL);
    assert_int_equal(meet(&liar, SHORT_ACK, &agent, &err), -EPROTO);
    part(&liar, NULL);
}

static void never(void *context, int stream, const void *bytes, size_t size)
{
}

static int exec_with(enum lie lie, struct error *err)
{
    struct liar liar;
    struct agent *agent;
    struct agent_exec_result result;
    struct agent_exec exec = {.shell_command = "true", .on_output = never};
    assert_int_equal(meet(&liar, lie, &agent, err), 0);
    int status = agent_exec_run(agent, &exec, &result, err);
    part(&liar, agent);
    return status;
}

static void results_that_cannot_be_read(void **state)
{
    struct error err;
    assert_int_equal(exec_with(GARBAGE_RESULT, &err), -EPROTO);
    assert_int_equal(exec_with(POSITIVE_STATUS, &err), -EPROTO);
    assert_int_equal(exec_with(SHORT_FIELDS, &err), -EPROTO);
    assert_int_equal(exec_with(LOST_FRAME, &err), -EPROTO);
    assert_int_equal(exec_with(HANG_UP, &err), -EPIPE);
}

static void sentences_are_made_harmless(void **state)
{
    struct error err;
    assert_int_equal(exec_with(WILD_TEXT, &err), -EIO);
    assert_string_equal(err.text, "?]0;title? ?? and \xE2\x82\xAC");
}

// Takes nothing until the guest was stopped, so that all that it sends would have to be kept.
static void wait_for_the_end(void *context, int stream, const void *bytes, size_t size)
{
    char byte;
    assert_int_equal(read(flooded[0], &byte, 1), 0);
}

static void refused_as_a_flood(enum lie lie)
{
    struct liar liar;
    struct agent *agent;
    struct agent_exec_result result;
    struct agent_exec exec = {.shell_command = "true", .on_output = wait_for_the_end};
    struct error err;
    assert_int_equal(pipe(flooded), 0);
    assert_int_equal(meet(&liar, lie, &agent, &err), 0);
    assert_int_equal(agent_exec_run(agent, &exec, &result, &err), -EPROTO);
    part(&liar, agent);
    close(flooded[0]);
}

static void more_than_the_window_is_refused(void **state)
{
    refused_as_a_flood(FLOOD);
}

static void empty_frames_without_end_are_refused(void **state)
{
    refused_as_a_flood(NOTHING);
}

static void each(void *context, const char *name, const struct agent_stat *stat)
{
    fail();
}

static void folders_with_wild_lengths(void **state)
{
    struct liar liar;
    struct agent *agent;
    struct error err;
    assert_int_equal(meet(&liar, WILD_ENTRY, &agent, &err), 0);
    assert_int_equal(agent_file_list(agent, "/", each, NULL, &err), -EPROTO);
    part(&liar, agent);
}

static int each_change(void *context, int kind, const char *path, const char *other)
{
    fail();
    return 0;
}

static void events_with_wild_lengths(void **state)
{
    struct liar liar;
    struct agent *agent;
    struct error err;
    const struct agent_watch watch = {.path = "/", .each = each_change};
    assert_int_equal(meet(&liar, WILD_ENTRY, &agent, &err), 0);
    assert_int_equal(agent_watch(agent, &watch, &err), -EPROTO);
    assert_non_null(strstr(err.text, "no event of a watch"));
    part(&liar, agent);
}

static void noise_is_no_answer(void **state)
{
    struct liar liar;
    struct agent *agent;
    struct error err;
    assert_int_equal(meet(&liar, NOISE, &agent, &err), 0);
    assert_int_equal(agent_ping(agent, 300, &err), -ETIMEDOUT);
    part(&liar, agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(versions_that_do_not_fit),
            cmocka_unit_test(results_that_cannot_be_read),
            cmocka_unit_test(sentences_are_made_harmless),
            cmocka_unit_test(more_than_the_window_is_refused),
            cmocka_unit_test(empty_frames_without_end_are_refused),
            cmocka_unit_test(folders_with_wild_lengths),
            cmocka_unit_test(events_with_wild_lengths),
            cmocka_unit_test(noise_is_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
