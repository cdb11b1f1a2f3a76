// SPDX-License-Identifier: Apache-2.0
// Every change to the catalog is a transaction: a list of operations committed by one log record, all or
// none. A machine snapshot is one transaction: freeze disk, freeze memory, put the doc with the device state.
//
// Use: txn_begin, add operations, then txn_commit (or txn_abort). Ids are handed out when the operation is
// added, so that later operations of the same transaction may refer to them (a base frozen here is a fine
// parent for a volume created here, and a fine reference for a doc).
// Checks (names taken, things missing, in use) happen at commit: on failure nothing has changed and *err says
// what. A name is reserved at commit, so of two racing creates one gets -EEXIST.
// Freeze: the base holds every write answered before txn_commit was called, none submitted after done;
// those in flight are in or out, for good.
#pragma once

#include "snapshot/store.h"

struct txn;

struct txn *txn_begin(struct store *store);
void txn_abort(struct txn *txn); // accepts NULL

// parent.value 0: an empty volume of size_bytes. Otherwise a fork of that base; size_bytes 0 = the base's.
struct volume_id txn_volume_create(
        struct txn *txn, const char *name, enum volume_kind kind, uint64_t size_bytes, struct base_id parent);
// Puts a volume created in this transaction into a dedup domain: blocks are shared only within it and with
// domain 0 (public). A volume without this call is in its parent's domain, or in 0.
void txn_volume_domain(struct txn *txn, struct volume_id id, uint64_t domain);
void txn_volume_delete(struct txn *txn, struct volume_id id); // -EBUSY when open or named by a doc
void txn_volume_resize(struct txn *txn, struct volume_id id, uint64_t size_bytes); // new space reads zero
void txn_volume_rename(struct txn *txn, struct volume_id id, const char *name);
struct base_id txn_freeze(struct txn *txn, struct volume_id id);
// Puts a doc (a new one when doc->id.value is 0, else it replaces name, body and references of one that
// exists; the blob of a replaced doc stays). The doc and its blob are copied. A base created here that no doc
// or volume of this transaction refers to is dropped at once.
struct doc_id txn_doc_put(struct txn *txn, const struct doc *doc, const void *blob, size_t blob_bytes);
void txn_doc_delete(struct txn *txn, struct doc_id id);

enum {
    TXN_DURABLE = 1, // done only after the log is synced
    TXN_RESERVE = 2, // may use the space reserve: deletions and what frees space
};
// Consumes txn. done(context, result, err text) runs on an engine loop. [any thread, also on loops]
void txn_commit(struct txn *txn, unsigned flags,
        void (*done)(void *context, int result, const struct error *err), void *context);
int txn_commit_wait(struct txn *txn, unsigned flags, struct error *err); // not on a loop
