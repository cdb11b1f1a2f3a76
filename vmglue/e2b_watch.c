// SPDX-License-Identifier: Apache-2.0
// Folders that E2B's clients watch: as a stream (WatchDir), or by a watcher that is asked again and again
// (CreateWatcher, GetWatcherEvents, RemoveWatcher).
//
// A watcher is a call into the guest on a thread of its own, which collects what happens. It ends when it is
// removed, when nobody has asked it for an hour, when too many events wait, and with the call: the sandbox
// was stopped, restored or removed, or the daemon ends. The list of watchers is this file's; one lock, held
// over nothing that waits.
#include "vmglue/agent_protocol.h"
#include "vmglue/e2b_connect.h"
#include "vmglue/e2b_files.h"
#include "vmglue/json_fields.h"
#include "vmglue/route_agent.h"
#include "vmglue/urls.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WATCHERS_MAX = 64, EVENTS_MAX = 16384, UNASKED_SECS = 3600, LOOK_MS = 100 };

// ---- what is told ----

typedef int watch_tell(void *context, json_t *event); // steals it

static int tell_named(const char *folder, const char *path, const char *type, watch_tell *tell, void *context)
{
    size_t size = strlen(folder);
    if (strncmp(path, folder, size) == 0 && path[size] == '/')
        path += size + 1;
    return tell(context, json_pack("{s:o, s:s}", "name", json_fields_text(path, strlen(path)), "type", type));
}

// What is moved has two events: its old name, then its new one.
static int tell_change(
        const char *folder, int kind, const char *path, const char *other, watch_tell *tell, void *context)
{
    int r;
    switch (kind) {
    case AGENT_WATCH_CREATED:
        return tell_named(folder, path, "EVENT_TYPE_CREATE", tell, context);
    case AGENT_WATCH_CHANGED:
        return tell_named(folder, path, "EVENT_TYPE_WRITE", tell, context);
    case AGENT_WATCH_ATTRIBUTES:
        return tell_named(folder, path, "EVENT_TYPE_CHMOD", tell, context);
    case AGENT_WATCH_REMOVED:
        return tell_named(folder, path, "EVENT_TYPE_REMOVE", tell, context);
    case AGENT_WATCH_MOVED:
        r = tell_named(folder, path, "EVENT_TYPE_RENAME", tell, context);
        return r < 0 ? r : tell_named(folder, other, "EVENT_TYPE_CREATE", tell, context);
    default:
        return 0;
    }
}

// ---- as a stream ----

struct stream_watch {
    struct e2b_stream stream;
    char folder[E2B_PATH_CAPACITY];
};

static json_t *keepalive(void)
{
    return json_pack("{s:{}}", "keepalive");
}

static int send_event(void *context, json_t *event)
{
    struct stream_watch *watch = context;
    return e2b_connect_send(&watch->stream, json_pack("{s:o}", "filesystem", event));
}

static int stream_change(void *context, int kind, const char *path, const char *other)
{
    struct stream_watch *watch = context;
    if (kind == AGENT_WATCH_READY)
        return e2b_connect_send(&watch->stream, json_pack("{s:{}}", "start"));
    return tell_change(watch->folder, kind, path, other, send_event, watch);
}

static bool is_over(void *context)
{
    struct stream_watch *watch = context;
    if (!watch->stream.begun) // the guest may never say that it watches
        return http_request_is_gone(watch->stream.request);
    return e2b_connect_keep(&watch->stream, keepalive) < 0;
}

static int take_path(const json_t *body, const char **ret_path, struct error *err)
{
    *ret_path = json_fields_get_text(body, "path");
    return (*ret_path)[0] == '\0' ? error_set(err, -EINVAL, "field \"path\" is missing") : 0;
}

static void watch_stream(struct http_request *request)
{
    struct stream_watch watch = {.stream = {.request = request}};
    struct sandbox_agent use = {0};
    struct error err;
    json_t *body = NULL;
    const char *path = NULL;
    int r = e2b_connect_ask(request, &body, &err);
    if (r == 0)
        r = take_path(body, &path, &err);
    if (r == 0)
        r = route_agent_use(request, http_request_param(request, "name"), &use, &err);
    if (r == 0) {
        e2b_files_whole_path(path, watch.folder);
        struct agent_watch call = {.path = path,
                .recursive = json_is_true(json_object_get(body, "recursive")),
                .each = stream_change,
                .context = &watch,
                .cancelled = is_over};
        r = agent_watch(use.agent, &call, &err);
        if (r < 0)
            sandbox_agent_failed(&use, &err);
    }
    if (r != -ECANCELED)
        e2b_connect_end(&watch.stream, NULL, r < 0 ? &err : NULL);
    if (use.sandbox != NULL)
        route_agent_done(request, &use);
    json_decref(body);
}

