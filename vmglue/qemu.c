// SPDX-License-Identifier: Apache-2.0
// The QEMU driver. A VM is always started stopped (-S), so that its control connection, its watcher and its
// record are there before the guest's first instruction.
#include "blockstore/clock.h"
#include "blockstore/fd.h"
#include "vmglue/compat.h"
#include "vmglue/preload_host.h"
#include "vmglue/qemu_args.h"
#include "vmglue/qemu_process.h"
#include "vmglue/qemu_vm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEFAULT_START_MS = 60000,
    COMMAND_MS = 10000,
    PRELOAD_MS = 2000,
    KILL_MS = 10000,
    STATE_MAX_BYTES = 64 << 20
};

static struct qemu_vm *of(struct vm *vm)
{
    return (struct qemu_vm *)vm; // vm is the first member
}

// ---- Making and releasing ----

static void release(struct qemu_vm *vm)
{
    qemu_watch_stop(vm);
    qmp_close(vm->qmp);
    int fds[] = {vm->uffd, vm->vm.pid_fd, vm->wake_fd, vm->state_fd, vm->state_write_fd};
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    pthread_cond_destroy(&vm->changed);
    pthread_mutex_destroy(&vm->lock);
    pthread_mutex_destroy(&vm->turn);
    free(vm->vm.compat);
    free(vm->vm.accel);
    free(vm->run_dir);
    free(vm->tag);
    free(vm->id);
    free(vm);
}

static struct qemu_vm *make(const char *run_dir, vm_event_callback on_event, void *context)
{
    struct qemu_vm *vm = calloc(1, sizeof *vm);
    if (vm == NULL)
        return NULL;
    vm->vm.driver = &qemu_driver;
    vm->uffd = vm->vm.pid_fd = vm->state_fd = vm->state_write_fd = -1;
    vm->on_event = on_event;
    vm->context = context;
    pthread_mutex_init(&vm->turn, NULL);
    pthread_mutex_init(&vm->lock, NULL);
    pthread_cond_init(&vm->changed, NULL);
    vm->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    vm->run_dir = strdup(run_dir);
    if (vm->wake_fd < 0 || vm->run_dir == NULL) {
        release(vm);
        return NULL;
    }
    return vm;
}

static void set_identity(struct qemu_vm *vm, const struct vm_process_identity *identity, int pid_fd)
{
    vm->identity = *identity;
    vm->vm.pid = identity->pid;
    vm->vm.pid_fd = pid_fd;
    vm->vm.start_time_ticks = identity->start_time_ticks;
}

static int connect_control(struct qemu_vm *vm, unsigned timeout_ms, struct error *err)
{
    char *path = qemu_process_path(vm->run_dir, "qmp.sock");
    if (path == NULL)
        return error_set(err, -ENOMEM, "no memory for a path");
    struct qmp *qmp = NULL;
    int result = qmp_connect(path, timeout_ms, qemu_watch_qmp_event, vm, &qmp, err);
    free(path);
    if (result == -ECONNREFUSED) // the listening socket went with the process
        return error_set(err, -EPIPE, "QEMU ended before it answered");
    if (result == 0)
        vm->qmp = qmp;
    return result;
}

// ---- Start ----

// Passed by descriptor: the state comes from a process that may have been taken over, and is parsed by this
// one.
static int load_state(
        struct qemu_vm *vm, const struct vm_config *config, unsigned timeout_ms, struct error *err)
{
    int fd = memfd_create("ramet-device-state", MFD_CLOEXEC);
    if (fd < 0)
        return error_set(err, -errno, "no memory file for a device state: %s", strerror(errno));
    int result = fd_write_all(fd, config->state, config->state_bytes);
    if (result < 0)
        error_set(err, result, "cannot write a device state of %zu bytes to memory: %s", config->state_bytes,
                strerror(-result));
    lseek(fd, 0, SEEK_SET);
    json_t *events = json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", "events", "state", 1);
    if (result == 0)
        result = qmp_execute(vm->qmp, "migrate-set-capabilities", json_incref(events), COMMAND_MS, NULL, err);
    json_decref(events);
    if (result == 0)
        result = qmp_execute_fd(
                vm->qmp, "getfd", json_pack("{s:s}", "fdname", "state"), fd, COMMAND_MS, NULL, err);
    if (result == 0)
        result = qmp_execute(
                vm->qmp, "migrate-incoming", json_pack("{s:s}", "uri", "fd:state"), COMMAND_MS, NULL, err);
    close(fd);
    return result == 0 ? qemu_watch_load(vm, timeout_ms, err) : result;
}

