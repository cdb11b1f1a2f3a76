// SPDX-License-Identifier: Apache-2.0
// Processes: what a child gets and does not get, knowing it again, waiting, ending, strays.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/vm.h"
#include "vmglue/vm_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static char log_path[64];
static const char *const environment[] = {"PATH=/usr/bin:/bin", "ONLY=this", NULL};

static int set_up(void **state)
{
    static char folder[] = "/tmp/vm-process-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    *state = folder;
    return 0;
}

static int tear_down(void **state)
{
    unlink(log_path);
    return rmdir(*state);
}

static void spawn(char *const *argv, const int *fds, unsigned fd_count, struct vm_process_identity *identity,
        int *pid_fd)
{
    struct vm_process_spawn request = {.argv = argv,
            .env = environment,
            .working_dir = "/",
            .log_path = log_path,
            .fds = fds,
            .fd_count = fd_count};
    struct error err;
    if (vm_process_spawn(&request, identity, pid_fd, &err) < 0)
        fail_msg("%s", err.text);
}

static void run_shell(const char *script, const int *fds, unsigned fd_count)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    struct vm_process_identity identity;
    int pid_fd;
    spawn(argv, fds, fd_count, &identity, &pid_fd);
    assert_int_equal(vm_process_wait(pid_fd, 60000), 0);
    close(pid_fd);
}

static void test_child_gets_its_descriptors_and_nothing_else(void **state)
{
    int leak = open("/dev/zero", O_RDONLY); // not close-on-exec
    int pair[2], fds[2];
    assert_int_equal(pipe(pair), 0);
    fds[0] = pair[1];
    fds[1] = eventfd(0, 0);
    // No pipe in these words: the shell would hold its ends for a moment.
    run_shell("pwd; echo $ONLY $HOME; ls -m /proc/$$/fd; echo hello >&3", fds, 2);
    char words[256], piped[8] = "";
    vm_process_last_words(log_path, words, sizeof words);
    assert_string_equal(words, "/;this;0, 1, 2, 3, 4");
    assert_int_equal(read(pair[0], piped, sizeof piped), 6);
    close(leak);
    close(pair[0]);
    close(pair[1]);
    close(fds[1]);
}

static void end_is(const char *script, const char *words)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL}, how[160];
    struct vm_process_identity identity;
    int pid_fd;
    spawn(argv, NULL, 0, &identity, &pid_fd);
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    vm_process_reap(pid_fd, how, sizeof how);
    if (strstr(how, words) == NULL)
        fail_msg("'%s' does not say '%s'", how, words);
    vm_process_reap(pid_fd, how, sizeof how); // reaped already
    assert_string_equal(how, "");
    close(pid_fd);
}

static void test_how_it_ended(void **state)
{
    end_is("exit 3", "ended with code 3");
    end_is("kill -9 $$", "signal 9");
    end_is("kill -BUS $$", "memory image");
}

static void test_missing_program(void **state)
{
    char *argv[] = {"no-such-program", NULL};
    struct vm_process_spawn request = {.argv = argv, .env = environment, .log_path = log_path};
    struct vm_process_identity identity;
    int pid_fd;
    struct error err;
    assert_int_equal(vm_process_spawn(&request, &identity, &pid_fd, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no-such-program"));
}

static void test_identity(void **state)
{
    char *argv[] = {"sleep", "600", NULL};
    struct vm_process_identity identity, wrong;
    int pid_fd, again = -1;
    spawn(argv, NULL, 0, &identity, &pid_fd);
    assert_int_equal(vm_process_open(&identity, &again), 0);
    wrong = identity;
    wrong.start_time_ticks--;
    int none = -1;
    assert_int_equal(vm_process_open(&wrong, &none), -ESRCH);
    wrong = identity;
    wrong.exe_inode++;
    assert_int_equal(vm_process_open(&wrong, &none), -ESRCH);
    assert_int_equal(vm_process_wait(again, 0), -ETIMEDOUT);
    assert_int_equal(vm_process_kill(again, 60000), 0);
    assert_int_equal(vm_process_wait(pid_fd, 0), 0);
    assert_int_equal(vm_process_open(&identity, &none), -ESRCH);
    close(pid_fd);
    close(again);
}

static void test_descriptor_of_another_process(void **state)
{
    int event = eventfd(7, 0), copy = -1;
    char *argv[] = {"sleep", "600", NULL};
    struct vm_process_identity identity;
    int pid_fd;
    spawn(argv, &event, 1, &identity, &pid_fd);
    int result = vm_process_take_fd(identity.pid, pid_fd, "anon_inode:[eventfd]", &copy);
    if (result == -EPERM) {
        vm_process_kill(pid_fd, 60000);
        print_message("skipped: this user may not look into other processes\n");
        skip();
    }
    assert_int_equal(result, 0);
    uint64_t value = 0;
    assert_int_equal(read(copy, &value, sizeof value), sizeof value);
    assert_int_equal(value, 7);
    assert_int_equal(vm_process_take_fd(identity.pid, pid_fd, "anon_inode:[userfaultfd]", &copy), -ENOENT);
    vm_process_kill(pid_fd, 60000);
    close(copy);
    close(event);
    close(pid_fd);
}

static void count_stray(void *context, pid_t pid, const char *id)
{
    if (strcmp(id, "one") == 0)
        *(pid_t *)context = pid;
}

static void test_strays_by_tag(void **state)
{
    char tag[64], name[80];
    snprintf(tag, sizeof tag, "stray-test-%d", (int)getpid());
    snprintf(name, sizeof name, "%s/one", tag);
    // A shell that keeps the words on its command line.
    char *argv[] = {"sh", "-c", "read x <&3", "-name", name, NULL};
    int pair[2];
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    struct vm_process_identity identity;
    int pid_fd;
    spawn(argv, &pair[0], 1, &identity, &pid_fd);
    // The kernel lets the parent go on a moment before the child's new command line can be read.
    pid_t found = 0;
    for (unsigned tries = 0; found == 0 && tries < 60000; tries++) {
        assert_int_equal(vm_find_strays(tag, count_stray, &found), 0);
        sched_yield();
    }
    assert_int_equal(found, identity.pid);
    found = 0;
    vm_find_strays("stray-test", count_stray, &found); // a prefix of a tag is another tag
    assert_int_equal(found, 0);
    struct error err;
    assert_int_equal(vm_kill_stray("other-tag", identity.pid, 1000, &err), -ESRCH);
    assert_int_equal(vm_process_wait(pid_fd, 0), -ETIMEDOUT);
    assert_int_equal(vm_kill_stray(tag, identity.pid, 60000, &err), 0);
    assert_int_equal(vm_process_wait(pid_fd, 60000), 0);
    close(pid_fd);
    close(pair[0]);
    close(pair[1]);
}

static void test_names(void **state)
{
    enum vm_machine machine;
    for (int i = VM_MACHINE_Q35; i <= VM_MACHINE_MICROVM; i++) {
        assert_int_equal(vm_machine_parse(vm_machine_name((enum vm_machine)i), &machine), 0);
        assert_int_equal(machine, i);
    }
    assert_int_equal(vm_machine_parse("pc", &machine), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_child_gets_its_descriptors_and_nothing_else),
            cmocka_unit_test(test_how_it_ended),
            cmocka_unit_test(test_missing_program),
            cmocka_unit_test(test_identity),
            cmocka_unit_test(test_descriptor_of_another_process),
            cmocka_unit_test(test_strays_by_tag),
            cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
