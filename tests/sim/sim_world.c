// SPDX-License-Identifier: Apache-2.0
// See sim_world.h. Every submitted operation becomes two events: its effect on the disk, at some moment
// between submission and completion, and its completion on the loop that submitted it. Events of a loop and
// effects live in small heaps ordered by (time, order of creation); virtual time jumps to the next event.
#include "tests/sim/sim_world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_queue.h"

#define MICROSECOND UINT64_C(1000)
#define WALL_START UINT64_C(1700000000000000000)

struct sim_loop {
    struct loop loop; // first: the engine's handle
    struct sim_world *world;
    struct sim_queue queue; // completions, posts, timers
    uint64_t stalled_until;
    uint64_t *last_post; // per sender (index loop_count = outside): posts stay in order
};

// An operation between submit and done.
struct flight {
    struct io_op *op;
    struct sim_loop *loop;
    int64_t result;
    struct sim_node *node;
    struct sim_change *change; // IO_WRITE
    uint64_t mark;             // IO_FDATASYNC, IO_FSYNC_DIR
    size_t length;             // IO_READ, IO_WRITE: what will be done of it
    bool effect_done, failing;
};

struct open_file {
    struct sim_node *node; // NULL = closed
    char *path;
    int flags;
    unsigned in_flight;
};

struct sim_world {
    struct sim_options options;
    uint64_t random;
    uint64_t now;
    uint64_t order;
    struct sim_disk *disk;
    struct sim_loop *loop;
    struct sim_queue effects;
    struct open_file *file;
    unsigned file_count;
    unsigned in_flight;
    uint64_t io_count, cut_at, calls[IO_POLL + 1];
    bool cut;
    struct sim_fault fault[SIM_FAULTS_MAX];
    unsigned fault_count;
    uint64_t faults_hit;
    uint64_t hash;
    char violation[256];
};

enum { FIRST_DESCRIPTOR = 1000 };

static const char *const code_names[] = {"read", "write", "fdatasync", "open", "close", "rename", "unlink",
        "mkdir", "fsync_dir", "recv", "sendmsg", "accept", "poll"};

__attribute__((format(printf, 2, 3))) static void violate(struct sim_world *world, const char *format, ...)
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

