// SPDX-License-Identifier: Apache-2.0
// Clients that ask for sealing, collecting and scrubbing, beside all the others.
#include "tests/crash/workload_private.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static void chore_done(struct chore *call)
{
    struct client *client = (struct client *)((char *)call - offsetof(struct client, chore));
    struct workload *workload = client->workload;
    const char *what = chore_names[call->kind];
    if (sim_world_is_cut(workload->world)) {
        workload_finished(client);
        return;
    }
    if (call->result < 0 && !workload_tolerated(workload, call->result))
        workload_fail(workload, "%s answered %d (%s)", what, call->result, call->err.text);
    if (call->result < 0 && call->err.text[0] == '\0')
        workload_fail(workload, "%s failed with %d and without a word", what, call->result);
    if (call->damages > 0 && !workload->options.faults) // a file that cannot be opened counts as damaged
        workload_fail(workload, "%s found damage in a sound store: %s", what, call->damage);
    // A checkpoint is durable, with everything that was answered before it was asked for.
    bool checkpoint = call->kind != CHORE_SCRUB && call->kind != CHORE_CHECK;
    if (call->result >= 0 && checkpoint)
        model_flushed(workload->model, client->began);
    workload_finished(client);
}

bool workload_start_chore(struct client *client)
{
    struct workload *workload = client->workload;
    static const unsigned share[CHORE_KINDS] = {50, 25, 10, 10, 5};
    unsigned dice = (unsigned)workload_pick(workload, 100), kind = 0;
    while (dice >= share[kind])
        dice -= share[kind++];
    client->chore = (struct chore){.kind = kind, .done = chore_done};
    client->began = model_tick(workload->model);
    if (workload->model->trace)
        fprintf(workload->model->trace, "t=%llu %s\n", (unsigned long long)client->began, chore_names[kind]);
    chore_submit(workload->store, &client->chore);
    return true;
}
