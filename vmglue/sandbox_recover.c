// SPDX-License-Identifier: Apache-2.0
// The first and the last minute of a daemon: every recorded sandbox is brought into a state that is true, and
// let go of again at the end.
//
// Order at start: 1. read the records; 2. serve the disks of all that may run (the memory images are served
// already);
// 3. only then speak with VMMs, since each waits for its disk; 4. undo what was half-made; 5. end strays,
// remove folders and keeper's descriptors that belong to nobody.
#include "vmglue/hex.h"
#include "vmglue/sandbox_pool.h"

#include "vmglue/json_fields.h"
#include "vmglue/keeper.h"
#include "vmglue/network.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STRAY_TIMEOUT_MS = 30000, ADOPT_TRIES = 3 };

static void load_one(void *context, const struct doc *doc)
{
    struct sandboxes *all = context;
    struct sandbox_record record;
    struct error err;
    if (sandbox_record_parse(doc, &record, &err) < 0) {
        sandbox_log(all, "%s; it is left alone", err.text);
        return;
    }
    sandbox_new(all, &record);
}

static void serve_disks(struct sandboxes *all)
{
    struct error err;
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (sandbox_is_live(sandbox) && sandbox_vm_serve(sandbox, &err) < 0)
            sandbox_log(all, "sandbox %s: its disk cannot be served: %s", sandbox->record.name, err.text);
}

static void recover_running(struct sandbox *sandbox)
{
    struct error err;
    int r = sandbox_vm_adopt(sandbox, &err);
    for (unsigned tries = 1; r == -ETIMEDOUT && sandbox->vm == NULL && tries < ADOPT_TRIES; tries++)
        r = sandbox_vm_adopt(sandbox, &err); // on a busy host it may be late
    if (r == 0) {
        sandbox_log(
                sandbox->all, "sandbox %s: adopted, process %d", sandbox->record.name, (int)sandbox->vm->pid);
        sandbox_tell(sandbox, "adopted", NULL);
        return;
    }
    sandbox_log(sandbox->all, "sandbox %s: %s", sandbox->record.name, err.text);
    if (r != -ESRCH && sandbox->vm != NULL) {
        // It runs, but its guest does not answer. It is the user's to look at or remove.
        sandbox_set_state(sandbox, sandbox->record.state, err.text);
        return;
    }
    sandbox_vm_end(sandbox);
    sandbox_set_state(sandbox, SANDBOX_STOPPED,
            r == -ETIMEDOUT
                    ? "its VMM did not answer the new daemon and was ended; it starts from its disk"
                    : "its VMM ended while no daemon ran (a power cut or a reboot of the host); it starts "
                      "from its disk");
}

static void recover(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    switch (sandbox->record.state) {
    case SANDBOX_RUNNING:
    case SANDBOX_PAUSED:
        recover_running(sandbox);
        break;
    case SANDBOX_REMOVING:
    case SANDBOX_PARKED:
        sandbox_discard(sandbox);
        break;
    case SANDBOX_CREATING:
        if (!sandbox_is_hidden(sandbox))
            sandbox_log(all, "sandbox %s: the daemon ended while it was being made; it is removed",
                    sandbox->record.name);
        sandbox_discard(sandbox);
        break;
    case SANDBOX_STARTING:
        sandbox_vm_end(sandbox);
        sandbox_set_state(
                sandbox, SANDBOX_STOPPED, "the daemon ended while it was being started; start it again");
        break;
    case SANDBOX_STOPPED:
    case SANDBOX_FAILED:
        break;
    }
}

// A fork that was cut short, so that its children go: the snapshot that it was to keep under a name goes
// first, while they still say which it is. (A nameless one goes with clean_inner.)
static void clean_forks(struct sandboxes *all)
{
    struct error err;
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
        struct doc_id id = {names_id(sandbox->record.tree, "tree_")};
        struct doc doc = {0};
        if (sandbox->record.state != SANDBOX_CREATING || id.value == 0 ||
                store_doc_get(all->store, id, &doc) < 0)
            continue;
        struct txn *txn = txn_begin(all->store);
        txn_doc_delete(txn, id);
        if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
            sandbox_log(all, "the snapshot \"%s\" of a fork that was cut short cannot be removed: %s",
                    doc.name, err.text);
        doc_free(&doc);
    }
}

static void *recover_thread(void *context)
{
    recover(context);
    return NULL;
}

// Side by side: one guest that does not answer must not hold up the others.
static void recover_all(struct sandboxes *all)
{
    size_t count = 0, i = 0;
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        count++;
    pthread_t *threads = calloc(count + 1, sizeof *threads);
    bool *started = calloc(count + 1, sizeof *started);
    if (threads == NULL || started == NULL)
        abort();
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next, i++) {
        started[i] = pthread_create(&threads[i], NULL, recover_thread, sandbox) == 0;
        if (!started[i])
            recover(sandbox);
    }
    for (i = 0; i < count; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
    free(threads);
    free(started);
}

