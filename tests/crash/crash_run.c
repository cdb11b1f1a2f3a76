// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/crash_run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "blockstore/fingerprint.h"
#include "tests/crash/picture_diff.h"
#include "tests/crash/rig.h"
#include "tests/crash/script.h"

#define HANG_NS UINT64_C(600000000000)

struct run {
    const struct crash_run_options *options;
    struct crash_run_result *result;
    uint64_t random; // for the harness's choices; never for the clients'
    struct sim_options sim;
    struct workload_options load;
    struct store_config config, opening;
    unsigned loop_count, weaken_bits;
    unsigned generation, generations;
    struct rig rig;
    struct model *model;
    struct workload *workload;
    uint64_t last_io;
    bool empties;
    struct chore last_chore;
    struct sim_fault fault; // in the first generation; nth 0 = none
};

__attribute__((format(printf, 2, 3))) static void fail(struct run *run, const char *format, ...)
{
    if (run->result->failed)
        return;
    run->result->failed = true;
    run->result->failed_cut = run->rig.world ? sim_world_io_count(run->rig.world) : 0;
    run->result->failed_generation = run->generation;
    int used = snprintf(run->result->text, sizeof run->result->text,
            "seed %" PRIu64 " generation %u cut %" PRIu64 ": ", run->options->seed, run->generation,
            run->result->failed_cut);
    va_list args;
    va_start(args, format);
    vsnprintf(run->result->text + used, sizeof run->result->text - (size_t)used, format, args);
    va_end(args);
}

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xd6e8feb86659fd93) + c;
    return sim_random(&state);
}

// ---- One crash point ----

static void crash_point(struct run *run)
{
    static const char *const during[] = {"", ", power cut during recovery", ", kill during recovery"};
    uint64_t io = sim_world_io_count(run->rig.world);
    uint64_t random = mix(run->options->seed, io, run->generation);
    bool power = sim_random_below(&random, 100) < 70;
    uint64_t seed = sim_random(&random);
    struct sim_options sim = {.loop_count = RIG_LOOPS_MAX,
            .short_per_mille = run->sim.short_per_mille,
            .slow_per_mille = 5,
            .trace = run->options->only_cut ? run->options->trace : NULL};
    struct sim_world *after = power ? sim_world_after_power_cut(run->rig.world, seed, &sim)
                                    : sim_world_after_kill(run->rig.world, seed, &sim);
    struct rig_options options = {.seed = seed, .opening = &run->opening};
    options.loop_count = 1 + (unsigned)sim_random_below(&random, 3);
    options.recheck = sim_random_below(&random, 100) < 15;
    options.check = sim_random_below(&random, 100) < 20;
    uint64_t dice = sim_random_below(&random, 100);
    options.first = dice < 12 ? RIG_CUT_FIRST : dice < 20 ? RIG_KILL_FIRST : RIG_NOT_FIRST;
    struct picture picture;
    char why[1400];
    run->result->points++;
    if (run->options->only_cut && run->options->trace)
        fprintf(run->options->trace, "==== crash point: %s%s ====\n", power ? "power cut" : "kill",
                during[options.first]);
    if (rig_recover(after, &options, &picture, why, sizeof why) < 0) {
        fail(run, "%s: %s", power ? "power cut" : "kill", why);
        return;
    }
    // A power cut during the recovery from a kill also takes what was never synced.
    enum model_mode mode = power || options.first == RIG_CUT_FIRST ? MODEL_POWER_CUT : MODEL_KILLED;
    if (!model_judge(run->model, &picture, mode, why, sizeof why))
        fail(run, "%s%s: %s", power ? "power cut" : "kill", during[options.first], why);
    picture_free(&picture);
}

