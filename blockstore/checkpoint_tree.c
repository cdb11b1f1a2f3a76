// SPDX-License-Identifier: Apache-2.0
#include "blockstore/checkpoint_pages_private.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>

enum { KIND_BRANCH = 1, KIND_LEAF = 2, KIND_OVERFLOW = 4, NODE_HEAD = 8, NODE_OVERFLOW = 1 };

// Pages

static int page_use(struct checkpoint_walk *walk, uint64_t page)
{
    if (page < CHECKPOINT_META_PAGES || page > walk->meta.last_page)
        return checkpoint_pages_damaged(walk, page, "this page is named, but outside the file");
    uint8_t *byte = &walk->used[page / 8], bit = (uint8_t)(1u << page % 8);
    if (*byte & bit)
        return checkpoint_pages_damaged(walk, page, "this page is used twice");
    *byte |= bit;
    return 0;
}

struct page {
    uint64_t number;
    uint16_t kind, lower, upper;
    uint32_t run; // of overflow pages
    unsigned count;
    uint8_t *bytes;
};

static int page_read(struct checkpoint_walk *walk, uint64_t number, uint8_t *buffer, struct page *ret_page)
{
    int r = page_use(walk, number);
    if (r < 0)
        return r;
    r = checkpoint_pages_read_at(walk, buffer, walk->page_bytes, number * walk->page_bytes);
    if (r < 0)
        return r;
    struct cursor c = cursor_make(buffer, CHECKPOINT_PAGE_HEAD);
    struct page page = {.bytes = buffer};
    page.number = cursor_get_u64(&c);
    cursor_get_u16(&c);
    page.kind = cursor_get_u16(&c);
    struct cursor run = c;
    page.run = cursor_get_u32(&run);
    page.lower = cursor_get_u16(&c);
    page.upper = cursor_get_u16(&c);
    if (page.number != number)
        return checkpoint_pages_damaged(walk, number, "another page stands here");
    if (page.kind != KIND_OVERFLOW) {
        if (page.lower < CHECKPOINT_PAGE_HEAD || page.lower % 2 != 0 || page.upper < page.lower ||
                page.upper > walk->page_bytes)
            return checkpoint_pages_damaged(walk, number, "its bounds are impossible");
        page.count = (page.lower - CHECKPOINT_PAGE_HEAD) / 2u;
    }
    *ret_page = page;
    return 0;
}

struct node {
    uint64_t child; // branch
    uint16_t flags;
    const uint8_t *key, *value;
    size_t key_size, value_size;
    size_t offset, size; // what it takes on the page
};

static int node_get(struct checkpoint_walk *walk, const struct page *page, unsigned i, struct node *ret_node)
{
    struct cursor offsets = cursor_make(page->bytes + CHECKPOINT_PAGE_HEAD + 2 * (size_t)i, 2);
    size_t offset = cursor_get_u16(&offsets);
    if (offset < page->upper || offset % 2 != 0 || offset + NODE_HEAD > walk->page_bytes)
        return checkpoint_pages_damaged(walk, page->number, "an entry lies outside of it");
    struct cursor c = cursor_make(page->bytes + offset, walk->page_bytes - offset);
    uint32_t first = cursor_get_u32(&c);
    struct node node = {.flags = cursor_get_u16(&c), .offset = offset};
    node.key_size = cursor_get_u16(&c);
    node.key = cursor_take(&c, node.key_size);
    if (page->kind == KIND_BRANCH) {
        node.child = first | (uint64_t)node.flags << 32;
    } else {
        node.value_size = first;
        node.value = cursor_take(&c, node.flags & NODE_OVERFLOW ? 8 : node.value_size);
        if (node.flags & ~NODE_OVERFLOW)
            return checkpoint_pages_damaged(walk, page->number, "an entry has unknown flags");
    }
    if (c.bad || node.key_size > CHECKPOINT_KEY_BYTES_MAX)
        return checkpoint_pages_damaged(walk, page->number, "an entry reaches out of it");
    node.size = ((size_t)(c.at - page->bytes) - offset + 1) & ~(size_t)1;
    *ret_node = node;
    return 0;
}

// The nodes fill the end of the page without gaps and do not overlap: LMDB moves them as if it were so.
static int page_check(struct checkpoint_walk *walk, const struct page *page)
{
    uint8_t taken[CHECKPOINT_PAGE_BYTES_MAX / 2] = {0};
    size_t sum = 0;
    for (unsigned i = 0; i < page->count; i++) {
        struct node node;
        int r = node_get(walk, page, i, &node);
        if (r < 0)
            return r;
        if (node.offset + node.size > walk->page_bytes)
            return checkpoint_pages_damaged(walk, page->number, "an entry reaches out of it");
        for (size_t k = node.offset; k < node.offset + node.size; k += 2)
            if (taken[k / 2]++)
                return checkpoint_pages_damaged(walk, page->number, "two of its entries overlap");
        sum += node.size;
    }
    return sum == walk->page_bytes - page->upper
                   ? 0
                   : checkpoint_pages_damaged(walk, page->number, "its bounds do not fit its entries");
}

