// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/job_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// The child's end and ours of each pipe; -1 = none. Of a terminal, the child has its slave.
struct ends {
    int child[5], ours[5];
    bool terminal;
};

enum { PIPE_INPUT = 0, PIPE_OUT = 1, PIPE_ERR = 2, PIPE_STATUS = JOB_STATUS_FD, PIPE_COMMIT = JOB_COMMIT_FD };

static void ends_close(struct ends *ends, bool ours_too)
{
    for (int i = 0; i < 5; i++) {
        if (ends->child[i] >= 0)
            close(ends->child[i]);
        if (ours_too && ends->ours[i] >= 0)
            close(ends->ours[i]);
    }
}

static int ends_make(struct ends *ends, const bool wanted[5])
{
    memset(ends, -1, sizeof *ends);
    ends->terminal = false;
    for (int i = 0; i < 5; i++) {
        int both[2];
        if (!wanted[i])
            continue;
        if (pipe2(both, O_CLOEXEC) < 0) {
            int result = -errno;
            ends_close(ends, true);
            return result;
        }
        bool child_reads = i == PIPE_INPUT || i == PIPE_COMMIT;
        ends->child[i] = both[child_reads ? 0 : 1];
        ends->ours[i] = both[child_reads ? 1 : 0];
        fcntl(ends->ours[i], F_SETFL, O_NONBLOCK);
    }
    return 0;
}

static int terminal_make(struct ends *ends, const struct job_terminal *terminal)
{
    struct winsize size = {
            .ws_row = (unsigned short)terminal->rows, .ws_col = (unsigned short)terminal->columns};
    int unlocked = 0, slave = -1, master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master >= 0 && ioctl(master, TIOCSPTLCK, &unlocked) == 0 && ioctl(master, TIOCSWINSZ, &size) == 0)
        slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    int other = slave < 0 ? -1 : fcntl(master, F_DUPFD_CLOEXEC, 0);
    if (other < 0) {
        int result = -errno;
        if (slave >= 0)
            close(slave);
        if (master >= 0)
            close(master);
        return result;
    }
    ends->terminal = true;
    ends->ours[PIPE_INPUT] = other;
    ends->ours[PIPE_OUT] = master;
    ends->child[PIPE_INPUT] = slave;
    return 0;
}

// Descriptors 0 to 4 of the agent are always taken (main.c), so that no end is overwritten before it is used.
static void child_descriptors(const struct ends *ends)
{
    for (int i = 0; i < 5; i++) {
        if (ends->terminal && i <= PIPE_ERR)
            dup2(ends->child[PIPE_INPUT], i);
        else if (ends->child[i] >= 0)
            dup3(ends->child[i], i, i >= PIPE_STATUS ? O_CLOEXEC : 0);
        else if (i <= PIPE_ERR) {
            int null = open("/dev/null", i == PIPE_INPUT ? O_RDONLY : O_WRONLY);
            if (null >= 0) {
                dup2(null, i);
                close(null);
            }
        } else {
            close(i);
        }
    }
    syscall(SYS_close_range, 5u, ~0u, 0u);
    if (ends->terminal)
        ioctl(STDIN_FILENO, TIOCSCTTY, 0);
}

static void child_defaults(bool exec)
{
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < 65; number++)
        signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    struct rlimit files = {.rlim_cur = 1024, .rlim_max = 524288};
    setrlimit(RLIMIT_NOFILE, &files);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        const char *score = exec ? "0" : "-900";
        ssize_t ignored = write(fd, score, strlen(score));
        (void)ignored;
        close(fd);
    }
    if (exec)
        setsid();
}

static int child_refused(int code)
{
    struct job_failure failure = {
            .stage = JOB_REFUSED, .code = code, .sentence = "cannot enter the cgroup namespace"};
    ssize_t ignored = write(JOB_STATUS_FD, &failure, sizeof failure);
    (void)ignored;
    return 126;
}

// The child begins inside its cgroup: there is no moment in which it is not in it.
static pid_t clone_into(int cgroup_fd)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (cgroup_fd >= 0) {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup_fd;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

int job_spawn(struct job *job, const struct job_config *config)
{
    struct ends ends;
    bool pipes = config->terminal == NULL;
    bool wanted[5] = {
            config->input && pipes, pipes, config->exec && pipes, true, config->input && !config->exec};
    int result = ends_make(&ends, wanted);
    if (result < 0)
        return result;
    if (!pipes && (result = terminal_make(&ends, config->terminal)) < 0) {
        ends_close(&ends, true);
        return result;
    }
    int cgroup_fd = config->exec ? cgroup_exec_make(job->id) : -1;
    // Outside of the user cgroup it would run on while the machine is frozen, and draw what its copies draw.
    if (config->exec && cgroup_fd < 0 && cgroup_available()) {
        ends_close(&ends, true);
        return cgroup_fd;
    }
    pid_t pid = clone_into(cgroup_fd);
    if (pid == 0) {
        int entered = config->exec ? cgroup_enter() : 0;
        child_defaults(config->exec);
        child_descriptors(&ends);
        _exit(entered < 0 ? child_refused(entered) : config->child(config->argument));
    }
    result = pid < 0 ? -errno : 0;
    if (cgroup_fd >= 0)
        close(cgroup_fd);
    ends_close(&ends, pid < 0);
    if (pid < 0) {
        if (config->exec)
            cgroup_exec_done(job->id);
        return result;
    }
    job->pid = pid;
    job->terminal = ends.terminal;
    job->in.job = job;
    job->in.source.fd = ends.ours[PIPE_INPUT];
    for (unsigned i = 0; i < 2; i++) {
        job->out[i] = (struct job_output){.source.fd = ends.ours[PIPE_OUT + i],
                .job = job,
                .channel = i + 1,
                .credit = AGENT_WINDOW_BYTES,
                .remaining = UINT64_MAX};
    }
    job->status_fd = ends.ours[PIPE_STATUS];
    job->commit_fd = ends.ours[PIPE_COMMIT];
    return 0;
}
