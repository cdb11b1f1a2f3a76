// SPDX-License-Identifier: Apache-2.0
#include "vmglue/vm_process.h"

#include "blockstore/fd.h"
#include "vmglue/vm_confine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OOM_SCORE "500"
enum { FIRST_FD = 3, SAFE_FD = 64, FDS_MAX = 8 };

static int pid_fd_open(pid_t pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

static int add_file_actions(
        posix_spawn_file_actions_t *actions, const struct vm_process_spawn *spawn, const int *fds)
{
    int error = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(
                actions, 1, spawn->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(actions, 1, 2);
    for (unsigned i = 0; i < spawn->fd_count && error == 0; i++)
        error = posix_spawn_file_actions_adddup2(actions, fds[i], FIRST_FD + (int)i);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(actions, FIRST_FD + (int)spawn->fd_count);
    if (error == 0 && spawn->working_dir != NULL)
        error = posix_spawn_file_actions_addchdir_np(actions, spawn->working_dir);
    return error;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int error = posix_spawnattr_setflags(
            attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (error == 0)
        error = posix_spawnattr_setsigmask(attributes, &none);
    if (error == 0)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    return error;
}

static int spawn_with(const struct vm_process_spawn *spawn, const int *fds, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int error = add_file_actions(&actions, spawn, fds);
    if (error == 0)
        error = set_attributes(&attributes);
    if (error == 0)
        error = posix_spawnp(
                ret_pid, spawn->argv[0], &actions, &attributes, spawn->argv, (char *const *)spawn->env);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return -error;
}

// ---- A child in namespaces of its own ----
// posix_spawn knows nothing of them. The child shares the daemon's memory until it executes, as there: a copy
// of the page tables of a daemon with a large cache would cost more than all else. So it makes system calls,
// and nothing more.

//
// It holds copies of all that the daemon has open (connections, the lock of the run directory), and a daemon
// may be killed meanwhile: so it lets go of these first, touches no file that the daemon serves, and ends
// with its parent until it is what it was started for.

enum { CHILD_STACK_BYTES = 64 << 10, LAST_SIGNAL = 64, CHILD_FDS_MAX = FDS_MAX + VM_CONFINE_FDS + 2 };

struct child {
    const struct vm_process_spawn *spawn;
    // Copies far away from 3, 4, ..., in the order in which the child gets them: the caller's, what the
    // confinement needs (or the network namespace alone), and last its log and /dev/null.
    int fds[CHILD_FDS_MAX];
    unsigned count;
    int result; // -errno of what failed
    unsigned step;
};

static int add_fd(struct child *child, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, SAFE_FD);
    if (copy < 0)
        return -errno;
    child->fds[child->count++] = copy;
    return 0;
}

static int keep_fds(const struct child *child)
{
    unsigned own = child->spawn->fd_count;
    int log_fd = child->fds[child->count - 2], null_fd = child->fds[child->count - 1];
    if (dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        return -errno;
    for (unsigned i = 0; i < child->count - 2; i++)
        if (dup3(child->fds[i], FIRST_FD + (int)i, i < own ? 0 : O_CLOEXEC) < 0)
            return -errno;
    return close_range(FIRST_FD + child->count - 2, ~0u, 0) == 0 ? 0 : -errno;
}

static void default_signals(bool confined)
{
    struct sigaction plain = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN};
    sigset_t none;
    for (int number = 1; number <= LAST_SIGNAL; number++)
        sigaction(number, &plain, NULL); // some cannot be set
    if (confined)
        sigaction(SIGXFSZ, &ignore, NULL); // a full log is an error to its writer, and not the end of a VMM
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static int enter_namespaces(struct child *child)
{
    const struct vm_process_spawn *spawn = child->spawn;
    int next = FIRST_FD + (int)spawn->fd_count;
    if (spawn->confine != NULL)
        return vm_confine_enter(spawn->confine, next, spawn->netns_fd > 0, &child->step);
    return setns(next, CLONE_NEWNET) == 0 ? 0 : -errno;
}

static int run_child(void *context)
{
    struct child *child = context;
    const struct vm_process_spawn *spawn = child->spawn;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    child->result = keep_fds(child);
    setsid();
    if (child->result == 0)
        child->result = enter_namespaces(child);
    if (child->result == 0 && spawn->working_dir != NULL && chdir(spawn->working_dir) != 0)
        child->result = -errno;
    if (child->result == 0) {
        default_signals(spawn->confine != NULL);
        prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); // from here on it outlives the daemon
        execvpe(spawn->argv[0], spawn->argv, (char *const *)spawn->env);
        child->result = -errno;
    }
    syscall(SYS_exit_group, 127);
    return 127;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int dumpable; // before the first child

static void read_dumpable(void)
{
    dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
}

static int clone_child(struct child *child, pid_t *ret_pid)
{
    char *stack = mmap(NULL, CHILD_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return -errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the daemon's handlers must not run in the child
    // Where a process gives up privileges its memory may no longer be looked at: here also the daemon's. What
    // it is now may be another child's doing.
    pthread_once(&once, read_dumpable);
    unsigned flags = child->spawn->confine != NULL ? vm_confine_clone_flags(child->spawn->netns_fd) : 0;
    int pid = clone(
            run_child, stack + CHILD_STACK_BYTES, (int)(CLONE_VM | CLONE_VFORK | SIGCHLD | flags), child);
    int error = errno;
    if (dumpable == 1)
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stack, CHILD_STACK_BYTES);
    if (pid < 0)
        return -error;
    if (child->result < 0) {
        waitpid(pid, NULL, 0);
        return child->result;
    }
    *ret_pid = pid;
    return 0;
}

// What the child needs besides, in its order.
static int add_needed(struct child *child)
{
    const struct vm_process_spawn *spawn = child->spawn;
    int trees[VM_CONFINE_FDS];
    unsigned count = 0;
    int result = spawn->confine != NULL ? vm_confine_take(spawn->confine, trees, &count) : 0;
    for (unsigned i = 0; i < count; i++) {
        if (result == 0)
            result = add_fd(child, trees[i]);
        close(trees[i]);
    }
    for (unsigned i = 0; spawn->confine != NULL && i < spawn->confine->cgroup_count && result == 0; i++)
        result = add_fd(child, spawn->confine->cgroup_fds[i]);
    if (result == 0 && spawn->netns_fd > 0)
        result = add_fd(child, spawn->netns_fd);
    return result;
}

static int add_streams(struct child *child)
{
    int log_fd = open(child->spawn->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600),
        null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int result = log_fd < 0 || null_fd < 0 ? -errno : add_fd(child, log_fd);
    if (result == 0)
        result = add_fd(child, null_fd);
    if (log_fd >= 0)
        close(log_fd);
    if (null_fd >= 0)
        close(null_fd);
    return result;
}

static int spawn_apart(const struct vm_process_spawn *spawn, pid_t *ret_pid, struct error *err)
{
    struct child child = {.spawn = spawn, .step = UINT_MAX};
    int result = 0;
    for (unsigned i = 0; i < spawn->fd_count && result == 0; i++)
        result = add_fd(&child, spawn->fds[i]);
    if (result == 0 && (result = add_needed(&child)) < 0)
        child.step = VM_CONFINE_STEP_TAKE;
    if (result == 0)
        result = add_streams(&child);
    if (result == 0)
        result = clone_child(&child, ret_pid);
    while (child.count > 0)
        close(child.fds[--child.count]);
    if (result < 0 && spawn->confine != NULL)
        return error_set(err, result, "cannot start %s confined: %s: %s", spawn->argv[0],
                vm_confine_step(child.step), strerror(-result));
    return result < 0 ? error_set(err, result, "cannot start %s: %s", spawn->argv[0], strerror(-result)) : 0;
}

// A machine can be started again, and frees much: when the host is out of memory it goes before the daemon,
// whose own score it would inherit.
static void be_ended_first(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, OOM_SCORE, sizeof OOM_SCORE - 1) < 0)
        errno = 0; // not permitted, or dead already
    close(fd);
}

// Without namespaces: what posix_spawn can do.
static int spawn_here(const struct vm_process_spawn *spawn, pid_t *ret_pid, struct error *err)
{
    int fds[FDS_MAX] = {0}, result = 0;
    unsigned copied = 0;
    // Copies far away from 3, 4, ..., so that one dup2 does not overwrite the source of the next.
    for (; result == 0 && copied < spawn->fd_count; copied++) {
        fds[copied] = fcntl(spawn->fds[copied], F_DUPFD_CLOEXEC, SAFE_FD);
        if (fds[copied] < 0) {
            result = -errno;
            break;
        }
    }
    if (result == 0)
        result = spawn_with(spawn, fds, ret_pid);
    for (unsigned i = 0; i < copied; i++)
        close(fds[i]);
    return result < 0 ? error_set(err, result, "cannot start %s: %s", spawn->argv[0], strerror(-result)) : 0;
}

int vm_process_spawn(const struct vm_process_spawn *spawn, struct vm_process_identity *ret_identity,
        int *ret_pid_fd, struct error *err)
{
    pid_t pid = 0;
    int result;
    if (spawn->fd_count > FDS_MAX)
        return error_set(err, -EINVAL, "a VMM cannot be given more than %d descriptors", FDS_MAX);
    if (spawn->confine != NULL || spawn->netns_fd > 0)
        result = spawn_apart(spawn, &pid, err);
    else
        result = spawn_here(spawn, &pid, err);
    if (result < 0)
        return result;

    // Not yet waited for, so the pid cannot mean anybody else.
    int pid_fd = pid_fd_open(pid);
    struct vm_process_identity identity = {.pid = pid};
    result = pid_fd < 0 ? pid_fd : 0;
    if (result == 0)
        be_ended_first(pid);
    if (result == 0)
        vm_process_identify(pid, &identity); // fails only when it is dead already, which the pidfd will tell
    if (result < 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return error_set(err, result, "cannot watch the process %s: %s", spawn->argv[0], strerror(-result));
    }
    *ret_identity = identity;
    *ret_pid_fd = pid_fd;
    return 0;
}

// Reads a whole small /proc file; the result ends with a zero. Returns its size or -errno.
static ssize_t read_proc(pid_t pid, const char *name, char *buffer, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fd_read_text(AT_FDCWD, path, buffer, size);
}

int vm_process_identify(pid_t pid, struct vm_process_identity *ret_identity)
{
    char text[2048], path[64];
    if (read_proc(pid, "stat", text, sizeof text) <= 0)
        return -ESRCH;
    // The name in field 2 may hold anything; the fields after it start behind the last parenthesis.
    char *at = strrchr(text, ')');
    unsigned long long start = 0;
    char state = 0;
    if (at == NULL ||
            sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                    &state, &start) != 2)
        return -ESRCH;
    struct stat exe;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    if (state == 'Z' || state == 'X' || stat(path, &exe) != 0)
        return -ESRCH;
    *ret_identity = (struct vm_process_identity){
            .pid = pid, .start_time_ticks = start, .exe_device = exe.st_dev, .exe_inode = exe.st_ino};
    return 0;
}