// Entries

static int key_compare(
        const struct checkpoint_walk *walk, const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size)
{
    if (walk->of_free) { // numbers of 8 bytes, the low byte first
        for (unsigned i = 8; i-- > 0;)
            if (a[i] != b[i])
                return a[i] < b[i] ? -1 : 1;
        return 0;
    }
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order != 0 ? order : a_size < b_size ? -1 : a_size > b_size;
}

static int key_check(struct checkpoint_walk *walk, const struct page *page, const struct node *node)
{
    if (node->key_size == 0 || (walk->of_free && node->key_size != 8))
        return checkpoint_pages_damaged(walk, page->number, "a key has a wrong size");
    if (walk->have_last_key &&
            key_compare(walk, walk->last_key, walk->last_key_size, node->key, node->key_size) >= 0)
        return checkpoint_pages_damaged(walk, page->number, "its keys are not in order");
    memcpy(walk->last_key, node->key, node->key_size);
    walk->last_key_size = node->key_size;
    walk->have_last_key = true;
    return 0;
}

static int free_list_check(struct checkpoint_walk *walk, const struct page *page, const struct node *node,
        uint8_t *value, size_t size)
{
    struct cursor key = cursor_make((uint8_t *)node->key, 8), c = cursor_make(value, size);
    uint64_t transaction = cursor_get_u64(&key), count = cursor_get_u64(&c), before = CHECKPOINT_NO_PAGE;
    if (transaction == 0 || transaction > walk->meta.transaction)
        return checkpoint_pages_damaged(
                walk, page->number, "pages freed by a transaction that was never committed");
    if (size % 8 != 0 || count > size / 8 - 1)
        return checkpoint_pages_damaged(walk, page->number, "a list of free pages has a wrong size");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t number = cursor_get_u64(&c);
        if (number >= before)
            return checkpoint_pages_damaged(walk, page->number, "a list of free pages is not in order");
        before = number;
        int r = page_use(walk, number);
        if (r < 0)
            return r;
        if (number >= walk->file_bytes / walk->page_bytes)
            walk->free_pages++; // of those past the end of the file
    }
    return 0;
}

static int overflow_read(
        struct checkpoint_walk *walk, const struct page *page, const struct node *node, uint8_t **ret_value)
{
    struct cursor c = cursor_make((uint8_t *)node->value, 8);
    uint64_t first = cursor_get_u64(&c),
             run = (CHECKPOINT_PAGE_HEAD - 1 + node->value_size) / walk->page_bytes + 1;
    uint64_t pages = walk->file_bytes / walk->page_bytes;
    if (first >= pages || run > pages - first)
        return checkpoint_pages_damaged(walk, page->number, "an entry names pages outside the file");
    uint8_t *bytes = malloc(run * walk->page_bytes);
    if (bytes == NULL)
        return error_set(walk->err, -ENOMEM, "no memory to read %s", walk->path);
    struct page head;
    int r = page_read(walk, first, bytes, &head);
    if (r == 0 && (head.kind != KIND_OVERFLOW || head.run != run))
        r = checkpoint_pages_damaged(walk, first, "not the run of pages that an entry names");
    for (uint64_t i = 1; r == 0 && i < run; i++)
        r = page_use(walk, first + i);
    if (r == 0 && run > 1)
        r = checkpoint_pages_read_at(
                walk, bytes + walk->page_bytes, (run - 1) * walk->page_bytes, (first + 1) * walk->page_bytes);
    if (r < 0) {
        free(bytes);
        return r;
    }
    walk->seen.overflows += run;
    *ret_value = bytes;
    return 0;
}

static int entry_visit(struct checkpoint_walk *walk, const struct page *page, const struct node *node)
{
    int r = key_check(walk, page, node);
    if (r < 0)
        return r;
    walk->seen.entries++;
    if (!walk->of_free) {
        if (node->flags & NODE_OVERFLOW)
            return checkpoint_pages_damaged(
                    walk, page->number, "an entry is larger than any that this program writes");
        return walk->each(walk->context, node->key, node->key_size, node->value, node->value_size, walk->err);
    }
    if (node->value_size < 8)
        return checkpoint_pages_damaged(walk, page->number, "a list of free pages has a wrong size");
    if (!(node->flags & NODE_OVERFLOW))
        return free_list_check(walk, page, node, (uint8_t *)node->value, node->value_size);
    uint8_t *run = NULL;
    r = overflow_read(walk, page, node, &run);
    if (r < 0)
        return r;
    r = free_list_check(walk, page, node, run + CHECKPOINT_PAGE_HEAD, node->value_size);
    free(run);
    return r;
}

