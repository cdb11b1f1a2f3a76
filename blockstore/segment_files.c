// SPDX-License-Identifier: Apache-2.0
// Names of segment files, and clearing away those that nothing names.
#include "blockstore/segment_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *segment_path(struct segments *segments, uint64_t number, uint32_t generation)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%08" PRIu64 ".%" PRIu32, segments->directory, number, generation) < 0)
        abort();
    return path;
}

// Digits only, no sign, no overflow.
static const char *digits(const char *at, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;
    const char *start = at;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = value * 10 + (uint64_t)(*at - '0');
        if (value > max)
            return NULL;
    }
    *ret_value = value;
    return at == start ? NULL : at;
}

// Only the spelling that segment_path gives.
bool segment_name_parse(const char *name, uint64_t *ret_number, uint32_t *ret_generation)
{
    uint64_t number, generation;
    const char *at = digits(name, LOCATOR_FILE_MAX - 1, &number);
    if (at == NULL || *at != '.')
        return false;
    at = digits(at + 1, UINT32_MAX, &generation);
    if (at == NULL || *at != '\0' || generation == 0)
        return false;
    char again[64];
    snprintf(again, sizeof again, "%08" PRIu64 ".%" PRIu64, number, generation);
    if (strcmp(again, name) != 0)
        return false;
    *ret_number = number;
    *ret_generation = (uint32_t)generation;
    return true;
}

// ---- Collecting ----

void segment_name_add(void *context, const char *name)
{
    struct segment_names *list = context;
    if (list->count == list->room) {
        list->room = list->room == 0 ? 256 : list->room * 2;
        list->names = realloc(list->names, list->room * sizeof *list->names);
        if (list->names == NULL)
            abort();
    }
    list->names[list->count] = strdup(name);
    if (list->names[list->count++] == NULL)
        abort();
}

void segment_names_free(struct segment_names *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->names[i]);
    free(list->names);
}

static bool wanted(struct segments *segments, uint64_t number, uint32_t generation)
{
    struct segments_shard *shard = segment_shard(segments, number);
    pthread_mutex_lock(&shard->lock);
    const struct segment *segment = segment_find_locked(shard, number);
    bool found =
            segment != NULL && (segment->row.generation == generation || segment->rewriting == generation);
    for (segment = shard->leaving; !found && segment != NULL; segment = segment->next)
        found = segment->number == number && segment->row.generation == generation;
    pthread_mutex_unlock(&shard->lock);
    return found;
}

// Other names are not ours: they stay.
static bool doomed(struct segments *segments, const char *name)
{
    uint64_t number;
    uint32_t generation;
    return segment_name_parse(name, &number, &generation) && !wanted(segments, number, generation);
}

int segments_collect_files(struct segments *segments, struct task *task)
{
    struct loop *loop = task_loop(task);
    struct segment_names list = {0};
    segment_give_up_task(segments, task);
    int r = loop->ops->list_dir(loop, segments->directory, segment_name_add, &list);
    for (size_t i = 0; i < list.count && r >= 0; i++) {
        if (!doomed(segments, list.names[i]))
            continue;
        char *path = NULL;
        if (asprintf(&path, "%s/%s", segments->directory, list.names[i]) < 0)
            abort();
        struct io_op unlink = {.code = IO_UNLINK, .path = path};
        r = (int)task_io(task, &unlink);
        free(path);
    }
    segment_names_free(&list);
    return r < 0 ? r : 0;
}

int segments_collect_files_at_start(struct segments *segments, struct loop *loop, struct error *err)
{
    struct segment_names list = {0};
    int r = loop->ops->list_dir(loop, segments->directory, segment_name_add, &list);
    if (r < 0)
        error_set(err, r, "cannot list %s: %s", segments->directory, strerror(-r));
    for (size_t i = 0; i < list.count && r >= 0; i++) {
        if (!doomed(segments, list.names[i]))
            continue;
        char *path = NULL;
        if (asprintf(&path, "%s/%s", segments->directory, list.names[i]) < 0)
            abort();
        struct io_op unlink = {.code = IO_UNLINK, .path = path};
        r = (int)io_sync(loop, &unlink);
        if (r < 0)
            error_set(err, r, "cannot remove %s, which nothing refers to: %s", path, strerror(-r));
        free(path);
    }
    segment_names_free(&list);
    return r < 0 ? r : 0;
}

// ---- Windows ----

int segment_window_open(
        struct segment_window *window, struct task *task, const char *path, uint64_t file_bytes)
{
    struct io_op open = {.code = IO_OPEN, .path = path, .flags = O_RDONLY | O_DIRECT};
    int64_t fd = task_io(task, &open);
    if (fd < 0)
        return (int)fd;
    *window = (struct segment_window){.task = task, .fd = (int)fd, .file_bytes = file_bytes};
    window->buffer = io_buffer_alloc(SEGMENT_WINDOW_BYTES + 2 * BLOCK_SIZE);
    return 0;
}

void segment_window_close(struct segment_window *window)
{
    struct io_op shut = {.code = IO_CLOSE, .fd = window->fd};
    task_io(window->task, &shut);
    io_buffer_free(window->buffer);
}

static int fill(struct segment_window *window, uint64_t start, uint64_t end)
{
    window->start = window->end = 0;
    int r = task_io_full(window->task, IO_READ, window->fd, window->buffer, (size_t)(end - start), start);
    if (r < 0)
        return r;
    window->start = start;
    window->end = end;
    return 0;
}

int segment_window_get(
        struct segment_window *window, uint64_t offset, uint64_t size, const uint8_t **ret_bytes)
{
    if (offset + size > window->file_bytes || size > SEGMENT_WINDOW_BYTES)
        return -ENODATA;
    if (offset < window->start || offset + size > window->end) {
        uint64_t start = offset / BLOCK_SIZE * BLOCK_SIZE, end = start + SEGMENT_WINDOW_BYTES + BLOCK_SIZE;
        uint64_t least = (offset + size + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
        uint64_t last = (window->file_bytes + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
        int r = fill(window, start, end < last ? end : last);
        if (r < 0) // the trouble may lie beyond what is asked
            r = fill(window, start, least);
        if (r < 0)
            return r;
    }
    *ret_bytes = window->buffer + (offset - window->start);
    return 0;
}
