// SPDX-License-Identifier: Apache-2.0
// The keeper as a process: what it is given comes back, from whichever client, and nothing a client sends
// hurts it.
#include "tests/unit/keeper_fixture.h"
#include "vmglue/keeper_guard.h"
#include "vmglue/keeper_wire.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t keeper_pid(void)
{
    int fd = connect_raw();
    pid_t pid;
    uid_t uid;
    assert_int_equal(unix_socket_peer(fd, &pid, &uid), 0);
    close(fd);
    return pid; // of the process that listens: as it was when it called listen
}

static void test_hand_over_and_back(void **state)
{
    put_text("one", "first");
    put_text("two", "second");
    assert_kept("one", "first");
    assert_kept("two", "second");
    assert_kept("one", "first"); // giving back keeps it
}

static void test_same_open_file(void **state)
{
    int fd = make_file("0123456789");
    assert_ok(keeper_put(run_dir, "file", fd, &err));
    assert_int_equal(lseek(fd, 3, SEEK_SET), 3);
    int back;
    assert_ok(keeper_get(run_dir, "file", &back, &err));
    assert_int_equal(lseek(back, 0, SEEK_CUR), 3); // one open file, not another one of the same name
    close(back);
    close(fd);
}

static void test_missing_name(void **state)
{
    int fd = -7;
    assert_int_equal(keeper_get(run_dir, "nothing", &fd, &err), -ENOENT);
    assert_non_null(strstr(err.text, "nothing"));
    assert_int_equal(fd, -7);
    assert_int_equal(keeper_drop(run_dir, "nothing", &err), -ENOENT);
}

static void test_survives_client(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd = memfd_create("kept", 0);
        if (write(fd, "from the dead", 13) != 13 || keeper_put(run_dir, "legacy", fd, NULL) < 0)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_kept("legacy", "from the dead");
}

// The other end of a pipe sees whether the keeper has let go.
static void assert_hung_up(int read_fd)
{
    struct pollfd poll_fd = {.fd = read_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, HANG_MS), 1);
    assert_true(poll_fd.revents & POLLHUP);
}

static void assert_open(int read_fd)
{
    struct pollfd poll_fd = {.fd = read_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
}

static int put_pipe(const char *name)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_ok(keeper_put(run_dir, name, fds[1], &err));
    close(fds[1]);
    assert_open(fds[0]);
    return fds[0];
}

static void test_replace_closes_the_old(void **state)
{
    int read_fd = put_pipe("x");
    put_text("x", "new");
    assert_hung_up(read_fd);
    close(read_fd);
    assert_kept("x", "new");
}

static void test_drop_closes(void **state)
{
    int read_fd = put_pipe("x");
    assert_ok(keeper_drop(run_dir, "x", &err));
    assert_hung_up(read_fd);
    close(read_fd);
    int fd;
    assert_int_equal(keeper_get(run_dir, "x", &fd, &err), -ENOENT);
}

static void test_stop_closes_and_ends(void **state)
{
    int read_fd = put_pipe("x");
    pid_t pid = keeper_pid();
    assert_ok(keeper_stop(run_dir, &err));
    assert_hung_up(read_fd);
    close(read_fd);
    char path[300];
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    assert_int_equal(access(path, F_OK), -1);
    int fd;
    assert_int_equal(keeper_get(run_dir, "x", &fd, &err), -ENOTCONN);
    assert_ok(keeper_stop(run_dir, &err)); // nobody there: well
    assert_ok(keeper_ensure(run_dir, libexec, &err));
    assert_int_not_equal(keeper_pid(), pid);
}

static void count_name(void *context, const char *name)
{
    char expected[64];
    unsigned *count = context;
    snprintf(expected, sizeof expected, "name/%04u/%040u", *count, 0);
    assert_string_equal(name, expected);
    ++*count;
}

static void test_list_many(void **state)
{
    // More names than one packet holds, put in an order of their own.
    int fd = make_file("x");
    for (unsigned i = 0; i < 600; i++) {
        char name[64];
        snprintf(name, sizeof name, "name/%04u/%040u", i * 7 % 600, 0);
        assert_ok(keeper_put(run_dir, name, fd, &err));
    }
    close(fd);
    unsigned count = 0;
    assert_ok(keeper_list(run_dir, count_name, &count, &err));
    assert_int_equal(count, 600);
}

static void test_names_are_bounded(void **state)
{
    char longest[KEEPER_NAME_MAX + 2];
    memset(longest, 'n', sizeof longest);
    longest[KEEPER_NAME_MAX + 1] = '\0';
    int fd = make_file("x");
    assert_int_equal(keeper_put(run_dir, longest, fd, &err), -EINVAL);
    assert_int_equal(keeper_put(run_dir, "", fd, &err), -EINVAL);
    assert_int_equal(keeper_put(run_dir, "a b", fd, &err), -EINVAL);
    assert_int_equal(keeper_put(run_dir, "a\n", fd, &err), -EINVAL);
    assert_int_equal(keeper_put(run_dir, "fd", -1, &err), -EBADF);
    close(fd);
    longest[KEEPER_NAME_MAX] = '\0';
    put_text(longest, "long");
    assert_kept(longest, "long");
}

