// SPDX-License-Identifier: Apache-2.0
// Bringing pages into the page cache before anybody asks for them. A VM that waits for a page comes first:
// pieces are small, and each waits a little while READs are being answered.
#include "vmglue/mem_fuse_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 256 << 10,
    JOIN_BYTES = 32 << 10, // smaller holes are fetched along: one call less
    YIELD_MS = 5,
    PAGE_BYTES = 4096
};

struct prefetch {
    struct mem_fuse *fuse;
    struct base *base;
    struct base_id id;
    int fd;
    const atomic_bool *cancel;
    char *buffer; // PIECE_BYTES
    uint64_t stored;
};

// Whether the page cache has all of a range, or is just getting it (Linux 6.5; before, nothing counts as
// cached).
static bool is_cached(int fd, uint64_t offset, uint64_t length)
{
    enum { CACHESTAT = 451 };
    struct {
        uint64_t offset, length;
    } range = {offset, length};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } found;
    return syscall(CACHESTAT, fd, &range, &found, 0) == 0 &&
           found.cached >= (length + PAGE_BYTES - 1) / PAGE_BYTES;
}

static int store_piece(struct prefetch *prefetch, uint64_t offset, uint64_t length)
{
    int result = base_read_wait(prefetch->base, offset, prefetch->buffer, length);
    if (result == 0)
        result = mem_fuse_put_pages(prefetch->fuse, prefetch->id, offset, prefetch->buffer, length);
    if (result == 0)
        prefetch->stored += length;
    return result;
}

static bool is_cancelled(const struct prefetch *prefetch)
{
    return prefetch->cancel != NULL && atomic_load(prefetch->cancel);
}

// [offset, end), whole pages except at the image's end.
static int fetch(struct prefetch *prefetch, uint64_t offset, uint64_t end)
{
    int result = 0;
    for (uint64_t at = offset; at < end && result == 0;) {
        uint64_t length = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;
        if (is_cancelled(prefetch))
            return -ECANCELED;
        if (!is_cached(prefetch->fd, at, length)) {
            mem_fuse_let_readers_go(prefetch->fuse, YIELD_MS);
            result = store_piece(prefetch, at, length);
        }
        at += length;
    }
    return result;
}

// Rounded outwards to whole pages, cut at the image's end.
static struct working_set_range clip(struct working_set_range range, uint64_t size)
{
    uint64_t start = range.offset / PAGE_BYTES * PAGE_BYTES;
    uint64_t end =
            range.length > size || range.offset > size - range.length ? size : range.offset + range.length;
    end = end + PAGE_BYTES - 1 < size ? (end + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : size;
    return (struct working_set_range){start, start < end ? end - start : 0};
}

// Ranges that come right after another are fetched as one.
static int fetch_all(struct prefetch *prefetch, const struct working_set_range *ranges, unsigned count)
{
    uint64_t size = base_size_bytes(prefetch->base);
    int result = 0;
    for (unsigned i = 0; i < count && result == 0;) {
        struct working_set_range first = clip(ranges[i], size);
        uint64_t end = first.offset + first.length;
        for (i++; i < count; i++) {
            struct working_set_range next = clip(ranges[i], size);
            if (next.offset < end || next.offset - end > JOIN_BYTES ||
                    next.offset + next.length - first.offset > PIECE_BYTES)
                break;
            end = next.offset + next.length;
        }
        if (first.length > 0)
            result = fetch(prefetch, first.offset, end);
    }
    return result;
}

int mem_fuse_prefetch(struct mem_fuse *fuse, struct base_id image, const struct working_set_range *ranges,
        unsigned count, const atomic_bool *cancel, uint64_t *ret_stored_bytes, struct error *err)
{
    struct prefetch prefetch = {.fuse = fuse, .id = image, .cancel = cancel};
    int result = base_open(mem_fuse_store(fuse), image, &prefetch.base);
    if (result < 0)
        return error_set(err, result, "there is no base %llu to prefetch", (unsigned long long)image.value);
    // The kernel must know the inode; an open file keeps it.
    char path[4200];
    snprintf(path, sizeof path, "%s/%llu", mem_fuse_mountpoint(fuse), (unsigned long long)image.value);
    prefetch.fd = open(path, O_RDONLY | O_CLOEXEC);
    result = prefetch.fd < 0 ? -errno : 0;
    prefetch.buffer = io_buffer_alloc(PIECE_BYTES);
    if (result == 0)
        result = fetch_all(&prefetch, ranges, count);
    io_buffer_free(prefetch.buffer);
    if (prefetch.fd >= 0)
        close(prefetch.fd);
    base_close(prefetch.base);
    if (ret_stored_bytes != NULL)
        *ret_stored_bytes = prefetch.stored;
    if (result < 0)
        return error_set(err, result, "cannot prefetch %s: %s", path, strerror(-result));
    return 0;
}
