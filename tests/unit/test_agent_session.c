// SPDX-License-Identifier: Apache-2.0
// Sessions that end in the middle of things, and peers that do not keep to the protocol.
#include "tests/unit/agent_raw.h"

#include "vmglue/agent_connection.h"

#include <pthread.h>

static void wait_for_file(struct guest *guest, const char *name, const char *content)
{
    char path[200], text[100] = "";
    snprintf(path, sizeof path, "%s/%s", guest->directory, name);
    for (int tries = 0; tries < PATIENCE_MS; tries++) {
        int fd = open(path, O_RDONLY);
        ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        text[got > 0 ? got : 0] = 0;
        if (strcmp(text, content) == 0)
            return;
        usleep(1000);
    }
    fail_msg("%s has \"%s\", not \"%s\"", path, text, content);
}

static void new_epoch_ends_streams_and_spares_processes(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    struct agent_frame frame;
    char command[300];
    lend(guest, &raw, 101);
    // More output than all windows and pipes hold, so that it stands when the session ends.
    snprintf(command, sizeof command,
            "for i in $(seq 200000); do echo line $i; done; echo survived > %s/survivor", guest->directory);
    raw_shell(&raw, 1, command);
    raw_await(&raw, AGENT_DATA, 1);
    raw_hello(&raw, 102);
    raw_simple(&raw, 1, AGENT_PING);
    assert_true(raw_next(&raw, &frame, PATIENCE_MS));
    assert_int_equal(frame.type, AGENT_RESULT); // not a byte of the old stream 1 under the new epoch
    assert_int_equal(frame.sequence, 1);
    assert_false(raw_next(&raw, &frame, 50));
    wait_for_file(guest, "survivor", "survived\n");
    take_back(guest, &raw);
}

static void frames_of_a_dead_session_do_nothing(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    lend(guest, &raw, 201);
    raw_hello(&raw, 202);
    raw.epoch = 201;
    raw.sequence = 1;
    char command[200];
    snprintf(command, sizeof command, "touch %s/ghost", guest->directory);
    raw_shell(&raw, 1, command);
    raw.epoch = 202;
    raw.sequence = 1;
    raw_shell(&raw, 2, "true");
    assert_int_equal(raw_status(&(struct agent_frame){
                             .payload = raw_await(&raw, AGENT_RESULT, 2).payload, .size = 64}),
            0);
    snprintf(command, sizeof command, "%s/ghost", guest->directory);
    assert_int_equal(access(command, F_OK), -1);
    take_back(guest, &raw);
}

static void lost_frames_break_the_session(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    struct agent_frame frame;
    lend(guest, &raw, 301);
    raw_simple(&raw, 1, AGENT_PING);
    raw_await(&raw, AGENT_RESULT, 1);
    raw.sequence++;
    raw_simple(&raw, 2, AGENT_PING);
    raw_await(&raw, AGENT_BROKEN, 0);
    raw_simple(&raw, 3, AGENT_PING);
    assert_false(raw_next(&raw, &frame, 50));
    raw_hello(&raw, 302);
    raw_simple(&raw, 4, AGENT_PING);
    raw_await(&raw, AGENT_RESULT, 4);
    take_back(guest, &raw);
}

static void unknown_requests_are_answered(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    lend(guest, &raw, 401);
    raw_simple(&raw, 1, 9999);
    struct agent_frame frame = raw_await(&raw, AGENT_RESULT, 1);
    assert_int_equal(raw_status(&frame), -ENOSYS);
    raw_send(&raw, AGENT_REQUEST, 0, 2, "", 0);
    frame = raw_await(&raw, AGENT_RESULT, 2);
    assert_int_equal(raw_status(&frame), -ENOSYS);
    for (uint32_t operation = AGENT_EXEC; operation < AGENT_OPERATION_END; operation++) {
        if (operation == AGENT_THAW || operation == AGENT_POWEROFF || operation == AGENT_JOB_LIST)
            continue;                                // has no fields
        raw_simple(&raw, 10 + operation, operation); // each without its fields
        frame = raw_await(&raw, AGENT_RESULT, 10 + operation);
        assert_int_equal(raw_status(&frame), operation == AGENT_SYNC ? 0 : -EINVAL);
    }
    raw_send(&raw, 4711, 0, 5, "new kind of frame", 17);
    raw_send(&raw, AGENT_DATA, AGENT_FLAG_END, 12345, "nobody's", 8);
    raw_send(&raw, AGENT_WINDOW, 0xFF00, 12345, "x", 1);
    raw_send(&raw, AGENT_CANCEL, 0, 12345, "", 0);
    raw_simple(&raw, 100, AGENT_PING);
    raw_await(&raw, AGENT_RESULT, 100);
    take_back(guest, &raw);
}

