// SPDX-License-Identifier: Apache-2.0
// Space: little live data never fills a store, a full one can be emptied, and then there is room again.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/crash/scenarios_private.h"
#include "tests/crash/script.h"

static bool end(struct script *script, struct scenario_result *result)
{
    return script_end(script, &result->points, result->text, sizeof result->text);
}

// Live data is a quarter of the log's budget, rewritten in any order: there must always be room.
bool scenarios_never_full(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct crash_run_options options = {.seed = seed,
                .points = 10,
                .generations = 2,
                .operations = 1500,
                .store = scenarios_small_log,
                .opening_given = true,
                .workload = {.clients = 3,
                        .max_volumes = 2,
                        .max_blocks = 120,
                        .never_full = true,
                        .rewrite_only = true}};
        options.workload.operations = options.operations;
        struct crash_run_result run;
        options.trace = scenarios_trace;
        crash_run(&options, &run);
        if (!scenarios_take(result, &run))
            return false;
    }
    snprintf(result->note, sizeof result->note, "10 runs of 3000 rewrites over 2 small volumes");
    return true;
}

// One block that is never written again holds nothing up, nor do snapshots that come and go.
bool scenarios_idle_block(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log, &(struct sim_options){.loop_count = 4});
        uint64_t random = seed;
        struct model_volume *idle = script_create(&script, 16 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, idle, 0, 16 * BLOCK_SIZE, VOLUME_FUA));
        struct model_volume *busy = script_create(&script, 150 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 260 && !script.failed; i++) {
            uint64_t first = sim_random_below(&random, 130), count = 1 + sim_random_below(&random, 20);
            script_wait(&script, script_write(&script, busy, first * BLOCK_SIZE, count * BLOCK_SIZE, 0));
            if (i % 100 == 50)
                script_wait(&script, script_fork(&script, busy));
            if (i % 100 == 99) {
                script_doc_delete(&script, script.model->doc[i / 100]);
                script_delete(&script, script.model->volume[2 + i / 100]);
            }
            if (i == 130)
                script_look(&script);
        }
        if (!end(&script, result))
            return false;
    }
    return true;
}

// Small budgets that fill up from the start, and more spares wanted than fit: the budget holds at every step.
bool scenarios_tight_budget(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        struct crash_run_options options = {.seed = seed,
                .points = 2,
                .generations = 1,
                .store = {.log_file_bytes = 256 * 1024, .spare_log_files = 3},
                .workload = {.clients = 4, .operations = 150, .max_volumes = 4, .max_blocks = 200}};
        options.store.log_budget_bytes = (4 + seed % 8) * options.store.log_file_bytes;
        options.trace = scenarios_trace;
        struct crash_run_result run;
        crash_run(&options, &run);
        if (!scenarios_take(result, &run))
            return false;
    }
    return true;
}

// ---- A full store ----

static void begin_full(
        struct script *script, uint64_t seed, bool quota, struct store_config *opening, bool reserve_given)
{
    const uint64_t room = UINT64_C(12) << 20;
    *opening = (struct store_config){
            .quota_bytes = quota ? room : 0, .reserve_bytes = reserve_given ? 512 << 10 : 0};
    struct sim_options sim = {.loop_count = 4, .capacity_bytes = quota ? 0 : room};
    script_begin_with(script, seed, &scenarios_small_log, opening, &sim);
}

// Writes until the store is full.
static void fill_up(struct script *script, struct model_volume *large)
{
    script_allow(script, -ENOSPC);
    int answer = 0;
    for (uint64_t at = 0; at < 3900 && answer == 0 && !script->failed; at += 20)
        answer = script_wait(script, script_write(script, large, at * BLOCK_SIZE, 20 * BLOCK_SIZE, 0));
    if (answer != -ENOSPC && !script->failed)
        script_fail(script, "16 MB went into a store of 12 MiB");
}

