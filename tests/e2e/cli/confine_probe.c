// SPDX-License-Identifier: Apache-2.0
// A program in the place of the VMM (rametd --vmm): started and confined exactly as one, it tries what a VMM
// that was taken over by its guest would. What to try comes in the file that is named as the initramfs, one
// attempt a line: KIND ARGUMENT. Every attempt must fail. The last line on standard error says which did not:
// "confined: 31 attempts failed" or "BROKE OUT: read /etc/shadow; ...".
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OTHERS_MAX = 70000, FORKS_MAX = 4000, DESCRIPTORS = 4096, LIST_BYTES = 65536, NODE_MODE = 0600 };

static bool can_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool try_read(const char *path)
{
    return can_open(path, O_RDONLY) || can_open(path, O_PATH);
}

static bool try_write(const char *path)
{
    return can_open(path, O_WRONLY | O_CREAT);
}

static bool try_remove(const char *path)
{
    return unlink(path) == 0 || rename(path, "/io/moved") == 0 || chmod(path, 0777) == 0;
}

static bool connects(int family, const void *address, size_t size)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && connect(fd, address, (socklen_t)size) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

static bool try_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return connects(AF_UNIX, &address, sizeof address);
}

static bool try_abstract(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name);
    return connects(AF_UNIX, &address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static bool try_tcp(const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    return connects(AF_INET, &address, sizeof address);
}

static bool try_packet(const char *unused)
{
    int raw = socket(AF_PACKET, SOCK_RAW, 0), icmp = socket(AF_INET, SOCK_RAW, 1);
    int hypervisor = socket(AF_VSOCK, SOCK_STREAM, 0), kernel = socket(AF_NETLINK, SOCK_RAW, 0);
    char ring[120] = {0};
    return raw >= 0 || icmp >= 0 || hypervisor >= 0 || kernel >= 0 ||
           syscall(SYS_io_uring_setup, 1, ring) >= 0;
}

// ---- Other processes ----

static bool try_kill(const char *pid)
{
    return kill((pid_t)atoi(pid), 0) == 0 || syscall(SYS_pidfd_open, atoi(pid), 0) >= 0;
}

static bool try_ptrace(const char *pid)
{
    char byte = 0;
    struct iovec here = {&byte, 1}, there = {&byte, 1};
    return ptrace(PTRACE_ATTACH, (pid_t)atoi(pid), NULL, NULL) == 0 ||
           process_vm_readv((pid_t)atoi(pid), &here, 1, &there, 1, 0) == 1;
}

// Anybody but this process, which is the first of its pid namespace.
static bool try_others(const char *unused)
{
    for (pid_t pid = 2; pid < OTHERS_MAX; pid++)
        if (kill(pid, 0) == 0 || errno != ESRCH)
            return true;
    return getpid() != 1;
}

// ---- More rights ----

static bool try_root(const char *unused)
{
    return setuid(0) == 0 || setgid(0) == 0 || syscall(SYS_setresuid, 0, 0, 0) == 0 || chroot("/") == 0 ||
           geteuid() == 0;
}

// In a user namespace of its own it would have all capabilities, and a much larger kernel to attack.
static bool try_namespaces(const char *unused)
{
    return unshare(CLONE_NEWUSER) == 0 || unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWNET) == 0;
}

static bool try_mount(const char *unused)
{
    return mount("tmpfs", "/dev", "tmpfs", 0, NULL) == 0 || umount2("/runtime", MNT_DETACH) == 0 ||
           mount(NULL, "/runtime", NULL, MS_REMOUNT | MS_BIND, NULL) == 0;
}

static bool try_device(const char *unused)
{
    return mknod("/dev/sda", S_IFBLK | NODE_MODE, makedev(8, 0)) == 0 ||
           mknod("/io/mem", S_IFCHR | NODE_MODE, makedev(1, 1)) == 0;
}

