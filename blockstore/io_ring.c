// SPDX-License-Identifier: Apache-2.0
// One io_uring per loop. Submissions gather in the ring and go to the kernel once per turn of the loop, with
// the wait for completions in the same system call. Other threads reach the loop through a locked list and an
// eventfd that is written only when the loop sleeps.
#include "blockstore/io_ring.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/random.h>
#include <unistd.h>

#include "blockstore/clock.h"

enum { DIR_OPEN, DIR_FSYNC }; // steps of IO_FSYNC_DIR, in loop_private[0]

struct ring_loop {
    struct loop loop;
    struct io_uring ring;
    struct loop_timer *timers; // sorted by deadline
    unsigned in_flight;
    pthread_mutex_t posted_lock;
    struct loop_work *posted_head, **posted_tail; // protected by posted_lock
    _Atomic bool sleeping;
    int wake_fd;
    int spare_fd; // given up for the sync of a directory when the process has no descriptor left
    uint64_t wake_value;
    bool wake_armed;
    pthread_t thread;
    bool thread_running;
    _Atomic bool stopping;
    _Atomic uint64_t enter_count;
};

static struct ring_loop *ring_loop(struct loop *loop)
{
    return (struct ring_loop *)loop;
}

static struct io_uring_sqe *ring_sqe(struct ring_loop *self)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring);
    while (sqe == NULL) {
        atomic_fetch_add_explicit(&self->enter_count, 1, memory_order_relaxed);
        io_uring_submit(&self->ring);
        sqe = io_uring_get_sqe(&self->ring);
    }
    return sqe;
}

