// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/boot.h"

#include "blockstore/fd.h"
#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/network.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STOP_GRACE_MS = 2000 };

static bool own_init;

void boot_say(const char *format, ...)
{
    char text[400];
    int length = snprintf(text, sizeof text, "<3>ramet-guest: ");
    va_list args;
    va_start(args, format);
    vsnprintf(text + length, sizeof text - (size_t)length - 1, format, args);
    va_end(args);
    strcat(text, "\n");
    int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t ignored = write(fd, text, strlen(text));
    (void)ignored;
    close(fd);
}

void boot_parameter(const char *name, const char *fallback, char *ret_value, size_t size)
{
    char line[4096];
    fd_read_text(AT_FDCWD, "/proc/cmdline", line, sizeof line);
    snprintf(ret_value, size, "%s", fallback);
    size_t length = strlen(name);
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (strncmp(word, name, length) == 0 && word[length] == '=')
            snprintf(ret_value, size, "%s", word + length + 1);
    }
}

static void mount_at(const char *type, const char *path, unsigned long flags, const char *options)
{
    mkdir(path, 0755);
    if (mount(type, path, type, flags, options) < 0 && errno != EBUSY)
        boot_say("mount %s on %s: %s", type, path, strerror(errno));
}

static void mount_all(void)
{
    mount_at("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mount_at("devtmpfs", "/dev", MS_NOSUID, NULL);
    mount_at("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
    mount_at("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
    mount_at("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755,size=20%");
    mount_at("cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mkdir("/run/lock", 0755);
    chmod("/run/lock", 01777);
    mkdir("/tmp", 0755);
    chmod("/tmp", 01777);
    int ignored = symlink("/proc/self/fd", "/dev/fd");
    ignored |= symlink("/proc/self/fd/0", "/dev/stdin");
    ignored |= symlink("/proc/self/fd/1", "/dev/stdout");
    ignored |= symlink("/proc/self/fd/2", "/dev/stderr");
    (void)ignored;
}

void boot_write_setting(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t ignored = fd < 0 ? 0 : write(fd, text, strlen(text));
    (void)ignored;
    if (fd >= 0)
        close(fd);
}

// Nothing that users do may end the first process: the kernel would panic. Beside another init it is still
// the host's only hand.
static void protect_self(void)
{
    struct rlimit files = {.rlim_cur = 65536, .rlim_max = 1048576};
    setrlimit(RLIMIT_NOFILE, &files);
    boot_write_setting("/proc/self/oom_score_adj", "-1000");
    mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    reboot(RB_DISABLE_CAD);
}

void boot_root(void)
{
    char hostname[65];
    mount_all();
    boot_carried_files();
    int result = cgroup_init("/sys/fs/cgroup");
    if (result == 0)
        result = cgroup_confine("/sys/fs/cgroup");
    if (result < 0)
        boot_say("no cgroup for user processes: %s", strerror(-result));
    boot_parameter("ramet.hostname", "", hostname, sizeof hostname);
    identity_boot(hostname);
    network_boot();
    own_init = boot_start_init();
    protect_self();
}

bool boot_has_own_init(void)
{
    return own_init;
}

static void wait_for_users(int limit_ms)
{
    for (int waited = 0; waited < limit_ms && cgroup_user_populated(); waited += 10) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

// -1 reaches every process but this one.
static void end_everything(void)
{
    cgroup_freeze(false);
    kill(-1, SIGTERM);
    kill(-1, SIGCONT);
    wait_for_users(STOP_GRACE_MS);
    kill(-1, SIGKILL);
    wait_for_users(STOP_GRACE_MS);
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
}

void boot_power_off(void)
{
    end_everything();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

void boot_restart(void)
{
    end_everything();
    reboot(RB_AUTOBOOT);
    for (;;)
        pause();
}
