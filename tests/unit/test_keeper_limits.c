// SPDX-License-Identifier: Apache-2.0
// A keeper that many want something of, or that has run out of something.
#include "tests/unit/keeper_fixture.h"

#include <sys/resource.h>

static void test_many_silent_clients(void **state)
{
    // Clients that connect and say nothing take no place from nobody for ever, and the keeper does not wait
    // for them.
    put_text("kept", "x");
    int fds[40];
    for (unsigned i = 0; i < 40; i++)
        fds[i] = connect_raw();
    assert_kept("kept", "x");
    for (unsigned i = 0; i < 40; i++)
        close(fds[i]);
    assert_kept("kept", "x");
}

// How often it has waited for something.
static unsigned long waits_of(pid_t pid)
{
    static const char title[] = "\nvoluntary_ctxt_switches:";
    char path[64], text[8192] = "";
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *found = strstr(text, title);
    assert_non_null(found);
    return strtoul(found + strlen(title), NULL, 10);
}

static void test_out_of_descriptors(void **state)
{
    put_text("kept", "x");
    pid_t pid = running_keeper();
    struct rlimit before, few;
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &before), 0);
    few = before;
    few.rlim_cur = 5; // its first three, the lock, the socket: none of these is free
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &few, NULL), 0);
    int waiting = connect_raw();
    unsigned long waits = waits_of(pid);
    // One that asks for the client again and again never waits.
    for (unsigned i = 0; waits_of(pid) < waits + 5 && i < HANG_MS; i++)
        usleep(1000);
    unsigned long after = waits_of(pid);
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &before, NULL), 0);
    if (after < waits + 5)
        fail_msg("it waited %lu times, where nobody could be taken", after - waits);
    assert_kept("kept", "x");
    close(waiting);
}

int main(void)
{
    if (!find_libexec())
        return 1;
    const struct CMUnitTest tests[] = {
            test(test_many_silent_clients),
            test(test_out_of_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
