// SPDX-License-Identifier: Apache-2.0
// Transactions, one at a time, on loop 0: check -> prepare on the volumes' loops (freeze; shrink first hides
// the tail) -> one log record -> apply -> finish on the volumes' loops (drop what a shrink cut off, grow) ->
// done. Only waiting for durability overlaps the next transaction.
#include "snapshot/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct txn {
    struct store *store;
    struct txn_op *ops;
    unsigned count, capacity;
    unsigned flags;
    void (*done)(void *context, int result, const struct error *err);
    void *context;
    struct loop_work work;
    struct txn *next;
    void (*exclusive)(void *context); // no transaction: a turn for somebody else
    unsigned waiting;                 // loop 0: steps on other loops that are not done
    struct log_append append;
    struct log_sync sync;
    void *body;
    uint8_t *payload;
    int result;
    struct error err;
};

struct txn *txn_begin(struct store *store)
{
    struct txn *txn = calloc(1, sizeof *txn);
    if (txn == NULL)
        abort();
    txn->store = store;
    return txn;
}

static void txn_free(struct txn *txn)
{
    for (unsigned i = 0; i < txn->count; i++)
        tree_drop(&txn->store->space, &txn->ops[i].tree);
    catalog_free_ops(txn->ops, txn->count);
    free(txn->body);
    io_buffer_free(txn->payload);
    free(txn);
}

void txn_abort(struct txn *txn)
{
    if (txn != NULL)
        txn_free(txn);
}

static struct txn_op *add_op(struct txn *txn, enum txn_op_type type, uint64_t id)
{
    if (txn->count == txn->capacity) {
        txn->capacity = txn->capacity == 0 ? 8 : txn->capacity * 2;
        txn->ops = realloc(txn->ops, txn->capacity * sizeof *txn->ops);
        if (txn->ops == NULL)
            abort();
    }
    struct txn_op *op = &txn->ops[txn->count++];
    memset(op, 0, sizeof *op);
    op->type = type;
    op->id = id;
    op->tree = tree_empty(1);
    op->wall_ns = txn->store->loops[0]->ops->wall_ns(txn->store->loops[0]);
    return op;
}

static uint64_t new_id(struct store *store)
{
    pthread_mutex_lock(&store->lock);
    uint64_t id = store->catalog.next_id++;
    pthread_mutex_unlock(&store->lock);
    return id;
}

static void set_name(struct txn_op *op, const char *name)
{
    op->name_too_long = name != NULL && strlen(name) > STORE_NAME_MAX;
    if (name != NULL && !op->name_too_long)
        memcpy(op->name, name, strlen(name) + 1);
}

struct volume_id txn_volume_create(
        struct txn *txn, const char *name, enum volume_kind kind, uint64_t size_bytes, struct base_id parent)
{
    struct txn_op *op = add_op(txn, TXN_VOLUME_CREATE, new_id(txn->store));
    op->kind = kind;
    op->size_bytes = size_bytes;
    op->base = parent.value;
    op->domain = DOMAIN_OF_PARENT;
    set_name(op, name);
    return (struct volume_id){op->id};
}

void txn_volume_domain(struct txn *txn, struct volume_id id, uint64_t domain)
{
    for (unsigned i = 0; i < txn->count; i++)
        if (txn->ops[i].type == TXN_VOLUME_CREATE && txn->ops[i].id == id.value)
            txn->ops[i].domain = domain;
}

void txn_volume_delete(struct txn *txn, struct volume_id id)
{
    add_op(txn, TXN_VOLUME_DELETE, id.value);
}

void txn_volume_resize(struct txn *txn, struct volume_id id, uint64_t size_bytes)
{
    add_op(txn, TXN_VOLUME_RESIZE, id.value)->size_bytes = size_bytes;
}

void txn_volume_rename(struct txn *txn, struct volume_id id, const char *name)
{
    set_name(add_op(txn, TXN_VOLUME_RENAME, id.value), name);
}

