// SPDX-License-Identifier: Apache-2.0
#include "blockstore/io.h"

#include "blockstore/ids.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct loop *current_loop;

struct loop *loop_current(void)
{
    return current_loop;
}

void loop_set_current(struct loop *loop)
{
    current_loop = loop;
}

// Drops `bytes` from the front of the remaining array; returns true when nothing is left.
static bool iov_advance(struct io_op *op, size_t bytes)
{
    op->offset += bytes;
    while (op->iov_count > 0 && bytes >= op->iov[0].iov_len) {
        bytes -= op->iov[0].iov_len;
        op->iov++;
        op->iov_count--;
    }
    if (op->iov_count == 0)
        return true;
    op->iov[0].iov_base = (char *)op->iov[0].iov_base + bytes;
    op->iov[0].iov_len -= bytes;
    return false;
}

static void full_step(struct io_op *op, int64_t result)
{
    struct io_full *full = (struct io_full *)op;
    if (result == -EINTR || result == -EAGAIN)
        result = 0;
    else if (result == 0)
        result = op->code == IO_READ ? -ENODATA : -EIO;
    if (result < 0) {
        full->done(full, (int)result);
        return;
    }
    if (iov_advance(op, (size_t)result)) {
        full->done(full, 0);
        return;
    }
    loop_submit(full->loop, op);
}

void io_full_submit(struct loop *loop, struct io_full *full, enum io_code code, int fd,
        const struct iovec *iov, unsigned iov_count, uint64_t offset,
        void (*done)(struct io_full *full, int result))
{
    if (iov_count > IO_FULL_IOV)
        abort();
    memset(&full->op, 0, sizeof full->op);
    memcpy(full->iov, iov, iov_count * sizeof *iov);
    full->loop = loop;
    full->done = done;
    full->op.code = code;
    full->op.fd = fd;
    full->op.iov = full->iov;
    full->op.iov_count = iov_count;
    full->op.offset = offset;
    full->op.done = full_step;
    loop_submit(loop, &full->op);
}

struct sync_wait {
    struct io_op *op;
    int64_t result;
    bool finished;
    void (*done)(struct io_op *op, int64_t result);
};

static _Thread_local struct sync_wait *sync_waiting;

static void sync_done(struct io_op *op, int64_t result)
{
    sync_waiting->result = result;
    sync_waiting->finished = true;
}

int64_t io_sync(struct loop *loop, struct io_op *op)
{
    struct sync_wait wait = {.op = op};
    sync_waiting = &wait;
    op->done = sync_done;
    loop_submit(loop, op);
    while (!wait.finished) {
        int r = loop->ops->run_once(loop, true);
        if (r < 0)
            return r;
    }
    return wait.result;
}

struct sync_full {
    struct io_full full;
    int result;
    bool finished;
};

static void sync_full_done(struct io_full *full, int result)
{
    struct sync_full *wait = (struct sync_full *)full;
    wait->result = result;
    wait->finished = true;
}

int io_sync_full(struct loop *loop, enum io_code code, int fd, void *buffer, size_t size, uint64_t offset)
{
    struct sync_full wait = {.finished = false};
    struct iovec iov = {buffer, size};
    io_full_submit(loop, &wait.full, code, fd, &iov, 1, offset, sync_full_done);
    while (!wait.finished) {
        int r = loop->ops->run_once(loop, true);
        if (r < 0)
            return r;
    }
    return wait.result;
}

void *io_buffer_alloc(size_t size_bytes)
{
    size_t rounded = (size_bytes + BLOCK_SIZE - 1) & ~(size_t)(BLOCK_SIZE - 1);
    void *buffer = aligned_alloc(BLOCK_SIZE, rounded == 0 ? BLOCK_SIZE : rounded);
    if (buffer == NULL)
        abort();
    return buffer;
}

void io_buffer_free(void *buffer)
{
    free(buffer);
}