static void a_host_that_ignores_windows_is_stopped(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    static uint8_t bytes[AGENT_PAYLOAD_MAX];
    struct agent_builder fields = {0};
    lend(guest, &raw, 501);
    agent_builder_u32(&fields, AGENT_EXEC);
    agent_builder_u32(&fields, AGENT_EXEC_SHELL | AGENT_EXEC_STDIN);
    agent_builder_u64(&fields, 0);
    agent_builder_string(&fields, "");
    agent_builder_string(&fields, "");
    agent_builder_u32(&fields, 1);
    agent_builder_string(&fields, "sleep 1000");
    agent_builder_u32(&fields, 0);
    raw_request(&raw, 1, &fields);
    for (int i = 0; i < 20; i++)
        raw_send(&raw, AGENT_DATA, 0, 1, bytes, sizeof bytes);
    struct agent_frame frame = raw_await(&raw, AGENT_RESULT, 1);
    struct agent_cursor result = agent_cursor_over(frame.payload, frame.size);
    agent_cursor_u32(&result);
    agent_cursor_string(&result);
    assert_int_equal(agent_cursor_u32(&result), 137);
    take_back(guest, &raw);
}

static void upload_of_an_ended_session_never_appears(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    char path[200], command[300];
    struct agent_builder fields = {0};
    lend(guest, &raw, 601);
    snprintf(path, sizeof path, "%s/upload", guest->directory);
    agent_builder_u32(&fields, AGENT_FILE_WRITE);
    agent_builder_string(&fields, path);
    agent_builder_u32(&fields, 0);
    raw_request(&raw, 1, &fields);
    raw_send(&raw, AGENT_DATA, 0, 1, "half", 4);
    take_back(guest, &raw);
    snprintf(command, sizeof command, "while ls -a %s | grep -q 'upload'; do sleep 0.02; done; echo clean",
            guest->directory);
    assert_shell(guest, command, 0, "clean\n");
}

// ---- A connection that was cut inside a frame ----

struct relay {
    int listener, guest_fd;
};

// Stands between client and guest, as the VMM's port does: the guest sees one unbroken stream of bytes.
static void *relay_main(void *argument)
{
    struct relay *relay = argument;
    static char buffer[65536];
    int host_fd = accept(relay->listener, NULL, NULL);
    for (;;) {
        struct pollfd polls[2] = {
                {.fd = host_fd, .events = POLLIN}, {.fd = relay->guest_fd, .events = POLLIN}};
        poll(polls, 2, -1);
        for (int i = 0; i < 2; i++) {
            ssize_t got = polls[i].revents ? recv(polls[i].fd, buffer, sizeof buffer, 0) : -1;
            if (got == 0) {
                close(host_fd);
                return NULL;
            }
            if (got > 0 && send(polls[!i].fd, buffer, (size_t)got, MSG_NOSIGNAL) < 0 && errno != EPIPE)
                return NULL;
        }
    }
}

