// SPDX-License-Identifier: Apache-2.0
#include "vmglue/guest/files.h"

#include "blockstore/fd.h"
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct files_request {
    enum agent_operation operation;
    struct agent_cursor fields;
};

int files_answer(int status, const struct agent_builder *fields, const char *format, ...)
{
    char sentence[480];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    struct agent_builder result = {0};
    agent_builder_u32(&result, (uint32_t)status);
    agent_builder_string(&result, sentence);
    if (fields != NULL)
        agent_builder_bytes(&result, fields->bytes, fields->size);
    ssize_t written = result.failed ? -1 : write(JOB_STATUS_FD, result.bytes, result.size);
    agent_builder_free(&result);
    return written > 0 ? 0 : 1;
}

int files_path(const char *path, struct files_place *ret_place)
{
    int length = -1;
    if (users_find(NULL, &ret_place->user) < 0)
        return -EINVAL;
    if (path[0] == '/')
        length = snprintf(ret_place->path, sizeof ret_place->path, "%s", path);
    else if (path[0] != 0)
        length = snprintf(ret_place->path, sizeof ret_place->path, "%s/%s", ret_place->user.home, path);
    if (length < 0)
        return -EINVAL;
    if ((size_t)length >= sizeof ret_place->path)
        return -ENAMETOOLONG;
    for (; length > 1 && ret_place->path[length - 1] == '/'; length--) {
        ret_place->path[length - 1] = 0;
        ret_place->directory_wanted = true;
    }
    return 0;
}

