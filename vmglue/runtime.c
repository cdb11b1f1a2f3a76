// SPDX-License-Identifier: Apache-2.0
#include "vmglue/runtime.h"

#include "blockstore/clock.h"
#include "vmglue/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char INSTALLED[] = "installed.json";

struct known {
    struct known *next;
    char name[RUNTIME_NAME_SIZE];
    unsigned holders;
    bool verified;
    uint64_t stamp; // when it was verified
};

struct runtimes {
    struct runtimes_config config;
    char *folder;
    pthread_mutex_t lock;            // held over making and verifying: others need the same result
    struct known *list;              // (lock)
    char current[RUNTIME_NAME_SIZE]; // (lock) "" = not known yet
};

__attribute__((format(printf, 2, 3))) static void say(struct runtimes *runtimes, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (runtimes->config.log != NULL)
        runtimes->config.log(runtimes->config.context, text);
}

int runtimes_open(const struct runtimes_config *config, struct runtimes **ret_runtimes, struct error *err)
{
    struct runtimes *runtimes = calloc(1, sizeof *runtimes);
    char *folder = strdup(config->folder);
    if (runtimes == NULL || folder == NULL) {
        free(runtimes);
        free(folder);
        return error_set(err, -ENOMEM, "no memory");
    }
    if (mkdir(folder, 0700) < 0 && errno != EEXIST) {
        int result = error_set(err, -errno, "the folder %s cannot be made: %s", folder, strerror(errno));
        free(runtimes);
        free(folder);
        return result;
    }
    runtimes->config = *config;
    runtimes->folder = folder;
    pthread_mutex_init(&runtimes->lock, NULL);
    runtime_bundle_clean(folder, INSTALLED);
    *ret_runtimes = runtimes;
    return 0;
}

struct runtimes *runtimes_close(struct runtimes *runtimes)
{
    if (runtimes == NULL)
        return NULL;
    while (runtimes->list != NULL) {
        struct known *known = runtimes->list;
        runtimes->list = known->next;
        free(known);
    }
    pthread_mutex_destroy(&runtimes->lock);
    free(runtimes->folder);
    free(runtimes);
    return NULL;
}

static struct known *find_locked(struct runtimes *runtimes, const char *name)
{
    for (struct known *known = runtimes->list; known != NULL; known = known->next)
        if (strcmp(known->name, name) == 0)
            return known;
    return NULL;
}

// ---- What is installed ----

static json_t *describe_source(const char *path)
{
    struct stat stat_now;
    if (stat(path, &stat_now) < 0)
        return json_pack("{s:s, s:b}", "path", path, "missing", 1);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "path", path, "device", (json_int_t)stat_now.st_dev,
            "inode", (json_int_t)stat_now.st_ino, "size", (json_int_t)stat_now.st_size, "mtime",
            (json_int_t)stat_now.st_mtim.tv_sec, "mtime_ns", (json_int_t)stat_now.st_mtim.tv_nsec);
}

static json_t *describe_origin(const struct runtime_origin *origin)
{
    return json_pack("{s:s?, s:s?, s:s?, s:s?}", "vmm", origin->vmm_path, "preload", origin->preload_path,
            "kernel", origin->kernel_path, "initramfs", origin->initrd_path);
}

// The name of the bundle that was made from the same files, when they are still as they were.
static bool recall_locked(struct runtimes *runtimes, char ret_name[RUNTIME_NAME_SIZE])
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", runtimes->folder, INSTALLED);
    JSON_AUTO json_t *record = json_load_file(path, 0, NULL);
    JSON_AUTO json_t *origin = describe_origin(&runtimes->config.origin);
    const char *name = json_string_value(json_object_get(record, "runtime"));
    json_t *files = json_object_get(record, "files"), *file;
    if (name == NULL || !runtime_bundle_is_name(name) || json_array_size(files) == 0 ||
            !json_equal(json_object_get(record, "origin"), origin))
        return false;
    size_t i;
    json_array_foreach(files, i, file)
    {
        const char *source = json_string_value(json_object_get(file, "path"));
        JSON_AUTO json_t *now = source == NULL ? NULL : describe_source(source);
        if (now == NULL || !json_equal(now, file))
            return false;
    }
    memcpy(ret_name, name, RUNTIME_NAME_SIZE);
    return true;
}

