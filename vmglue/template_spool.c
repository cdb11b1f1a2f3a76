// SPDX-License-Identifier: Apache-2.0
#include "vmglue/template_spool.h"

#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "vmglue/template_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 18, UNUSED_SECS = 3600, FREE_SHARE = 20 };

struct upload {
    char id[TEMPLATE_SPOOL_NAME];
    uint64_t size_bytes;
    time_t since; // of the monotonic clock
    bool coming, used;
    struct upload *next;
};

struct template_spool {
    char folder[PATH_MAX - TEMPLATE_SPOOL_NAME - 1];
    uint64_t limit_bytes;
    pthread_mutex_t lock;
    // protected by lock:
    struct upload *uploads;
    uint64_t used_bytes;
};

int template_spool_open(
        const char *folder, uint64_t limit_bytes, struct template_spool **ret_spool, struct error *err)
{
    struct template_spool *spool = calloc(1, sizeof *spool);
    if (spool == NULL)
        return error_set(err, -ENOMEM, "no memory");
    int r = 0;
    if ((size_t)snprintf(spool->folder, sizeof spool->folder, "%s", folder) >= sizeof spool->folder)
        r = error_set(err, -ENAMETOOLONG, "the path %.80s... is too long", folder);
    if (r == 0 && (r = template_files_remove(folder)) < 0)
        error_set(err, r, "the folder %s cannot be emptied: %s", folder, strerror(-r));
    if (r == 0)
        r = template_files_make_folder(folder, err);
    if (r < 0) {
        free(spool);
        return r;
    }
    spool->limit_bytes = limit_bytes;
    pthread_mutex_init(&spool->lock, NULL);
    *ret_spool = spool;
    return 0;
}

static void file_path(const struct template_spool *spool, const char *id, char *ret_path)
{
    snprintf(ret_path, PATH_MAX, "%s/%s", spool->folder, id);
}

// Takes it out of the list; the file goes with it.
static void drop_locked(struct template_spool *spool, struct upload *upload)
{
    char path[PATH_MAX];
    struct upload **link = &spool->uploads;
    while (*link != upload)
        link = &(*link)->next;
    *link = upload->next;
    spool->used_bytes -= upload->size_bytes;
    file_path(spool, upload->id, path);
    unlink(path);
    free(upload);
}

struct template_spool *template_spool_close(struct template_spool *spool)
{
    if (spool == NULL)
        return NULL;
    while (spool->uploads != NULL)
        drop_locked(spool, spool->uploads);
    rmdir(spool->folder);
    pthread_mutex_destroy(&spool->lock);
    free(spool);
    return NULL;
}

// Room for more bytes of an upload: within the spool's bound, and the file system keeps a twentieth free.
static int reserve(struct template_spool *spool, struct upload *upload, size_t size, struct error *err)
{
    struct statvfs fs;
    pthread_mutex_lock(&spool->lock);
    bool fits = size <= spool->limit_bytes && spool->used_bytes <= spool->limit_bytes - size;
    if (fits) {
        spool->used_bytes += size;
        upload->size_bytes += size;
    }
    pthread_mutex_unlock(&spool->lock);
    if (!fits)
        return error_set(err, -ENOSPC,
                "uploads may take %" PRIu64
                " MiB together, and this one does not fit; remove one that is not "
                "needed, or wait until builds have used theirs",
                spool->limit_bytes >> 20);
    if (statvfs(spool->folder, &fs) == 0 && fs.f_bavail < fs.f_blocks / FREE_SHARE)
        return error_set(
                err, -ENOSPC, "the file system of the store is nearly full; the upload was given up");
    return 0;
}

static int receive(struct template_spool *spool, struct upload *upload, int fd,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, struct error *err)
{
    char *buffer = malloc(PIECE_BYTES);
    int r = buffer == NULL ? error_set(err, -ENOMEM, "no memory for the upload") : 0;
    while (r == 0) {
        ssize_t got = source(context, buffer, PIECE_BYTES);
        if (got == 0)
            break;
        if (got < 0) {
            r = error_set(err, (int)got, "the upload broke off after %" PRIu64 " bytes; nothing was kept",
                    upload->size_bytes);
            break;
        }
        r = reserve(spool, upload, (size_t)got, err);
        if (r == 0 && (r = fd_write_all(fd, buffer, (size_t)got)) < 0)
            error_set(err, r, "the upload cannot be kept: %s", strerror(-r));
    }
    free(buffer);
    if (r == 0 && upload->size_bytes == 0)
        r = error_set(err, -EINVAL, "the upload is empty");
    return r;
}

