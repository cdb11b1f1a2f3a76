// SPDX-License-Identifier: Apache-2.0
// What runs for one sandbox: the NBD window on its disk, the VMM, its userfaultfd, the connection to its
// agent.
//
// Everything here is named by the sandbox's id: the folder RUNDIR/vm/ID, and "nbd-ID" in the keeper. The
// order matters: the disk is served before the VMM is started or asked anything, since the VMM waits for its
// disk.
#include "blockstore/clock.h"
#include "vmglue/hex.h"
#include "vmglue/sandbox_origin.h"

#include "vmglue/compat.h"
#include "vmglue/keeper.h"
#include "vmglue/sandbox_disks.h"
#include "vmglue/sandbox_steps.h"
#include "vmglue/unix_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    BOOT_TIMEOUT_MS = 180000,
    RESUME_TIMEOUT_MS = 60000,
    ADOPT_TIMEOUT_MS = 30000,
    REACH_TIMEOUT_MS = 5000,
    PAUSE_TIMEOUT_MS = 10000,
    IDENTITY_TIMEOUT_MS = 60000,
    EXIT_TIMEOUT_MS = 1000, // a broken connection is seen before the end of the process is
    DETAIL_TIMEOUT_S = 10,  // from its end to the words about it
    KILL_TIMEOUT_MS = 30000
};

void sandbox_vm_folder(struct sandboxes *all, const char *id, char *ret_path, size_t capacity)
{
    snprintf(ret_path, capacity, "%s/vm/%s", all->config.run_dir, id);
}

static void keeper_name(const char *id, char *ret_name, size_t capacity)
{
    snprintf(ret_name, capacity, "nbd-%s", id);
}

int sandbox_vm_serve(struct sandbox *sandbox, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    char folder[128], io[160], path[192], name[64];
    uid_t uid = 0;
    sandbox_vm_folder(all, sandbox->record.id, folder, sizeof folder);
    keeper_name(sandbox->record.id, name, sizeof name);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return error_set(err, -errno, "the folder %s cannot be made: %s", folder, strerror(errno));
    int r = sandbox_confine_io(sandbox, io, sizeof io, &uid, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof path, "%s/nbd.sock", io);
    r = keeper_get(all->config.run_dir, name, &sandbox->nbd_listen_fd, err);
    if (r == -ENOENT) {
        r = unix_socket_listen(path, SOCK_STREAM | SOCK_NONBLOCK, 0600, &sandbox->nbd_listen_fd, err);
        if (r == 0 && chown(path, uid, (gid_t)-1) < 0)
            r = error_set(err, -errno, "%s cannot be given to its VMM: %s", path, strerror(errno));
        if (r == 0)
            r = keeper_put(all->config.run_dir, name, sandbox->nbd_listen_fd, err);
    }
    if (r < 0)
        return r;
    sandbox_disks_export(sandbox);
    struct nbd_server_config config = {.store = all->store,
            .loop = store_loop(all->store, 0),
            .listen_fd = sandbox->nbd_listen_fd,
            .check_peer = true,
            .peer_uid = uid,
            .resolve = sandbox_disks_resolve,
            .context = sandbox};
    return nbd_server_start(&config, &sandbox->nbd, err);
}

int sandbox_vm_identify(struct sandbox *sandbox, struct error *err)
{
    struct agent_identity identity = {0};
    uint8_t machine_id[16];
    if (getrandom(identity.seed, sizeof identity.seed, 0) != sizeof identity.seed ||
            getrandom(machine_id, sizeof machine_id, 0) != sizeof machine_id ||
            getrandom(identity.mac, sizeof identity.mac, 0) != sizeof identity.mac)
        return error_set(err, -EIO, "no random bytes from the kernel for the guest");
    hex_encode(machine_id, sizeof machine_id, identity.machine_id);
    identity.mac[0] = 0x52; // of one machine, and not a maker's
    identity.mac[1] = 0x54;
    snprintf(identity.hostname, sizeof identity.hostname, "%s", sandbox->record.name);
    int r = agent_after_fork(sandbox->agent, &identity, IDENTITY_TIMEOUT_MS, err);
    if (r < 0)
        error_prefix(
                err, "the guest did not confirm its new identity and random seed, so it was not handed out");
    return r;
}

