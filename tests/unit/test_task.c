// SPDX-License-Identifier: Apache-2.0
// Tasks on both kinds of loops: what they wait for, the order of what they do, stopping, abandoning. On
// simulated loops everything is given by the seed.
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "blockstore/io_ring.h"
#include "blockstore/task.h"
#include "tests/sim/sim_world.h"

enum { LOOPS = 2, BLOCK = 4096 };
static const uint64_t MILLISECOND = 1000000, HOUR = UINT64_C(3600000000000);

// Loops of either kind, with a directory for files.
struct place {
    struct sim_world *world; // NULL: io_uring
    struct loop *loops[LOOPS];
    char directory[64];
};

static void place_make(struct place *place, bool simulated, uint64_t seed)
{
    *place = (struct place){0};
    if (simulated) {
        struct sim_options options = {.loop_count = LOOPS, .slow_per_mille = 50, .stall_per_mille = 50};
        place->world = sim_world_create(seed, &options);
        for (unsigned i = 0; i < LOOPS; i++)
            place->loops[i] = sim_world_loop(place->world, i);
        return;
    }
    strcpy(place->directory, "/tmp/ramet-task-XXXXXX");
    assert_non_null(mkdtemp(place->directory));
    for (unsigned i = 0; i < LOOPS; i++) {
        assert_int_equal(io_ring_loop_create(i, 64, &place->loops[i]), 0);
        assert_int_equal(io_ring_thread_start(place->loops[i]), 0);
    }
}

// From here on the loops never run again.
static void place_stop(struct place *place)
{
    if (place->world != NULL)
        sim_world_cut(place->world);
    for (unsigned i = 0; i < LOOPS && place->world == NULL; i++)
        io_ring_thread_stop(place->loops[i]);
}

static void place_remove(struct place *place)
{
    place_stop(place);
    if (place->world != NULL) {
        assert_null(sim_world_violation(place->world));
        sim_world_destroy(place->world);
        return;
    }
    for (unsigned i = 0; i < LOOPS; i++)
        io_ring_loop_destroy(place->loops[i]);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", place->directory);
    assert_int_equal(system(command), 0);
}

static void wait_for(struct place *place, sem_t *signal)
{
    if (place->world == NULL)
        while (sem_wait(signal) < 0)
            assert_int_equal(errno, EINTR);
    else
        while (sem_trywait(signal) < 0)
            assert_int_equal(sim_world_step(place->world), 1);
}

// A task and what it found.
struct job {
    struct place *place;
    unsigned number;
    sem_t begun, ended;
    struct loop *ended_on;
    struct task *other;
    struct task_event event;
    struct loop_work work[3];
    char path[96];
    int64_t result[10];
    unsigned ends;
    void *notes;
};

static void job_ended(void *context)
{
    struct job *job = context;
    job->ended_on = loop_current();
    job->ends++;
    sem_post(&job->ended);
}

static struct task *job_start(
        struct job *job, struct place *place, unsigned loop, void (*run)(struct task *task, void *context))
{
    job->place = place;
    sem_init(&job->begun, 0, 0);
    sem_init(&job->ended, 0, 0);
    return task_start(place->loops[loop], run, job_ended, job);
}

// ---- Input, output, calls ----

static int one_io(struct task *task, struct io_op op)
{
    return (int)task_io(task, &op);
}

static void write_and_read(struct task *task, void *context)
{
    struct job *job = context;
    job->result[8] = loop_current() == NULL;
    struct io_op open = {.code = IO_OPEN, .path = job->path, .flags = O_RDWR | O_CREAT, .mode = 0600};
    int fd = one_io(task, open);
    char *bytes = io_buffer_alloc((size_t)3 * BLOCK), *read = io_buffer_alloc((size_t)3 * BLOCK);
    for (unsigned i = 0; i < 3 * BLOCK; i++)
        bytes[i] = (char)(i * 7 + i / BLOCK);
    job->result[0] = fd;
    job->result[1] = task_io_full(task, IO_WRITE, fd, bytes, (size_t)3 * BLOCK, BLOCK);
    job->result[2] = one_io(task, (struct io_op){.code = IO_FDATASYNC, .fd = fd});
    job->result[3] = task_io_full(task, IO_READ, fd, read, (size_t)3 * BLOCK, BLOCK);
    job->result[4] = memcmp(bytes, read, (size_t)3 * BLOCK);
    job->result[5] = task_io_full(task, IO_READ, fd, read, (size_t)3 * BLOCK, (size_t)2 * BLOCK);
    job->result[6] = one_io(task, (struct io_op){.code = IO_CLOSE, .fd = fd});
    job->result[7] = one_io(task, (struct io_op){.code = IO_UNLINK, .path = "/no/such/file"});
    io_buffer_free(bytes);
    io_buffer_free(read);
}