static bool is_crash_point(struct run *run)
{
    uint64_t io = sim_world_io_count(run->rig.world);
    if (io == run->last_io)
        return false;
    uint64_t before = run->last_io;
    run->last_io = io;
    if (run->options->only_cut != 0)
        return run->generation == run->options->only_generation && before < run->options->only_cut &&
               io >= run->options->only_cut;
    if (run->options->points == 0)
        return true;
    uint64_t expected = (uint64_t)run->load.operations * run->generations * 3;
    return mix(run->options->seed, io, 77 + run->generation) % expected < run->options->points;
}

// ---- Running ----

static bool healthy(struct run *run)
{
    if (workload_failure(run->workload) != NULL)
        fail(run, "live: %s", workload_failure(run->workload));
    else if (sim_world_violation(run->rig.world) != NULL)
        fail(run, "contract of the I/O seam: %s", sim_world_violation(run->rig.world));
    struct store_stat stat;
    store_stat(run->rig.store, &stat);
    if (stat.log_used_bytes + stat.log_spare_bytes > stat.log_budget_bytes)
        fail(run, "the log takes %" PRIu64 " + %" PRIu64 " bytes of a budget of %" PRIu64,
                stat.log_used_bytes, stat.log_spare_bytes, stat.log_budget_bytes);
    return !run->result->failed;
}

static bool step(struct run *run)
{
    if (sim_world_step(run->rig.world) == 0 && !workload_quiet(run->workload)) {
        fail(run, "nothing is left to happen, and requests are not answered");
        return false;
    }
    return healthy(run);
}

// Lets everything unanswered be answered. Timers may go on for ever; a hang is a very long time without an
// answer.
static bool quiesce(struct run *run)
{
    workload_pause(run->workload, true);
    uint64_t limit = sim_world_now_ns(run->rig.world) + HANG_NS;
    while (!workload_quiet(run->workload)) {
        if (!step(run))
            return false;
        if (is_crash_point(run) && !sim_world_is_cut(run->rig.world))
            crash_point(run);
        if (run->result->failed)
            return false;
        if (sim_world_now_ns(run->rig.world) > limit) {
            fail(run, "requests are not answered within ten minutes of virtual time");
            return false;
        }
    }
    sim_world_settle(run->rig.world);
    return healthy(run);
}

struct flush_call {
    struct volume_io io;
    bool done;
    int result;
};

static void flush_done(struct volume_io *io, int result)
{
    struct flush_call *call = (struct flush_call *)io;
    call->done = true;
    call->result = result;
}

// Makes everything so far durable, through any volume.
static int flush(struct run *run, const struct picture *picture)
{
    struct volume *volume;
    if (picture->volume_count == 0 || volume_open(run->rig.store, picture->volumes[0].info.id, &volume) < 0)
        return -ENOENT;
    struct flush_call call = {.io = {.op = VOLUME_FLUSH, .done = flush_done}};
    uint64_t began = model_tick(run->model);
    volume_submit(volume, &call.io);
    if (sim_world_run_until(run->rig.world, &call.done) < 0)
        fail(run, "a flush is never answered");
    volume_close(volume);
    if (call.done && call.result == 0)
        model_flushed(run->model, began);
    sim_world_settle(run->rig.world);
    return call.result;
}

static void check_diff(struct run *run, const struct picture_base *older, const struct picture_base *newer)
{
    char why[300];
    if (!picture_diff_check(&run->rig, older, newer, why, sizeof why))
        fail(run, "%s", why);
}

// The store's own counts against what can be seen from outside.
static void check_stat(struct run *run, const struct picture *picture)
{
    struct store_stat stat;
    store_stat(run->rig.store, &stat);
    if (stat.volumes != picture->volume_count || stat.bases != picture->base_count ||
            stat.docs != picture->doc_count)
        fail(run,
                "store_stat counts %" PRIu64 " volumes, %" PRIu64 " bases, %" PRIu64
                " docs instead of %zu, %zu, %zu",
                stat.volumes, stat.bases, stat.docs, picture->volume_count, picture->base_count,
                picture->doc_count);
    if (stat.durable_seq > stat.acknowledged_seq || stat.acknowledged_seq > stat.appended_seq)
        fail(run, "log positions are out of order");
}

