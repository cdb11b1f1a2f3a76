// SPDX-License-Identifier: Apache-2.0
// The queue of builds and the thread that runs them; templates by name.
#include "blockstore/clock.h"
#include "vmglue/template_internal.h"

#include "vmglue/json_fields.h"
#include "vmglue/template_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { ENDED_MAX = 32, QUEUED_MAX = 64, EXPIRE_SECS = 60 };
static const uint64_t SPOOL_MAX_BYTES = 64ull << 30;

void template_say(struct templates *all, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    all->config.log(all->config.context, text);
}

static void log_path(const struct templates *all, const char *id, char *ret_path)
{
    snprintf(ret_path, PATH_MAX, "%s/logs/%.40s", all->folder, id);
}

// ---- builds ----

// The last reference of one that has left the list.
static void free_build(struct template_build *build)
{
    template_log_destroy(build->log);
    template_request_free(&build->request);
    json_decref(build->defaults);
    free(build);
}

static void put_locked(struct template_build *build)
{
    if (--build->references == 0)
        free_build(build);
}

static bool has_ended(const struct template_build *build)
{
    return build->state == TEMPLATE_READY || build->state == TEMPLATE_FAILED;
}

// Only so many ended ones are remembered: the oldest go.
static void forget_locked(struct templates *all)
{
    unsigned ended = 0;
    for (struct template_build *build = all->first; build != NULL; build = build->next)
        ended += has_ended(build);
    for (struct template_build **link = &all->first; ended > ENDED_MAX && *link != NULL;) {
        struct template_build *build = *link;
        if (!has_ended(build)) {
            link = &build->next;
            continue;
        }
        *link = build->next;
        put_locked(build);
        ended--;
    }
}

// What the build holds of other parts, whether it ran or not.
static void let_go(struct template_build *build)
{
    struct templates *all = build->all;
    struct service *service = all->config.service;
    if (build->reserved_name)
        names_release(&service->names, NAMES_DATA, build->request.name);
    build->reserved_name = false;
    if (build->upload[0] != '\0')
        template_spool_release(all->spool, build->request.what);
    build->upload[0] = '\0';
    if (build->imported.value != 0) {
        struct txn *txn = txn_begin(all->store);
        txn_doc_delete(txn, build->passing);
        txn_volume_delete(txn, build->imported);
        txn_commit_wait(txn, TXN_RESERVE, NULL); // a failed store drops it at its next start
    }
    build->imported.value = 0;
}

static void end_build(struct template_build *build, int result, const struct error *err)
{
    struct templates *all = build->all;
    uint64_t now = clock_wall_ns();
    double seconds = build->started_ns == 0 ? 0 : (double)(now - build->started_ns) / 1e9;
    if (result < 0)
        template_log_line(build->log, "failed: %s", err->text);
    else
        template_log_line(build->log, "ready after %.1f s", seconds);
    if (result == 0) {
        char path[PATH_MAX], *text = template_log_text(build->log);
        log_path(all, build->id, path);
        if (text == NULL || template_files_write(path, text) < 0)
            template_say(all, "template %s: the log of its build cannot be kept", build->request.name);
        free(text);
    }
    let_go(build);
    pthread_mutex_lock(&all->lock);
    build->state = result < 0 ? TEMPLATE_FAILED : TEMPLATE_READY;
    build->step[0] = '\0';
    build->ended_ns = now;
    if (result < 0)
        build->err = *err;
    forget_locked(all);
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    template_log_close(build->log);
    if (result < 0)
        template_say(all, "template %s: %s", build->request.name, err->text);
    else
        template_say(all, "template %s: ready after %.1f s", build->request.name, seconds);
}

static struct template_build *next_locked(struct templates *all)
{
    struct template_build *build = all->first;
    while (build != NULL && build->state != TEMPLATE_QUEUED)
        build = build->next;
    return build;
}

