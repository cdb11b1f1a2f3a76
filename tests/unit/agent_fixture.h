// SPDX-License-Identifier: Apache-2.0
// Runs the real agent beside the test (ramet-guest-test --test) and connects the real client to it.
#pragma once

#include "vmglue/agent_client.h"
#include "vmglue/agent_protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 120000 }; // of calls that are to succeed: it only ends a test that would hang

struct guest {
    pid_t pid;
    char directory[64], socket_path[100];
    struct agent *agent;
};

static inline const char *guest_program(void)
{
    static char path[PATH_MAX + 40];
    const char *libexec = getenv("RAMET_LIBEXEC");
    char self[PATH_MAX] = "";
    ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(got > 0);
    *strrchr(self, '/') = 0;
    snprintf(path, sizeof path, "%s/%s", libexec ? libexec : self,
            libexec ? "ramet-guest-test" : "../vmglue/ramet-guest-test");
    return path;
}

// uid 0 = as we are.
static inline void guest_start(struct guest *guest, uid_t uid)
{
    strcpy(guest->directory, "/tmp/ramet-agent-XXXXXX");
    assert_non_null(mkdtemp(guest->directory));
    assert_int_equal(chmod(guest->directory, 0777), 0);
    snprintf(guest->socket_path, sizeof guest->socket_path, "%s/agent.sock", guest->directory);
    guest->agent = NULL;
    guest->pid = fork();
    if (guest->pid == 0) {
        if (uid != 0 && setuid(uid) < 0)
            _exit(1);
        execl(guest_program(), "ramet-guest-test", "--test", guest->socket_path, guest->directory,
                (char *)NULL);
        perror(guest_program());
        _exit(1);
    }
    // A VMM has its socket when it is asked, and the client waits no longer for one: this agent may need time
    // to come to it.
    struct error err = {0};
    int result = -EPIPE;
    for (int tries = 0;
            result == -EPIPE && tries < PATIENCE_MS / 2000 && waitpid(guest->pid, NULL, WNOHANG) == 0;
            tries++)
        result = agent_connect(guest->socket_path, PATIENCE_MS, &guest->agent, &err);
    if (result < 0)
        fail_msg("agent_connect: %s", err.text);
}

static inline void guest_stop(struct guest *guest)
{
    agent_disconnect(guest->agent);
    kill(guest->pid, SIGUSR1);
    int status;
    assert_int_equal(waitpid(guest->pid, &status, 0), guest->pid);
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", guest->directory);
    assert_int_equal(system(command), 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline int setup(void **state)
{
    static struct guest guest;
    guest_start(&guest, 0);
    *state = &guest;
    return 0;
}

static inline int teardown(void **state)
{
    guest_stop(*state);
    return 0;
}

static inline struct agent_exec_result run(struct guest *guest, const struct agent_exec *exec)
{
    struct agent_exec_result result;
    struct error err;
    if (agent_exec_run(guest->agent, exec, &result, &err) < 0)
        fail_msg("agent_exec_run: %s", err.text);
    return result;
}

static inline struct agent_exec_result shell(struct guest *guest, const char *command)
{
    return run(guest, &(struct agent_exec){.shell_command = command});
}

static inline void assert_shell(struct guest *guest, const char *command, int exit_code, const char *out)
{
    struct agent_exec_result result = shell(guest, command);
    if (result.exit_code != exit_code || strcmp(result.out, out) != 0)
        fail_msg("%s: exit %d, out \"%.200s\", err \"%.200s\"", command, result.exit_code, result.out,
                result.err);
    agent_exec_result_free(&result);
}

static inline bool have_cgroup(struct guest *guest)
{
    struct agent_exec_result result = shell(guest, "grep -q '^0::.*/user/exec-' /proc/self/cgroup");
    bool have = result.exit_code == 0;
    agent_exec_result_free(&result);
    if (!have)
        print_message("skipped: needs root and cgroup v2\n");
    return have;
}
