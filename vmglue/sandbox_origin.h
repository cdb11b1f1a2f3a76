// SPDX-License-Identifier: Apache-2.0
// What a new sandbox is made from: a disk (it boots) or a machine snapshot (it goes on). Shared by create,
// fork, start. An origin is its caller's, who frees it. Threads: any; nothing is kept.
#pragma once

#include "vmglue/sandbox_internal.h"

struct sandbox_origin {
    struct volume_id disk_volume; // a volume to freeze, or
    struct base_id disk;          // a base
    uint64_t disk_bytes;
    struct doc_id machine;        // the machine snapshot; 0 = boots
    struct base_id memory;        // its memory; 0 = boots
    struct base_id memory_origin; // what that shares most with; 0 = nothing
    unsigned cpus, memory_mb;     // of a machine
    json_t *network;              // owned
    bool is_template;
    json_t *defaults;                            // of a template, owned, object or NULL
    struct base_id more_bases[VM_DISKS_MAX - 1]; // further disks, what they are in `more`
    struct sandbox_disk more[VM_DISKS_MAX - 1];
    unsigned more_count;
    void *state; // device state, malloc'ed
    size_t state_bytes;
    char *compat; // malloc'ed
};

// By name, as in `create --from`.
int sandbox_origin_find(
        struct sandboxes *all, const char *from, struct sandbox_origin *ret_origin, struct error *err);
// A volume that has no name for `create --from`: a template's disk while it is being built.
int sandbox_origin_of_disk(
        struct sandboxes *all, struct volume_id disk, struct sandbox_origin *ret_origin, struct error *err);
// A machine snapshot by id, with its device state.
int sandbox_origin_load(
        struct sandboxes *all, struct doc_id machine, struct sandbox_origin *ret_origin, struct error *err);
// The further disks of a record, over new bases of them.
void sandbox_origin_take_more(
        struct sandbox_origin *origin, const struct sandbox_record *record, const struct base_id *bases);
// A record that goes on from a machine has its CPUs and memory.
void sandbox_origin_shape(const struct sandbox_origin *origin, struct sandbox_record *record);
void sandbox_origin_free(struct sandbox_origin *origin);
// Adds the volumes of a sandbox to a transaction: a disk over the origin's (disk_bytes 0 = as large), a
// memory over its memory or empty; fills record->disk, memory, mapped and, of a machine, the further disks.
void sandbox_origin_volumes(struct txn *txn, const struct sandbox_origin *origin, uint64_t disk_bytes,
        struct sandbox_record *record);
