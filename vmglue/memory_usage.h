// SPDX-License-Identifier: Apache-2.0
// How much memory the host has and what a VMM takes of it.
//
// A VMM's figures come from /proc/PID/smaps, split at the borders of guest memory. Reading that file takes
// the process's mmap lock, which a hung VMM may hold for ever; so every reading has a thread of its own, at
// most one for each process, and who asks waits for a limited time and otherwise gets the figures of the last
// reading. Threads: any. Figures are bytes; at_ns is CLOCK_MONOTONIC.
#pragma once

#include "blockstore/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct memory_host {
    uint64_t total_bytes;     // of the machine, or what the cgroup that the daemon runs in allows
    uint64_t available_bytes; // without swapping: MemAvailable
    uint64_t swap_total_bytes, swap_free_bytes;
    bool has_pressure;             // the kernel tells it (PSI)
    double some_avg10, full_avg10; // percent of the last ten seconds that some, all tasks waited for memory
};
int memory_usage_host(struct memory_host *ret_host, struct error *err);

struct memory_usage {
    uint64_t private_bytes;     // guest memory that this VMM alone has, in RAM
    uint64_t shared_bytes;      // guest memory mapped from page cache, which others may map as well
    uint64_t shared_part_bytes; // its part of that when it is divided among those who map it (PSS)
    uint64_t swapped_bytes;     // guest memory of its own that is swapped out
    uint64_t vmm_bytes;         // everything of the process that is not guest memory (PSS), swap included
    uint64_t at_ns;             // when it was read
};

struct memory_probe;
// Guest memory is [address, address + bytes) of the process; with pid the start time says which one is meant.
// -ESRCH: it is gone.
int memory_usage_open(pid_t pid, uint64_t start_time_ticks, uint64_t address, uint64_t bytes,
        struct memory_probe **ret_probe, struct error *err);
struct memory_probe *memory_usage_share(struct memory_probe *probe); // another reference; accepts NULL
struct memory_probe *memory_usage_close(struct memory_probe *probe); // accepts NULL; waits for nothing
// Begins a reading, unless one is under way.
void memory_usage_begin(struct memory_probe *probe);
// The figures of a reading that ended after the last memory_usage_begin, when there are some before the
// deadline (CLOCK_MONOTONIC); otherwise older ones. false: none was ever read.
bool memory_usage_take(struct memory_probe *probe, uint64_t deadline_ns, struct memory_usage *ret_usage);
