// SPDX-License-Identifier: Apache-2.0
// The table of sandboxes: finding them, taking turns, showing them, lending their agents out.
#include "blockstore/clock.h"
#include "vmglue/sandbox_internal.h"

#include "vmglue/environment.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_urls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { TURN_WAIT_SECS = 120, OVER_MS = 5000 };

void sandbox_log(struct sandboxes *all, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (all->config.log != NULL)
        all->config.log(all->config.context, text);
}

void sandbox_new_id(char ret_id[SANDBOX_ID_SIZE])
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        abort(); // the kernel gives these once it has booted
    snprintf(ret_id, SANDBOX_ID_SIZE, "sbx_%012" PRIx64, random >> 16);
}

struct sandbox *sandbox_new(struct sandboxes *all, const struct sandbox_record *record)
{
    struct sandbox *sandbox = calloc(1, sizeof *sandbox);
    if (sandbox == NULL)
        abort();
    sandbox->all = all;
    sandbox->record = *record;
    sandbox->op = "being made";
    sandbox->active_ns = clock_boot_ns();
    sandbox->references = 1;
    sandbox->nbd_listen_fd = -1;
    pthread_mutex_lock(&all->lock);
    sandbox->next = all->list;
    all->list = sandbox;
    sandbox_url_index(all, sandbox->record.id, NULL, sandbox->record.urls);
    pthread_mutex_unlock(&all->lock);
    return sandbox;
}

struct sandbox *sandbox_find_locked(struct sandboxes *all, const char *name)
{
    struct sandbox *sandbox = all->list;
    while (sandbox != NULL &&
            (sandbox->removed || sandbox_is_hidden(sandbox) ||
                    (strcmp(sandbox->record.id, name) != 0 && strcmp(sandbox->record.name, name) != 0)))
        sandbox = sandbox->next;
    return sandbox;
}

int sandbox_not_found(const char *name, struct error *err)
{
    return error_set(err, -ENOENT, "there is no sandbox called \"%.80s\"; `ramet ls` lists them", name);
}

// Drops a reference; the last one of a removed sandbox frees it.
static void put_locked(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    if (--sandbox->references > 0 || !sandbox->removed)
        return;
    struct sandbox **link = &all->list;
    while (*link != sandbox)
        link = &(*link)->next;
    *link = sandbox->next;
    sandbox_free(sandbox);
}

void sandbox_free(struct sandbox *sandbox)
{
    sandbox_url_index(sandbox->all, sandbox->record.id, sandbox->record.urls, NULL);
    sandbox_record_free(&sandbox->record);
    free(sandbox->console);
    free(sandbox);
}

void sandbox_put(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    put_locked(sandbox);
    pthread_mutex_unlock(&all->lock);
}

int sandbox_begin(struct sandboxes *all, const char *name, const char *op, struct sandbox **ret_sandbox,
        struct error *err)
{
    struct timespec until = clock_deadline(TURN_WAIT_SECS * 1000);
    int r = 0;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, name);
    if (sandbox == NULL) {
        pthread_mutex_unlock(&all->lock);
        return sandbox_not_found(name, err);
    }
    sandbox->references++;
    while (sandbox->op != NULL && !sandbox->removed && !all->quiesced && r == 0)
        r = -pthread_cond_timedwait(&all->changed, &all->lock, &until);
    if (sandbox->removed)
        r = sandbox_not_found(name, err);
    else if (all->quiesced)
        r = error_set(err, -EAGAIN, "the daemon is ending; try again when the next one runs");
    else if (sandbox->op != NULL)
        r = error_set(
                err, -EBUSY, "sandbox \"%s\" is %s and that takes long; try again later", name, sandbox->op);
    else
        r = 0;
    if (r == 0) {
        sandbox->op = op;
        *ret_sandbox = sandbox;
    } else {
        put_locked(sandbox);
    }
    pthread_mutex_unlock(&all->lock);
    return r;
}

static void finish(struct sandbox *sandbox, bool used)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    sandbox->op = NULL;
    if (used)
        sandbox->active_ns = clock_boot_ns();
    pthread_cond_broadcast(&all->changed);
    put_locked(sandbox);
    pthread_mutex_unlock(&all->lock);
}

void sandbox_finish(struct sandbox *sandbox)
{
    finish(sandbox, true);
}

void sandbox_finish_unused(struct sandbox *sandbox)
{
    finish(sandbox, false);
}

static const char *shown_state(const struct sandbox *sandbox)
{
    bool stopping = sandbox->record.state == SANDBOX_RUNNING && sandbox->op != NULL &&
                    strcmp(sandbox->op, SANDBOX_BEING_STOPPED) == 0;
    return stopping ? "stopping" : sandbox_state_name(sandbox->record.state);
}

