// SPDX-License-Identifier: Apache-2.0
// What a script looks at: the live state, recoveries, interrupted and failing ones; and its end.
#include "tests/crash/script_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/scenarios.h"

void script_look(struct script *script)
{
    for (size_t i = 0; i < script->io_count; i++)
        script_wait(script, script->io[i]);
    if (script->failed)
        return;
    sim_world_settle(script->rig.world);
    struct picture live;
    char why[1200];
    if (picture_take(script->rig.world, script->rig.store, false, &live) < 0)
        script_blame(script, "live: %s answered %d", live.where, live.first_error);
    else if (!model_judge(script->model, &live, MODEL_LIVE, why, sizeof why))
        script_blame(script, "live: %s", why);
    sim_world_settle(script->rig.world);
    if (!script->failed)
        script_crash(script, false, true, &live);
    if (!script->failed)
        model_observe(script->model, &live);
    picture_free(&live);
}

void script_interrupt_recovery(struct script *script)
{
    struct sim_options sim = {.loop_count = 4, .trace = scenarios_trace};
    struct sim_world *world = sim_world_after_power_cut(script->rig.world, script->seed, &sim);
    struct rig_options calm = {.loop_count = 2, .opening = script->rig.opening};
    struct picture first, picture;
    char why[1200];
    if (script->failed ||
            rig_recover(sim_world_after_kill(world, 1, &sim), &calm, &first, why, sizeof why) < 0) {
        script_blame(script, "recovery: %s", why);
        sim_world_destroy(world);
        return;
    }
    if (!model_judge(script->model, &first, MODEL_POWER_CUT, why, sizeof why))
        script_blame(script, "power cut: %s", why);
    bool complete = false;
    for (uint64_t io = 1; !complete && !script->failed; io++) {
        // What the interrupted recovery left becomes the start of the next: damage would add up.
        sim_world_cut_at(world, io);
        struct rig rig;
        complete = rig_open(&rig, world, 1 + io % 3, script->rig.opening, why, sizeof why) == 0;
        if (complete && !rig_close(&rig, why, sizeof why))
            script_blame(script, "recovery cut at I/O %" PRIu64 ": %s", io, why);
        complete = complete && !sim_world_is_cut(world);
        struct sim_world *next = sim_world_after_power_cut(world, script->seed * 7919 + io, &sim);
        sim_world_destroy(world);
        world = next;
        script->points++;
        if (rig_recover(sim_world_after_kill(world, io, &sim), &calm, &picture, why, sizeof why) < 0) {
            script_blame(script, "recovery cut at I/O %" PRIu64 ", then: %s", io, why);
            break;
        }
        if (picture_differ(&first, &picture, why, sizeof why))
            script_blame(script, "recovery cut at I/O %" PRIu64 " ends in another state: %s", io, why);
        picture_free(&picture);
    }
    picture_free(&first);
    sim_world_destroy(world);
}

void script_restart(struct script *script, bool kill)
{
    char why[1000];
    for (size_t i = 0; i < script->io_count; i++)
        script_wait(script, script->io[i]);
    if (script->failed)
        return;
    sim_world_settle(script->rig.world);
    for (size_t i = 0; i < script->handle_count; i++)
        script->handle[i] = volume_close(script->handle[i]);
    struct sim_world *old = script->rig.world, *next = old;
    if (kill) {
        next = sim_world_after_kill(old, script->seed + script->points, NULL);
        sim_world_cut(old);
    }
    script->points++;
    if (!rig_close(&script->rig, why, sizeof why))
        script_blame(script, "close: %s", why);
    if (kill)
        sim_world_destroy(old);
    if (rig_open(&script->rig, next, 1 + script->seed % 3, script->rig.opening, why, sizeof why) < 0)
        script_blame(script, "after %s: %s", kill ? "a kill" : "an orderly close", why);
}

void script_fail_recovery(struct script *script, enum io_code code)
{
    struct sim_options sim = {.loop_count = 4};
    struct rig_options calm = {.loop_count = 2, .opening = script->rig.opening};
    struct picture first, picture;
    char why[1000];
    if (script->failed)
        return;
    struct sim_world *start = sim_world_after_power_cut(script->rig.world, script->seed, &sim);
    if (rig_recover(sim_world_after_kill(start, 1, &sim), &calm, &first, why, sizeof why) < 0) {
        script_blame(script, "recovery: %s", why);
        sim_world_destroy(start);
        return;
    }
    bool hit = true;
    for (uint64_t nth = 1; hit && !script->failed; nth++) {
        struct sim_world *world = sim_world_after_kill(start, nth, &sim);
        sim_world_fault(world, &(struct sim_fault){.code = code, .nth = nth, .error = EIO});
        struct rig rig;
        int result = rig_open(&rig, world, 1 + nth % 3, script->rig.opening, why, sizeof why);
        hit = sim_world_faults_hit(world) > 0;
        unsigned files = sim_world_open_files(world), operations = sim_world_in_flight(world);
        if (result < 0 && (!hit || files > 0 || operations > 0))
            script_blame(script,
                    "error at call %" PRIu64 " of kind %d in a recovery left %u files, %u operations; %s",
                    nth, code, files, operations, why);
        if (result == 0 && !rig_close(&rig, why, sizeof why))
            script_blame(script, "error at call %" PRIu64 " of kind %d in a recovery, then close: %s", nth,
                    code, why);
        struct sim_world *next = sim_world_after_power_cut(world, script->seed * 31 + nth, &sim);
        sim_world_destroy(world);
        script->points++;
        if (rig_recover(next, &calm, &picture, why, sizeof why) < 0) {
            script_blame(script, "error at call %" PRIu64 " of kind %d in a recovery, the next: %s", nth,
                    code, why);
            break;
        }
        if (picture_differ(&first, &picture, why, sizeof why))
            script_blame(script,
                    "error at call %" PRIu64 " of kind %d in a recovery, the next is another: %s", nth, code,
                    why);
        picture_free(&picture);
    }
    picture_free(&first);
    sim_world_destroy(start);
}

bool script_end(struct script *script, uint64_t *points, char *text, size_t text_size)
{
    char why[900];
    script_look(script);
    if (script->failed)
        sim_world_cut(script->rig.world);
    bool hung = false;
    for (size_t i = 0; i < script->io_count; i++)
        while (!script->io[i]->done && !hung)
            hung = sim_world_step(script->rig.world) == 0;
    for (size_t i = 0; i < script->handle_count && !hung; i++)
        volume_close(script->handle[i]);
    if (!hung && script->rig.store != NULL && !rig_close(&script->rig, why, sizeof why))
        script_blame(script, "close: %s", why);
    for (size_t i = 0; i < script->io_count && !hung; i++)
        free(script->io[i]);
    if (!hung) {
        sim_world_destroy(script->rig.world);
        model_destroy(script->model);
        free(script->io);
        free(script->handle);
    }
    *points += script->points;
    if (script->failed)
        snprintf(text, text_size, "%s", script->text);
    return !script->failed;
}
