// SPDX-License-Identifier: Apache-2.0
// The disk's own init, and the files that come with the initramfs for programs in the machine.
#include "blockstore/fd.h"
#include "vmglue/guest/boot.h"

#include "vmglue/guest/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

// Behind the descriptors that children's pipes are put on.
enum { CARRIED_FD_MIN = 20, DEPTH_MAX = 8 };

static const char carried_variable[] = "RAMET_CARRIED";

void boot_keep_files(void)
{
    char text[20];
    int fd = open("/context", O_RDONLY | O_DIRECTORY);
    int kept = fd < 0 ? -1 : fcntl(fd, F_DUPFD, CARRIED_FD_MIN); // goes through execve, and chroot
    if (fd >= 0)
        close(fd);
    if (kept < 0)
        return;
    snprintf(text, sizeof text, "%d", kept);
    setenv(carried_variable, text, 1);
}

static int copy_file(int from_dir, int to_dir, const char *name)
{
    char bytes[16384];
    ssize_t got = 0;
    int from = openat(from_dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int to = from < 0 ? -1 : openat(to_dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int result = to < 0 ? -errno : 0;
    while (result == 0 && (got = read(from, bytes, sizeof bytes)) > 0)
        result = fd_write_all(to, bytes, (size_t)got);
    if (got < 0)
        result = -errno;
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return result;
}

// Copies the tree and removes the original: that is memory which nobody needs any more.
static int move_tree(int from, int to, int depth)
{
    int copy = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    DIR *entries = copy < 0 || depth > DEPTH_MAX ? NULL : fdopendir(copy);
    if (entries == NULL)
        return -errno;
    for (struct dirent *entry; result == 0 && (entry = readdir(entries)) != NULL;) {
        const char *name = entry->d_name;
        if (entry->d_type == DT_REG) {
            result = copy_file(from, to, name);
            unlinkat(from, name, 0);
        } else if (entry->d_type == DT_DIR && name[0] != '.') {
            mkdirat(to, name, 0755);
            int below_from = openat(from, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            int below_to = openat(to, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            result = below_from < 0 || below_to < 0 ? -errno : move_tree(below_from, below_to, depth + 1);
            if (below_from >= 0)
                close(below_from);
            if (below_to >= 0)
                close(below_to);
            unlinkat(from, name, AT_REMOVEDIR);
        }
    }
    closedir(entries);
    return result;
}

void boot_carried_files(void)
{
    const char *text = getenv(carried_variable);
    int from = text == NULL ? -1 : atoi(text);
    if (from < CARRIED_FD_MIN)
        return;
    unsetenv(carried_variable);
    fcntl(from, F_SETFD, FD_CLOEXEC);
    mkdir("/run/ramet", 0755);
    mkdir("/run/ramet/context", 0755);
    int to = open("/run/ramet/context", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = to < 0 ? -errno : move_tree(from, to, 0);
    if (result < 0)
        boot_say("the files of code contexts: %s", strerror(-result));
    if (to >= 0)
        close(to);
    close(from);
}

// systemd alone is known to live with all this; another init must be asked for.
static bool find_init(char *ret_path, size_t size)
{
    char target[4096];
    boot_parameter("ramet.init", "", ret_path, size);
    if (strcmp(ret_path, "agent") == 0)
        return false;
    if (ret_path[0] != 0) {
        if (access(ret_path, X_OK) == 0)
            return true;
        boot_say("ramet.init: %s: %s; the agent is process 1 instead", ret_path, strerror(errno));
        return false;
    }
    snprintf(ret_path, size, "/sbin/init");
    if (realpath(ret_path, target) == NULL || access(target, X_OK) < 0)
        return false;
    const char *slash = strrchr(target, '/');
    return strcmp(slash, "/systemd") == 0;
}

// Process 1 goes on here.
__attribute__((noreturn)) static void become_init(const char *path)
{
    char *arguments[] = {(char *)path, NULL};
    char *environment[] = {
            "TERM=linux", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    int result = cgroup_take_self();
    if (result < 0)
        boot_say("%s is not in the cgroup of user processes: %s", path, strerror(-result));
    // A freeze would be answered though nothing stood still. Without cgroups at all it is refused.
    while (result < 0 && cgroup_available())
        pause();
    int console = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
    for (int fd = 0; fd <= STDERR_FILENO && console >= 0; fd++)
        dup2(console, fd);
    boot_write_setting("/proc/self/oom_score_adj", "0");
    execve(path, arguments, environment);
    boot_say("cannot start %s: %s", path, strerror(errno));
    for (;;)
        pause(); // process 1 may not end; the agent goes on beside it, and can be asked what happened
}

bool boot_start_init(void)
{
    char path[256];
    if (!find_init(path, sizeof path))
        return false;
    pid_t agent = fork();
    if (agent < 0) {
        boot_say("cannot start the agent beside %s: %s", path, strerror(errno));
        return false;
    }
    if (agent > 0)
        become_init(path);
    setsid();
    return true;
}
