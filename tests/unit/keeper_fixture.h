// SPDX-License-Identifier: Apache-2.0
// A keeper of its own for each test of a program, with a run directory.
#pragma once

#include "vmglue/keeper.h"
#include "vmglue/unix_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { HANG_MS = 120000 };

static char run_dir[256], libexec[4096];
static struct error err;

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        err.text[0] = '\0';                                                                                  \
        int ok_result = (call);                                                                              \
        if (ok_result < 0)                                                                                   \
            fail_msg("%s: %d %s", #call, ok_result, err.text);                                               \
    } while (0)

static inline int make_file(const char *text)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    return fd;
}

static inline void assert_kept(const char *name, const char *text)
{
    int fd = -1;
    char got[64] = "";
    assert_ok(keeper_get(run_dir, name, &fd, &err));
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(pread(fd, got, sizeof got - 1, 0), strlen(text));
    assert_string_equal(got, text);
    close(fd);
}

static inline void put_text(const char *name, const char *text)
{
    int fd = make_file(text);
    assert_ok(keeper_put(run_dir, name, fd, &err));
    close(fd);
}

static inline int connect_raw(void)
{
    char path[300];
    int fd;
    snprintf(path, sizeof path, "%s/keeper.sock", run_dir);
    assert_int_equal(unix_socket_connect(path, SOCK_SEQPACKET, &fd), 0);
    return fd;
}

static inline int setup(void **state)
{
    snprintf(run_dir, sizeof run_dir, "/tmp/ramet-keeper-test-XXXXXX");
    assert_non_null(mkdtemp(run_dir));
    assert_ok(keeper_ensure(run_dir, libexec, &err));
    return 0;
}

static inline int teardown(void **state)
{
    assert_ok(keeper_stop(run_dir, &err));
    char command[400];
    snprintf(command, sizeof command, "rm -r '%s'", run_dir);
    return system(command);
}

// The keeper's process: the kernel's record of the socket's peer is of its parent, which called listen.
static inline pid_t running_keeper(void)
{
    char wanted[5000];
    int size = snprintf(wanted, sizeof wanted, "%s/ramet-keeper%c%s", libexec, 0, run_dir);
    DIR *processes = opendir("/proc");
    assert_non_null(processes);
    pid_t found = 0;
    for (struct dirent *entry; found == 0 && (entry = readdir(processes)) != NULL;) {
        char path[300], command[sizeof wanted];
        snprintf(path, sizeof path, "/proc/%.20s/cmdline", entry->d_name);
        int fd = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        if (read(fd, command, sizeof command) > size && memcmp(command, wanted, (size_t)size) == 0)
            found = (pid_t)atoi(entry->d_name);
        close(fd);
    }
    closedir(processes);
    assert_true(found > 0);
    return found;
}

// Where the programs are.
static inline bool find_libexec(void)
{
    char exe[3000];
    ssize_t size = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (size < 0)
        return false;
    exe[size] = '\0';
    snprintf(libexec, sizeof libexec, "%s/../tools", dirname(exe));
    char *resolved = realpath(libexec, NULL);
    if (resolved == NULL)
        return false;
    snprintf(libexec, sizeof libexec, "%s", resolved);
    free(resolved);
    return true;
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
