// SPDX-License-Identifier: Apache-2.0
// Stage 1. The agent that runs on the root disk is this very program, carried over in memory: it then fits
// the daemon that brought kernel and initramfs along, however old the disk is, and a disk needs no agent of
// its own.
#include "vmglue/guest/boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEVICE_WAIT_MS = 5000 };

__attribute__((noreturn)) static void give_up(const char *what, const char *why)
{
    boot_say("cannot start this machine: %s: %s", what, why);
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static void load_modules(void)
{
    FILE *list = fopen("/modules.list", "re");
    char line[256];
    while (list != NULL && fgets(line, sizeof line, list) != NULL) {
        line[strcspn(line, "\n")] = 0;
        int fd = line[0] == 0 ? -1 : open(line, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
            boot_say("module %s: %s", line, strerror(errno));
        close(fd);
        unlink(line); // the initramfs is memory that nobody needs any more
    }
    if (list != NULL)
        fclose(list);
    unlink("/modules.list");
}

static int copy_of_self(void)
{
    struct stat st;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = memfd_create("ramet-guest", MFD_CLOEXEC);
    if (from < 0 || to < 0 || fstat(from, &st) < 0)
        give_up("copying the agent", strerror(errno));
    for (off_t left = st.st_size; left > 0;) {
        ssize_t sent = sendfile(to, from, NULL, (size_t)left);
        if (sent <= 0)
            give_up("copying the agent", sent < 0 ? strerror(errno) : "it is shorter than it was");
        left -= sent;
    }
    close(from);
    unlink("/init");
    return to;
}

// The bus driver's probe may end a few milliseconds after the module was loaded.
static void wait_for(const char *device)
{
    struct stat st;
    for (int waited = 0; waited < DEVICE_WAIT_MS && stat(device, &st) < 0; waited++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static bool mount_as(const char *device, const char *type)
{
    return mount(device, "/mnt", type, MS_NOATIME, "discard") == 0 ||
           mount(device, "/mnt", type, MS_NOATIME, "") == 0 ||
           mount(device, "/mnt", type, MS_NOATIME | MS_RDONLY, "") == 0;
}

static bool mount_any(const char *device)
{
    char type[64], line[128];
    boot_parameter("rootfstype", "", type, sizeof type);
    if (type[0] != 0)
        return mount_as(device, type);
    if (mount_as(device, "ext4"))
        return true;
    FILE *types = fopen("/proc/filesystems", "re");
    bool mounted = false;
    while (types != NULL && !mounted && fgets(line, sizeof line, types) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '\t' && strcmp(line + 1, "ext4") != 0)
            mounted = mount_as(device, line + 1);
    }
    if (types != NULL)
        fclose(types);
    return mounted;
}

static bool looks_like_root(void)
{
    struct stat st;
    return stat("/mnt/etc", &st) == 0 && (lstat("/mnt/bin", &st) == 0 || stat("/mnt/usr/bin", &st) == 0);
}

// An imported disk may be partitioned: its root is the partition that looks like one.
static bool mount_partition(const char *disk)
{
    for (int i = 1; i < 32; i++) {
        char device[160];
        struct stat st;
        snprintf(device, sizeof device, "%s%s%d", disk,
                disk[strlen(disk) - 1] >= '0' && disk[strlen(disk) - 1] <= '9' ? "p" : "", i);
        if (stat(device, &st) < 0 || !mount_any(device))
            continue;
        if (looks_like_root()) {
            boot_say("the root is on %s", device);
            return true;
        }
        umount("/mnt");
    }
    return false;
}

void boot_initramfs(char **argv)
{
    char root[128];
    clearenv();
    mkdir("/proc", 0755);
    mkdir("/dev", 0755);
    mkdir("/mnt", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("dev", "/dev", "devtmpfs", MS_NOSUID, NULL);
    load_modules();
    boot_parameter("root", "/dev/vda", root, sizeof root);
    wait_for(root);
    if (!mount_any(root) && !mount_partition(root))
        give_up(root, "no file system that could be mounted was found on it; check root= and the disk");
    int self = copy_of_self();
    boot_keep_files();
    mkdir("/mnt/dev", 0755);
    if (mount("/dev", "/mnt/dev", NULL, MS_MOVE, NULL) < 0)
        give_up("moving /dev to the root disk", strerror(errno));
    umount2("/proc", MNT_DETACH);
    if (chdir("/mnt") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        give_up("changing to the root disk", strerror(errno));
    // A name that begins so says to systemd's last program that this is no process to kill.
    char *arguments[] = {"@ramet-guest", NULL};
    syscall(SYS_execveat, self, "", arguments, environ, AT_EMPTY_PATH);
    give_up("starting the agent on the root disk", strerror(errno));
}