static void does_input_and_output(bool simulated)
{
    struct place place;
    place_make(&place, simulated, 3);
    struct job job = {0};
    snprintf(job.path, sizeof job.path, "%s/f", place.directory);
    job_start(&job, &place, 1, write_and_read);
    wait_for(&place, &job.ended);
    assert_true(job.result[0] >= 0);
    for (unsigned i = 1; i <= 4; i++)
        assert_int_equal(job.result[i], 0);
    assert_int_equal(job.result[5], -ENODATA);
    assert_int_equal(job.result[6], 0);
    assert_int_equal(job.result[7], -ENOENT);
    assert_true(job.result[8]); // its code runs beside the loops
    place_stop(&place);
    assert_ptr_equal(job.ended_on, place.loops[1]);
    place_remove(&place);
}

static void note_loop(void *argument)
{
    *(struct loop **)argument = loop_current();
}

static void call_around(struct task *task, void *context)
{
    struct job *job = context;
    for (unsigned i = 0; i < 200; i++) {
        struct loop *on = NULL;
        task_call(task, job->place->loops[i % LOOPS], note_loop, &on);
        job->result[0] += on == job->place->loops[i % LOOPS];
    }
}

static void calls_run_on_the_loop_named(bool simulated)
{
    struct place place;
    place_make(&place, simulated, 4);
    struct job job = {0};
    job_start(&job, &place, 0, call_around);
    wait_for(&place, &job.ended);
    assert_int_equal(job.result[0], 200);
    place_remove(&place);
}

// ---- Events ----

static void set_event(struct loop_work *work)
{
    struct job *job = (struct job *)((char *)work - offsetof(struct job, work[0]));
    task_event_set(&job->event, 77);
}

static void wait_for_event(struct task *task, void *context)
{
    struct job *job = context;
    task_event_init(task, &job->event);
    job->work[0].run = set_event;
    loop_post(job->place->loops[1], &job->work[0]);
    job->result[0] = task_wait(task, &job->event);
    job->result[1] = task_wait(task, &job->event); // set already
    job->result[2] = task_sleep(task, MILLISECOND);
    // Set while the task is busy with something else, seen when it comes to wait.
    task_event_init(task, &job->event);
    loop_post(job->place->loops[1], &job->work[0]);
    task_call(task, job->place->loops[1], note_loop, &job->ended_on);
    job->result[3] = task_wait(task, &job->event);
}

static void events_are_waited_for(bool simulated)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct place place;
        place_make(&place, simulated, seed);
        struct job job = {0};
        job_start(&job, &place, 0, wait_for_event);
        wait_for(&place, &job.ended);
        assert_int_equal(job.result[0], 77);
        assert_int_equal(job.result[1], 77);
        assert_int_equal(job.result[2], 0);
        assert_int_equal(job.result[3], 77);
        place_remove(&place);
    }
}

// ---- Stopping ----

static void sleep_long(struct task *task, void *context)
{
    struct job *job = context;
    sem_post(&job->begun);
    job->result[0] = task_sleep(task, HOUR);
    job->result[1] = task_stopping(task);
    job->result[2] = task_sleep(task, HOUR);
    // What was begun can be cleared away.
    struct io_op open = {.code = IO_OPEN, .path = job->path, .flags = O_RDWR | O_CREAT, .mode = 0600};
    job->result[3] = one_io(task, open);
    job->result[4] = one_io(task, (struct io_op){.code = IO_CLOSE, .fd = (int)job->result[3]});
    job->result[5] = one_io(task, (struct io_op){.code = IO_UNLINK, .path = job->path});
}

// Once more does no harm. On the task's own loop: elsewhere it could have ended in between.
static void stop_twice(struct loop_work *work)
{
    struct job *job = (struct job *)((char *)work - offsetof(struct job, work[0]));
    task_stop(job->other);
    task_stop(job->other);
}

static void a_stop_ends_sleep_and_nothing_else(bool simulated)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct place place;
        place_make(&place, simulated, seed);
        struct job job = {0};
        snprintf(job.path, sizeof job.path, "%s/f", place.directory);
        struct task *task = job_start(&job, &place, 0, sleep_long);
        if (seed % 4 != 0)
            wait_for(&place, &job.begun);
        if (simulated && seed % 4 == 1)
            sim_world_step(place.world); // asleep by now
        job.other = task;
        job.work[0].run = stop_twice;
        if (seed % 2)
            loop_post(place.loops[0], &job.work[0]);
        else
            task_stop(task);
        wait_for(&place, &job.ended);
        assert_int_equal(job.result[0], -ECANCELED);
        assert_true(job.result[1]);
        assert_int_equal(job.result[2], -ECANCELED);
        assert_true(job.result[3] >= 0);
        assert_int_equal(job.result[4], 0);
        assert_int_equal(job.result[5], 0);
        if (simulated)
            assert_true(sim_world_now_ns(place.world) < HOUR);
        place_remove(&place);
        assert_int_equal(job.ends, 1);
    }
}