static void *work(void *context)
{
    struct templates *all = context;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        struct template_build *build = next_locked(all);
        if (build == NULL && all->stopping)
            break;
        if (build == NULL) {
            struct timespec until = clock_deadline(EXPIRE_SECS * 1000);
            pthread_cond_timedwait(&all->changed, &all->lock, &until);
            pthread_mutex_unlock(&all->lock);
            template_spool_expire(all->spool);
            pthread_mutex_lock(&all->lock);
            continue;
        }
        struct error err;
        build->references++;
        build->state = TEMPLATE_RUNNING;
        build->started_ns = clock_wall_ns();
        bool cancelled = build->cancelled;
        pthread_mutex_unlock(&all->lock);
        int r = cancelled ? error_set(&err, -ECANCELED, "the build was cancelled")
                          : template_build_run(build, &err);
        end_build(build, r, &err);
        pthread_mutex_lock(&all->lock);
        put_locked(build);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static const char *state_name(enum template_state state)
{
    static const char *const names[] = {[TEMPLATE_QUEUED] = "queued",
            [TEMPLATE_RUNNING] = "running",
            [TEMPLATE_READY] = "ready",
            [TEMPLATE_FAILED] = "failed"};
    return names[state];
}

static json_t *build_json_locked(const struct template_build *build)
{
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "id", build->id, "name",
            build->request.name, "state", state_name(build->state), "step", build->step, "source",
            template_request_source_name(build->request.source), "warm",
            template_request_warm_name(build->request.warm), "cancelled", (int)build->cancelled);
    json_object_set_new(json, "created_at", json_fields_time(build->created_ns));
    json_object_set_new(json, "started_at", json_fields_time(build->started_ns));
    json_object_set_new(json, "ended_at", json_fields_time(build->ended_ns));
    json_t *error = json_null();
    if (build->state == TEMPLATE_FAILED) {
        char code[64];
        bool retryable;
        http_route_status("template", build->err.code, code, sizeof code, &retryable);
        error = json_pack("{s:s, s:o}", "code", build->err.code == -ECANCELED ? "template.cancelled" : code,
                "message", json_fields_text(build->err.text, strlen(build->err.text)));
    }
    json_object_set_new(json, "error", error);
    if (build->by.owner[0] != '\0')
        json_object_set_new(json, "owner", json_string(build->by.owner));
    if (build->ended_ns != 0 && build->started_ns != 0)
        json_object_set_new(
                json, "seconds", json_real((double)((build->ended_ns - build->started_ns) / 1000000) / 1000));
    return json;
}

// ---- begin ----

// The name is free, or a template that is to be replaced; and no other build makes it.
static int reserve_name(struct template_build *build, struct error *err)
{
    struct templates *all = build->all;
    const char *name = build->request.name;
    struct doc doc = {0};
    if (build->request.replace && store_doc_find(all->store, DOC_MACHINE, name, &doc) == 0) {
        JSON_AUTO json_t *body = json_loadb(doc.body, doc.body_bytes, 0, NULL);
        bool foreign = !template_is_replaceable(build, body); // as without "replace": its name is taken
        doc_free(&doc);
        if (!foreign && !json_fields_get_bool(body, "template"))
            return error_set(err, -EEXIST,
                    "\"%s\" is a machine snapshot that is no template; it is not replaced", name);
        if (!foreign)
            return 0;
    }
    int r = names_reserve(&all->config.service->names, NAMES_DATA, "template", name, err);
    build->reserved_name = r == 0;
    return r;
}

// What the source is, as far as it can be told now; uploads and imports become the build's.
static int take_source(struct template_build *build, struct error *err)
{
    const struct template_request *request = &build->request;
    struct service *service = build->all->config.service;
    struct disks_ref ref;
    json_t *json = NULL;
    switch (request->source) {
    case TEMPLATE_TAR:
    case TEMPLATE_OCI:
        return template_spool_use(build->all->spool, request->what, build->upload, err);
    case TEMPLATE_IMPORT:
        return import_export_take(service->transfers, request->what, &build->imported, &build->passing, err);
    case TEMPLATE_VOLUME:
        return disks_find(&service->disks, request->what, &ref, err);
    case TEMPLATE_BOX: {
        int r = sandbox_show(service->sandboxes, request->what, &json, err);
        json_decref(json);
        return r;
    }
    default:
        return 0;
    }
}

static int check_queue_locked(const struct template_build *build, struct error *err)
{
    struct templates *all = build->all;
    unsigned waiting = 0;
    for (const struct template_build *one = all->first; one != NULL; one = one->next) {
        if (has_ended(one))
            continue;
        waiting++;
        if (strcmp(one->request.name, build->request.name) == 0)
            return error_set(err, -EEXIST, "template \"%s\" is being built already (%s)", build->request.name,
                    one->id);
    }
    if (all->stopping)
        return error_set(err, -EAGAIN, "the daemon is ending; try again when the next one runs");
    if (waiting >= QUEUED_MAX)
        return error_set(err, -EAGAIN, "%u builds wait already; try again later", waiting);
    return 0;
}

