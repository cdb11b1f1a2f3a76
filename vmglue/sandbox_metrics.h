// SPDX-License-Identifier: Apache-2.0
// What one sandbox uses: processor, memory, disks, network, and what was called in it. For GET .../metrics.
//
// Threads: any that is not a loop. Freezes its root disk for a moment and reads the maps of its disks, so it
// is nothing to ask many times a second.
#pragma once

#include "vmglue/sandbox.h"

// *ret_json is a new object (API.md, "Metrics").
int sandbox_metrics(struct sandboxes *all, const char *name, json_t **ret_json, struct error *err);
// A command, job, terminal or run of code begins in it.
void sandbox_metrics_count(const struct sandbox_agent *use);