static json_t *disks_json(const struct sandbox *sandbox)
{
    json_t *disks = json_array();
    for (unsigned i = 0; i < sandbox->record.more_count; i++) {
        const struct sandbox_disk *disk = &sandbox->record.more[i];
        struct volume_info info = {0};
        store_volume_get(sandbox->all->store, disk->volume, &info);
        json_array_append_new(disks, json_pack("{s:o, s:s?, s:I, s:b, s:s?}", "name",
                                             json_sprintf("%s/disk%u", sandbox->record.name, i + 1), "from",
                                             disk->from[0] == '\0' ? NULL : disk->from, "size_bytes",
                                             (json_int_t)info.size_bytes, "read_only", (int)disk->read_only,
                                             "mount", disk->mount[0] == '\0' ? NULL : disk->mount));
    }
    return disks;
}

static json_t *json_locked(struct sandbox *sandbox)
{
    const struct sandbox_record *record = &sandbox->record;
    json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:O, s:s, s:I}", "id", record->id, "name",
            record->name, "state", shown_state(sandbox), "from", record->from, "cpus", (int)record->cpus,
            "memory_mb", (int)record->memory_mb, "network", record->network, "start_mode", record->start_mode,
            "ready_ms", (json_int_t)record->ready_ms);
    struct volume_info disk;
    if (store_volume_get(sandbox->all->store, record->disk, &disk) == 0)
        json_object_set_new(json, "disk_bytes", json_integer((json_int_t)disk.size_bytes));
    json_object_set_new(json, "created_at", json_fields_time(record->created_wall_ns));
    if (record->labels != NULL)
        json_object_set_new(json, "labels", json_deep_copy(record->labels));
    else
        json_object_set_new(json, "labels", json_object());
    if (record->defaults != NULL)
        json_object_set_new(json, "defaults", json_deep_copy(record->defaults));
    if (record->by.owner[0] != '\0')
        json_object_set_new(json, "owner", json_string(record->by.owner));
    json_object_set_new(json, "environment", json_boolean(!record->no_environment));
    sandbox_deadline_describe(sandbox, json);
    if (record->parent_id[0] != '\0') {
        json_object_set_new(json, "tree_id", json_string(record->tree));
        json_object_set_new(json, "parent_id", json_string(record->parent_id));
    }
    if (record->more_count > 0)
        json_object_set_new(json, "disks", disks_json(sandbox));
    if (record->reason[0] != '\0')
        json_object_set_new(json, "reason", json_fields_text(record->reason, strlen(record->reason)));
    if (record->state == SANDBOX_STOPPED || record->state == SANDBOX_FAILED)
        json_object_set_new(json, "memory_kept", json_boolean(record->machine.value != 0));
    if (sandbox->vm != NULL) {
        json_object_set_new(json, "pid", json_integer(sandbox->vm->pid));
        json_object_set_new(json, "accel", json_string(sandbox->vm->accel));
    }
    if (sandbox->op != NULL)
        json_object_set_new(json, "doing", json_string(sandbox->op));
    return json;
}

json_t *sandbox_json(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    json_t *json = json_locked(sandbox);
    json_object_del(json, "doing"); // it is the caller who does it
    pthread_mutex_unlock(&sandbox->all->lock);
    return json;
}

int sandbox_show(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, name);
    json_t *json = sandbox == NULL ? NULL : json_locked(sandbox);
    if (sandbox != NULL)
        sandbox->references++;
    pthread_mutex_unlock(&all->lock);
    if (sandbox == NULL)
        return sandbox_not_found(name, err);
    sandbox_memory_describe(sandbox, json);
    sandbox_put(sandbox);
    *ret_json = json;
    return 0;
}

static bool has_label(const json_t *labels, const char *label)
{
    char key[256];
    const char *equals = label == NULL ? NULL : strchr(label, '=');
    if (label == NULL)
        return true;
    if (equals == NULL)
        return json_object_get(labels, label) != NULL;
    snprintf(key, sizeof key, "%.*s", (int)(equals - label), label);
    return json_object_get(labels, key) != NULL && strcmp(json_fields_get_text(labels, key), equals + 1) == 0;
}

json_t *sandbox_list_made_by(struct sandboxes *all, const char *request)
{
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (!sandbox->removed && !sandbox_is_hidden(sandbox) &&
                strcmp(sandbox->record.by.request, request) == 0)
            json_array_insert_new(list, 0, json_locked(sandbox));
    pthread_mutex_unlock(&all->lock);
    return list;
}

int sandbox_made_by(struct sandboxes *all, const char *name, struct made_by *ret_by,
        char ret_id[SANDBOX_ID_SIZE], struct error *err)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, name);
    if (sandbox != NULL) {
        *ret_by = sandbox->record.by;
        memcpy(ret_id, sandbox->record.id, SANDBOX_ID_SIZE);
    }
    pthread_mutex_unlock(&all->lock);
    return sandbox == NULL ? sandbox_not_found(name, err) : 0;
}

json_t *sandbox_list(struct sandboxes *all, const char *state, const char *label, const char *owner)
{
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
        if (sandbox->removed || sandbox_is_hidden(sandbox) ||
                (state != NULL && strcmp(shown_state(sandbox), state) != 0) ||
                (owner != NULL && strcmp(sandbox->record.by.owner, owner) != 0) ||
                !has_label(sandbox->record.labels, label))
            continue;
        json_array_insert_new(list, 0, json_locked(sandbox)); // the list has the newest first
    }
    pthread_mutex_unlock(&all->lock);
    return list;
}

