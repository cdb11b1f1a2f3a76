// SPDX-License-Identifier: Apache-2.0
// Tables, sizes, progress. On a terminal with a head line and bars; in a pipe plain lines, columns in the
// same order.
#pragma once

#include "vmglue/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { TABLE_COLUMNS_MAX = 10 };
struct table;
struct table *table_create(unsigned columns, const char *const *heads);
// A row of texts (copied).
void table_add(struct table *table, const char *const *cells);
void table_print(struct table *table); // and frees it

// "4.0 GiB"; the result is one of a few static buffers.
const char *output_size(uint64_t bytes);
const char *output_ms(double ms);
const char *output_age(const char *rfc3339); // "3 min", "2 d"

struct progress {
    const char *what;
    bool shown;
    int last;
};
void progress_set(struct progress *progress, double fraction);   // 0 to 1
void progress_amount(struct progress *progress, uint64_t bytes); // where the end is not known
void progress_text(struct progress *progress, const char *text); // a step that does not say how far it is
void progress_end(struct progress *progress);
