// SPDX-License-Identifier: Apache-2.0
// Keeps the clocks of running guests right. The after-fork step sets a guest's clock before its processes
// run, but on a busy host the word may take long to arrive; each snapshot costs the source the length of its
// pause; emulated processors drift; and the host's own clock may be set. So each guest is asked now and then,
// and its clock is set when it certainly is wrong. One thread asks them all in turn; a guest that does not
// answer costs it ASK_MS, and is asked again in the next round. Asking is no activity of the sandbox.
#include "vmglue/sandbox_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUND_MS = 10000, ASK_MS = 2000, ERROR_MS = 10 };

// The next running sandbox after the one of that id (NULL: the first), with its agent in use; NULL: no more.
static struct sandbox *take_next(struct sandboxes *all, const char *after, struct agent **ret_agent)
{
    struct sandbox *found = NULL;
    pthread_mutex_lock(&all->lock);
    struct sandbox *sandbox = all->list;
    while (after != NULL && sandbox != NULL && strcmp(sandbox->record.id, after) != 0)
        sandbox = sandbox->next;
    if (after != NULL && sandbox != NULL)
        sandbox = sandbox->next; // one that was removed meanwhile ends the round
    for (; sandbox != NULL && found == NULL && !all->quiesced; sandbox = sandbox->next)
        if (!sandbox->removed && sandbox->op == NULL && sandbox->agent != NULL &&
                sandbox->record.state == SANDBOX_RUNNING)
            found = sandbox;
    if (found != NULL) {
        found->references++;
        found->agent_users++; // so it stays
        found->own_questions++;
        *ret_agent = found->agent;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

static void let_go(struct sandbox *sandbox)
{
    struct sandboxes *all = sandbox->all;
    pthread_mutex_lock(&all->lock);
    sandbox->agent_users--;
    sandbox->own_questions--;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    sandbox_put(sandbox);
}

// Nothing to be done about a guest that fails to answer: the next call into it will say so.
static void correct(struct agent *agent)
{
    struct error err;
    int64_t offset_ns;
    uint64_t doubt_ns;
    if (agent_clock_offset(agent, ASK_MS, &offset_ns, &doubt_ns, &err) < 0)
        return;
    uint64_t off = offset_ns < 0 ? 0 - (uint64_t)offset_ns : (uint64_t)offset_ns;
    if (off > doubt_ns + (uint64_t)ERROR_MS * 1000000)
        agent_set_clock(agent, &err);
}

static void *clock_thread(void *context)
{
    struct sandboxes *all = context;
    char id[SANDBOX_ID_SIZE];
    while (sandbox_worker_wait(all, ROUND_MS)) {
        struct agent *agent = NULL;
        struct sandbox *sandbox = take_next(all, NULL, &agent);
        while (sandbox != NULL) {
            correct(agent);
            memcpy(id, sandbox->record.id, sizeof id);
            let_go(sandbox);
            sandbox = take_next(all, id, &agent);
        }
    }
    sandbox_worker_end(all);
    return NULL;
}

int sandbox_clock_start(struct sandboxes *all, struct error *err)
{
    int r = sandbox_worker_start(all, clock_thread, all);
    return r < 0 ? error_set(
                           err, r, "the thread that keeps guests' clocks cannot be started: %s", strerror(-r))
                 : 0;
}