static void half_a_frame_before_the_client_came(void **state)
{
    struct guest *guest = *state;
    static uint8_t bytes[AGENT_HEADER_BYTES + AGENT_PAYLOAD_MAX], payload[AGENT_PAYLOAD_MAX];
    const size_t cuts[] = {3, AGENT_HEADER_BYTES, AGENT_HEADER_BYTES + 9, sizeof bytes - 1};
    memset(payload, 'f', sizeof payload);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct raw raw;
        struct relay relay;
        struct agent *agent;
        struct error err;
        pthread_t thread;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        lend(guest, &raw, 700 + i);
        raw_frame(&raw, AGENT_REQUEST, AGENT_FLAG_MORE, 1, payload, sizeof payload, bytes);
        raw_write(&raw, bytes, cuts[i]);
        snprintf(address.sun_path, sizeof address.sun_path, "%s/relay%zu.sock", guest->directory, i);
        relay = (struct relay){
                .listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), .guest_fd = raw.fd};
        assert_int_equal(bind(relay.listener, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(listen(relay.listener, 4), 0);
        assert_int_equal(pthread_create(&thread, NULL, relay_main, &relay), 0);
        if (agent_connect(address.sun_path, PATIENCE_MS, &agent, &err) < 0)
            fail_msg("after %zu bytes of a frame: %s", cuts[i], err.text);
        assert_int_equal(agent_ping(agent, 0, &err), 0);
        agent_disconnect(agent);
        pthread_join(thread, NULL);
        close(relay.listener);
        take_back(guest, &raw);
    }
}

static void calls_end_when_the_guest_goes(void **state)
{
    struct guest other;
    struct error err;
    guest_start(&other, 0);
    struct agent_exec exec = {.shell_command = "kill -KILL $PPID; sleep 1000"};
    struct agent_exec_result result;
    assert_false(agent_is_broken(other.agent));
    assert_int_equal(agent_exec_run(other.agent, &exec, &result, &err), -EPIPE);
    assert_true(agent_is_broken(other.agent));
    assert_int_equal(agent_ping(other.agent, 0, &err), -EPIPE);
    agent_disconnect(other.agent);
    assert_int_equal(waitpid(other.pid, NULL, 0), other.pid);
    assert_int_equal(agent_connect(other.socket_path, 500, &other.agent, &err), -EPIPE);
    assert_non_null(strstr(err.text, other.socket_path));
    char command[300];
    snprintf(command, sizeof command,
            "d=$(ls -d /sys/fs/cgroup/ramet-test-%d /sys/fs/cgroup/*/ramet-test-%d 2>/dev/null); [ -z \"$d\" "
            "] || "
            "{ echo 1 > $d/user/cgroup.kill; while ! rmdir $d/user/exec-* $d/user $d 2>/dev/null; do sleep "
            "0.02; done; }; rm -rf '%s'",
            (int)other.pid, (int)other.pid, other.directory);
    assert_int_equal(system(command), 0);
}

// A guest of version 1, by hand: answers HELLO, and says that it does not know what is asked.
static void *old_guest(void *argument)
{
    struct raw raw = {.fd = accept(*(int *)argument, NULL, NULL)};
    struct agent_frame frame;
    assert_int_equal(agent_decoder_init(&raw.decoder, true), 0);
    assert_true(raw_next(&raw, &frame, PATIENCE_MS));
    assert_int_equal(frame.type, AGENT_HELLO);
    struct agent_cursor hello = agent_cursor_over(frame.payload, frame.size);
    assert_int_equal(agent_cursor_u32(&hello), 1);
    raw.epoch = raw.decoder.epoch = frame.epoch;
    struct agent_builder ack = {0};
    agent_builder_u32(&ack, 1);
    agent_builder_u32(&ack, 0);
    agent_builder_string(&ack, "0.1");
    raw_send(&raw, AGENT_HELLO_ACK, 0, 0, ack.bytes, ack.size);
    agent_builder_free(&ack);
    struct agent_builder pong = {0};
    agent_builder_u32(&pong, 0);
    agent_builder_string(&pong, "");
    uint32_t stream = raw_await(&raw, AGENT_REQUEST, 1).stream;
    raw_send(&raw, AGENT_RESULT, 0, stream, pong.bytes, pong.size);
    agent_builder_free(&pong);
    assert_false(raw_next(&raw, &frame, 100)); // nothing else was asked of it
    raw_close(&raw);
    return NULL;
}

