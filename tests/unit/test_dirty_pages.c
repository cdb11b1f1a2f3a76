// SPDX-License-Identifier: Apache-2.0
// Dirty tracking of another process. The subject is a child with "guest memory" of its own, told by pipe what
// to do, and with a thread that hammers its pages; the composed image must equal its memory byte for byte.
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

enum { PAGE = 4096, RAM_PAGES = 16384, TOUCHED_PAGES = 3000, BATCH = 700 };
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

static void *hammer(void *argument)
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

static void kernel_write(uint64_t page, unsigned value)
{
    int fds[2];
    unsigned char bytes[PAGE];
    memset(bytes, (int)value, sizeof bytes);
    if (pipe(fds) < 0 || write(fds[1], bytes, PAGE) != PAGE || read(fds[0], ram + page * PAGE, PAGE) != PAGE)
        _exit(3);
    close(fds[0]);
    close(fds[1]);
}

static int obey(const struct order *order, int uffd)
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

static void run_subject(int control, int image_fd)
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

static int make_image(void)
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

static struct subject start_subject(int image_fd)
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

static void tell(struct subject *subject, enum order_code code, uint64_t page, uint64_t count, unsigned value)
{
    struct order order = {.code = code, .page = page, .count = count, .value = value};
    int result = -1;
    assert_int_equal(write(subject->control, &order, sizeof order), sizeof order);
    assert_int_equal(read(subject->control, &result, sizeof result), sizeof result);
    assert_int_equal(result, 0);
}

static void end_subject(struct subject *subject)
{
    int status;
    kill(subject->pid, SIGKILL);
    assert_int_equal(waitpid(subject->pid, &status, 0), subject->pid);
    close(subject->control);
    close(subject->uffd);
}

