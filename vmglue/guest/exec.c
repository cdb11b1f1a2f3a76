// SPDX-License-Identifier: Apache-2.0
// EXEC request: u32 flags, u64 timeout_ms, user, cwd, u32 count and arguments (one, the command, for a
// shell), u32 count and environment. All that can block or fail is done in the child: looking up the user,
// entering the directory, execve.
#include "vmglue/guest/exec.h"

#include "vmglue/guest/job.h"
#include "vmglue/guest/users.h"

#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 65536 };

struct exec_request {
    bool shell;
    const char *user, *cwd;
    const char **arguments, **environment; // NULL-terminated
};

static int fail(enum job_stage stage, int code, const char *format, ...)
{
    struct job_failure failure = {.stage = stage, .code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(failure.sentence, sizeof failure.sentence, format, args);
    va_end(args);
    ssize_t ignored = write(JOB_STATUS_FD, &failure, sizeof failure);
    (void)ignored;
    return code == -ENOENT ? 127 : 126;
}

// A base that a login would have; what the caller gives comes after and wins.
static int make_environment(const struct exec_request *request, const struct users_entry *user)
{
    static const char path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    clearenv();
    setenv("PATH", path, 1);
    setenv("HOME", user->home, 1);
    setenv("USER", user->name, 1);
    setenv("LOGNAME", user->name, 1);
    setenv("SHELL", user->shell, 1);
    setenv("LANG", "C.UTF-8", 1);
    for (const char **entry = request->environment; *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');
        char *name = equals == NULL ? NULL : strndup(*entry, (size_t)(equals - *entry));
        if (name == NULL || name[0] == 0 || setenv(name, equals + 1, 1) < 0)
            return fail(JOB_REFUSED, -EINVAL, "environment entry \"%.100s\" is not NAME=value", *entry);
        free(name);
    }
    return 0;
}

static int become(const struct users_entry *user)
{
    // Without root (tests) only the own user can be had.
    if (geteuid() != 0 && geteuid() == user->uid)
        return 0;
    gid_t groups[USERS_GROUPS_MAX + 1];
    memcpy(groups, user->groups, user->group_count * sizeof *groups);
    groups[user->group_count] = user->gid;
    if (setgroups(user->group_count + 1, groups) < 0 || setgid(user->gid) < 0 || setuid(user->uid) < 0)
        return fail(JOB_REFUSED, -errno, "cannot become user %s: %s", user->name, strerror(errno));
    return 0;
}

static int enter(const char *cwd, const struct users_entry *user)
{
    if (cwd[0] != 0) {
        if (cwd[0] != '/' && chdir(user->home) < 0)
            return fail(JOB_REFUSED, -errno, "cannot enter the home directory %s: %s", user->home,
                    strerror(errno));
        if (chdir(cwd) < 0)
            return fail(
                    JOB_REFUSED, -errno, "cannot enter the working directory %s: %s", cwd, strerror(errno));
        return 0;
    }
    if (chdir(user->home) < 0 && chdir("/") < 0)
        return fail(JOB_REFUSED, -errno, "cannot enter %s nor /: %s", user->home, strerror(errno));
    return 0;
}

static int execute(const struct exec_request *request)
{
    const char *name = request->arguments[0];
    if (request->shell) {
        const char *shell[] = {"bash", "-c", name, NULL};
        execv("/bin/bash", (char **)shell);
        if (errno == ENOENT) {
            shell[0] = "sh";
            execv("/bin/sh", (char **)shell);
        }
        name = "/bin/sh";
    } else {
        execvp(name, (char **)request->arguments);
    }
    int code = -errno;
    if (code == -E2BIG)
        return fail(
                JOB_NOT_EXECUTED, code, "the arguments and the environment are larger than the kernel takes");
    return fail(JOB_NOT_EXECUTED, code, "%s: %s\n", name, strerror(-code));
}

static int exec_child(void *argument)
{
    const struct exec_request *request = argument;
    struct users_entry user;
    if (users_find(request->user, &user) < 0)
        return fail(JOB_REFUSED, -EINVAL,
                "there is no user \"%s\" in this machine; name one of its /etc/passwd", request->user);
    int result = make_environment(request, &user);
    if (result == 0)
        result = become(&user);
    if (result == 0)
        result = enter(request->cwd, &user);
    return result == 0 ? execute(request) : result;
}

static const char **read_strings(struct agent_cursor *cursor)
{
    uint32_t count = agent_cursor_u32(cursor);
    if (count > ARGUMENTS_MAX)
        cursor->bad = true;
    const char **strings = cursor->bad ? NULL : calloc((size_t)count + 1, sizeof *strings);
    for (uint32_t i = 0; strings != NULL && i < count; i++)
        strings[i] = agent_cursor_string(cursor);
    return strings;
}

static void explain(uint32_t stream, int code)
{
    char text[200];
    if (code == -EAGAIN)
        snprintf(
                text, sizeof text, "the machine has reached its limit of processes; end some, or restart it");
    else
        snprintf(text, sizeof text, "cannot start a process: %s", strerror(-code));
    job_result(stream, code, text, NULL);
}

void exec_start(uint32_t stream, struct agent_cursor fields)
{
    uint32_t flags = agent_cursor_u32(&fields);
    uint64_t timeout_ms = agent_cursor_u64(&fields);
    struct exec_request request = {.shell = flags & AGENT_EXEC_SHELL};
    request.user = agent_cursor_string(&fields);
    request.cwd = agent_cursor_string(&fields);
    request.arguments = read_strings(&fields);
    request.environment = read_strings(&fields);
    if (fields.bad || request.arguments == NULL || request.environment == NULL ||
            request.arguments[0] == NULL) {
        job_result(stream, -EINVAL, "the exec request cannot be read, or has no command", NULL);
    } else {
        struct job_config config = {.stream = stream,
                .exec = true,
                .input = flags & AGENT_EXEC_STDIN,
                .timeout_ms = timeout_ms,
                .operation = AGENT_EXEC,
                .child = exec_child,
                .argument = &request};
        int result = job_start(&config);
        if (result < 0)
            explain(stream, result);
    }
    free(request.arguments);
    free(request.environment);
}