static void note(struct sim_world *world, const char *what, const struct sim_loop *loop,
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
        fprintf(world->options.trace, " %s", code_names[op->code]);
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

static void count_io(struct sim_world *world)
{
    world->io_count++;
    if (world->cut_at != 0 && world->io_count >= world->cut_at)
        sim_world_cut(world);
}

// ---- Submission ----

static struct open_file *file_of(struct sim_world *world, int fd)
{
    unsigned index = (unsigned)(fd - FIRST_DESCRIPTOR);
    if (fd < FIRST_DESCRIPTOR || index >= world->file_count || world->file[index].node == NULL)
        return NULL;
    return &world->file[index];
}

static size_t total_length(const struct io_op *op)
{
    size_t length = 0;
    for (unsigned i = 0; i < op->iov_count; i++)
        length += op->iov[i].iov_len;
    return length;
}

static int check_direct(struct sim_world *world, const struct open_file *file, const struct io_op *op)
{
    if (!(file->flags & O_DIRECT))
        return 0;
    unsigned align = world->options.direct_align;
    bool good = op->offset % align == 0;
    for (unsigned i = 0; i < op->iov_count; i++)
        good = good && op->iov[i].iov_len % align == 0 && (uintptr_t)op->iov[i].iov_base % align == 0;
    if (good)
        return 0;
    violate(world, "unaligned direct %s of %s at %llu, %zu bytes in %u parts", code_names[op->code],
            file->path, (unsigned long long)op->offset, total_length(op), op->iov_count);
    return -EINVAL;
}

// Copies the first `size` bytes that an operation writes.
static uint8_t *gather(const struct io_op *op, size_t size)
{
    uint8_t *bytes = malloc(size + 1);
    if (bytes == NULL)
        abort();
    size_t done = 0;
    for (unsigned i = 0; i < op->iov_count && done < size; i++) {
        size_t part = op->iov[i].iov_len < size - done ? op->iov[i].iov_len : size - done;
        memcpy(bytes + done, op->iov[i].iov_base, part);
        done += part;
    }
    return bytes;
}

// Looks the call up in the plan. Returns the fault that hits it, or NULL.
static const struct sim_fault *planned_fault(
        struct sim_world *world, const struct io_op *op, const char *path)
{
    const struct sim_fault *hit = NULL;
    for (unsigned i = 0; i < world->fault_count; i++) {
        struct sim_fault *fault = &world->fault[i];
        if (fault->code != op->code || fault->nth == 0)
            continue;
        if (fault->path_part && (path == NULL || strstr(path, fault->path_part) == NULL))
            continue;
        if (fault->nth > 1) {
            fault->nth--;
            continue;
        }
        if (!fault->for_ever)
            fault->nth = 0;
        hit = fault;
    }
    if (hit)
        world->faults_hit++;
    return hit;
}

static size_t shortened(
        struct sim_world *world, const struct open_file *file, const struct sim_fault *fault, size_t length)
{
    size_t unit = file->flags & O_DIRECT ? world->options.direct_align : 1;
    if (fault && fault->error == 0)
        return fault->bytes < length ? fault->bytes : length;
    if (length > unit && sim_random_below(&world->random, 1000) < world->options.short_per_mille)
        return (1 + sim_random_below(&world->random, length / unit - (length % unit == 0))) * unit;
    return length;
}

static void begin_transfer(
        struct sim_world *world, struct flight *flight, struct open_file *file, const struct sim_fault *fault)
{
    struct io_op *op = flight->op;
    flight->result = check_direct(world, file, op);
    if (flight->result < 0)
        return;
    size_t length = total_length(op);
    flight->length = length > 0 ? shortened(world, file, fault, length) : 0;
    flight->result = (int64_t)flight->length;
    if (fault && fault->error != 0) {
        flight->failing = true;
        flight->result = -fault->error;
    }
    if (op->code == IO_READ || world->cut)
        return;
    if ((file->flags & O_ACCMODE) == O_RDONLY) {
        flight->result = -EBADF;
        return;
    }
    if (!sim_disk_has_room(world->disk, flight->node, op->offset, flight->length))
        flight->result = -ENOSPC;
    if (flight->result == -ENOSPC)
        return; // nothing is written; any other error leaves the range in doubt
    uint8_t *bytes = gather(op, flight->length);
    flight->change = sim_disk_write_begin(world->disk, flight->node, op->offset, bytes, flight->length);
    free(bytes);
}

static void begin(struct sim_world *world, struct flight *flight)
{
    struct io_op *op = flight->op;
    bool on_file =
            op->code == IO_READ || op->code == IO_WRITE || op->code == IO_FDATASYNC || op->code == IO_CLOSE;
    struct open_file *file = on_file ? file_of(world, op->fd) : NULL;
    if (on_file && file == NULL) {
        violate(world, "%s on a descriptor that is not open (%d)", code_names[op->code], op->fd);
        flight->result = -EBADF;
        return;
    }
    if (op->code > IO_FSYNC_DIR) {
        flight->result = -ENOTSUP;
        return;
    }
    const struct sim_fault *fault = planned_fault(world, op, file ? file->path : op->path);
    if (file != NULL) {
        flight->node = file->node;
        file->in_flight++;
    }
    flight->mark = sim_disk_mark(world->disk);
    if (op->code == IO_READ || op->code == IO_WRITE) {
        begin_transfer(world, flight, file, fault);
    } else if (fault != NULL) {
        flight->failing = true;
        flight->result = -fault->error;
    }
}

static uint64_t latency(struct sim_world *world, enum io_code code)
{
    uint64_t base = code == IO_FDATASYNC || code == IO_FSYNC_DIR ? 200 : 20;
    uint64_t time = base + sim_random_below(&world->random, base * 8);
    if (sim_random_below(&world->random, 1000) < world->options.slow_per_mille)
        time *= 100;
    return time * MICROSECOND;
}

static void check_thread(struct sim_loop *loop, const char *what)
{
    struct loop *current = loop_current();
    if (current != NULL && current != &loop->loop)
        violate(loop->world, "%s for loop %u called on loop %u", what, loop->loop.index, current->index);
}

static void sim_submit(struct loop *handle, struct io_op *op)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    check_thread(loop, "loop_submit");
    struct flight *flight = calloc(1, sizeof *flight);
    if (flight == NULL)
        abort();
    flight->op = op;
    flight->loop = loop;
    world->in_flight++;
    world->calls[op->code]++;
    begin(world, flight);
    note(world, "submit", loop, op, flight->result);
    uint64_t took = latency(world, op->code);
    uint64_t effect_at = world->now + sim_random_below(&world->random, took + 1);
    sim_queue_add(&world->effects, effect_at, ++world->order, SIM_EVENT_EFFECT, flight);
    sim_queue_add(&loop->queue, world->now + took, ++world->order, SIM_EVENT_DONE, flight);
    count_io(world);
}

