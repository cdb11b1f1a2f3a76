// SPDX-License-Identifier: Apache-2.0
// JSON is jansson's. This is the one file that includes it; everybody else includes this one.
#pragma once

#include <jansson.h>

// A json_t * variable marked JSON_AUTO gives its reference back when it goes out of scope.
#define JSON_AUTO __attribute__((cleanup(json_auto_release)))

static inline void json_auto_release(json_t **json)
{
    json_decref(*json);
}