// A cache: without it the files are only copied once more.
static void remember_locked(struct runtimes *runtimes, json_t *files, const char *name)
{
    char path[PATH_MAX + 20], made[PATH_MAX + 20];
    snprintf(path, sizeof path, "%s/%s", runtimes->folder, INSTALLED);
    snprintf(made, sizeof made, "%s/%s.new", runtimes->folder, INSTALLED);
    JSON_AUTO json_t *record = json_pack("{s:s, s:o, s:O}", "runtime", name, "origin",
            describe_origin(&runtimes->config.origin), "files", files);
    if (record == NULL || json_dump_file(record, made, JSON_INDENT(1)) != 0 || rename(made, path) < 0)
        unlink(made);
}

static int make_locked(struct runtimes *runtimes, char ret_name[RUNTIME_NAME_SIZE], struct error *err)
{
    uint64_t started_ms = clock_monotonic_ms();
    struct runtime_sources *sources;
    int result = runtime_sources_find(&runtimes->config.origin, &sources, err);
    if (result < 0)
        return result;
    // As they are before they are copied: what changes meanwhile is seen next time.
    JSON_AUTO json_t *files = json_array();
    for (unsigned i = 0; i < sources->count; i++)
        json_array_append_new(files, describe_source(sources->items[i].path));
    result = runtime_bundle_make(runtimes->folder, sources, ret_name, err);
    unsigned count = sources->count;
    runtime_sources_free(sources);
    if (result < 0)
        return result;
    remember_locked(runtimes, files, ret_name);
    struct known *known = find_locked(runtimes, ret_name);
    if (known != NULL)
        known->verified = false;
    say(runtimes, "the runtime %s was made of what is installed: %u files, %llu MB in %s, in %llu ms",
            ret_name, count, (unsigned long long)(runtime_bundle_bytes(runtimes->folder, ret_name) / 1000000),
            runtimes->folder, (unsigned long long)(clock_monotonic_ms() - started_ms));
    return 0;
}

// ---- Holding ----

static int verify_locked(struct runtimes *runtimes, struct known *known, struct error *err)
{
    uint64_t stamp;
    if (known->verified && runtime_bundle_stamp(runtimes->folder, known->name, &stamp) == 0 &&
            stamp == known->stamp)
        return 0;
    known->verified = false;
    int result = runtime_bundle_verify(runtimes->folder, known->name, &known->stamp, err);
    known->verified = result == 0;
    return result;
}

// A damaged or lost one that equals what is installed is simply made again.
static int mend_locked(struct runtimes *runtimes, struct known *known, int result, struct error *err)
{
    char made[RUNTIME_NAME_SIZE];
    struct error words;
    if (make_locked(runtimes, made, &words) < 0 || strcmp(made, known->name) != 0)
        return result;
    memcpy(runtimes->current, made, sizeof made);
    say(runtimes, "%s; what is installed is the same, so it was made again",
            err != NULL ? err->text : "a runtime was damaged");
    return verify_locked(runtimes, known, err);
}

static void fill_path(const struct runtime *runtime, const char *target, char *ret_path, size_t capacity)
{
    snprintf(ret_path, capacity, "%s/%s", runtime->root, target);
    if (access(ret_path, R_OK) < 0)
        ret_path[0] = '\0'; // this one was made without
}

