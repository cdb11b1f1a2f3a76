// SPDX-License-Identifier: Apache-2.0
// Which runtime a sandbox is started from: a machine that goes on needs the one it was saved with, a guest
// that reboots keeps its kernel, everything else gets what is installed now. The name stands in the sandbox's
// record and in the compatibility record of its machine snapshots; what stands in none is removed.
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void log_message(void *context, const char *message)
{
    sandbox_log(context, "%s", message);
}

int sandbox_runtime_open(struct sandboxes *all, struct error *err)
{
    char folder[PATH_MAX + 16], real[PATH_MAX];
    if (realpath(all->config.store_dir, real) == NULL) // absolute: VMMs are started from elsewhere
        return error_set(err, -errno, "the path of the store cannot be told: %s", strerror(errno));
    snprintf(folder, sizeof folder, "%s/runtimes", real);
    struct runtimes_config config = {.folder = folder,
            .origin = {.vmm_path = all->config.vmm_path,
                    .preload_path = all->preload_path[0] == '\0' ? NULL : all->preload_path,
                    .kernel_path = all->kernel_path,
                    .initrd_path = all->initrd_path},
            .log = log_message,
            .context = all};
    return runtimes_open(&config, &all->runtimes, err);
}

// ---- Choosing ----

static void set_record(struct sandbox *sandbox, const char *name)
{
    pthread_mutex_lock(&sandbox->all->lock);
    snprintf(sandbox->record.runtime, sizeof sandbox->record.runtime, "%s", name);
    pthread_mutex_unlock(&sandbox->all->lock);
}

static int hold(struct sandbox *sandbox, const char *compat, struct runtime *ret_runtime, bool *ret_lost,
        struct error *err)
{
    struct runtimes *runtimes = sandbox->all->runtimes;
    JSON_AUTO json_t *saved = compat == NULL ? NULL : json_loads(compat, 0, NULL);
    const char *name = json_string_value(json_object_get(saved, "runtime"));
    bool reboots = compat == NULL && sandbox->record.state == SANDBOX_RUNNING;
    if (reboots)
        name = sandbox->record.runtime;
    if (name == NULL || name[0] == '\0')
        return runtimes_hold_current(runtimes, ret_runtime, err);
    int r = runtimes_hold(runtimes, name, ret_runtime, err);
    if (r == 0 || (r != -ENOENT && !reboots))
        return r;
    // A guest that boots can do with another kernel. One that goes on can when all that matters is the same,
    // which the comparison of the compatibility records finds.
    *ret_lost = true;
    if (reboots)
        sandbox_log(sandbox->all, "sandbox %s: %s; it boots what is installed now", sandbox->record.name,
                err->text);
    return runtimes_hold_current(runtimes, ret_runtime, err);
}

int sandbox_runtime_choose(struct sandbox *sandbox, const char *compat, struct vm_config *config,
        struct runtime *ret_runtime, bool *ret_lost, struct error *err)
{
    *ret_lost = false;
    ret_runtime->name[0] = '\0';
    if (sandbox->all->confinement == NULL)
        return 0;
    // By booting what is installed, where it is installed.
    int r = config->accel == VM_ACCEL_AUTO ? vm_probe_accel(config, &config->accel, err) : 0;
    if (r == 0)
        r = hold(sandbox, compat, ret_runtime, ret_lost, err);
    if (r < 0)
        return r;
    set_record(sandbox, ret_runtime->name);
    config->runtime = ret_runtime->name;
    config->runtime_root = ret_runtime->root;
    config->vmm_path = ret_runtime->vmm;
    config->kernel_path = ret_runtime->kernel;
    config->initrd_path = ret_runtime->initrd[0] == '\0' ? NULL : ret_runtime->initrd;
    config->preload_library = ret_runtime->preload[0] == '\0' ? NULL : ret_runtime->preload;
    return 0;
}

void sandbox_runtime_release(struct sandbox *sandbox, const struct runtime *runtime)
{
    if (runtime->name[0] != '\0')
        runtimes_put(sandbox->all->runtimes, runtime->name);
}

// ---- Removing ----

struct search {
    struct sandboxes *all;
    const char *name;
    bool found;
};

static void look_at_machine(void *context, const struct doc *doc)
{
    struct search *search = context;
    JSON_AUTO json_t *body = json_loadb(doc->body, doc->body_bytes, 0, NULL);
    json_t *compat = json_object_get(json_object_get(body, "machine"), "compat");
    const char *name = json_string_value(json_object_get(compat, "runtime"));
    search->found = search->found || (name != NULL && strcmp(name, search->name) == 0);
}

// Asked while nobody can hold another one: a start that has its runtime stands in the list by then.
static bool is_needed(void *context, const char *name)
{
    struct search search = {.all = context, .name = name};
    pthread_mutex_lock(&search.all->lock);
    for (struct sandbox *sandbox = search.all->list; sandbox != NULL; sandbox = sandbox->next)
        search.found =
                search.found || (!sandbox->removed && (sandbox->vm != NULL || sandbox_is_live(sandbox)) &&
                                        strcmp(sandbox->record.runtime, name) == 0);
    pthread_mutex_unlock(&search.all->lock);
    if (!search.found)
        store_doc_list(search.all->store, DOC_MACHINE, look_at_machine, &search);
    return search.found;
}

void sandbox_runtime_collect(struct sandboxes *all)
{
    if (all != NULL && all->runtimes != NULL)
        runtimes_collect(all->runtimes, is_needed, all);
}
