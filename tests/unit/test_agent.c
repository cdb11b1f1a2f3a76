// SPDX-License-Identifier: Apache-2.0
// Exec through the real agent and client: results, streams, limits.
#include "tests/unit/agent_fixture.h"

#include <pthread.h>

static void exit_codes_and_output(void **state)
{
    assert_shell(*state, "echo out; echo err >&2; exit 44", 44, "out\n");
    assert_shell(*state, "exit 300", 44, "");
    assert_shell(*state, "no-such-command-anywhere", 127, "");
    assert_shell(*state, "/etc/passwd", 126, "");
}

static void arguments_are_not_interpreted(void **state)
{
    const char *argv[] = {"printf", "%s|%s", "$HOME `id` *", "a\nb\"'", NULL};
    struct agent_exec_result result = run(*state, &(struct agent_exec){.argv = argv});
    assert_string_equal(result.out, "$HOME `id` *|a\nb\"'");
    agent_exec_result_free(&result);
}

static void missing_program_is_127_and_says_so(void **state)
{
    const char *missing[] = {"no-such-program", NULL}, *plain[] = {"/etc/passwd", NULL};
    struct agent_exec_result result = run(*state, &(struct agent_exec){.argv = missing});
    assert_int_equal(result.exit_code, 127);
    assert_non_null(strstr(result.err, "no-such-program"));
    agent_exec_result_free(&result);
    result = run(*state, &(struct agent_exec){.argv = plain});
    assert_int_equal(result.exit_code, 126);
    agent_exec_result_free(&result);
}

static void death_by_signal_is_told(void **state)
{
    struct agent_exec_result result = shell(*state, "kill -9 $$");
    assert_int_equal(result.exit_code, 137);
    assert_int_equal(result.signal, 9);
    assert_false(result.timed_out);
    agent_exec_result_free(&result);
    result = shell(*state, "kill -SEGV $$");
    assert_int_equal(result.exit_code, 128 + SIGSEGV);
    agent_exec_result_free(&result);
}

static void sigpipe_is_not_inherited_ignored(void **state)
{
    assert_shell(*state, "yes | head -c 3; echo \" ${PIPESTATUS[0]}\"", 0, "y\ny 141\n");
}

static void all_bytes_pass_through(void **state)
{
    uint8_t bytes[256 * 300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    struct agent_exec exec = {
            .shell_command = "tee /dev/stderr", .stdin_bytes = bytes, .stdin_size = sizeof bytes};
    struct agent_exec_result result = run(*state, &exec);
    assert_int_equal(result.out_size, sizeof bytes);
    assert_memory_equal(result.out, bytes, sizeof bytes);
    assert_int_equal(result.err_size, sizeof bytes);
    assert_memory_equal(result.err, bytes, sizeof bytes);
    agent_exec_result_free(&result);
}

static void empty_stdin_ends_at_once(void **state)
{
    assert_shell(*state, "cat; read x; echo \"<$?>\"", 0, "<1>\n");
}

static void stdin_that_nobody_reads_does_no_harm(void **state)
{
    size_t size = 8 << 20;
    char *bytes = calloc(1, size);
    struct agent_exec exec = {.shell_command = "echo done", .stdin_bytes = bytes, .stdin_size = size};
    struct agent_exec_result result = run(*state, &exec);
    assert_string_equal(result.out, "done\n");
    agent_exec_result_free(&result);
    free(bytes);
}

static void environment_is_exact(void **state)
{
    static char big[100000 + 5] = "BIG=";
    memset(big + 4, 'x', 100000);
    const char *env[] = {"A=line\nbreak", "B= $HOME `x` \\ \"'", "C=", "D=a=b", "E=\xf0\x9f\x98\x80",
            "PATH=/usr/bin:/bin:/extra", big, NULL};
    struct agent_exec exec = {
            .shell_command = "printf '%s|' \"$A\" \"$B\" \"$C\" \"$D\" \"$E\" \"$PATH\" ${#BIG}", .env = env};
    struct agent_exec_result result = run(*state, &exec);
    assert_string_equal(
            result.out, "line\nbreak| $HOME `x` \\ \"'||a=b|\xf0\x9f\x98\x80|/usr/bin:/bin:/extra|100000|");
    agent_exec_result_free(&result);
}

static void assert_refused(struct guest *guest, struct agent_exec exec, int code, const char *words)
{
    struct agent_exec_result result;
    struct error err = {0};
    exec.shell_command = exec.argv == NULL ? "true" : NULL;
    assert_int_equal(agent_exec_run(guest->agent, &exec, &result, &err), code);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void bad_requests_are_refused_with_words(void **state)
{
    const char *no_name[] = {"=x", NULL}, *no_equals[] = {"JUSTNAME", NULL}, *empty[] = {NULL};
    static char huge[200000 + 3] = "H=";
    memset(huge + 2, 'x', 200000);
    const char *too_big[] = {huge, NULL};
    assert_refused(*state, (struct agent_exec){.env = no_name}, -EINVAL, "=x");
    assert_refused(*state, (struct agent_exec){.env = no_equals}, -EINVAL, "JUSTNAME");
    assert_refused(*state, (struct agent_exec){.cwd = "/no/such/place"}, -ENOENT, "/no/such/place");
    assert_refused(*state, (struct agent_exec){.cwd = "/etc/passwd"}, -ENOTDIR, "/etc/passwd");
    assert_refused(
            *state, (struct agent_exec){.user = "nobody-of-that-name"}, -EINVAL, "nobody-of-that-name");
    assert_refused(*state, (struct agent_exec){.env = too_big}, -E2BIG, "environment");
    assert_refused(*state, (struct agent_exec){.argv = empty}, -EINVAL, "no command");
    assert_shell(*state, "echo fine", 0, "fine\n");
}

static void working_directory_that_vanished(void **state)
{
    struct guest *guest = *state;
    char path[100], command[400];
    snprintf(path, sizeof path, "%s/gone", guest->directory);
    snprintf(command, sizeof command, "mkdir %s && cd %s && rmdir %s && echo ok", path, path, path);
    assert_shell(guest, command, 0, "ok\n");
    assert_refused(guest, (struct agent_exec){.cwd = path}, -ENOENT, path);
}

static void users_can_be_chosen(void **state)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root\n");
        return;
    }
    struct agent_exec_result result =
            run(*state, &(struct agent_exec){.shell_command = "id -un; id -u", .user = "daemon"});
    assert_string_equal(result.out, "daemon\n1\n");
    agent_exec_result_free(&result);
    result = run(*state, &(struct agent_exec){.shell_command = "id -u; id -g", .user = "4321"});
    assert_string_equal(result.out, "4321\n4321\n");
    agent_exec_result_free(&result);
}

