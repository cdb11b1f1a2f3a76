// SPDX-License-Identifier: Apache-2.0
// What VMMs tell: a guest that reboots gets a new process on its disk, one that ends is taken down, one that
// a full store has stopped goes on when there is room.
//
// Events come on a thread of the VM, which must not wait; each that needs work gets a thread of its own.
// Which VMM an event is about is remembered by generation: by the time the work has its turn, the sandbox may
// run another one.
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM_CHECK_MS = 2000 };

struct event_work {
    struct sandboxes *all;
    char id[SANDBOX_ID_SIZE];
    unsigned generation;
    enum vm_event_kind kind;
    char detail[256];
};

static void reboot(struct sandbox *sandbox)
{
    struct error err;
    sandbox_log(sandbox->all, "sandbox %s: the guest reboots", sandbox->record.name);
    sandbox_vm_end(sandbox);
    int r = sandbox_record_forget_memory(sandbox, SANDBOX_RUNNING, &err);
    if (r == 0)
        r = sandbox_vm_start(sandbox, NULL, 0, NULL, &err);
    if (r < 0) {
        sandbox_log(sandbox->all, "sandbox %s: the reboot failed: %s", sandbox->record.name, err.text);
        sandbox_set_state(sandbox, SANDBOX_FAILED, err.text);
    }
}

static void handle_exit(struct sandbox *sandbox, const char *detail)
{
    pthread_mutex_lock(&sandbox->all->lock);
    bool reset = sandbox->reset_asked, shut_down = sandbox->shut_down;
    pthread_mutex_unlock(&sandbox->all->lock);
    char panic[160] = "", words[240];
    if (reset && !shut_down && !sandbox_console_panicked(sandbox, panic, sizeof panic)) {
        reboot(sandbox);
        return;
    }
    if (panic[0] != '\0') { // it asks for a reset too, but would only do it again
        snprintf(words, sizeof words,
                "the guest's kernel panicked (%s); `ramet start` boots it from its disk", panic);
        detail = words;
    }
    char whole[256];
    sandbox_confine_explain(sandbox, detail, whole, sizeof whole);
    detail = whole;
    sandbox_set_end(sandbox, shut_down ? "the guest powered itself off" : detail);
    sandbox_log(sandbox->all, "sandbox %s: its VMM ended%s %s", sandbox->record.name,
            shut_down ? ", the guest powered itself off" : ":", shut_down ? "" : detail);
    sandbox_vm_end(sandbox);
    if (shut_down)
        sandbox_set_state(sandbox, SANDBOX_STOPPED, "the guest powered itself off");
    else
        sandbox_set_state(sandbox, SANDBOX_FAILED, detail[0] == '\0' ? "its VMM ended by itself" : detail);
}

// ---- a disk that failed ----

// Sets the reason for people to see; "" when it has passed.
static void set_reason(struct sandbox *sandbox, const char *format, const char *detail)
{
    struct sandbox_record record = sandbox_record_copy(&sandbox->record);
    snprintf(record.reason, sizeof record.reason, format, detail);
    sandbox_record_set(sandbox, &record);
    sandbox_record_free(&record);
}

// The guest waits for its disk. When the store was full that may pass, so it is set off again now and then.
// Returns true when it runs.
static bool try_to_go_on(struct sandbox *sandbox)
{
    enum vm_status status;
    struct store_stat stat;
    struct error err;
    store_stat(sandbox->all->store, &stat);
    if (vm_get_status(sandbox->vm, &status, &err) < 0)
        return false;
    if (status == VM_IO_ERROR &&
            stat.failed == 0) // a store that has failed is for the next daemon to recover
        vm_continue(sandbox->vm, &err);
    return status == VM_RUNNING;
}

static bool is_current(struct sandbox *sandbox, const struct event_work *work)
{
    pthread_mutex_lock(&work->all->lock);
    // A paused one's VMM can end too; what its disk does is nobody's business until it goes on.
    bool live = work->kind == VM_EVENT_EXITED ? sandbox_is_live(sandbox)
                                              : sandbox->record.state == SANDBOX_RUNNING;
    bool current =
            sandbox->vm_generation == work->generation && sandbox->vm != NULL && live && !work->all->quiesced;
    pthread_mutex_unlock(&work->all->lock);
    return current;
}

// One turn; false when there is no more to do. A failed disk fails many requests, each with an event: there
// is one worker for all of them, and it ends only when none came since it found the guest running.
static bool watch_disk(const struct event_work *work, bool first)
{
    struct sandboxes *all = work->all;
    struct sandbox *sandbox;
    int r = sandbox_begin(all, work->id, "being looked after", &sandbox, NULL);
    if (r < 0)
        return r == -EBUSY; // something that takes long: later
    bool more = is_current(sandbox, work);
    if (more && first) {
        sandbox_log(all, "sandbox %s: its disk failed and the guest waits: %s", sandbox->record.name,
                work->detail);
        set_reason(sandbox, "its disk failed and the guest waits: %.200s", work->detail);
    }
    pthread_mutex_lock(&all->lock);
    unsigned seen = sandbox->io_errors;
    pthread_mutex_unlock(&all->lock);
    bool runs = more && !first && try_to_go_on(sandbox);
    pthread_mutex_lock(&all->lock);
    more = more && !(runs && seen == sandbox->io_errors);
    if (!more)
        sandbox->io_errors = 0;
    pthread_mutex_unlock(&all->lock);
    if (runs && !more) {
        sandbox_log(all, "sandbox %s: its disk works again and the guest goes on", sandbox->record.name);
        set_reason(sandbox, "%s", "");
    }
    sandbox_finish(sandbox);
    return more;
}

