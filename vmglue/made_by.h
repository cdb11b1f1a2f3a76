// SPDX-License-Identifier: Apache-2.0
// Whose a thing is, and which request made it. It stands in the thing's own record (of a sandbox, a snapshot,
// a template), or in a doc that the same transaction writes (of a volume), so that no moment knows the one
// without the other: not for the owner's keys (access.h), not for a request that is sent again
// (idempotency.h).
//
// Threads: any.
#pragma once

#include "snapshot/txn.h"
#include "vmglue/json.h"
#include "vmglue/keys.h"

enum { MADE_BY_REQUEST_SIZE = KEYS_REQUEST_SIZE };

struct made_by {
    char owner[KEYS_ID_SIZE];           // the id of a ci key; "" = the daemon owner's
    char request[MADE_BY_REQUEST_SIZE]; // of an Idempotency-Key; "" = none
};

// Members "owner" and "request", left out where they say nothing.
void made_by_put(const struct made_by *by, json_t *record);
struct made_by made_by_take(const json_t *record);
// As a thing that is made of another one by `by`: the owner is the other's.
struct made_by made_by_inherit(const struct made_by *source, const struct made_by *by); // by may be NULL

// Of a volume, which has no record of its own: a DOC_OTHER doc "made-by-ID". Nothing is put when by says
// nothing.
int made_by_put_volume(struct txn *txn, struct volume_id volume, const struct made_by *by, struct error *err);
struct made_by made_by_of_volume(struct store *store, struct volume_id volume);
void made_by_delete_volume(struct store *store, struct txn *txn, struct volume_id volume);
// The volume of such a doc; 0: it is another one.
struct volume_id made_by_volume_of(const struct doc *doc);
unsigned made_by_count(struct store *store); // how many such docs there are
