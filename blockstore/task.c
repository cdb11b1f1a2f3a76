// SPDX-License-Identifier: Apache-2.0
// Tasks: one thread each. With deterministic loops a baton goes to and fro: the thread that runs the loops
// hands it over where the task can go on (its start, the event it waits for), and takes it back when the task
// waits or ends.
//
// Lock: task->lock, rank last. Events are protected by their task's lock.
#include "blockstore/task.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct task_sleeper;

struct task {
    struct loop *loop;
    void (*run)(struct task *task, void *context);
    void (*ended)(void *context);
    void *context;
    pthread_t thread;
    struct loop_work start_work, end_work, stop_work;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Protected by lock:
    bool baton; // deterministic: the task's thread may run
    bool stopping, abandoned, finished;
    struct task_event *waits_for;
    struct task_sleeper *sleeper;
    bool stop_posted, stop_ran, end_waits; // stop_work is on its way; the end must not overtake it
};

struct task_sleeper {
    struct loop_timer timer;
    struct task_event event;
    struct loop *loop;
};

static bool deterministic(const struct task *task)
{
    return task->loop->ops->deterministic;
}

// On the loops' thread: lets the task run until it waits or has ended.
static void hand_over_locked(struct task *task)
{
    task->baton = true;
    pthread_cond_broadcast(&task->changed);
    while (task->baton)
        pthread_cond_wait(&task->changed, &task->lock);
}

// On the task's thread: gives the baton back.
static void give_back_locked(struct task *task)
{
    task->baton = false;
    pthread_cond_broadcast(&task->changed);
}

static void *task_main(void *argument)
{
    struct task *task = argument;
    pthread_mutex_lock(&task->lock);
    while (deterministic(task) && !task->baton)
        pthread_cond_wait(&task->changed, &task->lock);
    bool abandoned = task->abandoned;
    pthread_mutex_unlock(&task->lock);
    if (!abandoned)
        task->run(task, task->context);
    pthread_mutex_lock(&task->lock);
    task->finished = true;
    if (!task->abandoned)
        loop_post(task->loop, &task->end_work);
    give_back_locked(task);
    pthread_mutex_unlock(&task->lock);
    return NULL;
}

static void task_free(struct task *task)
{
    pthread_join(task->thread, NULL);
    pthread_cond_destroy(&task->changed);
    pthread_mutex_destroy(&task->lock);
    free(task);
}

static void task_end(struct loop_work *work)
{
    struct task *task = (struct task *)((char *)work - offsetof(struct task, end_work));
    pthread_mutex_lock(&task->lock);
    task->end_waits = task->stop_posted && !task->stop_ran;
    bool waits = task->end_waits;
    pthread_mutex_unlock(&task->lock);
    if (waits)
        return;
    void (*ended)(void *) = task->ended;
    void *context = task->context;
    task_free(task);
    ended(context);
}

static void task_begin(struct loop_work *work)
{
    struct task *task = (struct task *)((char *)work - offsetof(struct task, start_work));
    pthread_mutex_lock(&task->lock);
    hand_over_locked(task);
    pthread_mutex_unlock(&task->lock);
}

static void wake_sleeper(struct loop_work *work)
{
    struct task *task = (struct task *)((char *)work - offsetof(struct task, stop_work));
    pthread_mutex_lock(&task->lock);
    struct task_sleeper *sleeper = task->sleeper;
    task->sleeper = NULL;
    task->stop_ran = true;
    bool end = task->end_waits;
    pthread_mutex_unlock(&task->lock);
    if (sleeper != NULL) {
        task->loop->ops->cancel_timer(task->loop, &sleeper->timer);
        task_event_set(&sleeper->event, -ECANCELED);
    } else if (end) {
        task_end(&task->end_work);
    }
}

struct task *task_start(struct loop *loop, void (*run)(struct task *task, void *context),
        void (*ended)(void *context), void *context)
{
    struct task *task = calloc(1, sizeof *task);
    if (task == NULL)
        abort();
    task->loop = loop;
    task->run = run;
    task->ended = ended;
    task->context = context;
    task->start_work.run = task_begin;
    task->end_work.run = task_end;
    task->stop_work.run = wake_sleeper;
    pthread_mutex_init(&task->lock, NULL);
    pthread_cond_init(&task->changed, NULL);
    // The thread begins by taking the lock: without it, a quick task could have ended and be freed by now.
    pthread_mutex_lock(&task->lock);
    if (pthread_create(&task->thread, NULL, task_main, task) != 0)
        abort();
    if (deterministic(task))
        loop_post(loop, &task->start_work);
    pthread_mutex_unlock(&task->lock);
    return task;
}

void task_stop(struct task *task)
{
    pthread_mutex_lock(&task->lock);
    task->stopping = true;
    bool post = task->sleeper != NULL && !task->stop_posted;
    task->stop_posted = task->stop_posted || post;
    if (post)
        loop_post(task->loop, &task->stop_work);
    pthread_mutex_unlock(&task->lock);
}

bool task_stopping(struct task *task)
{
    pthread_mutex_lock(&task->lock);
    bool stopping = task->stopping || task->abandoned;
    pthread_mutex_unlock(&task->lock);
    return stopping;
}

