// SPDX-License-Identifier: Apache-2.0
// Shared by sim_world.c (loops, time, worlds) and sim_io.c (operations on the disk).
#pragma once

#include "tests/sim/sim_queue.h"
#include "tests/sim/sim_world.h"

#define MICROSECOND UINT64_C(1000)
#define WALL_START UINT64_C(1700000000000000000)

struct sim_loop {
    struct loop loop; // first: the engine's handle
    struct sim_world *world;
    struct sim_queue queue; // completions, posts, timers
    uint64_t stalled_until;
    uint64_t *last_post; // per sender (index loop_count = outside): posts stay in order
};

// An operation between submit and done.
struct flight {
    struct io_op *op;
    struct sim_loop *loop;
    int64_t result;
    struct sim_node *node;
    struct sim_change *change; // IO_WRITE
    uint64_t mark;             // IO_FDATASYNC, IO_FSYNC_DIR
    size_t length;             // IO_READ, IO_WRITE: what will be done of it
    bool effect_done, failing;
};

struct open_file {
    struct sim_node *node; // NULL = closed
    char *path;
    int flags;
    unsigned in_flight;
};

struct sim_world {
    struct sim_options options;
    uint64_t random;
    uint64_t now;
    uint64_t order;
    struct sim_disk *disk;
    struct sim_loop *loop;
    struct sim_queue effects;
    struct open_file *file;
    unsigned file_count;
    unsigned in_flight, checkpoints_open;
    uint64_t io_count, cut_at, calls[SIM_COMMIT + 1];
    bool cut;
    struct sim_fault fault[SIM_FAULTS_MAX];
    unsigned fault_count;
    uint64_t faults_hit;
    uint64_t hash;
    char violation[256];
};

enum { FIRST_DESCRIPTOR = 1000 };

// sim_world.c
__attribute__((format(printf, 2, 3))) void sim_world_violate(
        struct sim_world *world, const char *format, ...);
void sim_world_note(struct sim_world *world, const char *what, const struct sim_loop *loop,
        const struct io_op *op, int64_t result);
void sim_world_count_io(struct sim_world *world);
void sim_world_check_thread(struct sim_loop *loop, const char *what);
// Lets so much time pass within an event: what is in flight takes effect, no callback runs.
void sim_world_pass(struct sim_world *world, uint64_t ns);

// sim_io.c
extern const char *const sim_io_code_names[];
struct open_file *sim_io_file_of(struct sim_world *world, int fd); // NULL = not open
// The fault of the plan that hits this call, or NULL.
const struct sim_fault *sim_io_planned_fault(struct sim_world *world, enum io_code code, const char *path);
void sim_io_submit(struct loop *handle, struct io_op *op);
void sim_io_take_effect(struct sim_world *world, struct flight *flight);
void sim_io_finish(struct sim_world *world, struct flight *flight); // frees it
