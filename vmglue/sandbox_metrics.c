// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_metrics.h"

#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "snapshot/volume.h"
#include "vmglue/json_fields.h"
#include "vmglue/network.h"
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void sandbox_metrics_count(const struct sandbox_agent *use)
{
    pthread_mutex_lock(&use->sandbox->all->lock);
    use->sandbox->commands_total++;
    pthread_mutex_unlock(&use->sandbox->all->lock);
}

// ---- disks ----

static bool add_data(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    uint64_t *sum = context;
    *sum += kind == EXTENT_DATA ? length : 0;
    return true;
}

static int add_disk(struct store *store, struct volume_id id, uint64_t *logical, uint64_t *data)
{
    struct volume *volume;
    int r = volume_open(store, id, &volume);
    if (r < 0)
        return r;
    *logical += volume_size_bytes(volume);
    r = volume_extents_wait(volume, 0, volume_size_bytes(volume), add_data, data);
    volume_close(volume);
    return r;
}

// What its root disk does not have at one place with what the sandbox was made from.
static json_t *unique_json(struct sandboxes *all, const struct sandbox_record *record)
{
    struct disks *disks = &all->config.service->disks;
    struct disks_pin older = {0}, newer = {0};
    char from[96], own[96];
    uint64_t sum = 0;
    bool fork = record->parent_id[0] != '\0';
    snprintf(from, sizeof from, "%s%s", fork ? record->parent_id : record->from, fork ? "/disk" : "");
    snprintf(own, sizeof own, "%s/disk", record->id);
    int r = disks_pin(disks, from, &older, NULL);
    if (r == 0)
        r = disks_pin(disks, own, &newer, NULL);
    if (r == 0)
        r = base_diff_places_wait(older.base, newer.base, add_data, &sum);
    if (older.base != NULL)
        disks_unpin(disks, &older);
    if (newer.base != NULL)
        disks_unpin(disks, &newer);
    return r < 0 ? json_null() : json_integer((json_int_t)sum);
}

static json_t *disks_json(struct sandboxes *all, const struct sandbox_record *record)
{
    uint64_t logical = 0, data = 0;
    int r = add_disk(all->store, record->disk, &logical, &data);
    for (unsigned i = 0; r == 0 && i < record->more_count; i++)
        r = add_disk(all->store, record->more[i].volume, &logical, &data);
    if (r < 0)
        return json_null(); // its disks were exchanged meanwhile
    return json_pack("{s:I, s:I, s:o}", "logical_bytes", (json_int_t)logical, "data_bytes", (json_int_t)data,
            "unique_bytes", unique_json(all, record));
}

// ---- its process ----

struct process {
    double cpu_secs, uptime_secs;
};

// Fields 14, 15 and 22 of /proc/PID/stat; the command in parentheses before them may hold anything.
static bool read_process(pid_t pid, uint64_t start_ticks, struct process *ret_process)
{
    char path[40], text[1024];
    unsigned long long user, kernel, start;
    double hz = (double)sysconf(_SC_CLK_TCK);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (fd_read_text(AT_FDCWD, path, text, sizeof text) < 0)
        return false;
    const char *after = strrchr(text, ')');
    if (after == NULL || sscanf(after + 1,
                                 " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d "
                                 "%*d %llu",
                                 &user, &kernel, &start) != 3)
        return false;
    if (start != start_ticks)
        return false; // another process has its number
    ret_process->cpu_secs = (double)(user + kernel) / hz;
    ret_process->uptime_secs = (double)clock_boot_ns() / 1e9 - (double)start / hz;
    return true;
}

static json_t *network_json(struct sandboxes *all, const char *id)
{
    uint64_t received, sent;
    if (all->network == NULL || network_counters(all->network, id, &received, &sent) < 0)
        return json_null();
    return json_pack("{s:I, s:I}", "received_bytes", (json_int_t)received, "sent_bytes", (json_int_t)sent);
}

int sandbox_metrics(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err)
{
    struct process process = {0};
    json_t *shown;
    int r = sandbox_show(all, name, &shown, err);
    if (r < 0)
        return r;
    const char *id = json_fields_get_text(shown, "id");
    struct sandbox_record record = {0};
    uint64_t commands = 0, start_ticks = 0;
    unsigned calls = 0;
    pid_t pid = 0;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = sandbox_find_locked(all, id);
    if (sandbox != NULL) {
        record = sandbox_record_copy(&sandbox->record);
        commands = sandbox->commands_total;
        calls = sandbox->agent_users - sandbox->own_questions;
        pid = sandbox->vm == NULL ? 0 : sandbox->vm->pid;
        start_ticks = sandbox->vm == NULL ? 0 : sandbox->vm->start_time_ticks;
    }
    pthread_mutex_unlock(&all->lock);
    bool runs = pid != 0 && read_process(pid, start_ticks, &process);
    json_t *memory = json_object_get(shown, "memory");
    *ret_json = json_pack("{s:s, s:O, s:O, s:o, s:o, s:o, s:o, s:o, s:I, s:i}", "id", id, "name",
            json_object_get(shown, "name"), "state", json_object_get(shown, "state"), "uptime_secs",
            runs ? json_real(process.uptime_secs) : json_null(), "cpu_secs",
            runs ? json_real(process.cpu_secs) : json_null(), "memory",
            memory == NULL ? json_null() : json_incref(memory), "disk", disks_json(all, &record), "network",
            network_json(all, id), "commands_total", (json_int_t)commands, "calls_now", (int)calls);
    sandbox_record_free(&record);
    json_decref(shown);
    return *ret_json == NULL ? error_set(err, -ENOMEM, "no memory for the answer") : 0;
}
