// SPDX-License-Identifier: Apache-2.0
// Sandboxes: a virtual machine with its volumes, its agent and a name, from create to rm.
//
// What a sandbox is stands in the store as a DOC_SANDBOX doc; every step is written there before it is taken,
// so that the next daemon can finish or undo it. What runs for it (a VMM process, RUNDIR/vm/<id> with its
// sockets, two descriptors in the keeper) is named by its id and found again by it.
// - creating: never handed out yet; a restart removes it
// - starting: a restart puts it back to stopped
// - running: a restart adopts the VMM (it shows as "stopping" while it is being stopped)
// - paused: its vCPUs stand still in place; a restart adopts it and leaves it so
// - stopped: with its memory ("machine" set), or with its disk alone
// - failed: the VMM ended by itself, reason says why; start boots it from its disk
// - removing: a restart completes it
//
// Threads: any that is not a loop; calls wait. One change of a sandbox at a time: others wait for it.
// Names in calls are a sandbox's name or id. Errors: -ENOENT, -EBUSY (wrong state, with what to do), -EEXIST,
// -EINVAL, -ETIMEDOUT, -EPIPE (the guest is gone), -ENOSPC.
#pragma once

#include "vmglue/agent_client.h"
#include "vmglue/capture.h"
#include "vmglue/sandbox_memory.h"
#include "vmglue/json.h"
#include "vmglue/made_by.h"
#include "vmglue/service.h"

struct sandboxes;
struct sandbox;

struct sandbox_config {
    struct service *service;
    const char *run_dir; // absolute, at most SANDBOX_RUN_DIR_MAX bytes: sockets below it must fit into 107
    const char *libexec_dir; // has libramet-preload.so
    const char *kernel_dir;  // has vmlinux and initramfs-q35.cpio
    const char *vmm_path;    // NULL = qemu-system-x86_64
    const char *store_dir;   // runtimes are kept in it
    bool confine;            // VMMs, when the daemon is root
    uid_t uid_base;          // users of confined VMMs: this one and the next SANDBOX_UID_COUNT; 0 = default
    enum vm_accel accel;
    struct sandbox_memory_config memory;
    uint64_t keep_stopped_ms;  // stopped and failed ones that are not persistent are removed then; 0 = never
    bool working_sets;         // record and prefetch them
    unsigned pool;             // parked machines to keep for each snapshot that is used (sandbox_pool.h)
    const char *network_range; // addresses of sandboxes' networks; NULL = 10.201.0.0/16
    const char *resolver;      // asked by guests' look-ups; NULL = as in /etc/resolv.conf
    bool private_networks;     // a network "full" reaches private addresses
    void (*log)(void *context, const char *message);
    void *context;
};
enum { SANDBOX_RUN_DIR_MAX = 64, SANDBOX_FORKS_MAX = 64 };
// Above what systemd gives to containers and below 2^31: nobody else's, unless an administrator says so.
enum { SANDBOX_UID_BASE = 2000000000, SANDBOX_UID_COUNT = 1 << 26 };

// Serves the disks of every recorded sandbox, adopts those that run, undoes half-made ones, ends strays.
int sandbox_start_all(const struct sandbox_config *config, struct sandboxes **ret_all, struct error *err);
// Refuses new work, waits for changes under way, ends calls into guests (they fail with -EPIPE). Guests run
// on.
void sandbox_quiesce_all(struct sandboxes *all);
// Lets go of every VMM; guests run on and wait for the next daemon with their I/O. Accepts NULL. *ret_running
// (may be NULL) is how many run on.
struct sandboxes *sandbox_stop_all(struct sandboxes *all, unsigned *ret_running);

// Removes the runtimes that no machine snapshot names and no VMM runs from. For after deletions. all may be
// NULL.
void sandbox_runtime_collect(struct sandboxes *all);

// What a sandbox is made from when nothing is named.
#define SANDBOX_DEFAULT_SOURCE "agent-base"
struct sandbox_create {
    const char *name;           // NULL = one is made
    const char *from;           // volume, disk snapshot or machine snapshot
    struct volume_id disk;      // not 0: boots this volume, which needs no name; `from` is only shown
    unsigned cpus, memory_mb;   // 0 = the default, or the snapshot's
    bool size_is_wish;          // a machine snapshot of another size goes on with its own; the answer says so
    uint64_t disk_bytes;        // 0 = as large as what it comes from
    const json_t *network;      // a policy (network_policy.h); NULL = the snapshot's, or "full"
    const json_t *labels, *env; // objects of strings or NULL
    bool no_environment;        // without the server's (environment.h)
    uint64_t ttl_ms, idle_ms;   // 0 = none
    bool persistent;
    bool delete_on_timeout;                  // ttl and idle remove it; false = they stop it with its memory
    bool auto_start;                         // sandbox_wake starts it
    const struct sandbox_create_disk *disks; // beside the root disk
    unsigned disk_count;
    struct made_by by;
};
struct sandbox_create_disk {
    const char *volume;  // a volume or disk snapshot of which it becomes a fork; NULL = empty
    uint64_t size_bytes; // of an empty one
    bool read_only;
    const char *mount; // NULL = nowhere
};
enum { SANDBOX_LIFE_MAX_SECS = 100 * 366 * 86400u };
// The answers of these are the API's Sandbox objects, new references.
int sandbox_create(
        struct sandboxes *all, const struct sandbox_create *create, json_t **ret_json, struct error *err);
int sandbox_show(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err);
json_t *sandbox_list_made_by(struct sandboxes *all, const char *request); // made_by.request
// Who made it, and its id; an error as in sandbox_show.
enum { SANDBOX_ID_SIZE = 24 };
int sandbox_made_by(struct sandboxes *all, const char *name, struct made_by *ret_by,
        char ret_id[SANDBOX_ID_SIZE], struct error *err);