void task_abandon(struct task *task)
{
    pthread_mutex_lock(&task->lock);
    task->abandoned = true;
    while (!task->finished) {
        if (deterministic(task)) {
            hand_over_locked(task);
        } else {
            pthread_cond_broadcast(&task->changed);
            pthread_cond_wait(&task->changed, &task->lock);
        }
    }
    pthread_mutex_unlock(&task->lock);
    task_free(task);
}

struct loop *task_loop(struct task *task)
{
    return task->loop;
}

// ---- Waiting ----

void task_event_init(struct task *task, struct task_event *event)
{
    *event = (struct task_event){.task = task};
}

void task_event_set(struct task_event *event, int64_t result)
{
    struct task *task = event->task;
    pthread_mutex_lock(&task->lock);
    event->result = result;
    event->set = true;
    if (!deterministic(task))
        pthread_cond_broadcast(&task->changed);
    else if (task->waits_for == event)
        hand_over_locked(task);
    pthread_mutex_unlock(&task->lock);
}

int64_t task_wait(struct task *task, struct task_event *event)
{
    pthread_mutex_lock(&task->lock);
    task->waits_for = event;
    while (!event->set && !task->abandoned) {
        if (deterministic(task)) {
            give_back_locked(task);
            while (!task->baton)
                pthread_cond_wait(&task->changed, &task->lock);
        } else {
            pthread_cond_wait(&task->changed, &task->lock);
        }
    }
    task->waits_for = NULL;
    int64_t result = event->set ? event->result : -ECANCELED;
    pthread_mutex_unlock(&task->lock);
    return result;
}

// ---- Work on loops ----

static bool task_abandoned(struct task *task)
{
    pthread_mutex_lock(&task->lock);
    bool abandoned = task->abandoned;
    pthread_mutex_unlock(&task->lock);
    return abandoned;
}

struct task_call_work {
    struct loop_work work;
    struct task_event event;
    void (*fn)(void *argument);
    void *argument;
};

static void run_call(struct loop_work *work)
{
    struct task_call_work *call = (struct task_call_work *)work;
    call->fn(call->argument);
    task_event_set(&call->event, 0); // the caller's frame may be gone from here on
}

void task_call(struct task *task, struct loop *loop, void (*fn)(void *argument), void *argument)
{
    struct task_call_work call = {.work.run = run_call, .fn = fn, .argument = argument};
    task_event_init(task, &call.event);
    if (task_abandoned(task))
        return;
    loop_post(loop, &call.work);
    task_wait(task, &call.event);
}

struct task_op {
    struct io_op op;
    struct loop_work work;
    struct loop *loop;
    struct task_event event;
};

static void op_done(struct io_op *op, int64_t result)
{
    task_event_set(&((struct task_op *)op)->event, result);
}

static void op_submit(struct loop_work *work)
{
    struct task_op *op = (struct task_op *)((char *)work - offsetof(struct task_op, work));
    loop_submit(op->loop, &op->op);
}

int64_t task_io(struct task *task, struct io_op *op)
{
    struct task_op wait = {.op = *op, .work.run = op_submit, .loop = task->loop};
    wait.op.done = op_done;
    task_event_init(task, &wait.event);
    if (task_abandoned(task))
        return -ECANCELED;
    loop_post(task->loop, &wait.work);
    return task_wait(task, &wait.event);
}

int task_io_full(struct task *task, enum io_code code, int fd, void *buffer, size_t size, uint64_t offset)
{
    size_t done = 0;
    while (done < size) {
        struct iovec iov = {(char *)buffer + done, size - done};
        struct io_op op = {.code = code, .fd = fd, .iov = &iov, .iov_count = 1, .offset = offset + done};
        int64_t n = task_io(task, &op);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return code == IO_READ ? -ENODATA : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static void sleep_fired(struct loop_timer *timer)
{
    struct task_sleeper *sleeper = (struct task_sleeper *)timer;
    struct task *task = sleeper->event.task;
    pthread_mutex_lock(&task->lock);
    bool ours = task->sleeper == sleeper;
    task->sleeper = NULL;
    pthread_mutex_unlock(&task->lock);
    if (ours) // else the stop has it
        task_event_set(&sleeper->event, 0);
}

static void sleep_arm(void *argument)
{
    struct task_sleeper *sleeper = argument;
    struct task *task = sleeper->event.task;
    pthread_mutex_lock(&task->lock);
    bool stopped = task->stopping;
    if (!stopped)
        task->sleeper = sleeper;
    pthread_mutex_unlock(&task->lock);
    if (stopped)
        task_event_set(&sleeper->event, -ECANCELED);
    else
        sleeper->loop->ops->add_timer(sleeper->loop, &sleeper->timer);
}

int task_sleep(struct task *task, uint64_t ns)
{
    struct task_sleeper sleeper = {.loop = task->loop, .timer.fire = sleep_fired};
    task_event_init(task, &sleeper.event);
    sleeper.timer.deadline_ns = loop_now_ns(task->loop) + ns;
    task_call(task, task->loop, sleep_arm, &sleeper);
    return (int)task_wait(task, &sleeper.event);
}
