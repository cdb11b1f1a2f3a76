// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/chore.h"

#include <stdio.h>
#include <string.h>

const char *const chore_names[CHORE_KINDS] = {
        "a seal", "a collection", "a collection that compresses again", "a scrub", "a check"};

static void damaged(void *context, const char *sentence)
{
    struct chore *chore = context;
    if (strstr(sentence, ": no damage: ") != NULL)
        return; // files that are being made, or left from a rotation
    if (chore->damages++ == 0)
        snprintf(chore->damage, sizeof chore->damage, "%s", sentence);
}

static void done(struct background_job *job, int result, const struct error *err)
{
    struct chore *chore = job->context;
    chore->answered = true;
    chore->result = result;
    if (result < 0)
        chore->err = *err;
    if (chore->done != NULL)
        chore->done(chore);
}

void chore_submit(struct store *store, struct chore *chore)
{
    static const enum background_kind kinds[CHORE_KINDS] = {
            BACKGROUND_SEAL, BACKGROUND_GC, BACKGROUND_GC, BACKGROUND_SCRUB, BACKGROUND_CHECK};
    chore->answered = false;
    chore->damages = 0;
    chore->job = (struct background_job){.kind = kinds[chore->kind],
            .flags = chore->kind == CHORE_RECOMPRESS ? STORE_GC_RECOMPRESS : 0,
            .damaged = damaged,
            .done = done,
            .context = chore};
    background_submit(store, &chore->job);
}
