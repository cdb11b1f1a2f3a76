// SPDX-License-Identifier: Apache-2.0
// One operation at a time on a simulated world: what the tests of the simulator share.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim_world.h"

struct call {
    struct io_op op;
    struct iovec iov;
    int64_t result;
    bool done;
};

static inline void call_done(struct io_op *op, int64_t result)
{
    struct call *call = (struct call *)op;
    call->result = result;
    call->done = true;
}

static inline void start(
        struct sim_world *world, struct call *call, enum io_code code, int fd, const char *path)
{
    call->op.code = code;
    call->op.fd = fd;
    call->op.path = path;
    call->op.done = call_done;
    loop_submit(sim_world_loop(world, 0), &call->op);
}

static inline int64_t run(
        struct sim_world *world, struct call *call, enum io_code code, int fd, const char *path)
{
    start(world, call, code, fd, path);
    assert_int_equal(sim_world_run_until(world, &call->done), 0);
    return call->result;
}

static inline int64_t do_path(struct sim_world *world, enum io_code code, const char *path)
{
    struct call call = {0};
    return run(world, &call, code, -1, path);
}

static inline int do_open(struct sim_world *world, const char *path, int flags)
{
    struct call call = {.op.flags = flags};
    return (int)run(world, &call, IO_OPEN, -1, path);
}

static inline void prepare(struct call *call, void *buffer, size_t size, uint64_t offset)
{
    memset(call, 0, sizeof *call);
    call->iov = (struct iovec){buffer, size};
    call->op.iov = &call->iov;
    call->op.iov_count = 1;
    call->op.offset = offset;
}

static inline int64_t do_transfer(
        struct sim_world *world, enum io_code code, int fd, void *buffer, size_t size, uint64_t offset)
{
    struct call call;
    prepare(&call, buffer, size, offset);
    return run(world, &call, code, fd, NULL);
}

static inline int64_t do_sync(struct sim_world *world, int fd)
{
    struct call call = {0};
    return run(world, &call, IO_FDATASYNC, fd, NULL);
}
