// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_urls.h"

#include "blockstore/clock.h"
#include "vmglue/json_fields.h"
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t expiry(const json_t *url)
{
    return (uint64_t)json_fields_get_int(url, "expires_wall_ns");
}

static bool is_over(const json_t *url, uint64_t now)
{
    return expiry(url) != 0 && expiry(url) <= now;
}

// How one is shown: all but the hash.
static json_t *show(const json_t *url)
{
    return json_pack("{s:s, s:i, s:o, s:o}", "id", json_fields_get_text(url, "id"), "host_port",
            (int)json_fields_get_int(url, "port"), "created_at",
            json_fields_time((uint64_t)json_fields_get_int(url, "created_wall_ns")), "expires_at",
            json_fields_time(expiry(url)));
}

// Those that have not expired, without the one called `id`; a new array.
static json_t *others(const json_t *urls, const char *id, bool *ret_found)
{
    json_t *list = json_array(), *url;
    uint64_t now = clock_wall_ns();
    size_t i;
    *ret_found = false;
    json_array_foreach(urls, i, url)
    {
        if (is_over(url, now))
            continue;
        if (id != NULL && strcmp(json_fields_get_text(url, "id"), id) == 0)
            *ret_found = true;
        else
            json_array_append(list, url);
    }
    return list;
}

// Takes list over.
static int commit(struct sandbox *sandbox, json_t *list, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    json_decref(record.urls);
    record.urls = list;
    int r = sandbox_record_commit(sandbox, &record, TXN_DURABLE, err);
    sandbox_record_free(&record);
    return r;
}

int sandbox_url_add(struct sandboxes *all, const char *name, unsigned port, uint64_t ttl_ms,
        const char *token, const char *request, json_t **ret_json, struct error *err)
{
    char id[URLS_ID_SIZE], hex[2 * SHA256_SIZE + 1];
    struct sandbox *sandbox;
    uint64_t now = clock_wall_ns();
    bool found;
    int r = sandbox_begin(all, name, "being changed", &sandbox, err);
    if (r < 0)
        return r;
    struct sha256 hash = sha256_of(token, strlen(token));
    sha256_hex(&hash, hex);
    urls_new_id(id);
    json_t *list = others(sandbox->record.urls, NULL, &found);
    json_t *url = json_pack("{s:s, s:s, s:i, s:I}", "id", id, "hash", hex, "port", (int)port,
            "created_wall_ns", (json_int_t)now);
    if (ttl_ms != 0)
        json_object_set_new(url, "expires_wall_ns", json_integer((json_int_t)(now + ttl_ms * 1000000)));
    if (request[0] != '\0')
        json_object_set_new(url, "request", json_string(request));
    if (json_array_size(list) >= URLS_PER_SANDBOX) {
        r = error_set(err, -EMFILE, "sandbox \"%s\" has %d URLs, which are the most; remove one first",
                sandbox->record.name, URLS_PER_SANDBOX);
        json_decref(list);
    } else {
        json_array_append(list, url);
        r = commit(sandbox, list, err);
    }
    if (r == 0)
        *ret_json = show(url);
    json_decref(url);
    sandbox_finish(sandbox);
    return r;
}

// References to what a sandbox has, without waiting for changes under way; a new array.
static int valid_urls(struct sandboxes *all, const char *name, json_t **ret_urls, struct error *err)
{
    bool found;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, name);
    json_t *urls = sandbox == NULL ? NULL : others(sandbox->record.urls, NULL, &found);
    pthread_mutex_unlock(&all->lock);
    if (urls == NULL)
        return sandbox_not_found(name, err);
    *ret_urls = urls;
    return 0;
}

int sandbox_url_list(struct sandboxes *all, const char *name, json_t **ret_list, struct error *err)
{
    json_t *valid = NULL, *url;
    size_t i;
    int r = valid_urls(all, name, &valid, err);
    if (r < 0)
        return r;
    *ret_list = json_array();
    json_array_foreach(valid, i, url)
    {
        if (!urls_is_revoked(all->config.service->urls, json_fields_get_text(url, "id")))
            json_array_append_new(*ret_list, show(url));
    }
    json_decref(valid);
    return 0;
}

static int no_such_url(const char *name, const char *id, struct error *err)
{
    return error_set(err, -ENOENT,
            "sandbox \"%.40s\" has no URL with the id \"%.60s\"; `ramet url ls` lists them", name, id);
}

