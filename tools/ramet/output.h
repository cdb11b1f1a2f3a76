// SPDX-License-Identifier: Apache-2.0
// Sizes and times in words, and progress: bars on a terminal only.
#pragma once

#include "tools/ramet/table.h"
#include "vmglue/json.h"

#include <stdbool.h>
#include <stdint.h>

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
void progress_leave(void); // whichever is shown, when this program ends under it