// Trees

struct bounds { // keys of a subtree: low <= key < high; NULL: no bound
    const uint8_t *low, *high;
    size_t low_size, high_size;
};

static int bounds_check(struct checkpoint_walk *walk, const struct page *page, const struct node *node,
        const struct bounds *bounds)
{
    if (walk->of_free && node->key_size != 8)
        return checkpoint_pages_damaged(walk, page->number, "a key has a wrong size");
    if ((bounds->low != NULL &&
                key_compare(walk, node->key, node->key_size, bounds->low, bounds->low_size) < 0) ||
            (bounds->high != NULL &&
                    key_compare(walk, node->key, node->key_size, bounds->high, bounds->high_size) >= 0))
        return checkpoint_pages_damaged(walk, page->number, "a key belongs to another page");
    return 0;
}

static int page_visit(
        struct checkpoint_walk *walk, uint64_t number, unsigned level, const struct bounds *bounds);

static int branch_visit(
        struct checkpoint_walk *walk, const struct page *page, unsigned level, const struct bounds *bounds)
{
    walk->seen.branches++;
    // LMDB insists on two in the main tree.
    if (page->count < (walk->of_free ? 1 : 2))
        return checkpoint_pages_damaged(walk, page->number, "a branch with too few entries");
    struct bounds child = *bounds;
    struct node node, next;
    int r = node_get(walk, page, 0, &node);
    for (unsigned i = 0; r == 0 && i < page->count; i++, node = next) {
        child.high = bounds->high;
        child.high_size = bounds->high_size;
        if (i + 1 < page->count) {
            r = node_get(walk, page, i + 1, &next);
            if (r == 0)
                r = bounds_check(walk, page, &next, bounds);
            if (r < 0)
                return r;
            child.high = next.key;
            child.high_size = next.key_size;
        }
        if (i > 0) {
            child.low = node.key;
            child.low_size = node.key_size;
        }
        r = page_visit(walk, node.child, level + 1, &child);
    }
    return r;
}

static int leaf_visit(struct checkpoint_walk *walk, const struct page *page, const struct bounds *bounds)
{
    walk->seen.leaves++;
    if (page->count == 0)
        return checkpoint_pages_damaged(walk, page->number, "a leaf without entries");
    int r = 0;
    for (unsigned i = 0; r == 0 && i < page->count; i++) {
        struct node node;
        r = node_get(walk, page, i, &node);
        if (r == 0)
            r = bounds_check(walk, page, &node, bounds);
        if (r == 0)
            r = entry_visit(walk, page, &node);
    }
    return r;
}

static int page_visit(
        struct checkpoint_walk *walk, uint64_t number, unsigned level, const struct bounds *bounds)
{
    uint8_t *buffer = malloc(walk->page_bytes);
    if (buffer == NULL)
        return error_set(walk->err, -ENOMEM, "no memory to read %s", walk->path);
    struct page page;
    int r = page_read(walk, number, buffer, &page);
    if (r == 0 && page.kind != (level == walk->tree->depth ? KIND_LEAF : KIND_BRANCH))
        r = checkpoint_pages_damaged(walk, number, "a page of another kind stands here");
    if (r == 0)
        r = page_check(walk, &page);
    if (r == 0)
        r = page.kind == KIND_LEAF ? leaf_visit(walk, &page, bounds)
                                   : branch_visit(walk, &page, level, bounds);
    free(buffer);
    return r;
}

int checkpoint_tree_visit(struct checkpoint_walk *walk, struct checkpoint_tree *tree, bool of_free)
{
    walk->tree = tree;
    walk->of_free = of_free;
    walk->seen = (struct checkpoint_tree){0};
    walk->have_last_key = false;
    struct bounds all = {0};
    int r = tree->root == CHECKPOINT_NO_PAGE ? 0 : page_visit(walk, tree->root, 1, &all);
    if (r < 0)
        return r;
    if (walk->seen.branches != tree->branches || walk->seen.leaves != tree->leaves ||
            walk->seen.overflows != tree->overflows || walk->seen.entries != tree->entries)
        return checkpoint_pages_damaged(walk, walk->meta.page, "its counts do not fit the tree");
    return 0;
}