static int connect_agent(struct sandbox *sandbox, unsigned timeout_ms, struct error *err)
{
    char folder[128], path[160];
    struct agent *agent;
    sandbox_vm_folder(sandbox->all, sandbox->record.id, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/agent.sock", folder);
    int r = agent_connect(path, timeout_ms, &agent, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&sandbox->all->lock);
    sandbox->agent = agent;
    pthread_mutex_unlock(&sandbox->all->lock);
    return 0;
}

static int open_memory(struct sandbox *sandbox, struct error *err)
{
    struct vm_memory memory;
    int r = vm_get_memory(sandbox->vm, &memory, err);
    if (r == 0 && sandbox->dirty == NULL)
        r = dirty_pages_open(
                sandbox->vm->pid, memory.uffd, memory.address, memory.bytes, &sandbox->dirty, err);
    if (r < 0)
        return r;
    sandbox_memory_watch(sandbox, &memory);
    r = volume_open(sandbox->all->store, sandbox->record.memory, &sandbox->memory);
    return r < 0 ? error_set(err, r, "the memory volume cannot be opened: %s", strerror(-r)) : 0;
}

// The paths that a vm_config points to.
struct vm_paths {
    char folder[128], image[160], mapped[32];
};

static void describe(struct sandbox *sandbox, const void *state, size_t state_bytes, struct vm_paths *paths,
        struct vm_config *ret_config)
{
    struct sandboxes *all = sandbox->all;
    sandbox_vm_folder(all, sandbox->record.id, paths->folder, sizeof paths->folder);
    snprintf(paths->mapped, sizeof paths->mapped, "%llu", (unsigned long long)sandbox->record.mapped.value);
    snprintf(paths->image, sizeof paths->image, "%s/mem/%s", all->config.run_dir, paths->mapped);
    *ret_config = (struct vm_config){
            .id = sandbox->record.id,
            .tag = all->tag,
            .run_dir = paths->folder,
            .preload_library = all->preload_path[0] == '\0' ? NULL : all->preload_path,
            .vmm_path = all->config.vmm_path,
            .shape = {.machine = VM_MACHINE_Q35,
                    .cpus = sandbox->record.cpus,
                    .memory_mb = sandbox->record.memory_mb},
            .accel = all->config.accel,
            .probe_cache = all->probe_cache,
            .kernel_path = all->kernel_path,
            .initrd_path = all->initrd_path,
            .memory_image = state == NULL ? NULL : paths->image,
            .memory_id = state == NULL ? NULL : paths->mapped,
            .state = state,
            .state_bytes = state_bytes,
            .timeout_ms = RESUME_TIMEOUT_MS,
            .on_event = sandbox_watch_event,
            .context = sandbox,
    };
    sandbox_disks_describe(sandbox, ret_config);
}

// A state loads without complaint into a machine of another shape; so the records are compared first.
static int check_compat(const struct vm_config *config, const char *saved, struct error *err)
{
    enum vm_accel accel = config->accel;
    char *now = NULL;
    int r = accel == VM_ACCEL_AUTO ? vm_probe_accel(config, &accel, err) : 0;
    if (r == 0)
        r = compat_describe(config, accel == VM_ACCEL_KVM ? "kvm" : "tcg", &now, err);
    if (r == 0)
        r = compat_compare(saved, now, err);
    free(now);
    return r;
}

static int check_compat_of(const struct vm_config *config, const char *saved, bool lost, struct error *err)
{
    int r = check_compat(config, saved, err);
    if (r < 0 && lost)
        error_prefix(err, "the runtime that it was saved with is not in the store any more, and what is "
                          "installed differs");
    return r;
}

int sandbox_vm_check(struct sandbox *sandbox, const struct sandbox_origin *origin, struct error *err)
{
    if (origin->compat == NULL)
        return 0;
    struct sandbox would_be = {.all = sandbox->all, .record = sandbox->record}; // borrows labels and env
    struct vm_paths paths;
    struct vm_config config;
    struct runtime runtime;
    bool lost;
    sandbox_origin_shape(origin, &would_be.record);
    would_be.record.mapped = origin->memory;
    describe(&would_be, origin->state, origin->state_bytes, &paths, &config);
    sandbox_disks_describe_origin(sandbox->all, origin, &config);
    int r = sandbox_runtime_choose(&would_be, origin->compat, &config, &runtime, &lost, err);
    if (r == 0)
        r = check_compat_of(&config, origin->compat, lost, err);
    sandbox_runtime_release(&would_be, &runtime);
    return r;
}

// A guest that did not answer because its VMM has ended (a damaged memory image): how it ended is the reason.
static int explain_end(struct sandbox *sandbox, int result, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    struct pollfd ended = {.fd = sandbox->vm->pid_fd, .events = POLLIN};
    if (poll(&ended, 1, EXIT_TIMEOUT_MS) <= 0)
        return result;
    struct timespec until = clock_deadline(DETAIL_TIMEOUT_S * 1000);
    pthread_mutex_lock(&all->lock);
    while (sandbox->exit_detail[0] == '\0' && pthread_cond_timedwait(&all->changed, &all->lock, &until) == 0)
        ;
    if (sandbox->exit_detail[0] != '\0')
        error_set(err, result, "the guest did not answer: %s", sandbox->exit_detail);
    pthread_mutex_unlock(&all->lock);
    return result;
}

// The VMM and what hangs on it, up to the first answer of the guest.
static int start_vmm(struct sandbox *sandbox, const struct vm_config *config, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    struct vm *vm;
    int r = vm_start(&qemu_driver, config, &vm, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&all->lock);
    sandbox->vm = vm;
    pthread_mutex_unlock(&all->lock);
    sandbox_step(sandbox, STEP_VM_STARTED);
    r = connect_agent(sandbox, config->state == NULL ? BOOT_TIMEOUT_MS : RESUME_TIMEOUT_MS, err);
    if (r == 0)
        r = sandbox_vm_identify(sandbox, err);
    if (r == 0)
        r = open_memory(sandbox, err);
    if (r == 0 && config->state == NULL) // a guest that goes on has them mounted
        r = sandbox_disks_mount(sandbox, err);
    if (r == 0)
        sandbox_step(sandbox, STEP_VM_ANSWERED);
    return r < 0 ? explain_end(sandbox, r, err) : 0;
}

static int start_prepared(struct sandbox *sandbox, struct vm_config *config, struct error *err)
{
    struct sandbox_network *network = NULL;
    struct sandbox_confine *confine = NULL;
    int r = sandbox_memory_admit(sandbox, err);
    if (r == 0)
        r = sandbox_network_prepare(sandbox, config, &network, err);
    if (r == 0)
        r = sandbox_confine_prepare(sandbox, config, &confine, err);
    if (r == 0)
        r = sandbox_working_set_prepare(sandbox, config, err);
    if (r == 0)
        r = start_vmm(sandbox, config, err);
    if (r == 0)
        sandbox_working_set_ready(sandbox);
    sandbox_working_set_release(config);
    sandbox_confine_release(confine);
    sandbox_network_release(network);
    return r;
}

int sandbox_vm_start(
        struct sandbox *sandbox, const void *state, size_t state_bytes, const char *compat, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    struct vm_paths paths;
    struct vm_config config;
    struct runtime runtime;
    bool lost;
    describe(sandbox, state, state_bytes, &paths, &config);
    int r = sandbox_runtime_choose(sandbox, state == NULL ? NULL : compat, &config, &runtime, &lost, err);
    if (r == 0 && state != NULL && compat != NULL)
        r = check_compat_of(&config, compat, lost, err);
    if (r < 0) {
        sandbox_runtime_release(sandbox, &runtime);
        return r;
    }
    pthread_mutex_lock(&all->lock);
    sandbox->vm_generation++;
    sandbox->reset_asked = sandbox->shut_down = false;
    sandbox->exit_detail[0] = sandbox->end_reason[0] = '\0';
    sandbox->io_errors = 0;
    pthread_mutex_unlock(&all->lock);
    sandbox_vm_clean(all, sandbox->record.id); // what an earlier VMM of this sandbox may have left
    r = sandbox_vm_serve(sandbox, err);
    sandbox_step(sandbox, STEP_VM_SERVED);
    if (r == 0)
        r = start_prepared(sandbox, &config, err);
    sandbox_runtime_release(sandbox, &runtime);
    if (r < 0)
        sandbox_vm_end(sandbox);
    return r;
}

// A guest that is to run and was found stopped goes on; its agent is reached.
static int adopt_running(struct sandbox *sandbox, enum vm_status status, struct error *err)
{
    int r = 0;
    if (status == VM_PAUSED || status == VM_IO_ERROR) {
        sandbox_log(sandbox->all, "sandbox %s: found %s; it goes on", sandbox->record.name,
                status == VM_PAUSED ? "paused in the middle of a snapshot" : "stopped by a disk error");
        r = vm_continue(sandbox->vm, err);
    }
    if (r == 0)
        r = connect_agent(sandbox, ADOPT_TIMEOUT_MS, err);
    if (r == 0 && agent_was_frozen(sandbox->agent))
        r = agent_thaw(sandbox->agent, err); // the dead daemon had frozen it for a snapshot
    return r;
}

int sandbox_vm_adopt(struct sandbox *sandbox, struct error *err)
{
    struct sandboxes *all = sandbox->all;
    bool paused = sandbox->record.state == SANDBOX_PAUSED;
    enum vm_status status;
    char folder[128];
    struct vm *vm;
    sandbox_vm_folder(all, sandbox->record.id, folder, sizeof folder);
    pthread_mutex_lock(&all->lock);
    sandbox->vm_generation++; // before its first event can come
    pthread_mutex_unlock(&all->lock);
    int r = vm_adopt(&qemu_driver, folder, sandbox_watch_event, sandbox, &vm, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&all->lock);
    sandbox->vm = vm;
    pthread_mutex_unlock(&all->lock);
    sandbox_network_adopt(sandbox);
    sandbox_memory_admit(sandbox, NULL); // a machine that lives is not refused
    r = vm_get_status(sandbox->vm, &status, err);
    if (r == 0 && !paused)
        r = adopt_running(sandbox, status, err);
    else if (r == 0 && status == VM_RUNNING) // the dead daemon had written it down, but not done it
        r = vm_pause(sandbox->vm, PAUSE_TIMEOUT_MS, err);
    if (r == 0)
        r = open_memory(sandbox, err);
    return r;
}

// Ends calls into the guest and waits until their callers have left.
static void drop_agent(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    struct agent *agent = sandbox->agent;
    sandbox->agent = NULL;
    pthread_mutex_unlock(&all->lock);
    if (agent != NULL)
        agent_break(agent);
    pthread_mutex_lock(&all->lock);
    while (sandbox->agent_users > 0)
        pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
    agent_disconnect(agent);
}

int sandbox_vm_reach(struct sandbox *sandbox, struct error *err)
{
    int r = sandbox->memory == NULL ? open_memory(sandbox, err) : 0; // also for a stop without the agent
    if (sandbox->agent != NULL && agent_is_broken(sandbox->agent))
        drop_agent(sandbox); // it ended by itself; the machine may be well
    return r == 0 && sandbox->agent == NULL ? connect_agent(sandbox, REACH_TIMEOUT_MS, err) : r;
}

static void close_parts(struct sandbox *sandbox)
{
    sandbox_working_set_cancel(sandbox);
    sandbox->dirty = dirty_pages_close(sandbox->dirty);
    sandbox->memory = volume_close(sandbox->memory);
}

static void close_vm(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct vm *vm = sandbox->vm;
    sandbox->vm = NULL;
    pthread_mutex_unlock(&sandbox->all->lock);
    vm_close(vm);
}

static void close_disk(struct sandbox *sandbox)
{
    sandbox->nbd = nbd_server_stop(sandbox->nbd);
    if (sandbox->nbd_listen_fd >= 0)
        close(sandbox->nbd_listen_fd);
    sandbox->nbd_listen_fd = -1;
}

void sandbox_vm_end(struct sandbox *sandbox)
{
    struct error err;
    if (sandbox->vm != NULL && vm_kill(sandbox->vm, KILL_TIMEOUT_MS, &err) < 0)
        sandbox_log(sandbox->all, "sandbox %s: its VMM does not end: %s", sandbox->record.name, err.text);
    drop_agent(sandbox);
    close_parts(sandbox);
    close_vm(sandbox);
    close_disk(sandbox);
    sandbox_console_keep(sandbox);
    sandbox_memory_end(sandbox);
    sandbox_vm_clean(sandbox->all, sandbox->record.id);
}

void sandbox_vm_release(struct sandbox *sandbox)
{
    drop_agent(sandbox);
    close_parts(sandbox);
    close_vm(sandbox);
    close_disk(sandbox);
    sandbox_memory_end(sandbox);
}

void sandbox_vm_clean(struct sandboxes *all, const char *id)
{
    char folder[128], name[64];
    keeper_name(id, name, sizeof name);
    keeper_drop(all->config.run_dir, name, NULL);
    sandbox_network_clean(all, id);
    sandbox_confine_clean(all, id);
    sandbox_vm_folder(all, id, folder, sizeof folder);
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(folder);
}
