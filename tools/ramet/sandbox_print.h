// SPDX-License-Identifier: Apache-2.0
// How sandboxes and snapshots look in lines and tables.
#pragma once

#include "vmglue/json.h"

void sandbox_print_line(const json_t *sandbox); // one sentence, after a change
void sandbox_print_table(const json_t *list);   // of sandboxes
void sandbox_print_snapshots(const json_t *list);