int vm_process_open(const struct vm_process_identity *identity, int *ret_pid_fd)
{
    int pid_fd = pid_fd_open(identity->pid);
    if (pid_fd < 0)
        return pid_fd;
    struct vm_process_identity now;
    int result = vm_process_identify(identity->pid, &now);
    if (result == 0 &&
            (now.start_time_ticks != identity->start_time_ticks || now.exe_device != identity->exe_device ||
                    now.exe_inode != identity->exe_inode))
        result = -ESRCH;
    if (result < 0) {
        close(pid_fd);
        return result;
    }
    *ret_pid_fd = pid_fd;
    return 0;
}

bool vm_process_has_tag(pid_t pid, const char *tag, char *ret_id, size_t id_size)
{
    char text[16 << 10];
    ssize_t size = read_proc(pid, "cmdline", text, sizeof text);
    size_t tag_size = strlen(tag);
    const char *end = text + (size > 0 ? size : 0);
    for (const char *word = text; word < end; word += strlen(word) + 1) {
        if (strcmp(word, "-name") != 0 || word + 6 >= end)
            continue;
        const char *name = word + 6;
        if (strncmp(name, tag, tag_size) != 0 || name[tag_size] != '/')
            return false;
        if (ret_id != NULL)
            snprintf(ret_id, id_size, "%s", name + tag_size + 1);
        return true;
    }
    return false;
}

