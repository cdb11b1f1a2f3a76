// SPDX-License-Identifier: Apache-2.0
// See sim_disk.h for the model. Content is arrays of reference-counted 4 KiB pages, copied when written, so
// that a copy of a whole disk costs a pointer per page: the crash harness makes one at every crash point.
#include "tests/sim/sim_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_pages.h"

enum change_kind { CHANGE_WRITE, CHANGE_TRUNCATE, CHANGE_CREATE, CHANGE_RENAME, CHANGE_UNLINK };

struct sim_change {
    enum change_kind kind;
    struct sim_node *node; // the file written, created, moved or removed
    uint64_t offset;
    size_t size;
    uint8_t *bytes;
    char *path, *path2; // names: what is created or removed; path2 = where a rename leads
    uint64_t effect;    // order in which changes took effect; 0 = not yet
    uint64_t completed; // order in which their callers learned of it; 0 = not yet
    bool doomed;        // a sync failed, or the write did: never durable by a later sync
    bool durable;       // applied to the durable state; kept only until it is completed
};

struct change_list {
    struct sim_change **item;
    size_t count, capacity;
};

struct sim_node {
    uint64_t id;
    bool directory;
    unsigned links, opens;
    uint64_t lock_owner;
    struct sim_pages live, durable;
    struct change_list changes; // not durable yet, in order of submission
};

struct sim_name {
    char *path;
    struct sim_node *node;
};

struct name_list {
    struct sim_name *item; // sorted by path
    size_t count, capacity;
};

struct sim_disk {
    uint64_t capacity_bytes;
    uint64_t used_pages;
    uint64_t effect_clock, complete_clock;
    struct name_list live, durable;
    struct change_list name_changes;
    struct sim_node **node;
    size_t node_count, node_capacity;
};

uint64_t sim_random(uint64_t *state)
{
    // Steele, Lea, Flood: Fast splittable pseudorandom number generators (splitmix64).
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sim_random_below(uint64_t *state, uint64_t limit)
{
    return sim_random(state) % limit;
}

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

static struct sim_node *name_find(const struct name_list *list, const char *path)
{
    bool found;
    size_t position = name_position(list, path, &found);
    return found ? list->item[position].node : NULL;
}

static void name_set(struct name_list *list, const char *path, struct sim_node *node)
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

static void name_list_free(struct name_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i].path);
    free(list->item);
}

static void change_add(struct change_list *list, struct sim_change *change)
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

static struct sim_node *node_create(struct sim_disk *disk, bool directory)
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
    struct sim_node *root = node_create(disk, true);
    root->links = 1;
    name_set(&disk->live, "/", root);
    name_set(&disk->durable, "/", root);
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
        free(disk->node[i]);
    }
    free(disk->node);
    name_list_free(&disk->live);
    name_list_free(&disk->durable);
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

