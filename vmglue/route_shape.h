// SPDX-License-Identifier: Apache-2.0
// How large a machine is to be, from the fields that several calls share.
//
// Threads: any. Errors: -EINVAL with a sentence that names the field.
#pragma once

#include "blockstore/error.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stdint.h>

struct route_shape {
    unsigned cpus, memory_mb; // 0 = not given
    uint64_t disk_bytes;      // 0 = not given
    bool by_name;             // CPUs and memory are those of a named size, and nobody gave a number
};
// size, cpus, memory_mb, disk_gb. What is not given stays as it is.
int route_shape_take(const json_t *body, struct route_shape *shape, struct error *err);
