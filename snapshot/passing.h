// SPDX-License-Identifier: Apache-2.0
// Passing docs: what is being made, or read, by this process and must not outlive it. A doc that says so
// keeps bases and volumes alive meanwhile; the transaction that completes the work removes it; what a dead
// process left is removed at the next start.
//
// Threads: any that is not a loop.
#pragma once

#include "snapshot/txn.h"

// A doc without references: fill in bases and volumes, and put it. Its body is constant: not to be freed.
struct doc passing_doc(void);
// Removes every passing doc with the volumes that it names. Before anything uses them: at start.
int passing_clean_up(struct store *store, unsigned *ret_count, struct error *err);
