// SPDX-License-Identifier: Apache-2.0
// Disks coming in and going out. An import writes into a nameless volume that gets its name, durably, only
// when all is there; until then it belongs to this process, and whatever ends the import (the client leaves,
// the daemon dies) takes the volume with it. An export reads a base frozen for the purpose, so what is
// written out is of one instant.
//
// Two ways in: an NBD socket of the import's own, for qemu-img (it knows qcow2, keeps holes, shows progress),
// and a stream of raw bytes of any length, for pipes. The same two ways out.
//
// Threads: any that is not a loop. Errors: as in disks.h; -ENOSPC when the store is full.
#pragma once

#include "vmglue/disks.h"

struct import_export; // all that run now
struct import_session;
struct export_session;

int import_export_start(struct store *store, struct disks *disks, const char *run_dir,
        struct import_export **ret_all, struct error *err);
struct import_export *import_export_stop(struct import_export *all); // none runs any more; accepts NULL

// size_bytes is rounded up to whole sectors of 512. The volume is written through *ret_socket (NBD, default
// export).
int import_export_import(struct import_export *all, const char *name, uint64_t size_bytes,
        struct import_session **ret_session, struct error *err);
const char *import_export_import_id(const struct import_session *session);
const char *import_export_import_socket(const struct import_session *session);
// By id, from another connection: ends writing, names the volume, durably. -ENOENT: no such import runs.
int import_export_commit(
        struct import_export *all, const char *id, struct volume_id *ret_volume, struct error *err);
// By id, from another connection: ends writing, and the caller owns the nameless volume and its passing doc
// (passing.h) from now on. -ENOENT: no such import runs.
int import_export_take(struct import_export *all, const char *id, struct volume_id *ret_volume,
        struct doc_id *ret_passing, struct error *err);
// By id, from another connection: gives the import up, and returns when nothing is left of it. -ENOENT.
int import_export_cancel(struct import_export *all, const char *id, struct error *err);
// The session's owner lets go: what was not committed is deleted. Accepts NULL.
struct import_session *import_export_import_end(struct import_session *session);
// It was committed or cancelled: its owner need not wait any longer.
bool import_export_import_is_over(struct import_session *session);

// A stream of raw bytes into a new volume; source returns bytes, 0 at the end, < 0 to give up. expected_bytes
// 0 = whatever comes. *ret_padding: zeros added to fill the last sector.
int import_export_import_stream(struct import_export *all, const char *name, uint64_t expected_bytes,
        ssize_t (*source)(void *context, void *buffer, size_t capacity), void *context,
        struct volume_id *ret_volume, uint64_t *ret_padding, struct error *err);

int import_export_export(
        struct import_export *all, const char *name, struct export_session **ret_session, struct error *err);
const char *import_export_export_socket(const struct export_session *session);
uint64_t import_export_export_size(const struct export_session *session);
struct export_session *import_export_export_end(struct export_session *session); // accepts NULL
