// SPDX-License-Identifier: Apache-2.0
#include "vmglue/sandbox_steps.h"

#include "vmglue/sandbox_internal.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[STEP_COUNT] = {
        [STEP_CREATE_RECORDED] = "create.recorded",
        [STEP_CREATE_RUNNING] = "create.running",
        [STEP_VM_SERVED] = "vm.served",
        [STEP_VM_STARTED] = "vm.started",
        [STEP_VM_ANSWERED] = "vm.answered",
        [STEP_START_RECORDED] = "start.recorded",
        [STEP_START_RUNNING] = "start.running",
        [STEP_PAUSE_FROZEN] = "pause.frozen",
        [STEP_PAUSE_RECORDED] = "pause.recorded",
        [STEP_PAUSE_PAUSED] = "pause.paused",
        [STEP_RESUME_RECORDED] = "resume.recorded",
        [STEP_RESUME_CONTINUED] = "resume.continued",
        [STEP_CAPTURE_COPYING] = "capture.copying",
        [STEP_CAPTURE_FREEZING] = "capture.freezing",
        [STEP_CAPTURE_PAUSING] = "capture.pausing",
        [STEP_CAPTURE_COMMITTING] = "capture.committing",
        [STEP_SNAPSHOT_TAKEN] = "snapshot.taken",
        [STEP_FORK_CAPTURED] = "fork.captured",
        [STEP_FORK_RUNNING] = "fork.running",
        [STEP_STOP_CAPTURED] = "stop.captured",
        [STEP_STOP_QUIET] = "stop.quiet",
        [STEP_STOP_RECORDED] = "stop.recorded",
        [STEP_STOP_ENDED] = "stop.ended",
        [STEP_RESTORE_KEPT] = "restore.kept",
        [STEP_RESTORE_RECORDED] = "restore.recorded",
        [STEP_RESTORE_RUNNING] = "restore.running",
        [STEP_PROMOTE_RECORDED] = "promote.recorded",
        [STEP_PROMOTE_REMOVED] = "promote.removed",
        [STEP_REMOVE_RECORDED] = "rm.recorded",
        [STEP_REMOVE_ENDED] = "rm.ended",
        [STEP_REMOVE_DELETED] = "rm.deleted",
        [STEP_POOL_STANDS] = "pool.stands",
        [STEP_POOL_PARKED] = "pool.parked",
        [STEP_POOL_CONTINUED] = "pool.continued",
        [STEP_POOL_WOKEN] = "pool.woken",
        [STEP_REQUEST_RECORDED] = "request.recorded",
        [STEP_REQUEST_MADE] = "request.made",
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int armed_step = -1;
static bool ends_daemon, ends_vmm;
static atomic_flag taken = ATOMIC_FLAG_INIT;

static void read_environment(void)
{
    const char *text = getenv("RAMET_TEST_STOP_AT");
    if (text == NULL)
        return;
    const char *colon = strchr(text, ':'), *what = colon == NULL ? "daemon" : colon + 1;
    size_t length = colon == NULL ? strlen(text) : (size_t)(colon - text);
    for (int i = 0; i < STEP_COUNT; i++)
        if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0)
            armed_step = i;
    ends_vmm = strcmp(what, "vmm") == 0 || strcmp(what, "both") == 0;
    ends_daemon = strcmp(what, "vmm") != 0;
}

const char *sandbox_step_name(enum sandbox_step step)
{
    return (unsigned)step < STEP_COUNT ? names[step] : NULL;
}

void sandbox_step(struct sandbox *sandbox, enum sandbox_step step)
{
    pthread_once(&once, read_environment);
    if ((int)step != armed_step || atomic_flag_test_and_set(&taken))
        return;
    if (ends_vmm && sandbox != NULL && sandbox->vm != NULL)
        kill(sandbox->vm->pid, SIGKILL);
    if (ends_daemon)
        kill(getpid(), SIGKILL);
}
