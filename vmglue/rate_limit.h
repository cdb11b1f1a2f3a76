// SPDX-License-Identifier: Apache-2.0
// Token buckets, one for each who: so many calls a second on the long run, and as many at once as the bucket
// holds. A table of fixed size: beyond it the bucket that was touched longest ago makes way (a full one, as a
// rule: it has had time to fill).
//
// Time is the caller's, in nanoseconds of any clock that never goes back. Threads: any. No errors.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { RATE_LIMIT_WHO_SIZE = 48, RATE_LIMIT_BUCKETS = 4096 };

struct rate_limit;

// rate_per_sec 0: no limit. NULL: no memory.
struct rate_limit *rate_limit_new(double rate_per_sec, double burst);
struct rate_limit *rate_limit_free(struct rate_limit *limit); // accepts NULL
// Takes one token of `who` (up to RATE_LIMIT_WHO_SIZE - 1 bytes count). 0, or the nanoseconds until there is
// one.
uint64_t rate_limit_take(struct rate_limit *limit, const char *who, uint64_t now_ns);
