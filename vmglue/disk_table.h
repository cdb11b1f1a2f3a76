// SPDX-License-Identifier: Apache-2.0
// Partition tables that guests here cannot read: a GPT is found at sector 1, so one that was made for sectors
// of 4096 bytes does not exist for a machine whose disk has 512.
//
// Threads: any that is not a loop.
#pragma once

#include "snapshot/volume.h"

// Looks at the first bytes of a volume, or of a base when volume.value is 0. Disks that cannot be read are
// no reason to say so here.
bool disk_table_is_for_4096(struct store *store, struct volume_id volume, struct base_id base);
// What to say about such a disk: a whole sentence.
extern const char disk_table_notice[];
