// SPDX-License-Identifier: Apache-2.0
// Extents: a walk by runs of blocks, in bounded steps on the loop, each run looked up in the tree and, where
// sharing is asked for, in the tree of the base that this one came from.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>

enum { LOOKUPS_PER_STEP = 2048 };

struct extents_state {
    struct volume_lookup lookup;
    struct loop_work work;
    struct volume_extents *call;
    struct volume *volume; // or:
    struct base *base;
    const struct tree *tree;
    struct base *parent; // held open; NULL
    uint64_t at, end;    // bytes
};

static enum extent_kind kind_of(locator_t locator)
{
    return locator == LOCATOR_UNMAPPED ? EXTENT_UNMAPPED
           : locator == LOCATOR_ZERO   ? EXTENT_ZERO
                                       : EXTENT_DATA;
}

static void finish(struct extents_state *state, int result)
{
    struct volume_extents *call = state->call;
    base_close(state->parent);
    free(state);
    call->done(call, result);
}

// False: no room is left.
static bool append(struct volume_extents *call, const struct volume_extent *extent)
{
    struct volume_extent *last = call->count > 0 ? &call->extents[call->count - 1] : NULL;
    if (last != NULL && last->kind == extent->kind && last->shared == extent->shared) {
        last->length += extent->length;
    } else {
        if (call->count == call->capacity)
            return false;
        call->extents[call->count++] = *extent;
    }
    call->covered_bytes += extent->length;
    return true;
}

// The extent that begins at state->at. -EAGAIN: *ret_missing.
static int look(struct extents_state *state, struct volume_extent *ret_extent, locator_t *ret_missing)
{
    struct tree_space *space = &state->lookup.store->space;
    uint64_t block = state->at >> BLOCK_SHIFT, count, other_count;
    locator_t first, other;
    int r = tree_get(
            space, state->tree, block, volume_blocks_of(state->end) - block, &first, &count, ret_missing);
    if (r < 0)
        return r;
    bool shared = false;
    uint64_t parent_blocks = state->parent != NULL ? volume_blocks_of(base_size_bytes(state->parent)) : 0;
    if (block < parent_blocks) { // what lies beyond its end, it does not have
        count = count < parent_blocks - block ? count : parent_blocks - block;
        r = tree_get(space, &state->parent->tree, block, count, &other, &other_count, ret_missing);
        if (r < 0)
            return r;
        shared = first == other;
        count = other_count;
    }
    uint64_t stop = (block + count) << BLOCK_SHIFT;
    stop = stop < state->end ? stop : state->end;
    *ret_extent = (struct volume_extent){
            .offset = state->at, .length = stop - state->at, .kind = kind_of(first), .shared = shared};
    return 0;
}

static void go_on(struct extents_state *state)
{
    for (unsigned i = 0; state->at < state->end; i++) {
        struct volume_extent extent;
        locator_t missing;
        if (i == LOOKUPS_PER_STEP) { // others want the loop as well
            loop_post(state->lookup.loop, &state->work);
            return;
        }
        int r = look(state, &extent, &missing);
        if (r == -EAGAIN) {
            r = volume_lookup_load(&state->lookup, missing);
            if (r == 0)
                return;
        }
        if (r < 0) {
            finish(state, r);
            return;
        }
        if (!append(state->call, &extent))
            break;
        state->at += extent.length;
    }
    finish(state, 0);
}

static void go_on_by_post(struct loop_work *work)
{
    go_on((struct extents_state *)((char *)work - offsetof(struct extents_state, work)));
}

static void look_again(struct volume_lookup *lookup)
{
    go_on((struct extents_state *)lookup);
}

static void begin(struct extents_state *state)
{
    struct volume_extents *call = state->call;
    struct volume *volume = state->volume;
    uint64_t size_bytes = volume != NULL ? volume_size_bytes(volume) : base_size_bytes(state->base);
    call->count = 0;
    call->covered_bytes = 0;
    if (call->offset > size_bytes || call->length > size_bytes - call->offset || call->capacity == 0) {
        finish(state, -EINVAL);
        return;
    }
    state->at = call->offset;
    state->end = call->offset + call->length;
    struct base_id parent = volume != NULL ? volume->info.parent : state->base->info.parent;
    if ((call->flags & EXTENTS_SHARED) != 0 && parent.value != 0 &&
            base_open(state->lookup.store, parent, &state->parent) < 0)
        state->parent = NULL; // gone: nothing is known to be shared
    state->work.run = go_on_by_post;
    go_on(state);
}

static void begin_by_post(struct loop_work *work)
{
    begin((struct extents_state *)((char *)work - offsetof(struct extents_state, work)));
}

static void submit(struct store *store, struct loop *loop, struct volume *volume, struct base *base,
        struct volume_extents *call)
{
    struct extents_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        abort();
    state->lookup = (struct volume_lookup){.store = store, .loop = loop, .again = look_again};
    state->call = call;
    state->volume = volume;
    state->base = base;
    state->tree = volume != NULL ? &volume->tree : &base->tree;
    state->work.run = begin_by_post;
    if (loop_current() == loop)
        begin(state);
    else
        loop_post(loop, &state->work);
}

void volume_extents_submit(struct volume *volume, struct volume_extents *call)
{
    submit(volume->store, volume->loop, volume, NULL, call);
}

void base_extents_submit(struct base *base, struct loop *loop, struct volume_extents *call)
{
    submit(base->store, loop, NULL, base, call);
}