// The library has reported before QEMU answers; what is missing now will not come.
static int take_uffd(struct qemu_vm *vm, int preload_fd, struct error *err)
{
    struct preload_report report;
    int result = preload_receive(preload_fd, vm->vm.pid, PRELOAD_MS, &report, err);
    if (result < 0)
        qemu_watch_add_last_words(vm, err);
    else
        vm->uffd = report.uffd;
    return result;
}

static int bring_up(
        struct qemu_vm *vm, const struct vm_config *config, unsigned timeout_ms, struct error *err)
{
    uint64_t start = clock_monotonic_ns();
    struct qemu_process process;
    int result = qemu_process_start(config, vm->vm.accel, &process, err);
    if (result < 0)
        return result;
    set_identity(vm, &process.identity, process.pid_fd);
    result = qemu_record_write(vm, err);
    if (result == 0) {
        result = connect_control(vm, timeout_ms, err);
        if (result < 0) {
            vm_process_wait(vm->vm.pid_fd, 1000); // give it time for its last words
            qemu_watch_add_last_words(vm, err);
        }
    }
    if (result == 0 && process.preload_fd >= 0)
        result = take_uffd(vm, process.preload_fd, err);
    if (process.preload_fd >= 0)
        close(process.preload_fd);
    if (result == 0)
        result = qemu_watch_start(vm, err);
    vm->vm.times.spawn_ns = clock_monotonic_ns() - start;
    if (result == 0 && config->state != NULL) {
        start = clock_monotonic_ns();
        result = load_state(vm, config, timeout_ms, err);
        vm->vm.times.load_ns = clock_monotonic_ns() - start;
    }
    if (result == 0 && !config->start_paused) {
        qemu_watch_announce(vm, true);
        start = clock_monotonic_ns();
        result = qmp_execute(vm->qmp, "cont", NULL, COMMAND_MS, NULL, err);
        vm->vm.times.continue_ns = clock_monotonic_ns() - start;
    }
    return result;
}

static int choose_accel(const struct vm_config *config, const char **ret_accel, struct error *err)
{
    enum vm_accel accel = config->accel;
    int result = accel == VM_ACCEL_AUTO ? vm_probe_accel(config, &accel, err) : 0;
    if (result == 0)
        *ret_accel = accel == VM_ACCEL_KVM ? "kvm" : "tcg";
    return result;
}

static int start_once(
        const struct vm_config *config, const char *accel, struct vm **ret_vm, struct error *err)
{
    struct qemu_vm *vm = make(config->run_dir, config->on_event, config->context);
    if (vm == NULL)
        return error_set(err, -ENOMEM, "no memory for a VM");
    vm->tag = strdup(config->tag);
    vm->id = strdup(config->id);
    vm->vm.accel = strdup(accel);
    int result = 0;
    if (vm->tag == NULL || vm->id == NULL || vm->vm.accel == NULL)
        result = error_set(err, -ENOMEM, "no memory for a VM");
    if (result == 0)
        result = compat_describe(config, accel, &vm->vm.compat, err);
    if (result == 0)
        result = bring_up(vm, config, config->timeout_ms != 0 ? config->timeout_ms : DEFAULT_START_MS, err);
    if (result < 0) {
        qemu_watch_announce(vm, false);
        if (vm->vm.pid_fd >= 0)
            vm_process_kill(vm->vm.pid_fd, KILL_MS);
        release(vm);
        return result;
    }
    qemu_watch_announce(vm, true);
    *ret_vm = &vm->vm;
    return 0;
}

static int qemu_start(const struct vm_config *config, struct vm **ret_vm, struct error *err)
{
    const char *accel = NULL;
    struct error words = {0};
    int result = qemu_args_check(config, err);
    if (result == 0)
        result = choose_accel(config, &accel, err);
    if (result < 0)
        return result;
    result = start_once(config, accel, ret_vm, &words);
    if (result == -EPIPE && qemu_process_leave_out_sandbox(words.text))
        result = start_once(config, accel, ret_vm, &words);
    if (result < 0 && err != NULL)
        *err = words;
    return result;
}

// ---- Adoption ----

