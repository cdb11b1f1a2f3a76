// SPDX-License-Identifier: Apache-2.0
// A sandbox's row in the store: JSON in a DOC_SANDBOX doc. The doc names the volumes (disk first) and the
// memory base that the VMM maps, so that these stay alive while anything runs on them.
#include "vmglue/sandbox_internal.h"

#include "snapshot/txn.h"
#include "vmglue/json_fields.h"
#include "vmglue/network_policy.h"
#include "vmglue/sandbox_urls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {[SANDBOX_CREATING] = "creating",
        [SANDBOX_STARTING] = "starting",
        [SANDBOX_RUNNING] = "running",
        [SANDBOX_PAUSED] = "paused",
        [SANDBOX_STOPPED] = "stopped",
        [SANDBOX_FAILED] = "failed",
        [SANDBOX_REMOVING] = "removing",
        [SANDBOX_PARKED] = "parked"};

const char *sandbox_state_name(enum sandbox_state state)
{
    return state_names[state];
}

static json_t *encode_disks(const struct sandbox_record *record)
{
    json_t *disks = json_array();
    for (unsigned i = 0; i < record->more_count; i++) {
        const struct sandbox_disk *disk = &record->more[i];
        json_array_append_new(
                disks, json_pack("{s:I, s:b, s:s, s:s}", "volume", (json_int_t)disk->volume.value,
                               "read_only", (int)disk->read_only, "mount", disk->mount, "from", disk->from));
    }
    return disks;
}

// What came later than the first format: left out where it says nothing, so that records stay small.
static void encode_life(const struct sandbox_record *record, json_t *json)
{
    const struct sandbox_moment *since = &record->since;
    if (record->ttl_ms != 0)
        json_object_set_new(json, "ttl_ms", json_integer((json_int_t)record->ttl_ms));
    if (record->idle_ms != 0)
        json_object_set_new(json, "idle_ms", json_integer((json_int_t)record->idle_ms));
    if (record->persistent)
        json_object_set_new(json, "persistent", json_true());
    if (record->delete_on_timeout)
        json_object_set_new(json, "delete_on_timeout", json_true());
    if (record->auto_start)
        json_object_set_new(json, "auto_start", json_true());
    if (record->no_environment)
        json_object_set_new(json, "no_environment", json_true());
    if (record->pause_frozen)
        json_object_set_new(json, "pause_frozen", json_true());
    if (since->boot_id[0] != '\0')
        json_object_set_new(json, "since",
                json_pack("{s:s, s:I, s:I}", "boot_id", since->boot_id, "boot_ns", (json_int_t)since->boot_ns,
                        "wall_ns", (json_int_t)since->wall_ns));
    if (record->tree[0] != '\0')
        json_object_set_new(json, "tree", json_string(record->tree));
    if (record->parent_id[0] != '\0')
        json_object_set_new(json, "parent_id", json_string(record->parent_id));
    if (record->defaults != NULL)
        json_object_set(json, "defaults", record->defaults);
    if (json_array_size(record->urls) > 0)
        json_object_set(json, "urls", record->urls);
    made_by_put(&record->by, json);
    if (record->more_count > 0)
        json_object_set_new(json, "more_disks", encode_disks(record));
}

static json_t *encode(const struct sandbox_record *record)
{
    // A reason may be the guest's or the VMM's words, cut anywhere.
    json_t *json = json_pack("{s:s, s:s, s:o, s:s, s:s, s:i, s:i, s:O}", "id", record->id, "state",
            state_names[record->state], "reason", json_fields_text(record->reason, strlen(record->reason)),
            "from", record->from, "start_mode", record->start_mode, "cpus", (int)record->cpus, "memory_mb",
            (int)record->memory_mb, "network", record->network);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"created_wall_ns", record->created_wall_ns}, {"ready_ms", record->ready_ms},
            {"disk", record->disk.value}, {"memory", record->memory.value}, {"mapped", record->mapped.value},
            {"origin", record->origin.value}, {"machine", record->machine.value}};
    for (size_t i = 0; json != NULL && i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(json, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    if (json != NULL && record->runtime[0] != '\0')
        json_object_set_new(json, "runtime", json_string(record->runtime));
    if (json != NULL && record->labels != NULL)
        json_object_set(json, "labels", record->labels);
    if (json != NULL && record->env != NULL)
        json_object_set(json, "env", record->env);
    if (json != NULL)
        encode_life(record, json);
    return json;
}

int sandbox_record_put(struct txn *txn, struct sandbox_record *record, struct error *err)
{
    struct doc doc = {.id = record->doc, .kind = DOC_SANDBOX};
    json_t *json = encode(record);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL)
        return error_set(err, -ENOMEM, "no memory for the sandbox's record");
    if (strlen(text) > DOC_BODY_MAX) {
        free(text);
        return error_set(err, -E2BIG, "labels and env of a sandbox together must stay below %d KiB",
                DOC_BODY_MAX / 1024);
    }
    snprintf(doc.name, sizeof doc.name, "%s", record->name);
    if (record->disk.value != 0)
        doc.volumes[doc.volume_count++] = record->disk;
    if (record->memory.value != 0)
        doc.volumes[doc.volume_count++] = record->memory;
    for (unsigned i = 0; i < record->more_count; i++)
        doc.volumes[doc.volume_count++] = record->more[i].volume;
    if (record->mapped.value != 0)
        doc.bases[doc.base_count++] = record->mapped;
    if (record->origin.value != 0)
        doc.bases[doc.base_count++] = record->origin;
    doc.body = text;
    doc.body_bytes = strlen(text);
    struct doc_id id = txn_doc_put(txn, &doc, NULL, 0);
    if (record->doc.value == 0)
        record->doc = id;
    free(text);
    return 0;
}