struct base_id txn_freeze(struct txn *txn, struct volume_id id)
{
    struct txn_op *op = add_op(txn, TXN_FREEZE, id.value);
    op->base = new_id(txn->store);
    return (struct base_id){op->base};
}

struct doc_id txn_doc_put(struct txn *txn, const struct doc *doc, const void *blob, size_t blob_bytes)
{
    struct txn_op *op = add_op(txn, TXN_DOC_PUT, doc->id.value != 0 ? doc->id.value : new_id(txn->store));
    op->replaces = doc->id.value != 0;
    doc_copy(doc, &op->doc);
    op->doc.id.value = op->id;
    op->blob_bytes = blob_bytes;
    if (blob_bytes > 0) {
        uint8_t *copy = malloc(blob_bytes);
        if (copy == NULL)
            abort();
        memcpy(copy, blob, blob_bytes);
        op->blob = copy;
    }
    return (struct doc_id){op->id};
}

void txn_doc_delete(struct txn *txn, struct doc_id id)
{
    add_op(txn, TXN_DOC_DELETE, id.value);
}

// ---- Running ----

static void start_next(struct store *store);

static void answer(struct txn *txn)
{
    void (*done)(void *, int, const struct error *) = txn->done;
    void *context = txn->context;
    int result = txn->result;
    struct error err = txn->err;
    txn_free(txn);
    done(context, result, &err);
}

static void durable_done(struct log_sync *sync, int result)
{
    struct txn *txn = (struct txn *)((char *)sync - offsetof(struct txn, sync));
    if (result < 0)
        txn->result = error_set(&txn->err, result,
                "the change is in the log but could not be made durable: %s", strerror(-result));
    answer(txn);
}

static void finish(struct txn *txn)
{
    struct store *store = txn->store;
    store->txn_running = false;
    store->txn_current = NULL;
    if (txn->result == 0 && (txn->flags & TXN_DURABLE) != 0) {
        txn->sync = (struct log_sync){.loop = store->loops[0], .done = durable_done};
        log_sync(store->log, &txn->sync);
    } else {
        answer(txn);
    }
    start_next(store);
}

// Sends each op of the given kinds to its volume's loop; `back` runs on loop 0 when all have answered.
static void fan_out(
        struct txn *txn, bool (*wanted)(const struct txn_op *op), void (*run)(struct loop_work *work))
{
    for (unsigned i = 0; i < txn->count; i++) {
        struct txn_op *op = &txn->ops[i];
        if (!wanted(op))
            continue;
        txn->waiting++;
        op->txn = txn;
        op->work.run = run;
        loop_post(op->volume->loop, &op->work);
    }
}

static void finished_on_loop(struct loop_work *work)
{
    struct txn_op *op = (struct txn_op *)((char *)work - offsetof(struct txn_op, work));
    if (--op->txn->waiting == 0)
        finish(op->txn);
}

static void resize_finish(struct loop_work *work)
{
    struct txn_op *op = (struct txn_op *)((char *)work - offsetof(struct txn_op, work));
    struct volume *volume = op->volume;
    struct tree_space *space = &volume->store->space;
    uint64_t wanted = op->txn->result == 0 ? op->size_bytes : op->old_size_bytes;
    uint64_t blocks = volume_blocks_of(wanted), before = volume_blocks_of(op->old_size_bytes);
    if (blocks < before)
        tree_fill(space, &volume->tree, volume->owner, blocks, before - blocks, LOCATOR_UNMAPPED);
    tree_grow(space, &volume->tree, volume->owner, blocks);
    atomic_store(&volume->size_bytes, wanted);
    op->work.run = finished_on_loop;
    loop_post(volume->store->loops[0], &op->work);
}

static bool is_resize(const struct txn_op *op)
{
    return op->type == TXN_VOLUME_RESIZE && op->volume != NULL;
}

// Between the check and the end of a deletion nobody may open the volume.
static void mark_leaving(struct txn *txn, bool leaving)
{
    for (unsigned i = 0; i < txn->count; i++)
        if (txn->ops[i].type == TXN_VOLUME_DELETE)
            txn->ops[i].volume->leaving = leaving;
}

