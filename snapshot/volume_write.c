// SPDX-License-Identifier: Apache-2.0
// Writes, zeros and trims: cut into log records, put into the tree as each is acknowledged.
//
// Whole blocks go straight from the caller's buffer into the log. A partial block is read, changed and
// written as a whole; such a request is exclusive: it waits for started writes that touch its blocks, and
// later ones wait for it, else it would write old bytes over newer ones. Requests that wait are `parked` in
// order.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE_EXTENT_ROOM = BLOCK_SIZE - RECORD_FIXED_BYTES };

struct write_piece {
    struct log_append append;
    struct write_state *state;
    uint32_t epoch;
    struct write_piece *next;
    struct record_extent extents[];
};

struct write_state {
    struct volume_io *io;
    struct volume *volume;
    uint64_t first, end; // blocks touched
    bool exclusive;
    unsigned left; // steps that must finish
    int result;
    char *bounce; // whole blocks [data_first, data_end), when the caller's buffer cannot be used
    uint64_t data_first, data_end; // blocks written as data from `bounce` or the caller's buffer
    uint64_t fill_first, fill_end; // blocks zeroed or trimmed
    char *tail_bounce;             // last block of an unaligned ZERO
    struct write_state *next, *previous;
    void (*fenced)(void *context); // a fence (io is NULL): called when nothing else touches its blocks
    void *fence_context;
    struct volume_io head_read, tail_read;
    struct log_sync sync;
};

static bool overlaps(const struct write_state *a, const struct write_state *b)
{
    return a->first < b->end && b->first < a->end;
}

// Whether `state` must wait: for an exclusive one that touches its blocks, or when it is exclusive for any
// that does.
static bool must_park(
        struct volume *volume, const struct write_state *state, const struct write_state *parked_before)
{
    for (const struct write_state *other = volume->active; other != NULL; other = other->next)
        if ((state->exclusive || other->exclusive) && overlaps(state, other))
            return true;
    for (const struct write_state *other = volume->parked; other != parked_before; other = other->next)
        if (overlaps(state, other))
            return true;
    return false;
}

static void activate(struct volume *volume, struct write_state *state)
{
    state->previous = NULL;
    state->next = volume->active;
    if (volume->active != NULL)
        volume->active->previous = state;
    volume->active = state;
    volume->exclusive += state->exclusive ? 1 : 0;
}

static void deactivate(struct volume *volume, struct write_state *state)
{
    if (state->previous != NULL)
        state->previous->next = state->next;
    else
        volume->active = state->next;
    if (state->next != NULL)
        state->next->previous = state->previous;
    volume->exclusive -= state->exclusive ? 1 : 0;
}

static void state_begin(struct write_state *state);

// Starts what may go; a start can finish at once and come back here, so the list is read anew after each.
static void unpark(struct volume *volume)
{
    struct write_state **at = &volume->parked;
    while (*at != NULL) {
        struct write_state *state = *at;
        if (must_park(volume, state, state)) {
            at = &state->next;
            continue;
        }
        *at = state->next;
        if (*at == NULL)
            volume->parked_tail = at;
        activate(volume, state);
        state_begin(state);
        at = &volume->parked;
    }
}

static void state_free(struct write_state *state)
{
    struct volume_io *io = state->io;
    int result = state->result;
    io_buffer_free(state->bounce);
    io_buffer_free(state->tail_bounce);
    free(state);
    volume_finish(io, result);
}

static void fua_done(struct log_sync *sync, int result)
{
    struct write_state *state = (struct write_state *)((char *)sync - offsetof(struct write_state, sync));
    state->result = result;
    state_free(state);
}

static void state_put(struct write_state *state)
{
    if (--state->left > 0)
        return;
    struct volume *volume = state->volume;
    deactivate(volume, state);
    if (volume->parked != NULL)
        unpark(volume);
    if (state->io == NULL) {
        free(state);
        return;
    }
    if (state->result == 0 && (state->io->flags & VOLUME_FUA) != 0) {
        state->sync = (struct log_sync){.loop = volume->loop, .done = fua_done};
        log_sync(volume->store->log, &state->sync);
        return;
    }
    state_free(state);
}

