// SPDX-License-Identifier: Apache-2.0
// Names of segment files, and clearing away those that nothing names.
#include "blockstore/segment_private.h"

#include <errno.h>
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

struct name_list {
    char **names;
    size_t count, room;
};

static void name_add(void *context, const char *name)
{
    struct name_list *list = context;
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

static void names_free(struct name_list *list)
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
        found = segment->row.number == number && segment->row.generation == generation;
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
    struct name_list list = {0};
    segment_give_up_task(segments, task);
    int r = loop->ops->list_dir(loop, segments->directory, name_add, &list);
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
    names_free(&list);
    return r < 0 ? r : 0;
}

int segments_collect_files_at_start(struct segments *segments, struct loop *loop, struct error *err)
{
    struct name_list list = {0};
    int r = loop->ops->list_dir(loop, segments->directory, name_add, &list);
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
    names_free(&list);
    return r < 0 ? r : 0;
}