static void nothing(struct task *task, void *context)
{
    sem_post(&((struct job *)context)->begun);
}

static void stop_other(struct task *task, void *context)
{
    task_stop(((struct job *)context)->other);
}

// One task may stop another that is about to end.
static void a_task_may_stop_another(bool simulated)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct place place;
        place_make(&place, simulated, seed);
        struct job sleeper = {0}, stopper = {0};
        snprintf(sleeper.path, sizeof sleeper.path, "%s/f", place.directory);
        stopper.other = job_start(&sleeper, &place, 0, sleep_long);
        job_start(&stopper, &place, 1, stop_other);
        wait_for(&place, &sleeper.ended);
        wait_for(&place, &stopper.ended);
        assert_int_equal(sleeper.result[0], -ECANCELED);
        place_remove(&place);
    }
}

// ---- Abandoning ----

static void wait_in_vain(struct task *task, void *context)
{
    struct job *job = context;
    task_event_init(task, &job->event);
    sem_post(&job->begun);
    job->result[0] = task_wait(task, &job->event); // nobody will set it
    job->result[1] = task_sleep(task, HOUR);
    job->result[2] = one_io(task, (struct io_op){.code = IO_UNLINK, .path = "/no/such/file"});
    struct loop *on = NULL;
    task_call(task, job->place->loops[0], note_loop, &on);
    job->result[3] = on == NULL;
    job->result[4] = task_stopping(task);
    sem_post(&job->begun);
}

static void an_abandoned_task_comes_to_its_end(bool simulated)
{
    struct place place;
    place_make(&place, simulated, 8);
    struct job job = {0};
    struct task *task = job_start(&job, &place, 0, wait_in_vain);
    wait_for(&place, &job.begun);
    place_stop(&place);
    task_abandon(task);
    assert_int_equal(sem_trywait(&job.begun), 0);
    assert_int_equal(job.result[0], -ECANCELED);
    assert_int_equal(job.result[1], -ECANCELED);
    assert_int_equal(job.result[2], -ECANCELED);
    assert_true(job.result[3]);
    assert_true(job.result[4]);
    assert_int_equal(job.ends, 0);
    place_remove(&place);
}

// At any step of a task that does all there is to do.
static void a_task_can_be_abandoned_at_any_step(void **state)
{
    unsigned begun = 0, not_begun = 0, ended = 0;
    for (unsigned steps = 0; steps < 80; steps++) {
        struct place place;
        place_make(&place, true, 9);
        struct job job = {.path = "/f"}, other = {.path = "/g"}, third = {0};
        struct task *task = job_start(&job, &place, 0, write_and_read);
        struct task *sleeper = job_start(&other, &place, 1, sleep_long);
        struct task *idle = job_start(&third, &place, 1, wait_in_vain);
        for (unsigned i = 0; i < steps && sim_world_now_ns(place.world) < HOUR / 2; i++)
            sim_world_step(place.world);
        begun += job.result[8] != 0;
        not_begun += job.result[8] == 0;
        ended += job.ends;
        if (job.ends == 0)
            task_abandon(task);
        task_abandon(idle);
        if (other.ends == 0) // when nothing else was left, its hour has come
            task_abandon(sleeper);
        assert_int_equal(third.ends, 0);
        assert_true(job.result[7] == 0 || job.result[7] == -ECANCELED || job.result[7] == -ENOENT);
        place_remove(&place);
    }
    assert_true(begun > 10);
    assert_true(not_begun > 0);
    assert_true(ended > 0);
}

// ---- The simulator ----

struct notes {
    uint64_t hash;
    unsigned count, running, overlaps;
};

static void note(struct job *job, struct task *task, unsigned what)
{
    struct notes *notes = job->notes;
    uint64_t numbers[] = {job->number, what, loop_now_ns(task_loop(task))};
    for (unsigned i = 0; i < 3; i++)
        notes->hash = (notes->hash ^ numbers[i]) * UINT64_C(0x100000001b3);
    notes->count++;
}

