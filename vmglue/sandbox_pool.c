// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_pool.h"

#include "blockstore/clock.h"
#include "vmglue/contexts.h"
#include "vmglue/prefetch.h"
#include "vmglue/sandbox_steps.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENTRIES = 16, // snapshots that are remembered; the one used longest ago makes room
    KEEP_SECS = 600,
    LOOK_MS = 1000,
    RETRY_SECS = 30, // after one could not be made
    TOUCH_TIMEOUT_MS = 30000,
    FREEZE_TIMEOUT_MS = 10000,
    PAUSE_TIMEOUT_MS = 10000
};
static const char TAKING[] = "being handed out", ENDING[] = "being ended";

struct entry {
    struct doc_id machine; // 0 = free
    bool template;
    uint64_t used_ns, not_before_ns;
    uint64_t uses, taken, missed;
};

// Everything in it is guarded by sandboxes.lock.
struct sandbox_pool {
    struct sandboxes *all;
    pthread_t thread;
    struct entry entries[ENTRIES];
    unsigned creates; // under way
    bool stopping;
};

// ---- what is wanted ----

static struct entry *find_locked(struct sandbox_pool *pool, struct doc_id machine)
{
    for (unsigned i = 0; i < ENTRIES; i++)
        if (pool->entries[i].machine.value == machine.value)
            return &pool->entries[i];
    return NULL;
}

static void note_use_locked(struct sandbox_pool *pool, const struct sandbox_origin *origin)
{
    struct entry *entry = find_locked(pool, origin->machine);
    if (entry == NULL) {
        entry = &pool->entries[0];
        for (unsigned i = 1; i < ENTRIES; i++)
            if (pool->entries[i].used_ns < entry->used_ns)
                entry = &pool->entries[i];
        *entry = (struct entry){.machine = origin->machine, .template = origin->is_template};
    }
    entry->used_ns = clock_monotonic_ns();
    entry->uses++;
}

static bool is_wanted_locked(const struct entry *entry, uint64_t now_ns)
{
    return entry != NULL && entry->machine.value != 0 && (entry->template || entry->uses > 1) &&
           now_ns - entry->used_ns < KEEP_SECS * UINT64_C(1000000000);
}

static bool is_parked(const struct sandbox *sandbox)
{
    return sandbox->record.state == SANDBOX_PARKED && !sandbox->removed;
}