static void conclude(struct txn *txn)
{
    if (txn->result < 0) {
        pthread_mutex_lock(&txn->store->lock);
        mark_leaving(txn, false);
        pthread_mutex_unlock(&txn->store->lock);
    }
    txn->waiting = 1;
    fan_out(txn, is_resize, resize_finish);
    if (--txn->waiting == 0)
        finish(txn);
}

static void logged(struct log_append *append, int result)
{
    struct txn *txn = (struct txn *)((char *)append - offsetof(struct txn, append));
    struct store *store = txn->store;
    if (result == 0) {
        pthread_mutex_lock(&store->lock);
        catalog_apply(store, txn->ops, txn->count, append->first);
        pthread_mutex_unlock(&store->lock);
    } else {
        txn->result = error_set(&txn->err, result, "%s",
                result == -ENOSPC ? "the store's log is full: remove snapshots, volumes or sandboxes, or "
                                    "raise its log budget"
                                  : "the store has stopped writing after an I/O error; see the daemon's log, "
                                    "then restart it");
    }
    conclude(txn);
}

static uint32_t blocks_for(size_t bytes)
{
    return (uint32_t)((bytes + BLOCK_SIZE - 1) >> BLOCK_SHIFT);
}

// Body inline when it fits beside the blobs' sums, else in blocks before them.
static int lay_out(struct txn *txn)
{
    struct log_append *append = &txn->append;
    size_t body_size;
    uint32_t blob_blocks = 0;
    for (unsigned i = 0; i < txn->count; i++)
        blob_blocks += blocks_for(txn->ops[i].blob_bytes);
    catalog_encode_ops(txn->ops, txn->count, &txn->body, &body_size);
    uint32_t body_blocks = body_size <= record_inline_room(0, blob_blocks) ? 0 : blocks_for(body_size);
    uint32_t blocks = body_blocks + blob_blocks;
    if (blocks > log_txn_payload_max(txn->store->log))
        return error_set(&txn->err, -EFBIG,
                "the change is too large for one log record (%u blocks, at most %u)", blocks,
                log_txn_payload_max(txn->store->log));
    uint32_t at = body_blocks;
    txn->payload = blocks > 0 ? io_buffer_alloc((size_t)blocks << BLOCK_SHIFT) : NULL;
    if (blocks > 0)
        memset(txn->payload, 0, (size_t)blocks << BLOCK_SHIFT);
    for (unsigned i = 0; i < txn->count; i++) {
        struct txn_op *op = &txn->ops[i];
        if (op->blob_bytes == 0)
            continue;
        op->blob_block = at;
        memcpy(txn->payload + ((size_t)at << BLOCK_SHIFT), op->blob, op->blob_bytes);
        at += blocks_for(op->blob_bytes);
    }
    free(txn->body); // again, now that the blobs' places are known: the size is the same
    catalog_encode_ops(txn->ops, txn->count, &txn->body, &body_size);
    if (body_blocks > 0)
        memcpy(txn->payload, txn->body, body_size);
    append->body = txn->body;
    append->body_bytes = (uint32_t)body_size;
    append->body_blocks = body_blocks;
    append->payload = txn->payload;
    append->payload_blocks = blocks;
    return 0;
}

// A shrink frees space, and has cleared the rest of its last block by now: it must not be refused for want of
// room.
static bool uses_reserve(const struct txn *txn)
{
    bool reserve = (txn->flags & TXN_RESERVE) != 0;
    for (unsigned i = 0; i < txn->count; i++)
        reserve = reserve || (is_resize(&txn->ops[i]) && txn->ops[i].size_bytes < txn->ops[i].old_size_bytes);
    return reserve;
}

static void append_record(struct txn *txn)
{
    struct store *store = txn->store;
    int r = txn->result != 0 ? txn->result : lay_out(txn);
    if (r < 0) {
        txn->result = r;
        conclude(txn);
        return;
    }
    txn->append.loop = store->loops[0];
    txn->append.kind = RECORD_TXN;
    txn->append.reserve = uses_reserve(txn);
    txn->append.done = logged;
    log_append(store->log, &txn->append);
}

