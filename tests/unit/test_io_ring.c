// SPDX-License-Identifier: Apache-2.0
// A loop's own thread does its work whatever the thread does that ran the loop before.
#include "blockstore/io_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <sys/wait.h>

#include <cmocka.h>

enum { TRIES = 24000, TRY_NS = 5000000 }; // two minutes, to end a test that would hang

struct told {
    struct loop_work work; // first
    atomic_bool done;
};

static void tell(struct loop_work *work)
{
    atomic_store(&((struct told *)work)->done, true);
}

static atomic_bool fired;

static void fire(struct loop_timer *timer)
{
    atomic_store(&fired, true);
}

// The thread that ran the loop first, and slept in it, stands still in the kernel, where nothing can run in
// its name: vfork holds it until the child, which has its memory, has ended.
static void test_wakes_without_its_first_thread(void **state)
{
    static struct loop *loop;
    static struct told told = {.work = {.run = tell}};
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    struct loop_timer timer = {.fire = fire, .deadline_ns = loop_now_ns(loop) + 1000000};
    loop->ops->add_timer(loop, &timer);
    assert_int_equal(loop->ops->run_once(loop, true), 0); // sleeps until the timer's moment
    while (!atomic_load(&fired))
        assert_int_equal(loop->ops->run_once(loop, false), 0);
    assert_int_equal(io_ring_thread_start(loop), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); // that thread goes to sleep meanwhile
    pid_t child = vfork();
    if (child == 0) {
        loop_post(loop, &told.work);
        for (int i = 0; i < TRIES && !atomic_load(&told.done); i++)
            nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
        _exit(atomic_load(&told.done) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    io_ring_thread_stop(loop);
    loop = io_ring_loop_destroy(loop);
}

// A loop that ran something does not sleep in the same turn: what was waited for may have been a timer.
static void test_a_timer_is_work(void **state)
{
    struct loop *loop;
    assert_int_equal(io_ring_loop_create(0, 64, &loop), 0);
    struct loop_timer due = {.fire = fire, .deadline_ns = loop_now_ns(loop)};
    struct loop_timer later = {.fire = fire, .deadline_ns = due.deadline_ns + UINT64_C(1000000000)};
    atomic_store(&fired, false);
    loop->ops->add_timer(loop, &due);
    loop->ops->add_timer(loop, &later); // without it a loop that sleeps would do so for ever
    assert_int_equal(loop->ops->run_once(loop, true), 0);
    assert_true(atomic_load(&fired));
    assert_int_equal(io_ring_enter_count(loop), 0);
    loop->ops->cancel_timer(loop, &later);
    loop = io_ring_loop_destroy(loop);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    printf("skipped: the thread sanitizer makes a plain fork of vfork\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_a_timer_is_work),
            cmocka_unit_test(test_wakes_without_its_first_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
