// SPDX-License-Identifier: Apache-2.0
// Sealing, collecting and scrubbing, step by step: cut at every I/O, beside requests, with failing calls.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "blockstore/fingerprint.h"
#include "snapshot/txn.h"
#include "tests/crash/fill.h"
#include "tests/crash/scenarios_private.h"
#include "tests/crash/script.h"

// Nothing is sealed unless it is asked for; caches for next to nothing.
static const struct store_config asked = {.seal_log_bytes = UINT64_C(1) << 50,
        .seal_age_ns = UINT64_C(1) << 50,
        .index_cache_bytes = 4096,
        .frame_cache_bytes = 4096,
        .node_cache_bytes = 4096};

static void begin(struct script *script, uint64_t seed, unsigned slow_per_mille)
{
    struct sim_options sim = {.loop_count = 4, .slow_per_mille = slow_per_mille, .stall_per_mille = 30};
    script_begin_with(script, seed, &scenarios_small_log, &asked, &sim);
    script->distinct = seed % 3 == 0 ? 6 : seed % 3 == 1 ? 40 : 0;
}

static bool end(struct script *script, struct scenario_result *result)
{
    return script_end(script, &result->points, result->text, sizeof result->text);
}

static void seal(struct script *script)
{
    script_wait(script, script_chore(script, CHORE_SEAL));
}

static void collect(struct script *script)
{
    script_wait(script, script_chore(script, CHORE_GC));
}

static void fill(struct script *script, struct model_volume *volume, uint64_t first, uint64_t count)
{
    for (uint64_t at = first; at < first + count; at += 16) {
        uint64_t part = first + count - at < 16 ? first + count - at : 16;
        script_wait(script, script_write(script, volume, at * BLOCK_SIZE, part * BLOCK_SIZE, 0));
    }
}

// The doc that the n-th script_fork made.
static void drop_fork(struct script *script, size_t n)
{
    if (n < script->model->doc_count && model_latest(&script->model->doc[n]->object)->exists)
        script_doc_delete(script, script->model->doc[n]);
}

bool scenarios_seal_cut(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 9; seed++) {
        struct script script;
        begin(&script, seed, 20);
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        struct model_volume *other = script_create(&script, 24 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 60);
        fill(&script, other, 2, 20);
        script_wait(&script, script_fork(&script, volume));
        script_wait(&script, script_write(&script, volume, 3 * BLOCK_SIZE + 100, 5000, 0));
        for (unsigned round = 0; round < 3; round++) {
            script_cut_always(&script, true);
            seal(&script);
            script_cut_always(&script, false);
            script_look(&script);
            // Over what is sealed: part of a block, whole blocks, another fork, another life.
            script_wait(&script, script_write(&script, volume, (7 + round) * BLOCK_SIZE + 9, 700, 0));
            script_wait(&script, script_write(&script, other, round * BLOCK_SIZE, 3 * BLOCK_SIZE, 0));
            if (round == 1)
                script_wait(&script, script_fork(&script, other));
            script_look(&script);
            if (round == 1)
                script_restart(&script, seed % 2);
        }
        if (!end(&script, result))
            return false;
    }
    return true;
}

// Everything that changes a store happens while it seals and collects.
bool scenarios_seal_race(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct script script;
        begin(&script, seed, 100);
        struct model_volume *volume = script_create(&script, 48 * BLOCK_SIZE, NULL);
        struct model_volume *doomed = script_create(&script, 24 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 48);
        fill(&script, doomed, 0, 24);
        script_cut_always(&script, true);
        for (unsigned round = 0; round < 3; round++) {
            enum chore_kind kind = round == 1 ? CHORE_GC : CHORE_SEAL;
            struct script_io *work = script_chore(&script, kind), *io[6];
            io[0] = script_write(&script, volume, round * BLOCK_SIZE, 6 * BLOCK_SIZE, 0);
            io[1] = script_fork(&script, volume);
            io[2] = script_write(&script, volume, (round + 3) * BLOCK_SIZE, 2 * BLOCK_SIZE, VOLUME_FUA);
            io[3] = script_write(&script, volume, 40 * BLOCK_SIZE + 77, 3000, 0);
            io[4] = script_read(&script, volume, 0, 48 * BLOCK_SIZE);
            io[5] = round == 1 ? script_resize(&script, volume, 44 * BLOCK_SIZE)
                               : script_flush(&script, volume);
            if (round == 1)
                script_delete(&script, doomed);
            if (round == 2)
                drop_fork(&script, 0);
            for (unsigned i = 0; i < 6; i++)
                script_wait(&script, io[i]);
            script_wait(&script, work);
            script_look(&script);
            if (round == 1)
                script_wait(&script, script_resize(&script, volume, 48 * BLOCK_SIZE));
        }
        if (!end(&script, result))
            return false;
    }
    return true;
}

