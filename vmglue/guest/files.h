// SPDX-License-Identifier: Apache-2.0
// The FILE_ operations and SYNC: each runs in a helper process (a job), with root's rights. New files belong
// to the user where the user may write, else to the directory's owner; a replaced file keeps its owner.
#pragma once

#include "vmglue/agent_protocol.h"

#include <stdbool.h>

// fields: the request behind its operation. Answers on the stream.
void files_start(uint32_t stream, enum agent_operation operation, struct agent_cursor fields);

// FIFREEZE (or FITHAW) of every file system on a disk; used by the sync helper and by thaw. -errno of the
// first failure.
int files_freeze_filesystems(bool frozen);
// The same for thawing after a sync that did not end in time: may wait for the disk, so not in this process.
void files_thaw_in_background(void);
