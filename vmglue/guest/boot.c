// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/boot.h"

#include "vmglue/guest/cgroup.h"
#include "vmglue/guest/identity.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STOP_GRACE_MS = 2000 };

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
    char line[4096] = "";
    int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    line[got > 0 ? got : 0] = 0;
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

static void write_setting(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t ignored = fd < 0 ? 0 : write(fd, text, strlen(text));
    (void)ignored;
    if (fd >= 0)
        close(fd);
}

// Nothing that users do may end the first process: the kernel would panic.
static void protect_self(void)
{
    struct rlimit files = {.rlim_cur = 65536, .rlim_max = 1048576};
    setrlimit(RLIMIT_NOFILE, &files);
    write_setting("/proc/self/oom_score_adj", "-1000");
    mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    reboot(RB_DISABLE_CAD);
}

static void interface_up(int fd, const char *name, const char *address, const char *mask)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    in->sin_family = AF_INET;
    if (address != NULL) {
        inet_aton(address, &in->sin_addr);
        if (ioctl(fd, SIOCSIFADDR, &request) < 0)
            boot_say("address of %s: %s", name, strerror(errno));
        inet_aton(mask, &in->sin_addr);
        ioctl(fd, SIOCSIFNETMASK, &request);
    }
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP | IFF_RUNNING;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
}

static void default_route(int fd, const char *gateway)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
    struct sockaddr_in any = {.sin_family = AF_INET}, by = {.sin_family = AF_INET};
    inet_aton(gateway, &by.sin_addr);
    memcpy(&route.rt_dst, &any, sizeof any);
    memcpy(&route.rt_genmask, &any, sizeof any);
    memcpy(&route.rt_gateway, &by, sizeof by);
    if (ioctl(fd, SIOCADDRT, &route) < 0)
        boot_say("default route: %s", strerror(errno));
}

// Whether there is nothing in the file, or what an earlier boot put there.
static bool resolver_is_ours(const char *mark)
{
    char text[100] = "";
    int fd = open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got == 0 || strncmp(text, mark, strlen(mark)) == 0;
}

// Imported images often have a link to a file below /run that their own init would make.
static const char *resolver_path(char *ret_target, size_t size)
{
    ssize_t got = readlink("/etc/resolv.conf", ret_target, size - 1);
    ret_target[got > 0 ? got : 0] = 0;
    char *run = strstr(ret_target, "/run/");
    if (run == NULL)
        return "/etc/resolv.conf";
    for (char *slash = strchr(run + 5, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(run, 0755);
        *slash = '/';
    }
    return run;
}

static void name_server(void)
{
    static const char mark[] = "# made at boot by ramet-guest\n";
    char target[300], text[150];
    if (!resolver_is_ours(mark))
        return;
    // There in every machine, so that what is behind the card can change: a look-up that may not be is
    // refused.
    snprintf(text, sizeof text, "%snameserver 10.0.2.3\n", mark);
    int fd = open(resolver_path(target, sizeof target), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    ssize_t ignored = write(fd, text, strlen(text));
    (void)ignored;
    close(fd);
}

static void network(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    interface_up(fd, "lo", NULL, NULL);
    write_setting("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    if (access("/sys/class/net/eth0", F_OK) == 0) {
        // After its address was changed the card tells its neighbours.
        write_setting("/proc/sys/net/ipv4/conf/eth0/arp_notify", "1");
        interface_up(fd, "eth0", "10.0.2.15", "255.255.255.0");
        default_route(fd, "10.0.2.2");
        name_server();
    }
    close(fd);
}

void boot_root(void)
{
    char hostname[65];
    mount_all();
    protect_self();
    int result = cgroup_init("/sys/fs/cgroup");
    if (result == 0)
        result = cgroup_confine("/sys/fs/cgroup");
    if (result < 0)
        boot_say("no cgroup for user processes: %s", strerror(-result));
    boot_parameter("ramet.hostname", "", hostname, sizeof hostname);
    identity_boot(hostname);
    network();
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
