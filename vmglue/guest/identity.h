// SPDX-License-Identifier: Apache-2.0
// What must differ between two machines made from one snapshot, and be right after time has passed: the
// kernel's random generator, the clock, the machine id, the host name, the network card's address. In this
// order, and stopping at the first failure: the caller keeps user processes frozen then.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct identity {
    const uint8_t *seed; // 64 bytes
    uint64_t realtime_ns;
    const char *machine_id, *hostname;
    const uint8_t *mac; // 6 bytes, all zero = leave
};

// Where files are, and how the clock is set; tests have their own.
struct identity_system {
    const char *etc, *run, *state;
    int (*set_realtime)(uint64_t realtime_ns);
};
void identity_use(const struct identity_system *system);
const char *identity_run(void);   // "/run"
const char *identity_state(void); // "/var/lib/ramet", on the disk

// On failure fills the sentence and returns -errno.
int identity_change(const struct identity *identity, char *ret_sentence, size_t size);
int identity_hosts(const char *hostname); // the hosts file names it as this machine
int identity_set_clock(uint64_t realtime_ns);
// At boot: a machine id where the image has none, and the host name.
void identity_boot(const char *hostname);