static void an_agent_of_an_older_snapshot_is_asked_what_it_knows(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct agent *agent;
    struct agent_job job;
    struct agent_pty *pty;
    struct error err;
    pthread_t thread;
    int fd;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/old.sock", ((struct guest *)*state)->directory);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(pthread_create(&thread, NULL, old_guest, &listener), 0);
    assert_int_equal(agent_connect(address.sun_path, PATIENCE_MS, &agent, &err), 0);
    assert_int_equal(agent_version(agent), 1);
    assert_int_equal(agent_dial(agent, "tcp:80", 0, &fd, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "older release"));
    assert_int_equal(agent_job_start(agent, &(struct agent_exec){.shell_command = "true"}, NULL, &job, &err),
            -EOPNOTSUPP);
    assert_int_equal(agent_pty_open(agent, &(struct agent_exec){0}, 24, 80, NULL, &pty, &err), -EOPNOTSUPP);
    assert_int_equal(agent_ping(agent, 0, &err), 0);
    pthread_join(thread, NULL);
    agent_disconnect(agent);
    close(listener);
}

static void a_daemon_of_an_older_release_is_served(void **state)
{
    struct guest *guest = *state;
    static const uint8_t versions[8] = {1, 0, 0, 0, 1, 0, 0, 0};
    struct raw raw;
    lend(guest, &raw, 801);
    raw.epoch = raw.decoder.epoch = 802;
    raw.sequence = 0;
    raw_send(&raw, AGENT_HELLO, 0, 0, versions, sizeof versions);
    struct agent_frame ack = raw_await(&raw, AGENT_HELLO_ACK, 0);
    struct agent_cursor fields = agent_cursor_over(ack.payload, ack.size);
    assert_int_equal(agent_cursor_u32(&fields), 1);
    raw_shell(&raw, 1, "true");
    struct agent_frame result = raw_await(&raw, AGENT_RESULT, 1);
    assert_int_equal(raw_status(&result), 0);
    take_back(guest, &raw);
}

// A command that ended in time, whose output is taken after that time. A slow machine may not let it end:
// then it is tried with more.
static bool times_out_when_its_output_waits(struct guest *guest, unsigned limit_ms)
{
    static const uint8_t window[4] = {0, 0, 4, 0};
    struct raw raw;
    lend(guest, &raw, 803 + limit_ms);
    // More than a window, and less than that and a pipe.
    raw_shell_limited(&raw, 1, "head -c 300000 /dev/zero", limit_ms);
    raw_shell_limited(&raw, 2, "sleep 1000", limit_ms);
    bool ended = false;
    raw_await_noting(&raw, AGENT_RESULT, 2, 1, &ended); // so the other's time is over too
    if (ended) {                                        // before it had written as much as waits
        take_back(guest, &raw);
        return true;
    }
    raw_send(&raw, AGENT_WINDOW, 1 << AGENT_FLAG_CHANNEL_SHIFT, 1, window, sizeof window);
    struct agent_frame result = raw_await(&raw, AGENT_RESULT, 1);
    struct agent_cursor fields = agent_cursor_over(result.payload, result.size);
    assert_int_equal(agent_cursor_u32(&fields), 0);
    agent_cursor_string(&fields);
    agent_cursor_u32(&fields); // exit code
    agent_cursor_u32(&fields); // signal
    bool timed_out = agent_cursor_u32(&fields) & AGENT_EXEC_TIMED_OUT;
    assert_false(fields.bad);
    take_back(guest, &raw);
    return timed_out;
}

static void a_time_limit_ends_with_its_command(void **state)
{
    unsigned limit_ms = 500;
    while (times_out_when_its_output_waits(*state, limit_ms))
        assert_true((limit_ms *= 2) < 20000);
}

static int no_log(void *context, int stream, uint64_t offset, const void *bytes, size_t size)
{
    return 0;
}

