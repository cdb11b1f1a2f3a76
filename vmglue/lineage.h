// SPDX-License-Identifier: Apache-2.0
// What came from what: templates, snapshots, sandboxes and forks with their parents, for a picture.
//
// Threads: any that is not a loop.
#pragma once

#include "vmglue/json.h"
#include "vmglue/service.h"

// A new array, the oldest first: {"id","kind","name","state","parent","created_at","logical_bytes"} and what
// applies of "tree_id" "new_bytes" "from". parent is the id of another node, or null: it is one that is gone,
// or no machine. A chain of parents always ends.
json_t *lineage_nodes(struct service *service);
