// SPDX-License-Identifier: Apache-2.0
// The queue of background jobs, and when the store seals of itself: when the log holds more than asked for,
// when an append finds no room, when records have become old.
#include "snapshot/background.h"

#include "snapshot/check.h"
#include "snapshot/checkpoint.h"
#include "snapshot/collect.h"
#include "snapshot/scrub.h"
#include "snapshot/space.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t RETRY_NS = UINT64_C(1000) * 1000 * 1000;

struct background {
    struct store *store;
    struct loop *loop;
    struct background_job *queue, **queue_tail; // loop 0
    struct background_job *running;             // loop 0
    struct task *task;                          // on its own loop, and when no loop runs
    int result;                                 // of the running job
    struct error err;
    _Atomic unsigned waiting, posted; // jobs in the queue; on their way to it
    _Atomic bool pressed, closing, quiescing, loaded;
    _Atomic int last_error;
    struct loop_work pressure_work;
    struct background_job seal, load, gc; // its own
    bool sealing, collecting;             // loop 0: `seal`, `gc` is queued or runs
    uint64_t failed_ns, gc_failed_ns;     // loop 0: when the last one failed; 0 = it did not
    struct loop_work begin_work, ended_work, quiesce_work;
    struct loop_timer timer;
    uint64_t tick_seq, sealed_seq; // loop 0: last change at the last tick; before the last seal
};

static void start_next(struct background *self);
static void enqueue(struct background *self, struct background_job *job, bool first);
static void seal_of_itself(struct background *self);

static int run_job(struct background *self, struct task *task, struct background_job *job)
{
    struct store *store = self->store;
    switch (job->kind) {
    case BACKGROUND_SEAL:
        return checkpoint_run(task, store, &self->err);
    case BACKGROUND_CHECK:
        return check_run(task, store, job->damaged, job->context, &job->result.check, &self->err);
    case BACKGROUND_GC:
        return collect_run(task, store, job->flags, &job->result.gc, &self->err);
    case BACKGROUND_SCRUB:
        return scrub_run(task, store, job->damaged, job->context, &job->result.scrub, &self->err);
    case BACKGROUND_LOAD:
        return load_fingerprints(task, store, &self->err);
    default:
        return error_set(&self->err, -EINVAL, "no such background job");
    }
}

static void task_run(struct task *task, void *context)
{
    struct background *self = context;
    self->result = atomic_load(&self->closing) ? error_set(&self->err, -ECANCELED, "the store is closing")
                                               : run_job(self, task, self->running);
}

// ---- Collecting of itself: after a seal, when that could give back enough ----

static void gc_done(struct background_job *job, int result, const struct error *err)
{
    struct background *self = job->store->background;
    self->collecting = false;
    self->gc_failed_ns = result < 0 ? loop_now_ns(self->store->loops[0]) : 0;
}

static void collect_of_itself(struct background *self, int sealed)
{
    bool soon = self->gc_failed_ns != 0 && loop_now_ns(self->store->loops[0]) - self->gc_failed_ns < RETRY_NS;
    bool may = sealed == 0 || sealed == -ENOSPC;
    if (self->collecting || soon || !may || atomic_load(&self->closing) || !collect_wanted(self->store))
        return;
    self->collecting = true;
    self->gc = (struct background_job){.kind = BACKGROUND_GC, .flags = COLLECT_OF_ITSELF, .done = gc_done};
    enqueue(self, &self->gc, false);
}

// Room in the log depends on it: appends wait for a seal that can succeed, and are refused after one that
// failed.
static void after_seal(struct background *self, enum background_kind kind, int result)
{
    struct log *log = self->store->log;
    self->failed_ns = result < 0 ? loop_now_ns(self->store->loops[0]) : 0;
    if (kind == BACKGROUND_SEAL)
        collect_of_itself(self, result);
    log_check_growth(log);
    bool room = result == 0 && space_may_grow(self->store);
    bool collects = kind == BACKGROUND_SEAL && self->collecting;
    log_set_relief(log, room || collects ? LOG_RELIEF_ALL
                        : result == 0    ? LOG_RELIEF_FREEING
                                         : LOG_RELIEF_NONE);
}

