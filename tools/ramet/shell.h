// SPDX-License-Identifier: Apache-2.0
// A terminal in a sandbox, on this one.
#pragma once

#include "tools/ramet/cli.h"

// line NULL = the login shell; user and cwd NULL = the sandbox's. Returns the exit status; this terminal is
// as it was.
int shell_run(struct cli *cli, const struct verb *verb, const char *name, const char *line, const char *user,
        const char *cwd);
