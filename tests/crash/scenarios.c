// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/scenarios_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/crash/script.h"

FILE *scenarios_trace;

const struct store_config scenarios_small_log = {
        .log_file_bytes = 256 * 1024, .log_budget_bytes = 4 << 20, .spare_log_files = 2};

bool scenarios_take(struct scenario_result *result, const struct crash_run_result *run)
{
    result->points += run->points;
    if (run->failed)
        snprintf(result->text, sizeof result->text, "%s", run->text);
    return !run->failed;
}

// ---- Scripts cut at every step ----

static bool slow_write(struct scenario_result *result)
{
    unsigned overlapped = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log,
                &(struct sim_options){.loop_count = 4, .slow_per_mille = 250});
        struct model_volume *slow = script_create(&script, 128 * BLOCK_SIZE, NULL);
        struct model_volume *fast = script_create(&script, 16 * BLOCK_SIZE, NULL);
        script_cut_always(&script, true);
        for (unsigned round = 0; round < 4; round++) {
            struct script_io *large = script_write(&script, slow, 0, 60 * BLOCK_SIZE, 0);
            struct script_io *small = script_write(&script, fast, round * BLOCK_SIZE, BLOCK_SIZE, 0);
            struct script_io *fua =
                    script_write(&script, fast, (4 + round) * BLOCK_SIZE, BLOCK_SIZE, VOLUME_FUA);
            script_wait(&script, small);
            struct script_io *flush = script_flush(&script, fast);
            overlapped += !script_answered(large);
            script_wait(&script, flush);
            script_wait(&script, fua);
            script_wait(&script, large);
        }
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    snprintf(result->note, sizeof result->note, "%u of 48 flushes began beside a large write in flight",
            overlapped);
    return true;
}

static bool rotation(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log,
                &(struct sim_options){.loop_count = 4, .slow_per_mille = 20});
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        // Unflushed writes fill the file up to its end, a few go beyond it, then one flush.
        for (unsigned round = 0; round < 4; round++) {
            for (unsigned i = 0; i < 5; i++)
                script_wait(
                        &script, script_write(&script, volume, (i * 9) % 48 * BLOCK_SIZE, 9 * BLOCK_SIZE, 0));
            script_cut_always(&script, true);
            for (unsigned i = 0; i < 4; i++)
                script_wait(&script,
                        script_write(&script, volume, (5 + i) * BLOCK_SIZE, (2 + i) * BLOCK_SIZE, 0));
            script_wait(&script, script_flush(&script, volume));
            script_cut_always(&script, false);
        }
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

static bool fork_race(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log,
                &(struct sim_options){.loop_count = 4, .slow_per_mille = 100, .stall_per_mille = 100});
        struct model_volume *volume = script_create(&script, 32 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, volume, 0, 32 * BLOCK_SIZE, 0));
        script_cut_always(&script, true);
        for (unsigned round = 0; round < 4; round++) {
            // Two writes over one another, and a freeze between them.
            struct script_io *first =
                    script_write(&script, volume, round * 2 * BLOCK_SIZE, 4 * BLOCK_SIZE, 0);
            struct script_io *fork = script_fork(&script, volume);
            struct script_io *second =
                    script_write(&script, volume, (round * 2 + 1) * BLOCK_SIZE, 4 * BLOCK_SIZE, 0);
            script_wait(&script, first);
            script_wait(&script, second);
            script_wait(&script, fork);
            script_look(&script);
        }
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

