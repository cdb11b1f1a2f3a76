// SPDX-License-Identifier: Apache-2.0
// What a process takes, told apart: of its own, mapped from page cache, outside of guest memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "blockstore/clock.h"
#include "vmglue/memory_usage.h"
#include "vmglue/vm_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// What the program itself has; a sanitizer's shadow memory is a part of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OWN_MAX = 512 << 20 };
#else
enum { OWN_MAX = 64 << 20 };
#endif
enum { GUEST = 32 << 20, WRITTEN = 8 << 20, READ = 4 << 20, OTHER = 16 << 20 };

struct subject {
    pid_t pid;
    uint64_t start, address;
};

// A child that maps a file privately as guest memory, writes the start of it, reads what follows, and has
// memory of its own beside it.
static void start(struct subject *subject)
{
    int file = memfd_create("image", MFD_CLOEXEC), tell[2];
    assert_true(file >= 0 && ftruncate(file, GUEST) == 0 && pipe(tell) == 0);
    uint8_t *image = mmap(NULL, GUEST, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_ptr_not_equal(image, MAP_FAILED);
    memset(image, 7, GUEST);
    munmap(image, GUEST);
    uint8_t *guest = mmap(NULL, GUEST, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    assert_ptr_not_equal(guest, MAP_FAILED);
    subject->address = (uint64_t)(uintptr_t)guest;
    subject->pid = fork();
    assert_true(subject->pid >= 0);
    if (subject->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // an assertion that fails must not leave it behind
        uint8_t *other = mmap(NULL, OTHER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        volatile uint8_t sum = 0;
        memset(other, 1, OTHER);
        memset(guest, 2, WRITTEN);
        for (size_t i = WRITTEN; i < WRITTEN + READ; i += 4096)
            sum = (uint8_t)(sum + guest[i]);
        if (write(tell[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    char byte;
    assert_int_equal(read(tell[0], &byte, 1), 1);
    close(tell[0]);
    close(tell[1]);
    munmap(guest, GUEST);
    close(file);
    struct vm_process_identity identity;
    assert_int_equal(vm_process_identify(subject->pid, &identity), 0);
    subject->start = identity.start_time_ticks;
}

static void end(struct subject *subject)
{
    kill(subject->pid, SIGKILL);
    waitpid(subject->pid, NULL, 0);
}

static uint64_t in_ms(unsigned ms)
{
    return clock_monotonic_ns() + (uint64_t)ms * 1000000;
}

static bool measure(struct memory_probe *probe, struct memory_usage *ret_usage)
{
    memory_usage_begin(probe);
    return memory_usage_take(probe, in_ms(60000), ret_usage);
}

static void test_tells_private_from_shared(void **state)
{
    struct subject subject;
    struct memory_probe *probe;
    struct memory_usage usage;
    struct error err;
    start(&subject);
    assert_int_equal(memory_usage_open(subject.pid, subject.start, subject.address, GUEST, &probe, &err), 0);
    assert_true(measure(probe, &usage));
    assert_int_equal(usage.private_bytes + usage.swapped_bytes, WRITTEN);
    // The kernel maps what is cached around a page that is read.
    assert_in_range(usage.shared_bytes, READ, GUEST - WRITTEN);
    assert_true(usage.shared_part_bytes <= usage.shared_bytes);
    assert_in_range(usage.vmm_bytes, OTHER, OTHER + OWN_MAX);
    assert_true(usage.at_ns != 0);
    // A process that does not run tells as well.
    kill(subject.pid, SIGSTOP);
    assert_true(measure(probe, &usage));
    assert_int_equal(usage.private_bytes + usage.swapped_bytes, WRITTEN);
    end(&subject);
    memory_usage_close(probe);
}

static void test_keeps_the_last_figures_of_one_that_ended(void **state)
{
    struct subject subject;
    struct memory_probe *probe;
    struct memory_usage before, after;
    struct error err;
    start(&subject);
    assert_int_equal(memory_usage_open(subject.pid, subject.start, subject.address, GUEST, &probe, &err), 0);
    assert_false(memory_usage_take(probe, in_ms(0), &before)); // never read
    assert_true(measure(probe, &before));
    end(&subject);
    assert_true(measure(probe, &after));
    assert_memory_equal(&after, &before, sizeof before);
    assert_int_equal(memory_usage_open(subject.pid, subject.start, 0, 1, &probe, &err), -ESRCH);
    memory_usage_close(probe);
}

static void test_another_process_with_the_pid_is_not_taken(void **state)
{
    struct subject subject;
    struct memory_probe *probe;
    struct error err;
    start(&subject);
    assert_int_equal(
            memory_usage_open(subject.pid, subject.start + 1, subject.address, GUEST, &probe, &err), -ESRCH);
    assert_non_null(strstr(err.text, "gone"));
    end(&subject);
}

static void test_the_probe_may_go_while_it_is_read(void **state)
{
    struct subject subject;
    struct error err;
    start(&subject);
    for (unsigned i = 0; i < 20; i++) {
        struct memory_probe *probe;
        assert_int_equal(
                memory_usage_open(subject.pid, subject.start, subject.address, GUEST, &probe, &err), 0);
        memory_usage_begin(probe);
        memory_usage_begin(probe);
        memory_usage_close(probe);
    }
    end(&subject);
}

static void test_the_host_has_memory(void **state)
{
    struct memory_host host;
    struct error err;
    assert_int_equal(memory_usage_host(&host, &err), 0);
    assert_true(host.total_bytes > 0 && host.available_bytes > 0);
    assert_true(host.swap_free_bytes <= host.swap_total_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_tells_private_from_shared),
            cmocka_unit_test(test_keeps_the_last_figures_of_one_that_ended),
            cmocka_unit_test(test_another_process_with_the_pid_is_not_taken),
            cmocka_unit_test(test_the_probe_may_go_while_it_is_read),
            cmocka_unit_test(test_the_host_has_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
