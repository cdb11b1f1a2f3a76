// SPDX-License-Identifier: Apache-2.0
// Sealing what a cut holds: blocks of the log become slots of segments, shared where their bytes are there
// already; nodes in memory become blocks of node segments. Runs in the background task; the trees under a cut
// do not change.
//
// A leaf at a time (2 MiB of address space): all its log blocks are read at once, fingerprinted, looked up,
// the candidates read at once and compared byte for byte; what is left is stored. Fingerprints of this seal
// are in a table of its own (seal_table.c) until the checkpoint is committed.
#include "snapshot/seal_private.h"

#include "blockstore/cursor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    DISK_FRAME_SLOTS = 16,
    MEMORY_FRAME_SLOTS = 4,
    NODE_FRAME_SLOTS = 8,
    FOREIGN_WINDOWS_MAX = 16, // of a memory leaf: more would make its pages slow to fetch
    WINDOW_SHIFT = 6,         // 64 slots
};

// ---- Segments being written: one per domain and kind ----

static int finish_writer(struct seal *self, struct seal_writer *slot)
{
    struct segment_row row;
    int r = slot->writer != NULL ? segment_writer_finish(slot->writer, &row, self->err) : 0;
    bool written = slot->writer != NULL;
    slot->writer = NULL;
    if (r < 0 || !written)
        return r;
    struct seal_result *result = self->result;
    if (result->segment_count == result->segment_capacity) {
        result->segment_capacity = result->segment_capacity * 2 + 8;
        result->segments = realloc(result->segments, result->segment_capacity * sizeof *result->segments);
        if (result->segments == NULL)
            abort();
    }
    result->segments[result->segment_count++] = row;
    return 0;
}

static struct seal_writer *writer_of(struct seal *self, uint64_t domain, enum segment_kind kind)
{
    for (unsigned i = 0; i < self->writer_count; i++)
        if (self->writers[i].domain == domain && self->writers[i].kind == kind)
            return &self->writers[i];
    self->writers = realloc(self->writers, (self->writer_count + 1) * sizeof *self->writers);
    if (self->writers == NULL)
        abort();
    struct seal_writer *slot = &self->writers[self->writer_count++];
    *slot = (struct seal_writer){.domain = domain, .kind = kind};
    fingerprint_key_derive(self->store->secret, domain, &slot->key);
    return slot;
}

static int store_block(struct seal *self, struct seal_writer *slot, const void *block,
        struct fingerprint fingerprint, unsigned frame_slots, locator_t *ret_locator)
{
    int r = 0;
    if (slot->writer != NULL && segment_writer_full(slot->writer))
        r = finish_writer(self, slot);
    if (r == 0 && slot->writer == NULL) {
        uint64_t number = checkpoint_new_segment_number(self->store);
        r = segment_writer_begin(
                self->store->segments, self->task, number, slot->kind, slot->domain, &slot->writer);
        if (r < 0)
            return error_set(
                    self->err, r, "cannot begin segment %llu: %s", (unsigned long long)number, strerror(-r));
    }
    if (r == 0) {
        r = segment_writer_add(slot->writer, block, fingerprint, frame_slots, ret_locator);
        if (r < 0)
            error_set(self->err, r, "cannot write a segment in %s: %s%s", store_directory(self->store),
                    strerror(-r), r == -ENOSPC ? "; free space on its file system" : "");
    }
    return r;
}

// ---- Reading many runs at once ----

struct many_reads {
    struct seal *self;
    unsigned left;
    int result;
    struct task_event event;
};

struct run_read {
    struct log_read log;
    struct segment_read segment;
    struct many_reads *many;
    int result;
};

static void run_finished(struct run_read *run, int result)
{
    struct many_reads *many = run->many;
    run->result = result;
    if (result < 0)
        many->result = result;
    if (--many->left == 0)
        task_event_set(&many->event, 0);
}

static void log_run_done(struct log_read *read, int result)
{
    run_finished((struct run_read *)((char *)read - offsetof(struct run_read, log)), result);
}

static void segment_run_done(struct segment_read *read, int result)
{
    run_finished((struct run_read *)((char *)read - offsetof(struct run_read, segment)), result);
}