static void expect_same(
        struct run *run, struct sim_world *after, const struct picture *live, const char *what)
{
    struct rig_options options = {.loop_count = 1 + (unsigned)(sim_random(&run->random) % 3),
            .opening = &run->opening,
            .seed = sim_random(&run->random)};
    struct picture picture;
    char why[900];
    run->result->points++;
    if (rig_recover(after, &options, &picture, why, sizeof why) < 0) {
        fail(run, "%s at a quiet moment: %s", what, why);
        return;
    }
    if (picture_differ(live, &picture, why, sizeof why))
        fail(run, "%s at a quiet moment; live and recovered differ: %s", what, why);
    picture_free(&picture);
}

static void quiet_check(struct run *run)
{
    if (!quiesce(run))
        return;
    struct picture live;
    char why[1200];
    run->result->quiet_checks++;
    if (picture_take(run->rig.world, run->rig.store, false, &live) < 0) {
        fail(run, "live: %s answered %d", live.where, live.first_error);
    } else if (!model_judge(run->model, &live, MODEL_LIVE, why, sizeof why)) {
        fail(run, "live: %s", why);
    } else {
        bool traced = run->options->only_cut == sim_world_io_count(run->rig.world) &&
                      run->generation == run->options->only_generation;
        struct sim_options sim = {.loop_count = RIG_LOOPS_MAX, .trace = traced ? run->options->trace : NULL};
        check_stat(run, &live);
        expect_same(run, sim_world_after_kill(run->rig.world, sim_random(&run->random), &sim), &live, "kill");
        if (!run->result->failed && sim_random(&run->random) % 2 && flush(run, &live) == 0)
            expect_same(run, sim_world_after_power_cut(run->rig.world, sim_random(&run->random), &sim), &live,
                    "power cut after a flush");
        for (size_t i = 0; i < live.base_count; i++)
            for (size_t j = 0; j < live.base_count; j++)
                if (i != j && live.bases[i].info.source.value == live.bases[j].info.source.value &&
                        !run->result->failed)
                    check_diff(run, &live.bases[i], &live.bases[j]);
    }
    if (!run->result->failed)
        model_observe(run->model, &live);
    picture_free(&live);
    workload_pause(run->workload, false);
}

// After an injected error the writers may have stopped; reads go on, and show all that was answered.
static void check_after_fault(struct run *run)
{
    if (!quiesce(run))
        return;
    sim_world_clear_faults(run->rig.world);
    struct picture live;
    char why[1200];
    if (picture_take(run->rig.world, run->rig.store, false, &live) < 0)
        fail(run, "live, after an injected error: %s answered %d", live.where, live.first_error);
    else if (!model_judge(run->model, &live, MODEL_LIVE, why, sizeof why))
        fail(run, "live, after an injected error: %s", why);
    picture_free(&live);
}

static void generation(struct run *run)
{
    run->load.faults = run->options->workload.faults || (run->fault.nth != 0 && run->generation == 0);
    run->workload = workload_create(run->rig.world, run->rig.store, run->model,
            mix(run->options->seed, run->generation, 5), &run->load);
    const struct sim_fault *fault = run->generation == 0 && run->fault.nth != 0 ? &run->fault : NULL;
    if (fault != NULL)
        sim_world_fault(run->rig.world, fault);
    unsigned next_check = 40 + (unsigned)(sim_random(&run->random) % 60);
    run->last_io = sim_world_io_count(run->rig.world);
    uint64_t progress = 0, since = sim_world_now_ns(run->rig.world);
    while (workload_poll(run->workload) || !workload_quiet(run->workload)) {
        // Between two requests time stands still, but for timers now and then.
        if (workload_quiet(run->workload) && sim_world_idle(run->rig.world) &&
                sim_random_below(&run->random, 10) > 0)
            continue;
        if (!step(run))
            return;
        if (workload_quiet(run->workload) || workload_progress(run->workload) != progress) {
            progress = workload_progress(run->workload);
            since = sim_world_now_ns(run->rig.world);
        } else if (sim_world_now_ns(run->rig.world) - since > HANG_NS) {
            fail(run, "requests are not answered within ten minutes of virtual time");
            return;
        }
        if (is_crash_point(run))
            crash_point(run);
        if (run->result->failed)
            return;
        if (workload_started(run->workload) >= next_check && fault == NULL) {
            quiet_check(run);
            next_check += 40 + (unsigned)(sim_random(&run->random) % 60);
            if (run->result->failed)
                return;
        }
    }
    if (fault != NULL)
        check_after_fault(run);
    else
        quiet_check(run);
}

