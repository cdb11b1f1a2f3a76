// SPDX-License-Identifier: Apache-2.0
// Sessions that end in the middle of things, freezing, and the step after a fork.
#include "tests/unit/agent_raw.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void wait_for_file(struct guest *guest, const char *name, const char *content)
{
    char path[200], text[100] = "";
    snprintf(path, sizeof path, "%s/%s", guest->directory, name);
    for (int tries = 0; tries < 20000; tries++) {
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

// The fixture's own connection makes way for a hand-made one.
static void lend(struct guest *guest, struct raw *raw, uint64_t epoch)
{
    guest->agent = agent_disconnect(guest->agent);
    raw_open(raw, guest->socket_path, epoch);
}

static void take_back(struct guest *guest, struct raw *raw)
{
    struct error err;
    if (raw != NULL)
        raw_close(raw);
    if (agent_connect(guest->socket_path, 20000, &guest->agent, &err) < 0)
        fail_msg("%s", err.text);
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
    assert_true(raw_next(&raw, &frame, 20000));
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
    for (uint32_t operation = AGENT_EXEC; operation < AGENT_POWEROFF; operation++) {
        if (operation == AGENT_THAW)
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
        if (agent_connect(address.sun_path, 20000, &agent, &err) < 0)
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
    assert_int_equal(agent_exec_run(other.agent, &exec, &result, &err), -EPIPE);
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

// ---- Freezing ----

static void start_counter(struct guest *guest)
{
    char command[300];
    snprintf(command, sizeof command,
            "cd %s; (echo $BASHPID > ticker; while :; do echo >> ticks; sleep 0.001; done) > /dev/null 2>&1 "
            "& echo",
            guest->directory);
    assert_shell(guest, command, 0, "\n");
}

static off_t ticks(struct guest *guest)
{
    char path[200];
    struct stat st;
    snprintf(path, sizeof path, "%s/ticks", guest->directory);
    return stat(path, &st) < 0 ? 0 : st.st_size;
}

static void wait_for_ticks(struct guest *guest, off_t more_than)
{
    for (int tries = 0; tries < 20000 && ticks(guest) <= more_than; tries++)
        usleep(1000);
    assert_true(ticks(guest) > more_than);
}

static void assert_standing(struct guest *guest)
{
    off_t before = ticks(guest);
    usleep(100000);
    assert_int_equal(ticks(guest), before);
}

static void stop_counter(struct guest *guest)
{
    char command[300];
    snprintf(command, sizeof command, "cd %s; kill -9 $(cat ticker); rm ticks ticker; echo stopped",
            guest->directory);
    assert_shell(guest, command, 0, "stopped\n");
}

static void freeze_and_thaw(void **state)
{
    struct guest *guest = *state;
    struct error err;
    if (!have_cgroup(guest))
        skip();
    start_counter(guest);
    wait_for_ticks(guest, 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(agent_freeze(guest->agent, 10000, &err), 0);
        assert_standing(guest);
        assert_int_equal(agent_freeze(guest->agent, 1000, &err), -EBUSY);
        assert_int_equal(agent_thaw(guest->agent, &err), 0);
        wait_for_ticks(guest, ticks(guest));
    }
    stop_counter(guest);
}

static void *exec_while_frozen(void *argument)
{
    assert_shell(argument, "echo through", 0, "through\n");
    return argument;
}

static void calls_wait_while_frozen(void **state)
{
    struct guest *guest = *state;
    struct error err;
    pthread_t threads[3];
    if (!have_cgroup(guest))
        skip();
    assert_int_equal(agent_freeze(guest->agent, 10000, &err), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, exec_while_frozen, guest), 0);
    assert_int_equal(agent_ping(guest->agent, 100, &err), -ETIMEDOUT);
    assert_int_equal(agent_thaw(guest->agent, &err), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(agent_ping(guest->agent, 0, &err), 0);
}

static void the_answer_to_freeze_is_the_last_frame(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    struct agent_frame frame;
    if (!have_cgroup(guest))
        skip();
    lend(guest, &raw, 801);
    raw_shell(&raw, 1, "yes");
    raw_shell(&raw, 2, "sleep 0.05");
    raw_await(&raw, AGENT_DATA, 1);
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, AGENT_FREEZE);
    agent_builder_u64(&fields, 10000);
    raw_request(&raw, 3, &fields);
    // Credit for the flood just when it is to be silent.
    raw_send(&raw, AGENT_WINDOW, 1 << AGENT_FLAG_CHANNEL_SHIFT, 1, "\0\0\0\1", 4);
    frame = raw_await(&raw, AGENT_RESULT, 3);
    assert_int_equal(raw_status(&frame), 0);
    assert_false(raw_next(&raw, &frame, 300));
    raw_simple(&raw, 4, AGENT_THAW);
    raw_await(&raw, AGENT_RESULT, 4);
    bool flood = false, ended = false;
    while (!flood || !ended) { // the source's streams go on
        assert_true(raw_next(&raw, &frame, 20000));
        flood = flood || (frame.type == AGENT_DATA && frame.stream == 1);
        ended = ended || (frame.type == AGENT_RESULT && frame.stream == 2);
    }
    raw_send(&raw, AGENT_CANCEL, 0, 1, "", 0);
    take_back(guest, &raw);
}

// A process that waits inside write() for a page that never comes cannot be frozen, only killed.
static int stand_in_the_kernel(const char *mark)
{
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC), out[2];
    struct uffdio_api api = {.api = UFFD_API};
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
            .range = {.start = (uintptr_t)page, .len = 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0 || ioctl(uffd, UFFDIO_REGISTER, &range) < 0 ||
            pipe(out) < 0)
        return 77;
    FILE *file = fopen(mark, "we");
    if (file == NULL || fprintf(file, "%d\n", (int)getpid()) < 0 || fclose(file) != 0)
        return 1;
    return write(out[1], page, 1) == 1;
}

static void freeze_that_cannot_be_changes_nothing(void **state)
{
    struct guest *guest = *state;
    struct error err = {0};
    char self[PATH_MAX] = "", command[PATH_MAX + 400];
    if (!have_cgroup(guest))
        skip();
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "(%s --stand %s/standing; echo $? > %s/stood) > /dev/null 2>&1 & echo",
            self, guest->directory, guest->directory);
    assert_shell(guest, command, 0, "\n");
    snprintf(command, sizeof command,
            "cd %s; until [ -s standing ] && grep -q handle_userfault /proc/$(cat standing)/wchan || [ -s "
            "stood ]; do sleep 0.05; done; cat stood 2>/dev/null",
            guest->directory);
    struct agent_exec_result result = shell(guest, command);
    bool possible = strcmp(result.out, "77\n") != 0;
    agent_exec_result_free(&result);
    if (!possible) {
        print_message("skipped: no userfaultfd here\n");
        skip();
    }
    start_counter(guest);
    assert_int_equal(agent_freeze(guest->agent, 200, &err), -ETIMEDOUT);
    if (strstr(err.text, "test_agent") == NULL)
        fail_msg("\"%s\" does not name the process", err.text);
    wait_for_ticks(guest, ticks(guest));
    stop_counter(guest);
    snprintf(command, sizeof command, "kill -9 $(cat %s/standing); echo on", guest->directory);
    assert_shell(guest, command, 0, "on\n");
    assert_int_equal(agent_freeze(guest->agent, 10000, &err), 0);
    assert_int_equal(agent_thaw(guest->agent, &err), 0);
}

// ---- After a fork ----

static struct agent_identity identity(const char *machine_id, const char *hostname)
{
    struct agent_identity identity = {.seed = "not so random, but not zero"};
    snprintf(identity.machine_id, sizeof identity.machine_id, "%s", machine_id);
    snprintf(identity.hostname, sizeof identity.hostname, "%s", hostname);
    return identity;
}

static void child_gets_its_identity_and_goes_on(void **state)
{
    struct guest *guest = *state;
    struct error err;
    if (!have_cgroup(guest))
        skip();
    start_counter(guest);
    wait_for_ticks(guest, 0);
    assert_int_equal(agent_freeze(guest->agent, 10000, &err), 0);
    // As in a child: a new connection finds it frozen, and nothing can run before the step.
    guest->agent = agent_disconnect(guest->agent);
    take_back(guest, NULL);
    assert_true(agent_was_frozen(guest->agent));
    struct agent_exec_result result;
    assert_int_equal(
            agent_exec_run(guest->agent, &(struct agent_exec){.shell_command = "true"}, &result, &err),
            -EBUSY);
    assert_standing(guest);
    struct agent_identity child = identity("00112233445566778899aabbccddeeff", "child-7");
    assert_int_equal(agent_after_fork(guest->agent, &child, 0, &err), 0);
    wait_for_ticks(guest, ticks(guest));
    char command[300];
    snprintf(command, sizeof command,
            "cd %s; hostname; cat machine-id hostname; grep -c child-7 hosts; wc -c < ramet/generation",
            guest->directory);
    assert_shell(guest, command, 0, "child-7\n00112233445566778899aabbccddeeff\nchild-7\n1\n33\n");
    child = identity("ffeeddccbbaa99887766554433221100", "other");
    snprintf(command, sizeof command, "cd %s; cp ramet/generation before", guest->directory);
    assert_shell(guest, command, 0, "");
    assert_int_equal(agent_after_fork(guest->agent, &child, 0, &err), 0);
    snprintf(command, sizeof command,
            "cd %s; cat machine-id; grep -c child-7 hosts; grep -c other hosts; cmp -s before "
            "ramet/generation; echo $?",
            guest->directory);
    assert_shell(guest, command, 0, "ffeeddccbbaa99887766554433221100\n0\n1\n1\n");
    stop_counter(guest);
}

static void a_step_that_fails_leaves_everything_frozen(void **state)
{
    struct guest *guest = *state;
    struct error err;
    char path[200];
    if (!have_cgroup(guest))
        skip();
    start_counter(guest);
    wait_for_ticks(guest, 0);
    assert_int_equal(agent_freeze(guest->agent, 10000, &err), 0);
    snprintf(path, sizeof path, "%s/machine-id", guest->directory);
    unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    struct agent_identity child = identity("00112233445566778899aabbccddeeff", "child-8");
    assert_int_equal(agent_after_fork(guest->agent, &child, 0, &err), -EISDIR);
    assert_non_null(strstr(err.text, "machine id"));
    assert_standing(guest);
    // Nor does a new session, or anything else than the step that succeeds.
    guest->agent = agent_disconnect(guest->agent);
    take_back(guest, NULL);
    assert_true(agent_was_frozen(guest->agent));
    assert_standing(guest);
    memset(child.seed, 0, sizeof child.seed);
    assert_int_equal(agent_after_fork(guest->agent, &child, 0, &err), -EINVAL);
    assert_standing(guest);
    child = identity("00112233445566778899aabbccddeeff", "child-8");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(agent_after_fork(guest->agent, &child, 0, &err), 0);
    wait_for_ticks(guest, ticks(guest));
    stop_counter(guest);
}

static void reseeding_without_the_right_is_a_failure(void **state)
{
    struct guest other;
    struct error err;
    if (geteuid() != 0) {
        print_message("skipped: needs root to give root up\n");
        skip();
    }
    guest_start(&other, 65534);
    struct agent_identity child = identity("00112233445566778899aabbccddeeff", "child-9");
    assert_int_equal(agent_after_fork(other.agent, &child, 0, &err), -EPERM);
    assert_non_null(strstr(err.text, "random generator"));
    guest_stop(&other);
}

static void sync_clock_and_power_off(void **state)
{
    struct guest other;
    struct error err;
    int status;
    guest_start(&other, 0);
    assert_int_equal(agent_sync(other.agent, false, 60000, &err), 0);
    assert_int_equal(agent_set_clock(other.agent, &err), 0);
    assert_int_equal(agent_poweroff(other.agent, &err), 0);
    assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    agent_disconnect(other.agent);
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", other.directory);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--stand") == 0)
        return stand_in_the_kernel(argv[2]);
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(new_epoch_ends_streams_and_spares_processes),
            cmocka_unit_test(frames_of_a_dead_session_do_nothing),
            cmocka_unit_test(lost_frames_break_the_session),
            cmocka_unit_test(unknown_requests_are_answered),
            cmocka_unit_test(a_host_that_ignores_windows_is_stopped),
            cmocka_unit_test(upload_of_an_ended_session_never_appears),
            cmocka_unit_test(half_a_frame_before_the_client_came),
            cmocka_unit_test(calls_end_when_the_guest_goes),
            cmocka_unit_test(silence_is_a_timeout),
            cmocka_unit_test(freeze_and_thaw),
            cmocka_unit_test(calls_wait_while_frozen),
            cmocka_unit_test(the_answer_to_freeze_is_the_last_frame),
            cmocka_unit_test(freeze_that_cannot_be_changes_nothing),
            cmocka_unit_test(child_gets_its_identity_and_goes_on),
            cmocka_unit_test(a_step_that_fails_leaves_everything_frozen),
            cmocka_unit_test(reseeding_without_the_right_is_a_failure),
            cmocka_unit_test(sync_clock_and_power_off),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