static void submit_runs(void *context)
{
    struct many_reads *many = context;
    struct seal *self = many->self;
    unsigned count = self->run_count;
    many->left = count + 1;
    for (unsigned i = 0; i < count; i++) {
        struct seal_run *run = &self->runs[i];
        struct run_read *read = &self->reads[i];
        *read = (struct run_read){.many = many};
        void *buffer = (char *)run->buffer + (size_t)run->at * BLOCK_SIZE;
        if (locator_is_log(run->first)) {
            read->log = (struct log_read){.loop = task_loop(self->task),
                    .first = run->first,
                    .count = run->count,
                    .buffer = buffer,
                    .done = log_run_done};
            log_read(self->store->log, &read->log);
        } else {
            read->segment = (struct segment_read){.loop = task_loop(self->task),
                    .first = run->first,
                    .count = run->count,
                    .buffer = buffer,
                    .done = segment_run_done};
            segment_read(self->store->segments, &read->segment);
        }
    }
    if (--many->left == 0)
        task_event_set(&many->event, 0);
}

// Reads self->runs; each one's result is in its .result. Returns the last failure, or 0.
static int read_runs(struct seal *self)
{
    struct many_reads many = {.self = self};
    if (self->run_count == 0)
        return 0;
    task_event_init(self->task, &many.event);
    task_call(self->task, task_loop(self->task), submit_runs, &many);
    int64_t waited = task_wait(self->task, &many.event);
    if (waited < 0)
        return (int)waited;
    for (unsigned i = 0; i < self->run_count; i++)
        self->runs[i].result = self->reads[i].result;
    return many.result;
}

// Adds block `at` of `buffer` to the runs.
static void add_run(struct seal *self, locator_t locator, void *buffer, unsigned at)
{
    struct seal_run *last = self->run_count > 0 ? &self->runs[self->run_count - 1] : NULL;
    if (last != NULL && last->buffer == buffer && last->at + last->count == at &&
            locator_next(last->first, last->count) == locator && last->count < 256 &&
            locator_log_file(last->first) == locator_log_file(locator)) {
        last->count++;
        return;
    }
    self->runs[self->run_count++] =
            (struct seal_run){.first = locator, .count = 1, .at = at, .buffer = buffer};
}

// ---- One leaf ----

static locator_t *forward_of(struct seal *self, locator_t log)
{
    struct cut *cut = self->cut;
    uint64_t index = locator_log_file(log) - cut->first_file;
    if (locator_log_file(log) < cut->first_file || index >= cut->file_count)
        return NULL;
    if (cut->forward[index] == NULL) {
        cut->forward[index] = calloc(self->store->config.log_file_bytes / BLOCK_SIZE, sizeof(locator_t));
        if (cut->forward[index] == NULL)
            abort();
    }
    return &cut->forward[index][locator_log_block(log)];
}

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK_SIZE - 1) == 0;
}

static const uint8_t *block_of(const struct seal *self, unsigned i)
{
    return self->data + (size_t)i * BLOCK_SIZE;
}

// Some blocks are damaged: they are sealed as lost, one by one, so that the log can go on.
static int find_lost(struct seal *self)
{
    unsigned runs = self->run_count;
    struct seal_run failed[TREE_FANOUT];
    memcpy(failed, self->runs, runs * sizeof *failed);
    self->run_count = 0;
    for (unsigned i = 0; i < runs; i++)
        for (unsigned k = 0; failed[i].result < 0 && k < failed[i].count; k++)
            self->runs[self->run_count++] = (struct seal_run){.first = locator_next(failed[i].first, k),
                    .count = 1,
                    .at = failed[i].at + k,
                    .buffer = failed[i].buffer};
    int r = read_runs(self);
    for (unsigned i = 0; r < 0 && i < self->run_count; i++) {
        if (self->runs[i].result == -EBADMSG)
            self->blocks[self->runs[i].at].result = LOCATOR_LOST;
        else if (self->runs[i].result < 0)
            return self->runs[i].result;
    }
    return r == -EBADMSG ? 0 : r;
}

