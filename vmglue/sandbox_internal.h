// SPDX-License-Identifier: Apache-2.0
// Shared by the files sandbox*.c, not for anybody else.
//
// Locks, by rank: sandboxes.lock, then nothing: it guards the table and every field marked (lock) and is
// never held over anything that waits. Fields marked (op) belong to the thread that holds the sandbox's
// operation, between sandbox_begin and sandbox_finish.
#pragma once

#include "vmglue/dirty_pages.h"
#include "vmglue/made_by.h"
#include "vmglue/nbd_server.h"
#include "vmglue/runtime.h"
#include "snapshot/txn.h"
#include "vmglue/sandbox.h"
#include "vmglue/sandbox_events.h"
#include "vmglue/sandbox_moment.h"

#include <pthread.h>

enum sandbox_state {
    SANDBOX_CREATING,
    SANDBOX_STARTING,
    SANDBOX_RUNNING,
    SANDBOX_PAUSED, // vCPUs stopped in place
    SANDBOX_STOPPED,
    SANDBOX_FAILED,
    SANDBOX_REMOVING,
    SANDBOX_PARKED, // of the pool: resumed, frozen, its vCPUs stopped; nobody's yet
};
enum { SANDBOX_TREE_SIZE = 32, SANDBOX_MOUNT_MAX = 120 };
#define SANDBOX_BEING_STOPPED "being stopped"

// A disk beside the root disk.
struct sandbox_disk {
    struct volume_id volume;
    bool read_only;
    char mount[SANDBOX_MOUNT_MAX + 1]; // where the guest shows it; "" = nowhere
    char from[64];                     // the volume that it is a fork of; "" = it began empty
};

// What the doc holds.
struct sandbox_record {
    char id[SANDBOX_ID_SIZE], name[NAMES_MAX + 1];
    enum sandbox_state state;
    char reason[256]; // why it failed or stopped by itself
    char from[64], start_mode[16];
    unsigned cpus, memory_mb;
    json_t *network; // owned: "full", "none" or {"allow": [...]} (network_policy.h)
    uint64_t created_wall_ns, ready_ms;
    json_t *labels, *env;        // owned, objects or NULL
    json_t *defaults;            // of its template, owned, object or NULL: user, cwd, command, env
    json_t *urls;                // of exposed ports (sandbox_urls.c), owned, array or NULL
    uint64_t ttl_ms, idle_ms;    // 0 = none
    bool no_environment;         // its commands do not get the server's
    bool persistent;             // not removed when it was stopped for long
    bool delete_on_timeout;      // ttl and idle remove it instead of stopping it
    bool auto_start;             // a call into it starts it
    bool pause_frozen;           // user processes were frozen before it was paused
    struct sandbox_moment since; // running: ttl counts from here. stopped, failed: retention does
    char tree[SANDBOX_TREE_SIZE], parent_id[SANDBOX_ID_SIZE]; // of a fork; "" = none
    struct made_by by;
    struct doc_id doc;
    struct volume_id disk, memory;
    struct sandbox_disk more[VM_DISKS_MAX - 1]; // further disks, in the guest's order
    unsigned more_count;
    struct base_id mapped;           // memory base that the VMM maps; 0 = booted cold
    struct base_id origin;           // what that one is mapped over (memory_map.h); 0 = nothing
    struct doc_id machine;           // what it resumes from when stopped with memory; 0 = boots from its disk
    char runtime[RUNTIME_NAME_SIZE]; // that its VMM runs from; "" = what is installed
};

struct sandbox_origin;

