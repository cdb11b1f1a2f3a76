// SPDX-License-Identifier: Apache-2.0
// The disks of a sandbox: its root disk, served as "disk", and further ones, "disk1", "disk2" and so on,
// which the guest sees in this order as /dev/vda, /dev/vdb ... Those with a mount point are mounted after a
// boot (a guest that goes on has them mounted); an empty one gets a file system first. All (op) unless noted.
#pragma once

#include "vmglue/sandbox_origin.h"

// Fills sandbox->disk_exports.
void sandbox_disks_export(struct sandbox *sandbox);
void sandbox_disks_resolve(void *context, const char *name, struct nbd_export *ret_export); // on a loop
void sandbox_disks_describe(struct sandbox *sandbox, struct vm_config *config);
void sandbox_disks_describe_origin(
        struct sandboxes *all, const struct sandbox_origin *origin, struct vm_config *config);
int sandbox_disks_mount(struct sandbox *sandbox, struct error *err);
// What `create` asks for: checked, forked or made in the transaction, put into the record.
int sandbox_disks_create(struct sandboxes *all, struct txn *txn, const struct sandbox_create *create,
        struct sandbox_record *record, struct error *err);
