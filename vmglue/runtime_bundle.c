// SPDX-License-Identifier: Apache-2.0
// Digests are of the copies, read back: a source that changes under the copying hand gives a bundle that is
// whole in itself. What is verified is what a VMM will run.
#include "vmglue/runtime_bundle.h"

#include "blockstore/digest.h"
#include "blockstore/fd.h"
#include "vmglue/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FORMAT = 1,
    DIGEST_SIZE = 33,
    COPY_BYTES = 1 << 20,
    TREE_FDS = 16,
    PATH_SIZE = PATH_MAX + RUNTIME_TARGET_SIZE + 2
};
static const char MANIFEST[] = "manifest.json", UNFINISHED[] = ".new";

static void digest_text(const void *bytes, size_t size, char ret_text[DIGEST_SIZE])
{
    snprintf(ret_text, DIGEST_SIZE, "%016llx%016llx", (unsigned long long)digest_bytes(bytes, size, 0),
            (unsigned long long)digest_bytes(bytes, size, 1));
}

static int digest_file(int fd, uint64_t size, char ret_text[DIGEST_SIZE])
{
    if (size == 0) {
        digest_text("", 0, ret_text);
        return 0;
    }
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED)
        return -errno;
    digest_text(bytes, size, ret_text);
    munmap(bytes, size);
    return 0;
}

bool runtime_bundle_is_name(const char *name)
{
    return strlen(name) == RUNTIME_NAME_SIZE - 1 && strspn(name, "0123456789abcdef") == RUNTIME_NAME_SIZE - 1;
}

// ---- Removing ----

static int remove_entry(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

static int remove_tree(const char *path)
{
    return nftw(path, remove_entry, TREE_FDS, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT ? 0 : -errno;
}

int runtime_bundle_remove(const char *folder, const char *name, struct error *err)
{
    char path[PATH_SIZE], leaving[PATH_SIZE + sizeof UNFINISHED];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(leaving, sizeof leaving, "%s%s", path, UNFINISHED);
    remove_tree(leaving);
    int result = rename(path, leaving) == 0 ? remove_tree(leaving) : -errno;
    return result == 0 || result == -ENOENT
                   ? 0
                   : error_set(err, result, "the runtime %s cannot be removed: %s", path, strerror(-result));
}

void runtime_bundle_clean(const char *folder, const char *keep)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[PATH_SIZE];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                strcmp(entry->d_name, keep) == 0 || runtime_bundle_is_name(entry->d_name))
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < sizeof path)
            remove_tree(path);
    }
    closedir(dir);
}

// ---- Copying ----

static int sync_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return result;
}

