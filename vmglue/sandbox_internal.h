// SPDX-License-Identifier: Apache-2.0
// Shared by the files sandbox*.c, not for anybody else.
//
// Locks, by rank: sandboxes.lock, then nothing: it guards the table and every field marked (lock) and is
// never held over anything that waits. Fields marked (op) belong to the thread that holds the sandbox's
// operation, between sandbox_begin and sandbox_finish.
#pragma once

#include "vmglue/dirty_pages.h"
#include "vmglue/nbd_server.h"
#include "snapshot/txn.h"
#include "vmglue/sandbox.h"
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
};
enum { SANDBOX_ID_SIZE = 24, SANDBOX_TREE_SIZE = 32, SANDBOX_MOUNT_MAX = 120 };
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
    uint64_t ttl_ms, idle_ms;    // 0 = none
    bool persistent;             // not removed when it was stopped for long
    bool pause_frozen;           // user processes were frozen before it was paused
    struct sandbox_moment since; // running: ttl counts from here. stopped, failed: retention does
    char tree[SANDBOX_TREE_SIZE], parent_id[SANDBOX_ID_SIZE]; // of a fork; "" = none
    struct doc_id doc;
    struct volume_id disk, memory;
    struct sandbox_disk more[VM_DISKS_MAX - 1]; // further disks, in the guest's order
    unsigned more_count;
    struct base_id mapped; // memory base that the VMM maps; 0 = booted cold
    struct doc_id machine; // what it resumes from when stopped with memory; 0 = boots from its disk
};

struct sandbox {
    struct sandboxes *all;
    struct sandbox *next; // (lock)
    struct sandbox_record
            record;       // written by the op's thread with the lock held; the op's thread reads without
    const char *op;       // (lock) what is being done to it, NULL = nothing
    bool removed;         // (lock)
    unsigned references;  // (lock) threads that hold the pointer
    unsigned agent_users; // (lock)
    uint64_t used_ns;     // (lock) CLOCK_MONOTONIC: when it was started or somebody last worked in the guest
    struct agent *agent;  // (lock to read, op to change)
    // (op) what runs for it:
    struct vm *vm;
    unsigned vm_generation;      // (lock) events of earlier VMMs are ignored
    bool reset_asked, shut_down; // (lock) by the guest
    char exit_detail[256];       // (lock) how the VMM ended; empty while it runs
    unsigned io_errors; // (lock) failed disk requests since one worker looks after them; 0 = none does
    struct dirty_pages *dirty;
    bool memory_admitted;       // (lock) it has a place in the memory budget
    uint64_t own_bytes;         // (lock) guest memory of its own, as last read
    struct memory_probe *probe; // (lock) reads what it uses
    int nbd_listen_fd;          // -1 = none
    struct nbd_server *nbd;
    struct nbd_export disk_export;
    struct volume *memory;
};

struct sandboxes {
    struct sandbox_config config;
    struct store *store;
    char tag[64];
    char kernel_path[256], initrd_path[256], preload_path[256], probe_cache[256];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sandbox *list;                                         // (lock)
    unsigned workers;                                             // (lock) threads that handle events
    bool quiesced;                                                // (lock)
    bool memory_short;                                            // (lock) the host is
    uint64_t host_available_bytes, low_bytes, stopped_for_memory; // (lock)
};

// A VMM runs for it.
static inline bool sandbox_is_live(const struct sandbox *sandbox)
{
    return sandbox->record.state == SANDBOX_RUNNING || sandbox->record.state == SANDBOX_PAUSED;
}

__attribute__((format(printf, 2, 3))) void sandbox_log(struct sandboxes *all, const char *format, ...);
const char *sandbox_state_name(enum sandbox_state state);
uint64_t sandbox_now_ns(void);

// ---- sandbox.c: the table ----
struct sandbox *sandbox_new(
        struct sandboxes *all, const struct sandbox_record *record); // takes labels and env over; in op
// Finds and takes the operation; `op` is for others' errors ("being stopped"). Waits for another one to end.
int sandbox_begin(struct sandboxes *all, const char *name, const char *op, struct sandbox **ret_sandbox,
        struct error *err);
void sandbox_finish(struct sandbox *sandbox);  // ends the operation; frees it when it was removed
void sandbox_put(struct sandbox *sandbox);     // lets go of a pointer taken with the lock held
json_t *sandbox_json(struct sandbox *sandbox); // takes the lock
void sandbox_new_id(char ret_id[SANDBOX_ID_SIZE]);

// ---- sandbox_record.c: the doc ----
// Puts the record into a transaction; the doc's id is stored in record->doc when it is new.
int sandbox_record_put(struct txn *txn, struct sandbox_record *record, struct error *err);
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

// The stop that sandbox_stop does; `reason` goes into the record.
int sandbox_stop_in_op(
        struct sandbox *sandbox, bool memory, bool force, const char *reason, struct error *err);

// ---- sandbox_fork.c ----
// The members of a machine snapshot's doc that are ours; malloc'ed JSON. inner: "stop", "fork" or NULL = the
// user's.
char *sandbox_capture_body(struct sandbox *sandbox, const json_t *labels, const char *inner);
void sandbox_capture_request(struct sandbox *sandbox, const char *body, struct capture_request *ret_request);

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
struct sandbox_confine; // sandbox_confine.c
int sandbox_confine_prepare(struct sandbox *sandbox, struct vm_config *config,
        struct sandbox_confine **ret_confine, struct error *err);
void sandbox_confine_release(struct sandbox_confine *confine); // accepts NULL
void sandbox_confine_clean(struct sandboxes *all, const char *id);

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
// ---- sandbox_shortage.c ----
int sandbox_memory_start(struct sandboxes *all, struct error *err); // one of all->workers; ends when quiesced

// ---- sandbox_watch.c: events of VMMs ----
void sandbox_watch_event(void *context, enum vm_event_kind kind, const char *detail); // vm_event_callback