static void stop_subject(struct subject *subject)
{
    int status;
    assert_int_equal(kill(subject->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(subject->pid, &status, WUNTRACED), subject->pid);
    assert_true(WIFSTOPPED(status));
}

// ---- The composer ----

static unsigned char *composed;

static void compose_from(int image_fd)
{
    composed = calloc(1, RAM_BYTES);
    assert_non_null(composed);
    if (image_fd >= 0)
        assert_int_equal(pread(image_fd, composed, RAM_BYTES, 0), RAM_BYTES);
}

static struct dirty_pages *open_pages(struct subject *subject, int uffd)
{
    struct dirty_pages *pages = NULL;
    if (dirty_pages_open(subject->pid, uffd, subject->address, RAM_BYTES, &pages, &err) < 0)
        fail_msg("%s", err.text);
    return pages;
}

static void must(int result)
{
    if (result < 0)
        fail_msg("%d: %s", result, err.text);
}

// Copies the round; returns how many pages and, in *ret_first, the lowest.
static uint64_t copy_round(struct dirty_pages *pages, uint64_t *ret_first)
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

static void assert_same_as(struct subject *subject)
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

static uint64_t snapshot(struct dirty_pages *pages, uint64_t *ret_first);

// Comparing reads all of memory, and where anonymous memory was never touched that puts the kernel's zero
// page, which counts as written, once.
static void assert_same_and_absorb(struct fixture *fixture)
{
    assert_same_as(&fixture->subject);
    uint64_t count = snapshot(fixture->pages, NULL);
    assert_true(count == 0 || fixture->image_fd < 0);
    assert_same_as(&fixture->subject);
}

// A quiet snapshot: everything dirty is copied and committed. Returns the pages of it.
static uint64_t snapshot(struct dirty_pages *pages, uint64_t *ret_first)
{
    must(dirty_pages_scan(pages, &err));
    dirty_pages_round_all_uncommitted(pages);
    uint64_t count = copy_round(pages, ret_first);
    dirty_pages_committed(pages);
    assert_int_equal(dirty_pages_uncommitted_count(pages), 0);
    return count;
}

static void run_rounds(bool from_image)
{
    int image_fd = from_image ? make_image() : -1;
    struct subject subject = start_subject(image_fd);
    compose_from(image_fd);
    tell(&subject, HAMMER, 0, 0, 0);
    struct dirty_pages *pages = open_pages(&subject, subject.uffd);
    must(dirty_pages_start(pages, &err));
    assert_true(dirty_pages_tracks(pages));
    uint64_t last_round = 0;
    for (unsigned round = 0; round < 40; round++) {
        if (round > 0)
            must(dirty_pages_scan(pages, &err));
        for (unsigned i = 0; i < 3; i++) { // while it runs
            copy_round(pages, NULL);
            must(dirty_pages_scan(pages, &err));
        }
        if (round % 8 == 5) { // a snapshot that fails: nothing may be lost by it
            copy_round(pages, NULL);
            memset(composed + round * PAGE, 0xee, PAGE); // as the memory volume after a lost write
            tell(&subject, WRITE_PAGE, round, 1, round);
            must(dirty_pages_scan(pages, &err));
            dirty_pages_round_all_uncommitted(pages);
        }
        stop_subject(&subject);
        must(dirty_pages_scan(pages, &err));
        last_round += copy_round(pages, NULL);
        assert_same_as(&subject);
        dirty_pages_committed(pages);
        assert_int_equal(dirty_pages_uncommitted_count(pages), 0);
        assert_int_equal(kill(subject.pid, SIGCONT), 0);
    }
    assert_true(dirty_pages_tracks(pages));
    assert_true(last_round > 0); // it did hammer
    dirty_pages_close(pages);
    end_subject(&subject);
    free(composed);
    if (image_fd >= 0)
        close(image_fd);
}

static void test_rounds_image(void **state)
{
    run_rounds(true);
}

static void test_rounds_anonymous(void **state)
{
    run_rounds(false);
}

// ---- Single cases, all with both kinds of memory ----

static int setup(void **state, bool from_image)
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

static int setup_image(void **state)
{
    return setup(state, true);
}

static int setup_anonymous(void **state)
{
    return setup(state, false);
}

static int teardown(void **state)
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

static void test_only_private_pages_at_first(void **state)
{
    struct fixture *fixture = *state;
    uint64_t first = 0;
    tell(&fixture->subject, READ_PAGE, 1000, 500, 0);
    tell(&fixture->subject, WRITE_PAGE, 5000, 10, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_true(dirty_pages_tracks(fixture->pages));
    dirty_pages_round_all_uncommitted(fixture->pages);
    if (fixture->image_fd >= 0) {
        // Neither clean pages of the image nor pages never touched.
        assert_int_equal(dirty_pages_round_count(fixture->pages), 10);
        assert_int_equal(copy_round(fixture->pages, &first), 10);
        assert_int_equal(first, 5000);
    } else {
        // The kernel's zero page under pages that were read may count: it is zero. Pages never touched do
        // not.
        assert_in_range(dirty_pages_round_count(fixture->pages), 10, 510);
        copy_round(fixture->pages, NULL);
    }
    assert_same_as(&fixture->subject);
}

static void test_exact_after_commit(void **state)
{
    struct fixture *fixture = *state;
    uint64_t first = 0;
    tell(&fixture->subject, WRITE_PAGE, 0, 3000, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_int_equal(snapshot(fixture->pages, NULL), 3000);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    tell(&fixture->subject, WRITE_PAGE, 77, 1, 2); // written again
    assert_int_equal(snapshot(fixture->pages, &first), 1);
    assert_int_equal(first, 77);
    tell(&fixture->subject, WRITE_PAGE, 7000, 5, 3); // first touch
    assert_int_equal(snapshot(fixture->pages, &first), 5);
    assert_int_equal(first, 7000);
    tell(&fixture->subject, READ_PAGE, 6000, 100, 0); // read, then written
    tell(&fixture->subject, WRITE_PAGE, 6050, 1, 3);
    uint64_t count = snapshot(fixture->pages, &first);
    assert_true(fixture->image_fd < 0 ? count >= 1 && count <= 100 : count == 1 && first == 6050);
    tell(&fixture->subject, READ_PAGE, 0, 3000, 0);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    assert_same_as(&fixture->subject);
}

static void test_kernel_writes(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 64, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, KERNEL_WRITE, 32, 64, 9); // half of it protected, half never touched
    assert_int_equal(snapshot(fixture->pages, NULL), 64);
    assert_same_as(&fixture->subject);
}

static void test_every_other_page(void **state)
{
    // More pieces than one vector of the scan, of the copy, or of the caller holds.
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    for (uint64_t page = 1; page < RAM_PAGES; page += 2)
        tell(&fixture->subject, WRITE_PAGE, page, 1, (unsigned)page);
    assert_int_equal(snapshot(fixture->pages, NULL), RAM_PAGES / 2);
    assert_same_and_absorb(fixture);
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
}

static void test_failed_snapshot_keeps_the_set(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 100, 50, 1);
    must(dirty_pages_scan(fixture->pages, &err));
    uint64_t blocks[20];
    bool zero[20];
    unsigned char buffer[20 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 20, &err), 20);
    // ... and the store had no room. Later:
    tell(&fixture->subject, WRITE_PAGE, 4000, 1, 1);
    assert_int_equal(snapshot(fixture->pages, NULL), 51);
    assert_same_as(&fixture->subject);
}