static int qemu_adopt(
        const char *run_dir, vm_event_callback on_event, void *context, struct vm **ret_vm, struct error *err)
{
    struct qemu_vm *vm = make(run_dir, on_event, context);
    if (vm == NULL)
        return error_set(err, -ENOMEM, "no memory for a VM");
    int pid_fd = -1;
    int result = qemu_record_read(vm, err);
    if (result == 0) {
        result = vm_process_open(&vm->identity, &pid_fd);
        if (result == 0) {
            set_identity(vm, &vm->identity, pid_fd);
            if (!vm_process_has_tag(vm->vm.pid, vm->tag, NULL, 0))
                result = -ESRCH;
        }
        if (result < 0)
            result =
                    error_set(err, -ESRCH, "the VM process %d of %s is gone", (int)vm->identity.pid, run_dir);
    }
    // The VMM keeps its own copy open. Without one (none was preloaded) snapshots copy all private pages.
    if (result == 0)
        vm_process_take_fd(vm->vm.pid, pid_fd, "anon_inode:[userfaultfd]", &vm->uffd);
    if (result == 0)
        result = connect_control(vm, COMMAND_MS, err);
    qemu_watch_announce(vm, true);
    if (result == 0)
        result = qemu_watch_start(vm, err);
    if (result < 0) {
        release(vm);
        return result;
    }
    *ret_vm = &vm->vm;
    return 0;
}

// ---- Control ----

static int qemu_cont(struct vm *vm, struct error *err)
{
    struct qemu_vm *qemu = of(vm);
    pthread_mutex_lock(&qemu->turn);
    int result = qmp_execute(qemu->qmp, "cont", NULL, COMMAND_MS, NULL, err);
    pthread_mutex_unlock(&qemu->turn);
    return result;
}

static int qemu_pause(struct vm *vm, unsigned deadline_ms, struct error *err)
{
    struct qemu_vm *qemu = of(vm);
    pthread_mutex_lock(&qemu->turn);
    int result = qmp_execute(qemu->qmp, "stop", NULL, deadline_ms, NULL, err);
    // QEMU runs commands in order: this one undoes the stop as soon as it is through.
    if (result == -ETIMEDOUT)
        qmp_send(qemu->qmp, "cont", NULL, NULL);
    pthread_mutex_unlock(&qemu->turn);
    return result;
}

static int qemu_status(struct vm *vm, enum vm_status *ret_status, struct error *err)
{
    static const struct {
        const char *name;
        enum vm_status status;
    } names[] = {{"running", VM_RUNNING}, {"paused", VM_PAUSED}, {"prelaunch", VM_PAUSED},
            {"save-vm", VM_PAUSED}, {"suspended", VM_PAUSED}, {"postmigrate", VM_PAUSED},
            {"finish-migrate", VM_PAUSED}, {"io-error", VM_IO_ERROR}, {"inmigrate", VM_LOADING},
            {"shutdown", VM_SHUT_DOWN}};
    struct qemu_vm *qemu = of(vm);
    JSON_AUTO json_t *answer = NULL;
    pthread_mutex_lock(&qemu->turn);
    int result = qmp_execute(qemu->qmp, "query-status", NULL, COMMAND_MS, &answer, err);
    pthread_mutex_unlock(&qemu->turn);
    if (result == -EPIPE && vm_process_wait(vm->pid_fd, 1000) == 0) {
        *ret_status = VM_GONE;
        return 0;
    }
    if (result < 0)
        return result;
    const char *name = json_string_value(json_object_get(answer, "status"));
    *ret_status = VM_FAILED; // guest-panicked, internal-error, watchdog
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (name != NULL && strcmp(name, names[i].name) == 0)
            *ret_status = names[i].status;
    }
    return 0;
}

// The memfd is given to QEMU once, by a write-only descriptor (QEMU takes one from the set that matches its
// mode exactly), and rewound for each save: the two share neither mode nor position.
static int open_state_file(struct qemu_vm *vm, struct error *err)
{
    if (vm->state_write_fd >= 0)
        return 0;
    int fd = memfd_create("ramet-device-state", MFD_CLOEXEC);
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int write_fd = fd >= 0 ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    JSON_AUTO json_t *answer = NULL;
    int result = 0;
    if (write_fd < 0)
        result = error_set(err, -errno, "no memory file for a device state: %s", strerror(errno));
    else
        result = qmp_execute_fd(vm->qmp, "add-fd", NULL, write_fd, COMMAND_MS, &answer, err);
    json_t *set = json_object_get(answer, "fdset-id");
    if (result == 0 && !json_is_integer(set))
        result = error_set(err, -EPROTO, "QEMU took a descriptor but did not say which set it is in");
    if (result < 0) {
        if (fd >= 0)
            close(fd);
        if (write_fd >= 0)
            close(write_fd);
        return result;
    }
    vm->state_fd = fd;
    vm->state_write_fd = write_fd;
    vm->state_fdset = json_integer_value(set);
    return 0;
}

