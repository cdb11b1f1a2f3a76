// SPDX-License-Identifier: Apache-2.0
// A store with everything that real machines need around them, in one process: the engine's loop, memory
// images, NBD, QEMU, agent. What the daemon does with many policies, done plainly for tests and benchmarks.
//
// Any failure prints a sentence and exits 1; what is missing on this machine prints why and exits 77. At
// exit, every VM that was started is ended and the scratch directory is removed. Threads: the caller's one.
#pragma once

#include "snapshot/volume.h"
#include "vmglue/agent_client.h"
#include "vmglue/capture.h"
#include "vmglue/dirty_pages.h"
#include "vmglue/mem_fuse.h"
#include "vmglue/nbd_server.h"
#include "vmglue/prefetch.h"
#include "vmglue/vm.h"

#include <pthread.h>

struct rig {
    char directory[64];
    const char *kernel_dir; // RAMET_KERNEL_DIR
    char preload[512];
    struct loop *loop;
    struct store *store;
    struct mem_fuse *fuse;
    struct base_id image; // of RAMET_IMAGE
    uint64_t image_bytes;
    struct vm_shape shape; // for new machines
    bool share;            // machine_load maps what a machine has in common with its origin from there
    bool working_sets;     // machine_load prefetches the snapshot's working set, if it has one
    bool own_memory_files; // machine_load copies the memory out and maps that file (a peer for benchmarks)
};

// When a resumed machine had reached what; vm->times has the parts between made and loaded.
struct machine_stages {
    uint64_t made_ns;      // volumes and the disk's server
    uint64_t loaded_ns;    // the VMM has the device state
    uint64_t connected_ns; // the agent said hello
    uint64_t ready_ns;     // and has done the after-fork step
};

struct machine {
    struct rig *rig;
    char id[40], run_dir[128];
    struct base_id image;  // what its memory maps, 0 = cold-booted
    struct base_id origin; // what it maps that one over, 0 = nothing
    unsigned extents;      // of its own image, over the origin
    uint64_t own_bytes;    // in them
    struct working_set_job *prefetch;
    struct volume_id disk, memory_id;
    struct volume *memory;
    int nbd_fd;
    struct nbd_server *nbd;
    struct vm *vm;
    struct agent *agent;
    struct dirty_pages *dirty;
    struct machine_stages stages;
    uint64_t ready_ns; // start to the agent's answer (and the after-fork step)
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reset, exited; // protected by lock
    char detail[300];   // of the last of them; protected by lock
};

__attribute__((noreturn, format(printf, 1, 2))) void rig_fail(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void rig_skip(const char *format, ...);
uint64_t rig_random(void);

// name: for the scratch directory (under TMPDIR or /tmp).
void rig_open(struct rig *rig, const char *name);
void rig_close(struct rig *rig);
// Copies a base or a fork of it out as a raw file.
void rig_export(struct rig *rig, struct base_id base, const char *path);
// Runs a program and waits; returns its exit code. Output goes to `log`.
int rig_run(const char *log, const char *const *argv);

struct machine *machine_boot(struct rig *rig, const char *id);
struct machine *machine_boot_disk(
        struct rig *rig, const char *id, struct volume_id disk); // takes the volume over
struct machine *machine_resume(struct rig *rig, const char *id, struct doc_id snapshot);
// The same up to the guest's first instruction: vm is paused, no agent yet.
struct machine *machine_load(struct rig *rig, const char *id, struct doc_id snapshot);
void machine_go(struct machine *machine, bool after_fork); // continue a loaded one, connect its agent
void machine_adopt(struct machine *machine);               // after vm_close: takes its process over again
// Path of the file that a loaded machine maps.
void machine_memory_path(const struct machine *machine, char *buffer, size_t size);
// Keeps what the machine has mapped by now as its snapshot's working set.
void machine_record_working_set(struct machine *machine, struct doc_id snapshot);
// As the pool does: a resumed machine that has run a command stands still, frozen; and goes on as somebody
// new, a record of it made durable.
void machine_park(struct machine *machine);
void machine_take(struct machine *machine);
struct machine *machine_end(struct machine *machine, bool keep_disk); // ends the VM; deletes its volumes

// The request that captures this machine; the caller may change it.
struct capture_request machine_capture_request(struct machine *machine, const char *name);
void machine_capture(const struct capture_request *request, struct capture_result *ret_result);
// Runs a shell command in the guest; its standard output, malloc'ed. Another exit code than 0 fails the test.
char *machine_shell(struct machine *machine, const char *format, ...) __attribute__((format(printf, 2, 3)));
void machine_wait_event(struct machine *machine, const bool *flag, const char *what);
