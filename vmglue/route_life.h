// SPDX-License-Identifier: Apache-2.0
// Fields that create and PATCH of sandboxes share. 0 or more, or -EINVAL with the field's name in *err.
// What comes out belongs to the body. Threads: any.
#pragma once

#include "vmglue/sandbox.h"

// ttl_secs, idle_secs, persistent, on_timeout, auto_start.
int route_life_fields(const json_t *body, struct sandbox_change *change, struct error *err);
// labels and env; they belong to the body.
int route_life_maps(const json_t *body, const json_t **ret_labels, const json_t **ret_env, struct error *err);