// ---- Pieces: one log record each ----

static void piece_insert(struct write_piece *piece)
{
    struct volume *volume = piece->state->volume;
    struct tree_space *space = &volume->store->space;
    const struct log_append *append = &piece->append;
    locator_t first = append->first;
    for (uint32_t i = 0; i < append->extent_count; i++) {
        const struct record_extent *extent = &piece->extents[i];
        if (append->kind == RECORD_WRITE) {
            tree_put(space, &volume->tree, volume->owner, extent->block, extent->count, first);
            first = locator_next(first, extent->count);
        } else {
            locator_t with = append->kind == RECORD_ZERO ? LOCATOR_ZERO : LOCATOR_UNMAPPED;
            tree_fill(space, &volume->tree, volume->owner, extent->block, extent->count, with);
        }
    }
    atomic_store(&volume->logged_epoch, piece->epoch);
}

static void piece_done(struct log_append *append, int result)
{
    struct write_piece *piece = (struct write_piece *)append;
    struct write_state *state = piece->state;
    if (result == 0)
        piece_insert(piece);
    else if (state->result == 0)
        state->result = result;
    volume_settle(state->volume, piece->epoch);
    free(piece);
    state_put(state);
}

static struct write_piece *piece_new(
        struct write_state *state, enum record_kind kind, uint32_t extent_capacity)
{
    struct write_piece *piece = calloc(1, sizeof *piece + extent_capacity * sizeof piece->extents[0]);
    if (piece == NULL)
        abort();
    piece->state = state;
    piece->append.loop = state->volume->loop;
    piece->append.kind = kind;
    piece->append.volume = state->volume->info.id.value;
    piece->append.extents = piece->extents;
    piece->append.done = piece_done;
    return piece;
}

static void piece_start(struct write_piece *piece)
{
    struct volume *volume = piece->state->volume;
    piece->epoch = piece->append.epoch = volume->epoch;
    volume->in_flight++;
    piece->state->left++;
    log_append(volume->store->log, &piece->append);
}

static void start_data(struct write_state *state, uint64_t first, uint64_t end, char *data)
{
    uint32_t most = log_payload_max(state->volume->store->log);
    while (first < end) {
        uint32_t count = end - first < most ? (uint32_t)(end - first) : most;
        struct write_piece *piece = piece_new(state, RECORD_WRITE, 1);
        piece->extents[0] = (struct record_extent){first, count};
        piece->append.extent_count = 1;
        piece->append.payload = data;
        piece->append.payload_blocks = count;
        piece_start(piece);
        first += count;
        data += (size_t)count * BLOCK_SIZE;
    }
}

static void start_fill(struct write_state *state, enum record_kind kind)
{
    uint64_t first = state->fill_first;
    while (first < state->fill_end) {
        uint64_t left = state->fill_end - first;
        uint32_t count = left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
        struct write_piece *piece = piece_new(state, kind, 1);
        piece->extents[0] = (struct record_extent){first, count};
        piece->append.extent_count = 1;
        piece_start(piece);
        first += count;
    }
}

// Scattered blocks: as many extents to a record as its header holds.
static void start_scatter(struct write_state *state)
{
    const struct volume_io *io = state->io;
    uint32_t most = log_payload_max(state->volume->store->log);
    char *data = state->bounce != NULL ? state->bounce : io->buffer;
    for (unsigned at = 0; at < io->block_count;) {
        struct write_piece *piece = piece_new(state, RECORD_WRITE, RECORD_EXTENT_MAX);
        uint32_t extents = 0, blocks = 0;
        while (at < io->block_count && blocks < most) {
            bool joins = blocks > 0 && io->blocks[at] == io->blocks[at - 1] + 1;
            size_t bytes = (size_t)(extents + !joins) * RECORD_EXTENT_BYTES +
                           (size_t)(blocks + 1) * sizeof(uint64_t);
            if (bytes > WRITE_EXTENT_ROOM)
                break;
            if (joins)
                piece->extents[extents - 1].count++;
            else
                piece->extents[extents++] = (struct record_extent){io->blocks[at], 1};
            blocks++;
            at++;
        }
        piece->append.extent_count = extents;
        piece->append.payload = data;
        piece->append.payload_blocks = blocks;
        data += (size_t)blocks * BLOCK_SIZE;
        piece_start(piece);
    }
}