// The template's variables, the server's over them, the sandbox's own over both.
static void layer_environment(struct sandboxes *all, bool layered, struct sandbox_agent *use)
{
    json_t *env = json_deep_copy(json_object_get(use->defaults, "env"));
    if (env == NULL)
        env = json_object();
    if (layered && all->config.service->environment != NULL) {
        JSON_AUTO json_t *server = environment_get(all->config.service->environment);
        json_object_update(env, server);
    }
    if (use->env != NULL)
        json_object_update(env, use->env);
    json_decref(use->env);
    use->env = env;
}

// -ENOTCONN: it runs, but there is no connection to its agent. *ret_layered: the server's environment is for
// it too.
static int try_use(struct sandboxes *all, const char *name, struct sandbox_agent *ret_use, bool *ret_layered,
        struct error *err)
{
    int r = 0;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, name);
    if (sandbox == NULL) {
        r = sandbox_not_found(name, err);
    } else if (all->quiesced) {
        r = error_set(err, -EAGAIN, "the daemon is ending; try again when the next one runs");
    } else if (sandbox->record.state == SANDBOX_PAUSED) {
        r = sandbox_wrong_state(sandbox, "running", "ramet resume", err);
    } else if (sandbox->record.state != SANDBOX_RUNNING) {
        r = error_set(err, -EBUSY, "sandbox \"%s\" is %s; it must be running for this (`ramet start %s`)",
                sandbox->record.name, sandbox_state_name(sandbox->record.state), sandbox->record.name);
    } else if (sandbox->agent == NULL || agent_is_broken(sandbox->agent)) {
        r = error_set(err, -ENOTCONN, "sandbox \"%s\" is running but its agent does not answer",
                sandbox->record.name);
    } else {
        sandbox->references++;
        sandbox->agent_users++;
        *ret_use = (struct sandbox_agent){.sandbox = sandbox,
                .agent = sandbox->agent,
                .env = json_deep_copy(sandbox->record.env),
                .defaults = json_deep_copy(sandbox->record.defaults)};
        *ret_layered = !sandbox->record.no_environment;
    }
    pthread_mutex_unlock(&all->lock);
    return r;
}

int sandbox_agent_use(
        struct sandboxes *all, const char *name, struct sandbox_agent *ret_use, struct error *err)
{
    struct sandbox *sandbox;
    bool layered = false;
    int r = try_use(all, name, ret_use, &layered, err);
    if (r == 0)
        layer_environment(all, layered, ret_use);
    if (r != -ENOTCONN)
        return r;
    r = sandbox_begin(all, name, "being reached", &sandbox, err);
    if (r < 0)
        return r;
    if (sandbox->record.state == SANDBOX_RUNNING && sandbox->vm != NULL)
        r = sandbox_vm_reach(sandbox, err);
    sandbox_finish(sandbox);
    if (r == 0)
        r = try_use(all, name, ret_use, &layered, err);
    if (r == 0)
        layer_environment(all, layered, ret_use);
    if (r == -ENOTCONN) // lost again
        r = err->code = -EPIPE;
    return r;
}

void sandbox_agent_done(struct sandbox_agent *use)
{
    struct sandboxes *all = use->sandbox->all;
    json_decref(use->env);
    json_decref(use->defaults);
    pthread_mutex_lock(&all->lock);
    use->sandbox->agent_users--;
    use->sandbox->active_ns = clock_boot_ns();
    pthread_cond_broadcast(&all->changed);
    put_locked(use->sandbox);
    pthread_mutex_unlock(&all->lock);
}

bool sandbox_agent_is_over(struct sandbox_agent *use)
{
    if (!agent_is_broken(use->agent))
        return false;
    uint64_t now = clock_monotonic_ns();
    if (use->over_ns == 0)
        use->over_ns = now;
    return now - use->over_ns >= OVER_MS * 1000000ull;
}

void sandbox_set_end(struct sandbox *sandbox, const char *reason)
{
    pthread_mutex_lock(&sandbox->all->lock);
    snprintf(sandbox->end_reason, sizeof sandbox->end_reason, "%s", reason);
    pthread_mutex_unlock(&sandbox->all->lock);
}

void sandbox_agent_failed(const struct sandbox_agent *use, struct error *err)
{
    struct sandbox *sandbox = use->sandbox;
    if (err->code != -EPIPE)
        return;
    pthread_mutex_lock(&sandbox->all->lock);
    if (sandbox->end_reason[0] != '\0')
        error_set(err, -ESHUTDOWN, "sandbox \"%s\" ended under this call: %s", sandbox->record.name,
                sandbox->end_reason);
    else if (sandbox->all->quiesced)
        error_set(err, -EPIPE,
                "the daemon is ending; the sandbox and what was begun in it go on, the rest of the output is "
                "lost");
    pthread_mutex_unlock(&sandbox->all->lock);
}