// Which log blocks of the leaf are not sealed yet.
static int gather(struct seal *self, const locator_t *slots, unsigned count)
{
    self->block_count = self->run_count = 0;
    for (unsigned i = 0; i < count; i++) {
        if (!locator_is_log(slots[i]))
            continue;
        locator_t *forward = forward_of(self, slots[i]);
        if (forward == NULL)
            return error_set(self->err, -EIO, "a tree refers to log file %llu, which is not before the cut",
                    (unsigned long long)locator_log_file(slots[i]));
        if (*forward != 0)
            continue;
        self->blocks[self->block_count] = (struct seal_block){.log = slots[i], .forward = forward};
        add_run(self, slots[i], self->data, self->block_count++);
    }
    int r = read_runs(self);
    if (r == -EBADMSG)
        r = find_lost(self);
    self->result->bytes_read += (uint64_t)self->block_count * BLOCK_SIZE;
    return r < 0 ? error_set(self->err, r, "cannot read the log in %s for sealing: %s",
                           store_directory(self->store), strerror(-r))
                 : 0;
}

// Memory pages are fetched one by one on demand: only so many foreign places per leaf.
static bool window_allowed(struct seal *self, locator_t locator)
{
    if (self->root->volume_kind != VOLUME_MEMORY)
        return true;
    uint64_t window = locator >> (4 + WINDOW_SHIFT);
    for (unsigned i = 0; i < self->window_count; i++)
        if (self->windows[i] == window)
            return true;
    if (self->window_count == FOREIGN_WINDOWS_MAX)
        return false;
    self->windows[self->window_count++] = window;
    return true;
}

static locator_t look_up(
        struct seal *self, struct fingerprint fingerprint, struct fingerprint public, locator_t expected)
{
    locator_t found[FINGERPRINT_CANDIDATES_MAX];
    locator_t best = seal_table_find(&self->table, fingerprint);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && self->root->domain == 0)
            break;
        unsigned count =
                fingerprint_index_find(self->store->fingerprints, i == 0 ? fingerprint : public, found);
        for (unsigned k = 0; k < count; k++) {
            if (collect_doomed(self->store, found[k]))
                continue;
            if (found[k] == expected)
                return expected;
            if (best == 0)
                best = found[k];
        }
    }
    return best;
}

// Fingerprints, zeros, doubles of the block before, candidates.
static void classify(struct seal *self, const struct seal_writer *slot)
{
    locator_t expected = 0;
    self->run_count = 0;
    for (unsigned i = 0; i < self->block_count; i++) {
        struct seal_block *block = &self->blocks[i];
        const uint8_t *bytes = block_of(self, i);
        if (block->result != 0) // lost
            continue;
        if (is_zero(bytes)) {
            block->result = LOCATOR_ZERO;
            self->result->zero_blocks++;
            continue;
        }
        block->fingerprint = fingerprint_of(&slot->key, bytes);
        if (i > 0 && self->blocks[i - 1].result != LOCATOR_LOST &&
                self->blocks[i - 1].fingerprint.low == block->fingerprint.low &&
                memcmp(bytes, bytes - BLOCK_SIZE, BLOCK_SIZE) == 0) {
            block->same_as_before = true;
            continue;
        }
        struct fingerprint public = {0};
        if (self->root->domain != 0)
        public = fingerprint_of(&self->public_key, bytes);
        block->candidate = look_up(self, block->fingerprint, public, expected);
        if (block->candidate != 0 && !window_allowed(self, block->candidate))
            block->candidate = 0;
        expected = block->candidate != 0 ? locator_next(block->candidate, 1) : 0;
        if (block->candidate != 0)
            add_run(self, block->candidate, self->compare, i);
    }
}

// What compared equal is shared.
static void confirm(struct seal *self)
{
    for (unsigned i = 0; i < self->run_count; i++) {
        const struct seal_run *run = &self->runs[i];
        for (unsigned k = 0; run->result == 0 && k < run->count; k++) {
            struct seal_block *block = &self->blocks[run->at + k];
            if (memcmp(block_of(self, run->at + k), self->compare + (size_t)(run->at + k) * BLOCK_SIZE,
                        BLOCK_SIZE) != 0)
                continue;
            block->result = block->candidate;
            self->result->dedup_hits++;
        }
    }
}