// Sometimes a life ends in the middle of background work, whatever way it ends.
static void begin_last_chore(struct run *run)
{
    run->last_chore = (struct chore){.answered = true};
    if (sim_random(&run->random) % 2 == 0 || run->result->failed)
        return;
    run->last_chore.kind = sim_random_below(&run->random, CHORE_KINDS);
    chore_submit(run->rig.store, &run->last_chore);
    for (uint64_t n = sim_random_below(&run->random, 200); n > 0 && !sim_world_idle(run->rig.world); n--)
        sim_world_step(run->rig.world);
}

// Ends a generation: a kill, a power cut, or a clean close. The next one starts over what was recovered.
static void next_generation(struct run *run)
{
    uint64_t how = sim_random_below(&run->random, 3);
    struct sim_world *old = run->rig.world, *after;
    uint64_t operations = model_tick(run->model) + 1000000 * (run->generation + 1),
             seed = sim_random(&run->random);
    char why[1200];
    struct store_stat stat;
    store_stat(run->rig.store, &stat);
    workload_destroy(run->workload);
    run->workload = NULL;
    begin_last_chore(run);
    if (how == 0) {
        if (!rig_close(&run->rig, why, sizeof why))
            fail(run, "clean close: %s", why);
        after = sim_world_after_power_cut(old, seed, &run->sim);
    } else {
        after = how == 1 ? sim_world_after_power_cut(old, seed, &run->sim)
                         : sim_world_after_kill(old, seed, &run->sim);
        sim_world_cut(old);
        if (!rig_close(&run->rig, why, sizeof why))
            fail(run, "close after the cut: %s", why);
    }
    if (!run->last_chore.answered)
        fail(run, "%s was not answered when the store was closed", chore_names[run->last_chore.kind]);
    run->result->io_events += sim_world_io_count(old);
    run->result->fault_hit = run->result->fault_hit || sim_world_faults_hit(old) > 0;
    sim_world_destroy(old);
    run->rig = (struct rig){.world = after};
    struct picture picture;
    run->generation++;
    run->result->points++;
    if (run->result->failed) {
        return;
    } else if (rig_open(&run->rig, after, run->loop_count, &run->opening, why, sizeof why) < 0) {
        fail(run, "%s: %s", how == 0 ? "reopened" : how == 1 ? "power cut" : "kill", why);
    } else if (picture_take(after, run->rig.store, false, &picture) < 0) {
        fail(run, "recovered: %s answered %d", picture.where, picture.first_error);
        picture_free(&picture);
    } else {
        // A clean close has synced everything, unless the log had failed before.
        bool all = how == 2 || (how == 0 && stat.failed == 0);
        enum model_mode mode = all ? MODEL_KILLED : MODEL_POWER_CUT;
        if (!model_judge(run->model, &picture, mode, why, sizeof why))
            fail(run, "%s: %s", how == 0 ? "reopened" : how == 1 ? "power cut" : "kill", why);
        FILE *trace = run->model->trace;
        run->model = model_destroy(run->model);
        run->model = model_from_picture(&picture, operations);
        run->model->trace = trace;
        picture_free(&picture);
    }
}

