// SPDX-License-Identifier: Apache-2.0
// A "tree" is one hierarchy with the controllers that we use in it: version 2 is one tree, version 1 one for
// each controller (or for several that are mounted together).
#include "vmglue/cgroup_host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "blockstore/fd.h"

enum {
    PATH_SIZE = 512,
    TEXT_SIZE = 16 << 10,
    LEAVE_TRIES = 200,
    MAKE_TRIES = 10,
    LEAVE_WAIT_MS = 5,
    SHARES_A_CPU = 1024
};
enum { WEIGHT_A_CPU = 100, WEIGHT_MAX = 10000 };

enum { MEMORY, PIDS, CPU, CONTROLLERS };
static const char *const controllers[CONTROLLERS] = {"memory", "pids", "cpu"};

struct tree {
    char group[PATH_SIZE]; // the store's group
    unsigned has;          // bits of controllers
};

struct cgroup_host {
    bool version_2;
    struct tree trees[CONTROLLERS];
    unsigned tree_count;
    char missing[64];
};

// ---- Small files ----

__attribute__((format(printf, 3, 4))) static int write_text(
        const char *group, const char *file, const char *format, ...)
{
    char path[PATH_SIZE + 64], text[64];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(path, sizeof path, "%s/%s", group, file);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = write(fd, text, (size_t)size) == size ? 0 : -errno;
    close(fd);
    return result;
}

static bool has_word(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += size)
        if ((at == list || strchr(" ,\n", at[-1]) != NULL) &&
                (at[size] == '\0' || strchr(" ,\n", at[size]) != NULL))
            return true;
    return false;
}

// ---- Finding the hierarchies ----

// The daemon's own group in the hierarchy with `controller` ("" = version 2), from /proc/self/cgroup:
// "4:memory:/a/b". "/" when it is not said.
static void own_group(const char *proc_cgroup, const char *controller, char *ret_path, size_t size)
{
    char text[TEXT_SIZE] = "", *rest = text;
    snprintf(ret_path, size, "/");
    fd_read_text(AT_FDCWD, proc_cgroup, text, sizeof text);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
        if (path == NULL)
            continue;
        *names++ = *path++ = '\0';
        if (controller[0] == '\0' ? names[0] == '\0' : has_word(names, controller))
            snprintf(ret_path, size, "%s", path);
    }
}

static int make_group(const char *path)
{
    return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : -errno;
}

// "/" and "/a" both joined without a double slash.
static const char *tail(const char *own)
{
    return strcmp(own, "/") == 0 ? "" : own;
}

static int open_v1_tree(struct cgroup_host *host, const char *root, const char *proc_cgroup, const char *name,
        unsigned controller)
{
    char folder[PATH_SIZE - 128], own[128], path[PATH_SIZE + 64], target[PATH_SIZE];
    snprintf(folder, sizeof folder, "%.300s/%s", root, controllers[controller]);
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    if (access(path, F_OK) < 0)
        return -ENOENT;
    own_group(proc_cgroup, controllers[controller], own, sizeof own);
    // In a container the path may be one that is not seen here: then the top is the container's own group.
    snprintf(path, sizeof path, "%s%s/cgroup.procs", folder, tail(own));
    bool seen = access(path, F_OK) == 0;
    if ((size_t)snprintf(target, sizeof target, "%s%s/%s", folder, seen ? tail(own) : "", name) >=
            sizeof target)
        return -ENAMETOOLONG;
    for (unsigned i = 0; i < host->tree_count; i++) { // "cpu" and "cpuacct" may be one folder by two names
        if (strcmp(host->trees[i].group, target) == 0) {
            host->trees[i].has |= 1u << controller;
            return 0;
        }
    }
    struct tree *tree = &host->trees[host->tree_count++];
    tree->has = 1u << controller;
    memcpy(tree->group, target, sizeof target);
    return 0;
}

// What is delegated to this daemon may be arranged by it: its own processes go into a group beside those of
// VMMs, since a group with processes in it cannot hand controllers down.
static bool is_delegated(const char *group)
{
    char value[8] = "";
    return getxattr(group, "user.delegate", value, sizeof value - 1) > 0 ||
           getxattr(group, "trusted.delegate", value, sizeof value - 1) > 0;
}

static void move_aside(const char *group)
{
    char aside[PATH_SIZE + 64], path[PATH_SIZE + 64], text[TEXT_SIZE], *rest = text;
    snprintf(aside, sizeof aside, "%s/ramet-daemon", group);
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    if (make_group(aside) < 0 || fd_read_text(AT_FDCWD, path, text, sizeof text) < 0)
        return;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != '\0')
            write_text(aside, "cgroup.procs", "%s", line);
}