struct sandbox {
    struct sandboxes *all;
    struct sandbox *next; // (lock)
    struct sandbox_record
            record;          // written by the op's thread with the lock held; the op's thread reads without
    const char *op;          // (lock) what is being done to it, NULL = nothing
    bool removed;            // (lock)
    unsigned references;     // (lock) threads that hold the pointer
    unsigned agent_users;    // (lock)
    unsigned own_questions;  // (lock) of those, the daemon's own: nobody works with it for that
    uint64_t commands_total; // (lock) begun in it under this daemon
    struct agent *agent;     // (lock to read, op to change)
    uint64_t active_ns;      // (lock) when the last call into the guest or change ended, CLOCK_BOOTTIME
    bool expiring;           // (lock) a thread is about to act on a deadline
    uint64_t retry_ns;       // (lock) not before, after one that failed; CLOCK_BOOTTIME
    char end_reason[160];    // (lock)
    char *console;           // (lock) the end of what an ended VMM's guest had said; malloc'ed or NULL
    // (op) what runs for it:
    struct vm *vm;
    unsigned vm_generation;      // (lock) events of earlier VMMs are ignored
    bool reset_asked, shut_down; // (lock) by the guest
    char exit_detail[256];       // (lock) how the VMM ended; empty while it runs
    unsigned io_errors;     // (lock) failed disk requests since one worker looks after them; 0 = none does
    struct doc_id snapshot; // the machine snapshot that it is resumed from and that stays; 0 = none
    struct working_set_job *job; // prefetching, or NULL
    struct dirty_pages *dirty;
    bool memory_admitted;       // (lock) it has a place in the memory budget
    uint64_t own_bytes;         // (lock) guest memory of its own, as last read
    struct memory_probe *probe; // (lock) reads what it uses
    int nbd_listen_fd;          // -1 = none
    struct nbd_server *nbd;
    struct nbd_export disk_exports[VM_DISKS_MAX];
    struct volume *memory;
};

struct sandboxes {
    struct sandbox_config config;
    struct store *store;
    char tag[64];
    char kernel_path[256], initrd_path[256], preload_path[256], probe_cache[256];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct working_set_recorder *recorder;
    struct sandbox_pool *pool;                                    // NULL = there is none
    struct sandbox *list;                                         // (lock)
    unsigned workers;                                             // (lock) sandbox_worker.c
    bool quiesced;                                                // (lock)
    bool memory_short;                                            // (lock) the host is
    uint64_t host_available_bytes, low_bytes, stopped_for_memory; // (lock)
    struct sandbox_events *events;
    struct network *network;
    pthread_mutex_t promote_lock; // before any sandbox's op; one promotion at a time
    pthread_t deadline_thread;
    bool deadline_runs;
    struct confinement *confinement; // NULL = VMMs are not confined
    struct runtimes *runtimes;       // with it
};

// Nobody is told of it: it is the pool's.
static inline bool sandbox_is_hidden(const struct sandbox *sandbox)
{
    return sandbox->record.state == SANDBOX_PARKED || sandbox->record.name[0] == '\0';
}

// A VMM runs for it.
static inline bool sandbox_is_live(const struct sandbox *sandbox)
{
    return sandbox->record.state == SANDBOX_RUNNING || sandbox->record.state == SANDBOX_PAUSED;
}

__attribute__((format(printf, 2, 3))) void sandbox_log(struct sandboxes *all, const char *format, ...);
const char *sandbox_state_name(enum sandbox_state state);

// ---- sandbox.c: the table ----
// Why calls into the guest are about to end: what sandbox_agent_failed tells them.
void sandbox_set_end(struct sandbox *sandbox, const char *reason);
struct sandbox *sandbox_new(
        struct sandboxes *all, const struct sandbox_record *record); // takes labels and env over; in op
// By name or id; NULL: there is none.
struct sandbox *sandbox_find_locked(struct sandboxes *all, const char *name);
int sandbox_not_found(const char *name, struct error *err); // -ENOENT with the sentence for it
// Finds and takes the operation; `op` is for others' errors ("being stopped"). Waits for another one to end.
int sandbox_begin(struct sandboxes *all, const char *name, const char *op, struct sandbox **ret_sandbox,
        struct error *err);
void sandbox_finish(struct sandbox *sandbox);        // ends the operation; frees it when it was removed
void sandbox_finish_unused(struct sandbox *sandbox); // the same after one that nobody asked for
void sandbox_free(struct sandbox *sandbox);          // out of the list already
void sandbox_put(struct sandbox *sandbox);           // lets go of a pointer taken with the lock held
json_t *sandbox_json(struct sandbox *sandbox);       // takes the lock
void sandbox_new_id(char ret_id[SANDBOX_ID_SIZE]);