// ---- by asking ----

struct watcher {
    char id[URLS_TOKEN_SIZE], sandbox[64];
    struct sandboxes *all;
    struct sandbox_agent use;
    char folder[E2B_PATH_CAPACITY], *path;
    bool recursive;
    // (lock)
    bool ready, ended, removed;
    unsigned users; // its thread, and who waits for it to be ready
    time_t asked;
    json_t *events;
    struct error err; // why it ended
    struct watcher *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct watcher *watchers; // (lock)

static time_t now_secs(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void let_go_locked(struct watcher *watcher)
{
    if (--watcher->users > 0)
        return;
    json_decref(watcher->events);
    free(watcher->path);
    free(watcher);
}

static int keep_event(void *context, json_t *event)
{
    struct watcher *watcher = context;
    pthread_mutex_lock(&lock);
    bool full = json_array_size(watcher->events) >= EVENTS_MAX;
    if (full)
        json_decref(event);
    else
        json_array_append_new(watcher->events, event);
    pthread_mutex_unlock(&lock);
    return full ? -EOVERFLOW : 0;
}

static int keep_change(void *context, int kind, const char *path, const char *other)
{
    struct watcher *watcher = context;
    if (kind == AGENT_WATCH_OVERFLOW)
        return -EOVERFLOW;
    if (kind != AGENT_WATCH_READY)
        return tell_change(watcher->folder, kind, path, other, keep_event, watcher);
    pthread_mutex_lock(&lock);
    watcher->ready = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

static bool is_unwanted(void *context)
{
    struct watcher *watcher = context;
    pthread_mutex_lock(&lock);
    bool unwanted = watcher->removed || now_secs() - watcher->asked > UNASKED_SECS;
    pthread_mutex_unlock(&lock);
    return unwanted;
}

static void *collect(void *context)
{
    struct watcher *watcher = context, **link = &watchers;
    struct sandboxes *all = watcher->all;
    struct agent_watch call = {.path = watcher->path,
            .recursive = watcher->recursive,
            .each = keep_change,
            .context = watcher,
            .cancelled = is_unwanted};
    struct error err;
    error_set(&err, -ECANCELED, "the watcher was given up");
    if (agent_watch(watcher->use.agent, &call, &err) < 0)
        sandbox_agent_failed(&watcher->use, &err);
    else
        error_set(&err, -ENOENT, "%.200s was removed", watcher->path);
    sandbox_agent_done(&watcher->use);
    pthread_mutex_lock(&lock);
    while (*link != watcher)
        link = &(*link)->next;
    *link = watcher->next;
    watcher->ended = true;
    watcher->err = err;
    pthread_cond_broadcast(&changed);
    let_go_locked(watcher);
    pthread_mutex_unlock(&lock);
    sandbox_worker_end(all);
    return NULL;
}

// From here on it is its thread's too. On failure nothing is left of it.
static int begin(struct watcher *watcher, struct error *err)
{
    unsigned count = 0;
    int r = 0;
    pthread_mutex_lock(&lock);
    for (const struct watcher *other = watchers; other != NULL; other = other->next)
        count += strcmp(other->sandbox, watcher->sandbox) == 0;
    if (count >= WATCHERS_MAX)
        r = error_set(err, -ENOSPC, "this sandbox has %d watchers, which are the most; remove one (\"stop\")",
                WATCHERS_MAX);
    else
        r = sandbox_worker_start(watcher->all, collect, watcher); // its end waits for the lock
    if (r == 0) {
        watcher->users++;
        watcher->next = watchers;
        watchers = watcher;
    } else if (count < WATCHERS_MAX) {
        error_set(err, r, "a thread for the watcher cannot be started");
    }
    pthread_mutex_unlock(&lock);
    return r;
}

// Until it watches, or has ended without.
static int wait_ready(struct watcher *watcher, struct http_request *request, struct error *err)
{
    pthread_mutex_lock(&lock);
    while (!watcher->ready && !watcher->ended) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&changed, &lock, &until);
        watcher->removed = watcher->removed || http_request_is_gone(request);
    }
    int r = watcher->ready ? 0 : watcher->err.code;
    if (r < 0)
        *err = watcher->err;
    pthread_mutex_unlock(&lock);
    return r;
}

static int make_watcher(struct http_request *request, const json_t *body, const char *path,
        struct watcher **ret_watcher, struct error *err)
{
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (watcher == NULL)
        return error_set(err, -ENOMEM, "no memory for a watcher");
    *watcher = (struct watcher){.all = service_of(request)->sandboxes,
            .path = strdup(path),
            .recursive = json_is_true(json_object_get(body, "recursive")),
            .users = 1,
            .asked = now_secs(),
            .events = json_array()};
    urls_new_token(watcher->id);
    snprintf(watcher->sandbox, sizeof watcher->sandbox, "%s", http_request_param(request, "name"));
    e2b_files_whole_path(path, watcher->folder);
    int r = watcher->path == NULL ? error_set(err, -ENOMEM, "no memory for a watcher")
                                  : sandbox_agent_use(watcher->all, watcher->sandbox, &watcher->use, err);
    if (r == 0 && (r = begin(watcher, err)) < 0)
        sandbox_agent_done(&watcher->use);
    if (r < 0) {
        let_go_locked(watcher); // nobody else knows it
        return r;
    }
    *ret_watcher = watcher;
    return 0;
}

static void create_watcher(struct http_request *request)
{
    struct watcher *watcher = NULL;
    const char *path = NULL, *kind = "file";
    struct error err;
    json_t *body;
    int r = http_request_json(request, &body, &err);
    if (r == 0)
        r = take_path(body, &path, &err);
    if (r == 0) {
        r = make_watcher(request, body, path, &watcher, &err);
        kind = r < 0 ? "sandbox" : kind;
    }
    if (r == 0)
        r = wait_ready(watcher, request, &err);
    if (r < 0)
        http_reply_failure(request, kind, &err);
    else
        http_reply_json(request, 200, json_pack("{s:s}", "watcherId", watcher->id));
    if (watcher != NULL) {
        pthread_mutex_lock(&lock);
        let_go_locked(watcher);
        pthread_mutex_unlock(&lock);
    }
}

static void ask_watcher(struct http_request *request, bool removes)
{
    const char *sandbox = http_request_param(request, "name"), *id = "";
    json_t *body, *events = NULL;
    struct error err;
    int r = http_request_json(request, &body, &err);
    if (r == 0 && (id = json_fields_get_text(body, "watcherId"))[0] == '\0')
        r = error_set(&err, -EINVAL, "field \"watcherId\" is missing");
    pthread_mutex_lock(&lock);
    struct watcher *watcher = r < 0 ? NULL : watchers;
    while (watcher != NULL &&
            (strcmp(watcher->id, id) != 0 || strcmp(watcher->sandbox, sandbox) != 0 || watcher->removed))
        watcher = watcher->next;
    if (watcher != NULL) {
        events = watcher->events;
        watcher->events = json_array();
        watcher->asked = now_secs();
        watcher->removed = removes;
    }
    pthread_mutex_unlock(&lock);
    if (r == 0 && watcher == NULL)
        r = error_set(&err, -ENOENT,
                "there is no watcher %.40s: it was removed or not asked for an hour, more than %d events "
                "waited, or the sandbox was stopped or restored; make a new one",
                id, EVENTS_MAX);
    if (r < 0)
        http_reply_failure(request, "watcher", &err);
    else
        http_reply_json(request, 200, removes ? json_object() : json_pack("{s:O}", "events", events));
    json_decref(events);
}

static void get_events(struct http_request *request)
{
    ask_watcher(request, false);
}

static void remove_watcher(struct http_request *request)
{
    ask_watcher(request, true);
}

#define IN "/v1/sandboxes/{name}/envd/filesystem.Filesystem"
const struct http_route routes_e2b_watch[] = {
        {"POST", IN "/WatchDir", HTTP_STREAM, watch_stream},
        {"POST", IN "/CreateWatcher", 0, create_watcher},
        {"POST", IN "/GetWatcherEvents", 0, get_events},
        {"POST", IN "/RemoveWatcher", 0, remove_watcher},
        {0},
};
