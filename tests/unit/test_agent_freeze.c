// SPDX-License-Identifier: Apache-2.0
// Freezing user processes, and the step after a fork.
#include "tests/unit/agent_raw.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

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
    for (int tries = 0; tries < PATIENCE_MS && ticks(guest) <= more_than; tries++)
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
        assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
        assert_standing(guest);
        assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), -EBUSY);
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
    assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, exec_while_frozen, guest), 0);
    assert_int_equal(agent_ping(guest->agent, 100, &err), -ETIMEDOUT);
    assert_int_equal(agent_thaw(guest->agent, &err), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(agent_ping(guest->agent, 0, &err), 0);
}

// An upload whose window was used up just before: what the guest took in while it was silent is granted
// after.
static void uploads_go_on_after_a_thaw(void **state)
{
    struct guest *guest = *state;
    struct raw raw;
    struct agent_frame frame;
    static uint8_t bytes[AGENT_PAYLOAD_MAX];
    char path[200];
    if (!have_cgroup(guest))
        skip();
    lend(guest, &raw, 851);
    snprintf(path, sizeof path, "%s/upload", guest->directory);
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, AGENT_FILE_WRITE);
    agent_builder_string(&fields, path);
    agent_builder_u32(&fields, 0);
    raw_request(&raw, 1, &fields);
    for (size_t sent = 0; sent < AGENT_WINDOW_BYTES; sent += sizeof bytes)
        raw_send(&raw, AGENT_DATA, 0, 1, bytes, sizeof bytes);
    agent_builder_u32(&fields, AGENT_FREEZE);
    agent_builder_u64(&fields, PATIENCE_MS);
    raw_request(&raw, 2, &fields);
    usleep(200000); // it takes in what it has, and may not say so
    raw_simple(&raw, 3, AGENT_THAW);
    uint32_t granted = 0;
    while (granted < AGENT_WINDOW_BYTES) {
        if (!raw_next(&raw, &frame, PATIENCE_MS))
            fail_msg("only %u bytes were granted again", granted);
        struct agent_cursor credit = agent_cursor_over(frame.payload, frame.size);
        if (frame.type == AGENT_WINDOW && frame.stream == 1)
            granted += agent_cursor_u32(&credit);
    }
    take_back(guest, &raw);
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
    bool flood = false, ended = false; // the second ends when it likes
    raw_await_noting(&raw, AGENT_DATA, 1, 2, &ended);
    struct agent_builder fields = {0};
    agent_builder_u32(&fields, AGENT_FREEZE);
    agent_builder_u64(&fields, PATIENCE_MS);
    raw_request(&raw, 3, &fields);
    // Credit for the flood just when it is to be silent.
    raw_send(&raw, AGENT_WINDOW, 1 << AGENT_FLAG_CHANNEL_SHIFT, 1, "\0\0\0\1", 4);
    frame = raw_await_noting(&raw, AGENT_RESULT, 3, 2, &ended);
    assert_int_equal(raw_status(&frame), 0);
    assert_false(raw_next(&raw, &frame, 300));
    raw_simple(&raw, 4, AGENT_THAW);
    raw_await_noting(&raw, AGENT_RESULT, 4, 2, &ended);
    while (!flood || !ended) { // the source's streams go on
        assert_true(raw_next(&raw, &frame, PATIENCE_MS));
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
    // On a slow machine another one may not have come to its end of the way in so short a time.
    for (unsigned ms = 200; ms < PATIENCE_MS && strstr(err.text, "test_agent") == NULL; ms *= 4)
        assert_int_equal(agent_freeze(guest->agent, ms, &err), -ETIMEDOUT);
    if (strstr(err.text, "test_agent") == NULL)
        fail_msg("\"%s\" does not name the process", err.text);
    wait_for_ticks(guest, ticks(guest));
    stop_counter(guest);
    snprintf(command, sizeof command, "kill -9 $(cat %s/standing); echo on", guest->directory);
    assert_shell(guest, command, 0, "on\n");
    assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
    assert_int_equal(agent_thaw(guest->agent, &err), 0);
}

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
    assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
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
    assert_int_equal(agent_freeze(guest->agent, PATIENCE_MS, &err), 0);
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
            cmocka_unit_test(freeze_and_thaw),
            cmocka_unit_test(calls_wait_while_frozen),
            cmocka_unit_test(uploads_go_on_after_a_thaw),
            cmocka_unit_test(the_answer_to_freeze_is_the_last_frame),
            cmocka_unit_test(freeze_that_cannot_be_changes_nothing),
            cmocka_unit_test(child_gets_its_identity_and_goes_on),
            cmocka_unit_test(a_step_that_fails_leaves_everything_frozen),
            cmocka_unit_test(reseeding_without_the_right_is_a_failure),
            cmocka_unit_test(sync_clock_and_power_off),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
