// SPDX-License-Identifier: Apache-2.0
// See sim_disk.h for the model. Content is arrays of reference-counted 4 KiB pages, copied when written, so
// that a copy of a whole disk costs a pointer per page: the crash harness makes one at every crash point.

#include "tests/sim/sim_checkpoint.h"
#include "tests/sim/sim_disk_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grow(void *array, size_t *capacity, size_t wanted, size_t item_size)
{
    if (wanted <= *capacity)
        return array;
    size_t size = *capacity ? *capacity * 2 : 8;
    while (size < wanted)
        size *= 2;
    array = realloc(array, size * item_size);
    if (array == NULL)
        abort();
    *capacity = size;
    return array;
}

// ---- Lists of names and changes ----

static size_t name_position(const struct name_list *list, const char *path, bool *ret_found)
{
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(list->item[middle].path, path);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_found = false;
    return low;
}

struct sim_node *sim_disk_name_find(const struct name_list *list, const char *path)
{
    bool found;
    size_t position = name_position(list, path, &found);
    return found ? list->item[position].node : NULL;
}

void sim_disk_name_set(struct name_list *list, const char *path, struct sim_node *node)
{
    bool found;
    size_t position = name_position(list, path, &found);
    if (found) {
        list->item[position].node = node;
        return;
    }
    list->item = grow(list->item, &list->capacity, list->count + 1, sizeof *list->item);
    memmove(list->item + position + 1, list->item + position, (list->count - position) * sizeof *list->item);
    list->item[position] = (struct sim_name){.path = strdup(path), .node = node};
    list->count++;
}

static void name_remove(struct name_list *list, const char *path)
{
    bool found;
    size_t position = name_position(list, path, &found);
    if (!found)
        return;
    free(list->item[position].path);
    list->count--;
    memmove(list->item + position, list->item + position + 1, (list->count - position) * sizeof *list->item);
}

void sim_disk_name_list_free(struct name_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i].path);
    free(list->item);
}

void sim_disk_change_add(struct change_list *list, struct sim_change *change)
{
    list->item = grow(list->item, &list->capacity, list->count + 1, sizeof *list->item);
    list->item[list->count++] = change;
}

static void change_free(struct sim_change *change)
{
    free(change->bytes);
    free(change->path);
    free(change->path2);
    free(change);
}

// Drops what is durable and known to its caller.
static void change_list_sweep(struct change_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct sim_change *change = list->item[i];
        if (change->durable && change->completed != 0)
            change_free(change);
        else
            list->item[kept++] = change;
    }
    list->count = kept;
}

static void change_list_free(struct change_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        change_free(list->item[i]);
    free(list->item);
}

struct sim_node *sim_disk_node_create(struct sim_disk *disk, bool directory)
{
    struct sim_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        abort();
    disk->node = grow(disk->node, &disk->node_capacity, disk->node_count + 1, sizeof *disk->node);
    node->id = disk->node_count;
    node->directory = directory;
    disk->node[disk->node_count++] = node;
    return node;
}

struct sim_disk *sim_disk_create(uint64_t capacity_bytes)
{
    struct sim_disk *disk = calloc(1, sizeof *disk);
    if (disk == NULL)
        abort();
    disk->capacity_bytes = capacity_bytes;
    struct sim_node *root = sim_disk_node_create(disk, true);
    root->links = 1;
    sim_disk_name_set(&disk->live, "/", root);
    sim_disk_name_set(&disk->durable, "/", root);
    return disk;
}

struct sim_disk *sim_disk_destroy(struct sim_disk *disk)
{
    if (disk == NULL)
        return NULL;
    for (size_t i = 0; i < disk->node_count; i++) {
        sim_pages_free(&disk->node[i]->live);
        sim_pages_free(&disk->node[i]->durable);
        change_list_free(&disk->node[i]->changes);
        sim_rows_drop(disk->node[i]->rows);
        free(disk->node[i]);
    }
    free(disk->node);
    sim_disk_name_list_free(&disk->live);
    sim_disk_name_list_free(&disk->durable);
    change_list_free(&disk->name_changes);
    free(disk);
    return NULL;
}

// ---- Names ----

// The directory part of a path, in `parent` (at least as long as the path).
static void path_parent(const char *path, char *parent)
{
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        strcpy(parent, ".");
    else if (slash == parent)
        parent[1] = '\0';
    else
        *slash = '\0';
}

int sim_disk_check_parent(const struct sim_disk *disk, const char *path)
{
    char parent[strlen(path) + 2];
    path_parent(path, parent);
    const struct sim_node *node = sim_disk_name_find(&disk->live, parent);
    if (node == NULL)
        return -ENOENT;
    return node->directory ? 0 : -ENOTDIR;
}

