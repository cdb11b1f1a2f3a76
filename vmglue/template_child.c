// SPDX-License-Identifier: Apache-2.0
#include "vmglue/template_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { ASK_MS = 100, NICE = 10, STATUS_NO_START = 126, OUTPUT_BYTES = 16384 };

__attribute__((noreturn)) static void give_up(const char *what)
{
    const char *why = strerrordesc_np(errno);
    ssize_t ignored = write(STDERR_FILENO, what, strlen(what));
    ignored += write(STDERR_FILENO, ": ", 2);
    ignored += write(STDERR_FILENO, why, why == NULL ? 0 : strlen(why));
    ignored += write(STDERR_FILENO, "\n", 1);
    (void)ignored;
    _exit(STATUS_NO_START);
}

// Between clone and exec of a process with threads: system calls alone.
__attribute__((noreturn)) static void run_child(
        const struct template_child *child, int go_fd, int output_fd, int null_fd)
{
    char go;
    sigset_t none;
    sigemptyset(&none);
    dup2(null_fd, STDIN_FILENO);
    dup2(output_fd, STDOUT_FILENO);
    dup2(output_fd, STDERR_FILENO);
    dup2(go_fd, 3);
    close_range(4, ~0u, 0);
    // The parent writes a byte: what died before this call could not be noticed by it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || read(3, &go, 1) != 1)
        _exit(STATUS_NO_START);
    close(3);
    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        signal(signal_number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    setpriority(PRIO_PROCESS, 0, NICE);
    umask(022);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        give_up("the builder cannot have mounts of its own");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        give_up("the builder cannot have a /proc of its own");
    if (chdir(child->folder) < 0)
        give_up(child->folder);
    execv(child->argv[0], (char *const *)child->argv);
    give_up(child->argv[0]);
}

// Reads until every process of the child's namespace has let go of the output.
static int follow(const struct template_child *child, pid_t pid, int output_fd)
{
    char bytes[OUTPUT_BYTES];
    unsigned long limit = clock_monotonic_ms() + child->timeout_ms;
    int result = 0;
    for (;;) {
        struct pollfd poll_fd = {.fd = output_fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, ASK_MS);
        if (ready > 0) {
            ssize_t got = read(output_fd, bytes, sizeof bytes);
            if (got == 0 || (got < 0 && errno != EINTR))
                return result;
            if (got > 0)
                child->on_output(child->context, bytes, (size_t)got);
        }
        if (result == 0 && child->cancelled(child->context))
            result = -ECANCELED;
        else if (result == 0 && clock_monotonic_ms() > limit)
            result = -ETIMEDOUT;
        else
            continue;
        kill(pid, SIGKILL);
    }
}

static int wait_for(pid_t pid, int result, unsigned timeout_ms, struct error *err)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (result == -ECANCELED)
        return error_set(err, result, "the build was cancelled");
    if (result == -ETIMEDOUT)
        return error_set(
                err, result, "the builder took longer than %u minutes and was ended", timeout_ms / 60000);
    if (WIFSIGNALED(status))
        return error_set(err, -EIO, "the builder was ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        return error_set(
                err, -EIO, "the builder failed (exit status %d); the log says why", WEXITSTATUS(status));
    return 0;
}

int template_child_run(const struct template_child *child, struct error *err)
{
    int output[2] = {-1, -1}, go[2] = {-1, -1}, null_fd = open("/dev/null", O_RDWR | O_CLOEXEC), r = 0;
    if (null_fd < 0 || pipe2(output, O_CLOEXEC) < 0 || pipe2(go, O_CLOEXEC) < 0) {
        r = error_set(err, -errno, "no descriptors for the builder: %s", strerror(errno));
        goto out;
    }
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        close(go[1]);
        run_child(child, go[0], output[1], null_fd);
    }
    if (pid < 0) {
        r = errno == EPERM ? error_set(err, -EPERM,
                                     "building needs root, to give files their owners: run "
                                     "the daemon as root, or bring a disk (--disk)")
                           : error_set(err, -errno, "the builder cannot be started: %s", strerror(errno));
        goto out;
    }
    close(output[1]);
    output[1] = -1;
    if (write(go[1], "g", 1) != 1)
        kill(pid, SIGKILL);
    r = wait_for(pid, follow(child, pid, output[0]), child->timeout_ms, err);
out:
    for (int i = 0; i < 2; i++) {
        if (output[i] >= 0)
            close(output[i]);
        if (go[i] >= 0)
            close(go[i]);
    }
    if (null_fd >= 0)
        close(null_fd);
    return r;
}
