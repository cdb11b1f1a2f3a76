// SPDX-License-Identifier: Apache-2.0
// See sim_world.h. Every submitted operation becomes two events: its effect on the disk, at some moment
// between submission and completion, and its completion on the loop that submitted it. Events of a loop and
// effects live in small heaps ordered by (time, order of creation); virtual time jumps to the next event.
#include "tests/sim/sim_world_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_checkpoint.h"

void sim_world_violate(struct sim_world *world, const char *format, ...)
{
    if (world->violation[0] != '\0')
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(world->violation, sizeof world->violation, format, args);
    va_end(args);
    if (world->options.trace)
        fprintf(world->options.trace, "VIOLATION %s\n", world->violation);
}

void sim_world_note(struct sim_world *world, const char *what, const struct sim_loop *loop,
        const struct io_op *op, int64_t result)
{
    // FNV-1a over the numbers that identify the event (never pointers).
    uint64_t numbers[] = {(uint64_t)what[0], world->now, loop->loop.index, op ? op->code : 99,
            op ? (uint64_t)op->fd : 0, op ? op->offset : 0, (uint64_t)result};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        world->hash = (world->hash ^ numbers[i]) * UINT64_C(0x100000001b3);
    if (world->options.trace == NULL)
        return;
    fprintf(world->options.trace, "%8llu io %-6llu loop %u %s",
            (unsigned long long)(world->now / MICROSECOND), (unsigned long long)world->io_count,
            loop->loop.index, what);
    if (op != NULL) {
        fprintf(world->options.trace, " %s", sim_io_code_names[op->code]);
        if (op->code <= IO_FDATASYNC || op->code == IO_CLOSE) {
            unsigned index = (unsigned)(op->fd - FIRST_DESCRIPTOR);
            fprintf(world->options.trace, " %s @%llu",
                    index < world->file_count && world->file[index].path ? world->file[index].path : "?",
                    (unsigned long long)op->offset);
        } else {
            fprintf(world->options.trace, " %s %s", op->path ? op->path : "",
                    op->code == IO_RENAME ? op->path2 : "");
        }
        fprintf(world->options.trace, " = %lld", (long long)result);
    }
    fputc('\n', world->options.trace);
}

void sim_world_count_io(struct sim_world *world)
{
    world->io_count++;
    if (world->cut_at != 0 && world->io_count >= world->cut_at)
        sim_world_cut(world);
}

void sim_world_check_thread(struct sim_loop *loop, const char *what)
{
    struct loop *current = loop_current();
    if (current != NULL && current != &loop->loop)
        sim_world_violate(
                loop->world, "%s for loop %u called on loop %u", what, loop->loop.index, current->index);
}

// ---- Posts and timers ----

static void sim_post(struct loop *handle, struct loop_work *work)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    struct loop *sender = loop_current();
    uint64_t *last = &loop->last_post[sender ? sender->index : world->options.loop_count];
    uint64_t at = world->now + sim_random_below(&world->random, 30) * MICROSECOND;
    *last = at > *last ? at : *last;
    sim_queue_add(&loop->queue, *last, ++world->order, SIM_EVENT_WORK, work);
}

static void sim_add_timer(struct loop *handle, struct loop_timer *timer)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    sim_world_check_thread(loop, "loop timer");
    if (timer->armed)
        sim_world_violate(world, "a timer was armed twice on loop %u", handle->index);
    timer->armed = true;
    uint64_t at = timer->deadline_ns > world->now ? timer->deadline_ns : world->now;
    at += sim_random_below(&world->random, 50) * MICROSECOND;
    sim_queue_add(&loop->queue, at, ++world->order, SIM_EVENT_TIMER, timer);
}

static void sim_cancel_timer(struct loop *handle, struct loop_timer *timer)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    sim_world_check_thread(loop, "loop timer");
    if (timer->armed)
        sim_queue_remove(&loop->queue, timer);
    timer->armed = false;
}

// ---- Running ----

static void run_effects(struct sim_world *world, uint64_t until)
{
    struct sim_event event;
    while (sim_queue_peek(&world->effects, &event) && event.time <= until) {
        sim_queue_pop(&world->effects);
        if (event.time > world->now)
            world->now = event.time;
        sim_io_take_effect(world, event.item);
    }
    if (until > world->now)
        world->now = until;
}

void sim_world_pass(struct sim_world *world, uint64_t ns)
{
    run_effects(world, world->now + ns);
}

// When the loop's next event runs; false when it has none.
static bool next_time(const struct sim_loop *loop, uint64_t *ret_time)
{
    struct sim_event event;
    if (!sim_queue_peek(&loop->queue, &event))
        return false;
    *ret_time = event.time > loop->stalled_until ? event.time : loop->stalled_until;
    return true;
}

