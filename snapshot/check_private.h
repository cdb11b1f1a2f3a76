// SPDX-License-Identifier: Apache-2.0
// Shared by the check_*.c files: check.c (the order of things, what is found), check_names.c (roots and whom
// they belong to), check_tree.c (nodes), check_image.c (images of the catalog), check_files.c (a store that
// cannot be opened).
//
// Damage is collected first, as a sentence and a range of keys; when every tree has been walked it is known
// whom it touches, and then it is told.
#pragma once

#include "snapshot/check.h"
#include "snapshot/checkpoint.h"

enum { CHECK_DAMAGES_MAX = 1000, CHECK_TOUCHED_MAX = 8 };

struct check_damage {
    char *sentence;
    uint64_t first, end;                 // keys [first, end); equal: none
    unsigned touched[CHECK_TOUCHED_MAX]; // roots, by index
    unsigned touched_count, touched_more, last_touched;
    bool leftover; // no damage
};

struct check_root {
    enum checkpoint_kind kind;
    uint64_t id, parent, domain;
    struct tree tree; // a share; of a DOC: none
    locator_t blob;   // of a DOC
    uint64_t blob_blocks;
    uint64_t blocks; // size
};

struct check_segment {
    struct segment_row row;
    uint64_t *present; // bitmap
};

struct check_memo_entry {
    locator_t node; // 0 = free
    uint8_t level;
    bool dirty; // it, or something below it, is damaged
};

struct check_memo { // nodes that were walked
    struct check_memo_entry *entries;
    size_t capacity, count;
};

struct check_range {
    uint64_t first, end;
};

struct check_image;

struct check {
    struct task *task;
    struct store *store;
    void (*damaged)(void *context, const char *sentence);
    void *context;
    struct store_check_result *result;
    struct error *err;
    struct check_damage *damages;
    size_t damage_count;
    struct check_range *ranges; // of the damages so far when check_ranges was called: ascending, apart
    size_t range_count;
    struct check_root *roots;
    size_t root_count;
    struct check_segment *segments; // ascending
    size_t segment_count, segment_room;
    uint64_t *mixed_domains; // domains whose volumes may hold blocks of other domains
    size_t mixed_count;
    struct check_memo memo;
    struct check_image *image;
};

// Where a block or a node in memory is, as one number.
static inline uint64_t check_key(locator_t locator)
{
    return (locator & 15) << 60 | locator >> 4;
}

// check.c
// The range of keys begins at `first` (0 = no range) and has `count` places.
__attribute__((format(printf, 4, 5))) void check_report(
        struct check *check, locator_t first, uint64_t count, const char *format, ...);
__attribute__((format(printf, 2, 3))) void check_report_leftover(
        struct check *check, const char *format, ...);
void check_ranges(struct check *check);
bool check_is_damaged(const struct check *check, locator_t locator);
const struct check_segment *check_segment_find(const struct check *check, uint64_t number);

// check_names.c
void check_roots_take(struct check *check);
void check_roots_drop(struct check *check);
char *check_root_name(const struct check *check, const struct check_root *root); // malloc'ed: `volume "x"`
bool check_domain_mixed(const struct check *check, uint64_t domain);

// check_tree.c
int check_trees(struct check *check);  // < 0: could not look
void check_touch(struct check *check); // which roots reach what is damaged

// check_image.c: the catalog as the log tells it
struct check_image *check_image_new(struct store *store);
void check_image_free(struct check_image *image);
// A record of the log, in order. The images at the heads of files are compared with what the records before
// say.
int check_image_record(struct check *check, const struct record *record, const void *body);
void check_image_end(struct check *check); // the catalog of a store that nobody changes