static void test_commit_keeps_what_was_not_copied(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 10, 5, 1);
    must(dirty_pages_scan(fixture->pages, &err));
    copy_round(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 900, 7, 1);
    must(dirty_pages_scan(fixture->pages, &err)); // the next snapshot's, while this one is being committed
    dirty_pages_committed(fixture->pages);
    assert_int_equal(dirty_pages_uncommitted_count(fixture->pages), 7);
    assert_int_equal(snapshot(fixture->pages, NULL), 7);
    assert_same_as(&fixture->subject);
}

static void test_discarded_then_written(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, DISCARD, 0, 100, 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    assert_same_as(&fixture->subject);
}

static void test_zero_pages(void **state)
{
    struct fixture *fixture = *state;
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 20, 2, 1);
    tell(&fixture->subject, ZERO_PAGE, 21, 1, 0);
    must(dirty_pages_scan(fixture->pages, &err));
    uint64_t blocks[4];
    bool zero[4];
    unsigned char buffer[4 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 4, &err), 2);
    assert_int_equal(blocks[0], 20);
    assert_false(zero[0]);
    assert_true(zero[1]);
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 4, &err), 0);
}

static void test_swapped(void **state)
{
    struct fixture *fixture = *state;
    FILE *swaps = fopen("/proc/swaps", "r");
    char line[256];
    bool any = swaps != NULL && fgets(line, sizeof line, swaps) != NULL &&
               fgets(line, sizeof line, swaps) != NULL;
    if (swaps != NULL)
        fclose(swaps);
    if (!any) {
        print_message("skipped: this machine has no swap space\n");
        skip();
    }
    tell(&fixture->subject, WRITE_PAGE, 0, 300, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, PAGE_OUT, 0, 300, 0); // protected, then out
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 100, 2); // out, then written
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    tell(&fixture->subject, WRITE_PAGE, 100, 100, 3); // written, then out
    tell(&fixture->subject, PAGE_OUT, 0, 300, 0);
    assert_int_equal(snapshot(fixture->pages, NULL), 100);
    tell(&fixture->subject, READ_PAGE, 0, 300, 0); // in again
    assert_int_equal(snapshot(fixture->pages, NULL), 0);
    assert_same_as(&fixture->subject);
}

static void test_unregistered_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, UNREGISTER, 0, RAM_PAGES, 0);
    tell(&fixture->subject, WRITE_PAGE, 50, 1, 2); // unseen by anybody
    assert_int_equal(snapshot(fixture->pages, NULL), 200);
    assert_same_and_absorb(fixture);
    assert_true(dirty_pages_tracks(fixture->pages)); // and it is tracked again
    tell(&fixture->subject, WRITE_PAGE, 60, 3, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 3);
    assert_same_as(&fixture->subject);
}

static void test_remapped_piece_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, REMAP, 4096, 100, 0);
    tell(&fixture->subject, WRITE_PAGE, 4096, 100, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 300);
    assert_same_as(&fixture->subject);
}

static void test_new_daemon(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 200, 1);
    must(dirty_pages_start(fixture->pages, &err));
    snapshot(fixture->pages, NULL);
    tell(&fixture->subject, WRITE_PAGE, 300, 5, 2);
    must(dirty_pages_scan(fixture->pages, &err)); // consumed, then the daemon dies
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, fixture->subject.uffd);
    must(dirty_pages_start(fixture->pages, &err));
    assert_true(dirty_pages_tracks(fixture->pages));
    assert_int_equal(snapshot(fixture->pages, NULL), 205);
    assert_same_and_absorb(fixture);
    tell(&fixture->subject, WRITE_PAGE, 400, 6, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 6);
    assert_same_as(&fixture->subject);
}

static void test_without_userfaultfd(void **state)
{
    struct fixture *fixture = *state;
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, -1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_false(dirty_pages_tracks(fixture->pages));
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    assert_int_equal(snapshot(fixture->pages, NULL), 20);
    tell(&fixture->subject, WRITE_PAGE, 3, 1, 2);
    assert_int_equal(snapshot(fixture->pages, NULL), 20); // all of them, each time
    assert_same_as(&fixture->subject);
}

