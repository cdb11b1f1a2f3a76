// SPDX-License-Identifier: Apache-2.0
// EXEC request: u32 flags, u64 timeout_ms, user, cwd, u32 count and arguments (one, the command, for a
// shell), u32 count and environment. PTY has u32 rows, u32 columns and the terminal's name before that, and
// no argument means the user's login shell; JOB_START has a name, and u32 count and bytes of input. All that
// can block or fail is done in the child: looking up the user, entering the directory, execve.
#include "vmglue/guest/exec.h"

#include "vmglue/guest/background.h"
#include "vmglue/guest/job.h"
#include "vmglue/guest/port.h"
#include "vmglue/guest/users.h"

#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 65536, TERMINAL_SIZE_MAX = 4096 };

struct exec_request {
    bool shell;
    const char *term; // NULL = no terminal
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
    if (request->term != NULL)
        setenv("TERM", request->term, 1);
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

// Its name begins with a dash: that is how a shell knows that it is a login shell.
static const char *login_shell(const struct users_entry *user)
{
    static char name[300];
    const char *slash = strrchr(user->shell, '/');
    snprintf(name, sizeof name, "-%s", slash != NULL ? slash + 1 : user->shell);
    execl(user->shell, name, (char *)NULL);
    execl("/bin/sh", "-sh", (char *)NULL);
    return user->shell;
}

static int execute(const struct exec_request *request, const struct users_entry *user)
{
    const char *name = request->arguments[0];
    if (name == NULL) {
        name = login_shell(user);
    } else if (request->shell) {
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
    if (request->term != NULL && geteuid() == 0 && fchown(STDIN_FILENO, user.uid, (gid_t)-1) < 0)
        result = fail(JOB_REFUSED, -errno, "cannot give the terminal to %s: %s", user.name, strerror(errno));
    if (result == 0)
        result = become(&user);
    if (result == 0)
        result = enter(request->cwd, &user);
    return result == 0 ? execute(request, &user) : result;
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

// What PTY and JOB_START have before EXEC's fields.
struct exec_before {
    struct job_terminal terminal;
    const char *term, *name, *mark;
    uint32_t input_size;
    const uint8_t *input;
};

static struct exec_before read_before(enum agent_operation operation, struct agent_cursor *fields)
{
    struct exec_before before = {0};
    if (operation == AGENT_PTY) {
        before.terminal.rows = agent_cursor_u32(fields);
        before.terminal.columns = agent_cursor_u32(fields);
        before.term = agent_cursor_string(fields);
        if (!exec_terminal_size(&before.terminal))
            fields->bad = true;
    }
    if (operation == AGENT_JOB_START) {
        before.name = agent_cursor_string(fields);
        before.input_size = agent_cursor_u32(fields);
        if (before.input_size > AGENT_JOB_INPUT_MAX)
            fields->bad = true;
        before.input = agent_cursor_bytes(fields, before.input_size);
    }
    return before;
}

bool exec_terminal_size(const struct job_terminal *terminal)
{
    return terminal->rows >= 1 && terminal->columns >= 1 && terminal->rows <= TERMINAL_SIZE_MAX &&
           terminal->columns <= TERMINAL_SIZE_MAX;
}

static int copy_input(const struct exec_before *before, struct job_config *config)
{
    if (before->input_size == 0)
        return 0;
    config->input = true;
    config->input_size = before->input_size;
    config->input_bytes = malloc(before->input_size);
    if (config->input_bytes == NULL)
        return -ENOMEM;
    memcpy(config->input_bytes, before->input, before->input_size);
    return 0;
}

static void start(uint32_t stream, enum agent_operation operation, const struct exec_before *before,
        struct job_config *config, const char *command)
{
    int result = 0;
    if (operation == AGENT_JOB_START) {
        config->background = background_new(stream, before->name, before->mark, command);
        if (config->background == NULL)
            return;
        config->stream = 0;
        result = copy_input(before, config);
    }
    if (operation == AGENT_PTY) {
        config->terminal = &before->terminal;
        config->input = true;
    }
    if (result == 0)
        result = job_start(config);
    if (result == 0) {
        if (operation == AGENT_PTY) // it has begun
            port_send(AGENT_DATA, 2 << AGENT_FLAG_CHANNEL_SHIFT, stream, NULL, 0);
        return;
    }
    free(config->input_bytes);
    if (config->background != NULL)
        background_not_started(config->background);
    explain(stream, result);
}

void exec_start(uint32_t stream, enum agent_operation operation, struct agent_cursor fields)
{
    struct exec_before before = read_before(operation, &fields);
    uint32_t flags = agent_cursor_u32(&fields);
    uint64_t timeout_ms = agent_cursor_u64(&fields);
    struct exec_request request = {.shell = flags & AGENT_EXEC_SHELL, .term = before.term};
    request.user = agent_cursor_string(&fields);
    request.cwd = agent_cursor_string(&fields);
    request.arguments = read_strings(&fields);
    request.environment = read_strings(&fields);
    if (operation == AGENT_JOB_START) // hosts of before say nothing of it
        before.mark = fields.bad || fields.at == fields.end ? "" : agent_cursor_string(&fields);
    bool whole = !fields.bad && request.arguments != NULL && request.environment != NULL;
    const char *command = whole ? request.arguments[0] : NULL;
    if (!whole || (command == NULL && operation != AGENT_PTY)) {
        job_result(stream, -EINVAL, "the exec request cannot be read, or has no command", NULL);
    } else {
        struct job_config config = {.stream = stream,
                .exec = true,
                .input = operation == AGENT_EXEC && flags & AGENT_EXEC_STDIN,
                .timeout_ms = timeout_ms,
                .operation = (uint16_t)operation,
                .child = exec_child,
                .argument = &request};
        start(stream, operation, &before, &config, command);
    }
    free(request.arguments);
    free(request.environment);
}