// Those that are being put to rest, or ended, count too: no more are made for them.
static unsigned count_locked(const struct sandboxes *all, struct doc_id machine)
{
    unsigned count = 0;
    for (const struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        count += is_parked(sandbox) && sandbox->snapshot.value == machine.value && sandbox->op != TAKING;
    return count;
}

// Those that a create would take now.
static unsigned count_free_locked(const struct sandboxes *all, struct doc_id machine)
{
    unsigned count = 0;
    for (const struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        count += is_parked(sandbox) && sandbox->op == NULL && sandbox->snapshot.value == machine.value;
    return count;
}

void sandbox_pool_enter(struct sandboxes *all, const struct sandbox_origin *origin)
{
    if (all->pool == NULL)
        return;
    pthread_mutex_lock(&all->lock);
    all->pool->creates++;
    if (origin->machine.value != 0)
        note_use_locked(all->pool, origin);
    pthread_mutex_unlock(&all->lock);
}

void sandbox_pool_leave(struct sandboxes *all)
{
    if (all->pool == NULL)
        return;
    pthread_mutex_lock(&all->lock);
    all->pool->creates--;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

// ---- taking one ----

static struct sandbox *pick(struct sandboxes *all, struct doc_id machine)
{
    struct sandbox *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL && found == NULL && !all->quiesced;
            sandbox = sandbox->next)
        if (is_parked(sandbox) && sandbox->op == NULL && sandbox->snapshot.value == machine.value)
            found = sandbox;
    if (found != NULL) {
        found->op = TAKING;
        found->references++;
    }
    struct entry *entry = find_locked(all->pool, machine);
    if (entry != NULL)
        *(found != NULL ? &entry->taken : &entry->missed) += 1;
    pthread_mutex_unlock(&all->lock);
    return found;
}

// What the machine is stays; who it is comes from the create.
static struct sandbox_record merge(const struct sandbox *sandbox, const struct sandbox_record *asked)
{
    struct sandbox_record record = sandbox_record_copy(asked);
    const struct sandbox_record *parked = &sandbox->record;
    memcpy(record.id, parked->id, sizeof record.id);
    record.state = SANDBOX_PARKED;
    record.doc = parked->doc;
    record.disk = parked->disk;
    record.memory = parked->memory;
    record.mapped = parked->mapped;
    record.origin = parked->origin;
    record.machine = parked->machine;
    memcpy(record.runtime, parked->runtime, sizeof record.runtime);
    memcpy(record.more, parked->more, sizeof record.more);
    record.more_count = parked->more_count;
    return record;
}

static bool has_ended(const struct sandbox *sandbox)
{
    struct pollfd ended = {.fd = sandbox->vm == NULL ? -1 : sandbox->vm->pid_fd, .events = POLLIN};
    return sandbox->vm == NULL || poll(&ended, 1, 0) > 0;
}

// Its record says "parked" until it has its new identity: a daemon that dies before ends it, and nobody gets
// a machine whose processes were set off with another one's randomness.
static int wake(
        struct sandbox *sandbox, const struct sandbox_record *record, uint64_t started_ns, struct error *err)
{
    bool other = !json_equal(sandbox->record.network, record->network);
    sandbox_record_set(sandbox, record); // in memory: its name is the guest's host name
    int r = other ? sandbox_network_apply(sandbox, err) : 0;
    if (r == 0)
        r = vm_continue(sandbox->vm, err);
    sandbox_step(sandbox, STEP_POOL_CONTINUED);
    if (r == 0)
        r = sandbox_vm_identify(sandbox, err);
    sandbox_step(sandbox, STEP_POOL_WOKEN);
    if (r == 0)
        r = sandbox_set_running(sandbox, started_ns, "pool", TXN_DURABLE, err);
    // Events of a hidden one find nobody; from here on they do.
    if (r == 0 && has_ended(sandbox))
        r = error_set(err, -ESRCH, "its VMM ended meanwhile");
    return r;
}

bool sandbox_pool_take(struct sandboxes *all, const struct sandbox_origin *origin,
        struct sandbox_record *record, uint64_t started_ns, struct sandbox **ret_sandbox)
{
    struct error err;
    struct sandbox *sandbox =
            all->pool == NULL || origin->machine.value == 0 ? NULL : pick(all, origin->machine);
    if (sandbox == NULL)
        return false;
    struct sandbox_record merged = merge(sandbox, record);
    int r = wake(sandbox, &merged, started_ns, &err);
    sandbox_record_free(&merged);
    if (r < 0) {
        sandbox_log(all, "a parked machine did not wake and is thrown away: %s", err.text);
        sandbox_discard(sandbox);
        sandbox_finish(sandbox);
        return false;
    }
    sandbox_record_free(record);
    *ret_sandbox = sandbox;
    return true;
}

// ---- ending one ----

static void end_one(struct sandbox *sandbox)
{
    sandbox_discard(sandbox);
    sandbox_finish(sandbox);
}

bool sandbox_pool_give_way(struct sandboxes *all)
{
    struct sandbox *found = NULL;
    if (all->pool == NULL)
        return false;
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (is_parked(sandbox) && sandbox->op == NULL)
            found = sandbox; // the list has the newest first
    if (found != NULL) {
        found->op = ENDING;
        found->references++;
        struct entry *entry = find_locked(all->pool, found->snapshot);
        if (entry != NULL)
            entry->not_before_ns = clock_monotonic_ns() + RETRY_SECS * UINT64_C(1000000000);
    }
    pthread_mutex_unlock(&all->lock);
    if (found != NULL)
        end_one(found);
    return found != NULL;
}

static bool is_gone(struct store *store, struct doc_id machine)
{
    struct doc doc;
    if (store_doc_get(store, machine, &doc) < 0)
        return true;
    doc_free(&doc);
    return false;
}

// A parked machine that nobody can take any more; NULL: none.
static struct sandbox *take_useless(struct sandbox_pool *pool)
{
    struct sandboxes *all = pool->all;
    struct sandbox *found = NULL;
    uint64_t now = clock_monotonic_ns();
    pthread_mutex_lock(&all->lock);
    for (struct sandbox *sandbox = all->list; sandbox != NULL && found == NULL; sandbox = sandbox->next) {
        if (!is_parked(sandbox) || sandbox->op != NULL)
            continue;
        if (all->memory_short || has_ended(sandbox) ||
                !is_wanted_locked(find_locked(pool, sandbox->snapshot), now) ||
                is_gone(all->store, sandbox->snapshot) ||
                count_locked(all, sandbox->snapshot) > all->config.pool)
            found = sandbox;
    }
    if (found != NULL) {
        found->op = ENDING;
        found->references++;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

// ---- making one ----

static bool is_quiesced(void *context)
{
    struct sandboxes *all = context;
    pthread_mutex_lock(&all->lock);
    bool quiesced = all->quiesced;
    pthread_mutex_unlock(&all->lock);
    return quiesced;
}

// The paths that a first command takes, in the guest and in the VMM's translations of it.
static int touch(struct sandbox *sandbox, struct error *err)
{
    struct agent_exec exec = {.shell_command = "true", .timeout_ms = TOUCH_TIMEOUT_MS};
    struct agent_exec_result result;
    int r = agent_exec_run(sandbox->agent, &exec, &result, err);
    if (r < 0)
        return r;
    agent_exec_result_free(&result);
    // A template that was captured with a warm kernel: that is what it will be asked for. A guest that knows
    // no contexts, or has none, is done.
    struct sandbox_agent use = {.sandbox = sandbox, .agent = sandbox->agent};
    json_t *contexts;
    if (contexts_list(&use, &contexts, NULL) < 0)
        return 0;
    bool warm = json_array_size(contexts) > 0;
    json_decref(contexts);
    return warm ? contexts_warm(&use, is_quiesced, sandbox->all, err) : 0;
}

static void record_working_set(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    struct working_set set;
    if (!all->config.working_sets || working_set_exists(all->store, sandbox->snapshot) ||
            prefetch_record(sandbox->dirty, (uint64_t)sandbox->record.memory_mb << 20, &set, NULL) < 0)
        return;
    working_set_save(all->store, sandbox->snapshot, &set, NULL); // the next resume may
    working_set_free(&set);
}

static int park(struct sandbox *sandbox, struct error *err)
{
    int r = touch(sandbox, err);
    if (r == 0) {
        record_working_set(sandbox);
        r = agent_freeze(sandbox->agent, FREEZE_TIMEOUT_MS, err);
    }
    if (r == 0)
        r = vm_pause(sandbox->vm, PAUSE_TIMEOUT_MS, err);
    if (r < 0)
        return r;
    sandbox_step(sandbox, STEP_POOL_STANDS);
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    record.state = SANDBOX_PARKED;
    r = sandbox_record_commit(sandbox, &record, 0, err);
    sandbox_record_free(&record);
    sandbox_step(sandbox, STEP_POOL_PARKED);
    return r;
}

static int begin(struct sandboxes *all, const struct sandbox_origin *origin, struct sandbox_record *record,
        struct error *err)
{
    char notice[256];
    int r = sandbox_network_choose(all, NULL, origin->network, &record->network, notice, sizeof notice, err);
    if (r < 0)
        return r;
    sandbox_new_id(record->id);
    sandbox_origin_shape(origin, record);
    struct txn *txn = txn_begin(all->store);
    sandbox_origin_volumes(txn, origin, 0, record);
    r = sandbox_record_put(txn, record, err);
    if (r < 0)
        txn_abort(txn);
    else
        r = txn_commit_wait(txn, 0, err);
    return r;
}

static int make(struct sandboxes *all, struct doc_id machine, struct error *err)
{
    struct sandbox_origin origin;
    struct sandbox_record record = {.state = SANDBOX_CREATING};
    int r = sandbox_origin_load(all, machine, &origin, err);
    if (r < 0)
        return r;
    r = begin(all, &origin, &record, err);
    if (r == 0) {
        struct sandbox *sandbox = sandbox_new(all, &record);
        sandbox->snapshot = machine;
        r = sandbox_vm_start(sandbox, origin.state, origin.state_bytes, origin.compat, err);
        if (r == 0)
            r = park(sandbox, err);
        if (r < 0)
            sandbox_discard(sandbox);
        sandbox_finish(sandbox);
    } else {
        sandbox_record_free(&record);
    }
    sandbox_origin_free(&origin);
    return r;
}

// What to make next, while nobody makes a sandbox; false: nothing now.
static bool choose(struct sandbox_pool *pool, struct doc_id *ret_machine)
{
    struct sandboxes *all = pool->all;
    uint64_t now = clock_monotonic_ns();
    bool found = false;
    pthread_mutex_lock(&all->lock);
    for (unsigned i = 0; i < ENTRIES && pool->creates == 0 && !all->memory_short && !found; i++) {
        const struct entry *entry = &pool->entries[i];
        found = is_wanted_locked(entry, now) && entry->not_before_ns <= now &&
                count_locked(all, entry->machine) < all->config.pool;
        if (found)
            *ret_machine = entry->machine;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

static void put_off(struct sandbox_pool *pool, struct doc_id machine, bool gone)
{
    pthread_mutex_lock(&pool->all->lock);
    struct entry *entry = find_locked(pool, machine);
    if (entry != NULL && gone)
        *entry = (struct entry){0};
    else if (entry != NULL)
        entry->not_before_ns = clock_monotonic_ns() + RETRY_SECS * UINT64_C(1000000000);
    pthread_mutex_unlock(&pool->all->lock);
}

static void fill(struct sandbox_pool *pool, struct doc_id machine)
{
    struct sandboxes *all = pool->all;
    struct error err;
    bool gone = is_gone(all->store, machine);
    int r = gone ? -ENOENT : make(all, machine, &err);
    if (r < 0)
        put_off(pool, machine, gone);
    if (r < 0 && !gone && r != -ENOMEM) // without memory there is just no pool
        sandbox_log(all, "no machine could be parked: %s", err.text);
}

// Until something changed or a little time has gone by; false at the end.
static bool wait_for_turn(struct sandbox_pool *pool)
{
    struct sandboxes *all = pool->all;
    pthread_mutex_lock(&all->lock);
    if (!pool->stopping && !all->quiesced)
        sandbox_wait_changed_locked(all, clock_monotonic_ns() + LOOK_MS * UINT64_C(1000000));
    bool go_on = !pool->stopping && !all->quiesced;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

static void *run(void *context)
{
    struct sandbox_pool *pool = context;
    while (wait_for_turn(pool)) {
        struct sandbox *useless = take_useless(pool);
        struct doc_id machine;
        if (useless != NULL)
            end_one(useless);
        else if (choose(pool, &machine))
            fill(pool, machine);
    }
    return NULL;
}

// ---- start and stop ----

int sandbox_pool_start(struct sandboxes *all, struct error *err)
{
    if (all->config.pool == 0)
        return 0;
    struct sandbox_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return error_set(err, -ENOMEM, "no memory");
    pool->all = all;
    all->pool = pool;
    if (pthread_create(&pool->thread, NULL, run, pool) == 0)
        return 0;
    all->pool = NULL;
    free(pool);
    return error_set(err, -EAGAIN, "no thread for the pool");
}

void sandbox_pool_stop(struct sandboxes *all)
{
    struct sandbox_pool *pool = all->pool;
    if (pool == NULL)
        return;
    pthread_mutex_lock(&all->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    pthread_join(pool->thread, NULL);
    while (sandbox_pool_give_way(all))
        ;
    all->pool = NULL;
    free(pool);
}

json_t *sandbox_pool_json(struct sandboxes *all)
{
    json_t *snapshots = json_array();
    unsigned parked = 0;
    pthread_mutex_lock(&all->lock);
    for (unsigned i = 0; all->pool != NULL && i < ENTRIES; i++) {
        const struct entry *entry = &all->pool->entries[i];
        struct doc doc;
        if (entry->machine.value == 0 || store_doc_get(all->store, entry->machine, &doc) < 0)
            continue;
        unsigned count = count_free_locked(all, entry->machine);
        parked += count;
        json_array_append_new(
                snapshots, json_pack("{s:s, s:i, s:I, s:I}", "name", doc.name, "parked", (int)count, "taken",
                                   (json_int_t)entry->taken, "missed", (json_int_t)entry->missed));
        doc_free(&doc);
    }
    pthread_mutex_unlock(&all->lock);
    return json_pack(
            "{s:i, s:i, s:o}", "size", (int)all->config.pool, "parked", (int)parked, "snapshots", snapshots);
}
