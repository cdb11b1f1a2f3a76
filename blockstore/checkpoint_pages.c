// SPDX-License-Identifier: Apache-2.0
#include "blockstore/checkpoint_pages_private.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KIND_META = 8, TREE_INTEGER_KEYS = 8, META_TRIES = 100 };
#define META_MAGIC 0xbeefc0deu
#define META_VERSION 1u

int checkpoint_pages_damaged(struct checkpoint_walk *walk, uint64_t page, const char *what)
{
    return error_set(walk->err, -EBADMSG,
            "%s is damaged at byte %llu (page %llu): %s; put a copy of it back, or rebuild the catalog",
            walk->path, (unsigned long long)(page * walk->page_bytes), (unsigned long long)page, what);
}

int checkpoint_pages_read_at(struct checkpoint_walk *walk, void *buffer, size_t size, uint64_t offset)
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

static struct checkpoint_tree tree_get(struct cursor *c)
{
    struct checkpoint_tree tree;
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

static struct checkpoint_meta meta_get(uint8_t bytes[CHECKPOINT_PAGES_META_BYTES])
{
    struct cursor c = cursor_make(bytes, CHECKPOINT_PAGES_META_BYTES);
    struct checkpoint_meta meta;
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

static const char *tree_fault(const struct checkpoint_tree *tree, uint16_t flags, uint64_t last_page)
{
    if (tree->flags != flags)
        return "flags that this program never sets";
    if (tree->depth > CHECKPOINT_DEPTH_MAX)
        return "a tree that is too deep";
    if ((tree->root == CHECKPOINT_NO_PAGE) != (tree->depth == 0))
        return "a root that does not fit the depth";
    if (tree->root != CHECKPOINT_NO_PAGE && (tree->root < CHECKPOINT_META_PAGES || tree->root > last_page))
        return "a root outside the file";
    return NULL;
}

static const char *meta_fault(
        const struct checkpoint_walk *walk, const struct checkpoint_meta *meta, uint64_t page)
{
    uint64_t pages = walk->file_bytes / walk->page_bytes;
    if (meta->page != page || meta->kind != KIND_META)
        return "this is no meta page";
    if (meta->free.pad != walk->page_bytes || meta->main.pad != 0)
        return "the two meta pages tell different page sizes";
    if (meta->address != 0)
        return "an address to map the file at, which this program never sets";
    // The list of free pages may name pages past the end that were never written, but needs space for that.
    if (meta->last_page < CHECKPOINT_META_PAGES - 1 || meta->last_page > pages + walk->file_bytes / 8)
        return "a last page that the file is too short for";
    const char *fault = tree_fault(&meta->free, TREE_INTEGER_KEYS, meta->last_page);
    return fault != NULL ? fault : tree_fault(&meta->main, 0, meta->last_page);
}

static int metas_check(
        struct checkpoint_walk *walk, const struct checkpoint_meta metas[CHECKPOINT_META_PAGES])
{
    for (uint64_t i = 0; i < CHECKPOINT_META_PAGES; i++) {
        const char *fault = meta_fault(walk, &metas[i], i);
        if (fault != NULL)
            return checkpoint_pages_damaged(walk, i, fault);
    }
    uint64_t even = metas[0].transaction, odd = metas[1].transaction;
    bool fresh = even == 0 && odd == 0;
    if (!fresh && (even % 2 != 0 || odd % 2 != 1 || (odd != even + 1 && even != odd + 1)))
        return checkpoint_pages_damaged(walk, 0, "the two meta pages are not of neighbouring transactions");
    return 0;
}

static int metas_read_once(struct checkpoint_walk *walk, struct checkpoint_meta metas[CHECKPOINT_META_PAGES])
{
    walk->page_bytes = CHECKPOINT_PAGE_BYTES_MIN;
    int r = checkpoint_pages_read_at(walk, walk->metas[0], sizeof walk->metas[0], 0);
    if (r < 0)
        return r;
    metas[0] = meta_get(walk->metas[0]);
    uint32_t size = metas[0].free.pad;
    if (metas[0].magic != META_MAGIC)
        return error_set(walk->err, -EBADMSG,
                "%s is not a catalog (no LMDB file), or its first page is damaged; put a copy of it back, or "
                "rebuild the catalog",
                walk->path);
    if (size < CHECKPOINT_PAGE_BYTES_MIN || size > CHECKPOINT_PAGE_BYTES_MAX || (size & (size - 1)) != 0)
        return checkpoint_pages_damaged(walk, 0, "an impossible page size");
    walk->page_bytes = size;
    r = checkpoint_pages_read_at(walk, walk->metas[1], sizeof walk->metas[1], size);
    if (r < 0)
        return r;
    metas[1] = meta_get(walk->metas[1]);
    if (metas[1].magic != META_MAGIC)
        return checkpoint_pages_damaged(walk, 1, "this is no meta page");
    if (metas[0].version != metas[1].version)
        return checkpoint_pages_damaged(walk, 0, "the two meta pages tell different versions");
    if (metas[0].version != META_VERSION)
        return error_set(walk->err, -EPROTO, "%s was written by another version of LMDB (format %u)",
                walk->path, metas[0].version);
    return 0;
}

// Reads both meta pages at one moment: a commit beside us may be writing one.
static int metas_read(struct checkpoint_walk *walk, struct checkpoint_meta ret_metas[CHECKPOINT_META_PAGES])
{
    uint8_t before[sizeof walk->metas] = {0};
    for (unsigned tries = 0; tries < META_TRIES; tries++) {
        int r = metas_read_once(walk, ret_metas);
        if (r < 0 || memcmp(walk->metas, before, sizeof before) == 0)
            return r;
        memcpy(before, walk->metas, sizeof before);
    }
    return error_set(walk->err, -ESTALE, "%s is being written all the time", walk->path);
}

static int state_visit(struct checkpoint_walk *walk)
{
    struct checkpoint_meta *meta = &walk->meta;
    uint64_t pages = walk->file_bytes / walk->page_bytes, past = 0;
    int r = checkpoint_tree_visit(walk, &meta->main, false);
    if (r == 0)
        r = checkpoint_tree_visit(walk, &meta->free, true);
    if (meta->last_page >= pages)
        past = meta->last_page + 1 - pages;
    if (r == 0 && walk->free_pages != past)
        return checkpoint_pages_damaged(walk, pages, "the file ends before pages that are in use");
    return r;
}

static uint64_t newest_of(const struct checkpoint_meta metas[CHECKPOINT_META_PAGES])
{
    return metas[0].transaction > metas[1].transaction ? metas[0].transaction : metas[1].transaction;
}

int checkpoint_pages_read(int fd, const char *path, bool older, checkpoint_pages_callback each, void *context,
        struct checkpoint_pages_state *ret_state, struct error *err)
{
    struct checkpoint_walk walk = {.fd = fd, .path = path, .each = each, .context = context, .err = err};
    struct checkpoint_meta metas[CHECKPOINT_META_PAGES];
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
    if (r < 0)
        return r;
    walk.meta = metas[(metas[0].transaction < metas[1].transaction) ^ older];
    walk.used = calloc(walk.meta.last_page / 8 + 1, 1);
    if (walk.used == NULL)
        return error_set(err, -ENOMEM, "no memory to read %s", path);
    struct checkpoint_pages_state state = {
            .transaction = walk.meta.transaction, .page_bytes = walk.page_bytes};
    memcpy(state.metas, walk.metas, sizeof state.metas);
    r = state_visit(&walk);
    free(walk.used);
    int again = metas_read(&walk, metas);
    if (again < 0)
        return again;
    if (newest_of(metas) > walk.meta.transaction + 1)
        return error_set(err, -ESTALE, "%s was written over while it was read", path);
    if (r == 0)
        *ret_state = state;
    return r;
}

int checkpoint_pages_restore(
        int fd, const char *path, const struct checkpoint_pages_state *state, struct error *err)
{
    unsigned page = (state->transaction + 1) % CHECKPOINT_META_PAGES;
    const uint8_t *was = state->metas[page];
    const size_t size = sizeof state->metas[page];
    uint8_t is[sizeof state->metas[page]];
    off_t at = (off_t)(page * state->page_bytes);
    if (pread(fd, is, size, at) == (ssize_t)size && memcmp(is, was, size) == 0)
        return 0;
    ssize_t n = pwrite(fd, was, size, at);
    int r = n < 0 || fdatasync(fd) < 0 ? -errno : (size_t)n < size ? -EIO : 0;
    return r < 0 ? error_set(err, r, "cannot put back a page of %s: %s", path, strerror(-r)) : 0;
}