// A seal inside a collection may have been ended with it: writers wait for one, or, where none can be tried
// yet, for nothing.
static void after_quiesce(struct background *self)
{
    seal_of_itself(self);
    if (!self->sealing)
        log_set_relief(self->store->log, LOG_RELIEF_NONE);
}

static void ended_on_loop(struct loop_work *work)
{
    struct background *self = (struct background *)((char *)work - offsetof(struct background, ended_work));
    struct background_job *job = self->running;
    struct error err = self->err;
    int result = self->result;
    self->running = NULL;
    if (result == -EAGAIN && (job->kind == BACKGROUND_GC || job->kind == BACKGROUND_SCRUB)) {
        enqueue(self, job, false); // it gave way
        return;
    }
    if (job->kind == BACKGROUND_SEAL || job->kind == BACKGROUND_GC) {
        atomic_store(&self->last_error, result == -ECANCELED ? 0 : result);
        if (result != -ECANCELED || atomic_load(&self->closing))
            after_seal(self, job->kind, result);
        else
            after_quiesce(self);
    }
    job->done(job, result, &err);
    start_next(self);
}

static void task_ended(void *context) // on the background loop; the queue belongs to loop 0
{
    struct background *self = context;
    self->task = NULL;
    loop_post(self->store->loops[0], &self->ended_work);
}

static void begin(struct loop_work *work)
{
    struct background *self = (struct background *)((char *)work - offsetof(struct background, begin_work));
    self->task = task_start(self->loop, task_run, task_ended, self);
}

static void quiesce(struct loop_work *work)
{
    struct background *self = (struct background *)((char *)work - offsetof(struct background, quiesce_work));
    if (self->task != NULL && self->running->kind != BACKGROUND_SEAL) // it runs, so nobody changes it
        task_stop(self->task);
}

void store_quiesce(struct store *store)
{
    struct background *self = store->background;
    if (!atomic_exchange(&self->quiescing, true))
        loop_post(self->loop, &self->quiesce_work);
}

static void start_next(struct background *self)
{
    struct background_job *job = self->queue;
    if (self->running != NULL || job == NULL)
        return;
    self->queue = job->next;
    if (self->queue == NULL)
        self->queue_tail = &self->queue;
    atomic_fetch_sub(&self->waiting, 1);
    self->running = job;
    self->err = (struct error){0};
    self->result = 0;
    bool ends =
            atomic_load(&self->closing) || (job->kind != BACKGROUND_SEAL && atomic_load(&self->quiescing));
    int refused = ends ? -ECANCELED : self->store->read_only && job->kind != BACKGROUND_CHECK ? -EROFS : 0;
    if (refused == 0) {
        loop_post(self->loop, &self->begin_work);
        return;
    }
    self->result = error_set(&self->err, refused, "%s",
            refused == -EROFS ? "the store is open for reading only" : "the store is closing");
    loop_post(self->store->loops[0], &self->ended_work);
}

static void enqueue(struct background *self, struct background_job *job, bool first)
{
    job->store = self->store;
    atomic_fetch_add(&self->waiting, 1);
    if (first) {
        job->next = self->queue;
        if (self->queue == NULL)
            self->queue_tail = &job->next;
        self->queue = job;
    } else {
        job->next = NULL;
        *self->queue_tail = job;
        self->queue_tail = &job->next;
    }
    start_next(self);
}

static void submitted(struct loop_work *work)
{
    struct background_job *job =
            (struct background_job *)((char *)work - offsetof(struct background_job, work));
    atomic_fetch_sub(&job->store->background->posted, 1);
    enqueue(job->store->background, job, false);
}

void background_submit(struct store *store, struct background_job *job)
{
    job->store = store;
    job->work.run = submitted;
    atomic_fetch_add(&store->background->posted, 1);
    loop_post(store->loops[0], &job->work);
}

// ---- Sealing of itself ----

static void seal_done(struct background_job *job, int result, const struct error *err)
{
    job->store->background->sealing = false;
}

