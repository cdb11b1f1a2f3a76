// SPDX-License-Identifier: Apache-2.0
// The VMM's root is a tmpfs made for it alone: the runtime bundle at /runtime, device nodes, and the mount
// points of what it was given; it is read-only in the end. Trees are taken by descriptor (open_tree) before
// the tmpfs covers the run directory that some of them lie in. The root directory is a folder of the tmpfs
// and not its top: who is chrooted may not make user namespaces, in which he would have all capabilities and
// a much larger kernel to attack.
#include "vmglue/vm_confine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>

enum {
    DESCRIPTORS_MAX = 1024,
    FILE_BYTES_MAX = 64 << 20, // as much as a device state may have
    ROOT_BYTES = 64 << 10,
    KVM_MAJOR = 10,
    KVM_MINOR = 232
};
static const char RUNTIME[] = "/runtime", INNER[] = "vmm";

// ---- Describing ----

int vm_confine_make(struct vm_confine *confine, const char *runtime_root, const char *scratch, uid_t uid,
        struct error *err)
{
    struct vm_confine made = {.uid = uid,
            .gid = (gid_t)uid,
            .file_bytes_max = FILE_BYTES_MAX,
            .descriptors_max = DESCRIPTORS_MAX};
    if ((size_t)snprintf(made.root, sizeof made.root, "%s", runtime_root) >= sizeof made.root ||
            (size_t)snprintf(made.scratch, sizeof made.scratch, "%s", scratch) >= sizeof made.scratch)
        return error_set(err, -ENAMETOOLONG,
                "a path that a VMM is confined with is longer than %d bytes: %.80s...; use a store and run "
                "directory with shorter names",
                VM_CONFINE_PATH - 1, strlen(runtime_root) > strlen(scratch) ? runtime_root : scratch);
    *confine = made;
    return 0;
}

int vm_confine_add(
        struct vm_confine *confine, const char *source, const char *target, bool folder, struct error *err)
{
    struct vm_confine_mount mount = {.folder = folder};
    if (confine->mount_count == VM_CONFINE_MOUNTS)
        return error_set(err, -E2BIG, "a VMM cannot be given more than %d things", VM_CONFINE_MOUNTS);
    if ((size_t)snprintf(mount.source, sizeof mount.source, "%s", source) >= sizeof mount.source ||
            (size_t)snprintf(mount.target, sizeof mount.target, "%s", target) >= sizeof mount.target)
        return error_set(err, -ENAMETOOLONG, "the path %.80s... is too long to give it to a VMM", source);
    confine->mounts[confine->mount_count++] = mount;
    return 0;
}

// The rest of `path` behind the folder (or file) `prefix`; NULL when it is not below it.
static const char *below(const char *path, const char *prefix)
{
    size_t size = strlen(prefix);
    if (strncmp(path, prefix, size) != 0 || (path[size] != '\0' && path[size] != '/'))
        return NULL;
    return path + size;
}

int vm_confine_path(const struct vm_confine *confine, const char *path, char *buffer, size_t size)
{
    const char *rest = below(path, confine->root), *target = RUNTIME;
    for (unsigned i = 0; i < confine->mount_count && rest == NULL; i++) {
        rest = below(path, confine->mounts[i].source);
        target = confine->mounts[i].target;
    }
    if (rest == NULL)
        return -ENOENT;
    return (size_t)snprintf(buffer, size, "%s%s", target, rest) < size ? 0 : -ENAMETOOLONG;
}

unsigned vm_confine_clone_flags(int netns_fd)
{
    return CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | (netns_fd > 0 ? 0 : CLONE_NEWNET);
}

// ---- The parent ----

// A detached copy of the tree at `path`; nobody can change anything through it but what a socket takes.
static int take_tree(const char *path, int *ret_fd)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (mount_setattr(fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    *ret_fd = fd;
    return 0;
}

int vm_confine_take(
        const struct vm_confine *confine, int ret_trees[1 + VM_CONFINE_MOUNTS], unsigned *ret_count)
{
    unsigned count = 0;
    int result = take_tree(confine->root, &ret_trees[0]);
    for (count = result == 0; result == 0 && count < 1 + confine->mount_count; count++)
        if ((result = take_tree(confine->mounts[count - 1].source, &ret_trees[count])) < 0)
            break;
    *ret_count = count;
    return result;
}

// ---- The child ----

// What the steps work on.
struct entry {
    const struct vm_confine *confine;
    int first_fd, netns_fd; // 0 = none
};

static int join_cgroups(struct entry *entry)
{
    const struct vm_confine *confine = entry->confine;
    int first = entry->first_fd + 1 + (int)confine->mount_count;
    for (int i = 0; i < (int)confine->cgroup_count; i++) // "0" is whoever writes
        if (write(first + i, "0", 1) != 1)
            return -errno;
    return 0;
}

static int enter_network(struct entry *entry)
{
    return entry->netns_fd <= 0 || setns(entry->netns_fd, CLONE_NEWNET) == 0 ? 0 : -errno;
}

static int name_host(struct entry *entry)
{
    return sethostname("vmm", 3) == 0 ? 0 : -errno;
}

static int place_tree(int tree_fd, const char *target, bool folder)
{
    int made = folder ? mkdir(target, 0555) : open(target, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
    if (made < 0)
        return -errno;
    if (!folder)
        close(made);
    return move_mount(tree_fd, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) == 0 ? 0 : -errno;
}

static int make_device(const char *path, unsigned major, unsigned minor, mode_t mode, uid_t uid)
{
    if (mknod(path, S_IFCHR | mode, makedev(major, minor)) != 0 || chmod(path, mode) != 0)
        return -errno;
    return uid == 0 || chown(path, uid, uid) == 0 ? 0 : -errno;
}

// In the new root, which is the working directory.
static int make_devices(struct entry *entry)
{
    const struct vm_confine *confine = entry->confine;
    if (mkdir("dev", 0555) != 0)
        return -errno;
    int result = make_device("dev/null", 1, 3, 0666, 0);
    if (result == 0)
        result = make_device("dev/urandom", 1, 9, 0444, 0);
    if (result == 0 && confine->kvm)
        result = make_device("dev/kvm", KVM_MAJOR, KVM_MINOR, 0600, confine->uid);
    return result;
}

static int make_root(struct entry *entry)
{
    const char *scratch = entry->confine->scratch;
    char options[32];
    snprintf(options, sizeof options, "mode=0555,size=%d", ROOT_BYTES);
    // Nothing that happens here may reach the host, and nothing there us.
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NOEXEC, options) != 0 || chdir(scratch) != 0 ||
            mkdir(INNER, 0555) != 0 || chdir(INNER) != 0)
        return -errno;
    return 0;
}

