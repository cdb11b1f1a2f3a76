// SPDX-License-Identifier: Apache-2.0
// The confinement of a sandbox's VMM, and the runtime that it is started from.
//
// What a VMM is given of its run directory is one folder, RUNDIR/vm/ID/io, with the two sockets that it
// connects to. The folder belongs to the VMM's user: its owner is the record of which user that is, for this
// daemon and the next. The user is derived from the sandbox's id; one that is taken by another folder here is
// passed over.
#include "vmglue/sandbox_internal.h"

#include "vmglue/cgroup_host.h"
#include "vmglue/image_access.h"
#include "vmglue/vm_confine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OVERHEAD_BYTES = 256 << 20, // the VMM itself: translated code, heap, stacks, page tables
    OVERHEAD_PART = 32,         // and this part of guest memory, for what grows with it
    PROCESSES = 128,            // QEMU's own threads, of which up to 64 are its pool's
};
static const char MEMORY_TARGET[] = "/memory", IO_TARGET[] = "/io";

struct confinement {
    struct cgroup_host *cgroups; // NULL = there are none
    struct image_access *access;
    pthread_mutex_t uid_lock; // from looking for a free user to its folder
};

// What a start needs until its VMM runs.
struct sandbox_confine {
    struct vm_confine confine;
    int fds[CGROUP_HOST_FDS];
    unsigned fd_count;
    char nbd_socket[160], uffd_socket[160];
};

// ---- Start and end ----

static void open_cgroups(struct sandboxes *all, struct confinement *confinement)
{
    struct error err;
    if (cgroup_host_open(all->tag, NULL, NULL, &confinement->cgroups, &err) < 0)
        sandbox_log(all, "%s", err.text);
    else if (cgroup_host_missing(confinement->cgroups)[0] != '\0')
        sandbox_log(all, "this host has no control groups for %s: what VMMs use of it is not limited",
                cgroup_host_missing(confinement->cgroups));
}

int sandbox_confine_open(struct sandboxes *all, struct error *err)
{
    if (!all->config.confine || geteuid() != 0) {
        sandbox_log(all, "VMMs are not confined: %s",
                all->config.confine ? "rametd does not run as root"
                                    : "--no-confine was given; it is for debugging alone");
        return 0;
    }
    if (all->config.uid_base == 0)
        all->config.uid_base = SANDBOX_UID_BASE;
    struct confinement *confinement = calloc(1, sizeof *confinement);
    if (confinement == NULL)
        return error_set(err, -ENOMEM, "no memory");
    confinement->access = all->config.service->image_access;
    pthread_mutex_init(&confinement->uid_lock, NULL);
    int r = sandbox_runtime_open(all, err);
    if (r < 0) {
        pthread_mutex_destroy(&confinement->uid_lock);
        free(confinement);
        return r;
    }
    open_cgroups(all, confinement);
    all->confinement = confinement;
    return 0;
}

void sandbox_confine_close(struct sandboxes *all)
{
    struct confinement *confinement = all->confinement;
    if (confinement == NULL)
        return;
    all->runtimes = runtimes_close(all->runtimes);
    confinement->cgroups = cgroup_host_close(confinement->cgroups);
    pthread_mutex_destroy(&confinement->uid_lock);
    free(confinement);
    all->confinement = NULL;
}

// ---- The user and its folder ----

static void io_folder(struct sandboxes *all, const char *id, char *ret_path, size_t capacity)
{
    char folder[128];
    sandbox_vm_folder(all, id, folder, sizeof folder);
    snprintf(ret_path, capacity, "%s/io", folder);
}

static bool is_taken(struct sandboxes *all, uid_t uid)
{
    char path[128];
    bool taken = false;
    snprintf(path, sizeof path, "%s/vm", all->config.run_dir);
    DIR *dir = opendir(path);
    for (struct dirent *entry; !taken && dir != NULL && (entry = readdir(dir)) != NULL;) {
        struct stat stat;
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%s/io", path, entry->d_name);
        taken = lstat(folder, &stat) == 0 && stat.st_uid == uid;
    }
    if (dir != NULL)
        closedir(dir);
    return taken;
}