static void test_wrong_descriptor(void **state)
{
    struct fixture *fixture = *state;
    dirty_pages_close(fixture->pages);
    fixture->pages = open_pages(&fixture->subject, 2); // no userfaultfd at all
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    assert_false(dirty_pages_tracks(fixture->pages));
    assert_int_equal(snapshot(fixture->pages, NULL), 20);
    assert_same_as(&fixture->subject);
}

static void test_dead_vmm(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    kill(fixture->subject.pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(fixture->subject.pid, &status, 0), fixture->subject.pid);
    uint64_t blocks[8];
    bool zero[8];
    unsigned char buffer[8 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 8, &err), -ESRCH);
    assert_int_equal(dirty_pages_round_count(fixture->pages), 20);
    assert_int_equal(dirty_pages_scan(fixture->pages, &err), -ESRCH);
    assert_non_null(strstr(err.text, "gone"));
    struct dirty_pages *none = NULL;
    assert_true(
            dirty_pages_open(fixture->subject.pid, -1, fixture->subject.address, RAM_BYTES, &none, &err) < 0);
    assert_null(none);
    dirty_pages_close(fixture->pages);
    close(fixture->subject.control);
    close(fixture->subject.uffd);
    fixture->subject = start_subject(fixture->image_fd); // for teardown
    fixture->pages = NULL;
}

static void test_unreadable_page(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    must(dirty_pages_start(fixture->pages, &err));
    tell(&fixture->subject, UNMAP, 10, 1, 0);
    uint64_t blocks[32];
    bool zero[32];
    unsigned char buffer[32 * PAGE];
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 32, &err), 10);
    assert_int_equal(dirty_pages_next(fixture->pages, blocks, buffer, zero, 32, &err), -EFAULT);
    assert_non_null(strstr(err.text, "guest page 10"));
    assert_int_equal(dirty_pages_round_count(fixture->pages), 10); // nothing is forgotten
}

static void test_wrong_place(void **state)
{
    struct fixture *fixture = *state;
    struct dirty_pages *none = NULL;
    uint64_t address = fixture->subject.address;
    assert_int_equal(
            dirty_pages_open(fixture->subject.pid, -1, address, RAM_BYTES + (64ULL << 30), &none, &err),
            -EFAULT);
    assert_int_equal(
            dirty_pages_open(fixture->subject.pid, -1, address + 1, RAM_BYTES, &none, &err), -EINVAL);
    assert_int_equal(dirty_pages_open(fixture->subject.pid, -1, address, 0, &none, &err), -EINVAL);
    assert_int_equal(dirty_pages_open(fixture->subject.pid, -1, -4096ULL, 8192, &none, &err), -EINVAL);
    assert_null(none);
}

// As on a kernel that does not know PAGEMAP_SCAN.
static void test_old_kernel(void **state)
{
    struct fixture *fixture = *state;
    tell(&fixture->subject, READ_PAGE, 3000, 50, 0);
    tell(&fixture->subject, WRITE_PAGE, 0, 20, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc0606610, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
            _exit(2);
        bool good = dirty_pages_start(fixture->pages, &err) == 0 && !dirty_pages_tracks(fixture->pages) &&
                    dirty_pages_round_count(fixture->pages) >= 20 &&
                    dirty_pages_round_count(fixture->pages) <= 70;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool can_track(void)
{
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15};
    bool good = uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0;
    if (uffd >= 0)
        close(uffd);
    return good;
}

int main(void)
{
    if (!can_track()) {
        printf("skipped: this kernel does not track writes asynchronously (Linux 6.7 and later do)\n");
        return 77;
    }
#define both(name)                                                                                           \
    cmocka_unit_test_setup_teardown(name, setup_image, teardown),                                            \
            cmocka_unit_test_setup_teardown(name, setup_anonymous, teardown)
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_rounds_image),
            cmocka_unit_test(test_rounds_anonymous),
            both(test_only_private_pages_at_first),
            both(test_exact_after_commit),
            both(test_kernel_writes),
            both(test_every_other_page),
            both(test_failed_snapshot_keeps_the_set),
            both(test_commit_keeps_what_was_not_copied),
            both(test_discarded_then_written),
            both(test_zero_pages),
            both(test_swapped),
            both(test_unregistered_is_noticed),
            both(test_remapped_piece_is_noticed),
            both(test_new_daemon),
            both(test_without_userfaultfd),
            both(test_wrong_descriptor),
            both(test_dead_vmm),
            both(test_unreadable_page),
            both(test_wrong_place),
            both(test_old_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
