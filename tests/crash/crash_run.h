// SPDX-License-Identifier: Apache-2.0
// One seed: a store, clients, and crash points along the way. At a crash point the surviving disk is computed
// on the side, recovered, and judged by the model; the run itself goes on. At quiet moments the live state is
// judged too, and must be what a kill leaves, and after a flush what a power cut leaves. At its end the run
// is cut for good and goes on over what was recovered, for some generations.
#pragma once

#include "tests/crash/rig.h"
#include "tests/crash/workload.h"

struct crash_run_result;

struct crash_run_options {
    uint64_t seed;
    unsigned points;   // about so many crash points; 0 = at every I/O
    uint64_t only_cut; // a crash point at this I/O (of generation only_generation) and nowhere else; 0 = off
    unsigned only_generation;
    unsigned generations; // 0 = chosen by seed
    unsigned operations;  // per generation; 0 = chosen by seed
    FILE *trace;          // NULL = none
    // For named scenarios; zero = by seed:
    struct workload_options workload;
    struct store_config store;
    struct store_config opening; // when opening_given
    bool opening_given;
    struct sim_options sim;
    const struct sim_fault *fault;
    bool sim_given; // take `sim` as it is, do not choose delays and short transfers by seed
    // Called when all went well, with the store open and quiet.
    void (*at_end)(void *context, struct rig *rig, struct model *model, struct crash_run_result *result);
    void *context;
};

struct crash_run_result {
    uint64_t points; // crash points recovered and judged
    uint64_t quiet_checks;
    uint64_t io_events, operations;
    bool failed;
    char text[1600]; // what is wrong, with seed and cut
    uint64_t failed_cut;
    unsigned failed_generation;
    bool fault_hit;
};

void crash_run(const struct crash_run_options *options, struct crash_run_result *ret_result);
