// SPDX-License-Identifier: Apache-2.0
// The I/O seam: every file operation, every moment of time and every random byte that the engine uses
// passes through one `struct loop`. There are two kinds: io_ring.c (io_uring, production) and
// tests/sim/ (a simulated disk and scheduler, single-threaded and deterministic by seed).
//
// A loop is one shard: one thread, one completion queue. Rules:
//  - loop_submit, loop_add_timer, loop_cancel_timer: only from the loop's own thread (or before it runs).
//  - loop_post: from any thread; the work runs on the loop's thread, posts of one sender in order.
//  - done callbacks run on the loop's thread, never inside loop_submit; they may submit again.
//  - An io_op belongs to the caller and must stay put, with its buffers, until its done callback.
//  - Nothing that runs on a loop may block.
// Results are >= 0 (bytes, or a descriptor for IO_OPEN/IO_ACCEPT) or -errno. Reads and writes may be short:
// callers that want all bytes use io_full_submit below.
// Units: bytes and nanoseconds. Durability: IO_WRITE alone promises nothing; IO_FDATASYNC makes what was
// completed before its submission durable; IO_FSYNC_DIR does the same for names in a directory.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum io_code {
    IO_READ,      // fd, iov/iov_count, offset
    IO_WRITE,     // fd, iov/iov_count, offset
    IO_FDATASYNC, // fd
    IO_OPEN,      // path, flags (O_*), mode -> fd
    IO_CLOSE,     // fd
    IO_RENAME,    // path, path2
    IO_UNLINK,    // path
    IO_MKDIR,     // path, mode
    IO_FSYNC_DIR, // path
    // Sockets, only for front ends (the simulated loop answers -ENOTSUP):
    IO_RECV,    // fd, iov[0]: one receive, may be short; 0 is the end
    IO_SENDMSG, // fd, iov/iov_count (MSG_NOSIGNAL)
    IO_ACCEPT,  // fd -> fd (close-on-exec)
    IO_POLL,    // fd, flags (POLLIN...) -> revents
};

struct io_op {
    enum io_code code;
    int fd;
    int flags;
    unsigned mode;
    uint64_t offset;
    struct iovec *iov;
    unsigned iov_count;
    const char *path, *path2;
    void (*done)(struct io_op *op, int64_t result);
    // Owned by the loop between submit and done:
    struct io_op *next;
    struct msghdr message;
    uint64_t loop_private[4];
};

struct loop_work {
    void (*run)(struct loop_work *work);
    struct loop_work *next;
};

struct loop_timer {
    void (*fire)(struct loop_timer *timer);
    uint64_t deadline_ns;
    struct loop_timer *next;
    bool armed;
};

struct loop;
struct checkpoint_db_ops;

struct loop_ops {
    void (*submit)(struct loop *loop, struct io_op *op);
    void (*post)(struct loop *loop, struct loop_work *work);
    void (*add_timer)(struct loop *loop, struct loop_timer *timer);
    void (*cancel_timer)(struct loop *loop, struct loop_timer *timer);
    // Runs ready work; with `wait`, sleeps until there is some. Returns < 0 only when the loop is broken.
    int (*run_once)(struct loop *loop, bool wait);
    uint64_t (*now_ns)(struct loop *loop);  // monotonic
    uint64_t (*wall_ns)(struct loop *loop); // CLOCK_REALTIME
    void (*random)(struct loop *loop, void *buffer, size_t size);
    // Names in a directory, for start-up only (blocks); calls each(name). Returns 0 or -errno.
    int (*list_dir)(struct loop *loop, const char *path, void (*each)(void *context, const char *name),
            void *context);
    // Advisory lock on an open file, exclusive or shared; -EBUSY when held elsewhere. Released by closing it.
    int (*lock_file)(struct loop *loop, int fd, bool shared);
    // Bytes that may still be written to the file system of `path` (blocks shortly); NULL = no limit known.
    uint64_t (*free_bytes)(struct loop *loop, const char *path);
    // Bytes that the files and directories from `path` down take on the file system (blocks shortly); NULL =
    // not known.
    uint64_t (*used_bytes)(struct loop *loop, const char *path);
    // Set by the simulator only: the order of everything is given by a seed, one thread runs all loops and
    // stands still while a task (task.h) runs; and its own keeping of checkpoints (checkpoint_db.h).
    bool deterministic;
    const struct checkpoint_db_ops *checkpoint_db;
};

struct loop {
    const struct loop_ops *ops;
    unsigned index; // which shard this is
};

static inline void loop_submit(struct loop *loop, struct io_op *op)
{
    loop->ops->submit(loop, op);
}

static inline void loop_post(struct loop *loop, struct loop_work *work)
{
    loop->ops->post(loop, work);
}

static inline uint64_t loop_now_ns(struct loop *loop)
{
    return loop->ops->now_ns(loop);
}

// The loop whose thread the caller is on, or NULL. A loop sets it before it runs callbacks.
struct loop *loop_current(void);
void loop_set_current(struct loop *loop);

// Repeats short reads or writes until all bytes of the iovec array (copied; at most IO_FULL_IOV entries)
// are done. Result of done: 0, -errno, or -ENODATA when a read met the end of the file.
enum { IO_FULL_IOV = 4 };
struct io_full {
    struct io_op op;
    struct loop *loop;
    struct iovec iov[IO_FULL_IOV];
    void (*done)(struct io_full *full, int result);
};
void io_full_submit(struct loop *loop, struct io_full *full, enum io_code code, int fd,
        const struct iovec *iov, unsigned iov_count, uint64_t offset,
        void (*done)(struct io_full *full, int result));

// Start-up and shut-down only: submits and runs the loop until the operation is done.
int64_t io_sync(struct loop *loop, struct io_op *op);
int io_sync_full(struct loop *loop, enum io_code code, int fd, void *buffer, size_t size, uint64_t offset);

// Page-aligned private buffers for direct I/O; abort on exhaustion of memory.
void *io_buffer_alloc(size_t size_bytes);
void io_buffer_free(void *buffer);