// The code between two waits: no other task, nothing of a loop runs meanwhile.
static void busy(struct job *job, struct task *task, unsigned what)
{
    struct notes *notes = job->notes;
    notes->overlaps += notes->running++ != 0;
    for (volatile unsigned i = 0; i < 2000; i++) {
    }
    note(job, task, what);
    notes->running--;
}

static void count_from_loop(void *argument)
{
    struct notes *notes = argument;
    notes->overlaps += notes->running != 0;
}

static void do_everything(struct task *task, void *context)
{
    struct job *job = context;
    char path[16], *bytes = io_buffer_alloc(BLOCK);
    memset(bytes, (int)job->number, BLOCK);
    snprintf(path, sizeof path, "/%u", job->number);
    int fd = one_io(task, (struct io_op){.code = IO_OPEN, .path = path, .flags = O_RDWR | O_CREAT});
    for (unsigned round = 0; round < 6; round++) {
        busy(job, task, round);
        task_io_full(task, IO_WRITE, fd, bytes, BLOCK, (uint64_t)round * BLOCK);
        busy(job, task, 10 + round);
        task_call(task, job->place->loops[round % LOOPS], count_from_loop, job->notes);
        busy(job, task, 20 + round);
        task_sleep(task, (uint64_t)job->number * 100000);
        one_io(task, (struct io_op){.code = IO_FDATASYNC, .fd = fd});
    }
    one_io(task, (struct io_op){.code = IO_CLOSE, .fd = fd});
    io_buffer_free(bytes);
}

static uint64_t run_many(uint64_t seed, struct notes *notes)
{
    enum { TASKS = 5 };
    *notes = (struct notes){0};
    struct place place;
    place_make(&place, true, seed);
    struct job jobs[TASKS] = {0};
    for (unsigned i = 0; i < TASKS; i++) {
        jobs[i].number = i;
        jobs[i].notes = notes;
        job_start(&jobs[i], &place, i % LOOPS, do_everything);
    }
    for (unsigned i = 0; i < TASKS; i++)
        wait_for(&place, &jobs[i].ended);
    assert_int_equal(notes->overlaps, 0);
    assert_int_equal(notes->count, TASKS * 6 * 3);
    uint64_t hash = sim_world_trace_hash(place.world) ^ notes->hash;
    place_remove(&place);
    return hash;
}

static void the_seed_gives_the_order_of_everything(void **state)
{
    unsigned different = 0;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct notes first, second, other;
        assert_int_equal(run_many(seed, &first), run_many(seed, &second));
        assert_int_equal(first.hash, second.hash);
        run_many(seed + 1000, &other);
        different += first.hash != other.hash;
    }
    assert_int_equal(different, 25);
}

static void many_tasks_end(bool simulated)
{
    enum { TASKS = 60 };
    struct place place;
    place_make(&place, simulated, 12);
    struct job jobs[TASKS] = {0};
    for (unsigned i = 0; i < TASKS; i++)
        job_start(&jobs[i], &place, i % LOOPS, i % 2 ? nothing : call_around);
    for (unsigned i = 0; i < TASKS; i++)
        wait_for(&place, &jobs[i].ended);
    place_stop(&place);
    for (unsigned i = 0; i < TASKS; i++)
        assert_int_equal(jobs[i].ends, 1);
    place_remove(&place);
}

#define BOTH(body)                                                                                           \
    static void body##_simulated(void **state)                                                               \
    {                                                                                                        \
        body(true);                                                                                          \
    }                                                                                                        \
    static void body##_io_uring(void **state)                                                                \
    {                                                                                                        \
        body(false);                                                                                         \
    }
BOTH(does_input_and_output)
BOTH(calls_run_on_the_loop_named)
BOTH(events_are_waited_for)
BOTH(a_stop_ends_sleep_and_nothing_else)
BOTH(a_task_may_stop_another)
BOTH(an_abandoned_task_comes_to_its_end)
BOTH(many_tasks_end)
#define BOTH_TESTS(body) cmocka_unit_test(body##_simulated), cmocka_unit_test(body##_io_uring)

int main(void)
{
    const struct CMUnitTest tests[] = {
            BOTH_TESTS(does_input_and_output),
            BOTH_TESTS(calls_run_on_the_loop_named),
            BOTH_TESTS(events_are_waited_for),
            BOTH_TESTS(a_stop_ends_sleep_and_nothing_else),
            BOTH_TESTS(a_task_may_stop_another),
            BOTH_TESTS(an_abandoned_task_comes_to_its_end),
            BOTH_TESTS(many_tasks_end),
            cmocka_unit_test(a_task_can_be_abandoned_at_any_step),
            cmocka_unit_test(the_seed_gives_the_order_of_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
