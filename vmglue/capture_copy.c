// SPDX-License-Identifier: Apache-2.0
// Dirty pages go into the memory volume in batches: pages with bytes as one scattered write, pages of zeros
// as zero extents, and only where the volume does not read zero already (a cold-booted guest has many pages
// that it only cleared).
#include "vmglue/capture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_PAGES = 512 };

struct capture_copier {
    struct volume *memory;
    struct dirty_pages *dirty;
    char *buffer;                 // BATCH_PAGES pages
    uint64_t blocks[BATCH_PAGES]; // of the batch; later of its pages with bytes
    uint64_t zeros[BATCH_PAGES];
    bool zero[BATCH_PAGES];
    bool holds_data[BATCH_PAGES]; // parallel to zeros: the volume has something else there
    unsigned zero_count;
};

int capture_copy_open(struct volume *memory, struct dirty_pages *dirty, struct capture_copier **ret_copier,
        struct error *err)
{
    struct capture_copier *copier = calloc(1, sizeof *copier);
    if (copier == NULL)
        return error_set(err, -ENOMEM, "no memory to copy a guest's pages with");
    copier->memory = memory;
    copier->dirty = dirty;
    copier->buffer = io_buffer_alloc((size_t)BATCH_PAGES * BLOCK_SIZE);
    *ret_copier = copier;
    return 0;
}

struct capture_copier *capture_copy_close(struct capture_copier *copier)
{
    if (copier != NULL)
        io_buffer_free(copier->buffer);
    free(copier);
    return NULL;
}

static bool mark_data(void *context, uint64_t offset, uint64_t length, enum extent_kind kind)
{
    struct capture_copier *copier = context;
    if (kind != EXTENT_DATA)
        return true;
    for (unsigned i = 0; i < copier->zero_count; i++) {
        uint64_t at = copier->zeros[i] << BLOCK_SHIFT;
        if (at >= offset && at < offset + length)
            copier->holds_data[i] = true;
    }
    return true;
}

static int write_zeros(struct capture_copier *copier)
{
    if (copier->zero_count == 0)
        return 0;
    memset(copier->holds_data, 0, sizeof copier->holds_data);
    uint64_t first = copier->zeros[0], last = copier->zeros[copier->zero_count - 1];
    int result = volume_extents_wait(
            copier->memory, first << BLOCK_SHIFT, (last - first + 1) << BLOCK_SHIFT, mark_data, copier);
    for (unsigned i = 0; i < copier->zero_count && result == 0;) {
        if (!copier->holds_data[i]) {
            i++;
            continue;
        }
        unsigned run = 1;
        while (i + run < copier->zero_count && copier->holds_data[i + run] &&
                copier->zeros[i + run] == copier->zeros[i] + run)
            run++;
        result = volume_zero_wait(
                copier->memory, copier->zeros[i] << BLOCK_SHIFT, (uint64_t)run << BLOCK_SHIFT, false, 0);
        i += run;
    }
    return result;
}

// Moves pages with bytes together at the start of the buffer; the others' numbers go to zeros. Returns how
// many have bytes.
static unsigned sort_batch(struct capture_copier *copier, unsigned count)
{
    unsigned kept = 0;
    copier->zero_count = 0;
    for (unsigned i = 0; i < count; i++) {
        if (copier->zero[i]) {
            copier->zeros[copier->zero_count++] = copier->blocks[i];
            continue;
        }
        if (kept != i)
            memcpy(copier->buffer + (size_t)kept * BLOCK_SIZE, copier->buffer + (size_t)i * BLOCK_SIZE,
                    BLOCK_SIZE);
        copier->blocks[kept++] = copier->blocks[i];
    }
    return kept;
}

int capture_copy_round(struct capture_copier *copier, struct capture_figures *figures, struct error *err)
{
    for (;;) {
        int got = dirty_pages_next(
                copier->dirty, copier->blocks, copier->buffer, copier->zero, BATCH_PAGES, err);
        if (got <= 0)
            return got;
        unsigned kept = sort_batch(copier, (unsigned)got);
        int result = write_zeros(copier);
        if (result == 0 && kept > 0)
            result = volume_write_blocks_wait(copier->memory, copier->blocks, kept, copier->buffer);
        if (result == -ENOSPC)
            return error_set(err, result,
                    "the store has no room for the guest's memory (%u pages more): delete snapshots or "
                    "volumes, or give it a larger log budget",
                    kept);
        if (result < 0)
            return error_set(
                    err, result, "the guest's memory cannot be written to the store: %s", strerror(-result));
        figures->pages += (unsigned)got;
        figures->zero_pages += copier->zero_count;
        figures->bytes += (uint64_t)kept * BLOCK_SIZE;
    }
}