static void prepare(struct io_uring_sqe *sqe, struct io_op *op)
{
    switch (op->code) {
    case IO_READ:
        if (op->iov_count == 1)
            io_uring_prep_read(sqe, op->fd, op->iov[0].iov_base, (unsigned)op->iov[0].iov_len, op->offset);
        else
            io_uring_prep_readv(sqe, op->fd, op->iov, op->iov_count, op->offset);
        break;
    case IO_WRITE:
        if (op->iov_count == 1)
            io_uring_prep_write(sqe, op->fd, op->iov[0].iov_base, (unsigned)op->iov[0].iov_len, op->offset);
        else
            io_uring_prep_writev(sqe, op->fd, op->iov, op->iov_count, op->offset);
        break;
    case IO_FDATASYNC:
        io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
        break;
    case IO_OPEN:
        io_uring_prep_openat(sqe, AT_FDCWD, op->path, op->flags | O_CLOEXEC, op->mode);
        break;
    case IO_CLOSE:
        io_uring_prep_close(sqe, op->fd);
        break;
    case IO_RENAME:
        io_uring_prep_renameat(sqe, AT_FDCWD, op->path, AT_FDCWD, op->path2, 0);
        break;
    case IO_UNLINK:
        io_uring_prep_unlinkat(sqe, AT_FDCWD, op->path, 0);
        break;
    case IO_MKDIR:
        io_uring_prep_mkdirat(sqe, AT_FDCWD, op->path, op->mode);
        break;
    case IO_FSYNC_DIR:
        op->loop_private[0] = DIR_OPEN;
        io_uring_prep_openat(sqe, AT_FDCWD, op->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        break;
    case IO_RECV:
        io_uring_prep_recv(sqe, op->fd, op->iov[0].iov_base, op->iov[0].iov_len, op->flags);
        break;
    case IO_SENDMSG:
        memset(&op->message, 0, sizeof op->message);
        op->message.msg_iov = op->iov;
        op->message.msg_iovlen = op->iov_count;
        io_uring_prep_sendmsg(sqe, op->fd, &op->message, MSG_NOSIGNAL | (unsigned)op->flags);
        break;
    case IO_ACCEPT:
        io_uring_prep_accept(sqe, op->fd, NULL, NULL, SOCK_CLOEXEC);
        break;
    case IO_POLL:
        io_uring_prep_poll_add(sqe, op->fd, (unsigned)op->flags);
        break;
    }
}

static void ring_submit(struct loop *loop, struct io_op *op)
{
    struct ring_loop *self = ring_loop(loop);
    struct io_uring_sqe *sqe = ring_sqe(self);
    prepare(sqe, op);
    io_uring_sqe_set_data(sqe, op);
    self->in_flight++;
}

static void ring_post(struct loop *loop, struct loop_work *work)
{
    struct ring_loop *self = ring_loop(loop);
    work->next = NULL;
    pthread_mutex_lock(&self->posted_lock);
    *self->posted_tail = work;
    self->posted_tail = &work->next;
    pthread_mutex_unlock(&self->posted_lock);
    if (atomic_exchange(&self->sleeping, false)) {
        uint64_t one = 1;
        while (write(self->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
}

static struct loop_work *take_posted(struct ring_loop *self)
{
    pthread_mutex_lock(&self->posted_lock);
    struct loop_work *head = self->posted_head;
    self->posted_head = NULL;
    self->posted_tail = &self->posted_head;
    pthread_mutex_unlock(&self->posted_lock);
    return head;
}

static bool anything_posted(struct ring_loop *self)
{
    pthread_mutex_lock(&self->posted_lock);
    bool any = self->posted_head != NULL;
    pthread_mutex_unlock(&self->posted_lock);
    return any;
}

static uint64_t ring_now(struct loop *loop)
{
    return clock_monotonic_ns();
}

static uint64_t ring_wall(struct loop *loop)
{
    return clock_wall_ns();
}

static void ring_cancel_timer(struct loop *loop, struct loop_timer *timer)
{
    struct ring_loop *self = ring_loop(loop);
    for (struct loop_timer **at = &self->timers; *at != NULL; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->armed = false;
}

static void ring_add_timer(struct loop *loop, struct loop_timer *timer)
{
    struct ring_loop *self = ring_loop(loop);
    if (timer->armed)
        ring_cancel_timer(loop, timer);
    struct loop_timer **at = &self->timers;
    while (*at != NULL && (*at)->deadline_ns <= timer->deadline_ns)
        at = &(*at)->next;
    timer->next = *at;
    *at = timer;
    timer->armed = true;
}

static int run_timers(struct ring_loop *self)
{
    if (self->timers == NULL)
        return 0;
    uint64_t now = ring_now(&self->loop);
    int count = 0;
    while (self->timers != NULL && self->timers->deadline_ns <= now) {
        struct loop_timer *timer = self->timers;
        self->timers = timer->next;
        timer->armed = false;
        timer->fire(timer);
        count++;
    }
    return count;
}

// The middle steps of a directory sync; true when the operation goes on.
static void spare_take(struct ring_loop *self)
{
    if (self->spare_fd < 0)
        self->spare_fd = fcntl(self->wake_fd, F_DUPFD_CLOEXEC, 0);
}

// A directory that cannot be synced stops the log: that must not come from too many connections.
static int64_t open_with_spare(struct ring_loop *self, const char *path)
{
    if (self->spare_fd >= 0)
        close(self->spare_fd);
    self->spare_fd = -1;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static bool continue_dir_sync(struct ring_loop *self, struct io_op *op, int64_t *result)
{
    if (op->loop_private[0] == DIR_OPEN) {
        if (*result == -EMFILE || *result == -ENFILE)
            *result = open_with_spare(self, op->path);
        if (*result < 0)
            return false;
        op->loop_private[0] = DIR_FSYNC;
        op->loop_private[1] = (uint64_t)*result;
        struct io_uring_sqe *sqe = ring_sqe(self);
        io_uring_prep_fsync(sqe, (int)*result, 0);
        io_uring_sqe_set_data(sqe, op);
        self->in_flight++;
        return true;
    }
    close((int)op->loop_private[1]);
    spare_take(self);
    return false;
}

static int run_completions(struct ring_loop *self)
{
    struct io_uring_cqe *cqe;
    int count = 0;
    while (io_uring_peek_cqe(&self->ring, &cqe) == 0) {
        struct io_op *op = io_uring_cqe_get_data(cqe);
        int64_t result = cqe->res;
        io_uring_cqe_seen(&self->ring, cqe);
        count++;
        if (op == NULL) {
            self->wake_armed = false;
            continue;
        }
        self->in_flight--;
        if (op->code == IO_FSYNC_DIR && continue_dir_sync(self, op, &result))
            continue;
        op->done(op, result);
    }
    return count;
}

static void arm_wake(struct ring_loop *self)
{
    if (self->wake_armed)
        return;
    struct io_uring_sqe *sqe = ring_sqe(self);
    io_uring_prep_read(sqe, self->wake_fd, &self->wake_value, sizeof self->wake_value, 0);
    io_uring_sqe_set_data(sqe, NULL);
    self->wake_armed = true;
}

static int enter(struct ring_loop *self, bool wait)
{
    atomic_fetch_add_explicit(&self->enter_count, 1, memory_order_relaxed);
    if (!wait)
        return io_uring_submit(&self->ring);
    if (self->timers == NULL)
        return io_uring_submit_and_wait(&self->ring, 1);
    uint64_t now = ring_now(&self->loop), deadline = self->timers->deadline_ns;
    uint64_t left = deadline > now ? deadline - now : 0;
    struct __kernel_timespec ts = {
            .tv_sec = (long long)(left / 1000000000u), .tv_nsec = (long long)(left % 1000000000u)};
    struct io_uring_cqe *cqe;
    int r = io_uring_submit_and_wait_timeout(&self->ring, &cqe, 1, &ts, NULL);
    return r == -ETIME ? 0 : r;
}

static int ring_run_once(struct loop *loop, bool wait)
{
    struct ring_loop *self = ring_loop(loop);
    struct loop *before = loop_current();
    loop_set_current(loop);
    int did = run_completions(self);
    for (struct loop_work *work = take_posted(self), *next; work != NULL; work = next) {
        next = work->next;
        did++;
        work->run(work);
    }
    did += run_timers(self);
    bool sleep = wait && did == 0;
    if (sleep) {
        arm_wake(self);
        atomic_store(&self->sleeping, true);
        sleep = !anything_posted(self) && !atomic_load(&self->stopping);
    }
    int r = 0;
    if (sleep || io_uring_sq_ready(&self->ring) > 0)
        r = enter(self, sleep);
    atomic_store(&self->sleeping, false);
    loop_set_current(before);
    return r == -EINTR || r == -EAGAIN || r == -EBUSY || r >= 0 ? 0 : r;
}

static void ring_random(struct loop *loop, void *buffer, size_t size)
{
    char *at = buffer;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno != EINTR)
            abort();
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
}

static int ring_list_dir(
        struct loop *loop, const char *path, void (*each)(void *context, const char *name), void *context)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return -errno;
    errno = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            each(context, entry->d_name);
    int r = -errno;
    closedir(dir);
    return r;
}

static int ring_lock_file(struct loop *loop, int fd, bool shared)
{
    if (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0)
        return 0;
    return errno == EWOULDBLOCK ? -EBUSY : -errno;
}

static uint64_t ring_free_bytes(struct loop *loop, const char *path)
{
    struct statvfs stat;
    return statvfs(path, &stat) == 0 ? (uint64_t)stat.f_bavail * stat.f_frsize : UINT64_MAX;
}

// As du counts. What cannot be looked at, or goes meanwhile, counts nothing.
static uint64_t ring_used_bytes(struct loop *loop, const char *path)
{
    struct stat stat;
    if (lstat(path, &stat) < 0)
        return 0;
    uint64_t bytes = (uint64_t)stat.st_blocks * 512;
    DIR *directory = S_ISDIR(stat.st_mode) ? opendir(path) : NULL;
    if (directory == NULL)
        return bytes;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char *below = NULL;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (asprintf(&below, "%s/%s", path, entry->d_name) < 0)
            abort();
        bytes += ring_used_bytes(loop, below);
        free(below);
    }
    closedir(directory);
    return bytes;
}

static const struct loop_ops ring_ops = {
        .submit = ring_submit,
        .post = ring_post,
        .add_timer = ring_add_timer,
        .cancel_timer = ring_cancel_timer,
        .run_once = ring_run_once,
        .now_ns = ring_now,
        .wall_ns = ring_wall,
        .random = ring_random,
        .list_dir = ring_list_dir,
        .lock_file = ring_lock_file,
        .free_bytes = ring_free_bytes,
        .used_bytes = ring_used_bytes,
};

int io_ring_loop_create(unsigned index, unsigned entries, struct loop **ret_loop)
{
    struct ring_loop *self = calloc(1, sizeof *self);
    if (self == NULL)
        return -ENOMEM;
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = entries * 8};
    int r = io_uring_queue_init_params(entries, &self->ring, &params);
    if (r < 0) {
        free(self);
        return r;
    }
    self->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (self->wake_fd < 0) {
        r = -errno;
        io_uring_queue_exit(&self->ring);
        free(self);
        return r;
    }
    self->spare_fd = -1;
    spare_take(self);
    pthread_mutex_init(&self->posted_lock, NULL);
    self->posted_tail = &self->posted_head;
    self->loop.ops = &ring_ops;
    self->loop.index = index;
    *ret_loop = &self->loop;
    return 0;
}

struct loop *io_ring_loop_destroy(struct loop *loop)
{
    if (loop == NULL)
        return NULL;
    struct ring_loop *self = ring_loop(loop);
    io_uring_queue_exit(&self->ring);
    close(self->wake_fd);
    if (self->spare_fd >= 0)
        close(self->spare_fd);
    pthread_mutex_destroy(&self->posted_lock);
    free(self);
    return NULL;
}

static void *loop_thread(void *argument)
{
    struct ring_loop *self = argument;
    while (!atomic_load(&self->stopping))
        if (ring_run_once(&self->loop, true) < 0)
            abort();
    return NULL;
}

// The kernel ends a request in the thread that made it. Who ran the loop before its own thread did has left
// the read of the eventfd behind, and a loop that sleeps would then be woken by way of that thread: never,
// while it waits for something that this loop serves (a page of a memory image).
static int take_wake_back(struct ring_loop *self)
{
    uint64_t one = 1;
    if (self->wake_armed && write(self->wake_fd, &one, sizeof one) != sizeof one)
        return -errno;
    while (self->wake_armed) {
        struct io_uring_cqe *cqe;
        int r = io_uring_wait_cqe(&self->ring, &cqe);
        if (r < 0 && r != -EINTR)
            return r;
        struct loop *before = loop_current();
        loop_set_current(&self->loop);
        run_completions(self);
        loop_set_current(before);
    }
    return 0;
}

int io_ring_thread_start(struct loop *loop)
{
    struct ring_loop *self = ring_loop(loop);
    int taken = take_wake_back(self);
    if (taken < 0)
        return taken;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
    atomic_store(&self->stopping, false);
    int r = pthread_create(&self->thread, NULL, loop_thread, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->thread_running = r == 0;
    return -r;
}

void io_ring_thread_stop(struct loop *loop)
{
    struct ring_loop *self = ring_loop(loop);
    if (!self->thread_running)
        return;
    atomic_store(&self->stopping, true);
    uint64_t one = 1;
    while (write(self->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(self->thread, NULL);
    self->thread_running = false;
    atomic_store(&self->stopping, false);
}

uint64_t io_ring_enter_count(struct loop *loop)
{
    return atomic_load_explicit(&ring_loop(loop)->enter_count, memory_order_relaxed);
}
