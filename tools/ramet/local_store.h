// SPDX-License-Identifier: Apache-2.0
// What the command line does to a store without a daemon: making one, checking, repairing. Each returns an
// exit status and has said what was wrong.
#pragma once

#include "tools/ramet/cli.h"

bool local_store_exists(const char *directory); // there is something in it
int local_store_init(
        const struct verb *verb, const char *directory, uint64_t log_file_bytes, uint64_t log_budget_bytes);
// Opens it read-only. *ret_json: as POST /v1/store/check answers.
int local_store_check(const struct verb *verb, const char *directory, json_t **ret_json);
int local_store_rebuild(const struct verb *verb, const char *directory);
