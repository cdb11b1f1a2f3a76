// SPDX-License-Identifier: Apache-2.0
// Folders in and out of sandboxes: a tar stream, put together beside the target and moved there when it is
// whole. The sandbox needs tar for it (and cp, mv, stat).
#pragma once

#include "tools/ramet/cli.h"

struct cp_tree {
    struct cli *cli;
    const struct verb *verb;
    const char *from_box, *to_box; // NULL = this host
    const char *from, *to;         // the folder, and what it becomes (absolute, or below the user's home)
    bool to_exists;                // and is a folder: both are merged
};
// Copies; returns an exit status.
int cp_tree_copy(const struct cp_tree *tree);