// Writes beyond the new end are in flight, some of them still reading the edges of their blocks, while the
// volume shrinks.
static bool shrink_race(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct script script;
        struct sim_options sim = {.loop_count = 4, .slow_per_mille = 150, .stall_per_mille = 50};
        script_begin(&script, seed, &scenarios_small_log, &sim);
        struct model_volume *volume = script_create(&script, 32 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, volume, 0, 32 * BLOCK_SIZE, 0));
        script_allow(&script, -EINVAL);
        script_cut_always(&script, true);
        for (unsigned round = 0; round < 3; round++) {
            struct script_io *io[5] = {script_write(&script, volume, 28 * BLOCK_SIZE + 100, 1000, 0),
                    script_write(&script, volume, 20 * BLOCK_SIZE, 8 * BLOCK_SIZE, 0)};
            io[2] = script_resize(&script, volume, 16 * BLOCK_SIZE - round * 512);
            io[3] = script_write(&script, volume, 29 * BLOCK_SIZE + 7, 5000, 0);
            io[4] = script_write(&script, volume, 15 * BLOCK_SIZE + 9, 3000, 0);
            for (unsigned i = 0; i < 5; i++)
                script_wait(&script, io[i]);
            script_look(&script);
            script_wait(&script, script_resize(&script, volume, 32 * BLOCK_SIZE));
            script_look(&script);
        }
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

static bool open_race(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log,
                &(struct sim_options){.loop_count = 4, .slow_per_mille = 100});
        struct model_volume *volume = script_create(&script, 16 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, volume, 0, 16 * BLOCK_SIZE, 0));
        script_allow(&script, -EBUSY);
        script_open_race(&script, volume);
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

// A base that only an open handle keeps ends with the process: nothing that must survive may be made of it.
static bool handle_base(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log, &(struct sim_options){.loop_count = 4});
        struct model_volume *volume = script_create(&script, 16 * BLOCK_SIZE, NULL);
        script_wait(&script, script_write(&script, volume, 0, 16 * BLOCK_SIZE, 0));
        script_wait(&script, script_fork(&script, volume));
        struct base *handle = NULL;
        struct model_base *base = script.model->base[0];
        if (!script.failed && base_open(script.rig.store, (struct base_id){base->id}, &handle) < 0)
            script_fail(&script, "a base cannot be opened");
        script_doc_delete(&script, script.model->doc[0]);
        script_allow(&script, -ENOENT);
        script_create(&script, 16 * BLOCK_SIZE, base);
        if (seed % 2 == 0)
            handle = base_close(handle);
        script_create(&script, 16 * BLOCK_SIZE, base);
        base_close(handle);
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

// ---- The N-th call fails ----

static bool sweep(struct scenario_result *result, enum io_code code, int error, const char *path,
        uint64_t bytes, unsigned *runs)
{
    for (uint64_t nth = 1;; nth++) {
        struct sim_fault fault = {
                .code = code, .nth = nth, .error = error, .path_part = path, .bytes = bytes};
        struct crash_run_options options = {.seed = 1000 + nth,
                .points = 12,
                .generations = 2,
                .operations = 40,
                .store = scenarios_small_log,
                .fault = &fault};
        // One seed for the clients' choices, so that N walks along one and the same run.
        options.seed = 4242 + (uint64_t)code;
        struct crash_run_result run;
        options.trace = scenarios_trace;
        crash_run(&options, &run);
        (*runs)++;
        if (!scenarios_take(result, &run)) {
            char text[1200];
            snprintf(text, sizeof text, "%.1100s", result->text);
            snprintf(result->text, sizeof result->text, "error %d at call %" PRIu64 " of kind %d (%s): %s",
                    error, nth, code, path ? path : "any file", text);
            return false;
        }
        if (!run.fault_hit)
            return true;
        if (nth > 60)
            nth += nth / 16; // the end of a long run is sampled
    }
}

static bool failing_calls(struct scenario_result *result)
{
    unsigned runs = 0;
    bool good = sweep(result, IO_WRITE, EIO, NULL, 0, &runs) &&
                sweep(result, IO_FDATASYNC, EIO, NULL, 0, &runs) &&
                sweep(result, IO_FSYNC_DIR, EIO, NULL, 0, &runs) &&
                sweep(result, IO_RENAME, EIO, NULL, 0, &runs) &&
                sweep(result, IO_OPEN, EIO, NULL, 0, &runs) &&
                sweep(result, IO_UNLINK, EIO, NULL, 0, &runs) && sweep(result, IO_READ, EIO, NULL, 0, &runs);
    snprintf(result->note, sizeof result->note, "%u runs, each with one call failing, until a run met none",
            runs);
    return good;
}

