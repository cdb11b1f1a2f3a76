// SPDX-License-Identifier: Apache-2.0
// One thread per VM waits on its pidfd. QMP events come on the QMP reader's thread. When the process ends,
// the watcher first lets the reader deliver what is left in the socket (the guest's reset comes right before
// the exit), then says EXITED: it is the last event.
#include "blockstore/clock.h"
#include "vmglue/qemu_vm.h"

#include "vmglue/qemu_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK_BYTES = 256 << 10,
    DRAIN_MS = 2000,
    CONSOLE_CHECK_MS = 10000,
    CONSOLE_MAX_BYTES = 8 << 20,
};

static void emit(struct qemu_vm *vm, enum vm_event_kind kind, const char *detail)
{
    pthread_mutex_lock(&vm->lock);
    bool announce = vm->announce;
    pthread_mutex_unlock(&vm->lock);
    if (announce && vm->on_event != NULL)
        vm->on_event(vm->context, kind, detail);
}

void qemu_watch_announce(struct qemu_vm *vm, bool on)
{
    pthread_mutex_lock(&vm->lock);
    vm->announce = on;
    pthread_mutex_unlock(&vm->lock);
}

static const char *text_of(const json_t *data, const char *name)
{
    const char *text = json_string_value(json_object_get(data, name));
    return text != NULL ? text : "";
}

static void io_error(struct qemu_vm *vm, const json_t *data)
{
    if (strcmp(text_of(data, "action"), "stop") != 0)
        return; // the guest got the error itself
    char detail[300];
    bool no_space = json_is_true(json_object_get(data, "nospace"));
    snprintf(detail, sizeof detail, "a %s on %s failed: %s%s", text_of(data, "operation"),
            text_of(data, "node-name"), text_of(data, "reason"),
            no_space ? "; make room in the store, then continue the VM, which repeats it" : "");
    emit(vm, VM_EVENT_IO_ERROR, detail);
}

static void control_lost(struct qemu_vm *vm)
{
    pthread_mutex_lock(&vm->lock);
    vm->control_lost = true;
    pthread_cond_broadcast(&vm->changed);
    pthread_mutex_unlock(&vm->lock);
    uint64_t one = 1;
    ssize_t written = write(vm->wake_fd, &one, sizeof one); // cannot block: the counter is far from full
    (void)written;
}

void qemu_watch_qmp_event(void *context, const char *name, const json_t *data)
{
    struct qemu_vm *vm = context;
    if (name == NULL) {
        control_lost(vm);
    } else if (strcmp(name, "MIGRATION") == 0) {
        pthread_mutex_lock(&vm->lock);
        snprintf(vm->migration, sizeof vm->migration, "%s", text_of(data, "status"));
        pthread_cond_broadcast(&vm->changed);
        pthread_mutex_unlock(&vm->lock);
    } else if (strcmp(name, "SHUTDOWN") == 0) {
        const char *reason = text_of(data, "reason");
        if (strcmp(reason, "guest-reset") == 0)
            emit(vm, VM_EVENT_GUEST_RESET, "the guest asked for a reboot");
        else if (strcmp(reason, "guest-panic") == 0)
            emit(vm, VM_EVENT_GUEST_PANIC, "the guest's kernel panicked");
        else if (json_is_true(json_object_get(data, "guest")))
            emit(vm, VM_EVENT_GUEST_SHUTDOWN, "the guest powered itself off");
    } else if (strcmp(name, "GUEST_PANICKED") == 0) {
        emit(vm, VM_EVENT_GUEST_PANIC, "the guest's kernel panicked");
    } else if (strcmp(name, "BLOCK_IO_ERROR") == 0) {
        io_error(vm, data);
    } else if (strcmp(name, "STOP") == 0) {
        emit(vm, VM_EVENT_STOPPED, "");
    } else if (strcmp(name, "RESUME") == 0) {
        emit(vm, VM_EVENT_RUNNING, "");
    }
}

