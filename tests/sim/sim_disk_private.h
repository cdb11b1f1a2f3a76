// SPDX-License-Identifier: Apache-2.0
// Shared by sim_disk.c (names, content, durability) and sim_disk_cut.c (what is left after a cut).
#pragma once

#include "tests/sim/sim_disk.h"
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
    struct sim_rows *rows; // a directory's checkpoint
    uint64_t row_pages;    // what they ever took
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

struct sim_node *sim_disk_name_find(const struct name_list *list, const char *path);
void sim_disk_name_set(struct name_list *list, const char *path, struct sim_node *node);
void sim_disk_name_list_free(struct name_list *list);
struct sim_node *sim_disk_node_create(struct sim_disk *disk, bool directory);
// Whether the directory of `path` is there: 0 or -errno.
int sim_disk_check_parent(const struct sim_disk *disk, const char *path);
void sim_disk_apply_name(struct name_list *list, const struct sim_change *change);
void sim_disk_apply_content(struct sim_pages *pages, const struct sim_change *change);
void sim_disk_change_add(struct change_list *list, struct sim_change *change);
int sim_disk_by_effect(const void *a, const void *b); // for qsort, of pointers to changes
