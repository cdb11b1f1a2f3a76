// SPDX-License-Identifier: Apache-2.0
// Shared by scenarios.c (the table; log, catalog, start-up), scenarios_seal.c, scenarios_space.c and
// scenarios_damage.c.
#pragma once

#include "tests/crash/crash_run.h"
#include "tests/crash/scenarios.h"

extern const struct store_config scenarios_small_log;
// Adds up; false (and its words) when the run failed.
bool scenarios_take(struct scenario_result *result, const struct crash_run_result *run);

bool scenarios_bit_flips(struct scenario_result *result);
bool scenarios_scrub(struct scenario_result *result);
bool scenarios_never_full(struct scenario_result *result);
bool scenarios_idle_block(struct scenario_result *result);
bool scenarios_tight_budget(struct scenario_result *result);
bool scenarios_full_disk(struct scenario_result *result);
bool scenarios_full_quota(struct scenario_result *result);
bool scenarios_full_restarts(struct scenario_result *result);
bool scenarios_full_trims(struct scenario_result *result);
bool scenarios_seal_cut(struct scenario_result *result);
bool scenarios_seal_race(struct scenario_result *result);
bool scenarios_collect_cut(struct scenario_result *result);
bool scenarios_collect_readers(struct scenario_result *result);
bool scenarios_seal_handle(struct scenario_result *result);
bool scenarios_all_gone(struct scenario_result *result);
bool scenarios_failing_seal(struct scenario_result *result);
bool scenarios_sealed_recovery(struct scenario_result *result);
bool scenarios_weak_fingerprints(struct scenario_result *result);
bool scenarios_domains(struct scenario_result *result);
