// SPDX-License-Identifier: Apache-2.0
// Control groups: what is written where, on trees of plain files for either version; and one real group where
// this host lets us.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vmglue/cgroup_host.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct cgroup_limits limits = {.memory_bytes = 300 << 20, .processes = 129, .cpus = 3};
static char root[64], proc_cgroup[96];

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect(const char *name, const char *text)
{
    char path[256], got[256] = "";
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s is missing", path);
    size_t size = fread(got, 1, sizeof got - 1, file);
    got[size] = '\0';
    fclose(file);
    assert_string_equal(got, text);
}

static int set_up(void **state)
{
    strcpy(root, "/tmp/cgroup-test-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(proc_cgroup, sizeof proc_cgroup, "%s/self", root);
    return 0;
}

static int remove_entry(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    return remove(path);
}

static int tear_down(void **state)
{
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static struct cgroup_host *open_host(void)
{
    struct cgroup_host *host;
    struct error err;
    if (cgroup_host_open("ramet-1", root, proc_cgroup, &host, &err) < 0)
        fail_msg("%s", err.text);
    return host;
}

static unsigned make(struct cgroup_host *host)
{
    int fds[CGROUP_HOST_FDS];
    unsigned count = 0;
    struct error err;
    if (cgroup_host_make(host, "sbx_1", &limits, fds, &count, &err) < 0)
        fail_msg("%s", err.text);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(write(fds[i], "0", 1), 1);
        close(fds[i]);
    }
    return count;
}

static void version_1(void **state)
{
    put("self", "4:memory:/host/a\n3:cpu,cpuacct:/\n8:pids:/not/here\n0::/\n");
    put("memory/cgroup.procs", "");
    put("memory/host/a/cgroup.procs", "");
    put("memory/host/a/ramet-1/sbx_1/cgroup.procs", "");
    put("memory/host/a/ramet-1/sbx_1/memory.limit_in_bytes", "");
    put("memory/host/a/ramet-1/sbx_1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    put("cpu/cgroup.procs", "");
    put("cpu/ramet-1/sbx_1/cgroup.procs", "");
    put("cpu/ramet-1/sbx_1/cpu.shares", "");
    put("pids/cgroup.procs", "");
    put("pids/ramet-1/sbx_1/cgroup.procs", "");
    put("pids/ramet-1/sbx_1/pids.max", "");
    struct cgroup_host *host = open_host();
    assert_string_equal(cgroup_host_missing(host), "");
    assert_int_equal(make(host), 3);
    expect("memory/host/a/ramet-1/sbx_1/memory.limit_in_bytes", "314572800");
    expect("memory/host/a/ramet-1/sbx_1/cgroup.procs", "0");
    expect("cpu/ramet-1/sbx_1/cpu.shares", "3072");
    expect("pids/ramet-1/sbx_1/pids.max", "129");
    assert_int_equal(cgroup_host_oom_kills(host, "sbx_1"), 2);
    assert_null(cgroup_host_close(host));
}

static void version_1_without_some(void **state)
{
    put("self", "");
    put("memory/cgroup.procs", "");
    put("memory/ramet-1/sbx_1/cgroup.procs", "");
    put("memory/ramet-1/sbx_1/memory.limit_in_bytes", "");
    struct cgroup_host *host = open_host();
    assert_string_equal(cgroup_host_missing(host), "pids, cpu");
    assert_int_equal(make(host), 1);
    cgroup_host_close(host);
}

static void version_2(void **state)
{
    put("self", "0::/user.slice/x\n");
    put("cgroup.controllers", "cpuset cpu io memory pids\n");
    put("cgroup.subtree_control", "");
    put("ramet-1/cgroup.subtree_control", "");
    put("ramet-1/sbx_1/cgroup.procs", "");
    put("ramet-1/sbx_1/memory.max", "");
    put("ramet-1/sbx_1/memory.oom.group", "");
    put("ramet-1/sbx_1/memory.events", "low 0\noom 1\noom_kill 1\n");
    put("ramet-1/sbx_1/pids.max", "");
    put("ramet-1/sbx_1/cpu.weight", "");
    put("user.slice/x/cgroup.procs", "17\n");
    struct cgroup_host *host = open_host();
    assert_int_equal(make(host), 1);
    expect("cgroup.subtree_control", "+cpu"); // the last of three writes
    expect("ramet-1/sbx_1/memory.max", "314572800");
    expect("ramet-1/sbx_1/memory.oom.group", "1");
    expect("ramet-1/sbx_1/pids.max", "129");
    expect("ramet-1/sbx_1/cpu.weight", "300");
    expect("user.slice/x/cgroup.procs", "17\n"); // was not delegated to us: nobody was moved
    assert_int_equal(cgroup_host_oom_kills(host, "sbx_1"), 1);
    cgroup_host_close(host);
}

// Version 2 that is mounted beside version 1 has no controllers.
static void neither(void **state)
{
    struct cgroup_host *host;
    struct error err;
    put("self", "0::/\n");
    put("cgroup.controllers", "");
    assert_int_equal(cgroup_host_open("ramet-1", root, proc_cgroup, &host, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, root));
}

static void count_own(void *context, const char *id)
{
    unsigned *count = context;
    *count += strcmp(id, "sbx_1") == 0;
}

static void a_real_group(void **state)
{
    char name[40];
    struct cgroup_host *host;
    struct error err;
    int fds[CGROUP_HOST_FDS], ends[2];
    unsigned count = 0, seen = 0;
    snprintf(name, sizeof name, "ramet-test-%d", (int)getpid());
    if (geteuid() != 0 || cgroup_host_open(name, NULL, NULL, &host, &err) < 0)
        skip();
    if (cgroup_host_make(host, "sbx_1", &limits, fds, &count, &err) < 0) {
        cgroup_host_close(host);
        print_message("skipped: %s\n", err.text);
        skip();
    }
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        for (unsigned i = 0; i < count; i++)
            if (write(fds[i], "0", 1) != 1)
                _exit(1);
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 2);
    }
    cgroup_host_each(host, count_own, &seen);
    assert_int_equal(seen, count);
    close(ends[0]);
    close(ends[1]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    assert_int_equal(cgroup_host_remove(host, "sbx_1"), 0);
    assert_int_equal(cgroup_host_remove(host, "sbx_1"), 0); // as often as one likes
    seen = 0;
    cgroup_host_each(host, count_own, &seen);
    assert_int_equal(seen, 0);
    cgroup_host_close(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(version_1, set_up, tear_down),
            cmocka_unit_test_setup_teardown(version_1_without_some, set_up, tear_down),
            cmocka_unit_test_setup_teardown(version_2, set_up, tear_down),
            cmocka_unit_test_setup_teardown(neither, set_up, tear_down),
            cmocka_unit_test(a_real_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