// What only some seeds have: many short lives, a file system that is nearly full, one failing call.
static void configure_rarities(struct run *run)
{
    static const enum io_code codes[] = {
            IO_WRITE, IO_FDATASYNC, IO_FSYNC_DIR, IO_RENAME, IO_OPEN, IO_READ, IO_UNLINK, SIM_COMMIT};
    uint64_t dice = sim_random_below(&run->random, 100), amount = sim_random(&run->random);
    if (dice < 10) {
        run->generations = 10;
        run->load.operations = 30;
    } else if (dice < 20) {
        run->sim.capacity_bytes = run->config.log_budget_bytes / 16 * (6 + amount % 10);
        run->sim.space_unknown = amount / 10 % 2;
    } else if (dice < 30) {
        enum io_code code = codes[amount % 8];
        run->fault = (struct sim_fault){
                .code = code, .nth = 1 + amount / 8 % (code == SIM_COMMIT ? 8 : 120), .error = EIO};
        if (amount / 8 % 7 == 0 && code != IO_READ)
            run->fault.error = ENOSPC;
        run->generations = 2;
    }
}

// Caches from too small for one item to endless; a log that is sealed all the time, or only when asked.
static void configure_sealing(struct run *run)
{
    static const uint64_t caches[] = {4096, 64 << 10, 1 << 20, 0};
    struct store_config *opening = &run->opening;
    *opening = (struct store_config){
            .index_cache_bytes = caches[sim_random_below(&run->random, 4)],
            .frame_cache_bytes = caches[sim_random_below(&run->random, 4)],
            .node_cache_bytes = caches[sim_random_below(&run->random, 4)],
            .fingerprint_bytes = caches[sim_random_below(&run->random, 4)],
    };
    const uint64_t never = UINT64_C(1) << 50;
    uint64_t dice = sim_random_below(&run->random, 100), files = 1 + sim_random_below(&run->random, 4);
    opening->seal_log_bytes = dice < 40 ? files * run->config.log_file_bytes : dice < 60 ? 0 : never;
    opening->seal_age_ns = sim_random_below(&run->random, 4) == 0 ? 50000000 : never;
    // Not where bits are flipped: fingerprints are what tells damage to blocks that do not compress.
    bool weak = sim_random_below(&run->random, 4) == 0 && run->options->at_end == NULL;
    run->weaken_bits = weak ? 8 : 128;
    static const unsigned percents[] = {0, 2, 4, 10};
    if (run->options->workload.clients == 0) {
        run->load.chore_percent = percents[sim_random_below(&run->random, 4)];
        run->load.domains = sim_random(&run->random) % 2;
    }
    run->empties = run->options->at_end == NULL && sim_random_below(&run->random, 4) == 0;
    if (run->options->opening_given)
        *opening = run->options->opening;
    fingerprint_weaken(run->weaken_bits);
}