static bool try_clock(const char *unused)
{
    struct timespec now;
    return clock_gettime(CLOCK_REALTIME, &now) == 0 && clock_settime(CLOCK_REALTIME, &now) == 0;
}

// Nothing that the daemon has open came along: sockets that listen, the console's log, at most a tap.
static bool try_descriptors(const char *unused)
{
    for (int fd = 3; fd < DESCRIPTORS; fd++) {
        struct stat stat;
        if (fstat(fd, &stat) < 0)
            continue;
        int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
        bool expected = S_ISSOCK(stat.st_mode) || (S_ISREG(stat.st_mode) && mode == O_WRONLY) ||
                        (S_ISCHR(stat.st_mode) && stat.st_rdev == makedev(10, 200));
        if (!expected || fd > 8)
            return true;
    }
    return false;
}

// ---- More of the host than its share ----

static bool try_forks(const char *most)
{
    int count = 0, limit = atoi(most);
    pid_t pids[FORKS_MAX];
    while (count < FORKS_MAX && (pids[count] = fork()) > 0)
        count++;
    if (count < FORKS_MAX && pids[count] == 0) {
        pause();
        _exit(0);
    }
    for (int i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < count; i++)
        waitpid(pids[i], NULL, 0);
    return count > limit;
}

static bool try_memory(const char *mib)
{
    size_t size = (size_t)atoi(mib) << 20;
    pid_t pid = fork();
    if (pid == 0) {
        char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            _exit(1);
        for (size_t at = 0; at < size; at += 4096)
            memory[at] = 1;
        _exit(0);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Its log is a file of the host's.
static bool try_fill(const char *mib)
{
    static char block[1 << 20];
    off_t start = lseek(1, 0, SEEK_END);
    for (int i = 0; i < atoi(mib); i++) {
        if (write(1, block, sizeof block) != (ssize_t)sizeof block) {
            if (ftruncate(1, start) < 0)
                return true;
            return false;
        }
    }
    return true;
}

static const struct {
    const char *kind;
    bool (*attempt)(const char *argument);
} kinds[] = {{"read", try_read}, {"write", try_write}, {"remove", try_remove}, {"connect", try_connect},
        {"abstract", try_abstract}, {"tcp", try_tcp}, {"packet", try_packet}, {"kill", try_kill},
        {"ptrace", try_ptrace}, {"others", try_others}, {"root", try_root}, {"namespaces", try_namespaces},
        {"mount", try_mount}, {"device", try_device}, {"clock", try_clock}, {"descriptors", try_descriptors},
        {"forks", try_forks}, {"memory", try_memory}, {"fill", try_fill}};

static bool attempt(const char *kind, const char *argument)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].kind, kind) == 0)
            return kinds[i].attempt(argument);
    return true; // a typing error must not look like confinement
}

// The whole list, so that its file is closed when descriptors are looked at.
static char *read_list(const char *path)
{
    char *text = calloc(1, LIST_BYTES);
    FILE *file = fopen(path, "r");
    if (file != NULL && text != NULL && fread(text, 1, LIST_BYTES - 1, file) == 0)
        text[0] = '\0';
    if (file != NULL)
        fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    char broke[380] = "";
    unsigned count = 0;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "-initrd") == 0)
            path = argv[i + 1];
    if (path == NULL)
        return 0; // asked for something else, as for its folders
    char *list = read_list(path), *rest = list;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] == '\0')
            continue;
        char *argument = strchr(line, ' ');
        if (argument != NULL)
            *argument++ = '\0';
        count++;
        size_t used = strlen(broke);
        if (attempt(line, argument != NULL ? argument : ""))
            snprintf(broke + used, sizeof broke - used, "%s%.30s %.120s", used > 0 ? "; " : "", line,
                    argument != NULL ? argument : "");
    }
    free(list);
    if (broke[0] != '\0' || count == 0)
        fprintf(stderr, "BROKE OUT: %s\n", count == 0 ? "there is no list" : broke);
    else
        fprintf(stderr, "confined: %u attempts failed\n", count);
    return 3;
}
