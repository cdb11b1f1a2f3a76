// SPDX-License-Identifier: Apache-2.0
// Which machine snapshots are only written and which are ready. A snapshot is handed out when its record is
// in the log
// ("writing": it survives the daemon) and becomes "ready" when the log is synced (it survives power loss).
//
// Threads: any; a thread of its own does the syncing. What is found in the store at start is ready after
// snapshot_state_start, which syncs the log once.
#pragma once

#include "snapshot/store.h"

struct snapshot_state;

int snapshot_state_start(struct store *store, struct snapshot_state **ret_state, struct error *err);
struct snapshot_state *snapshot_state_stop(struct snapshot_state *state); // syncs what is left; accepts NULL
void snapshot_state_written(struct snapshot_state *state, struct doc_id id);
bool snapshot_state_is_ready(struct snapshot_state *state, struct doc_id id);
// Waits until it is ready. -ESTALE: the store has stopped writing; the snapshot may vanish with the power.
int snapshot_state_wait(struct snapshot_state *state, struct doc_id id);