bool scenarios_collect_cut(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 9; seed++) {
        struct script script;
        begin(&script, seed, 20);
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        for (unsigned i = 0; i < 4; i++) {
            fill(&script, volume, i * 13, 24);
            script_wait(&script, script_fork(&script, volume));
            if (i % 2)
                seal(&script);
        }
        // Snapshots go in an order of the seed's, the newest of them too; their children stay.
        for (unsigned i = 0; i < 4; i++) {
            drop_fork(&script, (i * (seed % 2 ? 3 : 1) + seed) % 4);
            script_cut_always(&script, true);
            script_wait(&script, script_chore(&script, i == 2 ? CHORE_RECOMPRESS : CHORE_GC));
            script_cut_always(&script, false);
            script_look(&script);
            fill(&script, volume, 5 * i, 4);
        }
        script_wait(&script, script_chore(&script, CHORE_SCRUB));
        if (!end(&script, result))
            return false;
    }
    return true;
}

// Reads that began before a collection swaps and removes the files under them, and others after.
bool scenarios_collect_readers(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct script script;
        begin(&script, seed, 300);
        struct model_volume *volume = script_create(&script, 64 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 64);
        script_wait(&script, script_fork(&script, volume));
        seal(&script);
        for (unsigned round = 0; round < 4; round++) {
            fill(&script, volume, round * 14, 10);
            seal(&script);
            drop_fork(&script, round);
            struct script_io *work = script_chore(&script, round % 2 ? CHORE_RECOMPRESS : CHORE_GC);
            struct script_io *reads[12];
            unsigned count = 0;
            for (; count < 12 && !script_answered(work); count++) {
                reads[count] = script_read(&script, volume, count * 5 * BLOCK_SIZE, 9 * BLOCK_SIZE);
                script_wait(&script, script_read(&script, volume, (60 - count) * BLOCK_SIZE, BLOCK_SIZE));
            }
            for (unsigned i = 0; i < count; i++)
                script_wait(&script, reads[i]);
            script_wait(&script, work);
            script_wait(&script, script_fork(&script, volume));
        }
        if (!end(&script, result))
            return false;
    }
    return true;
}

// A base that only an open handle keeps is sealed and not collected until the handle is closed.
bool scenarios_seal_handle(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct script script;
        begin(&script, seed, 20);
        struct model_volume *volume = script_create(&script, 32 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 32);
        script_wait(&script, script_fork(&script, volume));
        if (seed % 2)
            seal(&script);
        struct base *handle = NULL;
        struct model_base *base = script.model->base[0];
        if (!script.failed && base_open(script.rig.store, (struct base_id){base->id}, &handle) < 0)
            script_fail(&script, "a base cannot be opened");
        drop_fork(&script, 0);
        script_delete(&script, script.model->volume[1]); // the child
        fill(&script, volume, 0, 32);
        for (unsigned i = 0; i < 3 && handle != NULL; i++) {
            if (i == 1)
                seal(&script);
            collect(&script);
            script_read_base(&script, base, handle, 0, 32 * BLOCK_SIZE);
        }
        handle = base_close(handle);
        script_empty(&script);
        if (!end(&script, result))
            return false;
    }
    return true;
}

bool scenarios_all_gone(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct script script;
        begin(&script, seed, 10);
        for (unsigned i = 0; i < 4; i++) {
            struct model_volume *volume = script_create(&script, 40 * BLOCK_SIZE, NULL);
            fill(&script, volume, 0, 36);
            script_wait(&script, script_fork(&script, volume));
            script_wait(&script, script_doc(&script, 3000));
            if (i != seed % 4)
                seal(&script);
        }
        if (seed % 2)
            script_restart(&script, seed % 4 == 1);
        script_cut_always(&script, seed % 3 == 0);
        script_empty(&script);
        script_look(&script);
        struct model_volume *volume = script_create(&script, 40 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 36);
        seal(&script);
        if (!end(&script, result))
            return false;
    }
    return true;
}

// ---- Failing calls ----

static bool one_failure(
        struct scenario_result *result, const struct sim_fault *fault, uint64_t seed, bool *ret_hit)
{
    struct script script;
    begin(&script, seed, 5);
    struct model_volume *volume = script_create(&script, 48 * BLOCK_SIZE, NULL);
    fill(&script, volume, 0, 48);
    script_wait(&script, script_fork(&script, volume));
    seal(&script);
    fill(&script, volume, 10, 24);
    drop_fork(&script, 0);
    script_allow(&script, -fault->error);
    if (!script.failed)
        sim_world_fault(script.rig.world, fault);
    script_wait(&script, script_chore(&script, CHORE_GC));
    script_allow(&script, 0);
    *ret_hit = sim_world_faults_hit(script.rig.world) > 0;
    sim_world_clear_faults(script.rig.world);
    // Nothing is lost, writers go on, and the next collection does what this one did not.
    fill(&script, volume, 2, 9);
    script_look(&script);
    collect(&script);
    script_look(&script);
    script_empty(&script);
    return end(&script, result);
}

