// SPDX-License-Identifier: Apache-2.0
// The simulated loops: the I/O seam (blockstore/io.h) over a simulated disk, several shards on one thread, in
// virtual time. The same seed and the same calls give the same run, to the byte.
//
// Completions come out of order and late, shards stall, posts of one sender arrive in order, timers fire at
// or after their deadline. sim_world_step runs the next event of any loop; a loop's own run_once (which the
// engine uses at start-up and shut-down) runs only events of that loop.
//
// A cut ends everything: from then on nothing changes on the disk and every operation answers -EIO, so that
// an engine that was under way can still be torn down through its own error paths. What is left is a new
// world: sim_world_after_power_cut or sim_world_after_kill. Both may also be taken of a world that goes on,
// at any moment between two steps, as often as wanted; that is how one run is cut at every I/O.
//
// The world also watches the contract of the seam: alignment of direct I/O, buffers changed under way, calls
// from the wrong shard, descriptors closed under an operation. See sim_world_violation.
#pragma once

#include <stdio.h>

#include "blockstore/io.h"
#include "tests/sim/sim_disk.h"

struct sim_world;

// The commit of a checkpoint, for faults and counts: a code of the simulator's own.
#define SIM_COMMIT ((enum io_code)(IO_POLL + 1))

// The nth call (1 = the next) of a kind whose path contains path_part (NULL = any) misbehaves. A zero error
// means a short read or write of `bytes` bytes instead.
struct sim_fault {
    enum io_code code;
    uint64_t nth;
    int error;     // errno, positive
    bool for_ever; // every call from the nth on
    uint64_t bytes;
    const char *path_part; // must stay valid
};

struct sim_options {
    unsigned loop_count;      // shards; 0 = 1
    uint64_t capacity_bytes;  // of the disk; 0 = endless
    bool space_unknown;       // free_bytes does not tell of it: others fill the disk
    unsigned direct_align;    // what O_DIRECT asks of offsets, lengths, buffers; 0 = 4096
    unsigned short_per_mille; // reads and writes cut short
    unsigned slow_per_mille;  // operations that take a hundred times as long
    unsigned stall_per_mille; // chance that a shard sleeps for a while after an event
    FILE *trace;              // every event as a line; NULL = none
};

struct sim_world *sim_world_create(uint64_t seed, const struct sim_options *options); // options may be NULL
// As sim_world_create, over this disk, which the world takes over.
struct sim_world *sim_world_create_on(
        uint64_t seed, const struct sim_options *options, struct sim_disk *disk);
struct sim_world *sim_world_destroy(struct sim_world *world); // accepts NULL, returns NULL

struct loop *sim_world_loop(struct sim_world *world, unsigned index);
struct sim_disk *sim_world_disk(struct sim_world *world);

// Runs the next event. Returns 1 when it ran one, 0 when nothing is left to happen.
int sim_world_step(struct sim_world *world);
// Steps until *done is true. Returns 0, or -EDEADLK when nothing is left to happen before that.
int sim_world_run_until(struct sim_world *world, const bool *done);
// Nothing but timers is left to happen.
bool sim_world_idle(const struct sim_world *world);
// Runs until that is so.
void sim_world_settle(struct sim_world *world);

// I/O events so far: every submission and every completion is one, and so are the begin and the end of a
// commit.
uint64_t sim_world_io_count(const struct sim_world *world);
// Calls of one kind so far.
uint64_t sim_world_calls(const struct sim_world *world, enum io_code code);
uint64_t sim_world_now_ns(const struct sim_world *world);
// A hash of everything that happened, in order.
uint64_t sim_world_trace_hash(const struct sim_world *world);
// The first breach of the seam's contract, or NULL.
const char *sim_world_violation(const struct sim_world *world);
// Operations submitted and not answered; descriptors and checkpoints open.
unsigned sim_world_in_flight(const struct sim_world *world);
unsigned sim_world_open_files(const struct sim_world *world);

// Adds to the plan; at most SIM_FAULTS_MAX.
enum { SIM_FAULTS_MAX = 16 };
void sim_world_fault(struct sim_world *world, const struct sim_fault *fault);
uint64_t sim_world_faults_hit(const struct sim_world *world);
void sim_world_clear_faults(struct sim_world *world);

// Cuts now, or when the I/O count reaches io_count.
void sim_world_cut(struct sim_world *world);
void sim_world_cut_at(struct sim_world *world, uint64_t io_count);
bool sim_world_is_cut(const struct sim_world *world);

// The machine as it comes back; the world itself is not changed. NULL options = those of the world.
struct sim_world *sim_world_after_power_cut(
        const struct sim_world *world, uint64_t seed, const struct sim_options *options);
struct sim_world *sim_world_after_kill(
        const struct sim_world *world, uint64_t seed, const struct sim_options *options);