static struct sim_change *name_change(struct sim_disk *disk, enum change_kind kind, struct sim_node *node,
        const char *path, const char *path2)
{
    struct sim_change *change = calloc(1, sizeof *change);
    if (change == NULL)
        abort();
    change->kind = kind;
    change->node = node;
    change->path = strdup(path);
    change->path2 = path2 ? strdup(path2) : NULL;
    change->effect = ++disk->effect_clock;
    sim_disk_change_add(&disk->name_changes, change);
    return change;
}

static void release_if_unused(struct sim_disk *disk, struct sim_node *node)
{
    if (node->links == 0 && node->opens == 0) {
        disk->used_pages -= sim_pages_allocated(&node->live);
        sim_pages_free(&node->live);
    }
}

int sim_disk_open(struct sim_disk *disk, const char *path, int flags, struct sim_node **ret_node,
        struct sim_change **ret_change)
{
    *ret_change = NULL;
    struct sim_node *node = sim_disk_name_find(&disk->live, path);
    if (node != NULL && (flags & O_CREAT) && (flags & O_EXCL))
        return -EEXIST;
    if (node == NULL) {
        int result = sim_disk_check_parent(disk, path);
        if (result < 0)
            return result;
        if (!(flags & O_CREAT))
            return -ENOENT;
        node = sim_disk_node_create(disk, false);
        node->links = 1;
        sim_disk_name_set(&disk->live, path, node);
        *ret_change = name_change(disk, CHANGE_CREATE, node, path, NULL);
    } else if (node->directory && (flags & O_ACCMODE) != O_RDONLY) {
        return -EISDIR;
    } else if (!node->directory && (flags & O_DIRECTORY)) {
        return -ENOTDIR;
    } else if ((flags & O_TRUNC) && node->live.size > 0) {
        struct sim_change *change = sim_disk_write_begin(disk, node, 0, NULL, 0);
        change->kind = CHANGE_TRUNCATE;
        sim_disk_write_effect(disk, change);
        sim_disk_change_complete(disk, change);
    }
    node->opens++;
    *ret_node = node;
    return 0;
}

void sim_disk_close(struct sim_disk *disk, struct sim_node *node)
{
    node->opens--;
    release_if_unused(disk, node);
}

int sim_disk_mkdir(struct sim_disk *disk, const char *path, struct sim_change **ret_change)
{
    *ret_change = NULL;
    if (sim_disk_name_find(&disk->live, path) != NULL)
        return -EEXIST;
    int result = sim_disk_check_parent(disk, path);
    if (result < 0)
        return result;
    struct sim_node *node = sim_disk_node_create(disk, true);
    node->links = 1;
    sim_disk_name_set(&disk->live, path, node);
    *ret_change = name_change(disk, CHANGE_CREATE, node, path, NULL);
    return 0;
}

int sim_disk_rename(struct sim_disk *disk, const char *from, const char *to, struct sim_change **ret_change)
{
    *ret_change = NULL;
    struct sim_node *node = sim_disk_name_find(&disk->live, from);
    if (node == NULL)
        return -ENOENT;
    if (node->directory)
        return -ENOTSUP; // nothing in the engine moves directories
    int result = sim_disk_check_parent(disk, to);
    if (result < 0)
        return result;
    struct sim_node *old = sim_disk_name_find(&disk->live, to);
    if (old == node)
        return 0;
    if (old != NULL && old->directory)
        return -EISDIR;
    sim_disk_name_set(&disk->live, to, node);
    name_remove(&disk->live, from);
    if (old != NULL) {
        old->links--;
        release_if_unused(disk, old);
    }
    *ret_change = name_change(disk, CHANGE_RENAME, node, from, to);
    return 0;
}

int sim_disk_unlink(struct sim_disk *disk, const char *path, struct sim_change **ret_change)
{
    *ret_change = NULL;
    struct sim_node *node = sim_disk_name_find(&disk->live, path);
    if (node == NULL)
        return -ENOENT;
    if (node->directory)
        return -EISDIR;
    name_remove(&disk->live, path);
    node->links--;
    release_if_unused(disk, node);
    *ret_change = name_change(disk, CHANGE_UNLINK, node, path, NULL);
    return 0;
}

static bool in_directory(const char *path, const char *directory)
{
    char parent[strlen(path) + 2];
    path_parent(path, parent);
    return strcmp(path, "/") != 0 && strcmp(parent, directory) == 0;
}

int sim_disk_list(
        struct sim_disk *disk, const char *path, void (*each)(void *context, const char *name), void *context)
{
    const struct sim_node *node = sim_disk_name_find(&disk->live, path);
    if (node == NULL)
        return -ENOENT;
    if (!node->directory)
        return -ENOTDIR;
    for (size_t i = 0; i < disk->live.count; i++)
        if (in_directory(disk->live.item[i].path, path))
            each(context, strrchr(disk->live.item[i].path, '/') + 1);
    return 0;
}

