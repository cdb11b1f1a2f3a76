// SPDX-License-Identifier: Apache-2.0
// Reads: one lookup per run of blocks, one log read per run of log blocks, all at once. Partial blocks at the
// ends go through a bounce buffer.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct read_piece {
    struct log_read read;
    struct read_state *state;
    void *bounce;         // whole blocks, when the caller's range has only a part of them
    uint64_t skip, bytes; // of the bounce buffer
    char *target;
};

struct read_state {
    struct volume_io *io;
    unsigned left;
    int result;
    struct read_piece first; // the common case needs no second allocation
};

enum { READ_RUN_BLOCKS = 256 };

static void state_put(struct read_state *state)
{
    if (--state->left > 0)
        return;
    struct volume_io *io = state->io;
    int result = state->result;
    free(state);
    volume_finish(io, result);
}

static void piece_done(struct log_read *read, int result)
{
    struct read_piece *piece = (struct read_piece *)read;
    struct read_state *state = piece->state;
    if (result < 0 && state->result == 0)
        state->result = result;
    if (piece->bounce != NULL) {
        if (result == 0)
            memcpy(piece->target, (char *)piece->bounce + piece->skip, piece->bytes);
        io_buffer_free(piece->bounce);
    }
    if (piece != &state->first)
        free(piece);
    state_put(state);
}

static void piece_start(struct store *store, struct loop *loop, struct read_state *state, locator_t first,
        uint64_t at, uint64_t stop, char *target)
{
    struct read_piece *piece = &state->first;
    if (piece->state != NULL && (piece = calloc(1, sizeof *piece)) == NULL)
        abort();
    uint64_t block = at >> BLOCK_SHIFT, end = (stop + BLOCK_SIZE - 1) >> BLOCK_SHIFT;
    bool whole = (at & (BLOCK_SIZE - 1)) == 0 && (stop & (BLOCK_SIZE - 1)) == 0;
    piece->state = state;
    piece->target = target;
    piece->skip = at & (BLOCK_SIZE - 1);
    piece->bytes = stop - at;
    piece->bounce = whole ? NULL : io_buffer_alloc((end - block) << BLOCK_SHIFT);
    piece->read = (struct log_read){.loop = loop,
            .first = first,
            .count = (uint32_t)(end - block),
            .buffer = whole ? target : piece->bounce,
            .direct = (state->io->flags & VOLUME_DIRECT) != 0,
            .done = piece_done};
    state->left++;
    log_read(store->log, &piece->read);
}

void volume_read_start(struct store *store, struct loop *loop, const struct tree *tree, uint64_t size_bytes,
        struct volume_io *io)
{
    struct read_state *state = malloc(sizeof *state);
    if (state == NULL)
        abort();
    state->io = io;
    state->left = 1;
    state->result = 0;
    state->first.state = NULL;
    uint64_t at = io->offset, end = io->offset + io->length;
    while (at < end) {
        uint64_t block = at >> BLOCK_SHIFT, count, want = volume_blocks_of(end) - block;
        if (want > READ_RUN_BLOCKS)
            want = READ_RUN_BLOCKS;
        locator_t first, missing;
        int r = tree_get(&store->space, tree, block, want, &first, &count, &missing);
        if (r < 0 || locator_is_segment(first)) {
            state->result = -EIO;
            break;
        }
        uint64_t stop = (block + count) << BLOCK_SHIFT;
        stop = stop < end ? stop : end;
        char *target = (char *)io->buffer + (at - io->offset);
        if (locator_is_log(first))
            piece_start(store, loop, state, first, at, stop, target);
        else
            memset(target, 0, stop - at);
        at = stop;
    }
    state_put(state);
}
