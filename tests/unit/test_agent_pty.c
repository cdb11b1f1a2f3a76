// SPDX-License-Identifier: Apache-2.0
// Terminals: size, job control, hang-up, results.
#include "tests/unit/agent_fixture.h"

#include <sys/ioctl.h>

static struct agent_pty *open_pty(struct guest *guest, const char *command)
{
    struct agent_pty *pty;
    struct error err;
    struct agent_exec exec = {.shell_command = command};
    if (agent_pty_open(guest->agent, &exec, 24, 80, NULL, &pty, &err) < 0)
        fail_msg("%s", err.text);
    return pty;
}

static void type(struct agent_pty *pty, const char *text)
{
    for (size_t size = strlen(text); size > 0;) {
        struct pollfd one = {.fd = agent_pty_fd(pty), .events = POLLOUT};
        assert_int_equal(poll(&one, 1, 60000), 1);
        ssize_t sent = send(one.fd, text, size, MSG_NOSIGNAL);
        assert_true(sent > 0 || errno == EAGAIN);
        if (sent > 0) {
            text += sent;
            size -= (size_t)sent;
        }
    }
}

struct screen {
    char text[65536];
    size_t size;
    bool ended;
};

static bool show(struct agent_pty *pty, struct screen *screen)
{
    struct pollfd one = {.fd = agent_pty_fd(pty), .events = POLLIN};
    if (poll(&one, 1, 60000) != 1)
        return false;
    ssize_t got = recv(one.fd, screen->text + screen->size, sizeof screen->text - 1 - screen->size, 0);
    if (got < 0 && errno == EAGAIN)
        return true;
    screen->ended = got <= 0;
    screen->size += got > 0 ? (size_t)got : 0;
    screen->text[screen->size] = 0;
    return !screen->ended;
}

static void await_text(struct agent_pty *pty, struct screen *screen, const char *text)
{
    while (strstr(screen->text, text) == NULL) {
        if (!show(pty, screen))
            fail_msg("\"%s\" never came; the terminal shows: %s", text, screen->text);
    }
}

static void await_end(struct agent_pty *pty, struct screen *screen)
{
    while (show(pty, screen))
        ;
    assert_true(screen->ended);
}

static void a_command_has_a_terminal_of_its_size(void **state)
{
    static struct screen screen;
    struct agent_exec_result result;
    struct error err;
    screen = (struct screen){0};
    struct agent_pty *pty = open_pty(
            *state, "stty size; tty; echo $TERM; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo yes; exit 7");
    await_end(pty, &screen);
    assert_non_null(strstr(screen.text, "24 80"));
    assert_non_null(strstr(screen.text, "/dev/pts/"));
    assert_non_null(strstr(screen.text, "xterm-256color"));
    assert_non_null(strstr(screen.text, "yes"));
    assert_int_equal(agent_pty_wait(pty, 0, &result, &err), 0);
    assert_int_equal(result.exit_code, 7);
    agent_pty_close(pty);
}

