// SPDX-License-Identifier: Apache-2.0
// Damage: flipped bits in everything that is stored.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/crash/scenarios_private.h"
#include "tests/crash/script.h"
#include "tests/sim/sim_checkpoint.h"

struct flipping {
    struct scenario_result *result;
    uint64_t seed;
    unsigned refused, unreadable, harmless;
};

// The world as it is, or as an orderly close leaves it, with everything durable.
static struct sim_world *to_be_damaged(struct rig *rig, bool closed, struct crash_run_result *run)
{
    struct sim_options sim = {.loop_count = 4};
    struct sim_world *world = sim_world_after_kill(rig->world, 1, &sim);
    struct rig again;
    char why[400] = "";
    if (closed && (rig_open(&again, world, 2, rig->opening, why, sizeof why) < 0 ||
                          !rig_close(&again, why, sizeof why))) {
        run->failed = true;
        snprintf(run->text, sizeof run->text, "before any damage: %s", why);
    }
    return world;
}

// Damages one thing: a bit of a file, or the checkpoint. False when it found nothing to flip.
static bool flip_something(struct sim_disk *disk, uint64_t *random, char *what, size_t what_size)
{
    const char *found[2000];
    size_t count = 0, segments = 0;
    uint64_t dice = sim_random_below(random, 100);
    if (dice < 3) {
        snprintf(what, what_size, "a row of the checkpoint");
        return sim_checkpoint_damage(disk, RIG_DIRECTORY "/catalog") == 0;
    }
    for (size_t i = 0; sim_disk_path(disk, i) != NULL; i++)
        segments += strstr(sim_disk_path(disk, i), "/segments/") != NULL;
    for (size_t i = 0; sim_disk_path(disk, i) != NULL && count < 2000; i++) {
        bool segment = strstr(sim_disk_path(disk, i), "/segments/") != NULL;
        if (segments == 0 || segment == (dice < 60))
            found[count++] = sim_disk_path(disk, i);
    }
    const char *path = found[sim_random_below(random, count)];
    uint64_t size = (uint64_t)sim_disk_size(disk, path), offset = 0;
    uint8_t byte = 0;
    if (size == 0)
        return false;
    // Half of the time the beginning of a block, where headers are; sometimes the end, where footers are.
    for (unsigned attempt = 0; attempt < 200 && byte == 0; attempt++) {
        offset = sim_random_below(random, size);
        if (sim_random(random) % 2)
            offset = offset / BLOCK_SIZE * BLOCK_SIZE + sim_random_below(random, 200);
        else if (sim_random(random) % 4 == 0)
            offset = size - 1 - sim_random_below(random, size < 3 * BLOCK_SIZE ? size : 3 * BLOCK_SIZE);
        sim_disk_peek(disk, path, offset, &byte, 1);
    }
    snprintf(what, what_size, "%s at %" PRIu64, path, offset);
    sim_disk_flip(disk, path, offset, (unsigned)sim_random_below(random, 8));
    return true;
}

// A flipped bit anywhere gives an error or right data.
static void flip_bits(void *context, struct rig *rig, struct model *model, struct crash_run_result *run)
{
    struct flipping *flipping = context;
    uint64_t random = flipping->seed;
    // Two flushes with a record between them: what the first promised is on record as durable.
    struct script script;
    script_join(&script, rig, model);
    struct model_volume *last = script_create(&script, BLOCK_SIZE, NULL);
    script_wait(&script, script_flush(&script, last));
    script_raw_write_and_flush(&script, last);
    bool closed = flipping->seed % 2 == 0;
    struct sim_world *start = to_be_damaged(rig, closed, run);
    for (unsigned i = 0; i < 150 && !run->failed; i++) {
        struct sim_world *after = sim_world_after_kill(start, i, NULL);
        char what[240] = "";
        if (!flip_something(sim_world_disk(after), &random, what, sizeof what)) {
            sim_world_destroy(after);
            continue;
        }
        struct rig_options options = {.loop_count = 2, .opening = rig->opening, .tolerant = true, .seed = i};
        struct picture picture;
        char why[1200];
        int answer = rig_recover(after, &options, &picture, why, sizeof why);
        run->points++;
        if (answer == -EPROTO || answer == -EDEADLK) {
            run->failed = true;
        } else if (answer < 0) {
            flipping->refused++;
            continue;
        } else {
            flipping->unreadable += picture.first_error != 0;
            flipping->harmless += picture.first_error == 0;
            run->failed =
                    !model_judge(model, &picture, closed ? MODEL_KILLED : MODEL_POWER_CUT, why, sizeof why);
            picture_free(&picture);
        }
        if (run->failed)
            snprintf(run->text, sizeof run->text, "seed %" PRIu64 ": a bit flipped in %s: %s", flipping->seed,
                    what, why);
    }
    sim_world_destroy(start);
}