static void background_processes_outlive_the_command(void **state)
{
    struct guest *guest = *state;
    char command[300];
    // It keeps its outputs open and goes on writing: the command still ends, and the writer does not die of
    // it.
    snprintf(command, sizeof command,
            "(for i in 1 2 3; do echo noise; echo noise >&2; read -t 0.2 < <(sleep 9); done; echo survived > "
            "%s/late) & echo started",
            guest->directory);
    struct agent_exec_result result = shell(guest, command);
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.out, "started\n"));
    agent_exec_result_free(&result);
    snprintf(command, sizeof command, "while [ ! -s %s/late ]; do sleep 0.05; done; cat %s/late",
            guest->directory, guest->directory);
    assert_shell(guest, command, 0, "survived\n");
}

static void timeout_kills_everything(void **state)
{
    struct guest *guest = *state;
    if (!have_cgroup(guest))
        skip();
    char command[300], pid_path[100];
    snprintf(command, sizeof command,
            "setsid sh -c 'echo $$ > %s/pid; sleep 1000' & trap '' TERM INT; echo begun; while :; do sleep "
            "1; done",
            guest->directory);
    snprintf(pid_path, sizeof pid_path, "%s/pid", guest->directory);
    bool begun = false;
    for (unsigned ms = 1000; !begun && ms < PATIENCE_MS; ms *= 4) { // a slow machine needs more to begin
        struct agent_exec_result result =
                run(guest, &(struct agent_exec){.shell_command = command, .timeout_ms = ms});
        assert_true(result.timed_out);
        assert_int_equal(result.signal, 9);
        assert_int_equal(result.exit_code, 137);
        begun = strcmp(result.out, "begun\n") == 0 && access(pid_path, F_OK) == 0;
        agent_exec_result_free(&result);
    }
    assert_true(begun);
    // The child that left the session is gone, too (or its number is already somebody else's).
    snprintf(command, sizeof command,
            "p=$(cat %s/pid); while grep -q 'sleep' /proc/$p/cmdline 2>/dev/null; do sleep 0.05; done; echo "
            "gone",
            guest->directory);
    assert_shell(guest, command, 0, "gone\n");
}

static void timeout_leaves_other_commands_alone(void **state)
{
    struct guest *guest = *state;
    char command[200];
    snprintf(command, sizeof command, "(sleep 1; echo here > %s/other) & echo", guest->directory);
    assert_shell(guest, command, 0, "\n");
    struct agent_exec_result result =
            run(guest, &(struct agent_exec){.shell_command = "sleep 1000", .timeout_ms = 300});
    assert_true(result.timed_out);
    agent_exec_result_free(&result);
    snprintf(command, sizeof command, "while [ ! -s %s/other ]; do sleep 0.05; done; cat %s/other",
            guest->directory, guest->directory);
    assert_shell(guest, command, 0, "here\n");
}

struct counter {
    uint64_t bytes[2];
    pthread_mutex_t *gate; // held by the test as long as the reader is to be slow
};

static void count_output(void *context, int stream, const void *bytes, size_t size)
{
    struct counter *counter = context;
    if (counter->gate != NULL) {
        pthread_mutex_lock(counter->gate);
        pthread_mutex_unlock(counter->gate);
    }
    counter->bytes[stream - 1] += size;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FLOOD_BYTES = 30000000 }; // each takes many times as long there
#else
enum { FLOOD_BYTES = 300000000 };
#endif