int vm_process_take_fd(pid_t pid, int pid_fd, const char *kind, int *ret_fd)
{
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return -errno;
    int result = -ENOENT;
    struct dirent *entry;
    while (result == -ENOENT && (entry = readdir(folder)) != NULL) {
        ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        if (size <= 0)
            continue;
        target[size] = 0;
        if (strcmp(target, kind) != 0)
            continue;
        long fd = syscall(SYS_pidfd_getfd, pid_fd, atoi(entry->d_name), 0);
        result = fd < 0 ? -errno : 0;
        if (fd >= 0)
            *ret_fd = (int)fd;
    }
    closedir(folder);
    return result;
}

int vm_process_wait(int pid_fd, unsigned timeout_ms)
{
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    int got;
    do
        got = poll(&poll_fd, 1, (int)timeout_ms);
    while (got < 0 && errno == EINTR);
    if (got == 0)
        return -ETIMEDOUT;
    if (got < 0)
        return -errno;
    siginfo_t info;
    waitid(P_PIDFD, (id_t)pid_fd, &info, WEXITED | WNOHANG); // ECHILD: another daemon's child, reaped by init
    return 0;
}

void vm_process_reap(int pid_fd, char *buffer, size_t size)
{
    siginfo_t info = {0};
    buffer[0] = 0;
    if (waitid(P_PIDFD, (id_t)pid_fd, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
        return; // another daemon's child: init knows
    if (info.si_code == CLD_EXITED)
        snprintf(buffer, size, "ended with code %d", info.si_status);
    else if (info.si_status == SIGBUS) // what a mapping answers with when its file cannot give a page
        snprintf(buffer, size,
                "was killed by SIGBUS: a page of its memory image is damaged or cannot be read");
    else
        snprintf(buffer, size, "was killed by signal %d (%s)", info.si_status, strsignal(info.si_status));
}

int vm_process_kill(int pid_fd, unsigned timeout_ms)
{
    if (syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, NULL, 0) != 0 && errno != ESRCH)
        return -errno;
    return vm_process_wait(pid_fd, timeout_ms);
}

void vm_process_last_words(const char *log_path, char *buffer, size_t size)
{
    buffer[0] = 0;
    int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    struct stat stat;
    off_t start = fstat(fd, &stat) == 0 && stat.st_size >= (off_t)size ? stat.st_size - (off_t)size + 1 : 0;
    ssize_t got = pread(fd, buffer, size - 1, start);
    close(fd);
    size_t used = got > 0 ? (size_t)got : 0;
    while (used > 0 && strchr(" \r\n\t", buffer[used - 1]) != NULL)
        used--;
    buffer[used] = 0;
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)buffer[i] < ' ')
            buffer[i] = buffer[i] == '\n' ? ';' : ' ';
    }
}