int sandbox_url_remove(
        struct sandboxes *all, const char *name, const char *id, bool *ret_is_url, struct error *err)
{
    struct urls *urls = all->config.service->urls;
    struct sandbox *sandbox;
    json_t *list = NULL;
    bool found;
    *ret_is_url = false;
    int r = valid_urls(all, name, &list, err);
    if (r < 0)
        return r;
    json_decref(others(list, id, &found));
    json_decref(list);
    if (!found) {
        *ret_is_url = true;
        return no_such_url(name, id, err);
    }
    // From here on nobody gets through, however long its record has to wait. One that had to give up waiting
    // may be asked for again: until the record is without it, it would be back with the next daemon.
    urls_revoke(urls, id);
    r = sandbox_begin(all, name, "being changed", &sandbox, err);
    if (r == -ENOENT) // the sandbox is gone by now, and no record has it
        urls_forget(urls, id);
    if (r < 0)
        return r;
    list = others(sandbox->record.urls, id, &found);
    if (found) {
        r = commit(sandbox, list, err);
    } else { // another request was faster
        json_decref(list);
        *ret_is_url = true;
        r = no_such_url(name, id, err);
    }
    if (!found)
        urls_forget(urls, id);
    sandbox_finish(sandbox);
    return r;
}

bool sandbox_url_find_request(struct sandboxes *all, const char *request, json_t **ret_json)
{
    json_t *found = NULL, *url;
    size_t i;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        json_array_foreach(sandbox->record.urls, i,
                url) if (!sandbox->removed && strcmp(json_fields_get_text(url, "request"), request) == 0)
                found = url;
    if (found != NULL)
        *ret_json = show(found);
    pthread_mutex_unlock(&all->lock);
    return found != NULL;
}

static bool has(const json_t *urls, const char *id)
{
    size_t i;
    const json_t *url;
    json_array_foreach((json_t *)urls, i, url)
    {
        if (strcmp(json_fields_get_text(url, "id"), id) == 0)
            return true;
    }
    return false;
}

void sandbox_url_index(struct sandboxes *all, const char *sandbox_id, const json_t *old, const json_t *urls)
{
    struct urls *index = all->config.service->urls;
    struct sha256 hash;
    size_t i;
    json_t *url;
    if (old == urls)
        return;
    // First in, then out: who is in both is never missing.
    json_array_foreach(urls, i, url) if (sha256_parse(json_fields_get_text(url, "hash"), &hash))
            urls_index_put(index, &hash, sandbox_id);
    json_array_foreach(old, i, url)
    {
        const char *id = json_fields_get_text(url, "id");
        if (sha256_parse(json_fields_get_text(url, "hash"), &hash))
            urls_index_drop(index, &hash);
        if (!has(urls, id))
            urls_forget(index, id);
    }
}

// Lock held. The record is what counts: the index says where to look.
static bool find_in_locked(
        const struct sandbox *sandbox, const struct sha256 *wanted, struct sandbox_url *ret_url)
{
    const struct sandbox_record *record = &sandbox->record;
    struct sha256 stored;
    uint64_t now = clock_wall_ns();
    size_t i;
    json_t *url;
    json_array_foreach(record->urls, i, url)
    {
        if (!sha256_parse(json_fields_get_text(url, "hash"), &stored) || !sha256_equal(&stored, wanted) ||
                is_over(url, now))
            continue;
        *ret_url = (struct sandbox_url){
                .port = (unsigned)json_fields_get_int(url, "port"), .expires_wall_ns = expiry(url)};
        snprintf(ret_url->id, sizeof ret_url->id, "%s", json_fields_get_text(url, "id"));
        snprintf(ret_url->sandbox_id, sizeof ret_url->sandbox_id, "%s", record->id);
        snprintf(ret_url->sandbox_name, sizeof ret_url->sandbox_name, "%s", record->name);
        return true;
    }
    return false;
}

bool sandbox_url_find(struct sandboxes *all, const char *token, struct sandbox_url *ret_url)
{
    struct urls *urls = all->config.service->urls;
    struct sha256 wanted = sha256_of(token, strlen(token));
    char id[URLS_SANDBOX_SIZE];
    if (!urls_index_find(urls, &wanted, id))
        return false;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, id);
    // With the lock: one that is revoked is forgotten when its record is without it.
    bool found = sandbox != NULL && find_in_locked(sandbox, &wanted, ret_url) &&
                 !urls_is_revoked(urls, ret_url->id);
    pthread_mutex_unlock(&all->lock);
    return found;
}
