// SPDX-License-Identifier: Apache-2.0
// What differs between two bases. The trees say where (tree_diff_next); where both hold bytes in different
// places these are read and compared, a piece at a time. Each step on the loop is bounded, and so is the
// memory: two buffers.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_PER_TURN = 16, COMPARE_BLOCKS = 64 };

struct diff_state {
    struct volume_lookup lookup;
    struct loop_work work;
    struct base_diff *call;
    uint64_t at, end;    // blocks: what comes next, and where both bases end
    uint64_t size_bytes; // of the larger base
    uint64_t run_end;    // [at, run_end) differ by place
    locator_t run_now;   // the first of it in the newer one
    // A comparison under way:
    struct volume_io reads[2];
    char *buffers[2];
    unsigned left;
    int result;
    uint64_t compared; // blocks
};

static void finish(struct diff_state *state, int result, bool finished)
{
    struct base_diff *call = state->call;
    call->finished = finished;
    call->next_offset = finished ? state->size_bytes : state->at << BLOCK_SHIFT;
    io_buffer_free(state->buffers[0]);
    io_buffer_free(state->buffers[1]);
    free(state);
    call->done(call, result);
}

static enum extent_kind kind_of(locator_t locator)
{
    return locator == LOCATOR_UNMAPPED ? EXTENT_UNMAPPED
           : locator == LOCATOR_ZERO   ? EXTENT_ZERO
                                       : EXTENT_DATA;
}

// False: no room is left.
static bool report(struct diff_state *state, uint64_t block, uint64_t count, enum extent_kind kind)
{
    struct base_diff *call = state->call;
    uint64_t offset = block << BLOCK_SHIFT, end = (block + count) << BLOCK_SHIFT;
    end = end < state->size_bytes ? end : state->size_bytes;
    struct volume_extent *last = call->count > 0 ? &call->extents[call->count - 1] : NULL;
    if (last != NULL && last->kind == kind && last->offset + last->length == offset) {
        last->length += end - offset;
        return true;
    }
    if (call->count == call->capacity)
        return false;
    call->extents[call->count++] =
            (struct volume_extent){.offset = offset, .length = end - offset, .kind = kind};
    return true;
}

static void go_on(struct diff_state *state);

// ---- Comparing bytes ----

static void compare_end(struct diff_state *state)
{
    if (--state->left > 0)
        return;
    if (state->result < 0) {
        finish(state, state->result, false);
        return;
    }
    uint64_t stop = state->at + state->compared;
    for (const char *a = state->buffers[0], *b = state->buffers[1]; state->at < stop;
            state->at++, a += BLOCK_SIZE, b += BLOCK_SIZE)
        if (memcmp(a, b, BLOCK_SIZE) != 0 && !report(state, state->at, 1, kind_of(state->run_now))) {
            finish(state, 0, false);
            return;
        }
    loop_post(state->lookup.loop, &state->work);
}

static void compare_read(struct volume_io *io, int result)
{
    struct diff_state *state = io->context;
    if (result < 0 && state->result == 0)
        state->result = result;
    compare_end(state);
}

static void read_side(struct diff_state *state, unsigned side, struct base *base)
{
    uint64_t offset = state->at << BLOCK_SHIFT, length = state->compared << BLOCK_SHIFT,
             size = base_size_bytes(base), there = size > offset ? size - offset : 0;
    if (state->buffers[side] == NULL)
        state->buffers[side] = io_buffer_alloc(COMPARE_BLOCKS << BLOCK_SHIFT);
    if (there < length)
        memset(state->buffers[side] + there, 0, length - there);
    state->reads[side] = (struct volume_io){.op = VOLUME_READ,
            .offset = offset,
            .length = there < length ? there : length,
            .buffer = state->buffers[side],
            .done = compare_read,
            .context = state};
    if (there > 0)
        base_submit(base, state->lookup.loop, &state->reads[side]);
    else
        compare_end(state);
}

static void compare(struct diff_state *state, uint64_t count)
{
    state->compared = count;
    state->left = 3; // one of them held until both are under way
    read_side(state, 0, state->call->older);
    read_side(state, 1, state->call->newer);
    compare_end(state);
}

// ---- Finding ----

enum verdict { SAME, DIFFERENT, BYTES_DECIDE };