// ---- sandbox_record.c: the doc ----
// Puts the record into a transaction; the doc's id is stored in record->doc when it is new.
int sandbox_record_put(struct txn *txn, struct sandbox_record *record, struct error *err);
// A new state, and the moment of it where something counts from there.
void sandbox_record_enter(struct sandbox_record *record, enum sandbox_state state);
void sandbox_record_delete_volumes(struct txn *txn, const struct sandbox_record *record);
// The end of a change that put `record` with result: commits txn (or aborts it when result says failure),
// makes the record the sandbox's, and frees it either way.
int sandbox_record_end(struct sandbox *sandbox, struct txn *txn, struct sandbox_record *record, int result,
        unsigned flags, struct error *err);
// Commits the record alone with a new state, and makes it the sandbox's.
int sandbox_record_commit(
        struct sandbox *sandbox, const struct sandbox_record *record, unsigned flags, struct error *err);
// The memory starts empty again (a boot): a new memory volume in place of the old one, no machine state,
// `state`.
int sandbox_record_forget_memory(struct sandbox *sandbox, enum sandbox_state state, struct error *err);
int sandbox_record_parse(const struct doc *doc, struct sandbox_record *ret_record, struct error *err);
void sandbox_record_free(struct sandbox_record *record);
// A copy with references of its own.
struct sandbox_record sandbox_record_copy(const struct sandbox_record *record);
void sandbox_record_set(
        struct sandbox *sandbox, const struct sandbox_record *record); // takes the lock; copies

// ---- sandbox_vm.c: what runs. All (op) ----
// Boots from the disk (state NULL), or resumes from record.mapped. On success the guest has answered and has
// its identity.
int sandbox_vm_start(struct sandbox *sandbox, const void *state, size_t state_bytes, const char *compat,
        struct error *err);
// Whether what the origin holds can run here, before anything is touched: compat.h.
int sandbox_vm_check(struct sandbox *sandbox, const struct sandbox_origin *origin, struct error *err);
// Fresh seed, identity and clock, then user processes run: the after-fork step.
int sandbox_vm_identify(struct sandbox *sandbox, struct error *err);
int sandbox_vm_adopt(struct sandbox *sandbox, struct error *err); // -ESRCH: the VMM is gone
int sandbox_vm_serve(
        struct sandbox *sandbox, struct error *err); // NBD, from the keeper's socket when there is one
void sandbox_vm_end(
        struct sandbox *sandbox); // kills the VMM and takes everything down; any part may be missing
// A running sandbox whose agent was not reached (at adoption) gets another try.
int sandbox_vm_reach(struct sandbox *sandbox, struct error *err);
void sandbox_vm_release(struct sandbox *sandbox); // lets go, the VMM runs on
void sandbox_vm_clean(
        struct sandboxes *all, const char *id); // folder and keeper's descriptors of one that does not run
void sandbox_vm_folder(struct sandboxes *all, const char *id, char *ret_path, size_t capacity);

// ---- sandbox_life.c. All (op) ----
void sandbox_discard(struct sandbox *sandbox); // ends and deletes one that was never handed out
int sandbox_set_running(
        struct sandbox *sandbox, uint64_t started_ns, const char *mode, unsigned flags, struct error *err);
void sandbox_set_state(
        struct sandbox *sandbox, enum sandbox_state state, const char *reason); // logs a failure
int sandbox_check_running(struct sandbox *sandbox, struct error *err);
// -EBUSY: what it is, what it must be, and the command that changes that (NULL = none does).
int sandbox_wrong_state(struct sandbox *sandbox, const char *wanted, const char *remedy, struct error *err);
int sandbox_remove_begun(struct sandbox *sandbox, struct error *err);
// A stopped one with memory goes on; on failure it is stopped as before.
int sandbox_resume(struct sandbox *sandbox, uint64_t started_ns, struct error *err);
// Fresh volumes over the origin's bases, state "starting"; the old volumes go. record.machine stays what a
// start that fails goes back to.
int sandbox_resume_begin(struct sandbox *sandbox, const struct sandbox_origin *origin, struct error *err);
// Running, and record.machine is used up: both in one record.
int sandbox_resume_end(struct sandbox *sandbox, uint64_t started_ns, const char *mode, struct error *err);