bool scenarios_bit_flips(struct scenario_result *result)
{
    struct flipping flipping = {.result = result};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        flipping.seed = seed;
        struct crash_run_options options = {.seed = seed,
                .points = 1,
                .generations = 1 + seed % 2,
                .operations = 120,
                .store = scenarios_small_log,
                .at_end = flip_bits,
                .context = &flipping};
        struct crash_run_result run;
        options.trace = scenarios_trace;
        crash_run(&options, &run);
        if (!scenarios_take(result, &run))
            return false;
    }
    snprintf(result->note, sizeof result->note,
            "%u stores refused to open, %u had unreadable blocks, %u showed all of it", flipping.refused,
            flipping.unreadable, flipping.harmless);
    return true;
}

// ---- Scrubs ----

struct scrubbing {
    unsigned flips, found, refused, unread;
};

// One flipped bit: what cannot be read, a scrub has found; what it finds, it names.
static bool scrub_one(struct scrubbing *scrubbing, struct sim_world *world,
        const struct store_config *opening, uint64_t *random, char *why, size_t why_size)
{
    char what[240] = "", text[900] = "";
    if (!flip_something(sim_world_disk(world), random, what, sizeof what) ||
            strstr(what, "/segments/") == NULL) {
        sim_world_destroy(world);
        return true;
    }
    scrubbing->flips++;
    struct rig rig;
    if (rig_open(&rig, world, 2, opening, text, sizeof text) < 0) {
        scrubbing->refused++;
        sim_world_destroy(world);
        return true;
    }
    struct picture picture;
    struct chore scrub = {.kind = CHORE_SCRUB};
    bool good = picture_take(world, rig.store, true, &picture) == 0;
    chore_submit(rig.store, &scrub);
    good = good && sim_world_run_until(world, &scrub.answered) == 0;
    scrubbing->found += scrub.damages > 0;
    scrubbing->unread += picture.first_error != 0;
    if (!good)
        snprintf(why, why_size, "a bit flipped in %s: %s is never answered", what, picture.where);
    else if (scrub.result < 0)
        snprintf(why, why_size, "a bit flipped in %s: a scrub answered %d: %s", what, scrub.result,
                scrub.err.text);
    else if (picture.first_error != 0 && scrub.damages == 0)
        snprintf(why, why_size, "a bit flipped in %s: %s answered %d, and a scrub finds nothing", what,
                picture.where, picture.first_error);
    picture_free(&picture);
    if (!rig_close(&rig, text, sizeof text) && why[0] == '\0')
        snprintf(why, why_size, "a bit flipped in %s: %s", what, text);
    sim_world_destroy(world);
    return why[0] == '\0';
}

bool scenarios_scrub(struct scenario_result *result)
{
    struct scrubbing scrubbing = {0};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log, &(struct sim_options){.loop_count = 4});
        uint64_t random = seed;
        script.distinct = seed == 2 ? 30 : 0;
        struct model_volume *volume = script_create(&script, 100 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 3; i++) {
            script_wait(&script, script_write(&script, volume, i * 30 * BLOCK_SIZE, 40 * BLOCK_SIZE, 0));
            script_wait(&script, script_fork(&script, volume));
            script_wait(&script, script_chore(&script, CHORE_SEAL));
        }
        char why[1000] = "";
        for (unsigned i = 0; i < 60 && !script.failed; i++) {
            struct sim_world *world = sim_world_after_kill(script.rig.world, i, NULL);
            result->points++;
            if (!scrub_one(&scrubbing, world, script.rig.opening, &random, why, sizeof why))
                script_fail(&script, why);
        }
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    snprintf(result->note, sizeof result->note,
            "%u bits of segments flipped: %u found, %u of them unreadable, %u refused", scrubbing.flips,
            scrubbing.found, scrubbing.unread, scrubbing.refused);
    bool good = scrubbing.found * 4 > scrubbing.flips * 3 && scrubbing.unread > 0;
    if (!good)
        snprintf(result->text, sizeof result->text, "%s", result->note);
    return good;
}