static bool full_and_back(struct scenario_result *result, bool quota)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct script script;
        struct store_config opening;
        begin_full(&script, seed, quota, &opening, true);
        struct model_volume *kept = script_create(&script, 16 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, kept, 0, 16 * BLOCK_SIZE, VOLUME_FUA));
        struct model_volume *large = script_create(&script, 4000 * BLOCK_SIZE, NULL);
        fill_up(&script, large);
        script_look(&script); // what was answered can be read
        script_allow(&script, 0);
        script_cut_always(&script, true);
        script_delete(&script, large);
        script_wait(&script, script_chore(&script, CHORE_GC));
        script_cut_always(&script, false);
        for (uint64_t at = 0; at < 300; at++)
            script_wait(&script, script_write(&script, kept, at % 16 * BLOCK_SIZE, BLOCK_SIZE, 0));
        script_wait(&script, script_flush(&script, kept));
        script_look(&script);
        if (!end(&script, result))
            return false;
    }
    return true;
}

bool scenarios_full_disk(struct scenario_result *result)
{
    return full_and_back(result, false);
}

bool scenarios_full_quota(struct scenario_result *result)
{
    return full_and_back(result, true);
}

// The way out of a full store: what takes the room is deleted, and the other volume can be written again.
static void delete_and_write(struct script *script, struct model_volume *large, struct model_volume *small)
{
    script_allow(script, 0);
    script_look(script);
    script_delete(script, large);
    script_wait(script, script_chore(script, CHORE_GC));
    for (unsigned i = 0; i < 100; i++)
        script_wait(script, script_write(script, small, i % 4 * BLOCK_SIZE, BLOCK_SIZE, 0));
}

// A full store can be started again and again, and what takes space can be deleted then.
bool scenarios_full_restarts(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct script script;
        struct store_config opening;
        begin_full(&script, seed, seed % 2, &opening, true);
        struct model_volume *large = script_create(&script, 4000 * BLOCK_SIZE, NULL);
        struct model_volume *small = script_create(&script, 4 * BLOCK_SIZE, NULL);
        fill_up(&script, large);
        for (unsigned i = 0; i < 12; i++) {
            script_restart(&script, (i + seed) % 2);
            script_wait(&script, script_write(&script, small, 0, BLOCK_SIZE, 0));
        }
        delete_and_write(&script, large, small);
        if (!end(&script, result))
            return false;
    }
    return true;
}

// Trims until one is refused, or so many have had room; how many had.
static unsigned trim_up_to(struct script *script, struct model_volume *volume, unsigned most)
{
    unsigned i = 0;
    for (; i < most && !script->failed; i++)
        if (script_wait(script, script_trim(script, volume, i % 32 * 4 * BLOCK_SIZE, 4 * BLOCK_SIZE)) != 0)
            break;
    return i;
}

// Block by block, until not even a seal makes room for one more.
static void fill_wholly(struct script *script, struct model_volume *volume, uint64_t *at)
{
    uint64_t before;
    do {
        before = *at;
        while (*at < 3900 && !script->failed &&
                script_wait(script, script_write(script, volume, *at * BLOCK_SIZE, BLOCK_SIZE, 0)) == 0)
            ++*at;
        script_wait(script, script_chore(script, CHORE_SEAL));
    } while (*at > before && !script->failed);
}

// Where data has no room any more, trims have, in whatever place the log stands; and they leave room for
// deletions. Whatever has no room is refused, and nothing waits for ever.
bool scenarios_full_trims(struct scenario_result *result)
{
    const unsigned at_least = 7, at_most = 200;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct script script;
        struct store_config opening;
        begin_full(&script, seed, seed % 2, &opening, true);
        struct model_volume *large = script_create(&script, 4000 * BLOCK_SIZE, NULL);
        struct model_volume *small = script_create(&script, 128 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, small, 0, 60 * BLOCK_SIZE, 0));
        fill_up(&script, large);
        uint64_t at = 2000;
        fill_wholly(&script, large, &at);
        if (trim_up_to(&script, small, at_least) < at_least)
            script_fail(&script, "a trim of a full store had no room");
        trim_up_to(&script, small, at_most);
        for (unsigned i = 0; i < 4; i++) {
            fill_wholly(&script, large, &at);
            script_restart(&script, (i + seed / 2) % 2);
            script_wait(&script, script_write(&script, small, 0, BLOCK_SIZE, 0));
            trim_up_to(&script, small, at_most);
        }
        delete_and_write(&script, large, small);
        if (!end(&script, result))
            return false;
    }
    return true;
}