// ---- sandbox_stop.c ----
struct sandbox_stop_how {
    bool memory, force;
    const char *reason; // shown afterwards; "" = somebody asked for it
};
int sandbox_stop_begun(struct sandbox *sandbox, const struct sandbox_stop_how *how, struct error *err);
// Memory and disks are kept as record.machine and the record says stopped; the VMM still is there, stopped.
int sandbox_stop_keep(struct sandbox *sandbox, const struct sandbox_stop_how *how, struct error *err);

// ---- sandbox_tell.c: events and the console ----
// An event of the sandbox; data (may be NULL) is stolen.
void sandbox_tell(struct sandbox *sandbox, const char *type, json_t *data);
// What changed from one record to the next, as events.
void sandbox_tell_change(
        struct sandbox *sandbox, const struct sandbox_record *before, const struct sandbox_record *after);
// The guest's kernel said so at the end of its console; what it said. A guest that lies harms itself alone.
bool sandbox_console_panicked(struct sandbox *sandbox, char *ret_line, size_t size);
void sandbox_console_keep(struct sandbox *sandbox); // before the folder goes

// ---- sandbox_deadline.c: ttl, idle, retention ----
int sandbox_deadline_start(struct sandboxes *all, struct error *err);
void sandbox_deadline_stop(struct sandboxes *all); // after quiesce
// ttl_secs, idle_secs, persistent, expires_at. Lock held.
void sandbox_deadline_describe(const struct sandbox *sandbox, json_t *json);

// ---- what a VMM is given before it is started, each in a file of its own. All (op) ----
// prepare: fills its part of the VMM's configuration with what stays valid until the matching release, which
// is called once the VMM is started or failed to. clean: takes away what an ended VMM of that id leaves;
// without any state in memory, so that it does for strays too.
struct sandbox_network; // sandbox_network.c
// The policy of a new sandbox: what was asked for, else what it goes on with (NULL = nothing), else the
// default. When the host cannot give what nobody asked for, it is "none" and *ret_notice says why ("" =
// nothing to say). *ret_policy is a new reference.
int sandbox_network_choose(struct sandboxes *all, const json_t *asked, const json_t *inherited,
        json_t **ret_policy, char *ret_notice, size_t notice_size, struct error *err);
int sandbox_network_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_network **ret_network, struct error *err);
void sandbox_network_release(struct sandbox_network *network); // accepts NULL
void sandbox_network_clean(struct sandboxes *all, const char *id);
int sandbox_network_open(struct sandboxes *all, struct error *err); // before anything is adopted
void sandbox_network_sweep(struct sandboxes *all);                  // once everything is
// The network of a VMM that an earlier daemon started. A failure is logged: the machine runs on.
void sandbox_network_adopt(struct sandbox *sandbox);
// Makes a running machine's network what its record says.
int sandbox_network_apply(struct sandbox *sandbox, struct error *err);
// The same with what the record is to say: to be called before it is written, so that what this host cannot
// give changes nothing of it. On failure the network is as the record says. A daemon that dies in between
// leaves a record by which the next one makes the rules.
int sandbox_network_lead(struct sandbox *sandbox, const json_t *network, struct error *err);
void sandbox_network_back(struct sandbox *sandbox); // the record was not written; a failure is logged
struct sandbox_confine;                             // sandbox_confine.c
int sandbox_confine_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_confine **ret_confine, struct error *err);
void sandbox_confine_release(struct sandbox_confine *confine); // accepts NULL
void sandbox_confine_clean(struct sandboxes *all, const char *id);
int sandbox_confine_open(struct sandboxes *all, struct error *err); // of all; before any sandbox is touched
void sandbox_confine_close(struct sandboxes *all);
// The folder for the sockets that the VMM connects to, and the user that may: made when missing. The run
// directory and the daemon's own user when the VMM is not confined.
int sandbox_confine_io(
        struct sandbox *sandbox, char *ret_folder, size_t capacity, uid_t *ret_uid, struct error *err);
