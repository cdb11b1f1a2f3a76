// SPDX-License-Identifier: Apache-2.0
// Archives (snapshot/archive.h) of what has a name here: volumes, disk snapshots, machine snapshots.
//
// Threads: any that is not a loop. Durability: an import that returns 0 is durable; one that fails, or whose
// process dies, leaves nothing. Errors: as in archive.h; -ENOENT and -EEXIST for names.
#pragma once

#include "snapshot/archive.h"
#include "vmglue/disks.h"

// A volume goes as it is at this moment, a snapshot with everything that it consists of. All names are looked
// up before anything is written.
int archives_export(struct disks *disks, const char *const *names, unsigned name_count,
        archive_write_callback write, void *context, struct archive_result *ret_result, struct error *err);

// prefix: put before every name that the archive brings; "" = none. imported(): each thing that now exists,
// after all of them do; `doc` or `volume` is 0.
int archives_import(struct disks *disks, const char *prefix, archive_read_callback read,
        void (*imported)(void *context, struct volume_id volume, struct doc_id doc), void *context,
        struct archive_result *ret_result, struct error *err);