// Quiet for longer than the patience, and no failure. A slow machine is silent for a moment, too: then it is
// tried with more patience.
static void quiet_for_long_but_alive(struct guest *guest)
{
    struct agent_exec_result result;
    struct error err;
    char command[60];
    struct agent_exec exec = {.shell_command = command};
    int r = -ETIMEDOUT;
    for (unsigned ms = 300; r == -ETIMEDOUT && ms < PATIENCE_MS / 4; ms *= 4) {
        agent_set_patience(guest->agent, ms / 3, ms);
        snprintf(command, sizeof command, "sleep %u.%u; echo done", 4 * ms / 1000, 4 * ms / 100 % 10);
        r = agent_exec_run(guest->agent, &exec, &result, &err);
    }
    agent_set_patience(guest->agent, PATIENCE_MS, PATIENCE_MS);
    assert_int_equal(r, 0);
    assert_string_equal(result.out, "done\n");
    agent_exec_result_free(&result);
}

static void V07_a_silent_agent_ends_calls_that_have_no_limit(void **state)
{
    struct guest other;
    struct error err;
    struct agent_exec_result result;
    struct agent_job job;
    guest_start(&other, 0);
    quiet_for_long_but_alive(&other);
    struct agent_exec exec = {.shell_command = "sleep 1000"};
    assert_int_equal(agent_job_start(other.agent, &exec, NULL, &job, &err), 0);
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    agent_set_patience(other.agent, 100, 300);
    assert_int_equal(agent_exec_run(other.agent, &exec, &result, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.text, "has not answered"));
    struct agent_job_logs logs = {.id = job.id, .follow = true, .sink = no_log};
    assert_int_equal(agent_job_logs(other.agent, &logs, &job, &err), -ETIMEDOUT);
    agent_set_patience(other.agent, PATIENCE_MS, PATIENCE_MS);
    assert_int_equal(kill(other.pid, SIGCONT), 0);
    // What was given up is not there any more when it wakes up; the next call is answered.
    assert_shell(&other, "echo alive", 0, "alive\n");
    guest_stop(&other);
}

static void silence_is_a_timeout(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct agent *agent;
    struct error err;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/deaf.sock", ((struct guest *)*state)->directory);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(agent_connect(address.sun_path, 400, &agent, &err), -ETIMEDOUT);
    close(listener);
}

// Guest and host are one machine here, so the offset is nothing but the doubt.
static void V04_the_offset_of_a_right_clock_is_within_its_doubt(void **state)
{
    struct guest *guest = *state;
    const int64_t between_two_clocks = 1000000;
    for (unsigned i = 0; i < 10; i++) {
        struct error err;
        int64_t offset;
        uint64_t doubt;
        assert_int_equal(agent_clock_offset(guest->agent, 0, &offset, &doubt, &err), 0);
        assert_in_range((offset < 0 ? -offset : offset), 0, (int64_t)doubt + between_two_clocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(new_epoch_ends_streams_and_spares_processes),
            cmocka_unit_test(frames_of_a_dead_session_do_nothing),
            cmocka_unit_test(lost_frames_break_the_session),
            cmocka_unit_test(unknown_requests_are_answered),
            cmocka_unit_test(a_host_that_ignores_windows_is_stopped),
            cmocka_unit_test(upload_of_an_ended_session_never_appears),
            cmocka_unit_test(half_a_frame_before_the_client_came),
            cmocka_unit_test(calls_end_when_the_guest_goes),
            cmocka_unit_test(an_agent_of_an_older_snapshot_is_asked_what_it_knows),
            cmocka_unit_test(a_daemon_of_an_older_release_is_served),
            cmocka_unit_test(V07_a_silent_agent_ends_calls_that_have_no_limit),
            cmocka_unit_test(silence_is_a_timeout),
            cmocka_unit_test(V04_the_offset_of_a_right_clock_is_within_its_doubt),
            cmocka_unit_test(a_time_limit_ends_with_its_command),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
