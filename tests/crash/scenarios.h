// SPDX-License-Identifier: Apache-2.0
// Named situations that random clients would meet too seldom, or that need a script of their own.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct scenario_result {
    uint64_t points; // crash points, or damaged or interrupted stores, that were recovered and judged
    char text[1600]; // on failure: what is wrong
    char note[200];  // on success: what was seen, e.g. how many runs
};

struct scenario {
    const char *name;
    const char *what;
    bool (*run)(struct scenario_result *result);
};

extern FILE *scenarios_trace; // where runs and scripts tell what happens; NULL = nowhere
extern const struct scenario scenarios[];
extern const size_t scenarios_count;
