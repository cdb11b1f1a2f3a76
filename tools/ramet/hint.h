// SPDX-License-Identifier: Apache-2.0
// One more line after a failure, when something near to what was asked for is there, or when a next step is
// known that the daemon cannot know.
#pragma once

#include "tools/ramet/cli.h"

// code: the daemon's ("" = not told); message: the sentence that was printed.
void hint_after(struct cli *cli, const char *code, const char *message);
// After a call that reached nobody: where the address came from, when it was not typed.
void hint_unreachable(struct cli *cli);