int template_spool_take(struct template_spool *spool,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context, json_t **ret_json,
        struct error *err)
{
    char path[PATH_MAX];
    uint64_t random = 0;
    struct upload *upload = calloc(1, sizeof *upload);
    if (upload == NULL || getrandom(&random, sizeof random, 0) != sizeof random)
        abort();
    snprintf(upload->id, sizeof upload->id, "upl_%016" PRIx64, random);
    upload->since = (time_t)(clock_monotonic_ms() / 1000);
    upload->coming = true;
    pthread_mutex_lock(&spool->lock);
    upload->next = spool->uploads;
    spool->uploads = upload;
    pthread_mutex_unlock(&spool->lock);
    file_path(spool, upload->id, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), r = 0;
    if (fd < 0)
        r = error_set(
                err, -errno, "no file for the upload can be made in %s: %s", spool->folder, strerror(errno));
    else
        r = receive(spool, upload, fd, source, context, err);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&spool->lock);
    upload->coming = false;
    upload->since = (time_t)(clock_monotonic_ms() / 1000);
    if (r < 0)
        drop_locked(spool, upload);
    else
        *ret_json =
                json_pack("{s:s, s:I}", "upload", upload->id, "size_bytes", (json_int_t)upload->size_bytes);
    pthread_mutex_unlock(&spool->lock);
    return r;
}

static struct upload *find_locked(struct template_spool *spool, const char *id)
{
    struct upload *upload = spool->uploads;
    while (upload != NULL && (upload->coming || strcmp(upload->id, id) != 0))
        upload = upload->next;
    return upload;
}

static int not_there(const char *id, struct error *err)
{
    return error_set(err, -ENOENT,
            "there is no upload \"%.40s\"; one that no build takes is removed after an hour", id);
}

int template_spool_use(struct template_spool *spool, const char *id, char *ret_path, struct error *err)
{
    int r = 0;
    pthread_mutex_lock(&spool->lock);
    struct upload *upload = find_locked(spool, id);
    if (upload == NULL) {
        r = not_there(id, err);
    } else if (upload->used) {
        r = error_set(err, -EBUSY, "upload \"%.40s\" belongs to another build already", id);
    } else {
        upload->used = true;
        file_path(spool, id, ret_path);
    }
    pthread_mutex_unlock(&spool->lock);
    return r;
}

void template_spool_give_back(struct template_spool *spool, const char *id)
{
    pthread_mutex_lock(&spool->lock);
    struct upload *upload = find_locked(spool, id);
    if (upload != NULL) {
        upload->used = false;
        upload->since = (time_t)(clock_monotonic_ms() / 1000);
    }
    pthread_mutex_unlock(&spool->lock);
}

void template_spool_release(struct template_spool *spool, const char *id)
{
    pthread_mutex_lock(&spool->lock);
    struct upload *upload = find_locked(spool, id);
    if (upload != NULL)
        drop_locked(spool, upload);
    pthread_mutex_unlock(&spool->lock);
}

int template_spool_remove(struct template_spool *spool, const char *id, struct error *err)
{
    int r = 0;
    pthread_mutex_lock(&spool->lock);
    struct upload *upload = find_locked(spool, id);
    if (upload == NULL)
        r = not_there(id, err);
    else if (upload->used)
        r = error_set(err, -EBUSY, "upload \"%.40s\" is used by a build; cancel that one", id);
    else
        drop_locked(spool, upload);
    pthread_mutex_unlock(&spool->lock);
    return r;
}

void template_spool_expire(struct template_spool *spool)
{
    time_t now = (time_t)(clock_monotonic_ms() / 1000);
    pthread_mutex_lock(&spool->lock);
    for (struct upload *upload = spool->uploads, *next; upload != NULL; upload = next) {
        next = upload->next;
        if (!upload->coming && !upload->used && now - upload->since > UNUSED_SECS)
            drop_locked(spool, upload);
    }
    pthread_mutex_unlock(&spool->lock);
}