static unsigned hand_down(const char *group)
{
    unsigned has = 0;
    for (unsigned i = 0; i < CONTROLLERS; i++)
        if (write_text(group, "cgroup.subtree_control", "+%s", controllers[i]) == 0)
            has |= 1u << i;
    return has;
}

static int open_v2(struct cgroup_host *host, const char *root, const char *proc_cgroup, const char *name)
{
    char own[128], parent[PATH_SIZE - 128], target[PATH_SIZE];
    own_group(proc_cgroup, "", own, sizeof own);
    snprintf(parent, sizeof parent, "%.200s%s", root, tail(own));
    char *aside = strstr(parent, "/ramet-daemon"); // an earlier start of this daemon's code went there
    if (aside != NULL && strcmp(aside, "/ramet-daemon") == 0)
        *aside = '\0';
    if (is_delegated(parent))
        move_aside(parent);
    else
        snprintf(parent, sizeof parent, "%.300s", root);
    unsigned has = hand_down(parent);
    if (has == 0)
        return -ENOTSUP;
    if ((size_t)snprintf(target, sizeof target, "%s/%s", parent, name) >= sizeof target)
        return -ENAMETOOLONG;
    host->version_2 = true;
    struct tree *tree = &host->trees[host->tree_count++];
    tree->has = has;
    memcpy(tree->group, target, sizeof target);
    return 0;
}

static bool v2_has_controllers(const char *root)
{
    char path[PATH_SIZE], text[1024];
    snprintf(path, sizeof path, "%.300s/cgroup.controllers", root);
    return fd_read_text(AT_FDCWD, path, text, sizeof text) >= 0 &&
           (has_word(text, "memory") || has_word(text, "pids"));
}

static void note_missing(struct cgroup_host *host)
{
    unsigned has = 0;
    for (unsigned i = 0; i < host->tree_count; i++)
        has |= host->trees[i].has;
    for (unsigned i = 0; i < CONTROLLERS; i++) {
        size_t used = strlen(host->missing);
        if (!(has & 1u << i))
            snprintf(host->missing + used, sizeof host->missing - used, "%s%s", used > 0 ? ", " : "",
                    controllers[i]);
    }
}

int cgroup_host_open(const char *name, const char *cgroup_root, const char *proc_cgroup,
        struct cgroup_host **ret_host, struct error *err)
{
    const char *root = cgroup_root != NULL ? cgroup_root : "/sys/fs/cgroup",
               *own = proc_cgroup != NULL ? proc_cgroup : "/proc/self/cgroup";
    struct cgroup_host *host = calloc(1, sizeof *host);
    int result = 0;
    if (host == NULL)
        return error_set(err, -ENOMEM, "no memory");
    if (v2_has_controllers(root))
        result = open_v2(host, root, own, name);
    for (unsigned i = 0; i < CONTROLLERS && host->tree_count < CONTROLLERS && !host->version_2; i++) {
        int r = open_v1_tree(host, root, own, name, i);
        if (r < 0 && r != -ENOENT && result == 0)
            result = r;
    }
    if (host->tree_count == 0) {
        free(host);
        return error_set(err, result < 0 ? result : -ENOTSUP,
                "there is no control group for VMMs below %s (%s): what they use is not limited", root,
                result < 0 ? strerror(-result) : "it has neither memory, pids nor cpu");
    }
    note_missing(host);
    *ret_host = host;
    return 0;
}

struct cgroup_host *cgroup_host_close(struct cgroup_host *host)
{
    free(host);
    return NULL;
}

const char *cgroup_host_missing(const struct cgroup_host *host)
{
    return host->missing;
}

// ---- One sandbox's group ----

// The store's own group comes with its first sandbox and goes with its last.
static int make_store_group(const struct cgroup_host *host, const struct tree *tree)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (mkdir(tree->group, 0755) < 0)
        return errno == EEXIST ? 0 : -errno;
    if (host->version_2)
        return hand_down(tree->group) != 0 ? 0 : -ENOTSUP;
    // Beside the other groups of the host the store counts as its processors; otherwise fifty machines would
    // have the share of one process.
    if (tree->has & 1u << CPU)
        write_text(tree->group, "cpu.shares", "%ld", (cpus > 0 ? cpus : 1) * SHARES_A_CPU);
    return 0;
}