static int check_parent(const struct sim_disk *disk, const char *path)
{
    char parent[strlen(path) + 2];
    path_parent(path, parent);
    const struct sim_node *node = name_find(&disk->live, parent);
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
    change_add(&disk->name_changes, change);
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
    struct sim_node *node = name_find(&disk->live, path);
    if (node != NULL && (flags & O_CREAT) && (flags & O_EXCL))
        return -EEXIST;
    if (node == NULL) {
        int result = check_parent(disk, path);
        if (result < 0)
            return result;
        if (!(flags & O_CREAT))
            return -ENOENT;
        node = node_create(disk, false);
        node->links = 1;
        name_set(&disk->live, path, node);
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
    if (name_find(&disk->live, path) != NULL)
        return -EEXIST;
    int result = check_parent(disk, path);
    if (result < 0)
        return result;
    struct sim_node *node = node_create(disk, true);
    node->links = 1;
    name_set(&disk->live, path, node);
    *ret_change = name_change(disk, CHANGE_CREATE, node, path, NULL);
    return 0;
}

int sim_disk_rename(struct sim_disk *disk, const char *from, const char *to, struct sim_change **ret_change)
{
    *ret_change = NULL;
    struct sim_node *node = name_find(&disk->live, from);
    if (node == NULL)
        return -ENOENT;
    if (node->directory)
        return -ENOTSUP; // nothing in the engine moves directories
    int result = check_parent(disk, to);
    if (result < 0)
        return result;
    struct sim_node *old = name_find(&disk->live, to);
    if (old == node)
        return 0;
    if (old != NULL && old->directory)
        return -EISDIR;
    name_set(&disk->live, to, node);
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
    struct sim_node *node = name_find(&disk->live, path);
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
    const struct sim_node *node = name_find(&disk->live, path);
    if (node == NULL)
        return -ENOENT;
    if (!node->directory)
        return -ENOTDIR;
    for (size_t i = 0; i < disk->live.count; i++)
        if (in_directory(disk->live.item[i].path, path))
            each(context, strrchr(disk->live.item[i].path, '/') + 1);
    return 0;
}

static void apply_name(struct name_list *list, const struct sim_change *change)
{
    switch (change->kind) {
    case CHANGE_CREATE:
        name_set(list, change->path, change->node);
        break;
    case CHANGE_RENAME:
        name_set(list, change->path2, change->node);
        if (name_find(list, change->path) == change->node)
            name_remove(list, change->path);
        break;
    case CHANGE_UNLINK:
        if (name_find(list, change->path) == change->node)
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
    change_add(&node->changes, change);
    return change;
}

bool sim_disk_has_room(const struct sim_disk *disk, const struct sim_node *node, uint64_t offset, size_t size)
{
    if (disk->capacity_bytes == 0)
        return true;
    uint64_t needed = disk->used_pages + sim_pages_missing(&node->live, offset, size);
    return needed * SIM_DISK_PAGE <= disk->capacity_bytes;
}

static void apply_content(struct sim_pages *pages, const struct sim_change *change)
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
    apply_content(&change->node->live, change);
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

static int by_effect(const void *a, const void *b)
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
    qsort(taken, count, sizeof taken[0], by_effect);
    for (size_t i = 0; i < count; i++) {
        apply_content(&node->durable, taken[i]);
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
    const struct sim_node *directory = name_find(&disk->live, path);
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
            apply_name(&disk->durable, list->item[i]);
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

// ---- Copies: what is left after a cut ----

enum survival {
    KEEP_ALL,
    KEEP_NONE,
    KEEP_WHOLE_OR_NOT,
    KEEP_PREFIX,
    KEEP_SECTORS,
    LOSE_ONE,
    KEEP_ONE,
    BY_FILE,
    MIXED,
    SURVIVALS
};

struct survivor {
    uint64_t random;
    enum survival mode;
    size_t sector;   // 512 or 4096
    uint64_t chosen; // LOSE_ONE, KEEP_ONE: which change, counted over the disk
    uint64_t index;
};

// Applies the surviving part of one change to what the disk holds.
static void survive(
        struct survivor *cut, bool file_kept, struct sim_pages *pages, const struct sim_change *change)
{
    enum survival mode = cut->mode;
    uint64_t index = cut->index++;
    if (mode == MIXED)
        mode = sim_random_below(&cut->random, KEEP_SECTORS + 1);
    bool whole = mode == KEEP_ALL || (mode == KEEP_WHOLE_OR_NOT && sim_random(&cut->random) % 2) ||
                 (mode == LOSE_ONE && index != cut->chosen) || (mode == KEEP_ONE && index == cut->chosen) ||
                 (mode == BY_FILE && file_kept);
    if (whole) {
        apply_content(pages, change);
        return;
    }
    bool torn =
            mode == KEEP_PREFIX || mode == KEEP_SECTORS || (mode == LOSE_ONE && sim_random(&cut->random) % 2);
    if (!torn || change->kind != CHANGE_WRITE || change->size == 0)
        return;
    size_t first = change->offset / cut->sector, last = (change->offset + change->size - 1) / cut->sector;
    size_t prefix = sim_random_below(&cut->random, last - first + 2);
    for (size_t sector = first; sector <= last; sector++) {
        bool keep = mode == KEEP_PREFIX ? sector - first < prefix : sim_random(&cut->random) % 2;
        if (!keep)
            continue;
        uint64_t begin = sector * cut->sector, end = begin + cut->sector;
        begin = begin < change->offset ? change->offset : begin;
        end = end > change->offset + change->size ? change->offset + change->size : end;
        sim_pages_write(pages, begin, change->bytes + (begin - change->offset), end - begin);
    }
}

static struct sim_disk *copy_nodes(const struct sim_disk *disk)
{
    struct sim_disk *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        abort();
    copy->capacity_bytes = disk->capacity_bytes;
    for (size_t i = 0; i < disk->node_count; i++)
        node_create(copy, disk->node[i]->directory);
    return copy;
}

// Takes names over whose directory is there too (paths are sorted, so parents come first), and ends the copy:
// all of it is durable.
static void finish_copy(struct sim_disk *copy, const struct name_list *names)
{
    for (size_t i = 0; i < names->count; i++) {
        const char *path = names->item[i].path;
        if (strcmp(path, "/") != 0 && check_parent(copy, path) < 0)
            continue;
        struct sim_node *node = copy->node[names->item[i].node->id];
        node->links++;
        name_set(&copy->live, path, node);
        name_set(&copy->durable, path, node);
    }
    for (size_t i = 0; i < copy->node_count; i++) {
        struct sim_node *node = copy->node[i];
        if (node->links == 0)
            sim_pages_free(&node->live);
        sim_pages_copy(&node->durable, &node->live);
        copy->used_pages += sim_pages_allocated(&node->live);
    }
}

struct sim_disk *sim_disk_copy(const struct sim_disk *disk)
{
    struct sim_disk *copy = copy_nodes(disk);
    for (size_t i = 0; i < disk->node_count; i++)
        sim_pages_copy(&copy->node[i]->live, &disk->node[i]->live);
    finish_copy(copy, &disk->live);
    return copy;
}

static size_t sorted_changes(const struct sim_node *node, struct sim_change **ret_changes)
{
    size_t count = 0;
    for (size_t pass = 0; pass < 2; pass++) // in effect first, then what was still on its way
        for (size_t i = 0; i < node->changes.count; i++)
            if (!node->changes.item[i]->durable && (node->changes.item[i]->effect == 0) == (pass == 1))
                ret_changes[count++] = node->changes.item[i];
    size_t in_effect = 0;
    while (in_effect < count && ret_changes[in_effect]->effect != 0)
        in_effect++;
    qsort(ret_changes, in_effect, sizeof ret_changes[0], by_effect);
    return count;
}

static void survive_names(const struct sim_disk *disk, struct survivor *cut, struct name_list *ret_names)
{
    for (size_t i = 0; i < disk->durable.count; i++)
        name_set(ret_names, disk->durable.item[i].path, disk->durable.item[i].node);
    bool ordered = sim_random(&cut->random) % 2;
    size_t count = disk->name_changes.count;
    size_t prefix = sim_random_below(&cut->random, count + 1);
    for (size_t i = 0; i < count; i++) {
        const struct sim_change *change = disk->name_changes.item[i];
        bool keep = cut->mode == KEEP_ALL ||
                    (cut->mode != KEEP_NONE && (ordered ? i < prefix : sim_random(&cut->random) % 2));
        if (keep && !change->durable)
            apply_name(ret_names, change);
    }
}

struct sim_disk *sim_disk_after_power_cut(const struct sim_disk *disk, uint64_t seed)
{
    struct survivor cut = {.random = seed};
    cut.mode = sim_random_below(&cut.random, SURVIVALS);
    cut.sector = sim_random(&cut.random) % 2 ? 512 : SIM_DISK_PAGE;
    cut.chosen = sim_random_below(&cut.random, sim_disk_unsynced_count(disk) + 1);
    struct sim_disk *copy = copy_nodes(disk);
    for (size_t i = 0; i < disk->node_count; i++) {
        const struct sim_node *node = disk->node[i];
        struct sim_pages *pages = &copy->node[i]->live;
        sim_pages_copy(pages, &node->durable);
        bool kept = sim_random(&cut.random) % 2;
        struct sim_change *changes[node->changes.count + 1];
        size_t count = sorted_changes(node, changes);
        for (size_t j = 0; j < count; j++)
            survive(&cut, kept, pages, changes[j]);
        // The new size may have reached the disk without the bytes: they read as zeros.
        if (count > 0 && node->live.size > pages->size && sim_random(&cut.random) % 4 == 0)
            sim_pages_extend(pages, node->live.size);
    }
    struct name_list names = {0};
    survive_names(disk, &cut, &names);
    finish_copy(copy, &names);
    name_list_free(&names);
    return copy;
}

struct sim_disk *sim_disk_after_kill(const struct sim_disk *disk, uint64_t seed)
{
    struct survivor cut = {.random = seed, .sector = SIM_DISK_PAGE, .mode = MIXED};
    struct sim_disk *copy = copy_nodes(disk);
    for (size_t i = 0; i < disk->node_count; i++) {
        const struct sim_node *node = disk->node[i];
        sim_pages_copy(&copy->node[i]->live, &node->live);
        for (size_t j = 0; j < node->changes.count; j++)
            if (node->changes.item[j]->effect == 0 && !node->changes.item[j]->doomed)
                survive(&cut, true, &copy->node[i]->live, node->changes.item[j]);
    }
    finish_copy(copy, &disk->live);
    return copy;
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
    const struct sim_node *node = name_find(&disk->live, path);
    return node ? (int64_t)node->live.size : -ENOENT;
}

int64_t sim_disk_peek(
        const struct sim_disk *disk, const char *path, uint64_t offset, void *buffer, size_t size)
{
    const struct sim_node *node = name_find(&disk->live, path);
    return node ? sim_disk_read(node, offset, buffer, size) : -ENOENT;
}

int sim_disk_flip(struct sim_disk *disk, const char *path, uint64_t offset, unsigned bit)
{
    struct sim_node *node = name_find(&disk->live, path);
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

uint64_t sim_disk_unsynced_count(const struct sim_disk *disk)
{
    uint64_t count = 0;
    for (size_t i = 0; i < disk->node_count; i++)
        for (size_t j = 0; j < disk->node[i]->changes.count; j++)
            count += !disk->node[i]->changes.item[j]->durable;
    return count;
}