// Makes the folders that lead to `target` below `root`; they are few, so each is tried each time.
static int make_parents(const char *root, const char *target)
{
    char path[PATH_SIZE];
    size_t used = (size_t)snprintf(path, sizeof path, "%s/", root);
    for (const char *slash = strchr(target, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        size_t part = (size_t)(slash - target);
        if (used + part >= sizeof path)
            return -ENAMETOOLONG;
        memcpy(path + used, target, part);
        path[used + part] = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return -errno;
        if (chmod(path, 0755) < 0) // whatever the umask
            return -errno;
    }
    return 0;
}

// Shares the blocks where the file system can (copy_file_range does).
static int copy_bytes(int from, int to)
{
    ssize_t got;
    while ((got = copy_file_range(from, NULL, to, NULL, SSIZE_MAX & ~4095, 0)) > 0)
        ;
    if (got == 0)
        return 0;
    if (errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return -errno;
    char *buffer = malloc(COPY_BYTES);
    int result = buffer == NULL ? -ENOMEM : 0;
    while (result == 0 && (got = read(from, buffer, COPY_BYTES)) != 0) {
        result = got < 0 ? -errno : fd_write_all(to, buffer, (size_t)got);
    }
    free(buffer);
    return result;
}

// Copies one file, syncs it, and appends its line to the manifest.
static int copy_file(const char *root, const struct runtime_source *source, json_t *files, struct error *err)
{
    char path[PATH_SIZE], digest[DIGEST_SIZE] = "";
    struct stat stat = {0};
    snprintf(path, sizeof path, "%s/%s", root, source->target);
    int from = open(source->path, O_RDONLY | O_CLOEXEC), to = -1, result = 0;
    if (from < 0)
        return error_set(
                err, -errno, "%s, which a VMM needs, cannot be read: %s", source->path, strerror(errno));
    result = make_parents(root, source->target);
    if (result == 0 && (to = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
        result = -errno;
    if (result == 0)
        result = copy_bytes(from, to);
    if (result == 0 && (fchmod(to, source->mode) < 0 || fsync(to) < 0 || fstat(to, &stat) < 0))
        result = -errno;
    if (result == 0)
        result = digest_file(to, (uint64_t)stat.st_size, digest);
    close(from);
    if (to >= 0)
        close(to);
    if (result < 0)
        return error_set(err, result, "%s cannot be copied to %s: %s", source->path, path, strerror(-result));
    json_array_append_new(
            files, json_pack("{s:s, s:I, s:s, s:i}", "path", source->target, "size", (json_int_t)stat.st_size,
                           "digest", digest, "mode", (int)source->mode));
    return 0;
}

static int compare_sources(const void *a, const void *b)
{
    return strcmp(((const struct runtime_source *)a)->target, ((const struct runtime_source *)b)->target);
}

static int sync_folder(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    return kind != FTW_D || sync_path(path) == 0 ? 0 : -1;
}

static int write_manifest(const char *root, const char *text, struct error *err)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", root, MANIFEST);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    int result = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
    if (result == 0 && fsync(fd) < 0)
        result = -errno;
    if (fd >= 0)
        close(fd);
    // The files are synced; so must be the folders that name them.
    if (result == 0 && nftw(root, sync_folder, TREE_FDS, FTW_PHYS) != 0)
        result = -errno;
    return result == 0 ? 0 : error_set(err, result, "%s cannot be written: %s", path, strerror(-result));
}

// All files into `root`, which is new; the bundle's name comes out.
static int fill(const char *root, const struct runtime_sources *sources, char ret_name[RUNTIME_NAME_SIZE],
        struct error *err)
{
    JSON_AUTO json_t *manifest = json_pack("{s:i, s:[]}", "format", FORMAT, "files");
    json_t *files = json_object_get(manifest, "files");
    // By name, so that the same files give the same manifest.
    struct runtime_sources *sorted = malloc(sizeof *sorted);
    if (files == NULL || sorted == NULL) {
        free(sorted);
        return error_set(err, -ENOMEM, "no memory for a runtime's manifest");
    }
    *sorted = *sources;
    qsort(sorted->items, sorted->count, sizeof sorted->items[0], compare_sources);
    int result = 0;
    for (unsigned i = 0; i < sorted->count && result == 0; i++)
        result = copy_file(root, &sorted->items[i], files, err);
    free(sorted);
    if (result < 0)
        return result;
    char *text = json_dumps(manifest, JSON_INDENT(1) | JSON_SORT_KEYS);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for a runtime's manifest");
    digest_text(text, strlen(text), ret_name);
    result = write_manifest(root, text, err);
    free(text);
    return result;
}

int runtime_bundle_make(const char *folder, const struct runtime_sources *sources,
        char ret_name[RUNTIME_NAME_SIZE], struct error *err)
{
    char made[PATH_MAX], path[PATH_SIZE], name[RUNTIME_NAME_SIZE];
    uint64_t stamp;
    if (snprintf(made, sizeof made, "%s/making%s", folder, UNFINISHED) >= PATH_MAX)
        return error_set(
                err, -ENAMETOOLONG, "the path of the store is too long for a runtime: %.80s...", folder);
    remove_tree(made);
    if (mkdir(made, 0755) < 0 || chmod(made, 0755) < 0)
        return error_set(err, -errno, "the folder %s cannot be made: %s", made, strerror(errno));
    int result = fill(made, sources, name, err);
    if (result == 0 && runtime_bundle_verify(folder, name, &stamp, NULL) != 0) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        result = runtime_bundle_remove(folder, name, err); // a damaged one
        if (result == 0 && (rename(made, path) < 0 || (result = sync_path(folder)) < 0))
            result = error_set(err, result < 0 ? result : -errno,
                    "the runtime %s cannot be put in its place: %s", path, strerror(errno));
    }
    remove_tree(made);
    if (result == 0)
        memcpy(ret_name, name, sizeof name);
    return result;
}

// ---- Verifying ----

struct walk {
    const char *root;
    bool read; // all bytes; otherwise sizes and times alone
    uint64_t stamp;
};

static int damaged(struct error *err, const char *root, const char *path, const char *how)
{
    return error_set(err, -EBADMSG,
            "the runtime %s is damaged: %s %s. A machine that was saved with it cannot go on; put back a "
            "copy "
            "of this folder from a backup of the store, or boot the machine from its disk (ramet start "
            "--cold)",
            root, path, how);
}

static int check_file(struct walk *walk, const json_t *line, struct error *err)
{
    const char *name = json_string_value(json_object_get(line, "path")),
               *digest = json_string_value(json_object_get(line, "digest"));
    json_int_t size = json_integer_value(json_object_get(line, "size")),
               mode = json_integer_value(json_object_get(line, "mode"));
    char path[PATH_SIZE], now[DIGEST_SIZE];
    struct stat stat;
    if (name == NULL || digest == NULL || strstr(name, "..") != NULL)
        return damaged(err, walk->root, MANIFEST, "has a line that is none");
    snprintf(path, sizeof path, "%s/%s", walk->root, name);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) < 0) {
        if (fd >= 0)
            close(fd);
        return damaged(err, walk->root, name, "is missing");
    }
    int result = 0;
    if (!S_ISREG(stat.st_mode) || stat.st_size != size)
        result = damaged(err, walk->root, name, "has another size");
    else if ((stat.st_mode & 07777) != (mode_t)mode)
        result = damaged(err, walk->root, name, "has other permissions");
    else if (walk->read && (digest_file(fd, (uint64_t)stat.st_size, now) < 0 || strcmp(now, digest) != 0))
        result = damaged(err, walk->root, name, "has other bytes");
    close(fd);
    uint64_t facts[] = {(uint64_t)stat.st_ino, (uint64_t)stat.st_size, (uint64_t)stat.st_mtim.tv_sec,
            (uint64_t)stat.st_mtim.tv_nsec, (uint64_t)stat.st_ctim.tv_sec, (uint64_t)stat.st_ctim.tv_nsec};
    walk->stamp = digest_bytes(facts, sizeof facts, walk->stamp);
    return result;
}