// ---- what belongs to nobody ----

// A VMM of this store is wanted when its sandbox has adopted it, or runs it unadopted.
static bool is_wanted(struct sandboxes *all, const char *id)
{
    for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next)
        if (strcmp(sandbox->record.id, id) == 0)
            return !sandbox->removed && sandbox_is_live(sandbox);
    return false;
}

static void end_stray(void *context, pid_t pid, const char *id)
{
    struct sandboxes *all = context;
    struct error err;
    if (is_wanted(all, id))
        return;
    int r = vm_kill_stray(all->tag, pid, STRAY_TIMEOUT_MS, &err);
    if (r < 0 && r != -ESRCH)
        sandbox_log(all, "the left-over process %d of %s cannot be ended: %s", (int)pid, id, err.text);
    else
        sandbox_log(all, "the left-over process %d of %s was ended", (int)pid, id);
    sandbox_vm_clean(all, id); // what could not be taken away while it ran
}

static void clean_folders(struct sandboxes *all)
{
    char path[128];
    snprintf(path, sizeof path, "%s/vm", all->config.run_dir);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strncmp(entry->d_name, "sbx_", 4) == 0 && !is_wanted(all, entry->d_name))
            sandbox_vm_clean(all, entry->d_name);
    closedir(dir);
}

struct kept_names {
    char name[64];
    struct kept_names *next;
};

static void collect_kept(void *context, const char *name)
{
    struct kept_names **list = context, *kept = calloc(1, sizeof *kept);
    if (kept == NULL)
        abort();
    snprintf(kept->name, sizeof kept->name, "%s", name);
    kept->next = *list;
    *list = kept;
}

static void clean_keeper(struct sandboxes *all)
{
    struct kept_names *list = NULL;
    keeper_list(all->config.run_dir, collect_kept, &list, NULL);
    while (list != NULL) {
        struct kept_names *kept = list;
        list = kept->next;
        if (strncmp(kept->name, "nbd-sbx_", 8) == 0 && !is_wanted(all, kept->name + 4))
            keeper_drop(all->config.run_dir, kept->name, NULL);
        free(kept);
    }
}

// Nameless machine snapshots that no stopped sandbox resumes from: steps of forks that never ended.
struct inner_search {
    struct sandboxes *all;
    struct doc_id *ids;
    size_t count;
};

static void collect_inner(void *context, const struct doc *doc)
{
    struct inner_search *search = context;
    if (doc->name[0] != '\0')
        return;
    for (struct sandbox *sandbox = search->all->list; sandbox != NULL; sandbox = sandbox->next)
        if (!sandbox->removed && sandbox->record.machine.value == doc->id.value)
            return;
    struct doc_id *ids = realloc(search->ids, (search->count + 1) * sizeof *ids);
    if (ids == NULL)
        abort();
    search->ids = ids;
    search->ids[search->count++] = doc->id;
}

static void clean_inner(struct sandboxes *all)
{
    struct inner_search search = {.all = all};
    struct error err;
    store_doc_list(all->store, DOC_MACHINE, collect_inner, &search);
    for (size_t i = 0; i < search.count; i++) {
        struct txn *txn = txn_begin(all->store);
        txn_doc_delete(txn, search.ids[i]);
        if (txn_commit_wait(txn, TXN_RESERVE, &err) < 0)
            sandbox_log(all, "a left-over machine snapshot cannot be removed: %s", err.text);
    }
    free(search.ids);
}

// ---- start and stop ----

static int check_config(const struct sandbox_config *config, struct error *err)
{
    if (strlen(config->run_dir) > SANDBOX_RUN_DIR_MAX)
        return error_set(err, -ENAMETOOLONG,
                "the run directory %.80s... is too long: sockets below it must fit into 107 "
                "bytes; use one of at most %d",
                config->run_dir, SANDBOX_RUN_DIR_MAX);
    if (config->run_dir[0] != '/')
        return error_set(err, -EINVAL, "the run directory %s is not an absolute path", config->run_dir);
    return 0;
}

static void set_paths(struct sandboxes *all)
{
    const struct sandbox_config *config = &all->config;
    uint8_t uuid[16];
    snprintf(all->kernel_path, sizeof all->kernel_path, "%s/vmlinux", config->kernel_dir);
    snprintf(all->initrd_path, sizeof all->initrd_path, "%s/initramfs-q35.cpio", config->kernel_dir);
    snprintf(all->probe_cache, sizeof all->probe_cache, "%s/accel", config->run_dir);
    // Beside the programs when installed, in the neighbouring folder in the build tree.
    snprintf(all->preload_path, sizeof all->preload_path, "%s/libramet-preload.so", config->libexec_dir);
    if (access(all->preload_path, R_OK) < 0)
        snprintf(all->preload_path, sizeof all->preload_path, "%s/../vmglue/libramet-preload.so",
                config->libexec_dir);
    if (access(all->preload_path, R_OK) < 0)
        all->preload_path[0] = '\0';
    store_uuid(all->store, uuid);
    char id[2 * sizeof uuid + 1];
    hex_encode(uuid, sizeof uuid, id);
    snprintf(all->tag, sizeof all->tag, "ramet-%s", id);
}

