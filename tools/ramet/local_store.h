// SPDX-License-Identifier: Apache-2.0
// What the command line does to a store without a daemon: making one.
#pragma once

#include "tools/ramet/cli.h"

bool local_store_exists(const char *directory); // there is something in it
int local_store_init(
        const struct verb *verb, const char *directory, uint64_t log_file_bytes, uint64_t log_budget_bytes);
