// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/interrupt.h"

#include "tools/ramet/output.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATUS_SIGNAL = 128 };

struct interrupt {
    interrupt_undo *undo;
    void *context;
    struct interrupt *before;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct interrupt *latest; // protected by mutex
static bool started;
static atomic_bool signalled; // this program is about to end

// Not those that are ignored (nohup, a job in the background): blocked ones would come all the same. False:
// there is none.
static bool signals(sigset_t *ret_set)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    bool any = false;
    sigemptyset(ret_set);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            continue;
        sigaddset(ret_set, numbers[i]);
        any = true;
    }
    return any;
}

static void *wait_for_signal(void *context)
{
    sigset_t set;
    int number;
    signals(&set);
    if (sigwait(&set, &number) != 0)
        return NULL;
    atomic_store(&signalled, true);
    pthread_mutex_lock(&mutex); // whoever completes something now waits, for ever
    progress_leave();
    for (struct interrupt *one = latest; one != NULL; one = one->before)
        one->undo(one->context);
    _exit(STATUS_SIGNAL + number);
}

void interrupt_start(void)
{
    pthread_t thread;
    sigset_t set;
    if (started || !signals(&set))
        return;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    started = pthread_create(&thread, NULL, wait_for_signal, NULL) == 0;
    if (started)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

struct interrupt *interrupt_add(interrupt_undo *undo, void *context)
{
    if (!started)
        return NULL;
    struct interrupt *one = malloc(sizeof *one);
    if (one == NULL)
        abort();
    pthread_mutex_lock(&mutex);
    *one = (struct interrupt){undo, context, latest};
    latest = one;
    pthread_mutex_unlock(&mutex);
    return one;
}

void interrupt_hold(void)
{
    pthread_mutex_lock(&mutex);
}

void interrupt_release(void)
{
    pthread_mutex_unlock(&mutex);
    while (atomic_load(&signalled)) // what comes next must not make again what is undone now
        pause();
}

void interrupt_remove(struct interrupt *interrupt)
{
    if (interrupt == NULL)
        return;
    pthread_mutex_lock(&mutex);
    struct interrupt **at = &latest;
    while (*at != NULL && *at != interrupt)
        at = &(*at)->before;
    if (*at != NULL)
        *at = interrupt->before;
    pthread_mutex_unlock(&mutex);
    free(interrupt);
}
