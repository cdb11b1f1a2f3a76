// SPDX-License-Identifier: Apache-2.0
// Inside of the QEMU driver: what qemu.c, qemu_watch.c and qemu_record.c share. Nobody else includes this.
#pragma once

#include "vmglue/qmp.h"
#include "vmglue/vm.h"
#include "vmglue/vm_process.h"

#include <pthread.h>

struct qemu_vm {
    struct vm vm;
    struct vm_process_identity identity;
    char *run_dir, *tag, *id;
    int uffd; // over guest memory; -1 = none

    pthread_mutex_t turn; // rank 1: control calls take turns. Protects the next three
    struct qmp *qmp;
    int state_fd, state_write_fd; // one memfd, opened twice; -1 until the first vm_save_state
    json_int_t state_fdset;

    vm_event_callback on_event;
    void *context;
    pthread_t watcher;
    bool watching; // the thread is there
    int wake_fd;   // eventfd that ends it

    pthread_mutex_t lock; // rank 2: protects what follows
    pthread_cond_t changed;
    bool announce; // start is done: events go to the callback
    bool exited;
    bool control_lost;
    char migration[24]; // QEMU's last word on the incoming migration
};

// qemu_watch.c: the process and its events.
int qemu_watch_start(struct qemu_vm *vm, struct error *err);
void qemu_watch_stop(struct qemu_vm *vm); // no event comes after it
void qemu_watch_announce(struct qemu_vm *vm, bool on);
void qemu_watch_qmp_event(void *context, const char *name, const json_t *data);
int qemu_watch_load(
        struct qemu_vm *vm, unsigned timeout_ms, struct error *err); // until the incoming migration is done
int qemu_watch_exit(struct qemu_vm *vm, unsigned timeout_ms);        // until the process is gone
// Adds the last lines of vmm.log to *err.
void qemu_watch_add_last_words(struct qemu_vm *vm, struct error *err);

// qemu_record.c: run_dir/vm.json, by which a later daemon knows the process again.
int qemu_record_write(struct qemu_vm *vm, struct error *err);
// Fills identity, tag, id, compat and accel of a VM whose run_dir is set.
int qemu_record_read(struct qemu_vm *vm, struct error *err);
