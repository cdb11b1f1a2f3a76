// SPDX-License-Identifier: Apache-2.0
// The word behind --network as the API's field: "full", "none", or a list of entries with commas between.
#pragma once

#include "vmglue/json.h"

json_t *network_option(const char *text);