void sandbox_record_enter(struct sandbox_record *record, enum sandbox_state state)
{
    bool ran = record->state == SANDBOX_RUNNING || record->state == SANDBOX_PAUSED;
    bool runs = state == SANDBOX_RUNNING || state == SANDBOX_PAUSED;
    bool ended = state == SANDBOX_STOPPED || state == SANDBOX_FAILED;
    if ((runs && !ran) || (ended && record->state != state))
        record->since = sandbox_moment_now();
    record->state = state;
}

void sandbox_record_delete_volumes(struct txn *txn, const struct sandbox_record *record)
{
    txn_volume_delete(txn, record->disk);
    txn_volume_delete(txn, record->memory);
    for (unsigned i = 0; i < record->more_count; i++)
        txn_volume_delete(txn, record->more[i].volume);
}

int sandbox_record_end(struct sandbox *sandbox, struct txn *txn, struct sandbox_record *record, int result,
        unsigned flags, struct error *err)
{
    if (result < 0)
        txn_abort(txn);
    else
        result = txn_commit_wait(txn, flags, err);
    if (result == 0)
        sandbox_record_set(sandbox, record);
    sandbox_record_free(record);
    return result;
}

int sandbox_record_commit(
        struct sandbox *sandbox, const struct sandbox_record *record, unsigned flags, struct error *err)
{
    struct sandbox_record copy = sandbox_record_copy(record);
    struct txn *txn = txn_begin(sandbox->all->store);
    int r = sandbox_record_put(txn, &copy, err);
    return sandbox_record_end(sandbox, txn, &copy, r, flags, err);
}

int sandbox_record_forget_memory(struct sandbox *sandbox, enum sandbox_state state, struct error *err)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    struct volume_id old = record.memory;
    struct doc_id machine = record.machine;
    struct txn *txn = txn_begin(sandbox->all->store);
    record.memory =
            txn_volume_create(txn, "", VOLUME_MEMORY, (uint64_t)record.memory_mb << 20, (struct base_id){0});
    record.mapped = record.origin = (struct base_id){0};
    record.machine = (struct doc_id){0};
    record.state = state;
    record.reason[0] = '\0';
    snprintf(record.start_mode, sizeof record.start_mode, "cold");
    int r = sandbox_record_put(txn, &record, err);
    if (old.value != 0)
        txn_volume_delete(txn, old);
    if (machine.value != 0)
        txn_doc_delete(txn, machine);
    return sandbox_record_end(sandbox, txn, &record, r, 0, err);
}

static uint64_t get_uint(const json_t *json, const char *name)
{
    return (uint64_t)json_fields_get_int(json, name);
}

static void parse_disks(const json_t *disks, struct sandbox_record *record)
{
    size_t i;
    const json_t *item;
    json_array_foreach(disks, i, item)
    {
        if (i >= VM_DISKS_MAX - 1)
            return;
        struct sandbox_disk *disk = &record->more[record->more_count++];
        disk->volume.value = get_uint(item, "volume");
        disk->read_only = json_fields_get_bool(item, "read_only");
        snprintf(disk->mount, sizeof disk->mount, "%s", json_fields_get_text(item, "mount"));
        snprintf(disk->from, sizeof disk->from, "%s", json_fields_get_text(item, "from"));
    }
}

