// SPDX-License-Identifier: Apache-2.0
// Uploads that go on where they were cut off: the bytes are in a file beside the target; a record in the
// state folder, named by the upload's id, says where, so that it outlives the session, the agent and the
// machine's rest. What nobody has touched for a day is removed when the next one begins.
#include "blockstore/fd.h"
#include "vmglue/guest/files_internal.h"
#include "vmglue/guest/identity.h"
#include "vmglue/guest/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ID_LENGTH = 16, EXPIRES_SECS = 86400, RECORD_MAX = 3 * PATH_MAX };

struct upload {
    char record[PATH_MAX];
    uint32_t mode;
    struct files_place place;
    struct files_target target;
};

static void folder(char ret_path[PATH_MAX])
{
    snprintf(ret_path, PATH_MAX, "%s/uploads", identity_state());
}

static int write_record(const struct upload *upload)
{
    struct agent_builder record = {0};
    agent_builder_u32(&record, upload->mode);
    agent_builder_string(&record, upload->target.temporary);
    agent_builder_string(&record, upload->place.path);
    int fd = record.failed ? -1 : open(upload->record, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int result = fd < 0 ? (record.failed ? -ENOMEM : -errno) : fd_write_all(fd, record.bytes, record.size);
    if (fd >= 0 && close(fd) < 0 && result == 0)
        result = -errno;
    if (fd >= 0 && result < 0)
        unlink(upload->record);
    agent_builder_free(&record);
    return result;
}

static int read_record(const char *id, struct upload *ret_upload)
{
    static uint8_t bytes[RECORD_MAX];
    char directory[PATH_MAX];
    if (strlen(id) != ID_LENGTH || strspn(id, "0123456789abcdef") != ID_LENGTH)
        return -ENOENT;
    folder(directory);
    if ((size_t)snprintf(ret_upload->record, sizeof ret_upload->record, "%s/%s", directory, id) >= PATH_MAX)
        return -ENAMETOOLONG;
    int fd = open(ret_upload->record, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    int result = got < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    struct agent_cursor record = agent_cursor_over(bytes, got > 0 ? (size_t)got : 0);
    ret_upload->mode = agent_cursor_u32(&record);
    snprintf(ret_upload->target.temporary, PATH_MAX, "%s", agent_cursor_string(&record));
    const char *path = agent_cursor_string(&record);
    if (result == 0 && record.bad)
        result = -ENOENT; // a machine that crashed while it began
    return result < 0 ? result : files_path(path, &ret_upload->place);
}

static void sweep(void)
{
    char directory[PATH_MAX];
    folder(directory);
    DIR *entries = opendir(directory);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        static struct upload old;
        struct stat st;
        if (strlen(entry->d_name) != ID_LENGTH)
            continue;
        int result = read_record(entry->d_name, &old);
        // One that another call is writing right now cannot be read yet.
        if (result < 0 && lstat(old.record, &st) == 0 && time(NULL) - st.st_mtime < EXPIRES_SECS)
            continue;
        if (result == 0 && lstat(old.target.temporary, &st) == 0 && time(NULL) - st.st_mtime < EXPIRES_SECS)
            continue;
        if (result == 0)
            unlink(old.target.temporary);
        unlink(old.record);
    }
    if (entries != NULL)
        closedir(entries);
}

static int no_such(const char *id, int result)
{
    return files_answer(
            result, NULL, "there is no upload \"%.40s\": it was committed, dropped or has expired", id);
}

static int answer_state(const char *id, uint64_t size, uint32_t sum)
{
    struct agent_builder fields = {0};
    agent_builder_string(&fields, id);
    agent_builder_u64(&fields, size);
    agent_builder_u32(&fields, sum);
    int result = files_answer(0, &fields, "%s", "");
    agent_builder_free(&fields);
    return result;
}

int files_upload_begin(struct files_place *place, uint32_t mode)
{
    static struct upload upload;
    char directory[PATH_MAX];
    folder(directory);
    mkdir(identity_state(), 0755);
    mkdir(directory, 0700);
    sweep();
    upload.place = *place;
    upload.mode = mode;
    int result = files_target_find(place, mode, &upload.target);
    if (result == 0)
        result = files_target_temporary(&upload.target);
    if (result < 0)
        return files_target_refused(place, result);
    const char *id = strrchr(upload.target.temporary, '-') + 1; // the random tag that its name ends with
    if ((size_t)snprintf(upload.record, sizeof upload.record, "%s/%s", directory, id) >= PATH_MAX)
        result = -ENAMETOOLONG;
    if (result == 0)
        result = write_record(&upload);
    if (result == 0)
        return answer_state(id, 0, 0);
    unlink(upload.target.temporary);
    return files_target_refused(place, result);
}

// Alone: nobody else writes to it meanwhile. Else it is only asked whether somebody does: who asks takes
// nothing, or a call that begins to write at the same moment would be refused.
static int open_partial(struct upload *upload, bool alone)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    upload->target.fd = open(upload->target.temporary, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (upload->target.fd < 0)
        return -errno;
    if (fcntl(upload->target.fd, alone ? F_OFD_SETLK : F_OFD_GETLK, &all) < 0)
        return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
    return alone || all.l_type == F_UNLCK ? 0 : -EBUSY;
}

static int sum_of(int fd, uint64_t *ret_size, uint32_t *ret_sum)
{
    static uint8_t buffer[65536];
    ssize_t got;
    *ret_size = 0;
    *ret_sum = 0;
    while ((got = pread(fd, buffer, sizeof buffer, (off_t)*ret_size)) > 0) {
        *ret_sum = agent_crc32c(*ret_sum, buffer, (size_t)got);
        *ret_size += (uint64_t)got;
    }
    return got < 0 ? -errno : 0;
}

// What was written stays, however it ends: the next call goes on from there.
static int take(struct upload *upload, const char *id, uint64_t offset)
{
    struct stat st;
    uint64_t added = 0;
    if (fstat(upload->target.fd, &st) < 0)
        return files_answer(-errno, NULL, "%s: %s", upload->place.path, strerror(errno));
    if (offset > (uint64_t)st.st_size)
        return files_answer(-EINVAL, NULL,
                "the upload has %lld bytes so far: go on from there, not from %llu", (long long)st.st_size,
                (unsigned long long)offset);
    int result = ftruncate(upload->target.fd, (off_t)offset) < 0 ? -errno : 0;
    if (result == 0 && lseek(upload->target.fd, (off_t)offset, SEEK_SET) < 0)
        result = -errno;
    if (result == 0)
        result = files_copy_input(upload->target.fd, &added);
    if (result < 0)
        return files_answer(
                result, NULL, "%s: %s; what had come is kept", upload->place.path, strerror(-result));
    return answer_state(id, offset + added, 0);
}

static int commit(struct upload *upload, uint64_t size, bool sum_given, uint32_t sum)
{
    static struct files_target place;
    uint64_t there;
    uint32_t its_sum;
    int result = sum_of(upload->target.fd, &there, &its_sum);
    if (result == 0 && there != size)
        return files_answer(-EINVAL, NULL, "the upload has %llu bytes, not %llu: it is kept as it is",
                (unsigned long long)there, (unsigned long long)size);
    if (result == 0 && sum_given && its_sum != sum)
        return files_answer(
                -EBADMSG, NULL, "the upload's sum is %08x, not %08x: it is kept as it is", its_sum, sum);
    if (result == 0)
        result = files_target_find(&upload->place, upload->mode, &place);
    if (result == 0) {
        memcpy(place.temporary, upload->target.temporary, sizeof place.temporary);
        place.fd = upload->target.fd;
        result = files_target_commit(&place);
    }
    if (result < 0)
        return files_target_refused(&upload->place, result);
    unlink(upload->record);
    return files_answer(0, NULL, "%s", "");
}

int files_upload(enum agent_operation operation, struct agent_cursor fields)
{
    static struct upload upload;
    const char *id = agent_cursor_string(&fields);
    uint64_t number = operation == AGENT_UPLOAD_WRITE || operation == AGENT_UPLOAD_COMMIT
                              ? agent_cursor_u64(&fields)
                              : 0;
    bool sum_given = operation == AGENT_UPLOAD_COMMIT && agent_cursor_u8(&fields) != 0;
    uint32_t sum = operation == AGENT_UPLOAD_COMMIT ? agent_cursor_u32(&fields) : 0;
    if (fields.bad)
        return files_answer(-EINVAL, NULL, "the request cannot be read");
    int result = read_record(id, &upload);
    if (result == 0)
        result = open_partial(&upload, operation != AGENT_UPLOAD_GET);
    if (result == -EBUSY)
        return files_answer(result, NULL, "the upload \"%s\" is being written by another call", id);
    if (result < 0)
        return no_such(id, result);
    if (operation == AGENT_UPLOAD_WRITE)
        return take(&upload, id, number);
    if (operation == AGENT_UPLOAD_COMMIT)
        return commit(&upload, number, sum_given, sum);
    if (operation == AGENT_UPLOAD_DROP) {
        unlink(upload.target.temporary);
        unlink(upload.record);
        return files_answer(0, NULL, "%s", "");
    }
    result = sum_of(upload.target.fd, &number, &sum);
    return result < 0 ? no_such(id, result) : answer_state(id, number, sum);
}
