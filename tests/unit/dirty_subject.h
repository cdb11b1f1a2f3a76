// SPDX-License-Identifier: Apache-2.0
// For the tests of dirty tracking: the subject is a child with "guest memory" of its own, told by pipe what
// to do, and with a thread that hammers its pages; the image composed of its dirty pages must equal its
// memory byte for byte.
#pragma once

#include "vmglue/dirty_pages.h"
#include "vmglue/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, RAM_PAGES = 10240, TOUCHED_PAGES = 3000, BATCH = 700 };
#define RAM_BYTES ((uint64_t)RAM_PAGES * PAGE)

enum order_code {
    WRITE_PAGE,
    READ_PAGE,
    KERNEL_WRITE,
    DISCARD,
    PAGE_OUT,
    UNMAP,
    REMAP,
    UNREGISTER,
    ZERO_PAGE,
    HAMMER
};
struct order {
    uint32_t code, value;
    uint64_t page, count;
};

static struct error err;

// ---- The subject ----

struct subject {
    pid_t pid;
    int control, uffd;
    uint64_t address;
};

static unsigned char *ram;
static int hammer_started;

static inline void *hammer(void *argument)
{
    // Plain stores of a counter, half of them in few hot pages, for as long as the process lives.
    uint64_t state = 88172645463325252ULL;
    for (uint64_t n = 1;; n++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint64_t page = state % 2 == 0 ? state / 2 % 40 : state / 2 % TOUCHED_PAGES;
        *(volatile uint64_t *)(ram + page * PAGE + state / 131072 % 512 * 8) = n;
        if (n % 64 == 0)
            sched_yield();
    }
    return argument;
}

static inline void kernel_write(uint64_t page, unsigned value)
{
    int fds[2];
    unsigned char bytes[PAGE];
    memset(bytes, (int)value, sizeof bytes);
    if (pipe(fds) < 0 || write(fds[1], bytes, PAGE) != PAGE || read(fds[0], ram + page * PAGE, PAGE) != PAGE)
        _exit(3);
    close(fds[0]);
    close(fds[1]);
}

static inline int obey(const struct order *order, int uffd)
{
    unsigned char *at = ram + order->page * PAGE;
    size_t bytes = order->count * PAGE;
    struct uffdio_range range = {(uintptr_t)at, bytes};
    pthread_t thread;
    volatile unsigned char sink = 0;
    switch (order->code) {
    case WRITE_PAGE:
        for (uint64_t i = 0; i < order->count; i++)
            memset(at + i * PAGE, (int)order->value, 100);
        return 0;
    case ZERO_PAGE:
        memset(at, 0, bytes);
        return 0;
    case READ_PAGE:
        for (uint64_t i = 0; i < order->count; i++)
            sink = (unsigned char)(sink + at[i * PAGE]);
        return 0;
    case KERNEL_WRITE:
        for (uint64_t i = 0; i < order->count; i++)
            kernel_write(order->page + i, order->value);
        return 0;
    case DISCARD:
        return madvise(at, bytes, MADV_DONTNEED);
    case PAGE_OUT:
        return madvise(at, bytes, 21 /* MADV_PAGEOUT */);
    case UNMAP:
        return munmap(at, bytes);
    case REMAP:
        return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
               MAP_FAILED;
    case UNREGISTER:
        return ioctl(uffd, UFFDIO_UNREGISTER, &range);
    case HAMMER:
        return hammer_started++ ? 0 : pthread_create(&thread, NULL, hammer, NULL);
    }
    return -1;
}

static inline void run_subject(int control, int image_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int flags = MAP_PRIVATE | (image_fd < 0 ? MAP_ANONYMOUS : 0);
    ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, flags, image_fd, 0);
    if (ram == MAP_FAILED)
        _exit(2);
    madvise(ram, RAM_BYTES, MADV_NOHUGEPAGE);
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    uint64_t address = (uintptr_t)ram;
    if (uffd < 0 || unix_socket_send(control, &address, sizeof address, uffd) < 0)
        _exit(2);
    struct order order;
    while (read(control, &order, sizeof order) == (ssize_t)sizeof order) {
        int result = obey(&order, uffd);
        if (write(control, &result, sizeof result) != (ssize_t)sizeof result)
            break;
    }
    _exit(0);
}

static inline int make_image(void)
{
    char path[] = "/tmp/ramet-dirty-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    unsigned char *bytes = malloc(RAM_BYTES);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < RAM_BYTES; i++)
        bytes[i] = (unsigned char)(i / PAGE * 31 + i);
    assert_int_equal(write(fd, bytes, RAM_BYTES), RAM_BYTES);
    free(bytes);
    return fd;
}

static inline struct subject start_subject(int image_fd)
{
    struct subject subject;
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    subject.pid = fork();
    assert_true(subject.pid >= 0);
    if (subject.pid == 0) {
        close(sockets[0]);
        run_subject(sockets[1], image_fd);
    }
    close(sockets[1]);
    subject.control = sockets[0];
    assert_int_equal(unix_socket_receive(subject.control, &subject.address, 8, 0, &subject.uffd), 8);
    assert_true(subject.uffd >= 0);
    return subject;
}

