// SPDX-License-Identifier: Apache-2.0
// Row 18: the hundredth branch is as quick as the first, and a resume does not grow with the number of
// generations behind it. The peers are our own first ones, in the same run.
#include "blockstore/clock.h"
#include "tests/bench/machine_bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { BRANCHES = 100, BRANCHES_QUICK = 12, GENERATIONS = 10, GENERATIONS_QUICK = 3, WINDOW = 10 };

static double ms_since(uint64_t begin_ns)
{
    return (double)(clock_monotonic_ns() - begin_ns) / 1e6;
}

// A branch: a change, a snapshot that stays, and a child of it that answers.
static double branch(struct machine *source, struct doc_id *ret_snapshot)
{
    free(machine_shell(source, "head -c 200000 /dev/urandom > /dev/shm/branch"));
    uint64_t begin = clock_monotonic_ns();
    struct capture_request request = machine_capture_request(source, NULL);
    struct capture_result result;
    machine_capture(&request, &result);
    struct machine *child = machine_resume(source->rig, "child", result.ids.machine);
    double ms = ms_since(begin);
    machine_end(child, false);
    *ret_snapshot = result.ids.machine;
    return ms;
}

static void measure_branches(struct bench *bench, struct machine *source)
{
    struct samples first = {0}, last = {0};
    unsigned count = bench->quick ? BRANCHES_QUICK : BRANCHES, window = bench->quick ? 3 : WINDOW;
    struct doc_id *snapshots = calloc(count + 1, sizeof *snapshots);
    char text[120];
    if (snapshots == NULL)
        rig_fail("no memory");
    branch(source, &snapshots[count]); // copies all of memory and starts tracking
    for (unsigned i = 0; i < count; i++) {
        double ms = branch(source, &snapshots[i]);
        if (i < window)
            samples_add(&first, ms);
        if (i >= count - window)
            samples_add(&last, ms);
    }
    for (unsigned i = 0; i <= count; i++)
        bench_delete(bench->rig, snapshots[i]);
    free(snapshots);
    double ours = samples_percentile(&last, 50), peer = samples_percentile(&first, 50);
    snprintf(text, sizeof text, "branch %u of a machine, all kept: snapshot to the child's answer, p50",
            count);
    bench_row(bench, 18, text, ours, peer, ours / peer, "<= 1.5", ours / peer <= 1.5, "ms", "its first ones");
}

// Resume, change, snapshot, end, again and again; each generation is resumed twice, and the second counts.
static void measure_generations(struct bench *bench, struct doc_id snapshot)
{
    struct rig *rig = bench->rig;
    unsigned count = bench->quick ? GENERATIONS_QUICK : GENERATIONS;
    double first = 0, last = 0;
    char text[120];
    for (unsigned i = 0; i <= count; i++) {
        struct samples times = {0};
        for (unsigned turn = 0; turn < 4; turn++) {
            struct machine *machine = machine_resume(rig, "again", snapshot);
            if (turn > 0) // the first brings the image's pages into the cache
                samples_add(&times, (double)machine->ready_ns / 1e6);
            machine_end(machine, false);
        }
        last = samples_percentile(&times, 50);
        first = i == 0 ? last : first;
        struct machine *machine = machine_resume(rig, "next", snapshot);
        free(machine_shell(machine, "head -c 1000000 /dev/urandom > /dev/shm/generation"));
        struct capture_request request = machine_capture_request(machine, NULL);
        struct capture_result result;
        machine_capture(&request, &result);
        machine_end(machine, false);
        bench_delete(rig, snapshot);
        snapshot = result.ids.machine;
    }
    bench_delete(rig, snapshot);
    snprintf(text, sizeof text, "resume to the agent's answer after %u generations, p50", count);
    bench_row(bench, 18, text, last, first, last / first, "<= 1.5", last / first <= 1.5, "ms",
            "the first generation");
}

void bench_branch(struct bench *bench)
{
    struct machine *source = machine_boot(bench->rig, "source");
    struct capture_request request = machine_capture_request(source, NULL);
    struct capture_result result;
    measure_branches(bench, source);
    machine_capture(&request, &result);
    machine_end(source, false);
    measure_generations(bench, result.ids.machine);
}
