// SPDX-License-Identifier: Apache-2.0
// What one power cut or one death of the process leaves of a disk: always a disk of its own, all of it
// durable. How much survives is drawn once per cut (enum survival), so that all kept, all lost, one lost and
// one kept are as likely as any mixture.
#include "tests/sim/sim_checkpoint.h"
#include "tests/sim/sim_disk_private.h"

#include <stdlib.h>
#include <string.h>

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
        sim_disk_apply_content(pages, change);
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
    for (size_t i = 0; i < disk->node_count; i++) {
        struct sim_node *node = sim_disk_node_create(copy, disk->node[i]->directory);
        node->rows = sim_rows_share(disk->node[i]->rows);
        node->row_pages = disk->node[i]->row_pages;
        copy->used_pages += node->row_pages;
    }
    return copy;
}

// Takes names over whose directory is there too (paths are sorted, so parents come first), and ends the copy:
// all of it is durable.
static void finish_copy(struct sim_disk *copy, const struct name_list *names)
{
    for (size_t i = 0; i < names->count; i++) {
        const char *path = names->item[i].path;
        if (strcmp(path, "/") != 0 && sim_disk_check_parent(copy, path) < 0)
            continue;
        struct sim_node *node = copy->node[names->item[i].node->id];
        node->links++;
        sim_disk_name_set(&copy->live, path, node);
        sim_disk_name_set(&copy->durable, path, node);
    }
    for (size_t i = 0; i < copy->node_count; i++) {
        struct sim_node *node = copy->node[i];
        if (node->links == 0)
            sim_pages_free(&node->live);
        sim_pages_copy(&node->durable, &node->live);
        copy->used_pages += sim_pages_allocated(&node->live);
    }
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
    qsort(ret_changes, in_effect, sizeof ret_changes[0], sim_disk_by_effect);
    return count;
}

static void survive_names(const struct sim_disk *disk, struct survivor *cut, struct name_list *ret_names)
{
    for (size_t i = 0; i < disk->durable.count; i++)
        sim_disk_name_set(ret_names, disk->durable.item[i].path, disk->durable.item[i].node);
    bool ordered = sim_random(&cut->random) % 2;
    size_t count = disk->name_changes.count;
    size_t prefix = sim_random_below(&cut->random, count + 1);
    for (size_t i = 0; i < count; i++) {
        const struct sim_change *change = disk->name_changes.item[i];
        bool keep = cut->mode == KEEP_ALL ||
                    (cut->mode != KEEP_NONE && (ordered ? i < prefix : sim_random(&cut->random) % 2));
        if (keep && !change->durable)
            sim_disk_apply_name(ret_names, change);
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
    sim_disk_name_list_free(&names);
    return copy;
}

// A change as the next process meets it: in effect, completed, and still not durable.
static void inherit(
        struct sim_disk *copy, struct change_list *list, const struct sim_change *change, size_t size)
{
    struct sim_change *mine = calloc(1, sizeof *mine);
    if (mine == NULL)
        abort();
    *mine = *change;
    mine->node = copy->node[change->node->id];
    mine->size = size;
    mine->bytes = malloc(size + 1);
    if (mine->bytes == NULL)
        abort();
    memcpy(mine->bytes, change->bytes ? change->bytes : (const uint8_t *)"", change->bytes ? size : 0);
    mine->path = change->path ? strdup(change->path) : NULL;
    mine->path2 = change->path2 ? strdup(change->path2) : NULL;
    mine->effect = ++copy->effect_clock;
    mine->completed = ++copy->complete_clock;
    mine->doomed = false; // direct I/O: what the next process reads is on the device, and its sync covers it
    sim_disk_change_add(list, mine);
}

static void kill_node(struct sim_disk *copy, const struct sim_node *node, uint64_t *random)
{
    struct sim_node *mine = copy->node[node->id];
    sim_pages_copy(&mine->live, &node->live);
    sim_pages_copy(&mine->durable, &node->durable);
    struct sim_change *changes[node->changes.count + 1];
    size_t count = sorted_changes(node, changes);
    for (size_t i = 0; i < count; i++) {
        size_t size = changes[i]->size;
        if (changes[i]->effect != 0) {
            inherit(copy, &mine->changes, changes[i], size);
            continue;
        }
        uint64_t dice = sim_random_below(random, 3); // on its way: wholly, up to some page, or not at all
        if (dice == 0 || changes[i]->doomed)
            continue;
        if (dice == 1)
            size = sim_random_below(random, size / SIM_DISK_PAGE + 1) * SIM_DISK_PAGE;
        inherit(copy, &mine->changes, changes[i], size);
        sim_disk_apply_content(&mine->live, mine->changes.item[mine->changes.count - 1]);
    }
}

struct sim_disk *sim_disk_after_kill(const struct sim_disk *disk, uint64_t seed)
{
    struct sim_disk *copy = copy_nodes(disk);
    for (size_t i = 0; i < disk->live.count; i++) {
        struct sim_node *node = copy->node[disk->live.item[i].node->id];
        node->links++;
        sim_disk_name_set(&copy->live, disk->live.item[i].path, node);
    }
    for (size_t i = 0; i < disk->durable.count; i++)
        sim_disk_name_set(
                &copy->durable, disk->durable.item[i].path, copy->node[disk->durable.item[i].node->id]);
    for (size_t i = 0; i < disk->name_changes.count; i++)
        if (!disk->name_changes.item[i]->durable)
            inherit(copy, &copy->name_changes, disk->name_changes.item[i], 0);
    for (size_t i = 0; i < disk->node_count; i++) {
        kill_node(copy, disk->node[i], &seed);
        if (copy->node[i]->links == 0) // its last descriptor went with the process
            sim_pages_free(&copy->node[i]->live);
        copy->used_pages += sim_pages_allocated(&copy->node[i]->live);
    }
    return copy;
}
