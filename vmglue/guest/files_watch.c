// SPDX-License-Identifier: Apache-2.0
// Watching a file or a directory: a helper that reads inotify and writes records to its output. While the
// host does not read, the helper's pipe is full and the kernel's queue fills; then events are lost, and an
// event says so.
#include "blockstore/fd.h"
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/job.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WATCHES_MAX = 8192, HALF_MS = 50 };

static const uint32_t interest = IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |
                                 IN_DELETE_SELF | IN_MOVE_SELF | IN_EXCL_UNLINK | IN_DONT_FOLLOW;

struct watch {
    int wd;
    char *path;
};

static struct watch *watches;
static size_t watch_count;
static int inotify_fd;
static bool recursive;

static void report(enum agent_watch_kind kind, const char *path, const char *other)
{
    struct agent_builder event = {0}, record = {0};
    agent_builder_u32(&event, kind);
    agent_builder_string(&event, path);
    agent_builder_string(&event, other);
    agent_builder_u32(&record, (uint32_t)event.size);
    agent_builder_bytes(&record, event.bytes, event.size);
    if (record.failed || event.failed || fd_write_all(STDOUT_FILENO, record.bytes, record.size) < 0)
        _exit(1);
    agent_builder_free(&event);
    agent_builder_free(&record);
}

static struct watch *find(int wd)
{
    for (size_t i = 0; i < watch_count; i++) {
        if (watches[i].wd == wd)
            return &watches[i];
    }
    return NULL;
}

static int add(const char *path)
{
    if (watch_count == WATCHES_MAX)
        return -ENOSPC;
    int wd = inotify_add_watch(
            inotify_fd, path, watch_count == 0 ? interest & ~(uint32_t)IN_DONT_FOLLOW : interest);
    if (wd < 0)
        return -errno;
    struct watch *known = find(wd);
    if (known != NULL) { // it was moved here from elsewhere below
        char *renamed = known == watches ? NULL : strdup(path);
        if (known != watches && renamed == NULL)
            return -ENOMEM;
        if (renamed != NULL) {
            free(known->path);
            known->path = renamed;
        }
        return 0;
    }
    struct watch *grown = realloc(watches, (watch_count + 1) * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    watches = grown;
    watches[watch_count] = (struct watch){.wd = wd, .path = strdup(path)};
    if (watches[watch_count].path == NULL)
        return -ENOMEM;
    watch_count++;
    return 0;
}

static void forget(int wd)
{
    struct watch *watch = find(wd);
    if (watch == NULL || watch == watches)
        return;
    free(watch->path);
    *watch = watches[--watch_count];
}

// A new directory may have got entries before it was watched: those are reported as made.
static int add_below(const char *path, bool tell)
{
    int result = add(path);
    DIR *entries = result < 0 || !recursive ? NULL : opendir(path);
    for (struct dirent *entry; result == 0 && entries != NULL && (entry = readdir(entries)) != NULL;) {
        char below[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                (size_t)snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= sizeof below)
            continue;
        if (tell)
            report(AGENT_WATCH_CREATED, below, "");
        if (entry->d_type == DT_DIR)
            result = add_below(below, tell);
        if (result == -ENOENT || result == -ENOTDIR)
            result = 0; // it is gone again
    }
    if (entries != NULL)
        closedir(entries);
    return result;
}

struct moved {
    uint32_t cookie; // 0 = none
    char path[PATH_MAX];
};

// A directory that went elsewhere is no longer below; IN_IGNORED forgets each.
static void unwatch_below(const char *path)
{
    size_t length = strlen(path);
    for (size_t i = 1; i < watch_count; i++) {
        char end = strncmp(watches[i].path, path, length) == 0 ? watches[i].path[length] : 'x';
        if (end == 0 || end == '/')
            inotify_rm_watch(inotify_fd, watches[i].wd);
    }
}

// The first half of a move whose second is outside of what is watched.
static void moved_away(struct moved *from)
{
    if (from->cookie != 0) {
        report(AGENT_WATCH_REMOVED, from->path, "");
        unwatch_below(from->path);
    }
    from->cookie = 0;
}

static void name_of(const struct inotify_event *event, char ret_path[PATH_MAX])
{
    const struct watch *watch = find(event->wd);
    snprintf(ret_path, PATH_MAX, "%s%s%s", watch == NULL ? "?" : watch->path, event->len > 0 ? "/" : "",
            event->len > 0 ? event->name : "");
}

static void new_directory(const char *path)
{
    int result = add_below(path, true);
    if (result == -ENOSPC || result == -ENOMEM)
        report(AGENT_WATCH_OVERFLOW, path, "");
}

// False: the watched thing itself is gone.
static bool take(const struct inotify_event *event, struct moved *from)
{
    char path[PATH_MAX];
    name_of(event, path);
    bool second_half = event->mask & IN_MOVED_TO && from->cookie == event->cookie && from->cookie != 0;
    if (!second_half)
        moved_away(from);
    if (event->mask & IN_Q_OVERFLOW) {
        report(AGENT_WATCH_OVERFLOW, watches[0].path, "");
    } else if (event->mask & IN_MOVED_FROM) {
        from->cookie = event->cookie;
        snprintf(from->path, sizeof from->path, "%s", path);
    } else if (second_half) {
        report(AGENT_WATCH_MOVED, from->path, path);
        from->cookie = 0;
    } else if (event->mask & (IN_CREATE | IN_MOVED_TO)) {
        report(AGENT_WATCH_CREATED, path, "");
    } else if (event->mask & IN_DELETE) {
        report(AGENT_WATCH_REMOVED, path, "");
    } else if (event->mask & IN_MODIFY) {
        report(AGENT_WATCH_CHANGED, path, "");
    } else if (event->mask & IN_ATTRIB) {
        report(AGENT_WATCH_ATTRIBUTES, path, "");
    }
    if (event->mask & IN_ISDIR && event->mask & (IN_CREATE | IN_MOVED_TO) && recursive)
        new_directory(path);
    bool root_gone = event->wd == watches[0].wd && event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED);
    if (event->mask & IN_IGNORED)
        forget(event->wd);
    return !root_gone;
}

int files_watch(const struct files_place *place, bool with_all_below)
{
    static _Alignas(struct inotify_event) char bytes[65536];
    static struct moved from;
    recursive = with_all_below;
    inotify_fd = inotify_init1(IN_CLOEXEC);
    int result = inotify_fd < 0 ? -errno : add_below(place->path, false);
    if (result == -ENOSPC)
        return files_answer(result, NULL,
                "%s has more than %d directories, or the machine's limit of watches is reached", place->path,
                WATCHES_MAX);
    if (result < 0)
        return files_answer(result, NULL, "%s: %s", place->path, strerror(-result));
    report(AGENT_WATCH_READY, place->path, "");
    for (bool there = true; there;) {
        ssize_t got = read(inotify_fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return files_answer(-EIO, NULL, "watching %s: %s", place->path, strerror(errno));
        for (char *at = bytes; there && at < bytes + got;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            there = take(event, &from);
            at += sizeof *event + event->len;
        }
        // The second half of a move is queued right behind the first, but not at the same moment
        // (inotify(7)).
        struct pollfd one = {.fd = inotify_fd, .events = POLLIN};
        if (from.cookie != 0 && poll(&one, 1, HALF_MS) <= 0)
            moved_away(&from);
    }
    report(AGENT_WATCH_REMOVED, place->path, "");
    return files_answer(0, NULL, "%s", "");
}