void sim_disk_apply_name(struct name_list *list, const struct sim_change *change)
{
    switch (change->kind) {
    case CHANGE_CREATE:
        sim_disk_name_set(list, change->path, change->node);
        break;
    case CHANGE_RENAME:
        sim_disk_name_set(list, change->path2, change->node);
        if (sim_disk_name_find(list, change->path) == change->node)
            name_remove(list, change->path);
        break;
    case CHANGE_UNLINK:
        if (sim_disk_name_find(list, change->path) == change->node)
            name_remove(list, change->path);
        break;
    default:
        break;
    }
}

// ---- Content ----

int64_t sim_disk_read(const struct sim_node *node, uint64_t offset, void *buffer, size_t size)
{
    if (node->directory)
        return -EISDIR;
    return (int64_t)sim_pages_read(&node->live, offset, buffer, size);
}

struct sim_change *sim_disk_write_begin(
        struct sim_disk *disk, struct sim_node *node, uint64_t offset, const void *bytes, size_t size)
{
    struct sim_change *change = calloc(1, sizeof *change);
    uint8_t *copy = malloc(size ? size : 1);
    if (change == NULL || copy == NULL)
        abort();
    if (size > 0)
        memcpy(copy, bytes, size);
    change->kind = CHANGE_WRITE;
    change->node = node;
    change->offset = offset;
    change->size = size;
    change->bytes = copy;
    sim_disk_change_add(&node->changes, change);
    return change;
}

bool sim_disk_has_room(const struct sim_disk *disk, const struct sim_node *node, uint64_t offset, size_t size)
{
    if (disk->capacity_bytes == 0)
        return true;
    // After a cut a disk may hold more than fits: names that had been removed, and are there again.
    uint64_t missing = sim_pages_missing(&node->live, offset, size);
    return missing == 0 || (disk->used_pages + missing) * SIM_DISK_PAGE <= disk->capacity_bytes;
}

void sim_disk_apply_content(struct sim_pages *pages, const struct sim_change *change)
{
    if (change->kind == CHANGE_TRUNCATE)
        sim_pages_free(pages);
    else
        sim_pages_write(pages, change->offset, change->bytes, change->size);
}

void sim_disk_write_effect(struct sim_disk *disk, struct sim_change *change)
{
    if (change->effect != 0)
        return;
    change->effect = ++disk->effect_clock;
    uint64_t before = sim_pages_allocated(&change->node->live);
    sim_disk_apply_content(&change->node->live, change);
    disk->used_pages += sim_pages_allocated(&change->node->live) - before;
}

const void *sim_disk_change_bytes(const struct sim_change *change)
{
    return change->bytes;
}

static struct change_list *list_of(struct sim_disk *disk, const struct sim_change *change)
{
    bool content = change->kind == CHANGE_WRITE || change->kind == CHANGE_TRUNCATE;
    return content ? &change->node->changes : &disk->name_changes;
}

void sim_disk_change_complete(struct sim_disk *disk, struct sim_change *change)
{
    change->completed = ++disk->complete_clock;
    if (change->durable)
        change_list_sweep(list_of(disk, change));
}

void sim_disk_change_fail(struct sim_disk *disk, struct sim_change *change)
{
    change->doomed = true;
    sim_disk_change_complete(disk, change);
}

// ---- Durability ----

uint64_t sim_disk_mark(const struct sim_disk *disk)
{
    return disk->complete_clock;
}

int sim_disk_by_effect(const void *a, const void *b)
{
    const struct sim_change *const *x = a, *const *y = b;
    return ((*x)->effect > (*y)->effect) - ((*x)->effect < (*y)->effect);
}

static bool overlap(const struct sim_change *a, const struct sim_change *b)
{
    if (a->kind == CHANGE_TRUNCATE || b->kind == CHANGE_TRUNCATE)
        return true;
    return a->offset < b->offset + b->size && b->offset < a->offset + a->size;
}

static bool covered(const struct sim_change *change, uint64_t mark)
{
    return change->completed != 0 && change->completed <= mark && !change->doomed && !change->durable;
}

