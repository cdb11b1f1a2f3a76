// SPDX-License-Identifier: Apache-2.0
// Which pages of a VMM's guest memory were written since the last committed snapshot, and their bytes.
// UFFD_FEATURE_WP_ASYNC (Linux 6.7) with PAGEMAP_SCAN. The method and its traps: REVIEW of the design, HACKING.md.
//
// A scan consumes the kernel's dirtiness, so the set "dirty since the last *committed* snapshot" lives here: it grows
// by scans and is emptied only by dirty_pages_committed. A set that was lost (new daemon, tracking broken) is
// replaced by "all private pages".
// Threads: one caller at a time, on a thread that holds no lock and serves neither FUSE nor NBD (reading the VMM's
// memory can fault on our own FUSE).
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dirty_pages;

// uffd: the descriptor that the preload library handed over (duplicated), or -1: stop-and-copy of private pages.
// ram_bytes: guest memory; its mapping is found in /proc/PID by the preload library's report.
int dirty_pages_open(int pid, int uffd, uint64_t ram_address, uint64_t ram_bytes, struct dirty_pages **ret_pages, struct error *err);
struct dirty_pages *dirty_pages_close(struct dirty_pages *pages);    // accepts NULL
// Starts tracking: the first set is all private pages.
int dirty_pages_start(struct dirty_pages *pages, struct error *err);
// Adds what was written since the last scan to the round's set and to the uncommitted set, and write-protects it again.
int dirty_pages_scan(struct dirty_pages *pages, struct error *err);
uint64_t dirty_pages_round_count(struct dirty_pages *pages);        // pages found by the last scan
uint64_t dirty_pages_uncommitted_count(struct dirty_pages *pages);
// Copies pages of the last round out: fills block numbers (guest address / 4096, ascending) and bytes, at most max_pages a
// call; returns how many (0 = round done). Pages of nothing but zeros are reported as such.
int dirty_pages_next(struct dirty_pages *pages, uint64_t *ret_blocks, void *buffer, bool *ret_zero, unsigned max_pages, struct error *err);
void dirty_pages_round_all_uncommitted(struct dirty_pages *pages);    // makes the next copy round the whole uncommitted set
void dirty_pages_committed(struct dirty_pages *pages);                // the snapshot was committed