// From the store's tag and the sandbox's id, so that two daemons on one host hardly ever choose the same.
static uid_t choose_uid(struct sandboxes *all, const char *id)
{
    char text[128];
    uint64_t hash = 14695981039346656037u; // FNV-1a
    snprintf(text, sizeof text, "%s/%s", all->tag, id);
    for (const char *c = text; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    uint32_t slot = (uint32_t)(hash >> 20) % SANDBOX_UID_COUNT;
    while (is_taken(all, all->config.uid_base + slot)) // there are far fewer sandboxes than users
        slot = (slot + 1) % SANDBOX_UID_COUNT;
    return all->config.uid_base + slot;
}

static int make_io_folder(struct sandboxes *all, const char *id, const char *path, struct error *err)
{
    struct confinement *confinement = all->confinement;
    pthread_mutex_lock(&confinement->uid_lock);
    uid_t uid = choose_uid(all, id);
    int r = mkdir(path, 0700) < 0 || chown(path, uid, uid) < 0 ? -errno : 0;
    pthread_mutex_unlock(&confinement->uid_lock);
    return r < 0 ? error_set(err, r, "the folder %s cannot be made: %s", path, strerror(-r)) : 0;
}

int sandbox_confine_io(
        struct sandbox *sandbox, char *ret_folder, size_t capacity, uid_t *ret_uid, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    struct stat stat;
    io_folder(all, sandbox->record.id, ret_folder, capacity);
    if (lstat(ret_folder, &stat) < 0 && all->confinement != NULL) {
        int r = make_io_folder(all, sandbox->record.id, ret_folder, err);
        if (r < 0)
            return r;
    }
    if (lstat(ret_folder, &stat) < 0) { // not confined
        sandbox_vm_folder(all, sandbox->record.id, ret_folder, capacity);
        *ret_uid = geteuid();
        return 0;
    }
    *ret_uid = stat.st_uid;
    return 0;
}

// ---- A start ----

static int make_group(struct sandbox *sandbox, const struct vm_config *config, struct sandbox_confine *made,
        struct error *err)
{
    struct confinement *confinement = sandbox->all->confinement;
    uint64_t memory = (uint64_t)config->shape.memory_mb << 20;
    // Pages of an image are charged to whoever touches them first, and a limit that is reached evicts them
    // for all: so there is room for the whole image beside as much of the guest's own. What a VMM could take
    // for itself is bounded all the same.
    struct cgroup_limits limits = {.memory_bytes = memory * (config->memory_image != NULL ? 2 : 1) +
                                                   memory / OVERHEAD_PART + OVERHEAD_BYTES,
            .processes = PROCESSES + config->shape.cpus,
            .cpus = config->shape.cpus};
    if (confinement->cgroups == NULL)
        return 0;
    int r = cgroup_host_make(
            confinement->cgroups, sandbox->record.id, &limits, made->fds, &made->fd_count, err);
    for (unsigned i = 0; r == 0 && i < made->fd_count; i++)
        made->confine.cgroup_fds[made->confine.cgroup_count++] = made->fds[i];
    return r;
}

// The image is one file of the VMM's root; its neighbours are not there.
static int give_image(struct sandbox *sandbox, const struct vm_config *config, struct sandbox_confine *made,
        struct error *err)
{
    struct confinement *confinement = sandbox->all->confinement;
    if (config->memory_image == NULL)
        return 0;
    if (image_access_allow(confinement->access, made->confine.uid, sandbox->record.mapped) < 0)
        return error_set(err, -ENOMEM, "no memory");
    return vm_confine_add(&made->confine, config->memory_image, MEMORY_TARGET, false, err);
}

int sandbox_confine_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_confine **ret_confine, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    char io[160], scratch[160];
    uid_t uid;
    *ret_confine = NULL;
    if (all->confinement == NULL)
        return 0;
    int r = sandbox_confine_io(sandbox, io, sizeof io, &uid, err);
    if (r < 0)
        return r;
    struct sandbox_confine *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(err, -ENOMEM, "no memory");
    sandbox_vm_folder(all, sandbox->record.id, scratch, sizeof scratch);
    r = vm_confine_make(&made->confine, config->runtime_root, scratch, uid, err);
    if (r == 0)
        r = vm_confine_add(&made->confine, io, IO_TARGET, true, err);
    if (r == 0)
        r = give_image(sandbox, config, made, err);
    if (r == 0)
        r = make_group(sandbox, config, made, err);
    if (r < 0) {
        sandbox_confine_release(made);
        return r;
    }
    made->confine.kvm = config->accel == VM_ACCEL_KVM;
    snprintf(made->nbd_socket, sizeof made->nbd_socket, "%.140s/nbd.sock", io);
    snprintf(made->uffd_socket, sizeof made->uffd_socket, "%.140s/uffd.sock", io);
    config->nbd_socket = made->nbd_socket;
    config->uffd_socket = made->uffd_socket;
    config->confine = &made->confine;
    *ret_confine = made;
    return 0;
}

void sandbox_confine_release(struct sandbox_confine *confine)
{
    if (confine == NULL)
        return;
    for (unsigned i = 0; i < confine->fd_count; i++)
        close(confine->fds[i]);
    free(confine);
}

// ---- What an ended VMM leaves ----

// Whoever made it: a daemon that confines nobody may come after one that did.
static void remove_io_folder(struct sandboxes *all, const char *id)
{
    static const char *const names[] = {"nbd.sock", "uffd.sock"};
    char folder[160], path[192];
    struct stat stat;
    io_folder(all, id, folder, sizeof folder);
    if (lstat(folder, &stat) < 0)
        return;
    if (all->confinement != NULL)
        image_access_forget(all->confinement->access, stat.st_uid);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    if (rmdir(folder) < 0)
        sandbox_log(all, "the folder %s cannot be removed: %s", folder, strerror(errno));
}

void sandbox_confine_clean(struct sandboxes *all, const char *id)
{
    int r = all->confinement == NULL || all->confinement->cgroups == NULL
                    ? 0
                    : cgroup_host_remove(all->confinement->cgroups, id);
    if (r < 0)
        sandbox_log(all, "the control group of %s cannot be removed: %s", id, strerror(-r));
    remove_io_folder(all, id);
}

void sandbox_confine_explain(struct sandbox *sandbox, const char *detail, char *ret_words, size_t capacity)
{
    const struct confinement *confinement = sandbox->all->confinement;
    bool ended = confinement != NULL && confinement->cgroups != NULL &&
                 cgroup_host_oom_kills(confinement->cgroups, sandbox->record.id) > 0;
    snprintf(ret_words, capacity, "%s%s", ended ? "it had used up the memory of its control group: " : "",
            detail);
}

struct stray_groups {
    struct sandboxes *all;
    bool (*wanted)(struct sandboxes *all, const char *id);
};

static void clean_stray(void *context, const char *id)
{
    struct stray_groups *search = context;
    if (strncmp(id, "sbx_", 4) == 0 && !search->wanted(search->all, id))
        cgroup_host_remove(search->all->confinement->cgroups, id);
}

void sandbox_confine_clean_strays(
        struct sandboxes *all, bool (*wanted)(struct sandboxes *all, const char *id))
{
    struct stray_groups search = {all, wanted};
    if (all->confinement != NULL && all->confinement->cgroups != NULL)
        cgroup_host_each(all->confinement->cgroups, clean_stray, &search);
}