static void run_event(struct sim_loop *loop)
{
    struct sim_world *world = loop->world;
    struct sim_event event;
    sim_queue_peek(&loop->queue, &event);
    sim_queue_pop(&loop->queue);
    if (sim_random_below(&world->random, 1000) < world->options.stall_per_mille)
        loop->stalled_until = world->now + sim_random_below(&world->random, 3000) * MICROSECOND;
    struct loop *before = loop_current();
    loop_set_current(&loop->loop);
    if (event.kind == SIM_EVENT_DONE) {
        struct flight *flight = event.item;
        if (!flight->effect_done) {
            sim_queue_remove(&world->effects, flight);
            sim_io_take_effect(world, flight);
        }
        sim_io_finish(world, flight);
    } else if (event.kind == SIM_EVENT_WORK) {
        sim_world_note(world, "work", loop, NULL, 0);
        struct loop_work *work = event.item;
        work->run(work);
    } else {
        sim_world_note(world, "timer", loop, NULL, 0);
        struct loop_timer *timer = event.item;
        timer->armed = false;
        timer->fire(timer);
    }
    loop_set_current(before);
}

// The earliest event of any loop.
static struct sim_loop *next_loop(struct sim_world *world, uint64_t *ret_time)
{
    struct sim_loop *next = NULL;
    for (unsigned i = 0; i < world->options.loop_count; i++) {
        uint64_t time;
        if (next_time(&world->loop[i], &time) && (next == NULL || time < *ret_time)) {
            next = &world->loop[i];
            *ret_time = time;
        }
    }
    return next;
}

static int sim_run_once(struct loop *handle, bool wait)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    uint64_t time, first = 0;
    bool ready = next_time(loop, &time);
    if (!ready && wait)
        return -EDEADLK;
    if (!wait && (!ready || time > world->now)) {
        // Whoever polls the loops in turn must see time pass, but no event of another loop may be jumped
        // over.
        if (next_loop(world, &first) != NULL)
            run_effects(world, first);
        return 0;
    }
    run_effects(world, time);
    run_event(loop);
    return 0;
}

int sim_world_step(struct sim_world *world)
{
    uint64_t at = 0;
    struct sim_loop *next = next_loop(world, &at);
    if (next == NULL)
        return 0;
    run_effects(world, at);
    run_event(next);
    return 1;
}

int sim_world_run_until(struct sim_world *world, const bool *done)
{
    while (!*done)
        if (sim_world_step(world) == 0)
            return -EDEADLK;
    return 0;
}

bool sim_world_idle(const struct sim_world *world)
{
    for (unsigned i = 0; i < world->options.loop_count; i++)
        if (sim_queue_has_other_than(&world->loop[i].queue, SIM_EVENT_TIMER))
            return false;
    return true;
}

void sim_world_settle(struct sim_world *world)
{
    while (!sim_world_idle(world))
        sim_world_step(world);
}

static uint64_t sim_now(struct loop *handle)
{
    return ((struct sim_loop *)handle)->world->now;
}

static uint64_t sim_wall(struct loop *handle)
{
    return WALL_START + sim_now(handle);
}

static void sim_random_bytes(struct loop *handle, void *buffer, size_t size)
{
    struct sim_world *world = ((struct sim_loop *)handle)->world;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)buffer)[i] = (uint8_t)sim_random(&world->random);
}

// Names come in any order, as from readdir.
struct name_bag {
    char **name;
    size_t count;
};

static void bag_add(void *context, const char *name)
{
    struct name_bag *bag = context;
    bag->name = realloc(bag->name, (bag->count + 1) * sizeof *bag->name);
    if (bag->name == NULL)
        abort();
    bag->name[bag->count++] = strdup(name);
}

static int sim_list_dir(
        struct loop *handle, const char *path, void (*each)(void *context, const char *name), void *context)
{
    struct sim_world *world = ((struct sim_loop *)handle)->world;
    struct name_bag bag = {0};
    int result = world->cut ? -EIO : sim_disk_list(world->disk, path, bag_add, &bag);
    while (bag.count > 0) {
        size_t pick = sim_random_below(&world->random, bag.count);
        each(context, bag.name[pick]);
        free(bag.name[pick]);
        bag.name[pick] = bag.name[--bag.count];
    }
    free(bag.name);
    return result;
}

static uint64_t sim_free_bytes(struct loop *handle, const char *path)
{
    struct sim_world *world = ((struct sim_loop *)handle)->world;
    return world->options.space_unknown ? UINT64_MAX : sim_disk_free_bytes(world->disk);
}

static int sim_lock_file(struct loop *handle, int fd, bool shared)
{
    struct sim_world *world = ((struct sim_loop *)handle)->world;
    struct open_file *file = sim_io_file_of(world, fd);
    return file ? sim_disk_lock(file->node, (uint64_t)fd) : -EBADF;
}

static const struct loop_ops sim_ops = {
        .submit = sim_io_submit,
        .post = sim_post,
        .add_timer = sim_add_timer,
        .cancel_timer = sim_cancel_timer,
        .run_once = sim_run_once,
        .now_ns = sim_now,
        .wall_ns = sim_wall,
        .random = sim_random_bytes,
        .list_dir = sim_list_dir,
        .lock_file = sim_lock_file,
        .free_bytes = sim_free_bytes,
        .deterministic = true,
        .checkpoint_db = &sim_checkpoint_ops,
};