static void configure(struct run *run)
{
    const struct crash_run_options *options = run->options;
    run->loop_count = 1 + (unsigned)sim_random_below(&run->random, 3);
    run->sim = options->sim;
    run->sim.loop_count = RIG_LOOPS_MAX;
    run->sim.trace = options->trace;
    if (!options->sim_given) {
        run->sim.short_per_mille = sim_random(&run->random) % 2 ? 30 : 0;
        run->sim.slow_per_mille = sim_random(&run->random) % 2 ? 20 : 2;
        run->sim.stall_per_mille = sim_random(&run->random) % 2 ? 30 : 0;
    }
    run->load = options->workload;
    if (run->load.clients == 0) {
        run->load.clients = 1 + (unsigned)sim_random_below(&run->random, 6);
        run->load.operations = 60 + (unsigned)sim_random_below(&run->random, 200);
        run->load.max_volumes = 2 + (unsigned)sim_random_below(&run->random, 6);
        uint64_t most = sim_random(&run->random) % 4 ? 60 : 200;
        run->load.max_blocks = 4 + sim_random_below(&run->random, most);
        run->load.vast = sim_random(&run->random) % 3 == 0;
        static const unsigned shares[] = {0, 0, 30, 60, 90};
        run->load.shared_percent = shares[sim_random_below(&run->random, 5)];
        run->load.distinct =
                1 + (unsigned)sim_random_below(&run->random, sim_random(&run->random) % 2 ? 8 : 60);
    }
    if (options->operations != 0)
        run->load.operations = options->operations;
    run->config = options->store;
    if (run->config.log_file_bytes == 0) {
        run->config.log_file_bytes = UINT64_C(256) * 1024 << sim_random_below(&run->random, 3);
        run->config.log_budget_bytes = run->config.log_file_bytes * (4 + sim_random_below(&run->random, 12));
        run->config.spare_log_files = 1 + (uint32_t)sim_random_below(&run->random, 3);
    }
    configure_sealing(run);
    run->generations =
            options->generations ? options->generations : 1 + (unsigned)sim_random_below(&run->random, 3);
    if (options->fault != NULL)
        run->fault = *options->fault;
    else if (options->workload.clients == 0 && !options->sim_given)
        configure_rarities(run);
    run->empties = run->empties && run->fault.nth == 0 && run->sim.capacity_bytes == 0;
}

// At the end of some runs: all of it is deleted, and space must come back.
static void empty_out(struct run *run)
{
    run->workload = workload_destroy(run->workload);
    struct script script;
    script_join(&script, &run->rig, run->model);
    script_empty(&script);
    script_leave(&script);
    if (script.failed)
        fail(run, "emptied: %s", script.text);
}

void crash_run(const struct crash_run_options *options, struct crash_run_result *ret_result)
{
    *ret_result = (struct crash_run_result){0};
    struct run run = {.options = options, .result = ret_result, .random = mix(options->seed, 1, 2)};
    configure(&run);
    struct sim_world *world = sim_world_create(mix(options->seed, 3, 4), &run.sim);
    char why[900];
    run.rig.world = world;
    run.model = model_create(1);
    run.model->trace = options->trace;
    if (rig_init(world, &run.config, why, sizeof why) < 0 ||
            rig_open(&run.rig, world, run.loop_count, &run.opening, why, sizeof why) < 0)
        fail(&run, "%s", why);
    while (!run.result->failed) {
        generation(&run);
        ret_result->operations += workload_started(run.workload);
        if (run.result->failed || run.generation + 1 >= run.generations)
            break;
        next_generation(&run);
    }
    if (run.empties && !run.result->failed)
        empty_out(&run);
    if (options->at_end != NULL && !run.result->failed)
        options->at_end(options->context, &run.rig, run.model, ret_result);
    // The end: the world is cut, so that everything unanswered is answered, and all must come down in order.
    world = run.rig.world;
    sim_world_cut(world);
    if (run.workload != NULL) {
        workload_pause(run.workload, true);
        uint64_t limit = sim_world_now_ns(world) + HANG_NS;
        while (!workload_quiet(run.workload) && sim_world_now_ns(world) < limit &&
                sim_world_step(world) > 0) {
        }
        if (!workload_quiet(run.workload)) {
            fail(&run, "after a cut, nothing is left to happen and requests are not answered");
            return; // what they refer to cannot be freed
        }
        workload_destroy(run.workload);
    }
    if (run.rig.store != NULL && !rig_close(&run.rig, why, sizeof why))
        fail(&run, "close after a cut: %s", why);
    ret_result->io_events += sim_world_io_count(world);
    ret_result->fault_hit = ret_result->fault_hit || sim_world_faults_hit(world) > 0;
    sim_world_destroy(world);
    model_destroy(run.model);
    fingerprint_weaken(128);
}
