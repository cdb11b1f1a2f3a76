// SPDX-License-Identifier: Apache-2.0
// Operations of a simulated loop: submission (what the plan of faults says, what is begun on the disk),
// effect, completion.
#include "tests/sim/sim_world_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

const char *const sim_io_code_names[] = {"read", "write", "fdatasync", "open", "close", "rename", "unlink",
        "mkdir", "fsync_dir", "recv", "sendmsg", "accept", "poll", "commit"};

// ---- Submission ----

struct open_file *sim_io_file_of(struct sim_world *world, int fd)
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
    sim_world_violate(world, "unaligned direct %s of %s at %llu, %zu bytes in %u parts",
            sim_io_code_names[op->code], file->path, (unsigned long long)op->offset, total_length(op),
            op->iov_count);
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

const struct sim_fault *sim_io_planned_fault(struct sim_world *world, enum io_code code, const char *path)
{
    const struct sim_fault *hit = NULL;
    for (unsigned i = 0; i < world->fault_count; i++) {
        struct sim_fault *fault = &world->fault[i];
        if (fault->code != code || fault->nth == 0)
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
    struct open_file *file = on_file ? sim_io_file_of(world, op->fd) : NULL;
    if (on_file && file == NULL) {
        sim_world_violate(
                world, "%s on a descriptor that is not open (%d)", sim_io_code_names[op->code], op->fd);
        flight->result = -EBADF;
        return;
    }
    if (op->code > IO_FSYNC_DIR) {
        flight->result = -ENOTSUP;
        return;
    }
    const struct sim_fault *fault = sim_io_planned_fault(world, op->code, file ? file->path : op->path);
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

void sim_io_submit(struct loop *handle, struct io_op *op)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    sim_world_check_thread(loop, "loop_submit");
    struct flight *flight = calloc(1, sizeof *flight);
    if (flight == NULL)
        abort();
    flight->op = op;
    flight->loop = loop;
    world->in_flight++;
    world->calls[op->code]++;
    begin(world, flight);
    sim_world_note(world, "submit", loop, op, flight->result);
    uint64_t took = latency(world, op->code);
    uint64_t effect_at = world->now + sim_random_below(&world->random, took + 1);
    sim_queue_add(&world->effects, effect_at, ++world->order, SIM_EVENT_EFFECT, flight);
    sim_queue_add(&loop->queue, world->now + took, ++world->order, SIM_EVENT_DONE, flight);
    sim_world_count_io(world);
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
        sim_world_violate(world, "the buffer of a write at %llu changed while it was in flight",
                (unsigned long long)flight->op->offset);
    free(now);
    // A write that fails may have happened, or not.
    if (!flight->failing || sim_random(&world->random) % 2)
        sim_disk_write_effect(world->disk, flight->change);
}

void sim_io_take_effect(struct sim_world *world, struct flight *flight)
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
    struct open_file *file = sim_io_file_of(world, fd);
    if (file->in_flight > 0)
        sim_world_violate(world, "%s was closed with %u operations in flight", file->path, file->in_flight);
    sim_disk_unlock(file->node, (uint64_t)fd);
    sim_disk_close(world->disk, file->node);
    file->node = NULL;
}

void sim_io_finish(struct sim_world *world, struct flight *flight)
{
    struct io_op *op = flight->op;
    sim_io_take_effect(world, flight);
    if (world->cut && op->code != IO_CLOSE) {
        flight->result = -EIO;
    } else if (flight->change != NULL) {
        if (flight->failing)
            sim_disk_change_fail(world->disk, flight->change);
        else
            sim_disk_change_complete(world->disk, flight->change);
    }
    struct open_file *file =
            op->code == IO_OPEN || op->code > IO_CLOSE ? NULL : sim_io_file_of(world, op->fd);
    if (file != NULL && flight->node != NULL)
        file->in_flight--;
    if (op->code == IO_CLOSE && file != NULL && flight->result >= 0)
        close_descriptor(world, op->fd);
    world->in_flight--;
    sim_world_note(world, "done", flight->loop, op, flight->result);
    sim_world_count_io(world);
    int64_t result = flight->result;
    free(flight);
    op->done(op, result);
}