// ---- Worlds ----

struct sim_world *sim_world_create_on(uint64_t seed, const struct sim_options *options, struct sim_disk *disk)
{
    struct sim_world *world = calloc(1, sizeof *world);
    if (world == NULL)
        abort();
    if (options)
        world->options = *options;
    if (world->options.loop_count == 0)
        world->options.loop_count = 1;
    if (world->options.direct_align == 0)
        world->options.direct_align = SIM_DISK_PAGE;
    // Not the seed itself, nor a multiple of the generator's step: neighbours would share one stream,
    // shifted.
    world->random = sim_random(&seed);
    world->hash = UINT64_C(0xcbf29ce484222325);
    world->now = MICROSECOND;
    world->disk = disk;
    unsigned count = world->options.loop_count;
    world->loop = calloc(count, sizeof *world->loop);
    if (world->loop == NULL)
        abort();
    for (unsigned i = 0; i < count; i++) {
        struct sim_loop *loop = &world->loop[i];
        loop->loop = (struct loop){.ops = &sim_ops, .index = i};
        loop->world = world;
        loop->last_post = calloc(count + 1, sizeof *loop->last_post);
        if (loop->last_post == NULL)
            abort();
    }
    return world;
}

struct sim_world *sim_world_create(uint64_t seed, const struct sim_options *options)
{
    return sim_world_create_on(seed, options, sim_disk_create(options ? options->capacity_bytes : 0));
}

struct sim_world *sim_world_destroy(struct sim_world *world)
{
    if (world == NULL)
        return NULL;
    for (unsigned i = 0; i < world->options.loop_count; i++) {
        struct sim_event event;
        while (sim_queue_peek(&world->loop[i].queue, &event)) {
            sim_queue_pop(&world->loop[i].queue);
            if (event.kind == SIM_EVENT_DONE)
                free(event.item);
        }
        sim_queue_free(&world->loop[i].queue);
        free(world->loop[i].last_post);
    }
    sim_queue_free(&world->effects);
    for (unsigned i = 0; i < world->file_count; i++)
        free(world->file[i].path);
    free(world->file);
    free(world->loop);
    sim_disk_destroy(world->disk);
    free(world);
    return NULL;
}

struct loop *sim_world_loop(struct sim_world *world, unsigned index)
{
    return &world->loop[index].loop;
}

struct sim_disk *sim_world_disk(struct sim_world *world)
{
    return world->disk;
}

uint64_t sim_world_io_count(const struct sim_world *world)
{
    return world->io_count;
}

uint64_t sim_world_calls(const struct sim_world *world, enum io_code code)
{
    return world->calls[code];
}

uint64_t sim_world_now_ns(const struct sim_world *world)
{
    return world->now;
}

uint64_t sim_world_trace_hash(const struct sim_world *world)
{
    return world->hash;
}

const char *sim_world_violation(const struct sim_world *world)
{
    return world->violation[0] ? world->violation : NULL;
}

unsigned sim_world_in_flight(const struct sim_world *world)
{
    return world->in_flight;
}

unsigned sim_world_open_files(const struct sim_world *world)
{
    unsigned count = world->checkpoints_open;
    for (unsigned i = 0; i < world->file_count; i++)
        count += world->file[i].node != NULL;
    return count;
}

void sim_world_fault(struct sim_world *world, const struct sim_fault *fault)
{
    if (world->fault_count == SIM_FAULTS_MAX)
        abort();
    world->fault[world->fault_count++] = *fault;
}

uint64_t sim_world_faults_hit(const struct sim_world *world)
{
    return world->faults_hit;
}

void sim_world_clear_faults(struct sim_world *world)
{
    world->fault_count = 0;
}

void sim_world_cut(struct sim_world *world)
{
    if (!world->cut && world->options.trace)
        fprintf(world->options.trace, "---- cut at io %llu ----\n", (unsigned long long)world->io_count);
    world->cut = true;
}

void sim_world_cut_at(struct sim_world *world, uint64_t io_count)
{
    world->cut_at = io_count;
}

bool sim_world_is_cut(const struct sim_world *world)
{
    return world->cut;
}

struct sim_world *sim_world_after_power_cut(
        const struct sim_world *world, uint64_t seed, const struct sim_options *options)
{
    struct sim_disk *disk = sim_disk_after_power_cut(world->disk, seed);
    return sim_world_create_on(seed, options ? options : &world->options, disk);
}

struct sim_world *sim_world_after_kill(
        const struct sim_world *world, uint64_t seed, const struct sim_options *options)
{
    struct sim_disk *disk = sim_disk_after_kill(world->disk, seed);
    return sim_world_create_on(seed, options ? options : &world->options, disk);
}