static int limit_memory(const struct cgroup_host *host, const char *group, uint64_t bytes)
{
    if (!host->version_2)
        return write_text(group, "memory.limit_in_bytes", "%llu", (unsigned long long)bytes);
    write_text(group, "memory.oom.group", "1"); // a VMM without one of its threads is none
    return write_text(group, "memory.max", "%llu", (unsigned long long)bytes);
}

static int limit_cpu(const struct cgroup_host *host, const char *group, unsigned cpus)
{
    unsigned weight = cpus * WEIGHT_A_CPU < WEIGHT_MAX ? cpus * WEIGHT_A_CPU : WEIGHT_MAX;
    return host->version_2 ? write_text(group, "cpu.weight", "%u", weight)
                           : write_text(group, "cpu.shares", "%u", cpus * SHARES_A_CPU);
}

static int set_limits(const struct cgroup_host *host, const struct tree *tree, const char *group,
        const struct cgroup_limits *limits)
{
    int result = 0;
    if (tree->has & 1u << MEMORY)
        result = limit_memory(host, group, limits->memory_bytes);
    if (result == 0 && (tree->has & 1u << PIDS))
        result = write_text(group, "pids.max", "%u", limits->processes);
    if (result == 0 && (tree->has & 1u << CPU))
        result = limit_cpu(host, group, limits->cpus);
    return result;
}

int cgroup_host_make(struct cgroup_host *host, const char *id, const struct cgroup_limits *limits,
        int ret_fds[CGROUP_HOST_FDS], unsigned *ret_count, struct error *err)
{
    char group[PATH_SIZE + 64], path[PATH_SIZE + 96];
    unsigned made = 0, tries = 0;
    int result = 0;
    for (; made < host->tree_count && result == 0; made++) {
        snprintf(group, sizeof group, "%s/%.60s", host->trees[made].group, id);
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
        ret_fds[made] = -1;
        // Another sandbox's end may take the store's group away between the two.
        do {
            result = make_store_group(host, &host->trees[made]);
            if (result == 0)
                result = make_group(group);
        } while (result == -ENOENT && access(host->trees[made].group, F_OK) < 0 && tries++ < MAKE_TRIES);
        if (result == 0)
            result = set_limits(host, &host->trees[made], group, limits);
        if (result == 0 && (ret_fds[made] = open(path, O_WRONLY | O_CLOEXEC)) < 0)
            result = -errno;
    }
    if (result == 0) {
        *ret_count = made;
        return 0;
    }
    while (made > 0)
        if (ret_fds[--made] >= 0)
            close(ret_fds[made]);
    error_set(err, result, "the control group %s cannot be made: %s", group, strerror(-result));
    cgroup_host_remove(host, id);
    return result;
}

// A process that was waited for may be in its group for a moment longer.
static int remove_group(const char *group)
{
    for (unsigned tries = 0;; tries++) {
        if (rmdir(group) == 0 || errno == ENOENT)
            return 0;
        if (errno != EBUSY || tries == LEAVE_TRIES)
            return -errno;
        struct timespec wait = {0, LEAVE_WAIT_MS * 1000000L};
        nanosleep(&wait, NULL);
    }
}

int cgroup_host_remove(struct cgroup_host *host, const char *id)
{
    int result = 0;
    for (unsigned i = 0; i < host->tree_count; i++) {
        char group[PATH_SIZE + 64];
        snprintf(group, sizeof group, "%s/%.60s", host->trees[i].group, id);
        int r = remove_group(group);
        result = result == 0 ? r : result;
        rmdir(host->trees[i].group); // not while there are others in it
    }
    return result;
}

uint64_t cgroup_host_oom_kills(struct cgroup_host *host, const char *id)
{
    for (unsigned i = 0; i < host->tree_count; i++) {
        char path[PATH_SIZE + 128], text[1024];
        if (!(host->trees[i].has & 1u << MEMORY))
            continue;
        snprintf(path, sizeof path, "%s/%.60s/%s", host->trees[i].group, id,
                host->version_2 ? "memory.events" : "memory.oom_control");
        const char *at =
                fd_read_text(AT_FDCWD, path, text, sizeof text) >= 0 ? strstr(text, "oom_kill ") : NULL;
        if (at != NULL)
            return strtoull(at + strlen("oom_kill "), NULL, 10);
    }
    return 0;
}

void cgroup_host_each(struct cgroup_host *host, void (*each)(void *context, const char *id), void *context)
{
    for (unsigned i = 0; i < host->tree_count; i++) {
        DIR *dir = opendir(host->trees[i].group);
        for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
            if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
                each(context, entry->d_name);
        if (dir != NULL)
            closedir(dir);
    }
}