// Two places of data may hold the same. Data in the log may be zeros, which sealing makes zero; a segment has
// no zeros. (What differed when it was found may have been sealed since.)
static enum verdict judge(locator_t a, locator_t b, bool by_place)
{
    enum extent_kind x = kind_of(a), y = kind_of(b);
    if (a == b)
        return SAME;
    if (by_place)
        return x != EXTENT_DATA && y != EXTENT_DATA ? SAME : DIFFERENT;
    if (x == EXTENT_DATA && y == EXTENT_DATA)
        return BYTES_DECIDE;
    bool zeros = (x == EXTENT_ZERO && locator_is_log(b)) || (y == EXTENT_ZERO && locator_is_log(a));
    return zeros ? BYTES_DECIDE : DIFFERENT;
}

// How many blocks from `block` on, of at most `most`, have one verdict.
static int look(struct diff_state *state, uint64_t block, uint64_t most, enum verdict *ret_verdict,
        uint64_t *ret_count, locator_t *ret_missing)
{
    const struct base *older = state->call->older, *newer = state->call->newer;
    locator_t a, b;
    uint64_t x, y;
    int r = tree_get(&older->store->space, &older->tree, block, most, &a, &x, ret_missing);
    if (r == 0)
        r = tree_get(&newer->store->space, &newer->tree, block, x, &b, &y, ret_missing);
    if (r < 0)
        return r;
    *ret_verdict = judge(a, b, state->call->by_place);
    *ret_count = y;
    return 0;
}

// 0: go on; 1: a comparison is under way, which goes on; 2: no room is left. -EAGAIN: *ret_missing.
static int take_run(struct diff_state *state, locator_t *ret_missing)
{
    uint64_t most = state->run_end - state->at, count, more;
    enum verdict verdict, next;
    int r = look(state, state->at, most, &verdict, &count, ret_missing);
    if (r < 0)
        return r;
    if (verdict != BYTES_DECIDE) {
        if (verdict == DIFFERENT && !report(state, state->at, count, kind_of(state->run_now)))
            return 2;
        state->at += count;
        return 0;
    }
    most = most < COMPARE_BLOCKS ? most : COMPARE_BLOCKS;
    while (count < most && look(state, state->at + count, most - count, &next, &more, ret_missing) == 0 &&
            next == BYTES_DECIDE)
        count += more;
    compare(state, count < most ? count : most);
    return 1;
}

// As take_run; 3: there is no more.
static int find_run(struct diff_state *state, locator_t *ret_missing)
{
    struct base *older = state->call->older, *newer = state->call->newer;
    uint64_t block, count;
    int r = tree_diff_next(&newer->store->space, &older->tree, &newer->tree, state->at, state->end, &block,
            &count, &state->run_now, ret_missing);
    if (r == -EINPROGRESS) {
        state->at = state->run_end = block;
        return 0;
    }
    if (r < 0)
        return r;
    if (count == 0)
        return 3;
    state->at = block;
    state->run_end = block + count;
    return 0;
}

static void go_on(struct diff_state *state)
{
    for (unsigned i = 0; i < STEPS_PER_TURN; i++) {
        locator_t missing;
        int r = state->at < state->run_end ? take_run(state, &missing) : find_run(state, &missing);
        if (r == -EAGAIN) {
            r = volume_lookup_load(&state->lookup, missing);
            if (r == 0)
                return;
        }
        if (r == 1)
            return;
        if (r != 0) {
            finish(state, r < 0 ? r : 0, r == 3);
            return;
        }
    }
    loop_post(state->lookup.loop, &state->work);
}

static void go_on_by_post(struct loop_work *work)
{
    go_on((struct diff_state *)((char *)work - offsetof(struct diff_state, work)));
}

static void look_again(struct volume_lookup *lookup)
{
    go_on((struct diff_state *)lookup);
}

void base_diff_submit(struct base_diff *call, struct loop *loop)
{
    struct diff_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        abort();
    uint64_t a = base_size_bytes(call->older), b = base_size_bytes(call->newer);
    state->lookup = (struct volume_lookup){.store = call->newer->store, .loop = loop, .again = look_again};
    state->call = call;
    state->size_bytes = a > b ? a : b;
    state->at = call->offset >> BLOCK_SHIFT;
    state->end = volume_blocks_of(state->size_bytes);
    state->work.run = go_on_by_post;
    call->count = 0;
    loop_post(loop, &state->work);
}