// The manifest, whose digest is the bundle's name.
static int load_manifest(const char *root, const char *name, json_t **ret_manifest, struct error *err)
{
    char path[PATH_SIZE], digest[DIGEST_SIZE];
    snprintf(path, sizeof path, "%s/%s", root, MANIFEST);
    JSON_AUTO json_t *manifest = json_load_file(path, 0, NULL);
    if (manifest == NULL && access(root, F_OK) < 0 && errno == ENOENT)
        return error_set(err, -ENOENT, "the runtime %s is not there any more", root);
    char *text = manifest == NULL ? NULL : json_dumps(manifest, JSON_INDENT(1) | JSON_SORT_KEYS);
    if (text != NULL)
        digest_text(text, strlen(text), digest);
    bool same = text != NULL && strcmp(digest, name) == 0;
    free(text);
    if (!same)
        return damaged(err, root, MANIFEST, "is missing or changed");
    *ret_manifest = json_incref(manifest);
    return 0;
}

static int walk_bundle(
        const char *folder, const char *name, bool read, uint64_t *ret_stamp, struct error *err)
{
    char root[PATH_MAX];
    JSON_AUTO json_t *manifest = NULL;
    if (!runtime_bundle_is_name(name) ||
            (size_t)snprintf(root, sizeof root, "%s/%s", folder, name) >= sizeof root)
        return error_set(err, -ENOENT, "\"%.40s\" is no name of a runtime", name);
    int result = load_manifest(root, name, &manifest, err);
    struct walk walk = {.root = root, .read = read};
    json_t *files = json_object_get(manifest, "files"), *line;
    size_t i;
    for (i = 0; result == 0 && i < json_array_size(files); i++) {
        line = json_array_get(files, i);
        result = check_file(&walk, line, err);
    }
    if (result == 0)
        *ret_stamp = walk.stamp;
    return result;
}

int runtime_bundle_verify(const char *folder, const char *name, uint64_t *ret_stamp, struct error *err)
{
    return walk_bundle(folder, name, true, ret_stamp, err);
}

int runtime_bundle_stamp(const char *folder, const char *name, uint64_t *ret_stamp)
{
    return walk_bundle(folder, name, false, ret_stamp, NULL);
}

// ---- Measuring ----

static _Thread_local uint64_t counted_bytes;

static int count_entry(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    counted_bytes += kind == FTW_F ? (uint64_t)stat->st_blocks * 512 : 0;
    return 0;
}

uint64_t runtime_bundle_bytes(const char *folder, const char *name)
{
    char root[PATH_SIZE];
    snprintf(root, sizeof root, "%s/%s", folder, name);
    counted_bytes = 0;
    nftw(root, count_entry, TREE_FDS, FTW_PHYS);
    return counted_bytes;
}
