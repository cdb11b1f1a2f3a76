// SPDX-License-Identifier: Apache-2.0
// The cases of machine_test, and the load that runs in their guests.
#pragma once

#include "tests/e2e/rig.h"

void case_ram(struct rig *rig, unsigned rounds);
void case_sharing(struct rig *rig, unsigned generations);
void case_pace(struct rig *rig);
void case_generations(struct rig *rig, unsigned generations);
void case_shape(struct rig *rig);
void case_reboot(struct rig *rig);
void case_setup(struct rig *rig);
void case_damage(struct rig *rig);
void case_random(struct rig *rig, unsigned forks);
void case_unique(struct rig *rig, unsigned forks);
void case_traffic(struct rig *rig, unsigned rounds);

// case_ram.c: how many pages of a stopped machine differ from the base (the first one's number: *ret_first,
// may be NULL). image: what it was resumed from, 0 = cold-booted; pages that it has not touched are taken
// from there.
uint64_t ram_compare(struct machine *machine, struct base_id image, struct base_id id, uint64_t *ret_first);
// The same by way of the VMM's mappings, which brings all of it in.
uint64_t ram_compare_mapped(struct machine *machine, struct base_id id, uint64_t *ret_first);
// Asks the kernel to reclaim what it can of guest memory.
void ram_reclaim(struct machine *machine);

// load.c: a process in the guest that changes memory and disk all the time and checks both against what they
// must be.
void load_install(struct machine *machine);
void load_start(struct machine *machine);
void load_stop(struct machine *machine);
uint64_t load_count(struct machine *machine);               // steps so far
void load_wait(struct machine *machine, uint64_t at_least); // until so many steps are done
void load_check(struct machine *machine); // nothing it checked was wrong, nothing it wrote is missing
// Writes the disk out, replays its journal as a mount would, and has e2fsck look at all of it.
void load_check_disk(struct rig *rig, struct base_id disk, bool clean_shutdown);
