// SPDX-License-Identifier: Apache-2.0
// One call for each named sandbox.
#pragma once

#include "tools/ramet/cli.h"

// Calls METHOD /v1/sandboxes/NAME + after with `body` (JSON text or NULL) for all of args; goes on after a
// failure.
int sandbox_each(struct cli *cli, const struct verb *verb, const struct args *args, const char *method,
        const char *after, const char *body);