// A VMM that was adopted may have ended by now: the thread that looks after it waits for its turn and holds a
// reference of its own.
static void forget_references(struct sandboxes *all)
{
    pthread_mutex_lock(&all->lock);
    struct sandbox **link = &all->list;
    while (*link != NULL) {
        struct sandbox *sandbox = *link;
        sandbox->op = NULL;
        if (--sandbox->references > 0 || !sandbox->removed) {
            link = &sandbox->next;
            continue;
        }
        *link = sandbox->next;
        sandbox_free(sandbox);
    }
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static struct sandboxes *make(const struct sandbox_config *config)
{
    struct sandboxes *all = calloc(1, sizeof *all);
    pthread_condattr_t monotonic;
    if (all == NULL)
        return NULL;
    all->config = *config;
    all->events = sandbox_events_create();
    if (all->events == NULL) {
        free(all);
        return NULL;
    }
    all->store = config->service->store;
    pthread_mutex_init(&all->lock, NULL);
    pthread_mutex_init(&all->promote_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    set_paths(all);
    return all;
}

int sandbox_start_all(const struct sandbox_config *config, struct sandboxes **ret_all, struct error *err)
{
    char folder[128];
    int r = check_config(config, err);
    if (r < 0)
        return r;
    struct sandboxes *all = make(config);
    if (all == NULL)
        return error_set(err, -ENOMEM, "no memory");
    if (all->preload_path[0] == '\0')
        sandbox_log(all, "%s/libramet-preload.so is missing; snapshots will copy all private pages",
                config->libexec_dir);
    snprintf(folder, sizeof folder, "%s/vm", config->run_dir);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST) {
        r = error_set(err, -errno, "the folder %s cannot be made: %s", folder, strerror(errno));
        sandbox_events_destroy(all->events);
        free(all);
        return r;
    }
    r = sandbox_confine_open(all, err);
    if (r == 0)
        r = sandbox_network_open(all, err);
    if (r < 0) {
        sandbox_confine_close(all);
        sandbox_events_destroy(all->events);
        free(all);
        return r;
    }
    store_doc_list(all->store, DOC_SANDBOX, load_one, all);
    serve_disks(all);
    clean_forks(all);
    recover_all(all);
    vm_find_strays(all->tag, end_stray, all);
    clean_folders(all);
    clean_keeper(all);
    sandbox_network_sweep(all);
    clean_inner(all);
    forget_references(all);
    sandbox_confine_clean_strays(all, is_wanted);
    sandbox_runtime_collect(all);
    r = sandbox_working_set_start(all, err);
    if (r == 0)
        r = sandbox_memory_start(all, err);
    if (r == 0)
        r = sandbox_pool_start(all, err);
    if (r == 0)
        r = sandbox_clock_start(all, err);
    if (r == 0)
        r = sandbox_deadline_start(all, err);
    if (r < 0)
        sandbox_stop_all(all, NULL);
    else
        *ret_all = all;
    return r;
}

void sandbox_quiesce_all(struct sandboxes *all)
{
    pthread_mutex_lock(&all->lock);
    all->quiesced = true;
    pthread_cond_broadcast(&all->changed);
    for (;;) {
        bool busy = false;
        for (struct sandbox *sandbox = all->list; sandbox != NULL; sandbox = sandbox->next) {
            busy = busy ||
                   sandbox->op != NULL; // a snapshot or fork under way is completed, it needs its agent
            if (sandbox->op == NULL && sandbox->agent != NULL)
                agent_break(sandbox->agent);
        }
        if (!busy)
            break;
        pthread_cond_wait(&all->changed, &all->lock);
    }
    pthread_mutex_unlock(&all->lock);
}

struct sandboxes *sandbox_stop_all(struct sandboxes *all, unsigned *ret_running)
{
    unsigned running = 0;
    if (all == NULL)
        return NULL;
    sandbox_quiesce_all(all);
    sandbox_deadline_stop(all);
    sandbox_pool_stop(all);
    pthread_mutex_lock(&all->lock);
    while (all->workers > 0)
        pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
    // Whoever starts a VMM tells the recorder, so it ends after the pool and the workers.
    sandbox_working_set_stop(all);
    while (all->list != NULL) {
        struct sandbox *sandbox = all->list;
        running += sandbox->vm != NULL;
        sandbox_vm_release(sandbox);
        all->list = sandbox->next;
        sandbox_free(sandbox);
    }
    sandbox_confine_close(all);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    pthread_mutex_destroy(&all->promote_lock);
    sandbox_events_destroy(all->events);
    network_close(all->network);
    free(all);
    if (ret_running != NULL)
        *ret_running = running;
    return NULL;
}