// state: NULL = any. label: NULL or "key=value". owner: NULL or a key's id.
json_t *sandbox_list(struct sandboxes *all, const char *state, const char *label, const char *owner);
// What is NULL or false in it stays as it is.
struct sandbox_change {
    const char *name;
    const json_t *labels, *env; // replace what is there
    const json_t *network;      // a policy (network_policy.h)
    bool set_ttl, set_idle, set_persistent, set_on_timeout, set_auto_start;
    uint64_t ttl_ms, idle_ms; // 0 = none; ttl counts from this change
    bool persistent, delete_on_timeout, auto_start;
};
int sandbox_change(struct sandboxes *all, const char *name, const struct sandbox_change *change,
        json_t **ret_json, struct error *err);
// vCPUs stop in place, at an instant when user processes are frozen; exec and others answer -EBUSY until
// resume.
int sandbox_pause(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err);
int sandbox_resume_paused(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err);
// Disks and memory become the snapshot's; name, id, labels and policies stay. One that runs or is paused runs
// afterwards, one that is stopped stays so. A failure leaves it as it was.
int sandbox_restore(
        struct sandboxes *all, const char *name, const char *snapshot, json_t **ret_json, struct error *err);
struct sandbox_promote {
    bool keep_siblings;
    const char *tree; // must be the sandbox's; NULL = it is
    const char *name; // what it is called afterwards; its parent's name: the two swap. NULL = as before
};
// {"winner":Sandbox,"tree_id","deleted":[...],"failures":{id:sentence}}
int sandbox_promote(struct sandboxes *all, const char *name, const struct sandbox_promote *promote,
        json_t **ret_json, struct error *err);
// memory true: the machine goes on where it was at the next start. false: the file systems are synced and
// frozen first; when the guest does not confirm, nothing is done unless force is set.
int sandbox_stop(struct sandboxes *all, const char *name, bool memory, bool force, json_t **ret_json,
        struct error *err);
// cold: forget the memory and boot from the disk.
int sandbox_start(struct sandboxes *all, const char *name, bool cold, json_t **ret_json, struct error *err);
// For a call into it: one that is stopped and has auto_start (any is true: whether or not) is started. 0 also
// when there is nothing to do, or no such sandbox.
int sandbox_wake(struct sandboxes *all, const char *name, bool any, struct error *err);
int sandbox_remove(struct sandboxes *all, const char *name, struct error *err);

struct sandbox_snapshot {
    const char *name; // NULL = one is made
    const json_t *labels;
    bool wait;         // answer only when it is ready
    bool best_effort;  // go on when the guest does not freeze
    struct made_by by; // the owner is the sandbox's
};
int sandbox_snapshot(struct sandboxes *all, const char *name, const struct sandbox_snapshot *snapshot,
        json_t **ret_json, struct error *err);

struct sandbox_fork {
    unsigned count;
    const char *names[SANDBOX_FORKS_MAX]; // NULL = made from the source's name
    const json_t *labels, *env;
    const char *snapshot; // keep what they were forked from under this name; NULL = do not
    bool best_effort;
    struct made_by by; // the owner is the source's
};
// {"tree_id","parent","snapshot","children":[...]}: all children run, or none is left.
int sandbox_fork(struct sandboxes *all, const char *name, const struct sandbox_fork *fork, json_t **ret_json,
        struct error *err);

// The agent of a running sandbox, for exec and files; it stays until sandbox_agent_done, and its sandbox's
// end waits for that: handlers of HTTP calls, which wait for clients, take it by route_agent_use. env: what
// its commands get, of its template, the server and its own; defaults: its template's user, cwd and command
// (new references, may be NULL).
struct sandbox_agent {
    struct sandbox *sandbox;
    struct agent *agent;
    json_t *env, *defaults;
    uint64_t over_ns; // when sandbox_agent_is_over first saw it, 0 = not yet
};
int sandbox_agent_use(
        struct sandboxes *all, const char *name, struct sandbox_agent *ret_use, struct error *err);
void sandbox_agent_done(struct sandbox_agent *use);
// A call into the guest failed: when that is because the sandbox was stopped, paused, removed or the daemon
// ends, the error becomes that (-ESHUTDOWN). To be called before sandbox_agent_done.
void sandbox_agent_failed(const struct sandbox_agent *use, struct error *err);
// For who passes the guest's bytes on at somebody's pace, to be asked now and then: the connection to the
// agent has been over for some seconds, and the sandbox, which may be ending, waits for this use.
bool sandbox_agent_is_over(struct sandbox_agent *use);

// The last bytes that the guest wrote to its console, at most `limit`; also of one that has ended under this
// daemon. *ret_text is malloc'ed and zero-terminated.
int sandbox_console(struct sandboxes *all, const char *name, size_t limit, char **ret_text, size_t *ret_size,
        struct error *err);
// What it wrote since: begins with a cursor of zeros, at the first byte that is kept. 0: nothing new.
struct sandbox_console_cursor {
    uint64_t inode, offset;
};
ssize_t sandbox_console_next(struct sandboxes *all, const char *name, struct sandbox_console_cursor *cursor,
        char *text, size_t capacity, struct error *err);
struct sandbox_events *sandbox_events_of(struct sandboxes *all);

// A thread that outlives the call that started it, and that nobody joins; sandbox_stop_all waits for its end.
// -errno.
int sandbox_worker_start(struct sandboxes *all, void *(*run)(void *context), void *context);
void sandbox_worker_end(struct sandboxes *all); // the last thing that it does with `all`
