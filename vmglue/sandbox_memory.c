// SPDX-License-Identifier: Apache-2.0
// Admission and figures. What happens when memory gets short is sandbox_shortage.c.
#include "vmglue/sandbox_memory.h"

#include "blockstore/clock.h"
#include "vmglue/memory_usage.h"
#include "vmglue/sandbox_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VMM_MB = 96, READ_WAIT_MS = 500, BUDGET_LEAST_MB = 256 };

uint64_t sandbox_memory_default_budget(uint64_t cache_bytes)
{
    const uint64_t least = (uint64_t)BUDGET_LEAST_MB << 20;
    struct memory_host host;
    if (memory_usage_host(&host, NULL) < 0)
        return 0;
    uint64_t share = host.total_bytes / 5 * 4;
    return share < cache_bytes + least ? least : share - cache_bytes;
}

// ---- admission ----

static uint64_t overcommit(const struct sandboxes *all)
{
    unsigned percent = all->config.memory.overcommit_percent;
    return percent == 0 ? SANDBOX_MEMORY_OVERCOMMIT_DEFAULT : percent;
}

static uint64_t counted_bytes(const struct sandboxes *all, unsigned memory_mb, uint64_t own_bytes)
{
    uint64_t expected = ((uint64_t)memory_mb << 20) * 100 / overcommit(all);
    return ((uint64_t)VMM_MB << 20) + (expected > own_bytes ? expected : own_bytes);
}

// What one that has its place counts as now.
static uint64_t taken_by_locked(const struct sandbox *sandbox)
{
    return sandbox->memory_admitted
                   ? counted_bytes(sandbox->all, sandbox->record.memory_mb, sandbox->own_bytes)
                   : 0;
}

static uint64_t taken_locked(const struct sandboxes *all, unsigned *ret_machines)
{
    uint64_t sum = 0;
    *ret_machines = 0;
    for (const struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
        sum += taken_by_locked(sandbox);
        *ret_machines += sandbox->memory_admitted;
    }
    return sum;
}

static unsigned long long mib(uint64_t bytes)
{
    return bytes >> 20;
}

static int check_locked(struct sandboxes *all, unsigned count, unsigned memory_mb, struct error *err)
{
    const struct sandbox_memory_config *config = &all->config.memory;
    uint64_t each = counted_bytes(all, memory_mb, 0), asked = each * count;
    unsigned machines;
    uint64_t taken = taken_locked(all, &machines),
             left = taken < config->budget_bytes ? config->budget_bytes - taken : 0;
    char what[80];
    if (all->memory_short)
        return error_set(err, -ENOMEM,
                "the host is short of memory and starts no machines now: %llu MiB are available, and below "
                "%llu MiB idle sandboxes are being stopped; try again later, stop a sandbox (`ramet ls`), or "
                "see what takes the host's memory",
                mib(all->host_available_bytes), mib(all->low_bytes));
    if (config->budget_bytes == 0 || asked <= left)
        return 0;
    if (count == 1)
        snprintf(what, sizeof what, "a machine with %u MiB counts", memory_mb);
    else
        snprintf(what, sizeof what, "%u machines with %u MiB each count", count, memory_mb);
    return error_set(err, -ENOMEM,
            "no memory for it: %s as %llu MiB, and of the budget of %llu MiB %u machines take %llu MiB, "
            "which "
            "leaves %llu MiB; stop or remove a sandbox (`ramet ls`), ask for less memory, or start rametd "
            "with a larger --memory-budget or --memory-overcommit",
            what, mib(asked), mib(config->budget_bytes), machines, mib(taken), mib(left));
}

int sandbox_memory_check(struct sandboxes *all, unsigned count, unsigned memory_mb, struct error *err)
{
    int r;
    do { // machines that somebody asked for come before parked ones
        pthread_mutex_lock(&all->lock);
        r = check_locked(all, count, memory_mb, err);
        pthread_mutex_unlock(&all->lock);
    } while (r < 0 && sandbox_pool_give_way(all));
    return r;
}

static int admit(struct sandbox *sandbox, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    // One whose guest reboots is running still; it was let in before.
    int r = sandbox_is_live(sandbox) ? 0 : check_locked(all, 1, sandbox->record.memory_mb, err);
    if (r == 0) {
        sandbox->memory_admitted = true;
        sandbox->own_bytes = 0;
    }
    pthread_mutex_unlock(&all->lock);
    return r;
}

int sandbox_memory_admit(struct sandbox *sandbox, struct error *err)
{
    int r;
    do
        r = admit(sandbox, err);
    while (r < 0 && !sandbox_is_hidden(sandbox) && sandbox_pool_give_way(sandbox->all)); // the pool waits
    return r;
}

// ---- figures ----

void sandbox_memory_watch(struct sandbox *sandbox, const struct vm_memory *memory)
{
    struct sandboxes *all = sandbox->all;
    struct memory_probe *probe = NULL;
    struct error err;
    if (memory_usage_open(sandbox->vm->pid, sandbox->vm->start_time_ticks, memory->address, memory->bytes,
                &probe, &err) < 0)
        sandbox_log(all, "sandbox %s: its memory use is not known: %s", sandbox->record.name, err.text);
    pthread_mutex_lock(&all->lock);
    struct memory_probe *old = sandbox->probe;
    sandbox->probe = probe;
    sandbox->memory_admitted = true; // an adopted one was let in by the daemon before
    pthread_mutex_unlock(&all->lock);
    memory_usage_close(old);
}

