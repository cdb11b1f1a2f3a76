// SPDX-License-Identifier: Apache-2.0
// Scripts that seal, collect and scrub.
#include "tests/crash/script_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

static void chore_done(struct chore *call)
{
    struct script_io *io = (struct script_io *)((char *)call - offsetof(struct script_io, chore));
    struct script *script = io->script;
    io->done = true;
    io->result = call->result;
    if (sim_world_is_cut(script->rig.world))
        return;
    if (call->result < 0 && call->result != script->allowed)
        script_blame(script, "%s answered %d (%s)", chore_names[call->kind], call->result, call->err.text);
    if (call->result < 0 && call->err.text[0] == '\0')
        script_blame(script, "%s failed with %d and without a word", chore_names[call->kind], call->result);
    if (call->damages > 0 && !script->damaged)
        script_blame(script, "%s found damage in a sound store: %s", chore_names[call->kind], call->damage);
    if (call->result >= 0 && call->kind != CHORE_SCRUB && call->kind != CHORE_CHECK)
        model_flushed(script->model, io->began);
}

struct script_io *script_chore(struct script *script, enum chore_kind kind)
{
    struct script_io *io = script_io_new(script);
    io->began = model_tick(script->model);
    io->chore = (struct chore){.kind = kind, .done = chore_done};
    if (script->failed)
        io->done = true;
    else
        chore_submit(script->rig.store, &io->chore);
    return io;
}

void script_empty(struct script *script)
{
    struct model *model = script->model;
    script_look(script); // whatever was in doubt is known from here on
    for (size_t i = 0; i < model->doc_count && !script->failed; i++)
        if (model_latest(&model->doc[i]->object)->exists)
            script_doc_delete(script, model->doc[i]);
    for (size_t i = 0; i < model->volume_count && !script->failed; i++)
        if (model_latest(&model->volume[i]->object)->exists)
            script_delete(script, model->volume[i]);
    script_wait(script, script_chore(script, CHORE_GC));
    if (script->failed)
        return;
    sim_world_settle(script->rig.world);
    struct store_stat stat;
    store_stat(script->rig.store, &stat);
    if (stat.volumes + stat.bases + stat.docs > 0)
        script_blame(script,
                "everything was deleted, and %" PRIu64 " volumes, %" PRIu64 " bases, %" PRIu64
                " docs are left",
                stat.volumes, stat.bases, stat.docs);
    if (stat.segments > 0 || stat.segment_bytes > 0 || stat.leaving_bytes > 0)
        script_blame(script,
                "everything was deleted and collected, and %" PRIu64 " segments of %" PRIu64
                " bytes are left",
                stat.segments, stat.segment_bytes);
    const struct sim_disk *disk = sim_world_disk(script->rig.world);
    for (size_t i = 0; sim_disk_path(disk, i) != NULL; i++)
        if (strstr(sim_disk_path(disk, i), "/segments/") != NULL)
            script_blame(
                    script, "everything was deleted and collected, and %s is left", sim_disk_path(disk, i));
}