static void seal_of_itself(struct background *self)
{
    struct log_stat stat;
    log_stat(self->store->log, &stat);
    bool soon = self->failed_ns != 0 && loop_now_ns(self->store->loops[0]) - self->failed_ns < RETRY_NS;
    bool something = stat.used_files > 1 || stat.changed_seq > self->sealed_seq;
    if (self->sealing || soon || !something || atomic_load(&self->closing) || self->store->read_only)
        return;
    self->sealing = true;
    self->sealed_seq = stat.changed_seq;
    self->seal = (struct background_job){.kind = BACKGROUND_SEAL, .done = seal_done};
    enqueue(self, &self->seal, true);
}

static void pressure_run(struct loop_work *work)
{
    struct background *self =
            (struct background *)((char *)work - offsetof(struct background, pressure_work));
    atomic_store(&self->pressed, false);
    if (atomic_load(&self->closing))
        return;
    log_check_growth(self->store->log);
    seal_of_itself(self);
}

void background_pressure(void *context)
{
    struct store *store = context;
    struct background *self = store->background;
    if (self != NULL && !atomic_load(&self->closing) && !atomic_exchange(&self->pressed, true))
        loop_post(store->loops[0], &self->pressure_work);
}

// Two ticks see a change that nothing has sealed: it is as old as the time between them.
static void tick(struct loop_timer *timer)
{
    struct background *self = (struct background *)((char *)timer - offsetof(struct background, timer));
    struct log_stat stat;
    if (atomic_load(&self->closing))
        return;
    log_stat(self->store->log, &stat);
    if (self->tick_seq > self->sealed_seq)
        seal_of_itself(self);
    self->tick_seq = stat.changed_seq;
    timer->deadline_ns = loop_now_ns(self->store->loops[0]) + self->store->config.seal_age_ns;
    self->store->loops[0]->ops->add_timer(self->store->loops[0], timer);
}

static void load_done(struct background_job *job, int result, const struct error *err)
{
    struct background *self = job->store->background;
    if (result == -EAGAIN) // gave way to other jobs
        enqueue(self, job, false);
    else if (result == 0)
        atomic_store(&self->loaded, true);
}

// ---- Life ----

struct background *background_new(struct store *store)
{
    struct background *self = calloc(1, sizeof *self);
    if (self == NULL)
        abort();
    struct log_stat stat;
    log_stat(store->log, &stat);
    self->store = store;
    self->loop = store->config.background != NULL ? store->config.background : store->loops[0];
    self->queue_tail = &self->queue;
    self->pressure_work.run = pressure_run;
    self->ended_work.run = ended_on_loop;
    self->begin_work.run = begin;
    self->quiesce_work.run = quiesce;
    self->timer.fire = tick;
    self->sealed_seq = store->checkpoint->rows.meta.start_file == 0 ? 0 : stat.changed_seq;
    return self;
}

void background_start(struct store *store)
{
    struct background *self = store->background;
    struct loop *loop = store->loops[0];
    if (store->read_only)
        return;
    self->load = (struct background_job){.kind = BACKGROUND_LOAD, .done = load_done};
    background_submit(store, &self->load);
    if (store->config.seal_age_ns > 0) {
        self->timer.deadline_ns = loop_now_ns(loop) + store->config.seal_age_ns;
        loop->ops->add_timer(loop, &self->timer);
    }
}

static bool background_busy(struct background *self)
{
    return self->running != NULL || self->queue != NULL || atomic_load(&self->posted) > 0 ||
           atomic_load(&self->pressed);
}

void background_close(struct store *store)
{
    struct background *self = store->background;
    if (self == NULL)
        return;
    atomic_store(&self->closing, true);
    if (self->task != NULL)
        task_stop(self->task);
    while (background_busy(self)) {
        for (unsigned i = 0; i < store->loop_count; i++)
            store->loops[i]->ops->run_once(store->loops[i], false);
        if (self->loop != store->loops[0])
            self->loop->ops->run_once(self->loop, false);
    }
    if (store->config.seal_age_ns > 0 && !store->read_only)
        store->loops[0]->ops->cancel_timer(store->loops[0], &self->timer);
    store->background = NULL;
    free(self);
}

bool background_waiting(struct store *store)
{
    return atomic_load(&store->background->waiting) > 0;
}

int background_error(struct store *store)
{
    return store->background != NULL ? atomic_load(&store->background->last_error) : 0;
}

bool background_loaded(struct store *store)
{
    return store->background != NULL && atomic_load(&store->background->loaded);
}