static int read_state(struct qemu_vm *vm, void **ret_state, size_t *ret_bytes, struct error *err)
{
    struct stat stat;
    if (fstat(vm->state_fd, &stat) != 0 || stat.st_size == 0)
        return error_set(err, -EIO, "QEMU saved an empty device state");
    if (stat.st_size > STATE_MAX_BYTES)
        return error_set(err, -EFBIG,
                "QEMU saved a device state of %lld bytes, which no machine of ours has: it is not trusted",
                (long long)stat.st_size);
    void *state = malloc((size_t)stat.st_size);
    if (state == NULL)
        return error_set(err, -ENOMEM, "no memory for a device state of %lld bytes", (long long)stat.st_size);
    if (pread(vm->state_fd, state, (size_t)stat.st_size, 0) != stat.st_size) {
        free(state);
        return error_set(err, -EIO, "the device state cannot be read back from memory");
    }
    *ret_state = state;
    *ret_bytes = (size_t)stat.st_size;
    return 0;
}

static int qemu_save_state(struct vm *vm, void **ret_state, size_t *ret_bytes, struct error *err)
{
    struct qemu_vm *qemu = of(vm);
    pthread_mutex_lock(&qemu->turn);
    int result = open_state_file(qemu, err);
    if (result == 0 && (ftruncate(qemu->state_fd, 0) != 0 || lseek(qemu->state_write_fd, 0, SEEK_SET) != 0))
        result = error_set(
                err, -errno, "the memory file for a device state cannot be rewound: %s", strerror(errno));
    if (result == 0) {
        char path[40];
        snprintf(path, sizeof path, "/dev/fdset/%lld", (long long)qemu->state_fdset);
        // live:false keeps the disks as they are; the name is Xen's, the command is general.
        result = qmp_execute(qemu->qmp, "xen-save-devices-state",
                json_pack("{s:s, s:b}", "filename", path, "live", 0), COMMAND_MS, NULL, err);
    }
    if (result == 0)
        result = read_state(qemu, ret_state, ret_bytes, err);
    pthread_mutex_unlock(&qemu->turn);
    return result;
}

static int qemu_memory(struct vm *vm, struct vm_memory *ret_memory, struct error *err)
{
    struct qemu_vm *qemu = of(vm);
    JSON_AUTO json_t *words = NULL;
    JSON_AUTO json_t *sizes = NULL;
    pthread_mutex_lock(&qemu->turn);
    int result = qmp_execute(qemu->qmp, "human-monitor-command",
            json_pack("{s:s}", "command-line", "gpa2hva 0"), COMMAND_MS, &words, err);
    if (result == 0)
        result = qmp_execute(qemu->qmp, "query-memory-size-summary", NULL, COMMAND_MS, &sizes, err);
    pthread_mutex_unlock(&qemu->turn);
    if (result < 0)
        return result;
    // "Host virtual address for 0x0 (mem) is 0x7f0123400000"
    const char *text = json_string_value(words), *at = text != NULL ? strstr(text, " is 0x") : NULL;
    json_t *size = json_object_get(sizes, "base-memory");
    uint64_t address = at != NULL ? strtoull(at + 4, NULL, 16) : 0;
    if (address == 0 || !json_is_integer(size))
        return error_set(err, -EPROTO, "QEMU does not say where guest memory is (it said: %.120s)",
                text != NULL ? text : "nothing");
    *ret_memory = (struct vm_memory){
            .address = address, .bytes = (uint64_t)json_integer_value(size), .uffd = qemu->uffd};
    return 0;
}

static int qemu_kill(struct vm *vm, unsigned timeout_ms, struct error *err)
{
    struct qemu_vm *qemu = of(vm);
    int result = vm_process_kill(vm->pid_fd, timeout_ms);
    if (result == 0)
        result = qemu_watch_exit(qemu, timeout_ms);
    if (result < 0)
        return error_set(err, result,
                "the VM process %d did not end within %u ms of SIGKILL: see what it waits for in "
                "/proc/%d/stack",
                (int)vm->pid, timeout_ms, (int)vm->pid);
    return 0;
}

static void qemu_close(struct vm *vm)
{
    release(of(vm));
}

const struct vm_driver qemu_driver = {
        .name = "qemu",
        .start = qemu_start,
        .adopt = qemu_adopt,
        .pause = qemu_pause,
        .cont = qemu_cont,
        .save_state = qemu_save_state,
        .memory = qemu_memory,
        .status = qemu_status,
        .kill = qemu_kill,
        .close = qemu_close,
};