static int hold_locked(
        struct runtimes *runtimes, const char *name, struct runtime *ret_runtime, struct error *err)
{
    struct known *known = find_locked(runtimes, name);
    if (known == NULL) {
        known = calloc(1, sizeof *known);
        if (known == NULL)
            return error_set(err, -ENOMEM, "no memory");
        snprintf(known->name, sizeof known->name, "%s", name);
        known->next = runtimes->list;
        runtimes->list = known;
    }
    struct runtime runtime = {0};
    struct error words = {0};
    int result = verify_locked(runtimes, known, &words);
    if (result == -EBADMSG || result == -ENOENT)
        result = mend_locked(runtimes, known, result, &words);
    if (result == 0 && (size_t)snprintf(runtime.root, sizeof runtime.root, "%s/%s", runtimes->folder, name) >=
                               sizeof runtime.root)
        result = error_set(&words, -ENAMETOOLONG,
                "the path of the store is too long for a confined VMM (%d bytes are the most): move the "
                "store, "
                "or run with --no-confine",
                (int)(sizeof runtime.root - RUNTIME_NAME_SIZE - 12));
    if (result < 0) {
        if (err != NULL)
            *err = words;
        return result;
    }
    memcpy(runtime.name, known->name, sizeof runtime.name);
    fill_path(&runtime, RUNTIME_VMM, runtime.vmm, sizeof runtime.vmm);
    fill_path(&runtime, RUNTIME_PRELOAD, runtime.preload, sizeof runtime.preload);
    fill_path(&runtime, RUNTIME_KERNEL, runtime.kernel, sizeof runtime.kernel);
    fill_path(&runtime, RUNTIME_INITRD, runtime.initrd, sizeof runtime.initrd);
    known->holders++;
    *ret_runtime = runtime;
    return 0;
}

int runtimes_hold_current(struct runtimes *runtimes, struct runtime *ret_runtime, struct error *err)
{
    char name[RUNTIME_NAME_SIZE];
    pthread_mutex_lock(&runtimes->lock);
    int result = recall_locked(runtimes, name) ? 0 : make_locked(runtimes, name, err);
    if (result == 0) {
        memcpy(runtimes->current, name, sizeof name);
        result = hold_locked(runtimes, name, ret_runtime, err);
    }
    pthread_mutex_unlock(&runtimes->lock);
    return result;
}

int runtimes_hold(struct runtimes *runtimes, const char *name, struct runtime *ret_runtime, struct error *err)
{
    pthread_mutex_lock(&runtimes->lock);
    int result = hold_locked(runtimes, name, ret_runtime, err);
    pthread_mutex_unlock(&runtimes->lock);
    return result;
}

void runtimes_put(struct runtimes *runtimes, const char *name)
{
    pthread_mutex_lock(&runtimes->lock);
    struct known *known = find_locked(runtimes, name);
    if (known != NULL && known->holders > 0)
        known->holders--;
    pthread_mutex_unlock(&runtimes->lock);
}

// ---- Removing ----

// Called with the lock held.
static void collect_one(struct runtimes *runtimes, const char *name,
        bool (*needed)(void *context, const char *name), void *context)
{
    struct known *known = find_locked(runtimes, name);
    struct error err;
    if ((known != NULL && known->holders > 0) || strcmp(name, runtimes->current) == 0 ||
            needed(context, name))
        return;
    if (runtime_bundle_remove(runtimes->folder, name, &err) < 0)
        say(runtimes, "%s", err.text);
    else
        say(runtimes, "the runtime %s was removed: no machine needs it", name);
    if (known != NULL)
        known->verified = false;
}

void runtimes_collect(
        struct runtimes *runtimes, bool (*needed)(void *context, const char *name), void *context)
{
    pthread_mutex_lock(&runtimes->lock);
    if (runtimes->current[0] == '\0' && !recall_locked(runtimes, runtimes->current))
        runtimes->current[0] = '\0';
    DIR *dir = opendir(runtimes->folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (runtime_bundle_is_name(entry->d_name))
            collect_one(runtimes, entry->d_name, needed, context);
    if (dir != NULL)
        closedir(dir);
    pthread_mutex_unlock(&runtimes->lock);
}