bool scenarios_failing_seal(struct scenario_result *result)
{
    static const struct sim_fault kinds[] = {
            {.code = IO_OPEN, .error = EIO, .path_part = "/segments"},
            {.code = IO_WRITE, .error = ENOSPC, .path_part = "/segments"},
            {.code = IO_WRITE, .error = EIO, .path_part = "/segments"},
            {.code = IO_FDATASYNC, .error = EIO, .path_part = "/segments"},
            {.code = IO_FSYNC_DIR, .error = EIO, .path_part = "/segments"},
            {.code = IO_READ, .error = EIO, .path_part = "/segments"},
            {.code = IO_UNLINK, .error = EIO, .path_part = "/segments"},
            {.code = IO_RENAME, .error = EIO, .path_part = "/segments"},
            {.code = SIM_COMMIT, .error = EIO},
            {.code = SIM_COMMIT, .error = ENOSPC},
    };
    unsigned runs = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool hit = true;
        for (uint64_t nth = 1; hit; nth++) {
            struct sim_fault fault = kinds[i];
            fault.nth = nth;
            runs++;
            if (one_failure(result, &fault, 1 + nth % 3, &hit))
                continue;
            char text[1200];
            snprintf(text, sizeof text, "%.1100s", result->text);
            snprintf(result->text, sizeof result->text, "error %d at call %" PRIu64 " of kind %d: %s",
                    fault.error, nth, (int)fault.code, text);
            return false;
        }
    }
    snprintf(result->note, sizeof result->note,
            "%u collections, each with one call failing, until one met none", runs);
    return true;
}

// A sealed store recovers whatever fails, and wherever it is cut.
bool scenarios_sealed_recovery(struct scenario_result *result)
{
    static const enum io_code codes[] = {
            IO_READ, IO_WRITE, IO_FDATASYNC, IO_FSYNC_DIR, IO_OPEN, IO_UNLINK, IO_RENAME, SIM_COMMIT};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct script script;
        begin(&script, seed, 5);
        struct model_volume *volume = script_create(&script, 48 * BLOCK_SIZE, NULL);
        fill(&script, volume, 0, 48);
        script_wait(&script, script_fork(&script, volume));
        seal(&script);
        fill(&script, volume, 10, 24);
        if (seed % 2)
            seal(&script);
        drop_fork(&script, 0);
        script_wait(&script, script_write(&script, volume, 100, 9000, 0));
        script_wait(&script, script_flush(&script, volume));
        for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++)
            script_fail_recovery(&script, codes[i]);
        script_interrupt_recovery(&script);
        if (!end(&script, result))
            return false;
    }
    return true;
}

// ---- Fingerprints ----

// Fingerprints of four bits: nearly every block has the fingerprint of others.
bool scenarios_weak_fingerprints(struct scenario_result *result)
{
    fingerprint_weaken(4);
    bool good = true;
    uint64_t hits = 0;
    for (uint64_t seed = 1; seed <= 8 && good; seed++) {
        struct script script;
        begin(&script, seed, 10);
        script.distinct = seed % 2 ? 0 : 20;
        for (unsigned i = 0; i < 5; i++) {
            struct model_volume *volume = script_create(&script, 40 * BLOCK_SIZE, NULL);
            fill(&script, volume, i, 30);
            if (i % 2)
                script_wait(&script, script_fork(&script, volume));
            seal(&script);
            script_look(&script);
        }
        drop_fork(&script, 0);
        collect(&script);
        struct store_stat stat = {0};
        if (!script.failed)
            store_stat(script.rig.store, &stat);
        hits += stat.dedup_hits;
        script_wait(&script, script_chore(&script, CHORE_SCRUB));
        good = end(&script, result);
    }
    fingerprint_weaken(128);
    snprintf(result->note, sizeof result->note, "%" PRIu64 " blocks were shared", hits);
    if (good && hits == 0) {
        snprintf(result->text, sizeof result->text, "no block was ever shared");
        good = false;
    }
    return good;
}

static uint64_t hits_of(struct script *script)
{
    struct store_stat stat = {0};
    if (!script->failed)
        store_stat(script->rig.store, &stat);
    return stat.dedup_hits;
}

// Blocks are shared within a domain and with the public one, and not between two domains.
bool scenarios_domains(struct scenario_result *result)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct script script;
        begin(&script, seed, 10);
        script.distinct = 0;
        static const uint64_t domains[] = {1, 2, 1, 0, 2, 0};
        // In turn: new; another's; its own; private ones again; its own or public; public.
        static const bool shared[] = {false, false, true, false, true, true};
        for (unsigned i = 0; i < 6; i++) {
            struct model_volume *volume = script_create_in(&script, 16 * BLOCK_SIZE, domains[i]);
            script.fill = fill_compressible(seed);
            script_wait(&script, script_write(&script, volume, 0, 16 * BLOCK_SIZE, 0));
            uint64_t before = hits_of(&script);
            seal(&script);
            uint64_t more = hits_of(&script) - before;
            if (!script.failed && (more > 0) != shared[i])
                script_fail(&script, shared[i] ? "a block was stored again within a domain"
                                               : "a block was shared between domains");
        }
        script_look(&script);
        if (!end(&script, result))
            return false;
    }
    return true;
}