static void flood_on_both_streams(void **state)
{
    struct counter counter = {0};
    char command[120];
    struct agent_exec exec = {.shell_command = command, .on_output = count_output, .context = &counter};
    snprintf(command, sizeof command, "head -c %d /dev/zero & head -c %d /dev/zero >&2; wait; exit 3",
            FLOOD_BYTES, FLOOD_BYTES);
    struct agent_exec_result result = run(*state, &exec);
    assert_int_equal(result.exit_code, 3);
    assert_int_equal(counter.bytes[0], FLOOD_BYTES);
    assert_int_equal(counter.bytes[1], FLOOD_BYTES);
    agent_exec_result_free(&result);
}

static void output_limit_keeps_the_head(void **state)
{
    struct agent_exec exec = {.shell_command = "echo head; head -c 5000000 /dev/zero; echo tail >&2; exit 7",
            .output_limit_bytes = 100000};
    struct agent_exec_result result = run(*state, &exec);
    assert_true(result.truncated);
    assert_int_equal(result.exit_code, 7);
    assert_int_equal(result.out_size, 100000);
    assert_memory_equal(result.out, "head\n", 5);
    assert_string_equal(result.err, "tail\n");
    agent_exec_result_free(&result);
}

struct slow {
    struct guest *guest;
    struct counter counter;
};

static void *slow_reader(void *argument)
{
    struct slow *slow = argument;
    struct agent_exec exec = {.shell_command = "head -c 20000000 /dev/zero",
            .on_output = count_output,
            .context = &slow->counter};
    struct agent_exec_result result = run(slow->guest, &exec);
    assert_int_equal(result.exit_code, 0);
    agent_exec_result_free(&result);
    return NULL;
}

static void slow_reader_blocks_nobody(void **state)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct slow slow = {.guest = *state, .counter.gate = &gate};
    pthread_t thread;
    pthread_mutex_lock(&gate);
    assert_int_equal(pthread_create(&thread, NULL, slow_reader, &slow), 0);
    for (int i = 0; i < 20; i++)
        assert_shell(*state, "head -c 100000 /dev/zero | wc -c", 0, "100000\n");
    pthread_mutex_unlock(&gate);
    pthread_join(thread, NULL);
    assert_int_equal(slow.counter.bytes[0], 20000000);
}

static void *many_execs(void *argument)
{
    for (int i = 0; i < 20; i++)
        assert_shell(argument, "echo $((6 * 7))", 0, "42\n");
    return NULL;
}

static void many_callers_at_once(void **state)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_execs, *state), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static bool cancel_now(void *context)
{
    return true;
}

static void cancelling_kills(void **state)
{
    struct agent_exec_result result =
            run(*state, &(struct agent_exec){.shell_command = "sleep 1000", .cancelled = cancel_now});
    assert_int_equal(result.signal, 9);
    assert_false(result.timed_out);
    agent_exec_result_free(&result);
}

static void small_pieces_arrive_in_order(void **state)
{
    struct agent_exec_result result =
            shell(*state, "for i in $(seq 20000); do echo $i; done | tee /dev/stderr");
    assert_int_equal(result.out_size, 108894);
    assert_memory_equal(result.out, "1\n2\n3\n", 6);
    assert_string_equal(result.out + result.out_size - 6, "20000\n");
    assert_int_equal(result.err_size, result.out_size);
    agent_exec_result_free(&result);
}

static void agent_leaves_no_zombies(void **state)
{
    struct guest *guest = *state;
    char command[200];
    assert_shell(guest, "for i in $(seq 50); do (true & ) ; done; echo", 0, "\n");
    snprintf(command, sizeof command,
            "for i in $(seq 2400); do z=$(ps -o stat= --ppid %d | grep -c Z); [ $z = 0 ] && break; sleep "
            "0.05; done; echo $z",
            (int)guest->pid);
    assert_shell(guest, command, 0, "0\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(exit_codes_and_output),
            cmocka_unit_test(arguments_are_not_interpreted),
            cmocka_unit_test(missing_program_is_127_and_says_so),
            cmocka_unit_test(death_by_signal_is_told),
            cmocka_unit_test(sigpipe_is_not_inherited_ignored),
            cmocka_unit_test(all_bytes_pass_through),
            cmocka_unit_test(empty_stdin_ends_at_once),
            cmocka_unit_test(stdin_that_nobody_reads_does_no_harm),
            cmocka_unit_test(environment_is_exact),
            cmocka_unit_test(bad_requests_are_refused_with_words),
            cmocka_unit_test(working_directory_that_vanished),
            cmocka_unit_test(users_can_be_chosen),
            cmocka_unit_test(background_processes_outlive_the_command),
            cmocka_unit_test(timeout_kills_everything),
            cmocka_unit_test(timeout_leaves_other_commands_alone),
            cmocka_unit_test(flood_on_both_streams),
            cmocka_unit_test(output_limit_keeps_the_head),
            cmocka_unit_test(slow_reader_blocks_nobody),
            cmocka_unit_test(many_callers_at_once),
            cmocka_unit_test(cancelling_kills),
            cmocka_unit_test(small_pieces_arrive_in_order),
            cmocka_unit_test(agent_leaves_no_zombies),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