static void it_is_resized_while_it_runs(void **state)
{
    static struct screen screen;
    struct error err;
    screen = (struct screen){0};
    struct agent_pty *pty =
            open_pty(*state, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done");
    await_text(pty, &screen, "ready");
    assert_int_equal(agent_pty_resize(pty, 50, 132, &err), 0);
    await_text(pty, &screen, "50 132");
    assert_int_equal(agent_pty_resize(pty, 0, 0, &err), -EINVAL); // A09
    assert_int_equal(agent_pty_resize(pty, 10000, 10000, &err), -EINVAL);
    agent_pty_close(pty);
}

static void control_c_reaches_the_foreground_alone(void **state)
{
    static struct screen screen;
    struct agent_exec_result result;
    struct error err;
    screen = (struct screen){0};
    struct agent_pty *pty;
    const char *argv[] = {"bash", "--norc", "-i", NULL};
    assert_int_equal(agent_pty_open(((struct guest *)*state)->agent, &(struct agent_exec){.argv = argv}, 24,
                             80, "dumb", &pty, &err),
            0);
    type(pty, "PS1=; sh -c 'echo be\"\"gin; exec sleep 1000'\n");
    await_text(pty, &screen, "begin");
    type(pty, "\x03");
    await_text(pty, &screen, "^C");
    type(pty, "echo still he''re\n");
    await_text(pty, &screen, "still here");
    type(pty, "sh -c 'echo fore\"\"ground; exec sleep 1000'\n");
    await_text(pty, &screen, "foreground");
    type(pty, "\x1a"); // job control
    await_text(pty, &screen, "Stopped");
    type(pty, "kill -9 %1; exec sh -c 'exit 5'\n");
    await_end(pty, &screen);
    assert_int_equal(agent_pty_wait(pty, 0, &result, &err), 0);
    assert_int_equal(result.exit_code, 5);
    agent_pty_close(pty);
}

static void the_login_shell_is_the_default(void **state)
{
    static struct screen screen;
    struct error err;
    struct agent_pty *pty;
    screen = (struct screen){0};
    assert_int_equal(agent_pty_open(((struct guest *)*state)->agent, &(struct agent_exec){0}, 24, 80, "dumb",
                             &pty, &err),
            0);
    type(pty, "echo name=$0; exit\n");
    await_text(pty, &screen, "name=-");
    agent_pty_close(pty);
}

static void await_no_process(const char *mark)
{
    char command[200];
    snprintf(command, sizeof command,
            "i=0; while pgrep -x sleep -a | grep -q ' %s$'; do i=$((i+1)); [ $i -gt 6000 ] && exit 1; sleep "
            "0.02; done",
            mark);
    assert_int_equal(system(command), 0);
}

// Terminals whose host's end the agent has, and processes that it started. (The kernel's own count of
// terminals is of the whole host, where others come and go.)
static int left_of_terminals(struct guest *guest)
{
    char command[120];
    int count = -1;
    snprintf(command, sizeof command, "(ls -l /proc/%d/fd | grep ptmx; pgrep -P %d) | wc -l", (int)guest->pid,
            (int)guest->pid);
    FILE *pipe = popen(command, "re");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

static void A09_closing_hangs_up_and_leaves_nothing(void **state)
{
    static struct screen screen;
    struct guest *guest = *state;
    if (!have_cgroup(guest))
        skip();
    screen = (struct screen){0};
    char path[200], command[300];
    snprintf(path, sizeof path, "%s/hup", guest->directory);
    snprintf(command, sizeof command, "trap 'echo hup > %s; exit' HUP; sleep 77771 & echo ready; wait", path);
    struct agent_pty *pty = open_pty(guest, command);
    await_text(pty, &screen, "ready");
    agent_pty_close(pty);
    for (int i = 0; access(path, F_OK) < 0; i++) {
        assert_true(i < PATIENCE_MS);
        usleep(1000);
    }
    screen = (struct screen){0};
    pty = open_pty(guest, "trap '' HUP; (setsid nohup sleep 77772 &) ; sleep 77773 & echo ready; wait; wait");
    await_text(pty, &screen, "ready");
    agent_pty_close(pty);
    await_no_process("77771");
    await_no_process("77772");
    await_no_process("77773");
}

static void A09_three_hundred_in_a_row(void **state)
{
    struct guest *guest = *state;
    struct error err;
    for (int i = 0; i < 300; i++) {
        struct agent_pty *pty = open_pty(guest, i % 3 == 0 ? "true" : "sleep 1000");
        if (i % 2 == 0)
            assert_int_not_equal(agent_pty_resize(pty, 10, 10, &err), -EINVAL);
        agent_pty_close(pty);
    }
    for (int i = 0; left_of_terminals(guest) > 0; i++) {
        assert_true(i < PATIENCE_MS);
        usleep(1000);
    }
}

static void A09_a_session_that_ends_hangs_up(void **state)
{
    static struct screen screen;
    struct guest *guest = *state;
    struct error err;
    struct agent_exec_result result;
    screen = (struct screen){0};
    struct agent_pty *pty = open_pty(guest, "echo ready; sleep 77774");
    await_text(pty, &screen, "ready");
    agent_break(guest->agent);
    await_end(pty, &screen);
    assert_int_equal(agent_pty_wait(pty, PATIENCE_MS, &result, &err), -EPIPE);
    agent_pty_close(pty);
    guest->agent = agent_disconnect(guest->agent);
    assert_int_equal(agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err), 0);
    await_no_process("77774");
}

static void A09_a_megabyte_is_pasted(void **state)
{
    static struct screen screen;
    struct agent_exec_result result;
    struct error err;
    screen = (struct screen){0};
    struct agent_pty *pty = open_pty(*state, "stty raw -echo; echo ready; head -c 1000000 | wc -c");
    await_text(pty, &screen, "ready");
    char line[1001];
    memset(line, 'p', 1000);
    line[1000] = 0;
    for (int i = 0; i < 1000; i++)
        type(pty, line);
    await_text(pty, &screen, "1000000");
    await_end(pty, &screen);
    assert_int_equal(agent_pty_wait(pty, 0, &result, &err), 0);
    assert_int_equal(result.exit_code, 0);
    agent_pty_close(pty);
}

static void X01_a_flood_that_nobody_looks_at_is_held_back(void **state)
{
    struct guest *guest = *state;
    struct agent_pty *pty = open_pty(guest, "yes");
    struct agent_exec_result result = shell(guest, "echo others go on");
    assert_string_equal(result.out, "others go on\n");
    agent_exec_result_free(&result);
    agent_pty_close(pty);
}

// However much of it waits on its way: closing neither waits for a reader, nor leaves the command behind.
static void A09_a_flood_is_closed_while_its_way_is_full(void **state)
{
    struct guest *guest = *state;
    struct agent_pty *pty = open_pty(guest, "yes");
    for (int still = 0, before = 0, waiting = 0; still < 20; before = waiting) { // until no more comes
        usleep(20000);
        assert_int_equal(ioctl(agent_pty_fd(pty), FIONREAD, &waiting), 0);
        still = waiting > 100000 && waiting == before ? still + 1 : 0;
    }
    alarm(PATIENCE_MS / 1000);
    agent_pty_close(pty);
    alarm(0);
    for (int i = 0; left_of_terminals(guest) > 0; i++) {
        assert_true(i < PATIENCE_MS);
        usleep(1000);
    }
}

static void X03_a_cut_character_passes(void **state)
{
    static struct screen screen;
    screen = (struct screen){0};
    struct agent_pty *pty = open_pty(*state, "for b in '\\xe2' '\\x94' '\\x80' '\\xf0' '\\x9f' '\\x98' "
                                             "'\\x80'; do printf $b; sleep 0.05; done");
    await_end(pty, &screen);
    assert_string_equal(screen.text, "\xe2\x94\x80\xf0\x9f\x98\x80");
    agent_pty_close(pty);
}

static void what_cannot_run_has_its_exit_code(void **state)
{
    static struct screen screen;
    struct guest *guest = *state;
    struct agent_exec_result result;
    struct error err;
    struct agent_pty *pty;
    screen = (struct screen){0};
    const char *missing[] = {"/no/such", NULL};
    assert_int_equal(
            agent_pty_open(guest->agent, &(struct agent_exec){.argv = missing}, 24, 80, NULL, &pty, &err), 0);
    await_end(pty, &screen);
    assert_int_equal(agent_pty_wait(pty, 0, &result, &err), 0);
    assert_int_equal(result.exit_code, 127);
    agent_pty_close(pty);
    assert_int_equal(
            agent_pty_open(guest->agent, &(struct agent_exec){.argv = missing}, 0, 80, NULL, &pty, &err),
            -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_command_has_a_terminal_of_its_size),
            cmocka_unit_test(it_is_resized_while_it_runs),
            cmocka_unit_test(control_c_reaches_the_foreground_alone),
            cmocka_unit_test(the_login_shell_is_the_default),
            cmocka_unit_test(A09_closing_hangs_up_and_leaves_nothing),
            cmocka_unit_test(A09_three_hundred_in_a_row),
            cmocka_unit_test(A09_a_session_that_ends_hangs_up),
            cmocka_unit_test(A09_a_megabyte_is_pasted),
            cmocka_unit_test(X01_a_flood_that_nobody_looks_at_is_held_back),
            cmocka_unit_test(A09_a_flood_is_closed_while_its_way_is_full),
            cmocka_unit_test(X03_a_cut_character_passes),
            cmocka_unit_test(what_cannot_run_has_its_exit_code),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
