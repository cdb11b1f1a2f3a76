// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockstore/fd.h"

// How far down cgroups that processes made themselves are followed.
enum { CGROUP_DEPTH = 8 };

static int root_fd = -1, user_fd = -1, events_fd = -1, namespace_fd = -1;

// Execs that ended and left processes behind.
static uint32_t *leftover;
static size_t leftover_count, leftover_capacity;

static int write_text(int dir, const char *name, const char *text)
{
    int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t written = write(fd, text, strlen(text));
    int result = written < 0 ? -errno : 0;
    close(fd);
    return result;
}

// A fork bomb must leave the kernel enough to run the agent and its helpers.
static void limit_processes(void)
{
    char text[32];
    int proc = open("/proc/sys/kernel", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long limit = 0;
    if (proc >= 0 && fd_read_text(proc, "threads-max", text, sizeof text) > 0)
        limit = atol(text);
    if (proc >= 0 && fd_read_text(proc, "pid_max", text, sizeof text) > 0 && atol(text) < limit)
        limit = atol(text);
    if (proc >= 0)
        close(proc);
    if (limit < 128)
        return;
    snprintf(text, sizeof text, "%ld", limit - limit / 8 - 32);
    write_text(user_fd, "pids.max", text);
}

int cgroup_init(const char *root)
{
    root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return -errno;
    if (faccessat(root_fd, "cgroup.procs", F_OK, 0) < 0) {
        close(root_fd);
        root_fd = -1;
        return -EOPNOTSUPP;
    }
    mkdirat(root_fd, "user", 0755);
    user_fd = openat(root_fd, "user", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (user_fd < 0)
        return -errno;
    events_fd = openat(user_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    // What a container engine or systemd may want to hand on; each alone, since a kernel may not have all.
    static const char *const controllers[] = {"+pids", "+memory", "+cpu", "+cpuset", "+io"};
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++)
        write_text(root_fd, "cgroup.subtree_control", controllers[i]);
    limit_processes();
    return events_fd < 0 ? -errno : 0;
}

// A namespace's root is the cgroup that its maker is in, so a child is born in `user` to make it.
static int make_namespace(void)
{
    int ready[2];
    struct clone_args args = {.flags = CLONE_INTO_CGROUP | CLONE_NEWCGROUP,
            .exit_signal = SIGCHLD,
            .cgroup = (uint64_t)user_fd};
    if (pipe2(ready, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        char wait;
        close(ready[1]);
        ssize_t ignored = read(ready[0], &wait, 1);
        _exit(ignored == 0 ? 0 : 1);
    }
    int result = pid < 0 ? -errno : 0;
    if (pid > 0) {
        char path[40];
        snprintf(path, sizeof path, "/proc/%d/ns/cgroup", (int)pid);
        namespace_fd = open(path, O_RDONLY | O_CLOEXEC);
        result = namespace_fd < 0 ? -errno : 0;
    }
    close(ready[0]);
    close(ready[1]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return result;
}

int cgroup_confine(const char *root)
{
    char user[300];
    snprintf(user, sizeof user, "%s/user", root);
    int result = cgroup_available() ? make_namespace() : -EOPNOTSUPP;
    if (result == 0 && mount(user, root, NULL, MS_BIND, NULL) < 0)
        result = -errno;
    return result;
}

int cgroup_take_self(void)
{
    int result = cgroup_available() ? write_text(user_fd, "cgroup.procs", "0") : -EOPNOTSUPP;
    if (result == 0 && unshare(CLONE_NEWCGROUP) < 0)
        result = -errno;
    return result;
}

int cgroup_enter(void)
{
    return namespace_fd >= 0 && setns(namespace_fd, CLONE_NEWCGROUP) < 0 ? -errno : 0;
}

bool cgroup_available(void)
{
    return events_fd >= 0;
}

static void exec_name(uint32_t id, char ret_name[16])
{
    snprintf(ret_name, 16, "exec-%u", id);
}

int cgroup_exec_make(uint32_t id)
{
    char name[16];
    exec_name(id, name);
    if (!cgroup_available())
        return -EOPNOTSUPP;
    if (mkdirat(user_fd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(user_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cgroup_exec_kill(uint32_t id)
{
    char path[40];
    snprintf(path, sizeof path, "exec-%u/cgroup.kill", id);
    return cgroup_available() ? write_text(user_fd, path, "1") : -EOPNOTSUPP;
}

// The processes in a cgroup, a line each, however many: a text that was cut would name another one by its
// last digits. NULL: there is none (any more).
static FILE *open_members(int dir)
{
    int fd = dir < 0 ? -1 : openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *list = fd < 0 ? NULL : fdopen(fd, "r");
    if (list == NULL && fd >= 0)
        close(fd);
    return list;
}

static int signal_members(int dir, int number)
{
    FILE *list = open_members(dir);
    int reached = 0, pid;
    while (list != NULL && fscanf(list, "%d", &pid) == 1)
        reached += pid > 1 && kill(pid, number) == 0;
    if (list != NULL)
        fclose(list);
    return reached;
}

// Into the cgroups that it made below itself, too. Counts the processes that were reached.
static int signal_below(int dir, int depth, int number)
{
    int reached = signal_members(dir, number);
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        int below = entry->d_type != DT_DIR || entry->d_name[0] == '.' || depth == 0
                            ? -1
                            : openat(dir, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (below < 0)
            continue;
        reached += signal_below(below, depth - 1, number);
        close(below);
    }
    if (entries != NULL)
        closedir(entries);
    return reached;
}

int cgroup_exec_signal(uint32_t id, int signal)
{
    char name[16];
    exec_name(id, name);
    if (!cgroup_available())
        return -EOPNOTSUPP;
    int dir = openat(user_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -ESRCH;
    int reached = signal_below(dir, CGROUP_DEPTH, signal);
    close(dir);
    return reached > 0 ? 0 : -ESRCH;
}

static bool exec_remove(uint32_t id)
{
    char name[16];
    exec_name(id, name);
    return unlinkat(user_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

void cgroup_exec_done(uint32_t id)
{
    if (!cgroup_available() || exec_remove(id))
        return;
    if (leftover_count == leftover_capacity) {
        size_t capacity = leftover_capacity * 2 + 16;
        uint32_t *grown = realloc(leftover, capacity * sizeof *grown);
        if (grown == NULL)
            return; // an empty directory stays
        leftover = grown;
        leftover_capacity = capacity;
    }
    leftover[leftover_count++] = id;
}

void cgroup_sweep(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < leftover_count; i++) {
        if (!exec_remove(leftover[i]))
            leftover[kept++] = leftover[i];
    }
    leftover_count = kept;
}

int cgroup_user_kill(void)
{
    return cgroup_available() ? write_text(user_fd, "cgroup.kill", "1") : -EOPNOTSUPP;
}

static int events_field(const char *name)
{
    char text[256];
    ssize_t got = events_fd < 0 ? -EOPNOTSUPP : pread(events_fd, text, sizeof text - 1, 0);
    if (got < 0)
        return -EIO;
    text[got] = 0;
    const char *at = strstr(text, name);
    return at == NULL ? -EIO : at[strlen(name)] == '1';
}

bool cgroup_user_populated(void)
{
    return events_field("populated ") == 1;
}

int cgroup_freeze(bool frozen)
{
    return cgroup_available() ? write_text(user_fd, "cgroup.freeze", frozen ? "1" : "0") : -EOPNOTSUPP;
}

int cgroup_is_frozen(void)
{
    return events_field("frozen ");
}

int cgroup_events_fd(void)
{
    return events_fd;
}

// True, with its description, when the process is not where frozen and stopped ones wait.
static bool describe_if_unfrozen(int pid, char *ret_text, size_t size)
{
    char path[40], name[64], place[64];
    snprintf(path, sizeof path, "/proc/%d/wchan", pid);
    if (fd_read_text(AT_FDCWD, path, place, sizeof place) <= 0)
        return false;
    static const char *const good[] = {"do_freezer_trap", "get_signal", "do_signal_stop", "ptrace_stop"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (strcmp(place, good[i]) == 0)
            return false;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if (fd_read_text(AT_FDCWD, path, name, sizeof name) <= 0)
        return false;
    name[strcspn(name, "\n")] = 0;
    bool running = strcmp(place, "0") == 0;
    snprintf(ret_text, size, "%s (pid %d, %s%s)", name, pid, running ? "running" : "waiting in ",
            running ? "" : place);
    return true;
}

static bool describe_in(int dir, char *ret_text, size_t size)
{
    FILE *list = open_members(dir);
    int pid;
    bool found = false;
    while (list != NULL && !found && fscanf(list, "%d", &pid) == 1)
        found = describe_if_unfrozen(pid, ret_text, size);
    if (list != NULL)
        fclose(list);
    return found;
}

// Systemd's slices lie several levels deep.
static bool describe_below(int dir, int depth, char *ret_text, size_t size)
{
    if (describe_in(dir, ret_text, size))
        return true;
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    bool found = false;
    for (struct dirent *entry; entries != NULL && !found && (entry = readdir(entries)) != NULL;) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || depth == 0)
            continue;
        int below = openat(dir, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        found = below >= 0 && describe_below(below, depth - 1, ret_text, size);
        if (below >= 0)
            close(below);
    }
    if (entries != NULL)
        closedir(entries);
    return found;
}

void cgroup_describe_unfrozen(char *ret_text, size_t size)
{
    snprintf(ret_text, size, "some process");
    if (user_fd >= 0)
        describe_below(user_fd, CGROUP_DEPTH, ret_text, size);
}

void cgroup_remove_all(void)
{
    if (!cgroup_available())
        return;
    cgroup_freeze(false);
    cgroup_user_kill();
    for (int tries = 0; tries < 1000 && cgroup_user_populated(); tries++)
        usleep(1000);
    int copy = openat(user_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *user = copy < 0 ? NULL : fdopendir(copy);
    for (struct dirent *entry; user != NULL && (entry = readdir(user)) != NULL;) {
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            unlinkat(user_fd, entry->d_name, AT_REMOVEDIR);
    }
    if (user != NULL)
        closedir(user);
    unlinkat(root_fd, "user", AT_REMOVEDIR);
}
