// SPDX-License-Identifier: Apache-2.0
// Metadata contexts: what BLOCK_STATUS can be asked for, by name. NBD.md says what their flags mean.
//
// Threads: no state. Errors: a query without a namespace is malformed; one that names nothing of ours matches
// nothing.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum nbd_context {
    NBD_CONTEXT_ALLOCATION, // base:allocation
    NBD_CONTEXT_SHARED,     // ramet:shared
    NBD_CONTEXT_COUNT,
};
enum { NBD_CONTEXT_ALL = (1 << NBD_CONTEXT_COUNT) - 1 }; // sets are bits, 1 << context

enum { NBD_SHARED_SAME = 1 << 0 }; // flag of ramet:shared

const char *nbd_context_name(enum nbd_context context);
// Its number on the wire, never 0.
uint32_t nbd_context_wire_id(enum nbd_context context);
// The set that a query means; "namespace:" means all of a namespace, but only in a listing.
unsigned nbd_context_match(const char *query, bool listing);
bool nbd_context_query_is_malformed(const char *query);