// ---- Effect and completion ----

static int open_descriptor(struct sim_world *world, struct sim_node *node, const char *path, int flags)
{
    world->file = realloc(world->file, (world->file_count + 1) * sizeof *world->file);
    if (world->file == NULL)
        abort();
    world->file[world->file_count] = (struct open_file){.node = node, .path = strdup(path), .flags = flags};
    return FIRST_DESCRIPTOR + (int)world->file_count++;
}

// Open files are known by their present names, in traces and in the plan of faults.
static void rename_open_files(struct sim_world *world, const char *from, const char *to)
{
    for (unsigned i = 0; i < world->file_count; i++) {
        if (world->file[i].node == NULL || strcmp(world->file[i].path, from) != 0)
            continue;
        free(world->file[i].path);
        world->file[i].path = strdup(to);
    }
}

static int64_t effect_of_name(struct sim_world *world, struct flight *flight)
{
    struct io_op *op = flight->op;
    switch (op->code) {
    case IO_OPEN: {
        struct sim_node *node;
        int result = sim_disk_open(world->disk, op->path, op->flags, &node, &flight->change);
        return result < 0 ? result : open_descriptor(world, node, op->path, op->flags);
    }
    case IO_RENAME:
        rename_open_files(world, op->path, op->path2);
        return sim_disk_rename(world->disk, op->path, op->path2, &flight->change);
    case IO_UNLINK:
        return sim_disk_unlink(world->disk, op->path, &flight->change);
    case IO_MKDIR:
        return sim_disk_mkdir(world->disk, op->path, &flight->change);
    default:
        return sim_disk_sync_directory(world->disk, op->path, flight->mark);
    }
}

static int64_t effect_of_read(struct flight *flight)
{
    size_t left = flight->length, done = 0;
    for (unsigned i = 0; i < flight->op->iov_count && left > 0; i++) {
        const struct iovec *part = &flight->op->iov[i];
        size_t wanted = part->iov_len < left ? part->iov_len : left;
        int64_t got = sim_disk_read(flight->node, flight->op->offset + done, part->iov_base, wanted);
        if (got < 0)
            return got;
        done += (size_t)got;
        left -= (size_t)got;
        if ((size_t)got < wanted)
            break;
    }
    return (int64_t)done;
}

static void effect_of_write(struct sim_world *world, struct flight *flight)
{
    if (flight->change == NULL)
        return;
    uint8_t *now = gather(flight->op, flight->length);
    if (memcmp(now, sim_disk_change_bytes(flight->change), flight->length) != 0)
        violate(world, "the buffer of a write at %llu changed while it was in flight",
                (unsigned long long)flight->op->offset);
    free(now);
    // A write that fails may have happened, or not.
    if (!flight->failing || sim_random(&world->random) % 2)
        sim_disk_write_effect(world->disk, flight->change);
}