static bool no_room_for_spares(struct scenario_result *result)
{
    unsigned runs = 0;
    bool good = sweep(result, IO_WRITE, ENOSPC, "new.", 0, &runs) &&
                sweep(result, IO_OPEN, ENOSPC, "new.", 0, &runs);
    for (uint64_t seed = 1; seed <= 20 && good; seed++, runs++) {
        struct crash_run_options options = {.seed = seed,
                .points = 20,
                .generations = 2,
                .operations = 150,
                .store = scenarios_small_log,
                .sim = {.capacity_bytes = (4 + seed % 6) * 256 * 1024 + 64 * 1024, .slow_per_mille = 10},
                .sim_given = true};
        struct crash_run_result run;
        options.trace = scenarios_trace;
        crash_run(&options, &run);
        good = scenarios_take(result, &run);
    }
    snprintf(result->note, sizeof result->note, "%u runs", runs);
    return good;
}

static bool short_transfers(struct scenario_result *result)
{
    unsigned runs = 0;
    bool good =
            sweep(result, IO_WRITE, 0, NULL, BLOCK_SIZE, &runs) && sweep(result, IO_READ, 0, NULL, 1, &runs);
    for (uint64_t seed = 1; seed <= 15 && good; seed++, runs++) {
        struct crash_run_options options = {.seed = seed,
                .points = 20,
                .operations = 120,
                .sim = {.short_per_mille = 400, .slow_per_mille = 10},
                .sim_given = true};
        struct crash_run_result run;
        options.trace = scenarios_trace;
        crash_run(&options, &run);
        good = scenarios_take(result, &run);
    }
    snprintf(result->note, sizeof result->note, "%u runs", runs);
    return good;
}

// The N-th call of a recovery fails: it is refused or comes up right, and the next one comes up as if nothing
// had been.
static bool failing_recovery(struct scenario_result *result)
{
    static const enum io_code codes[] = {
            IO_READ, IO_WRITE, IO_FDATASYNC, IO_FSYNC_DIR, IO_OPEN, IO_UNLINK, IO_RENAME};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log, &(struct sim_options){.loop_count = 4});
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 40; i++)
            script_wait(&script, script_write(&script, volume, i * 7 % 56 * BLOCK_SIZE, 8 * BLOCK_SIZE,
                                         i % 8 == 0 ? VOLUME_FUA : 0));
        for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++)
            script_fail_recovery(&script, codes[i]);
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

// Rows enough to make the image at the head of a log file several records.
static bool large_catalog(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct script script;
        struct sim_options sim = {.loop_count = 4, .slow_per_mille = 20};
        script_begin(&script, seed, &scenarios_small_log, &sim);
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 11; i++)
            script_wait(&script, script_doc(&script, 8000 + i * 100));
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < 7; i++)
                script_wait(
                        &script, script_write(&script, volume, i * 9 % 48 * BLOCK_SIZE, 9 * BLOCK_SIZE, 0));
            script_cut_always(&script, round == 1);
            for (unsigned i = 0; i < 3; i++)
                script_wait(&script,
                        script_write(&script, volume, (5 + i) * BLOCK_SIZE, (2 + i) * BLOCK_SIZE, 0));
            script_wait(&script, script_flush(&script, volume));
            script_cut_always(&script, false);
        }
        script_interrupt_recovery(&script);
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

// ---- Power cuts during start-up ----

static bool cut_in_recovery(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct script script;
        script_begin(&script, seed, &scenarios_small_log, &(struct sim_options){.loop_count = 4});
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 40; i++)
            script_wait(&script, script_write(&script, volume, i * 7 % 56 * BLOCK_SIZE, 8 * BLOCK_SIZE,
                                         i % 8 == 0 ? VOLUME_FUA : 0));
        script_interrupt_recovery(&script);
        if (!script_end(&script, &result->points, result->text, sizeof result->text))
            return false;
    }
    return true;
}