static inline void tell(
        struct subject *subject, enum order_code code, uint64_t page, uint64_t count, unsigned value)
{
    struct order order = {.code = code, .page = page, .count = count, .value = value};
    int result = -1;
    assert_int_equal(write(subject->control, &order, sizeof order), sizeof order);
    assert_int_equal(read(subject->control, &result, sizeof result), sizeof result);
    assert_int_equal(result, 0);
}

static inline void end_subject(struct subject *subject)
{
    int status;
    kill(subject->pid, SIGKILL);
    assert_int_equal(waitpid(subject->pid, &status, 0), subject->pid);
    close(subject->control);
    close(subject->uffd);
}

static inline void stop_subject(struct subject *subject)
{
    int status;
    assert_int_equal(kill(subject->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(subject->pid, &status, WUNTRACED), subject->pid);
    assert_true(WIFSTOPPED(status));
}

// ---- The composer ----

static unsigned char *composed;

static inline void compose_from(int image_fd)
{
    composed = calloc(1, RAM_BYTES);
    assert_non_null(composed);
    if (image_fd >= 0)
        assert_int_equal(pread(image_fd, composed, RAM_BYTES, 0), RAM_BYTES);
}

static inline struct dirty_pages *open_pages(struct subject *subject, int uffd)
{
    struct dirty_pages *pages = NULL;
    if (dirty_pages_open(subject->pid, uffd, subject->address, RAM_BYTES, &pages, &err) < 0)
        fail_msg("%s", err.text);
    return pages;
}

static inline void must(int result)
{
    if (result < 0)
        fail_msg("%d: %s", result, err.text);
}

// Copies the round; returns how many pages and, in *ret_first, the lowest.
static inline uint64_t copy_round(struct dirty_pages *pages, uint64_t *ret_first)
{
    static uint64_t blocks[BATCH];
    static bool zero[BATCH];
    static unsigned char buffer[BATCH * PAGE];
    uint64_t total = 0, last = 0;
    for (;;) {
        int count = dirty_pages_next(pages, blocks, buffer, zero, BATCH, &err);
        must(count);
        if (count == 0)
            return total;
        for (int i = 0; i < count; i++) {
            assert_true(total == 0 || blocks[i] > last); // ascending, none twice
            if (total++ == 0 && ret_first != NULL)
                *ret_first = blocks[i];
            last = blocks[i];
            static const unsigned char zeros[PAGE];
            assert_int_equal(zero[i], memcmp(buffer + i * PAGE, zeros, PAGE) == 0);
            memcpy(composed + blocks[i] * PAGE, buffer + i * PAGE, PAGE);
        }
    }
}

static inline void assert_same_as(struct subject *subject)
{
    unsigned char *now = malloc(RAM_BYTES);
    assert_non_null(now);
    struct iovec local = {now, RAM_BYTES}, remote = {(void *)(uintptr_t)subject->address, RAM_BYTES};
    assert_int_equal(process_vm_readv(subject->pid, &local, 1, &remote, 1, 0), RAM_BYTES);
    unsigned wrong = 0;
    for (uint64_t page = 0; page < RAM_PAGES; page++)
        wrong += memcmp(now + page * PAGE, composed + page * PAGE, PAGE) != 0;
    free(now);
    if (wrong > 0)
        fail_msg("%u pages differ between the composed image and memory", wrong);
}

struct fixture {
    int image_fd;
    struct subject subject;
    struct dirty_pages *pages;
};

static inline uint64_t snapshot(struct dirty_pages *pages, uint64_t *ret_first);

// Comparing reads all of memory, and where anonymous memory was never touched that puts the kernel's zero
// page, which counts as written, once.
static inline void assert_same_and_absorb(struct fixture *fixture)
{
    assert_same_as(&fixture->subject);
    uint64_t count = snapshot(fixture->pages, NULL);
    assert_true(count == 0 || fixture->image_fd < 0);
    assert_same_as(&fixture->subject);
}

// A quiet snapshot: everything dirty is copied and committed. Returns the pages of it.
static inline uint64_t snapshot(struct dirty_pages *pages, uint64_t *ret_first)
{
    must(dirty_pages_scan(pages, &err));
    dirty_pages_round_all_uncommitted(pages);
    uint64_t count = copy_round(pages, ret_first);
    dirty_pages_committed(pages);
    assert_int_equal(dirty_pages_uncommitted_count(pages), 0);
    return count;
}

static inline int setup(void **state, bool from_image)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    fixture->image_fd = from_image ? make_image() : -1;
    fixture->subject = start_subject(fixture->image_fd);
    compose_from(fixture->image_fd);
    fixture->pages = open_pages(&fixture->subject, fixture->subject.uffd);
    *state = fixture;
    return 0;
}

static inline int setup_image(void **state)
{
    return setup(state, true);
}

static inline int setup_anonymous(void **state)
{
    return setup(state, false);
}

static inline int teardown(void **state)
{
    struct fixture *fixture = *state;
    fixture->pages = dirty_pages_close(fixture->pages);
    end_subject(&fixture->subject);
    if (fixture->image_fd >= 0)
        close(fixture->image_fd);
    free(composed);
    free(fixture);
    return 0;
}

static inline bool can_track(void)
{
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15};
    bool good = uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0;
    if (uffd >= 0)
        close(uffd);
    return good;
}