static void take_effect(struct sim_world *world, struct flight *flight)
{
    if (flight->effect_done)
        return;
    flight->effect_done = true;
    enum io_code code = flight->op->code;
    if (world->cut || (flight->result < 0 && !flight->failing))
        return;
    if (code == IO_WRITE)
        effect_of_write(world, flight);
    else if (code == IO_FDATASYNC && flight->failing)
        sim_disk_sync_failed(world->disk, flight->node, flight->mark);
    else if (flight->failing)
        return;
    else if (code == IO_READ)
        flight->result = effect_of_read(flight);
    else if (code == IO_FDATASYNC)
        sim_disk_sync(world->disk, flight->node, flight->mark);
    else if (code != IO_CLOSE)
        flight->result = effect_of_name(world, flight);
}

static void close_descriptor(struct sim_world *world, int fd)
{
    struct open_file *file = file_of(world, fd);
    if (file->in_flight > 0)
        violate(world, "%s was closed with %u operations in flight", file->path, file->in_flight);
    sim_disk_unlock(file->node, (uint64_t)fd);
    sim_disk_close(world->disk, file->node);
    file->node = NULL;
}

static void finish(struct sim_world *world, struct flight *flight)
{
    struct io_op *op = flight->op;
    take_effect(world, flight);
    if (world->cut && op->code != IO_CLOSE) {
        flight->result = -EIO;
    } else if (flight->change != NULL) {
        if (flight->failing)
            sim_disk_change_fail(world->disk, flight->change);
        else
            sim_disk_change_complete(world->disk, flight->change);
    }
    struct open_file *file = op->code == IO_OPEN || op->code > IO_CLOSE ? NULL : file_of(world, op->fd);
    if (file != NULL && flight->node != NULL)
        file->in_flight--;
    if (op->code == IO_CLOSE && file != NULL && flight->result >= 0)
        close_descriptor(world, op->fd);
    world->in_flight--;
    note(world, "done", flight->loop, op, flight->result);
    count_io(world);
    int64_t result = flight->result;
    free(flight);
    op->done(op, result);
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
    check_thread(loop, "loop timer");
    if (timer->armed)
        violate(world, "a timer was armed twice on loop %u", handle->index);
    timer->armed = true;
    uint64_t at = timer->deadline_ns > world->now ? timer->deadline_ns : world->now;
    at += sim_random_below(&world->random, 50) * MICROSECOND;
    sim_queue_add(&loop->queue, at, ++world->order, SIM_EVENT_TIMER, timer);
}

static void sim_cancel_timer(struct loop *handle, struct loop_timer *timer)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    check_thread(loop, "loop timer");
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
        take_effect(world, event.item);
    }
    if (until > world->now)
        world->now = until;
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
            take_effect(world, flight);
        }
        finish(world, flight);
    } else if (event.kind == SIM_EVENT_WORK) {
        note(world, "work", loop, NULL, 0);
        struct loop_work *work = event.item;
        work->run(work);
    } else {
        note(world, "timer", loop, NULL, 0);
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

void sim_world_settle(struct sim_world *world)
{
    for (;;) {
        bool busy = false;
        for (unsigned i = 0; i < world->options.loop_count; i++)
            busy = busy || sim_queue_has_other_than(&world->loop[i].queue, SIM_EVENT_TIMER);
        if (!busy)
            return;
        sim_world_step(world);
    }
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

static int sim_lock_file(struct loop *handle, int fd)
{
    struct sim_world *world = ((struct sim_loop *)handle)->world;
    struct open_file *file = file_of(world, fd);
    return file ? sim_disk_lock(file->node, (uint64_t)fd) : -EBADF;
}

static const struct loop_ops sim_ops = {
        .submit = sim_submit,
        .post = sim_post,
        .add_timer = sim_add_timer,
        .cancel_timer = sim_cancel_timer,
        .run_once = sim_run_once,
        .now_ns = sim_now,
        .wall_ns = sim_wall,
        .random = sim_random_bytes,
        .list_dir = sim_list_dir,
        .lock_file = sim_lock_file,
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
    world->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
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
    unsigned count = 0;
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
