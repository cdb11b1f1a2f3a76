// SPDX-License-Identifier: Apache-2.0
// See checkpoint_pages.h. The format, as LMDB 0.9 writes it on a little-endian machine of 64 bits:
//
//   page   0 u64 number   8 u16 -   10 u16 kind   12 u16 lower  14 u16 upper (of a run of overflow pages: u32
//   how
//          many)   16 u16 x n offsets of nodes, in order of keys; n = (lower - 16) / 2; nodes fill upper ..
//          end
//   node   0 u32 size of the value   4 u16 flags   6 u16 size of the key   8 key, value; padded to 2 bytes
//          in a branch the first 6 bytes are a page number and there is no value; its first key means
//          nothing. With flag 1 the value is the number of the first of a run of overflow pages.
//   meta   (pages 0 and 1, at 16)   0 u32 magic   4 u32 version   8 u64 address   16 u64 size of the map
//          24 tree of free pages   72 main tree   120 u64 last page   128 u64 transaction
//   tree   0 u32 (free pages: page size; main: 0)   4 u16 flags   6 u16 depth   8 u64 branches   16 u64
//   leaves
//          24 u64 overflow pages   32 u64 entries   40 u64 root
// Transaction N is described by page N % 2, so the two describe N and N - 1. The tree of free pages has
// transaction numbers as keys and, as values, how many pages it freed and their numbers, descending.
#include "blockstore/checkpoint_pages.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAGE_BYTES_MIN = 4096,
    PAGE_BYTES_MAX = 32768,
    PAGE_HEAD = 16,
    NODE_HEAD = 8,
    KIND_BRANCH = 1,
    KIND_LEAF = 2,
    KIND_OVERFLOW = 4,
    KIND_META = 8,
    NODE_OVERFLOW = 1,
    TREE_INTEGER_KEYS = 8,
    DEPTH_MAX = 32, // LMDB's cursors reach no deeper
    META_PAGES = 2,
    META_BYTES = 136,
    META_TRIES = 100,
    KEY_BYTES_MAX = 511,
};
#define META_MAGIC 0xbeefc0deu
#define META_VERSION 1u
#define NO_PAGE UINT64_MAX

struct tree {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branches, leaves, overflows, entries, root;
};

struct meta {
    uint64_t page;
    uint16_t kind;
    uint32_t magic, version;
    uint64_t address, map_bytes;
    struct tree free, main;
    uint64_t last_page, transaction;
};

struct walk {
    int fd;
    const char *path;
    uint64_t file_bytes;
    struct meta meta;
    uint32_t page_bytes;
    uint8_t *used; // bitmap of pages: reached, or in the list of free ones
    struct tree *tree, seen;
    bool of_free;
    uint64_t free_pages;
    uint8_t last_key[KEY_BYTES_MAX];
    size_t last_key_size;
    bool have_last_key;
    checkpoint_pages_callback each;
    void *context;
    struct error *err;
};

static int damaged(struct walk *walk, uint64_t page, const char *what)
{
    return error_set(walk->err, -EBADMSG,
            "%s is damaged at byte %llu (page %llu): %s; put a copy of it back, or rebuild the catalog",
            walk->path, (unsigned long long)(page * walk->page_bytes), (unsigned long long)page, what);
}