void sandbox_memory_end(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    struct memory_probe *probe = sandbox->probe;
    sandbox->probe = NULL;
    sandbox->memory_admitted = false;
    sandbox->own_bytes = 0;
    pthread_mutex_unlock(&all->lock);
    memory_usage_close(probe);
}

static json_t *usage_json(const struct memory_usage *usage)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "private_bytes", (json_int_t)usage->private_bytes,
            "shared_bytes", (json_int_t)usage->shared_bytes, "shared_part_bytes",
            (json_int_t)usage->shared_part_bytes, "swapped_bytes", (json_int_t)usage->swapped_bytes,
            "vmm_bytes", (json_int_t)usage->vmm_bytes);
}

static uint64_t deadline(void)
{
    return clock_monotonic_ns() + (uint64_t)READ_WAIT_MS * 1000000;
}

void sandbox_memory_describe(struct sandbox *sandbox, json_t *json)
{
    struct sandboxes *all = sandbox->all;
    struct memory_usage usage;
    pthread_mutex_lock(&all->lock);
    struct memory_probe *probe = memory_usage_share(sandbox->probe);
    uint64_t counted = taken_by_locked(sandbox);
    pthread_mutex_unlock(&all->lock);
    if (probe == NULL)
        return;
    memory_usage_begin(probe);
    if (memory_usage_take(probe, deadline(), &usage)) {
        json_t *memory = usage_json(&usage);
        json_object_set_new(memory, "counted_bytes", json_integer((json_int_t)counted));
        json_object_set_new(
                memory, "age_ms", json_integer((json_int_t)((clock_monotonic_ns() - usage.at_ns) / 1000000)));
        json_object_set_new(json, "memory", memory);
    }
    memory_usage_close(probe);
}

// All that run, with a reference to each probe; ends with NULL. The caller frees it.
static struct memory_probe **share_probes(struct sandboxes *all)
{
    size_t count = 0, i = 0;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        count++;
    struct memory_probe **probes = calloc(count + 1, sizeof *probes);
    for (struct sandbox *sandbox = all->list; sandbox != NULL && probes != NULL; sandbox = sandbox->next)
        if (sandbox->probe != NULL)
            probes[i++] = memory_usage_share(sandbox->probe);
    pthread_mutex_unlock(&all->lock);
    return probes;
}

// What was read last goes into the count; a reading that hangs leaves the figure as it was.
static void keep_own_bytes(
        struct sandboxes *all, struct memory_probe *probe, const struct memory_usage *usage)
{
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (sandbox->probe == probe)
            sandbox->own_bytes = usage->private_bytes + usage->swapped_bytes;
    pthread_mutex_unlock(&all->lock);
}

void sandbox_memory_measure(struct sandboxes *all, struct memory_usage *ret_sum, unsigned *ret_unknown)
{
    struct memory_probe **probes = share_probes(all);
    struct memory_usage usage, sum = {0};
    *ret_unknown = 0;
    for (size_t i = 0; probes != NULL && probes[i] != NULL; i++)
        memory_usage_begin(probes[i]);
    uint64_t until = deadline();
    for (size_t i = 0; probes != NULL && probes[i] != NULL; i++) {
        if (memory_usage_take(probes[i], until, &usage)) {
            keep_own_bytes(all, probes[i], &usage);
            sum.private_bytes += usage.private_bytes;
            sum.shared_bytes += usage.shared_bytes;
            sum.shared_part_bytes += usage.shared_part_bytes;
            sum.swapped_bytes += usage.swapped_bytes;
            sum.vmm_bytes += usage.vmm_bytes;
        } else {
            ++*ret_unknown;
        }
        memory_usage_close(probes[i]);
    }
    free(probes);
    *ret_sum = sum;
}

static json_t *host_json(const struct memory_host *host)
{
    json_t *json = json_pack("{s:I, s:I, s:I, s:I}", "total_bytes", (json_int_t)host->total_bytes,
            "available_bytes", (json_int_t)host->available_bytes, "swap_total_bytes",
            (json_int_t)host->swap_total_bytes, "swap_free_bytes", (json_int_t)host->swap_free_bytes);
    json_object_set_new(
            json, "pressure_some_percent", host->has_pressure ? json_real(host->some_avg10) : json_null());
    json_object_set_new(
            json, "pressure_full_percent", host->has_pressure ? json_real(host->full_avg10) : json_null());
    return json;
}

json_t *sandbox_memory_report(struct sandboxes *all)
{
    struct memory_host host = {0};
    struct memory_usage sum;
    unsigned unknown, machines;
    memory_usage_host(&host, NULL);
    sandbox_memory_measure(all, &sum, &unknown);
    pthread_mutex_lock(&all->lock);
    uint64_t taken = taken_locked(all, &machines), budget = all->config.memory.budget_bytes;
    json_t *json = json_pack("{s:s, s:i, s:i, s:I, s:i, s:I, s:I}", "state",
            all->memory_short ? "short" : "ok", "machines", (int)machines, "unknown", (int)unknown,
            "counted_bytes", (json_int_t)taken, "overcommit_percent", (int)overcommit(all), "low_bytes",
            (json_int_t)all->low_bytes, "stopped_total", (json_int_t)all->stopped_for_memory);
    pthread_mutex_unlock(&all->lock);
    json_object_set_new(json, "budget_bytes", budget == 0 ? json_null() : json_integer((json_int_t)budget));
    json_object_set_new(json, "free_bytes",
            budget == 0 ? json_null() : json_integer((json_int_t)(taken < budget ? budget - taken : 0)));
    json_object_update_new(json, usage_json(&sum));
    json_object_set_new(json, "host", host_json(&host));
    return json;
}
