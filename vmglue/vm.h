// SPDX-License-Identifier: Apache-2.0
// A running virtual machine, behind a driver table (QEMU is the first driver, qemu.c).
//
// Contract with any VMM: it maps a memory image privately (or starts with empty memory); it has a
// device-state blob; its disks are NBD exports of ours; no kernel or device DMA goes into tracked guest
// memory (no O_DIRECT, AIO or io_uring block backends, no vhost, no VFIO). The command line is built by the
// driver alone.
//
// Threads: calls wait, so they belong on threads that are not loops and hold no lock that NBD or FUSE need
// (`stop` waits for our own NBD, and a vCPU for our own FUSE). Any number of threads may call; calls on one
// VM take turns. Events come from a thread of the VM: the callback must neither block nor call vm_* on the
// same VM; post instead. Life: vm_start or vm_adopt gives a handle; vm_close lets go of it and leaves the VMM
// running (a daemon that ends); vm_kill ends the VMM first. A VMM outlives the daemon: it has no parent-death
// signal. Errors: -ETIMEDOUT the VMM did not answer in time; -EPIPE it is gone (its last words are in *err);
// -EINVAL a configuration that cannot work, with the field's name.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct vm;

enum vm_machine { VM_MACHINE_Q35, VM_MACHINE_MICROVM }; // pc-q35-7.2 by its versioned name is the default
enum vm_accel { VM_ACCEL_AUTO, VM_ACCEL_KVM, VM_ACCEL_TCG };

// Every machine has the same network card. What it reaches is decided behind it (vm_config.tap_fd), so that a
// snapshot goes on with whatever network.
struct vm_shape {
    enum vm_machine machine;
    unsigned cpus;      // 1 to 64
    unsigned memory_mb; // 64 to 1048576
    uint8_t mac[6];     // all zero: made from the VM's id
};

struct vm_disk {
    const char *export_name; // on the sandbox's own NBD socket; "" = its default export
    uint64_t size_bytes;     // for the compatibility record
    bool read_only;
};
enum { VM_DISKS_MAX = 8 };

enum vm_event_kind {
    VM_EVENT_EXITED,      // the process is gone; detail: its last words. Comes once, last.
    VM_EVENT_GUEST_RESET, // the guest asked for a reboot; the process ends (-no-reboot): boot a new one from
                          // the disk
    VM_EVENT_GUEST_SHUTDOWN, // the guest powered itself off
    VM_EVENT_GUEST_PANIC,
    VM_EVENT_IO_ERROR, // a disk request failed and the VM is stopped (werror=stop); detail says which and why
    VM_EVENT_STOPPED,  // vCPUs stopped, by whomever
    VM_EVENT_RUNNING,  // vCPUs run
    VM_EVENT_CONTROL_LOST, // the control connection broke although the process lives
};
typedef void (*vm_event_callback)(void *context, enum vm_event_kind kind, const char *detail);

struct vm_confine; // vm_confine.h

struct vm_config {
    const char *id;          // the sandbox's id, [A-Za-z0-9._-], at most 64
    const char *tag;         // marks processes of this store on their command line, e.g. "ramet-<store uuid>"
    const char *run_dir;     // RUNDIR/vm/<id>, exists, absolute. Made there: qmp.sock agent.sock console.log
                             // vmm.log vm.json
    const char *nbd_socket;  // NULL = run_dir/nbd.sock; must be listening before vm_start
    const char *uffd_socket; // where the preload library reports, made there; NULL = run_dir/uffd.sock
    const char *preload_library; // NULL = none: no dirty tracking, snapshots copy all private pages
    const char *vmm_path;        // NULL = qemu-system-x86_64 from PATH
    struct vm_shape shape;
    enum vm_accel accel;
    const char
            *probe_cache; // file that keeps the answer of the accelerator's probe; NULL = this process only
    const char *kernel_path, *initrd_path,
            *kernel_append; // append: added to the driver's own words; may be NULL
    const char *image_id; // what the disk was made from (template or image hash), for the record; may be NULL
    struct vm_disk disks[VM_DISKS_MAX];
    unsigned disk_count;
    const char *memory_image; // mapped MAP_PRIVATE, opened read-only by the preload library; NULL = empty
                              // memory (cold boot)
    // Resume: what the machine has in common with its template is mapped from the template's image instead
    // (memory_map.h). Two descriptors, not kept beyond the call; 0 = none, memory_image alone.
    int memory_origin_fd, memory_extents_fd;
    const char *memory_id; // base id of that image, for the record; may be NULL
    const void *state;     // device state to load, or NULL = boot. Loading needs memory_image
    size_t state_bytes;
    // What the VMM may touch; NULL = whatever the daemon may. Not kept beyond the call.
    const struct vm_confine *confine;
    const char *runtime;      // name of the bundle that it is started from, for the record; may be NULL
    const char *runtime_root; // the bundle's folder
    int netns_fd; // network namespace it enters; 0 = an empty one when confined, else the daemon's
    int tap_fd;   // the network card's other end, without IFF_VNET_HDR; 0 = none, the cable is not plugged in
    bool start_paused;          // loaded or booted, but not continued: vm_continue sets it off
    unsigned timeout_ms;        // for the whole call; 0 = 60 s
    vm_event_callback on_event; // may be NULL
    void *context;
};

