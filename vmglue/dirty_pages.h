// SPDX-License-Identifier: Apache-2.0
// Which pages of a VMM's guest memory were written since the last committed snapshot, and their bytes.
// UFFD_FEATURE_WP_ASYNC (Linux 6.7) with PAGEMAP_SCAN. The method and its traps: dirty_pages.c.
//
// A scan consumes the kernel's dirtiness, so the set "dirty since the last *committed* snapshot" lives here:
// it grows by scans and is emptied only by dirty_pages_committed. A set that was lost (new daemon, tracking
// broken) is replaced by "all private pages".
//
// A snapshot, in order:
//   dirty_pages_start           the first time; afterwards dirty_pages_scan, then
//   dirty_pages_round_all_uncommitted
//                               (which matters after a snapshot that failed, and costs nothing after one that
//                               did not)
//   dirty_pages_next            until it returns 0: copies the round, guest running
//   dirty_pages_scan, _next     more rounds while they shrink (without tracking, dirty_pages_tracks: none)
//   guest stopped: dirty_pages_scan, _next until 0; the guest may go on
//   dirty_pages_committed       when the snapshot was committed. Not called: everything counts as dirty still
// A page written while it is copied is found by the next scan: it was protected before.
//
// The guest must not be stopped without a scan after it, no kernel or device DMA may go into its memory
// (pinned pages change unseen), and the VMM must not discard pages (the preload library sees to that).
// Threads: one caller at a time, on a thread that holds no lock and serves neither FUSE nor NBD (reading the
// VMM's memory can fault on our own FUSE). Errors: -ESRCH the VMM is gone; -EFAULT a page cannot be read (its
// image is damaged or nobody serves it); -EPERM the caller may not look into that process (CAP_SYS_PTRACE).
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dirty_pages;

// uffd: the descriptor that the preload library handed over (duplicated here), or -1: stop-and-copy of
// private pages. ram_address, ram_bytes: guest memory, as reported (preload_host.h) and found again in
// /proc/PID/maps.
int dirty_pages_open(int pid, int uffd, uint64_t ram_address, uint64_t ram_bytes,
        struct dirty_pages **ret_pages, struct error *err);
struct dirty_pages *dirty_pages_close(struct dirty_pages *pages); // accepts NULL; tracking goes on in the VMM
// Starts tracking (again): the round and the uncommitted set are all private pages. A kernel or VMM that
// cannot track is no error: see dirty_pages_tracks.
int dirty_pages_start(struct dirty_pages *pages, struct error *err);
// Adds what was written since the last scan to the round's set and to the uncommitted set, and write-protects
// it again. When tracking was lost in between, it is started again and all private pages are added. Without
// tracking every scan adds all private pages, and only one made while the guest is stopped means anything.
int dirty_pages_scan(struct dirty_pages *pages, struct error *err);
bool dirty_pages_tracks(struct dirty_pages *pages);
uint64_t dirty_pages_round_count(struct dirty_pages *pages); // pages that the round still has to copy
uint64_t dirty_pages_uncommitted_count(struct dirty_pages *pages);
// Copies pages of the round out: fills block numbers (guest address / 4096, ascending) and bytes, at most
// max_pages a call; returns how many (0 = round done). Pages of nothing but zeros are reported as such (their
// bytes are there too). On failure nothing has left the round.
int dirty_pages_next(struct dirty_pages *pages, uint64_t *ret_blocks, void *buffer, bool *ret_zero,
        unsigned max_pages, struct error *err);
void dirty_pages_round_all_uncommitted(
        struct dirty_pages *pages); // makes the next copy round the whole uncommitted set
// The snapshot was committed: what was copied is not dirty any more. What a scan has found since and nobody
// has copied stays uncommitted.
void dirty_pages_committed(struct dirty_pages *pages);

// Calls each() for the ranges of guest memory (bytes, ascending) that the VMM has mapped right now: what the
// guest has touched, and with a warm page cache also some neighbours. Changes nothing. -EOPNOTSUPP before
// Linux 6.7.
int dirty_pages_present(struct dirty_pages *pages,
        void (*each)(void *context, uint64_t offset, uint64_t length), void *context, struct error *err);