static void prepared_on_loop(struct loop_work *work)
{
    struct txn_op *op = (struct txn_op *)((char *)work - offsetof(struct txn_op, work));
    struct txn *txn = op->txn;
    if (op->prepare_result < 0 && txn->result == 0)
        txn->result = error_set(&txn->err, op->prepare_result, "cannot clear the end of the last block: %s",
                strerror(-op->prepare_result));
    if (--txn->waiting == 0)
        append_record(txn);
}

static void prepare_done(struct txn_op *op)
{
    op->work.run = prepared_on_loop;
    loop_post(op->txn->store->loops[0], &op->work);
}

static void frozen(struct freeze *freeze)
{
    struct txn_op *op = (struct txn_op *)((char *)freeze - offsetof(struct txn_op, freeze));
    op->epoch = freeze->epoch;
    op->tree = freeze->tree;
    prepare_done(op);
}

struct tail_zero {
    struct volume_io io;
    struct txn_op *op;
};

// From here on nothing is accepted beyond the new end, and nothing is in flight there.
static void shrunk(struct txn_op *op)
{
    if (op->prepare_result == 0)
        atomic_store(&op->volume->size_bytes, op->size_bytes);
    volume_unfence(op->fence);
    prepare_done(op);
}

static void tail_zeroed(struct volume_io *io, int result)
{
    struct tail_zero *tail = (struct tail_zero *)io;
    struct txn_op *op = tail->op;
    op->prepare_result = result;
    free(tail);
    shrunk(op);
}

static void shrink_fenced(struct txn_op *op)
{
    uint64_t block_end = volume_blocks_of(op->size_bytes) << BLOCK_SHIFT;
    uint64_t end = block_end < op->old_size_bytes ? block_end : op->old_size_bytes;
    if (end == op->size_bytes) {
        shrunk(op);
        return;
    }
    struct tail_zero *tail = calloc(1, sizeof *tail);
    if (tail == NULL)
        abort();
    tail->op = op;
    tail->io = (struct volume_io){.op = VOLUME_ZERO,
            .flags = VOLUME_FENCED,
            .offset = op->size_bytes,
            .length = end - op->size_bytes,
            .done = tail_zeroed};
    volume_submit(op->volume, &tail->io);
}

static void fence_ready(void *context)
{
    struct txn_op *op = context;
    op->fenced = true;
    if (op->fence != NULL) // else shrink goes on when it knows the fence
        shrink_fenced(op);
}

// A shrink hides the tail before the record is written, so that no later write can be answered there, and
// waits for those in flight: their records must not come after it. The rest of a block that the new end cuts
// is zeroed first: a later growth must not show it again.
static void shrink(struct txn_op *op)
{
    if (op->size_bytes >= op->old_size_bytes) {
        prepare_done(op);
        return;
    }
    op->fence = volume_fence(
            op->volume, op->size_bytes >> BLOCK_SHIFT, volume_blocks_of(op->old_size_bytes), fence_ready, op);
    if (op->fenced)
        shrink_fenced(op);
}

static void prepare_on_loop(struct loop_work *work)
{
    struct txn_op *op = (struct txn_op *)((char *)work - offsetof(struct txn_op, work));
    if (op->type == TXN_FREEZE) {
        op->freeze.done = frozen;
        volume_freeze(op->volume, &op->freeze);
    } else {
        shrink(op);
    }
}

static bool needs_prepare(const struct txn_op *op)
{
    return op->type == TXN_FREEZE || op->type == TXN_VOLUME_RESIZE;
}

// No other transaction freezes meanwhile: what is written after its freezes has a higher epoch.
static void note_epochs(struct txn *txn)
{
    for (unsigned i = 0; i < txn->count; i++) {
        struct txn_op *op = &txn->ops[i];
        if (op->type != TXN_FREEZE && op->type != TXN_VOLUME_RESIZE)
            continue;
        op->waits_for = atomic_load(&op->volume->epoch);
        for (unsigned k = 0; k < i; k++)
            op->waits_for += txn->ops[k].type == TXN_FREEZE && txn->ops[k].id == op->id ? 1 : 0;
    }
}