// ---- Requests ----

static void start_records(struct write_state *state)
{
    struct volume_io *io = state->io;
    if (io->op == VOLUME_WRITE_BLOCKS)
        start_scatter(state);
    else if (io->op == VOLUME_WRITE)
        start_data(state, state->data_first, state->data_end,
                state->bounce != NULL ? state->bounce : io->buffer);
    else
        start_fill(state, io->op == VOLUME_TRIM ? RECORD_TRIM : RECORD_ZERO);
    if (io->op == VOLUME_ZERO && state->bounce != NULL)
        start_data(state, state->first, state->first + 1, state->bounce);
    if (io->op == VOLUME_ZERO && state->tail_bounce != NULL)
        start_data(state, state->end - 1, state->end, state->tail_bounce);
}

// Lays the request's bytes (or zeros) over the blocks that were read.
static void overlay(struct write_state *state)
{
    struct volume_io *io = state->io;
    uint64_t head_skip = io->offset & (BLOCK_SIZE - 1);
    if (io->op == VOLUME_WRITE) {
        memcpy(state->bounce + head_skip, io->buffer, io->length);
        return;
    }
    uint64_t tail_bytes = (io->offset + io->length) & (BLOCK_SIZE - 1);
    if (state->bounce != NULL) {
        uint64_t room = BLOCK_SIZE - head_skip;
        memset(state->bounce + head_skip, 0, io->length < room ? io->length : room);
    }
    if (state->tail_bounce != NULL)
        memset(state->tail_bounce, 0, tail_bytes);
}

static void edges_read(struct volume_io *read, int result)
{
    struct write_state *state = read->context;
    if (result < 0 && state->result == 0)
        state->result = result;
    if (--state->left > 1)
        return;
    if (state->result == 0) {
        overlay(state);
        start_records(state);
    }
    state_put(state);
}

static void read_edge(struct write_state *state, struct volume_io *read, uint64_t block, void *buffer)
{
    struct volume *volume = state->volume;
    uint64_t size = volume_size_bytes(volume), offset = block << BLOCK_SHIFT;
    *read = (struct volume_io){.op = VOLUME_READ,
            .offset = offset,
            .length = size - offset < BLOCK_SIZE ? size - offset : BLOCK_SIZE,
            .buffer = buffer,
            .done = edges_read,
            .context = state};
    state->left++;
    volume_submit(volume, read);
}

static char *zeroed_blocks(uint64_t count)
{
    char *bytes = io_buffer_alloc(count << BLOCK_SHIFT);
    memset(bytes, 0, count << BLOCK_SHIFT);
    return bytes;
}

static void begin_unaligned(struct write_state *state, bool head, bool tail)
{
    bool one_block = state->end - state->first == 1;
    char *last = NULL;
    if (state->io->op == VOLUME_WRITE) {
        state->bounce = zeroed_blocks(state->end - state->first);
        last = state->bounce + ((state->end - state->first - 1) << BLOCK_SHIFT);
    } else {
        if (head || one_block)
            state->bounce = zeroed_blocks(1);
        if (tail && !one_block)
            last = state->tail_bounce = zeroed_blocks(1);
    }
    state->left += 1; // held until every edge has been asked for
    if (head || one_block)
        read_edge(state, &state->head_read, state->first, state->bounce);
    if (tail && !one_block)
        read_edge(state, &state->tail_read, state->end - 1, last);
    struct volume_io held = {.context = state};
    edges_read(&held, 0);
}