// A block of this very leaf that was stored a moment ago and has the same bytes.
static locator_t same_leaf(struct seal *self, unsigned index)
{
    locator_t locator = seal_table_find(&self->table, self->blocks[index].fingerprint);
    for (unsigned i = index; locator != 0 && i-- > 0;)
        if (self->blocks[i].result == locator)
            return memcmp(block_of(self, i), block_of(self, index), BLOCK_SIZE) == 0 ? locator : 0;
    return 0;
}

static int store_rest(struct seal *self, struct seal_writer *slot)
{
    unsigned frame_slots = self->root->volume_kind == VOLUME_MEMORY ? MEMORY_FRAME_SLOTS : DISK_FRAME_SLOTS;
    for (unsigned i = 0; i < self->block_count; i++) {
        struct seal_block *block = &self->blocks[i];
        if (block->same_as_before) {
            block->result = self->blocks[i - 1].result;
            self->result->dedup_hits++;
        }
        if (block->result == 0 && (block->result = same_leaf(self, i)) != 0)
            self->result->dedup_hits++;
        if (block->result == 0) {
            int r = store_block(
                    self, slot, block_of(self, i), block->fingerprint, frame_slots, &block->result);
            if (r < 0)
                return r;
            seal_table_put(&self->table, block->fingerprint, block->result);
            self->result->blocks++;
        }
        *block->forward = block->result;
    }
    return 0;
}

static int seal_leaf(void *context, locator_t *slots, unsigned count)
{
    struct seal *self = context;
    if (task_stopping(self->task))
        return error_set(self->err, -ECANCELED, "the store is closing");
    self->window_count = 0;
    int r = gather(self, slots, count);
    if (r == 0 && self->block_count > 0) {
        unsigned slot = (unsigned)(writer_of(self, self->root->domain, SEGMENT_DATA) - self->writers);
        classify(self, &self->writers[slot]);
        r = read_runs(self);
        if (r == -ECANCELED)
            return error_set(self->err, r, "the store is closing");
        confirm(self); // candidates that cannot be read are no hits
        r = store_rest(self, &self->writers[slot]);
    }
    for (unsigned i = 0; r == 0 && i < count; i++)
        if (locator_is_log(slots[i]))
            slots[i] = *forward_of(self, slots[i]);
    return r;
}

// ---- Nodes ----

static int load_node(void *context, locator_t node, locator_t *ret_slots)
{
    struct seal *self = context;
    int r = node_cache_read_task(self->store->node_cache, self->task, node, ret_slots);
    return r < 0 ? error_set(self->err, r, "cannot read tree node %llu/%u: %s",
                           (unsigned long long)locator_segment_number(node), locator_segment_slot(node),
                           strerror(-r))
                 : 0;
}

static int seal_node(void *context, const locator_t *slots, unsigned level, locator_t *ret_node)
{
    struct seal *self = context;
    uint8_t bytes[BLOCK_SIZE];
    struct cursor c = cursor_make(bytes, sizeof bytes);
    for (unsigned i = 0; i < TREE_FANOUT; i++)
        cursor_put_u64(&c, slots[i]);
    struct seal_writer *slot = writer_of(self, self->root->domain, SEGMENT_NODES);
    int r = store_block(self, slot, bytes, fingerprint_of(&slot->key, bytes), NODE_FRAME_SLOTS, ret_node);
    if (r == 0)
        node_cache_insert(self->store->node_cache, *ret_node, slots);
    return r;
}

// ---- Blobs: consecutive slots, in a domain where nobody looks: not shared, after a restart neither ----