static int place_trees(struct entry *entry)
{
    const struct vm_confine *confine = entry->confine;
    int result = place_tree(entry->first_fd, RUNTIME + 1, true);
    // Where the kernel looks for the program's loader, which looks for libraries in LD_LIBRARY_PATH.
    if (result == 0 && (symlink("runtime/lib", "lib") != 0 || symlink("runtime/lib64", "lib64") != 0))
        result = -errno;
    for (unsigned i = 0; i < confine->mount_count && result == 0; i++)
        result = place_tree(
                entry->first_fd + 1 + (int)i, confine->mounts[i].target + 1, confine->mounts[i].folder);
    return result;
}

static int change_root(struct entry *entry)
{
    // The old root is stacked over the new one, and taken off it.
    if (chdir("..") != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 ||
            chdir("/") != 0 ||
            mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) != 0)
        return -errno;
    return chroot(INNER) == 0 && chdir("/") == 0 ? 0 : -errno;
}

static int lower_limit(int resource, uint64_t most)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0)
        return -errno;
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max > most)
        limit.rlim_max = most;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit((__rlimit_resource_t)resource, &limit) == 0 ? 0 : -errno;
}

static int set_limits(struct entry *entry)
{
    const struct vm_confine *confine = entry->confine;
    int result = lower_limit(RLIMIT_CORE, 0); // guest memory is in a core
    if (result == 0)
        result = lower_limit(RLIMIT_NOFILE, confine->descriptors_max);
    if (result == 0)
        result = lower_limit(RLIMIT_FSIZE, confine->file_bytes_max);
    return result;
}

// The C library's own set*id would change every thread of the daemon, whose memory this child still shares.
static int drop_privileges(struct entry *entry)
{
    const struct vm_confine *confine = entry->confine;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
            return -errno;
    // Who has the session's keyring may use what is in it, whoever he is.
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        return -errno;
    if (syscall(SYS_setgroups, 0, NULL) != 0 ||
            syscall(SYS_setresgid, confine->gid, confine->gid, confine->gid) != 0 ||
            syscall(SYS_setresuid, confine->uid, confine->uid, confine->uid) != 0 ||
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 ||
            syscall(SYS_capset, &header, none) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    umask(077);
    return 0;
}

// Unix sockets are all that a VMM needs. Others are refused by their family, since not all of them belong to
// a network namespace: by AF_VSOCK a process speaks with the host's own hypervisor. io_uring makes sockets
// without the system call, so it is refused as well, and so are the other ways to number system calls.
#if defined(__x86_64__)
static int refuse_sockets(struct entry *entry)
{
    enum { REFUSED = SECCOMP_RET_ERRNO | ENOSYS, X32_BIT = 0x40000000 };
    const size_t low_word = offsetof(struct seccomp_data, args[0]);
    struct sock_filter program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 6),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)low_word),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 2, 1),
            BPF_STMT(BPF_RET | BPF_K, REFUSED),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof *program, .filter = program};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0 ? 0 : -errno;
}
#else
static int refuse_sockets(struct entry *entry)
{
    return 0;
}
#endif

static const struct {
    int (*run)(struct entry *entry);
    const char *words;
} steps[] = {
        {join_cgroups, "entering its control groups"},
        {enter_network, "entering its network namespace"},
        {name_host, "naming its host"},
        {make_root, "making its root directory"},
        {make_devices, "making its devices"},
        {place_trees, "mounting what it needs"},
        {change_root, "changing to its root directory"},
        {set_limits, "setting its limits"},
        {drop_privileges, "giving up its privileges"},
        {refuse_sockets, "giving up other sockets than Unix ones"},
};
enum { STEPS = sizeof steps / sizeof *steps };

const char *vm_confine_step(unsigned step)
{
    return step < STEPS                   ? steps[step].words
           : step == VM_CONFINE_STEP_TAKE ? "taking its files"
                                          : "being executed";
}

int vm_confine_enter(const struct vm_confine *confine, int first_fd, bool has_netns, unsigned *ret_step)
{
    int after = first_fd + 1 + (int)(confine->mount_count + confine->cgroup_count);
    struct entry entry = {.confine = confine, .first_fd = first_fd, .netns_fd = has_netns ? after : 0};
    for (unsigned step = 0; step < STEPS; step++) {
        int result = steps[step].run(&entry);
        if (result < 0) {
            *ret_step = step;
            return result;
        }
    }
    *ret_step = STEPS;
    return 0;
}