// The guest's root user may write to the console as much as it likes: the log starts anew when it is too big.
static void limit_console(struct qemu_vm *vm)
{
    char *path = qemu_process_path(vm->run_dir, "console.log"),
         *old = qemu_process_path(vm->run_dir, "console.log.1");
    struct stat stat_now;
    if (path != NULL && old != NULL && stat(path, &stat_now) == 0 && stat_now.st_size > CONSOLE_MAX_BYTES) {
        char tail[16 << 10];
        int from = open(path, O_RDWR | O_CLOEXEC),
            to = open(old, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ssize_t got = from >= 0 ? pread(from, tail, sizeof tail, stat_now.st_size - (off_t)sizeof tail) : -1;
        if (to >= 0 && got > 0 && write(to, tail, (size_t)got) == got && ftruncate(from, 0) != 0)
            unlink(old); // the log could not be cut; try again next time
        if (from >= 0)
            close(from);
        if (to >= 0)
            close(to);
    }
    free(path);
    free(old);
}

static void exited(struct qemu_vm *vm)
{
    char how[120];
    vm_process_reap(vm->vm.pid_fd, how, sizeof how);
    if (vm->qmp != NULL)
        qmp_wait_closed(vm->qmp, DRAIN_MS);
    pthread_mutex_lock(&vm->lock);
    vm->exited = true;
    pthread_cond_broadcast(&vm->changed);
    pthread_mutex_unlock(&vm->lock);
    char words[400] = "", detail[600];
    char *log = qemu_process_path(vm->run_dir, "vmm.log");
    if (log != NULL)
        vm_process_last_words(log, words, sizeof words);
    free(log);
    snprintf(detail, sizeof detail, "%s%s%s%s%s", how[0] != 0 ? "the VMM " : "", how,
            how[0] != 0 && words[0] != 0 ? "; " : "", words[0] != 0 ? "its last words: " : "", words);
    emit(vm, VM_EVENT_EXITED, detail);
}

static void *watch(void *argument)
{
    struct qemu_vm *vm = argument;
    bool told_lost = false;
    for (;;) {
        struct pollfd fds[] = {
                {.fd = vm->vm.pid_fd, .events = POLLIN}, {.fd = vm->wake_fd, .events = POLLIN}};
        int got = poll(fds, 2, CONSOLE_CHECK_MS);
        if (got == 0)
            limit_console(vm);
        if (got <= 0)
            continue;
        if (fds[0].revents != 0) {
            exited(vm);
            return NULL;
        }
        uint64_t count;
        ssize_t size = read(vm->wake_fd, &count, sizeof count);
        (void)size;
        pthread_mutex_lock(&vm->lock);
        bool stop = !vm->watching, lost = vm->control_lost;
        pthread_mutex_unlock(&vm->lock);
        if (stop)
            return NULL;
        // A dying process closes its socket a moment before its pidfd says so.
        if (lost && !told_lost && poll(fds, 1, DRAIN_MS) == 0) {
            told_lost = true;
            emit(vm, VM_EVENT_CONTROL_LOST, "QEMU's control connection broke");
        }
    }
}

int qemu_watch_start(struct qemu_vm *vm, struct error *err)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    vm->watching = true;
    int error = pthread_create(&vm->watcher, &attributes, watch, vm);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        vm->watching = false;
        return error_set(err, -error, "no thread to watch a VM process: %s", strerror(error));
    }
    return 0;
}

void qemu_watch_stop(struct qemu_vm *vm)
{
    pthread_mutex_lock(&vm->lock);
    bool watching = vm->watching;
    vm->watching = false;
    pthread_mutex_unlock(&vm->lock);
    if (!watching)
        return;
    uint64_t one = 1;
    ssize_t size = write(vm->wake_fd, &one, sizeof one);
    (void)size;
    pthread_join(vm->watcher, NULL);
}

int qemu_watch_load(struct qemu_vm *vm, unsigned timeout_ms, struct error *err)
{
    struct timespec deadline = clock_deadline(timeout_ms);
    int waited = 0;
    bool done = false, failed = false;
    pthread_mutex_lock(&vm->lock);
    while (waited == 0) {
        done = strcmp(vm->migration, "completed") == 0;
        failed = strcmp(vm->migration, "failed") == 0 || vm->control_lost || vm->exited;
        if (done || failed)
            break;
        waited = pthread_cond_clockwait(&vm->changed, &vm->lock, CLOCK_MONOTONIC, &deadline);
    }
    pthread_mutex_unlock(&vm->lock);
    if (done)
        return 0;
    if (!failed)
        return error_set(err, -ETIMEDOUT, "QEMU did not load the device state within %u ms", timeout_ms);
    qemu_watch_exit(vm, DRAIN_MS);
    error_set(err, -EBADMSG,
            "QEMU refused the device state: the snapshot does not fit the machine or is damaged");
    qemu_watch_add_last_words(vm, err);
    return -EBADMSG;
}

int qemu_watch_exit(struct qemu_vm *vm, unsigned timeout_ms)
{
    struct timespec deadline = clock_deadline(timeout_ms);
    int waited = 0;
    pthread_mutex_lock(&vm->lock);
    while (!vm->exited && waited == 0)
        waited = pthread_cond_clockwait(&vm->changed, &vm->lock, CLOCK_MONOTONIC, &deadline);
    bool gone = vm->exited;
    pthread_mutex_unlock(&vm->lock);
    return gone ? 0 : -ETIMEDOUT;
}

void qemu_watch_add_last_words(struct qemu_vm *vm, struct error *err)
{
    char words[240] = "";
    char *log = qemu_process_path(vm->run_dir, "vmm.log");
    if (log != NULL)
        vm_process_last_words(log, words, sizeof words);
    free(log);
    if (err == NULL || words[0] == 0)
        return;
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, " (its last words: %s)", words);
}