static int seal_blob(struct seal *self, struct cut_root *root)
{
    self->root = root;
    root->row.height = (unsigned)root->blob_blocks;
    if (!locator_is_log(root->blob_first)) {
        root->row.root = root->blob_first;
        return 0;
    }
    struct seal_writer *slot = writer_of(self, root->domain, SEGMENT_DATA);
    self->run_count = 0;
    for (uint64_t i = 0; i < root->blob_blocks; i++)
        add_run(self, locator_next(root->blob_first, i), self->data, (unsigned)i);
    int r = read_runs(self);
    if (r == -EBADMSG) {
        root->row.root = LOCATOR_LOST;
        return 0;
    }
    if (r < 0)
        return error_set(self->err, r, "cannot read a snapshot's device state in %s: %s",
                store_directory(self->store), strerror(-r));
    locator_t first = 0, locator;
    for (uint64_t i = 0; i < root->blob_blocks; i++) {
        r = store_block(self, slot, block_of(self, (unsigned)i),
                fingerprint_of(&slot->key, block_of(self, (unsigned)i)), DISK_FRAME_SLOTS, &locator);
        if (r < 0)
            return r;
        if (i == 0)
            first = locator;
        else if (locator != locator_next(first, i)) { // another segment began: once more, in that one
            first = 0;
            i = UINT64_MAX; // wraps to 0
        }
    }
    root->row.root = first;
    return 0;
}

// ---- All of it ----

void seal_result_free(struct seal_result *result)
{
    free(result->segments);
    free(result->published);
    memset(result, 0, sizeof *result);
}

static int finish_writers(struct seal *self)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < self->writer_count; i++)
        r = finish_writer(self, &self->writers[i]);
    if (r == 0) // else what is left of them is to be undone
        self->writer_count = 0;
    return r;
}

// Roots come by domain: no more than one domain's writers are open, however many there are.
static int seal_roots(struct seal *self)
{
    const struct tree_sealer sealer = {
            .leaf = seal_leaf, .load = load_node, .node = seal_node, .context = self};
    int r = 0;
    for (size_t i = 0; r == 0 && i < self->cut->count; i++) {
        struct cut_root *root = &self->cut->roots[i];
        if (self->root != NULL && self->root->domain != root->domain && (r = finish_writers(self)) < 0)
            break;
        self->root = root;
        root->row.height = root->tree.height;
        if (root->row.kind == CHECKPOINT_DOC)
            r = seal_blob(self, root);
        else
            r = tree_seal(&self->store->space, &root->tree, &sealer, &root->row.root);
    }
    return r < 0 ? r : finish_writers(self);
}

void seal_undo(struct store *store, struct cut *cut, struct seal_result *result)
{
    for (size_t i = 0; i < cut->count; i++)
        tree_unseal(&store->space, &cut->roots[i].tree);
    for (size_t i = 0; i < cut->file_count; i++) {
        free(cut->forward[i]);
        cut->forward[i] = NULL;
    }
    for (size_t i = 0; i < result->segment_count; i++)
        segments_drop(store->segments, result->segments[i].number);
    seal_result_free(result);
}

static void undo(struct seal *self)
{
    for (unsigned i = 0; i < self->writer_count; i++)
        segment_writer_abort(self->writers[i].writer);
    seal_undo(self->store, self->cut, self->result);
}

int seal_cut(struct task *task, struct store *store, struct cut *cut, struct seal_result *ret_result,
        struct error *err)
{
    struct seal_result result = {0};
    struct seal *self = calloc(1, sizeof *self);
    if (self == NULL)
        abort();
    *self = (struct seal){.task = task, .store = store, .cut = cut, .err = err, .result = &result};
    self->data = io_buffer_alloc((size_t)TREE_FANOUT * BLOCK_SIZE);
    self->compare = io_buffer_alloc((size_t)TREE_FANOUT * BLOCK_SIZE);
    self->reads = calloc(TREE_FANOUT, sizeof *self->reads);
    if (self->reads == NULL)
        abort();
    fingerprint_key_derive(store->secret, 0, &self->public_key);
    int r = seal_roots(self);
    if (r < 0)
        undo(self);
    else
        seal_table_take(&self->table, &result);
    seal_table_free(&self->table);
    io_buffer_free(self->data);
    io_buffer_free(self->compare);
    free(self->reads);
    free(self->writers);
    free(self);
    if (r == 0)
        *ret_result = result;
    return r;
}