// state->left is 1 here: the request's own, given back when all its records are on their way.
static void state_begin(struct write_state *state)
{
    struct volume_io *io = state->io;
    if (io == NULL) { // stays until volume_unfence
        state->fenced(state->fence_context);
        return;
    }
    uint64_t size = volume_size_bytes(state->volume), stop = io->offset + io->length;
    int r = volume_check_range(size, io); // it may have shrunk while the request was parked
    if (r < 0) {
        state->result = r;
    } else if (state->exclusive) {
        bool head = (io->offset & (BLOCK_SIZE - 1)) != 0,
             tail = (stop & (BLOCK_SIZE - 1)) != 0 && stop != size;
        begin_unaligned(state, head, tail);
        return;
    } else {
        start_records(state);
    }
    state_put(state);
}

// Works out which blocks a request touches and whether it needs to read first.
static void plan(struct write_state *state, uint64_t size)
{
    struct volume_io *io = state->io;
    uint64_t stop = io->offset + io->length, mask = BLOCK_SIZE - 1;
    if (io->op == VOLUME_WRITE_BLOCKS) {
        state->first = io->blocks[0];
        state->end = io->blocks[io->block_count - 1] + 1;
        return;
    }
    bool head = (io->offset & mask) != 0, tail = (stop & mask) != 0 && stop != size;
    state->first = io->offset >> BLOCK_SHIFT;
    state->end = volume_blocks_of(stop);
    if (io->op == VOLUME_TRIM) { // rounds inward; the volume's last bytes are a block of their own
        state->fill_first = state->first + (head ? 1 : 0);
        state->fill_end = state->end - (tail ? 1 : 0);
        return;
    }
    state->exclusive = head || tail;
    state->data_first = state->first;
    state->data_end = state->end;
    state->fill_first = state->first + (head ? 1 : 0);
    state->fill_end = state->end - (tail ? 1 : 0);
}

// Log writes want aligned memory and whole blocks.
static void copy_if_unaligned(struct write_state *state)
{
    struct volume_io *io = state->io;
    bool scatter = io->op == VOLUME_WRITE_BLOCKS;
    if (state->exclusive || (!scatter && io->op != VOLUME_WRITE))
        return;
    uint64_t blocks = scatter ? io->block_count : state->end - state->first;
    uint64_t bytes = scatter ? blocks << BLOCK_SHIFT : io->length;
    if (((uintptr_t)io->buffer & (BLOCK_SIZE - 1)) == 0 && bytes == blocks << BLOCK_SHIFT)
        return;
    state->bounce = zeroed_blocks(blocks);
    memcpy(state->bounce, io->buffer, bytes);
}

// Starts it, or parks it behind those that it must not overtake.
static void admit(struct volume *volume, struct write_state *state)
{
    bool check = state->exclusive || volume->exclusive > 0 || volume->parked != NULL;
    bool holds_fence = state->io != NULL && (state->io->flags & VOLUME_FENCED) != 0;
    if (check && !holds_fence && must_park(volume, state, NULL)) {
        *volume->parked_tail = state;
        volume->parked_tail = &state->next;
        return;
    }
    activate(volume, state);
    state_begin(state);
}

struct write_state *volume_fence(
        struct volume *volume, uint64_t first, uint64_t end, void (*fenced)(void *context), void *context)
{
    struct write_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        abort();
    state->volume = volume;
    state->left = 1;
    state->first = first;
    state->end = end;
    state->exclusive = true;
    state->fenced = fenced;
    state->fence_context = context;
    admit(volume, state);
    return state;
}

void volume_unfence(struct write_state *fence)
{
    state_put(fence);
}

void volume_write_start(struct volume *volume, struct volume_io *io)
{
    struct write_state *state = calloc(1, sizeof *state);
    if (state == NULL)
        abort();
    state->io = io;
    state->volume = volume;
    state->left = 1;
    plan(state, volume_size_bytes(volume));
    copy_if_unaligned(state);
    admit(volume, state);
}