static void look_after_exit(const struct event_work *work)
{
    struct sandbox *sandbox;
    int r;
    do // nobody else would ever find out, so a turn that takes long is waited for again
        r = sandbox_begin(work->all, work->id, "being looked after", &sandbox, NULL);
    while (r == -EBUSY);
    if (r < 0)
        return;
    if (is_current(sandbox, work))
        handle_exit(sandbox, work->detail);
    sandbox_finish(sandbox);
}

static void *work_thread(void *context)
{
    struct event_work *work = context;
    struct sandboxes *all = work->all;
    if (work->kind == VM_EVENT_IO_ERROR) {
        bool more = watch_disk(work, true);
        while (more && sandbox_worker_wait(all, ROOM_CHECK_MS))
            more = watch_disk(work, false);
    } else {
        look_after_exit(work);
    }
    free(work);
    sandbox_worker_end(all);
    return NULL;
}

static void start_work(struct sandbox *sandbox, enum vm_event_kind kind, const char *detail)
{
    struct sandboxes *all = sandbox->all;
    struct event_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return;
    work->all = all;
    work->kind = kind;
    snprintf(work->detail, sizeof work->detail, "%s", detail == NULL ? "" : detail);
    pthread_mutex_lock(&all->lock);
    memcpy(work->id, sandbox->record.id, sizeof work->id);
    work->generation = sandbox->vm_generation;
    bool go = !all->quiesced;
    if (kind == VM_EVENT_IO_ERROR)
        go = sandbox->io_errors++ == 0 && go;
    bool began = go && sandbox_worker_start_locked(all, work_thread, work) == 0;
    if (go && !began && kind == VM_EVENT_IO_ERROR)
        sandbox->io_errors = 0; // the next one tries again
    pthread_mutex_unlock(&all->lock);
    if (!began)
        free(work);
}

struct image_search {
    struct base_id base;
    char name[STORE_NAME_MAX + 1];
};

static void match_image(void *context, const struct doc *doc)
{
    struct image_search *search = context;
    for (unsigned i = 0; i < doc->base_count && search->name[0] == '\0'; i++)
        if (doc->bases[i].value == search->base.value)
            snprintf(search->name, sizeof search->name, "%s", doc->name);
}

// How a VMM ended, and of which snapshot the memory was that it had mapped: what is damaged is there.
static void describe_exit(struct sandbox *sandbox, const char *detail, char *text, size_t size)
{
    struct image_search search = {0};
    if (detail == NULL || detail[0] == '\0')
        detail = "the VMM ended by itself";
    pthread_mutex_lock(&sandbox->all->lock);
    search.base = sandbox->record.mapped;
    pthread_mutex_unlock(&sandbox->all->lock);
    if (search.base.value == 0 || strstr(detail, "memory image") == NULL) {
        snprintf(text, size, "%s", detail);
        return;
    }
    store_doc_list(sandbox->all->store, DOC_MACHINE, match_image, &search);
    if (search.name[0] != '\0')
        snprintf(text, size,
                "%.120s (it goes on from snapshot \"%.40s\", image %llu; `ramet store check` says "
                "what is damaged)",
                detail, search.name, (unsigned long long)search.base.value);
    else
        snprintf(text, size,
                "%.120s (image %llu, of a snapshot that was removed or has no name; `ramet store check` "
                "says what is damaged)",
                detail, (unsigned long long)search.base.value);
}

void sandbox_watch_event(void *context, enum vm_event_kind kind, const char *detail)
{
    struct sandbox *sandbox = context;
    struct sandboxes *all = sandbox->all;
    char how[sizeof sandbox->exit_detail];
    switch (kind) {
    case VM_EVENT_GUEST_RESET:
    case VM_EVENT_GUEST_SHUTDOWN:
        pthread_mutex_lock(&all->lock);
        sandbox->reset_asked |= kind == VM_EVENT_GUEST_RESET;
        sandbox->shut_down |= kind == VM_EVENT_GUEST_SHUTDOWN;
        pthread_mutex_unlock(&all->lock);
        break;
    case VM_EVENT_EXITED:
        describe_exit(sandbox, detail, how, sizeof how);
        pthread_mutex_lock(&all->lock); // who waits for the guest's answer wants to know
        snprintf(sandbox->exit_detail, sizeof sandbox->exit_detail, "%s", how);
        pthread_cond_broadcast(&all->changed);
        pthread_mutex_unlock(&all->lock);
        start_work(sandbox, kind, how);
        break;
    case VM_EVENT_IO_ERROR:
        start_work(sandbox, kind, detail);
        break;
    case VM_EVENT_GUEST_PANIC:
        sandbox_log(all, "sandbox %s: the guest's kernel panicked", sandbox->record.name);
        break;
    case VM_EVENT_CONTROL_LOST:
        sandbox_log(all, "sandbox %s: the control connection to its VMM broke: %s", sandbox->record.name,
                detail == NULL ? "" : detail);
        break;
    case VM_EVENT_STOPPED:
    case VM_EVENT_RUNNING:
        break;
    }
}