static bool cut_in_init(struct scenario_result *result)
{
    unsigned opened = 0, refused = 0;
    for (uint64_t io = 1;; io++) {
        bool complete = false;
        for (uint64_t seed = 1; seed <= 6; seed++) {
            struct sim_world *world = sim_world_create(seed, &(struct sim_options){.loop_count = 4});
            char why[900] = "";
            sim_world_cut_at(world, io);
            complete = rig_init(world, &scenarios_small_log, why, sizeof why) == 0;
            struct sim_world *after = sim_world_after_power_cut(world, seed * 1000 + io, NULL);
            bool left = sim_world_in_flight(world) > 0;
            sim_world_destroy(world);
            struct picture picture;
            int answer = rig_recover(
                    after, &(struct rig_options){.loop_count = 2, .seed = seed}, &picture, why, sizeof why);
            result->points++;
            opened += answer == 0;
            refused += answer < 0;
            if (left || (complete && answer < 0) || (answer == 0 && picture.volume_count > 0)) {
                snprintf(result->text, sizeof result->text,
                        "store_init cut at I/O %" PRIu64 ", seed %" PRIu64 ": %s%s", io, seed,
                        left ? "left operations in flight " : "", why);
                return false;
            }
            if (answer == 0)
                picture_free(&picture);
        }
        if (complete)
            break;
    }
    snprintf(result->note, sizeof result->note, "%u were empty stores, %u were refused", opened, refused);
    return true;
}

const struct scenario scenarios[] = {
        {"slow-write", "an acknowledged write beside a slow large one", slow_write},
        {"rotation", "writes across a change of the log file, then one flush", rotation},
        {"fork-race", "writes in flight while their volume is forked", fork_race},
        {"shrink-race", "writes in flight beyond the new end of a shrinking volume", shrink_race},
        {"open-race", "a volume opened while it is being deleted", open_race},
        {"handle-base", "forks of a base that only an open handle keeps", handle_base},
        {"failing-calls", "an error at the N-th write, sync, rename, open, unlink", failing_calls},
        {"failing-recovery", "an error at the N-th call of a recovery", failing_recovery},
        {"large-catalog", "a catalog whose image takes several records", large_catalog},
        {"no-room", "no room on the file system for new log files", no_room_for_spares},
        {"short-transfers", "short reads and writes everywhere", short_transfers},
        {"never-full", "rewriting little data for ever in a small log", scenarios_never_full},
        {"idle-block", "a block that is never written again beside busy ones", scenarios_idle_block},
        {"tight-budget", "the least log budget, and more spares wanted than fit", scenarios_tight_budget},
        {"full-disk", "a full file system, a deletion, and room again", scenarios_full_disk},
        {"full-quota", "a used-up quota, a deletion, and room again", scenarios_full_quota},
        {"full-restarts", "a full store, started again and again", scenarios_full_restarts},
        {"full-trims", "trims of a full store, also once it was started again", scenarios_full_trims},
        {"cut-in-recovery", "power cuts at every I/O of a recovery", cut_in_recovery},
        {"cut-in-init", "power cuts at every I/O of store_init", cut_in_init},
        {"seal-cut", "power cuts at every I/O of a seal", scenarios_seal_cut},
        {"seal-race", "everything that changes a store, while it seals and collects", scenarios_seal_race},
        {"collect-cut", "power cuts at every I/O of a collection", scenarios_collect_cut},
        {"collect-readers", "reads in flight while files are replaced under them", scenarios_collect_readers},
        {"seal-handle", "a base that only an open handle keeps, sealed and collected", scenarios_seal_handle},
        {"all-gone", "everything deleted and collected", scenarios_all_gone},
        {"failing-seal", "an error at the N-th call of a collection", scenarios_failing_seal},
        {"sealed-recovery", "recoveries of a sealed store, cut and failing", scenarios_sealed_recovery},
        {"weak-fingerprints", "fingerprints that most blocks share", scenarios_weak_fingerprints},
        {"domains", "copies within and between dedup domains", scenarios_domains},
        {"scrub", "flipped bits that a scrub must find", scenarios_scrub},
        {"bit-flips", "flipped bits in every kind of stored structure", scenarios_bit_flips},
};
const size_t scenarios_count = sizeof scenarios / sizeof scenarios[0];
