// SPDX-License-Identifier: Apache-2.0
// Shared by checkpoint_pages.c (meta pages) and checkpoint_tree.c (all others). The format, as LMDB 0.9
// writes it on a little-endian machine of 64 bits:
//
//   page   0 u64 number   8 u16 unused   10 u16 kind   12 u16 lower   14 u16 upper   16 u16 x n offsets of
//          nodes, in order of keys; n = (lower - 16) / 2; nodes fill the page from upper to its end.
//          Overflow pages have 12 u32 how many there are in this run instead, and bytes from 16 on.
//   node   0 u32 size of the value   4 u16 flags   6 u16 size of the key   8 key, value; padded to 2 bytes.
//          In a branch the first 6 bytes are a page number, there is no value, and the first key means
//          nothing. With flag 1 the value is the number of the first of a run of overflow pages.
//   meta   (pages 0 and 1, at 16) 0 u32 magic   4 u32 version   8 u64 address   16 u64 size of the map
//          24 tree of free pages   72 main tree   120 u64 last page   128 u64 transaction
//   tree   0 u32 (of free pages: page size; main: 0)   4 u16 flags   6 u16 depth   8 u64 branches
//          16 u64 leaves   24 u64 overflow pages   32 u64 entries   40 u64 root
// Transaction N is described by page N % 2, so the two describe N and N - 1. The tree of free pages has
// transaction numbers as keys and, as values, how many pages it freed and their numbers, descending.
#pragma once

#include "blockstore/checkpoint_pages.h"

#define CHECKPOINT_NO_PAGE UINT64_MAX

enum {
    CHECKPOINT_PAGE_BYTES_MIN = 4096,
    CHECKPOINT_PAGE_BYTES_MAX = 32768,
    CHECKPOINT_PAGE_HEAD = 16,
    CHECKPOINT_META_PAGES = CHECKPOINT_PAGES_METAS,
    CHECKPOINT_DEPTH_MAX = 32, // LMDB's cursors reach no deeper
    CHECKPOINT_KEY_BYTES_MAX = 511,
};

struct checkpoint_tree {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branches, leaves, overflows, entries, root;
};

struct checkpoint_meta {
    uint64_t page;
    uint16_t kind;
    uint32_t magic, version;
    uint64_t address, map_bytes;
    struct checkpoint_tree free, main;
    uint64_t last_page, transaction;
};

struct checkpoint_walk {
    int fd;
    const char *path;
    uint64_t file_bytes;
    uint8_t metas[CHECKPOINT_META_PAGES][CHECKPOINT_PAGES_META_BYTES]; // as they stand
    struct checkpoint_meta meta;                                       // the one that is followed
    uint32_t page_bytes;
    uint8_t *used; // bitmap of pages: reached, or in the list of free ones
    struct checkpoint_tree *tree, seen;
    bool of_free;
    uint64_t free_pages;
    uint8_t last_key[CHECKPOINT_KEY_BYTES_MAX];
    size_t last_key_size;
    bool have_last_key;
    checkpoint_pages_callback each;
    void *context;
    struct error *err;
};

int checkpoint_pages_damaged(struct checkpoint_walk *walk, uint64_t page, const char *what); // -EBADMSG
int checkpoint_pages_read_at(struct checkpoint_walk *walk, void *buffer, size_t size, uint64_t offset);
// Every page and entry of walk->meta's tree (main, or the one of free pages).
int checkpoint_tree_visit(struct checkpoint_walk *walk, struct checkpoint_tree *tree, bool of_free);