// Before its source is taken: an import cannot be given back.
static int check_queue(const struct template_build *build, struct error *err)
{
    pthread_mutex_lock(&build->all->lock);
    int r = check_queue_locked(build, err);
    pthread_mutex_unlock(&build->all->lock);
    return r;
}

static int enqueue(struct template_build *build, json_t **ret_json, struct error *err)
{
    struct templates *all = build->all;
    pthread_mutex_lock(&all->lock);
    int r = check_queue_locked(build, err);
    if (r == 0) {
        struct template_build **link = &all->first;
        while (*link != NULL)
            link = &(*link)->next;
        *link = build;
        build->references = 1;
        *ret_json = build_json_locked(build);
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
    return r;
}

int template_build_begin(struct templates *all, const json_t *body, const struct made_by *by,
        json_t **ret_json, struct error *err)
{
    uint64_t random[2];
    struct template_build *build = calloc(1, sizeof *build);
    if (build == NULL || getrandom(random, sizeof random, 0) != sizeof random)
        abort();
    build->all = all;
    build->by = *by;
    build->log = template_log_create();
    build->created_ns = clock_wall_ns();
    snprintf(build->id, sizeof build->id, "bld_%016" PRIx64, random[0]);
    snprintf(build->box, sizeof build->box, "template-%016" PRIx64, random[1]);
    snprintf(build->folder, sizeof build->folder, "%s/builds/%s", all->folder, build->id);
    int r = template_request_parse(body, &build->request, err);
    if (r == 0)
        r = reserve_name(build, err);
    if (r == 0)
        r = check_queue(build, err);
    if (r == 0)
        r = take_source(build, err);
    if (r == 0)
        r = enqueue(build, ret_json, err);
    if (r < 0) {
        if (build->upload[0] != '\0') // for another try
            template_spool_give_back(all->spool, build->request.what);
        build->upload[0] = '\0';
        let_go(build);
        free_build(build);
    }
    return r;
}

// ---- show, cancel ----

json_t *template_build_list(struct templates *all)
{
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (struct template_build *build = all->first; build != NULL; build = build->next)
        json_array_append_new(list, build_json_locked(build));
    pthread_mutex_unlock(&all->lock);
    return json_pack("{s:o}", "builds", list);
}

// With a reference, or NULL with *err.
static struct template_build *find_build(struct templates *all, const char *id, struct error *err)
{
    pthread_mutex_lock(&all->lock);
    struct template_build *build = all->first;
    while (build != NULL && strcmp(build->id, id) != 0)
        build = build->next;
    if (build != NULL)
        build->references++;
    pthread_mutex_unlock(&all->lock);
    if (build == NULL)
        error_set(err, -ENOENT,
                "there is no build \"%.40s\"; the daemon remembers the last %d that ended since it started",
                id, ENDED_MAX);
    return build;
}

static void put_build(struct template_build *build)
{
    struct templates *all = build->all;
    pthread_mutex_lock(&all->lock);
    put_locked(build);
    pthread_mutex_unlock(&all->lock);
}

int template_build_show(struct templates *all, const char *id, json_t **ret_json, struct error *err)
{
    struct template_build *build = find_build(all, id, err);
    if (build == NULL)
        return -ENOENT;
    pthread_mutex_lock(&all->lock);
    json_t *json = build_json_locked(build);
    pthread_mutex_unlock(&all->lock);
    char *text = template_log_text(build->log);
    json_object_set_new(
            json, "log", json_fields_text(text == NULL ? "" : text, text == NULL ? 0 : strlen(text)));
    free(text);
    put_build(build);
    *ret_json = json;
    return 0;
}

int template_build_cancel(struct templates *all, const char *id, json_t **ret_json, struct error *err)
{
    struct template_build *build = find_build(all, id, err);
    if (build == NULL)
        return -ENOENT;
    pthread_mutex_lock(&all->lock);
    if (!has_ended(build))
        build->cancelled = true;
    bool waits = build->state == TEMPLATE_QUEUED;
    if (waits) // it is ended here: the thread of builds may be at another one for long
        build->state = TEMPLATE_RUNNING;
    pthread_mutex_unlock(&all->lock);
    if (waits)
        end_build(build, error_set(err, -ECANCELED, "the build was cancelled"), err);
    pthread_mutex_lock(&all->lock);
    json_t *json = build_json_locked(build);
    pthread_mutex_unlock(&all->lock);
    put_build(build);
    *ret_json = json;
    return 0;
}

int template_build_made_by(struct templates *all, const char *id, struct made_by *ret_by, struct error *err)
{
    struct template_build *build = find_build(all, id, err);
    if (build == NULL)
        return -ENOENT;
    *ret_by = build->by;
    put_build(build);
    return 0;
}

ssize_t template_build_read_log(struct templates *all, const char *id, uint64_t *position, char *buffer,
        size_t capacity, unsigned wait_ms, struct error *err)
{
    struct template_build *build = find_build(all, id, err);
    if (build == NULL)
        return -ENOENT;
    ssize_t got = template_log_read(build->log, position, buffer, capacity, wait_ms);
    put_build(build);
    return got;
}

// ---- start and stop ----

static int make_folders(struct templates *all, struct error *err)
{
    char path[PATH_MAX];
    int r = 0;
    const char *directory = store_directory(all->store);
    char *absolute = realpath(directory, NULL); // builders run in folders of their own
    if (absolute == NULL ||
            (size_t)snprintf(all->folder, sizeof all->folder, "%s/templates", absolute) >= sizeof all->folder)
        r = error_set(err, -ENAMETOOLONG, "the path of the store is too long or gone: %.100s", directory);
    free(absolute);
    if (r == 0)
        r = template_files_make_folder(all->folder, err);
    snprintf(path, sizeof path, "%s/logs", all->folder);
    if (r == 0)
        r = template_files_make_folder(path, err);
    snprintf(path, sizeof path, "%s/builds", all->folder);
    if (r == 0 && (r = template_files_remove(path)) < 0)
        error_set(err, r, "the folder %s of earlier builds cannot be removed: %s", path, strerror(-r));
    return r == 0 ? template_files_make_folder(path, err) : r;
}

static int start(struct templates *all, struct error *err)
{
    char path[PATH_MAX];
    int r = make_folders(all, err);
    snprintf(path, sizeof path, "%s/uploads", all->folder);
    if (r == 0)
        r = template_spool_open(path, SPOOL_MAX_BYTES, &all->spool, err);
    if (r < 0)
        return r;
    unsigned left = template_journal_clean_up(all);
    if (left > 0)
        template_say(all, "%u unfinished template builds of an earlier daemon were removed", left);
    template_names_sweep_logs(all);
    r = -pthread_create(&all->worker, NULL, work, all);
    if (r < 0) {
        all->spool = template_spool_close(all->spool);
        return error_set(err, r, "the thread for template builds cannot be started: %s", strerror(-r));
    }
    return 0;
}

int template_start_all(const struct template_config *config, struct templates **ret_all, struct error *err)
{
    pthread_condattr_t attributes;
    struct templates *all = calloc(1, sizeof *all);
    if (all == NULL)
        return error_set(err, -ENOMEM, "no memory");
    all->config = *config;
    all->store = config->service->store;
    pthread_mutex_init(&all->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    int r = start(all, err);
    if (r < 0) {
        pthread_cond_destroy(&all->changed);
        pthread_mutex_destroy(&all->lock);
        free(all);
        return r;
    }
    *ret_all = all;
    return 0;
}

void template_quiesce_all(struct templates *all)
{
    pthread_mutex_lock(&all->lock);
    bool first = !all->stopping;
    all->stopping = true;
    for (struct template_build *build = all->first; build != NULL; build = build->next)
        if (!has_ended(build))
            build->cancelled = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    if (first)
        pthread_join(all->worker, NULL);
}

struct templates *template_stop_all(struct templates *all)
{
    if (all == NULL)
        return NULL;
    template_quiesce_all(all);
    while (all->first != NULL) {
        struct template_build *build = all->first;
        all->first = build->next;
        put_locked(build);
    }
    all->spool = template_spool_close(all->spool);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

int template_upload(struct templates *all, ssize_t (*source)(void *context, void *buffer, size_t capacity),
        void *context, json_t **ret_json, struct error *err)
{
    return template_spool_take(all->spool, source, context, ret_json, err);
}

int template_upload_remove(struct templates *all, const char *id, struct error *err)
{
    return template_spool_remove(all->spool, id, err);
}