static void send_raw(const void *bytes, size_t size, unsigned fds_sent)
{
    int fd = connect_raw();
    int fds[8];
    union {
        char space[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    for (unsigned i = 0; i < fds_sent; i++)
        fds[i] = fd;
    if (fds_sent > 0) {
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(fds_sent * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds_sent * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fds_sent * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), size);
    close(fd);
}

static unsigned count_fds(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    unsigned count = 0;
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static void kill_keeper(void)
{
    pid_t pid = running_keeper();
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(pid_fd >= 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, HANG_MS), 1);
    close(pid_fd);
}

static void test_garbage(void **state)
{
    put_text("kept", "still here");
    pid_t pid = running_keeper();
    unsigned before = count_fds(pid);
    struct keeper_request request = {
            .magic = KEEPER_MAGIC, .op = KEEPER_PUT, .name_bytes = 4, .name = "evil"};
    unsigned seed = 42;
    for (unsigned round = 0; round < 300; round++) {
        unsigned char noise[300];
        for (unsigned i = 0; i < sizeof noise; i++)
            noise[i] = (unsigned char)rand_r(&seed);
        send_raw(noise, 1 + round % sizeof noise, round % 4);
        memcpy(noise, &request, sizeof request.magic); // the right magic, then noise
        send_raw(noise, 1 + round % sizeof noise, round % 8);
    }
    send_raw(&request, KEEPER_REQUEST_HEAD + 4, 0); // PUT of nothing
    send_raw(&request, KEEPER_REQUEST_HEAD + 4, 5); // PUT of five
    send_raw(&request, KEEPER_REQUEST_HEAD + 3, 1); // shorter than it says
    request.name_bytes = 0;
    send_raw(&request, KEEPER_REQUEST_HEAD, 1); // no name
    request.op = 999;
    send_raw(&request, KEEPER_REQUEST_HEAD, 1);
    assert_kept("kept", "still here");
    int fd;
    assert_int_equal(keeper_get(run_dir, "evil", &fd, &err), -ENOENT);
    // Connections that are over are closed when their turn comes.
    unsigned after = count_fds(pid);
    for (unsigned i = 0; after > before + 2 && i < HANG_MS; i++) {
        usleep(1000);
        after = count_fds(pid);
    }
    if (after > before + 2)
        fail_msg("the keeper leaks descriptors: %u before, %u after", before, after);
}

static void test_other_users_are_turned_away(void **state)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root to become another user\n");
        skip();
    }
    put_text("secret", "x");
    char path[300];
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    assert_int_equal(chmod(run_dir, 0755), 0);
    assert_int_equal(chmod(path, 0666), 0); // as if somebody had opened it up: the keeper looks for itself
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd;
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        _exit(keeper_get(run_dir, "secret", &fd, NULL) == -EPERM ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_kept("secret", "x");
}

static void test_one_keeper_from_many_starters(void **state)
{
    assert_ok(keeper_stop(run_dir, &err));
    pid_t children[8];
    for (unsigned i = 0; i < 8; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            _exit(keeper_ensure(run_dir, libexec, NULL) < 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    put_text("a", "b");
    assert_kept("a", "b");
    assert_true(running_keeper() > 0);
}

static void test_new_session_and_no_inheritance(void **state)
{
    assert_ok(keeper_stop(run_dir, &err));
    int fds[2];
    assert_int_equal(pipe(fds), 0); // inheritable, on purpose
    assert_ok(keeper_ensure(run_dir, libexec, &err));
    close(fds[1]);
    assert_hung_up(fds[0]);
    close(fds[0]);
    pid_t pid = running_keeper();
    assert_int_not_equal(getsid(pid), getsid(0));
    assert_int_not_equal(getpgid(pid), getpgid(0));
}

static void test_killed_keeper_is_replaced(void **state)
{
    put_text("a", "b");
    kill_keeper();
    int fd;
    assert_int_equal(keeper_get(run_dir, "a", &fd, &err), -ENOTCONN);
    assert_ok(keeper_ensure(run_dir, libexec, &err)); // over the dead one's socket file
    assert_int_equal(keeper_get(run_dir, "a", &fd, &err), -ENOENT);
}

static void tell_pipe(void *context, const char *message)
{
    if (write(*(int *)context, message[0] != 0 && strstr(message, "had died") != NULL ? "r" : "?", 1) != 1)
        abort();
}

static void wait_revival(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    char byte;
    assert_int_equal(poll(&poll_fd, 1, HANG_MS), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, 'r');
}

static void test_guard_revives(void **state)
{
    int events[2], fd;
    assert_int_equal(pipe2(events, O_CLOEXEC), 0);
    put_text("before", "held when the guard came");
    put_text("dropped", "x");
    struct keeper_guard *guard, *second;
    assert_ok(keeper_guard_start(run_dir, libexec, tell_pipe, &events[1], &guard, &err));
    assert_int_equal(keeper_guard_start(run_dir, libexec, NULL, NULL, &second, &err), -EBUSY);
    put_text("after", "first");
    put_text("after", "put later, twice");
    assert_ok(keeper_drop(run_dir, "dropped", &err));
    for (unsigned round = 0; round < 3; round++) {
        kill_keeper();
        wait_revival(events[0]);
        assert_kept("before", "held when the guard came");
        assert_kept("after", "put later, twice");
        assert_int_equal(keeper_get(run_dir, "dropped", &fd, &err), -ENOENT);
    }
    kill_keeper();
    put_text("at-once", "does not wait for the guard's thread");
    assert_kept("at-once", "does not wait for the guard's thread");
    assert_kept("before", "held when the guard came");
    wait_revival(events[0]);
    guard = keeper_guard_stop(guard);
    kill_keeper();
    assert_int_equal(keeper_get(run_dir, "before", &fd, &err), -ENOTCONN); // nobody guards it any more
    close(events[0]);
    close(events[1]);
}

// Starts one that ends after three seconds of loneliness; returns its pidfd, and a
// connection to close when it may begin to count.
static int start_impatient(int *ret_connection)
{
    assert_ok(keeper_stop(run_dir, &err));
    char command[5000], path[300];
    snprintf(command, sizeof command, "[ \"$('%s/ramet-keeper' '%s' 3)\" = ready ]", libexec, run_dir);
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    for (;;) { // on a slow machine it may have ended before anybody came, or be about to
        assert_int_equal(system(command), 0);
        if (unix_socket_connect(path, SOCK_SEQPACKET, ret_connection) < 0)
            continue;
        if (keeper_drop(run_dir, "nothing", &err) == -ENOENT)
            break; // it answers, so it knows of the connection before
        close(*ret_connection);
    }
    int pid_fd = (int)syscall(SYS_pidfd_open, running_keeper(), 0);
    assert_true(pid_fd >= 0);
    return pid_fd;
}

static void assert_ends(int pid_fd)
{
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, HANG_MS), 1);
    close(pid_fd);
}

static void test_ends_when_it_holds_nothing(void **state)
{
    int connection, pid_fd = start_impatient(&connection);
    put_text("a", "b");
    assert_ok(keeper_drop(run_dir, "a", &err));
    close(connection);
    assert_ends(pid_fd);
    char path[300];
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    assert_int_equal(access(path, F_OK), -1); // and cleans up
}

static void test_ends_when_out_of_reach(void **state)
{
    int connection, pid_fd = start_impatient(&connection);
    int read_fd = put_pipe("x");
    char path[300];
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    close(connection);
    assert_int_equal(unlink(path), 0); // nobody can ask for "x" any more
    assert_ends(pid_fd);
    assert_hung_up(read_fd);
    close(read_fd);
}

static void test_ends_on_sigterm(void **state)
{
    int read_fd = put_pipe("x");
    pid_t pid = running_keeper();
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_ends(pid_fd);
    assert_hung_up(read_fd);
    close(read_fd);
}

static void test_start_failures_have_words(void **state)
{
    assert_true(keeper_ensure("/nonexistent/run", libexec, &err) < 0);
    assert_non_null(strstr(err.text, "/nonexistent/run"));
    assert_ok(keeper_stop(run_dir, &err));
    assert_true(keeper_ensure(run_dir, "/nonexistent", &err) < 0);
    assert_non_null(strstr(err.text, "/nonexistent/ramet-keeper"));
}

int main(void)
{
    if (!find_libexec())
        return 1;
    const struct CMUnitTest tests[] = {
            test(test_hand_over_and_back),
            test(test_same_open_file),
            test(test_missing_name),
            test(test_survives_client),
            test(test_replace_closes_the_old),
            test(test_drop_closes),
            test(test_stop_closes_and_ends),
            test(test_list_many),
            test(test_names_are_bounded),
            test(test_garbage),
            test(test_other_users_are_turned_away),
            test(test_one_keeper_from_many_starters),
            test(test_new_session_and_no_inheritance),
            test(test_killed_keeper_is_replaced),
            test(test_guard_revives),
            test(test_ends_when_it_holds_nothing),
            test(test_ends_when_out_of_reach),
            test(test_ends_on_sigterm),
            test(test_start_failures_have_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