static void pack_stat(struct agent_builder *fields, const struct stat *st)
{
    agent_builder_u64(fields, (uint64_t)st->st_size);
    agent_builder_u64(fields, (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
    agent_builder_u32(fields, st->st_mode);
    agent_builder_u32(fields, st->st_uid);
    agent_builder_u32(fields, st->st_gid);
}

static int do_stat(const struct files_place *place)
{
    struct stat st;
    if (stat(place->path, &st) < 0 && lstat(place->path, &st) < 0)
        return files_answer(-errno, NULL, "%s: %s", place->path, strerror(errno));
    struct agent_builder fields = {0};
    pack_stat(&fields, &st);
    int result = files_answer(0, &fields, "%s", "");
    agent_builder_free(&fields);
    return result;
}

bool files_open(const struct files_place *place, int *ret_fd, struct stat *ret_stat, int *ret_status)
{
    int fd = open(place->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *ret_fd = fd;
    if (fd < 0 || fstat(fd, ret_stat) < 0)
        *ret_status = files_answer(-errno, NULL, "%s: %s", place->path, strerror(errno));
    else if (S_ISDIR(ret_stat->st_mode))
        *ret_status = files_answer(-EISDIR, NULL, "%s is a directory", place->path);
    else if (!S_ISREG(ret_stat->st_mode))
        *ret_status = files_answer(
                -EINVAL, NULL, "%s is a device, a pipe or a socket: only files can be read", place->path);
    else
        return true;
    return false;
}

static int do_read(const struct files_place *place)
{
    static uint8_t buffer[65536];
    struct stat st;
    int fd, status;
    if (!files_open(place, &fd, &st, &status))
        return status;
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        if (fd_write_all(STDOUT_FILENO, buffer, (size_t)got) < 0)
            return 1;
    }
    if (got < 0)
        return files_answer(-errno, NULL, "reading %s: %s", place->path, strerror(errno));
    return files_answer(0, NULL, "%s", "");
}

// Each entry: u32 size of what follows, name, stat.
static int send_entry(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; // it was removed meanwhile
    struct agent_builder entry = {0}, record = {0};
    agent_builder_string(&entry, name);
    pack_stat(&entry, &st);
    agent_builder_u32(&record, (uint32_t)entry.size);
    agent_builder_bytes(&record, entry.bytes, entry.size);
    int result =
            record.failed || entry.failed ? -ENOMEM : fd_write_all(STDOUT_FILENO, record.bytes, record.size);
    agent_builder_free(&entry);
    agent_builder_free(&record);
    return result;
}

static int do_list(const struct files_place *place)
{
    struct dirent **entries;
    int dir = open(place->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int count = dir < 0 ? -1 : scandir(place->path, &entries, NULL, alphasort);
    if (count < 0)
        return files_answer(-errno, NULL, "%s: %s", place->path, strerror(errno));
    int result = 0;
    for (int i = 0; i < count && result == 0; i++) {
        const char *name = entries[i]->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            result = send_entry(dir, name);
    }
    return files_answer(result, NULL, "%s", result < 0 ? strerror(-result) : "");
}

static int remove_tree(int parent, const char *name, char ret_failed[256])
{
    if (unlinkat(parent, name, 0) == 0)
        return 0;
    int code = errno;
    int fd = code == EISDIR ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int result = 0;
    if (dir == NULL) {
        snprintf(ret_failed, 256, "%s", name);
        return -code;
    }
    for (struct dirent *entry; result == 0 && (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_tree(fd, entry->d_name, ret_failed);
    }
    closedir(dir);
    if (result == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0) {
        result = -errno;
        snprintf(ret_failed, 256, "%s", name);
    }
    return result;
}

static int do_remove(const struct files_place *place, bool recursive)
{
    struct stat st;
    if (lstat(place->path, &st) < 0)
        return files_answer(-errno, NULL, "%s: %s", place->path, strerror(errno));
    if (strcmp(place->path, "/") == 0)
        return files_answer(-EBUSY, NULL, "the root directory cannot be removed");
    char failed[256] = "";
    int result;
    if (recursive)
        result = remove_tree(AT_FDCWD, place->path, failed);
    else
        result = (S_ISDIR(st.st_mode) ? rmdir(place->path) : unlink(place->path)) < 0 ? -errno : 0;
    if (result == -ENOTEMPTY && !recursive)
        return files_answer(result, NULL, "%s is not empty: remove it recursively", place->path);
    if (result < 0)
        return files_answer(
                result, NULL, "cannot remove %s: %s", failed[0] ? failed : place->path, strerror(-result));
    return files_answer(0, NULL, "%s", "");
}

int files_freeze_filesystems(bool frozen)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    if (mounts == NULL)
        return -errno;
    int result = 0;
    struct mntent *mount;
    while ((mount = getmntent(mounts)) != NULL) {
        if (strncmp(mount->mnt_fsname, "/dev/", 5) != 0 || hasmntopt(mount, "ro") != NULL)
            continue;
        int fd = open(mount->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        // Frozen or thawed already (the same file system mounted twice) is what is wanted.
        if (fd >= 0 && ioctl(fd, frozen ? FIFREEZE : FITHAW, 0) < 0 && errno != EBUSY && errno != EINVAL &&
                result == 0)
            result = -errno;
        if (fd >= 0)
            close(fd);
    }
    endmntent(mounts);
    return result;
}

static int do_sync(bool freeze)
{
    sync();
    int result = freeze ? files_freeze_filesystems(true) : 0;
    if (result < 0) {
        files_freeze_filesystems(false);
        return files_answer(result, NULL, "cannot freeze the file systems: %s", strerror(-result));
    }
    return files_answer(0, NULL, "%s", "");
}

static int do_move(const struct files_place *from, const char *to, bool replace)
{
    static struct files_place target;
    int result = files_path(to, &target);
    if (result < 0)
        return files_answer(result, NULL, "\"%.200s\" is no usable path", to);
    return files_move(from, &target, replace);
}

// The operations whose first field is a path.
static int on_path(enum agent_operation operation, struct files_place *place, struct agent_cursor fields)
{
    const char *to = operation == AGENT_FILE_MOVE ? agent_cursor_string(&fields) : "";
    bool has_mode = operation == AGENT_FILE_WRITE || operation == AGENT_FILE_APPEND ||
                    operation == AGENT_FILE_CHMOD || operation == AGENT_UPLOAD_BEGIN;
    bool has_flag =
            operation == AGENT_FILE_REMOVE || operation == AGENT_FILE_MOVE || operation == AGENT_WATCH;
    uint32_t mode = has_mode ? agent_cursor_u32(&fields) : 0;
    bool flag = has_flag && agent_cursor_u8(&fields) != 0;
    uint64_t offset = operation == AGENT_FILE_READ_RANGE ? agent_cursor_u64(&fields) : 0;
    uint64_t length = operation == AGENT_FILE_READ_RANGE ? agent_cursor_u64(&fields) : 0;
    if (fields.bad)
        return files_answer(-EINVAL, NULL, "the request cannot be read");
    switch (operation) {
    case AGENT_FILE_STAT:
        return do_stat(place);
    case AGENT_FILE_READ:
        return do_read(place);
    case AGENT_FILE_WRITE:
        return files_store(place, mode);
    case AGENT_FILE_LIST:
        return do_list(place);
    case AGENT_FILE_REMOVE:
        return do_remove(place, flag);
    case AGENT_FILE_READ_RANGE:
        return files_read_range(place, offset, length);
    case AGENT_FILE_APPEND:
        return files_append(place, mode);
    case AGENT_FILE_MOVE:
        return do_move(place, to, flag);
    case AGENT_FILE_CHMOD:
        return files_chmod(place, mode);
    case AGENT_UPLOAD_BEGIN:
        return files_upload_begin(place, mode);
    case AGENT_WATCH:
        return files_watch(place, flag);
    default:
        return files_make_directory(place);
    }
}

static int files_child(void *argument)
{
    struct files_request *request = argument;
    struct agent_cursor *fields = &request->fields;
    static struct files_place place;
    if (request->operation == AGENT_THAW)
        return files_freeze_filesystems(false) < 0;
    if (request->operation == AGENT_SYNC)
        return do_sync(agent_cursor_u8(fields) != 0);
    if (request->operation >= AGENT_UPLOAD_WRITE && request->operation <= AGENT_UPLOAD_DROP)
        return files_upload(request->operation, *fields);
    if (request->operation >= AGENT_DISK_MOUNT && request->operation <= AGENT_DISK_GROW)
        return files_disk(request->operation, *fields);
    const char *path = agent_cursor_string(fields);
    int result = files_path(path, &place);
    if (fields->bad || result < 0)
        return files_answer(fields->bad ? -EINVAL : result, NULL, "\"%.200s\" is no usable path", path);
    return on_path(request->operation, &place, *fields);
}

void files_start(uint32_t stream, enum agent_operation operation, struct agent_cursor fields)
{
    struct files_request request = {.operation = operation, .fields = fields};
    struct job_config config = {.stream = stream,
            .input = operation == AGENT_FILE_WRITE || operation == AGENT_FILE_APPEND ||
                     operation == AGENT_UPLOAD_WRITE,
            .ends_with_session = operation == AGENT_WATCH,
            .operation = (uint16_t)operation,
            .child = files_child,
            .argument = &request};
    if (operation == AGENT_SYNC)
        config.timeout_ms = agent_cursor_u64(&request.fields);
    int result = job_start(&config);
    if (result < 0 && stream != 0)
        job_result(stream, result, "the agent cannot start a helper process: too many processes or no memory",
                NULL);
}

void files_thaw_in_background(void)
{
    files_start(0, AGENT_THAW, agent_cursor_over(NULL, 0));
}
