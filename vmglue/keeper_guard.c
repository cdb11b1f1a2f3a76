// SPDX-License-Identifier: Apache-2.0
// Locks, in this order: `registry` (which guard there is), then the guard's own (its table, and one revival
// at a time). Both are held while a keeper is started, which takes milliseconds.
#include "vmglue/keeper_guard.h"

#include "vmglue/keeper_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RETRY_MS = 1000, ATTEMPTS = 5 };

struct kept {
    struct kept *next;
    char name[KEEPER_NAME_MAX + 1];
    int fd;
};

struct keeper_guard {
    char *run_dir, *libexec_dir;
    void (*event)(void *context, const char *message);
    void *context;
    int stop_fd;
    int watch_fd; // the guard's thread's own: a connection that ends with the keeper; -1 = none
    pthread_t thread;
    pthread_mutex_t lock;
    struct kept *kept; // under lock
    bool untold;       // under lock: a revival that nobody has been told of
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct keeper_guard *current; // under registry

static void note_locked(struct keeper_guard *guard, const char *name, int fd)
{
    struct kept **link = &guard->kept;
    while (*link != NULL && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    struct kept *kept = *link;
    if (kept != NULL)
        close(kept->fd);
    else if (fd >= 0 && (kept = *link = calloc(1, sizeof *kept)) != NULL)
        snprintf(kept->name, sizeof kept->name, "%s", name);
    if (kept == NULL)
        return; // nothing to drop; or no memory: not guarded, still kept
    kept->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (kept->fd < 0) {
        *link = kept->next;
        free(kept);
    }
}

static void tell(struct keeper_guard *guard, const char *format, const char *text)
{
    char message[700];
    snprintf(message, sizeof message, format, text);
    if (guard->event != NULL)
        guard->event(guard->context, message);
}

// Nothing to do when a keeper answers by now.
static int revive_locked(struct keeper_guard *guard, struct error *err)
{
    int fd;
    if (keeper_client_connect(guard->run_dir, &fd, err) == 0) {
        close(fd);
        return 0;
    }
    int result = keeper_ensure(guard->run_dir, guard->libexec_dir, err);
    for (struct kept *kept = guard->kept; kept != NULL && result == 0; kept = kept->next)
        result = keeper_client_put(guard->run_dir, kept->name, kept->fd, err);
    guard->untold = guard->untold || result == 0;
    return result;
}

// Told only once the new one is watched, and once whoever revived it.
static void tell_revival(struct keeper_guard *guard)
{
    pthread_mutex_lock(&guard->lock);
    bool untold = guard->untold;
    guard->untold = false;
    pthread_mutex_unlock(&guard->lock);
    if (untold)
        tell(guard, "the keeper had died; another one holds what it held%s", "");
}

static bool stop_within(struct keeper_guard *guard, int watch_fd, int timeout_ms)
{
    struct pollfd fds[] = {{.fd = guard->stop_fd, .events = POLLIN}, {.fd = watch_fd, .events = POLLIN}};
    while (poll(fds, 2, timeout_ms) < 0 && errno == EINTR)
        ;
    return fds[0].revents != 0;
}

static void *watch(void *argument)
{
    struct keeper_guard *guard = argument;
    struct error err;
    for (;;) {
        if (stop_within(guard, guard->watch_fd, guard->watch_fd < 0 ? RETRY_MS : -1))
            break;
        if (guard->watch_fd >= 0)
            close(guard->watch_fd);
        guard->watch_fd = -1;
        int result = -1;
        for (unsigned attempt = 0; attempt < ATTEMPTS && result < 0; attempt++) {
            pthread_mutex_lock(&guard->lock);
            result = revive_locked(guard, &err);
            pthread_mutex_unlock(&guard->lock);
            if (result < 0)
                break;
            // A keeper that is dying may still have been reached above, and refuse here: look again.
            result = keeper_client_connect(guard->run_dir, &guard->watch_fd, &err);
        }
        if (result == 0)
            tell_revival(guard);
        if (result < 0)
            tell(guard, "the keeper is gone, and no other can be started: %s", err.text);
    }
    if (guard->watch_fd >= 0)
        close(guard->watch_fd);
    return NULL;
}

static struct keeper_guard *free_guard(struct keeper_guard *guard)
{
    while (guard->kept != NULL)
        note_locked(guard, guard->kept->name, -1);
    if (guard->stop_fd >= 0)
        close(guard->stop_fd);
    pthread_mutex_destroy(&guard->lock);
    free(guard->run_dir);
    free(guard->libexec_dir);
    free(guard);
    return NULL;
}

struct copying {
    struct keeper_guard *guard;
    struct error *err;
    int result;
};

static void copy_one(void *context, const char *name)
{
    struct copying *copying = context;
    int fd;
    if (copying->result < 0)
        return;
    copying->result = keeper_get(copying->guard->run_dir, name, &fd, copying->err);
    if (copying->result < 0)
        return;
    note_locked(copying->guard, name, fd);
    close(fd);
}

static int start_thread(struct keeper_guard *guard)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&guard->thread, NULL, watch, guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -result;
}

static int start_locked(struct keeper_guard *guard, struct error *err)
{
    if (current != NULL)
        return error_set(err, -EBUSY, "this process guards the keeper of %s already", current->run_dir);
    struct copying copying = {guard, err, 0};
    int result = keeper_list(guard->run_dir, copy_one, &copying, err);
    if (result == 0)
        result = copying.result;
    if (result == 0)
        result = keeper_client_connect(guard->run_dir, &guard->watch_fd, err);
    if (result < 0)
        return result;
    result = start_thread(guard);
    if (result < 0) {
        close(guard->watch_fd);
        return error_set(err, result, "cannot start a thread to guard the keeper: %s", strerror(-result));
    }
    current = guard;
    return 0;
}

int keeper_guard_start(const char *run_dir, const char *libexec_dir,
        void (*event)(void *context, const char *message), void *context, struct keeper_guard **ret_guard,
        struct error *err)
{
    struct keeper_guard *guard = calloc(1, sizeof *guard);
    if (guard == NULL)
        return error_set(err, -ENOMEM, "out of memory");
    guard->run_dir = strdup(run_dir);
    guard->libexec_dir = strdup(libexec_dir);
    guard->event = event;
    guard->context = context;
    guard->watch_fd = -1;
    guard->stop_fd = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&guard->lock, NULL);
    int result;
    if (guard->run_dir == NULL || guard->libexec_dir == NULL || guard->stop_fd < 0) {
        result = error_set(err, -ENOMEM, "no memory or descriptors left to guard the keeper");
    } else {
        pthread_mutex_lock(&registry);
        result = start_locked(guard, err);
        pthread_mutex_unlock(&registry);
    }
    if (result < 0) {
        free_guard(guard);
        return result;
    }
    *ret_guard = guard;
    return 0;
}

struct keeper_guard *keeper_guard_stop(struct keeper_guard *guard)
{
    if (guard == NULL)
        return NULL;
    pthread_mutex_lock(&registry);
    current = NULL;
    pthread_mutex_unlock(&registry);
    eventfd_write(guard->stop_fd, 1);
    pthread_join(guard->thread, NULL);
    return free_guard(guard);
}

static bool guards_locked(const char *run_dir)
{
    return current != NULL && strcmp(current->run_dir, run_dir) == 0;
}

void keeper_guard_note(const char *run_dir, const char *name, int fd)
{
    pthread_mutex_lock(&registry);
    if (guards_locked(run_dir)) {
        pthread_mutex_lock(&current->lock);
        note_locked(current, name, fd);
        pthread_mutex_unlock(&current->lock);
    }
    pthread_mutex_unlock(&registry);
}

int keeper_guard_revive(const char *run_dir, struct error *err)
{
    int result = -ENOENT;
    pthread_mutex_lock(&registry);
    if (guards_locked(run_dir)) {
        pthread_mutex_lock(&current->lock);
        result = revive_locked(current, err);
        pthread_mutex_unlock(&current->lock);
    }
    pthread_mutex_unlock(&registry);
    return result;
}
