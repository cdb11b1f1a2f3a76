// SPDX-License-Identifier: Apache-2.0
// Shared by scenarios.c (the table; log, catalog, start-up) and scenarios_damage.c.
#pragma once

#include "tests/crash/crash_run.h"
#include "tests/crash/scenarios.h"

extern const struct store_config scenarios_small_log;
// Adds up; false (and its words) when the run failed.
bool scenarios_take(struct scenario_result *result, const struct crash_run_result *run);

bool scenarios_bit_flips(struct scenario_result *result);
