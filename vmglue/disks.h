// SPDX-License-Identifier: Apache-2.0
// The operator's disks: named volumes and snapshots of them, and what a name means (names.h has the rules).
//
// Threads: any that is not a loop, except disks_resolve, which also runs on loops. Durability: what returns 0
// here is durable. Errors: -ENOENT, -EEXIST, -EINVAL, -EBUSY, -ENOSPC, each with a sentence.
#pragma once

#include "snapshot/volume.h"
#include "vmglue/made_by.h"
#include "vmglue/names.h"

struct disks {
    struct store *store;
    struct names *names;
};

enum disks_kind { DISKS_VOLUME, DISKS_SNAPSHOT, DISKS_MACHINE, DISKS_SANDBOX_DISK };
// What a name or id means: a volume, or a base (volume.value 0).
struct disks_ref {
    enum disks_kind kind;
    struct volume_id volume;
    struct base_id base;
    struct doc_id doc; // of a snapshot or sandbox
    bool read_only;    // not to be written through NBD: snapshots, and disks that a sandbox owns
    uint64_t size_bytes;
    char name[STORE_NAME_MAX + 1];
};
// "web", "vol_7", "snap_9", "NAME/disk" of a sandbox, "NAME/memory" of a machine snapshot. -ENOENT without a
// sentence.
int disks_resolve(struct store *store, const char *name, struct disks_ref *ret_ref);
// The same with a sentence that says what was looked for.
int disks_find(struct disks *disks, const char *name, struct disks_ref *ret_ref, struct error *err);

enum { DISKS_SIZE_MAX_SHIFT = 56 };
// by may be NULL.
int disks_create(struct disks *disks, const char *name, uint64_t size_bytes, const struct made_by *by,
        struct volume_id *ret_id, struct error *err);
// A new volume over what `from` holds now. size_bytes 0 = as large as that; otherwise at least as large.
int disks_fork(struct disks *disks, const char *from, const char *name, uint64_t size_bytes,
        const struct made_by *by, struct volume_id *ret_id, struct error *err);
// Freezes a volume under a name (NULL = one is made). by may be NULL; the owner is the volume's or sandbox's.
int disks_snapshot(struct disks *disks, const char *volume, const char *name, const struct made_by *by,
        struct doc_id *ret_id, struct error *err);
// Whose it is; "" = nobody's.
struct made_by disks_made_by(struct disks *disks, const struct disks_ref *ref);
// new_name NULL, size_bytes 0 = as it is. Both or none.
int disks_change_volume(
        struct disks *disks, const char *name, const char *new_name, uint64_t size_bytes, struct error *err);
int disks_delete_volume(struct disks *disks, const char *name, struct error *err);
// Of a disk or machine snapshot: another name, other labels (an object of strings); NULL = as they are.
int disks_change_snapshot(struct disks *disks, const char *name, const char *new_name, const json_t *labels,
        struct doc_id *ret_id, struct error *err);
int disks_delete_snapshot(struct disks *disks, const char *name, struct error *err);
// Opens what `name` holds at this moment as a base that stays until disks_unpin: a snapshot's own, or a
// volume frozen for the purpose (its doc is called back at the next start when the process dies).
struct disks_pin {
    struct base *base;
    struct base_id id;
    struct doc_id doc; // 0 = none of ours
    struct disks_ref ref;
};
int disks_pin(struct disks *disks, const char *name, struct disks_pin *ret_pin, struct error *err);
void disks_unpin(struct disks *disks, struct disks_pin *pin);
