// SPDX-License-Identifier: Apache-2.0
// See sim_checkpoint.h. A commit takes its time (what is in flight on the disk goes on meanwhile), counts as
// two I/O events, before and after, and fails as the plan of faults says, or because the disk is full: like
// LMDB's file, what it takes grows and never shrinks.
#include "tests/sim/sim_checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_disk_private.h"
#include "tests/sim/sim_world_private.h"

struct sim_rows {
    unsigned references;
    size_t count;
    uint64_t bytes;
    bool damaged;
    struct checkpoint_row row[];
};

struct sim_rows *sim_rows_create(const struct checkpoint_row *rows, size_t count)
{
    struct sim_rows *copy = calloc(1, sizeof *copy + count * sizeof copy->row[0]);
    if (copy == NULL)
        abort();
    copy->references = 1;
    copy->count = count;
    for (size_t i = 0; i < count; i++) {
        // Of exactly their size, so that the address sanitizer sees who reads past one.
        void *value = malloc(rows[i].size);
        if (value == NULL && rows[i].size > 0)
            abort();
        if (rows[i].size > 0)
            memcpy(value, rows[i].value, rows[i].size);
        copy->row[i] = (struct checkpoint_row){rows[i].kind, rows[i].id, value, rows[i].size};
        copy->bytes += rows[i].size + 32;
    }
    return copy;
}

struct sim_rows *sim_rows_share(struct sim_rows *rows)
{
    if (rows != NULL)
        rows->references++;
    return rows;
}

struct sim_rows *sim_rows_drop(struct sim_rows *rows)
{
    if (rows == NULL || --rows->references > 0)
        return NULL;
    for (size_t i = 0; i < rows->count; i++)
        free((void *)rows->row[i].value);
    free(rows);
    return NULL;
}

size_t sim_rows_count(const struct sim_rows *rows)
{
    return rows ? rows->count : 0;
}

const struct checkpoint_row *sim_rows_at(const struct sim_rows *rows, size_t index)
{
    return &rows->row[index];
}

uint64_t sim_rows_bytes(const struct sim_rows *rows)
{
    return rows ? rows->bytes : 0;
}

// ---- On the disk ----

int sim_checkpoint_set_rows(struct sim_disk *disk, struct sim_node *node, struct sim_rows *rows)
{
    // Pages are replaced by copies, so twice the rows; then the file keeps what it has.
    uint64_t pages = 2 + 2 * (sim_rows_bytes(rows) / SIM_DISK_PAGE + 1);
    uint64_t more = pages > node->row_pages ? pages - node->row_pages : 0;
    if (more > 0 && disk->capacity_bytes != 0 &&
            (disk->used_pages + more) * SIM_DISK_PAGE > disk->capacity_bytes) {
        sim_rows_drop(rows);
        return -ENOSPC;
    }
    disk->used_pages += more;
    node->row_pages += more;
    sim_rows_drop(node->rows);
    node->rows = rows;
    return 0;
}

int sim_checkpoint_damage(struct sim_disk *disk, const char *directory)
{
    struct sim_node *node = sim_disk_name_find(&disk->live, directory);
    if (node == NULL || node->rows == NULL)
        return -ENOENT;
    struct sim_rows *damaged = sim_rows_create(node->rows->row, node->rows->count);
    damaged->damaged = true;
    sim_rows_drop(node->rows);
    node->rows = damaged;
    return 0;
}

// ---- The seam ----

struct checkpoint {
    struct sim_loop *loop;
    struct sim_node *node;
    char *path;
    bool read_only;
};

static int checkpoint_open(
        struct loop *handle, const char *directory, bool read_only, void **ret_handle, struct error *err)
{
    struct sim_loop *loop = (struct sim_loop *)handle;
    struct sim_world *world = loop->world;
    if (world->cut)
        return error_set(err, -EIO, "cannot open %s: the power is off", directory);
    struct sim_node *node;
    struct sim_change *change;
    int result = sim_disk_open(world->disk, directory, 0, &node, &change);
    if (result < 0)
        return error_set(err, result, "cannot open %s: %s", directory, strerror(-result));
    if (!node->directory || (read_only && node->rows == NULL)) {
        result = node->directory ? -ENOENT : -ENOTDIR;
        sim_disk_close(world->disk, node);
        return error_set(err, result, "there is no checkpoint in %s", directory);
    }
    if (node->rows != NULL && node->rows->damaged) {
        sim_disk_close(world->disk, node);
        return error_set(
                err, -EBADMSG, "a row of the checkpoint in %s does not match its checksum", directory);
    }
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL || (checkpoint->path = strdup(directory)) == NULL)
        abort();
    checkpoint->loop = loop;
    checkpoint->node = node;
    checkpoint->read_only = read_only;
    world->checkpoints_open++;
    *ret_handle = checkpoint;
    return 0;
}

static int checkpoint_read(void *handle, checkpoint_row_callback each, void *context)
{
    struct checkpoint *checkpoint = handle;
    if (checkpoint->loop->world->cut)
        return -EIO;
    struct sim_rows *rows = sim_rows_share(checkpoint->node->rows);
    int result = 0;
    for (size_t i = 0; i < sim_rows_count(rows) && result >= 0; i++)
        result = each(context, sim_rows_at(rows, i));
    sim_rows_drop(rows);
    return result < 0 ? result : 0;
}

static void check_rows(struct sim_world *world, const struct checkpoint_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool ascends = i == 0 || rows[i - 1].kind < rows[i].kind ||
                       (rows[i - 1].kind == rows[i].kind && rows[i - 1].id < rows[i].id);
        if (!ascends || rows[i].size > CHECKPOINT_VALUE_MAX)
            sim_world_violate(world,
                    "row %zu of a checkpoint (kind %u, id %llu, %zu bytes) is out of order "
                    "or too large",
                    i, rows[i].kind, (unsigned long long)rows[i].id, rows[i].size);
    }
}

static int checkpoint_commit(void *handle, const struct checkpoint_row *rows, size_t count)
{
    struct checkpoint *checkpoint = handle;
    struct sim_world *world = checkpoint->loop->world;
    check_rows(world, rows, count);
    if (checkpoint->read_only)
        sim_world_violate(world, "a commit to %s, which was opened read-only", checkpoint->path);
    world->calls[SIM_COMMIT]++;
    const struct sim_fault *fault = sim_io_planned_fault(world, SIM_COMMIT, checkpoint->path);
    sim_world_note(world, "commit begins", checkpoint->loop, NULL, (int64_t)count);
    sim_world_pass(world, (200 + sim_random_below(&world->random, 2000)) * MICROSECOND);
    sim_world_count_io(world);
    int result = world->cut || checkpoint->read_only ? -EIO : fault != NULL ? -fault->error : 0;
    if (result == 0)
        result = sim_checkpoint_set_rows(world->disk, checkpoint->node, sim_rows_create(rows, count));
    sim_world_note(world, "commit ends", checkpoint->loop, NULL, result);
    sim_world_count_io(world);
    return result;
}

static void checkpoint_close(void *handle)
{
    struct checkpoint *checkpoint = handle;
    sim_disk_close(checkpoint->loop->world->disk, checkpoint->node);
    checkpoint->loop->world->checkpoints_open--;
    free(checkpoint->path);
    free(checkpoint);
}

const struct checkpoint_db_ops sim_checkpoint_ops = {
        .open = checkpoint_open,
        .read = checkpoint_read,
        .commit = checkpoint_commit,
        .close = checkpoint_close,
};