static void parse_life(const json_t *json, struct sandbox_record *record)
{
    const json_t *since = json_object_get(json, "since");
    record->ttl_ms = get_uint(json, "ttl_ms");
    record->idle_ms = get_uint(json, "idle_ms");
    record->persistent = json_fields_get_bool(json, "persistent");
    record->delete_on_timeout = json_fields_get_bool(json, "delete_on_timeout");
    record->auto_start = json_fields_get_bool(json, "auto_start");
    record->no_environment = json_fields_get_bool(json, "no_environment");
    record->pause_frozen = json_fields_get_bool(json, "pause_frozen");
    snprintf(record->since.boot_id, sizeof record->since.boot_id, "%s",
            json_fields_get_text(since, "boot_id"));
    record->since.boot_ns = get_uint(since, "boot_ns");
    record->since.wall_ns = get_uint(since, "wall_ns");
    snprintf(record->tree, sizeof record->tree, "%s", json_fields_get_text(json, "tree"));
    snprintf(record->parent_id, sizeof record->parent_id, "%s", json_fields_get_text(json, "parent_id"));
    record->by = made_by_take(json);
    parse_disks(json_object_get(json, "more_disks"), record);
}

int sandbox_record_parse(const struct doc *doc, struct sandbox_record *ret_record, struct error *err)
{
    json_t *json = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    struct sandbox_record record = {.doc = doc->id};
    const char *id = json_fields_get_text(json, "id"), *state = json_fields_get_text(json, "state");
    size_t s = 0;
    while (s < sizeof state_names / sizeof state_names[0] && strcmp(state_names[s], state) != 0)
        s++;
    if (strncmp(id, "sbx_", 4) != 0 || strlen(id) >= sizeof record.id ||
            strlen(doc->name) >= sizeof record.name || s == sizeof state_names / sizeof state_names[0] ||
            (record.network = network_policy_stored(json_object_get(json, "network"))) == NULL) {
        json_decref(record.network);
        json_decref(json);
        return error_set(err, -EPROTO, "the record of sandbox \"%.40s\" is not one that this version wrote",
                doc->name);
    }
    record.state = (enum sandbox_state)s;
    snprintf(record.id, sizeof record.id, "%s", id);
    memcpy(record.name, doc->name, strlen(doc->name) + 1);
    snprintf(record.reason, sizeof record.reason, "%s", json_fields_get_text(json, "reason"));
    snprintf(record.from, sizeof record.from, "%s", json_fields_get_text(json, "from"));
    snprintf(record.start_mode, sizeof record.start_mode, "%s", json_fields_get_text(json, "start_mode"));
    snprintf(record.runtime, sizeof record.runtime, "%s", json_fields_get_text(json, "runtime"));
    record.cpus = (unsigned)get_uint(json, "cpus");
    record.memory_mb = (unsigned)get_uint(json, "memory_mb");
    record.created_wall_ns = get_uint(json, "created_wall_ns");
    record.ready_ms = get_uint(json, "ready_ms");
    record.disk.value = get_uint(json, "disk");
    record.memory.value = get_uint(json, "memory");
    record.mapped.value = get_uint(json, "mapped");
    record.origin.value = get_uint(json, "origin");
    record.machine.value = get_uint(json, "machine");
    record.labels = json_incref(json_object_get(json, "labels"));
    record.env = json_incref(json_object_get(json, "env"));
    record.defaults = json_incref(json_object_get(json, "defaults"));
    record.urls = json_incref(json_object_get(json, "urls"));
    parse_life(json, &record);
    json_decref(json);
    *ret_record = record;
    return 0;
}

void sandbox_record_free(struct sandbox_record *record)
{
    json_decref(record->labels);
    json_decref(record->env);
    json_decref(record->network);
    json_decref(record->defaults);
    json_decref(record->urls);
    record->labels = record->env = record->network = record->defaults = record->urls = NULL;
}

struct sandbox_record sandbox_record_copy(const struct sandbox_record *record)
{
    struct sandbox_record copy = *record;
    json_incref(copy.labels);
    json_incref(copy.env);
    json_incref(copy.network);
    json_incref(copy.defaults);
    json_incref(copy.urls);
    return copy;
}

void sandbox_record_set(struct sandbox *sandbox, const struct sandbox_record *record)
{
    struct sandbox_record copy = sandbox_record_copy(record);
    pthread_mutex_lock(&sandbox->all->lock);
    struct sandbox_record old = sandbox->record;
    sandbox->record = copy;
    sandbox_url_index(sandbox->all, copy.id, old.urls, copy.urls);
    sandbox_tell_change(sandbox, &old, &copy);
    pthread_cond_broadcast(&sandbox->all->changed);
    pthread_mutex_unlock(&sandbox->all->lock);
    sandbox_record_free(&old);
}
