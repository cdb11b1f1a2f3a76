// SPDX-License-Identifier: Apache-2.0
// A task: straight-line background work (sealing, collecting, scrubbing) on a thread of its own, beside the
// loops. It may wait and may compute for long; everything it does to files goes through a loop's I/O seam.
//
// Threads: the functions that take a `struct task *` are called by the task itself, except task_stop (any).
// Nothing is called with locks held. With deterministic loops (loop->ops->deterministic: the simulator) the
// one thread that runs the loops stands still while the task's code runs, so that the order of everything is
// given by the seed.
#pragma once

#include "blockstore/io.h"

struct task;

// Starts run(task, context). `loop` is where its I/O is submitted. ended(context) runs on that loop when run
// has returned; the task itself is gone by then. [any]
struct task *task_start(struct loop *loop, void (*run)(struct task *task, void *context),
        void (*ended)(void *context), void *context);
// From now on task_stopping is true, and task_sleep answers -ECANCELED. A task looks at it between its steps;
// I/O goes on, so that what was begun can be cleared away. The task must be there still, of which only its
// loop is sure until `ended` runs. [any]
void task_stop(struct task *task);
bool task_stopping(struct task *task);
// For the simulator: the loops of this task will never run again (power cut). Lets the task's thread run to
// its end with -ECANCELED from every wait, then frees it; `ended` is not called. [the loops' thread]
void task_abandon(struct task *task);

struct loop *task_loop(struct task *task);

// Something to wait for: asynchronous calls of the engine set it from their done callbacks.
struct task_event {
    struct task *task;
    int64_t result;
    bool set;
};
void task_event_init(struct task *task, struct task_event *event);
void task_event_set(struct task_event *event, int64_t result); // once; [any]
// The result that was set. Never gives up early: what the event belongs to may still be in flight. (In an
// abandoned task: -ECANCELED.)
int64_t task_wait(struct task *task, struct task_event *event);

// Runs fn(argument) on `loop`'s thread and waits until it has returned.
void task_call(struct task *task, struct loop *loop, void (*fn)(void *argument), void *argument);
// Submits on the task's loop and waits. Results as in io.h.
int64_t task_io(struct task *task, struct io_op *op);
int task_io_full(struct task *task, enum io_code code, int fd, void *buffer, size_t size, uint64_t offset);
// Waits; 0, or -ECANCELED as soon as the task is stopped.
int task_sleep(struct task *task, uint64_t ns);