void sim_disk_sync(struct sim_disk *disk, struct sim_node *node, uint64_t mark)
{
    (void)disk;
    struct change_list *list = &node->changes;
    // A change that took effect under a covered one cannot surface over it later: it goes with it.
    struct sim_change *taken[list->count + 1];
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct sim_change *change = list->item[i];
        bool take = covered(change, mark);
        for (size_t j = 0; j < list->count && !take && change->effect != 0 && !change->durable; j++)
            take = covered(list->item[j], mark) && change->effect < list->item[j]->effect &&
                   overlap(change, list->item[j]);
        if (take)
            taken[count++] = change;
    }
    qsort(taken, count, sizeof taken[0], sim_disk_by_effect);
    for (size_t i = 0; i < count; i++) {
        sim_disk_apply_content(&node->durable, taken[i]);
        taken[i]->durable = true;
    }
    change_list_sweep(list);
}

void sim_disk_sync_failed(struct sim_disk *disk, struct sim_node *node, uint64_t mark)
{
    (void)disk;
    for (size_t i = 0; i < node->changes.count; i++)
        if (covered(node->changes.item[i], mark))
            node->changes.item[i]->doomed = true;
}

int sim_disk_sync_directory(struct sim_disk *disk, const char *path, uint64_t mark)
{
    char plain[strlen(path) + 1];
    strcpy(plain, path);
    for (size_t end = strlen(plain); end > 1 && plain[end - 1] == '/'; end--)
        plain[end - 1] = '\0';
    path = plain;
    const struct sim_node *directory = sim_disk_name_find(&disk->live, path);
    if (directory == NULL)
        return -ENOENT;
    if (!directory->directory)
        return -ENOTDIR;
    // Changes of one directory become durable in order: everything before the last covered one goes too.
    size_t end = 0;
    struct change_list *list = &disk->name_changes;
#define TOUCHES(change)                                                                                      \
    (in_directory((change)->path, path) || ((change)->path2 && in_directory((change)->path2, path)))
    for (size_t i = 0; i < list->count; i++)
        if (covered(list->item[i], mark) && TOUCHES(list->item[i]))
            end = i + 1;
    for (size_t i = 0; i < end; i++) {
        if (!list->item[i]->durable && TOUCHES(list->item[i])) {
            sim_disk_apply_name(&disk->durable, list->item[i]);
            list->item[i]->durable = true;
        }
    }
#undef TOUCHES
    change_list_sweep(list);
    return 0;
}

int sim_disk_lock(struct sim_node *node, uint64_t owner)
{
    if (node->lock_owner != 0 && node->lock_owner != owner)
        return -EBUSY;
    node->lock_owner = owner;
    return 0;
}

void sim_disk_unlock(struct sim_node *node, uint64_t owner)
{
    if (node->lock_owner == owner)
        node->lock_owner = 0;
}

// ---- For tests ----

const char *sim_disk_path(const struct sim_disk *disk, size_t index)
{
    for (size_t i = 0; i < disk->live.count; i++)
        if (!disk->live.item[i].node->directory && index-- == 0)
            return disk->live.item[i].path;
    return NULL;
}

int64_t sim_disk_size(const struct sim_disk *disk, const char *path)
{
    const struct sim_node *node = sim_disk_name_find(&disk->live, path);
    return node ? (int64_t)node->live.size : -ENOENT;
}

int64_t sim_disk_peek(
        const struct sim_disk *disk, const char *path, uint64_t offset, void *buffer, size_t size)
{
    const struct sim_node *node = sim_disk_name_find(&disk->live, path);
    return node ? sim_disk_read(node, offset, buffer, size) : -ENOENT;
}

int sim_disk_flip(struct sim_disk *disk, const char *path, uint64_t offset, unsigned bit)
{
    struct sim_node *node = sim_disk_name_find(&disk->live, path);
    if (node == NULL)
        return -ENOENT;
    struct sim_pages *states[] = {&node->live, &node->durable};
    for (size_t i = 0; i < 2; i++) {
        uint8_t byte;
        if (sim_pages_read(states[i], offset, &byte, 1) != 1)
            continue;
        byte ^= (uint8_t)(1u << bit);
        sim_pages_write(states[i], offset, &byte, 1);
    }
    return offset < node->live.size ? 0 : -EINVAL;
}

uint64_t sim_disk_used_bytes(const struct sim_disk *disk)
{
    return disk->used_pages * SIM_DISK_PAGE;
}

uint64_t sim_disk_free_bytes(const struct sim_disk *disk)
{
    uint64_t used = sim_disk_used_bytes(disk);
    if (disk->capacity_bytes == 0)
        return UINT64_MAX;
    return used < disk->capacity_bytes ? disk->capacity_bytes - used : 0;
}

uint64_t sim_disk_unsynced_count(const struct sim_disk *disk)
{
    uint64_t count = 0;
    for (size_t i = 0; i < disk->node_count; i++)
        for (size_t j = 0; j < disk->node[i]->changes.count; j++)
            count += !disk->node[i]->changes.item[j]->durable;
    return count;
}
