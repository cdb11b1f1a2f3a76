// SPDX-License-Identifier: Apache-2.0
// Reads: one lookup per run of blocks, one read of log or segment per run that lies together, all at once.
// Where a lookup meets a sealed node that is not in memory, the node is loaded and the rest of the range is
// looked up then, in the tree as it is then: a read that is under way may see later writes or not. Partial
// blocks at the ends go through a bounce buffer.
//
// A place that was looked up is read at once, within the same callback, so that it is still there: the log
// pins its file, segments pin a segment, before any other loop can take back what it was replaced with.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct read_piece {
    union {
        struct log_read log;
        struct segment_read segment;
    } read;
    struct read_state *state;
    void *bounce;         // whole blocks, when the caller's range has only a part of them
    uint64_t skip, bytes; // of the bounce buffer
    char *target;
};

struct read_state {
    struct volume_lookup lookup;
    struct volume_io *io;
    const struct tree *tree;
    uint64_t at, end; // bytes, still to be looked up
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

static void piece_end(struct read_piece *piece, int result)
{
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

static void log_piece_done(struct log_read *read, int result)
{
    piece_end((struct read_piece *)read, result);
}

static void segment_piece_done(struct segment_read *read, int result)
{
    piece_end((struct read_piece *)read, result == -ENOENT ? -EBADMSG : result);
}

static void piece_start(struct read_state *state, locator_t first, uint64_t at, uint64_t stop, char *target)
{
    struct store *store = state->lookup.store;
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
    state->left++;
    if (locator_is_log(first)) {
        piece->read.log = (struct log_read){.loop = state->lookup.loop,
                .first = first,
                .count = (uint32_t)(end - block),
                .buffer = whole ? target : piece->bounce,
                .direct = (state->io->flags & VOLUME_DIRECT) != 0,
                .done = log_piece_done};
        log_read(store->log, &piece->read.log);
    } else if (store->segments == NULL) {
        piece_end(piece, -EBADMSG); // a sealed block in a store without segments
    } else {
        piece->read.segment = (struct segment_read){.loop = state->lookup.loop,
                .first = first,
                .count = (uint32_t)(end - block),
                .buffer = whole ? target : piece->bounce,
                .done = segment_piece_done};
        segment_read(store->segments, &piece->read.segment);
    }
}

static void look_up(struct read_state *state)
{
    struct volume_io *io = state->io;
    while (state->at < state->end) {
        uint64_t block = state->at >> BLOCK_SHIFT, count, want = volume_blocks_of(state->end) - block;
        locator_t first, missing;
        if (want > READ_RUN_BLOCKS)
            want = READ_RUN_BLOCKS;
        int r = tree_get(&state->lookup.store->space, state->tree, block, want, &first, &count, &missing);
        if (r == -EAGAIN) {
            r = volume_lookup_load(&state->lookup, missing);
            if (r == 0)
                return;
        }
        if (r < 0) {
            if (state->result == 0)
                state->result = r;
            break;
        }
        uint64_t stop = (block + count) << BLOCK_SHIFT;
        stop = stop < state->end ? stop : state->end;
        char *target = (char *)io->buffer + (state->at - io->offset);
        if (first == LOCATOR_ZERO || first == LOCATOR_UNMAPPED)
            memset(target, 0, stop - state->at);
        else
            piece_start(state, first, state->at, stop, target);
        state->at = stop;
    }
    state_put(state);
}

static void look_again(struct volume_lookup *lookup)
{
    look_up((struct read_state *)lookup);
}

void volume_read_start(struct store *store, struct loop *loop, const struct tree *tree, struct volume_io *io)
{
    struct read_state *state = malloc(sizeof *state);
    if (state == NULL)
        abort();
    state->lookup.store = store;
    state->lookup.loop = loop;
    state->lookup.again = look_again;
    state->lookup.failed = LOCATOR_UNMAPPED;
    state->io = io;
    state->tree = tree;
    state->at = io->offset;
    state->end = io->offset + io->length;
    state->left = 1;
    state->result = 0;
    state->first.state = NULL;
    look_up(state);
}