static int read_at(struct walk *walk, void *buffer, size_t size, uint64_t offset)
{
    uint8_t *at = buffer;
    while (size > 0) {
        ssize_t n = pread(walk->fd, at, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int code = -errno;
            return error_set(walk->err, code, "cannot read %s at byte %llu: %s", walk->path,
                    (unsigned long long)offset, strerror(-code));
        }
        if (n == 0)
            return error_set(walk->err, -EBADMSG,
                    "%s ends at byte %llu and is cut short; put a copy of it back, or rebuild the catalog",
                    walk->path, (unsigned long long)offset);
        at += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

// Metas

static struct tree tree_get(struct cursor *c)
{
    struct tree tree;
    tree.pad = cursor_get_u32(c);
    tree.flags = cursor_get_u16(c);
    tree.depth = cursor_get_u16(c);
    tree.branches = cursor_get_u64(c);
    tree.leaves = cursor_get_u64(c);
    tree.overflows = cursor_get_u64(c);
    tree.entries = cursor_get_u64(c);
    tree.root = cursor_get_u64(c);
    return tree;
}

static struct meta meta_get(uint8_t bytes[PAGE_HEAD + META_BYTES])
{
    struct cursor c = cursor_make(bytes, PAGE_HEAD + META_BYTES);
    struct meta meta;
    meta.page = cursor_get_u64(&c);
    cursor_get_u16(&c);
    meta.kind = cursor_get_u16(&c);
    cursor_get_u32(&c);
    meta.magic = cursor_get_u32(&c);
    meta.version = cursor_get_u32(&c);
    meta.address = cursor_get_u64(&c);
    meta.map_bytes = cursor_get_u64(&c);
    meta.free = tree_get(&c);
    meta.main = tree_get(&c);
    meta.last_page = cursor_get_u64(&c);
    meta.transaction = cursor_get_u64(&c);
    return meta;
}

static const char *tree_fault(const struct tree *tree, uint16_t flags, uint64_t last_page)
{
    if (tree->flags != flags)
        return "flags that this program never sets";
    if (tree->depth > DEPTH_MAX)
        return "a tree that is too deep";
    if ((tree->root == NO_PAGE) != (tree->depth == 0))
        return "a root that does not fit the depth";
    if (tree->root != NO_PAGE && (tree->root < META_PAGES || tree->root > last_page))
        return "a root outside the file";
    return NULL;
}

static const char *meta_fault(const struct walk *walk, const struct meta *meta, uint64_t page)
{
    uint64_t pages = walk->file_bytes / walk->page_bytes;
    if (meta->page != page || meta->kind != KIND_META)
        return "this is no meta page";
    if (meta->free.pad != walk->page_bytes || meta->main.pad != 0)
        return "the two meta pages tell different page sizes";
    if (meta->address != 0)
        return "an address to map the file at, which this program never sets";
    // The list of free pages may name pages past the end that were never written, but needs space for that.
    if (meta->last_page < META_PAGES - 1 || meta->last_page > pages + walk->file_bytes / 8)
        return "a last page that the file is too short for";
    const char *fault = tree_fault(&meta->free, TREE_INTEGER_KEYS, meta->last_page);
    return fault != NULL ? fault : tree_fault(&meta->main, 0, meta->last_page);
}

static int metas_check(struct walk *walk, const struct meta metas[META_PAGES])
{
    for (uint64_t i = 0; i < META_PAGES; i++) {
        const char *fault = meta_fault(walk, &metas[i], i);
        if (fault != NULL)
            return damaged(walk, i, fault);
    }
    uint64_t even = metas[0].transaction, odd = metas[1].transaction;
    bool fresh = even == 0 && odd == 0;
    if (!fresh && (even % 2 != 0 || odd % 2 != 1 || (odd != even + 1 && even != odd + 1)))
        return damaged(walk, 0, "the two meta pages are not of neighbouring transactions");
    return 0;
}

// Reads both meta pages at one moment: a commit beside us may be writing one.
static int metas_read(struct walk *walk, struct meta ret_metas[META_PAGES])
{
    uint8_t now[META_PAGES][PAGE_HEAD + META_BYTES], before[META_PAGES][PAGE_HEAD + META_BYTES] = {0};
    for (unsigned tries = 0; tries < META_TRIES; tries++) {
        walk->page_bytes = PAGE_BYTES_MIN;
        int r = read_at(walk, now[0], sizeof now[0], 0);
        if (r < 0)
            return r;
        ret_metas[0] = meta_get(now[0]);
        uint32_t size = ret_metas[0].free.pad;
        if (ret_metas[0].magic != META_MAGIC)
            return error_set(walk->err, -EBADMSG,
                    "%s is not a catalog (no LMDB file), or its first page is damaged; put a copy of it "
                    "back, or "
                    "rebuild the catalog",
                    walk->path);
        if (size < PAGE_BYTES_MIN || size > PAGE_BYTES_MAX || (size & (size - 1)) != 0)
            return damaged(walk, 0, "an impossible page size");
        walk->page_bytes = size;
        r = read_at(walk, now[1], sizeof now[1], size);
        if (r < 0)
            return r;
        ret_metas[1] = meta_get(now[1]);
        if (ret_metas[1].magic != META_MAGIC)
            return damaged(walk, 1, "this is no meta page");
        if (ret_metas[0].version != META_VERSION && ret_metas[0].version == ret_metas[1].version)
            return error_set(walk->err, -EPROTO, "%s was written by another version of LMDB (format %u)",
                    walk->path, ret_metas[0].version);
        if (ret_metas[0].version != ret_metas[1].version)
            return damaged(walk, 0, "the two meta pages tell different versions");
        if (memcmp(now, before, sizeof now) == 0)
            return 0;
        memcpy(before, now, sizeof now);
    }
    return error_set(walk->err, -ESTALE, "%s is being written all the time", walk->path);
}

// Pages

static int page_use(struct walk *walk, uint64_t page)
{
    if (page < META_PAGES || page > walk->meta.last_page)
        return damaged(walk, page, "this page is named, but outside the file");
    uint8_t *byte = &walk->used[page / 8], bit = (uint8_t)(1u << page % 8);
    if (*byte & bit)
        return damaged(walk, page, "this page is used twice");
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

static int page_read(struct walk *walk, uint64_t number, uint8_t *buffer, struct page *ret_page)
{
    int r = page_use(walk, number);
    if (r < 0)
        return r;
    r = read_at(walk, buffer, walk->page_bytes, number * walk->page_bytes);
    if (r < 0)
        return r;
    struct cursor c = cursor_make(buffer, PAGE_HEAD);
    struct page page = {.bytes = buffer};
    page.number = cursor_get_u64(&c);
    cursor_get_u16(&c);
    page.kind = cursor_get_u16(&c);
    struct cursor run = c;
    page.run = cursor_get_u32(&run);
    page.lower = cursor_get_u16(&c);
    page.upper = cursor_get_u16(&c);
    if (page.number != number)
        return damaged(walk, number, "another page stands here");
    if (page.kind != KIND_OVERFLOW) {
        if (page.lower < PAGE_HEAD || page.lower % 2 != 0 || page.upper < page.lower ||
                page.upper > walk->page_bytes)
            return damaged(walk, number, "its bounds are impossible");
        page.count = (page.lower - PAGE_HEAD) / 2u;
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

static int node_get(struct walk *walk, const struct page *page, unsigned i, struct node *ret_node)
{
    struct cursor offsets = cursor_make(page->bytes + PAGE_HEAD + 2 * (size_t)i, 2);
    size_t offset = cursor_get_u16(&offsets);
    if (offset < page->upper || offset % 2 != 0 || offset + NODE_HEAD > walk->page_bytes)
        return damaged(walk, page->number, "an entry lies outside of it");
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
            return damaged(walk, page->number, "an entry has unknown flags");
    }
    if (c.bad || node.key_size > KEY_BYTES_MAX)
        return damaged(walk, page->number, "an entry reaches out of it");
    node.size = ((size_t)(c.at - page->bytes) - offset + 1) & ~(size_t)1;
    *ret_node = node;
    return 0;
}

// The nodes fill the end of the page without gaps and do not overlap: LMDB moves them as if it were so.
static int page_check(struct walk *walk, const struct page *page)
{
    uint8_t taken[PAGE_BYTES_MAX / 2] = {0};
    size_t sum = 0;
    for (unsigned i = 0; i < page->count; i++) {
        struct node node;
        int r = node_get(walk, page, i, &node);
        if (r < 0)
            return r;
        if (node.offset + node.size > walk->page_bytes)
            return damaged(walk, page->number, "an entry reaches out of it");
        for (size_t k = node.offset; k < node.offset + node.size; k += 2)
            if (taken[k / 2]++)
                return damaged(walk, page->number, "two of its entries overlap");
        sum += node.size;
    }
    return sum == walk->page_bytes - page->upper
                   ? 0
                   : damaged(walk, page->number, "its bounds do not fit its entries");
}

// Entries

static int key_compare(
        const struct walk *walk, const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size)
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

static int key_check(struct walk *walk, const struct page *page, const struct node *node)
{
    if (node->key_size == 0 || (walk->of_free && node->key_size != 8))
        return damaged(walk, page->number, "a key has a wrong size");
    if (walk->have_last_key &&
            key_compare(walk, walk->last_key, walk->last_key_size, node->key, node->key_size) >= 0)
        return damaged(walk, page->number, "its keys are not in order");
    memcpy(walk->last_key, node->key, node->key_size);
    walk->last_key_size = node->key_size;
    walk->have_last_key = true;
    return 0;
}

static int free_list_check(
        struct walk *walk, const struct page *page, const struct node *node, uint8_t *value, size_t size)
{
    struct cursor key = cursor_make((uint8_t *)node->key, 8), c = cursor_make(value, size);
    uint64_t transaction = cursor_get_u64(&key), count = cursor_get_u64(&c), before = NO_PAGE;
    if (transaction == 0 || transaction > walk->meta.transaction)
        return damaged(walk, page->number, "pages freed by a transaction that was never committed");
    if (size % 8 != 0 || count > size / 8 - 1)
        return damaged(walk, page->number, "a list of free pages has a wrong size");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t number = cursor_get_u64(&c);
        if (number >= before)
            return damaged(walk, page->number, "a list of free pages is not in order");
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
        struct walk *walk, const struct page *page, const struct node *node, uint8_t **ret_value)
{
    struct cursor c = cursor_make((uint8_t *)node->value, 8);
    uint64_t first = cursor_get_u64(&c), run = (PAGE_HEAD - 1 + node->value_size) / walk->page_bytes + 1;
    uint64_t pages = walk->file_bytes / walk->page_bytes;
    if (first >= pages || run > pages - first)
        return damaged(walk, page->number, "an entry names pages outside the file");
    uint8_t *bytes = malloc(run * walk->page_bytes);
    if (bytes == NULL)
        return error_set(walk->err, -ENOMEM, "no memory to read %s", walk->path);
    struct page head;
    int r = page_read(walk, first, bytes, &head);
    if (r == 0 && (head.kind != KIND_OVERFLOW || head.run != run))
        r = damaged(walk, first, "not the run of pages that an entry names");
    for (uint64_t i = 1; r == 0 && i < run; i++)
        r = page_use(walk, first + i);
    if (r == 0 && run > 1)
        r = read_at(
                walk, bytes + walk->page_bytes, (run - 1) * walk->page_bytes, (first + 1) * walk->page_bytes);
    if (r < 0) {
        free(bytes);
        return r;
    }
    walk->seen.overflows += run;
    *ret_value = bytes;
    return 0;
}

static int entry_visit(struct walk *walk, const struct page *page, const struct node *node)
{
    int r = key_check(walk, page, node);
    if (r < 0)
        return r;
    walk->seen.entries++;
    if (!walk->of_free) {
        if (node->flags & NODE_OVERFLOW)
            return damaged(walk, page->number, "an entry is larger than any that this program writes");
        return walk->each(walk->context, node->key, node->key_size, node->value, node->value_size, walk->err);
    }
    if (node->value_size < 8)
        return damaged(walk, page->number, "a list of free pages has a wrong size");
    if (!(node->flags & NODE_OVERFLOW))
        return free_list_check(walk, page, node, (uint8_t *)node->value, node->value_size);
    uint8_t *run = NULL;
    r = overflow_read(walk, page, node, &run);
    if (r < 0)
        return r;
    r = free_list_check(walk, page, node, run + PAGE_HEAD, node->value_size);
    free(run);
    return r;
}

// Trees

struct bounds { // keys of a subtree: low <= key < high; NULL: no bound
    const uint8_t *low, *high;
    size_t low_size, high_size;
};

static int bounds_check(
        struct walk *walk, const struct page *page, const struct node *node, const struct bounds *bounds)
{
    if (walk->of_free && node->key_size != 8)
        return damaged(walk, page->number, "a key has a wrong size");
    if ((bounds->low != NULL &&
                key_compare(walk, node->key, node->key_size, bounds->low, bounds->low_size) < 0) ||
            (bounds->high != NULL &&
                    key_compare(walk, node->key, node->key_size, bounds->high, bounds->high_size) >= 0))
        return damaged(walk, page->number, "a key belongs to another page");
    return 0;
}

static int page_visit(struct walk *walk, uint64_t number, unsigned level, const struct bounds *bounds);

static int branch_visit(
        struct walk *walk, const struct page *page, unsigned level, const struct bounds *bounds)
{
    walk->seen.branches++;
    // LMDB insists on two in the main tree.
    if (page->count < (walk->of_free ? 1 : 2))
        return damaged(walk, page->number, "a branch with too few entries");
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

static int leaf_visit(struct walk *walk, const struct page *page, const struct bounds *bounds)
{
    walk->seen.leaves++;
    if (page->count == 0)
        return damaged(walk, page->number, "a leaf without entries");
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

static int page_visit(struct walk *walk, uint64_t number, unsigned level, const struct bounds *bounds)
{
    uint8_t *buffer = malloc(walk->page_bytes);
    if (buffer == NULL)
        return error_set(walk->err, -ENOMEM, "no memory to read %s", walk->path);
    struct page page;
    int r = page_read(walk, number, buffer, &page);
    if (r == 0 && page.kind != (level == walk->tree->depth ? KIND_LEAF : KIND_BRANCH))
        r = damaged(walk, number, "a page of another kind stands here");
    if (r == 0)
        r = page_check(walk, &page);
    if (r == 0)
        r = page.kind == KIND_LEAF ? leaf_visit(walk, &page, bounds)
                                   : branch_visit(walk, &page, level, bounds);
    free(buffer);
    return r;
}

static int tree_visit(struct walk *walk, struct tree *tree, bool of_free)
{
    walk->tree = tree;
    walk->of_free = of_free;
    walk->seen = (struct tree){0};
    walk->have_last_key = false;
    struct bounds all = {0};
    int r = tree->root == NO_PAGE ? 0 : page_visit(walk, tree->root, 1, &all);
    if (r < 0)
        return r;
    if (walk->seen.branches != tree->branches || walk->seen.leaves != tree->leaves ||
            walk->seen.overflows != tree->overflows || walk->seen.entries != tree->entries)
        return damaged(walk, walk->meta.page, "its counts do not fit the tree");
    return 0;
}

static int state_visit(struct walk *walk)
{
    struct meta *meta = &walk->meta;
    uint64_t pages = walk->file_bytes / walk->page_bytes, past = 0;
    int r = tree_visit(walk, &meta->main, false);
    if (r == 0)
        r = tree_visit(walk, &meta->free, true);
    if (meta->last_page >= pages)
        past = meta->last_page + 1 - pages;
    if (r == 0 && walk->free_pages != past)
        return damaged(walk, pages, "the file ends before pages that are in use");
    return r;
}

static uint64_t newest_of(const struct meta metas[META_PAGES])
{
    return metas[0].transaction > metas[1].transaction ? metas[0].transaction : metas[1].transaction;
}

int checkpoint_pages_read(int fd, const char *path, bool older, checkpoint_pages_callback each, void *context,
        struct checkpoint_pages_state *ret_state, struct error *err)
{
    struct walk walk = {.fd = fd, .path = path, .each = each, .context = context, .err = err};
    struct meta metas[META_PAGES];
    int r = metas_read(&walk, metas);
    if (r < 0)
        return r;
    // After the metas: what they describe had been written before them.
    struct stat stat;
    if (fstat(fd, &stat) < 0) {
        r = -errno;
        return error_set(err, r, "cannot look at %s: %s", path, strerror(-r));
    }
    walk.file_bytes = (uint64_t)stat.st_size;
    r = metas_check(&walk, metas);
    if (r == 0) {
        walk.meta = metas[(metas[0].transaction < metas[1].transaction) ^ older];
        walk.used = calloc(walk.meta.last_page / 8 + 1, 1);
        r = walk.used == NULL ? error_set(err, -ENOMEM, "no memory to read %s", path) : state_visit(&walk);
        free(walk.used);
    }
    int again = metas_read(&walk, metas);
    if (again < 0)
        return again;
    if (newest_of(metas) > walk.meta.transaction + 1)
        return error_set(err, -ESTALE, "%s was written over while it was read", path);
    if (r == 0)
        *ret_state =
                (struct checkpoint_pages_state){walk.meta.transaction, walk.meta.last_page, walk.page_bytes};
    return r;
}