// Adds to the words on how a VMM ended that the kernel ended it for its control group's limit.
void sandbox_confine_explain(struct sandbox *sandbox, const char *detail, char *ret_words, size_t capacity);
// Control groups that belong to no sandbox.
void sandbox_confine_clean_strays(
        struct sandboxes *all, bool (*wanted)(struct sandboxes *all, const char *id));

// ---- sandbox_runtime.c: what it is started from ----
int sandbox_runtime_open(struct sandboxes *all, struct error *err);
// Fills the configuration's paths, and the record's `runtime`; does nothing when VMMs are not confined.
// compat: of the machine that is to go on; NULL = it boots. The runtime stays until release; paths point into
// it. *ret_lost: the one it needs is gone, and this is what is installed.
int sandbox_runtime_choose(struct sandbox *sandbox, const char *compat, struct vm_config *config,
        struct runtime *ret_runtime, bool *ret_lost, struct error *err);
void sandbox_runtime_release(struct sandbox *sandbox, const struct runtime *runtime);

// ---- sandbox_working_set.c: what a resume touches, and what its memory shares. All (op) but the first two
// ----
int sandbox_working_set_start(struct sandboxes *all, struct error *err); // the recorder
void sandbox_working_set_stop(struct sandboxes *all);                    // accepts one that was not started
// Before a resume: begins to bring the snapshot's working set into the page cache, and fills in what of the
// machine's memory is mapped from its origin. Descriptors in *config are the caller's to release.
int sandbox_working_set_prepare(struct sandbox *sandbox, struct vm_config *config, struct error *err);
void sandbox_working_set_release(struct vm_config *config);
void sandbox_working_set_ready(
        struct sandbox *sandbox); // it has answered: the first of a snapshot is recorded
void sandbox_working_set_cancel(struct sandbox *sandbox); // the VMM ends, or the daemon

// ---- sandbox_memory.c: the host's memory ----
// Whether `count` more machines of that size may run; -ENOMEM with words when not. Takes nothing: to refuse
// before work is done in vain.
int sandbox_memory_check(struct sandboxes *all, unsigned count, unsigned memory_mb, struct error *err);
// (op) The same for this one, and takes its place in the budget until sandbox_memory_end.
int sandbox_memory_admit(struct sandbox *sandbox, struct error *err);
void sandbox_memory_watch(struct sandbox *sandbox, const struct vm_memory *memory); // (op) its VMM runs
void sandbox_memory_end(struct sandbox *sandbox);                                   // (op) its VMM has ended
// "memory" of one that runs, added to its JSON. Any thread that holds a reference, without the lock.
void sandbox_memory_describe(struct sandbox *sandbox, json_t *json);
struct memory_usage;
// Reads what all use; *ret_unknown is how many could not be read yet.
void sandbox_memory_measure(struct sandboxes *all, struct memory_usage *ret_sum, unsigned *ret_unknown);
// ---- sandbox_worker.c: threads that nobody joins; sandbox_stop_all waits until they have ended ----
int sandbox_worker_start_locked(struct sandboxes *all, void *(*run)(void *context), void *context);
// That long, or until the daemon ends: false then.
bool sandbox_worker_wait(struct sandboxes *all, uint64_t wait_ms);
// Until something changed (0) or a moment of clock_monotonic_ns (-ETIMEDOUT).
int sandbox_wait_changed_locked(struct sandboxes *all, uint64_t until_ns);

// ---- sandbox_shortage.c ----
int sandbox_memory_start(struct sandboxes *all, struct error *err); // one of all->workers; ends when quiesced

// ---- sandbox_clock.c: keeps guests' clocks right. One of all->workers; ends when quiesced ----
int sandbox_clock_start(struct sandboxes *all, struct error *err);

// ---- sandbox_watch.c: events of VMMs ----
void sandbox_watch_event(void *context, enum vm_event_kind kind, const char *detail); // vm_event_callback