struct vm_memory {
    uint64_t address; // of guest memory in the VMM
    uint64_t bytes;
    int uffd; // userfaultfd over it, the VM's own (dirty_pages_open duplicates it); -1 = none
};

enum vm_status { VM_RUNNING, VM_PAUSED, VM_IO_ERROR, VM_LOADING, VM_SHUT_DOWN, VM_FAILED, VM_GONE };

// What start did, for the record and for figures.
struct vm_start_times {
    uint64_t spawn_ns; // fork to the first answer of the control socket
    uint64_t load_ns;  // device state
    uint64_t continue_ns;
};

struct vm_driver {
    const char *name;
    int (*start)(const struct vm_config *config, struct vm **ret_vm, struct error *err);
    int (*adopt)(const char *run_dir, vm_event_callback on_event, void *context, struct vm **ret_vm,
            struct error *err);
    int (*pause)(struct vm *vm, unsigned deadline_ms, struct error *err);
    int (*cont)(struct vm *vm, struct error *err);
    int (*save_state)(struct vm *vm, void **ret_state, size_t *ret_bytes, struct error *err);
    int (*memory)(struct vm *vm, struct vm_memory *ret_memory, struct error *err);
    int (*status)(struct vm *vm, enum vm_status *ret_status, struct error *err);
    int (*kill)(struct vm *vm, unsigned timeout_ms, struct error *err);
    void (*close)(struct vm *vm);
};
extern const struct vm_driver qemu_driver;

// The driver's own struct begins with this one.
struct vm {
    const struct vm_driver *driver;
    pid_t pid;
    int pid_fd;                // readable when the process has ended; the VM's own, do not close
    uint64_t start_time_ticks; // /proc/PID/stat, field 22: with pid it names the process for good
    char *compat;              // compatibility record, JSON (compat.h)
    char *accel;               // "kvm" or "tcg"
    struct vm_start_times times;
};

// Boots, or loads memory and device state; on success the guest runs (unless start_paused). On failure
// nothing is left running.
static inline int vm_start(
        const struct vm_driver *driver, const struct vm_config *config, struct vm **ret_vm, struct error *err)
{
    return driver->start(config, ret_vm, err);
}

// Takes over a VMM that an earlier daemon started: pid, start time, executable and tag must match
// run_dir/vm.json. A guest that is found paused is left so: see vm_get_status, and vm_continue when its
// recorded intent is to run. NBD and FUSE must be served before this is called. -ESRCH: it is gone (run_dir
// may be cleaned).
static inline int vm_adopt(const struct vm_driver *driver, const char *run_dir, vm_event_callback on_event,
        void *context, struct vm **ret_vm, struct error *err)
{
    return driver->adopt(run_dir, on_event, context, ret_vm, err);
}

// Stops the vCPUs and drains the disks. On -ETIMEDOUT the guest was set off again (or will be, as soon as the
// VMM answers): a source is never left paused.
static inline int vm_pause(struct vm *vm, unsigned deadline_ms, struct error *err)
{
    return vm->driver->pause(vm, deadline_ms, err);
}

static inline int vm_continue(struct vm *vm, struct error *err)
{
    return vm->driver->cont(vm, err);
}

// Device state of a paused VM, without memory; it can be continued afterwards. *ret_state is malloc'ed.
static inline int vm_save_state(struct vm *vm, void **ret_state, size_t *ret_bytes, struct error *err)
{
    return vm->driver->save_state(vm, ret_state, ret_bytes, err);
}

static inline int vm_get_memory(struct vm *vm, struct vm_memory *ret_memory, struct error *err)
{
    return vm->driver->memory(vm, ret_memory, err);
}

static inline int vm_get_status(struct vm *vm, enum vm_status *ret_status, struct error *err)
{
    return vm->driver->status(vm, ret_status, err);
}

// Ends the process and waits until it is gone (SIGKILL: guests with work to save are asked by the agent
// before).
static inline int vm_kill(struct vm *vm, unsigned timeout_ms, struct error *err)
{
    return vm->driver->kill(vm, timeout_ms, err);
}

// Lets go of the VM, running or not. Accepts NULL, returns NULL. No event comes after it has returned.
static inline struct vm *vm_close(struct vm *vm)
{
    if (vm != NULL)
        vm->driver->close(vm);
    return NULL;
}

// Calls each() for every live process of this store: one whose command line carries `tag`. Id is what start
// was given.
int vm_find_strays(const char *tag, void (*each)(void *context, pid_t pid, const char *id), void *context);
// Ends a stray found so (checks the tag again, by pidfd, then SIGKILL and waits). -ESRCH: it is gone already.
int vm_kill_stray(const char *tag, pid_t pid, unsigned timeout_ms, struct error *err);

// Which accelerator AUTO means here: boots `kernel` and `initrd` under KVM with a time limit until the kernel
// starts its first process. Cached per process and in cache_file (may be NULL) for this boot of the host.
// Seconds, the first time.
int vm_probe_accel(const struct vm_config *config, enum vm_accel *ret_accel, struct error *err);

const char *vm_machine_name(enum vm_machine machine);                 // "q35", "microvm"
int vm_machine_parse(const char *text, enum vm_machine *ret_machine); // -EINVAL
