// SPDX-License-Identifier: Apache-2.0
// The production loop: one io_uring per shard. Only this module includes liburing.
#pragma once

#include "blockstore/io.h"

// Creates a loop that is not running yet; entries is the submission queue's size (e.g. 256).
int io_ring_loop_create(unsigned index, unsigned entries, struct loop **ret_loop);
struct loop *io_ring_loop_destroy(struct loop *loop); // accepts NULL, returns NULL; thread stopped before

// Runs the loop on a thread of its own until io_ring_thread_stop. Before that, callers may drive it with
// run_once.
int io_ring_thread_start(struct loop *loop);
void io_ring_thread_stop(struct loop *loop); // from another thread; joins
// How many io_uring_enter calls the loop has made (for benchmarks).
uint64_t io_ring_enter_count(struct loop *loop);