static void run(struct txn *txn)
{
    struct store *store = txn->store;
    if (txn->exclusive != NULL) {
        store->txn_current = NULL;
        log_end_hurry(store->log);
        void (*begin)(void *) = txn->exclusive;
        void *context = txn->context;
        txn_free(txn);
        begin(context);
        return;
    }
    store->txn_current = txn;
    pthread_mutex_lock(&store->lock);
    txn->result = catalog_check(store, txn->ops, txn->count, &txn->err);
    if (txn->result == 0) {
        mark_leaving(txn, true);
        note_epochs(txn);
    }
    pthread_mutex_unlock(&store->lock);
    if (txn->result < 0 || txn->count == 0) {
        finish(txn);
        return;
    }
    txn->waiting = 1;
    fan_out(txn, needs_prepare, prepare_on_loop);
    if (--txn->waiting == 0)
        append_record(txn);
}

static void start_next(struct store *store)
{
    struct txn *txn = store->txn_head;
    if (store->txn_running || txn == NULL)
        return;
    store->txn_head = txn->next;
    if (store->txn_head == NULL)
        store->txn_tail = &store->txn_head;
    store->txn_running = true;
    run(txn);
}

static void enqueue(struct loop_work *work)
{
    struct txn *txn = (struct txn *)((char *)work - offsetof(struct txn, work));
    struct store *store = txn->store;
    txn->next = NULL;
    *store->txn_tail = txn;
    store->txn_tail = &txn->next;
    start_next(store);
}

void txn_commit(struct txn *txn, unsigned flags,
        void (*done)(void *context, int result, const struct error *err), void *context)
{
    txn->flags = flags;
    txn->done = done;
    txn->context = context;
    txn->work.run = enqueue;
    loop_post(txn->store->loops[0], &txn->work);
}

// The volumes whose writes the transaction under way may wait for.
static void begin_hurry(struct store *store)
{
    const struct txn *txn = store->txn_current;
    struct log_hurry *volumes = malloc(((txn != NULL ? txn->count : 0) + 1) * sizeof *volumes);
    unsigned count = 0;
    if (volumes == NULL)
        abort();
    for (unsigned i = 0; txn != NULL && i < txn->count; i++)
        if (txn->ops[i].type == TXN_FREEZE || txn->ops[i].type == TXN_VOLUME_RESIZE)
            volumes[count++] = (struct log_hurry){txn->ops[i].id, txn->ops[i].waits_for};
    log_begin_hurry(store->log, volumes, count);
    free(volumes);
}

// A turn comes before the transactions that wait. The one under way may be waiting for writes that wait for
// room in the log, which only the checkpoint that asks for this turn can make.
static void enqueue_first(struct loop_work *work)
{
    struct txn *txn = (struct txn *)((char *)work - offsetof(struct txn, work));
    struct store *store = txn->store;
    txn->next = store->txn_head;
    if (store->txn_head == NULL)
        store->txn_tail = &txn->next;
    store->txn_head = txn;
    if (store->txn_running)
        begin_hurry(store);
    start_next(store);
}

void txn_exclusive_begin(struct store *store, void (*begin)(void *context), void *context)
{
    struct txn *txn = txn_begin(store);
    txn->exclusive = begin;
    txn->context = context;
    txn->work.run = enqueue_first;
    loop_post(store->loops[0], &txn->work);
}

void txn_exclusive_end(struct store *store)
{
    store->txn_running = false;
    start_next(store);
}

void txn_stop_all(struct store *store)
{
    for (struct txn *txn = store->txn_head, *next; txn != NULL; txn = next) {
        next = txn->next;
        txn_free(txn);
    }
    store->txn_head = NULL;
    store->txn_tail = &store->txn_head;
}
