// SPDX-License-Identifier: Apache-2.0
// Appends, acknowledgement in log order, group-committed syncs.
//
// The write path has three steps: reserve (a sequence number and a place, under the lock), write (header and
// payload in one vectored write on the caller's loop), acknowledge (records leave `in_flight` from its head
// only). An append that does not fit waits in `queue`, and everybody after it too, so order is kept.
#include "blockstore/log_private.h"

#include "blockstore/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETIRE_ROOM_BLOCKS = 8,
    CUT_FILES = 1, // of the budget: for the rotation of a cut alone
    // Of a file: what stays of the current one where no other is to be had, and of the reserve's file.
    DATA_KEEPS_PART = 4,
    FREEING_KEEPS_PART = 8,
    FREEING_LEAVES_PART = 2,
};

// Who may use how much of the room: data; a guest's zeros and trims where nothing else will give room back,
// so that it can delete in a full store; transactions that free space, and the log's own records.
enum log_claim { CLAIM_DATA, CLAIM_FREEING, CLAIM_FIRST };

uint32_t log_payload_max(struct log *log)
{
    uint64_t quarter = log->file_blocks / 4;
    return (uint32_t)(quarter < RECORD_PAYLOAD_MAX ? quarter : RECORD_PAYLOAD_MAX);
}

uint32_t log_txn_payload_max(struct log *log)
{
    uint64_t half = log->file_blocks / 2;
    return (uint32_t)(half < RECORD_PAYLOAD_MAX ? half : RECORD_PAYLOAD_MAX);
}

uint64_t log_free_blocks_locked(struct log *log)
{
    uint64_t budget = log->budget_files - CUT_FILES;
    uint64_t files = budget > log->used_files ? budget - log->used_files : 0;
    return files * log->file_blocks + (log->file_blocks - log->current->used_blocks);
}

// ---- Delivery: done callbacks run on each append's own loop, in log order ----

static void schedule_acks_locked(struct log_ack_queue *acks)
{
    if (acks->scheduled)
        return;
    acks->scheduled = true;
    loop_post(acks->loop, &acks->work);
}

void log_deliver_locked(struct log *log, struct log_append *append, int result)
{
    struct log_ack_queue *acks = &log->acks[append->loop->index];
    append->result = result;
    append->next = NULL;
    *acks->tail = append;
    acks->tail = &append->next;
    log->undelivered++;
    schedule_acks_locked(acks);
}

static void deliver_sync_locked(struct log *log, struct log_sync *sync, int result)
{
    struct log_ack_queue *acks = &log->acks[sync->loop->index];
    sync->result = result;
    sync->next = NULL;
    *acks->sync_tail = sync;
    acks->sync_tail = &sync->next;
    schedule_acks_locked(acks);
}

static void run_acks(struct loop_work *work)
{
    struct log_ack_queue *acks =
            (struct log_ack_queue *)((char *)work - offsetof(struct log_ack_queue, work));
    struct log *log = acks->log;
    pthread_mutex_lock(&log->lock);
    acks->scheduled = false;
    struct log_append *appends = acks->head;
    struct log_sync *syncs = acks->sync_head;
    acks->head = NULL;
    acks->tail = &acks->head;
    acks->sync_head = NULL;
    acks->sync_tail = &acks->sync_head;
    pthread_mutex_unlock(&log->lock);
    unsigned count = 0;
    for (struct log_append *append = appends, *next; append != NULL; append = next) {
        next = append->next;
        append->done(append, append->result);
        count++;
    }
    for (struct log_sync *sync = syncs, *next; sync != NULL; sync = next) {
        next = sync->next;
        sync->done(sync, sync->result);
    }
    pthread_mutex_lock(&log->lock);
    log->undelivered -= count;
    log_kick_rotation_locked(log);
    pthread_mutex_unlock(&log->lock);
}

// ---- Reserve ----

static bool relief_expected_locked(struct log *log, enum log_claim claim)
{
    return log_retire_expected_locked(log) ||
           log->relief >= (claim == CLAIM_FREEING ? LOG_RELIEF_FREEING : LOG_RELIEF_ALL);
}

static enum log_claim claim_locked(struct log *log, const struct log_append *append)
{
    if (append->reserve || append->hurried)
        return CLAIM_FIRST;
    bool frees = append->kind == RECORD_ZERO || append->kind == RECORD_TRIM;
    return frees && !relief_expected_locked(log, CLAIM_DATA) ? CLAIM_FREEING : CLAIM_DATA;
}

// A spare may be taken for ordinary data only while others stay for the reserve and for a cut, or can still
// be made.
static bool spare_expected_locked(struct log *log, enum log_claim claim)
{
    return log->spare_files >= CUT_FILES + (claim == CLAIM_DATA ? 2u : 1u) || log->preparing ||
           log_can_prepare_locked(log);
}

// Where no other file is to be had, the rest of the current one is all there is for what frees space.
static uint64_t kept_blocks_locked(struct log *log, enum log_claim claim)
{
    bool more = log->spare_files > CUT_FILES ||
                (!log->prepare_failed && log->used_files + log->spare_files < log->budget_files);
    if (claim == CLAIM_FIRST || (more && !log->grow_refused))
        return 0;
    return log->file_blocks / (claim == CLAIM_DATA ? DATA_KEEPS_PART : FREEING_KEEPS_PART);
}

// Every file keeps a little room at its end, so that a RETIRE or OPEN record always finds its block.
static bool has_room_locked(
        struct log *log, const struct log_append *append, enum log_claim claim, bool *ret_rotate)
{
    bool small = append->kind == RECORD_RETIRE || append->kind == RECORD_OPEN;
    uint64_t need =
            1 + append->payload_blocks + (small ? 0 : RETIRE_ROOM_BLOCKS) + kept_blocks_locked(log, claim);
    *ret_rotate = log->current->used_blocks + need > log->file_blocks;
    if (claim == CLAIM_FIRST)
        return !*ret_rotate || log->used_files < log->budget_files - CUT_FILES;
    // A cut makes a new file without asking: so data may be refused within the current one too.
    if ((log->grow_refused && *ret_rotate) || (log->fill_refused && append->kind == RECORD_WRITE))
        return false;
    uint64_t free_blocks = log_free_blocks_locked(log);
    if (*ret_rotate) // the rest of this file is lost
        free_blocks -= log->file_blocks - log->current->used_blocks;
    return free_blocks >=
           need + (claim == CLAIM_DATA ? log->file_blocks : log->file_blocks / FREEING_LEAVES_PART);
}

static void take_place_locked(struct log *log, struct log_append *append)
{
    struct log_file *file = log->current;
    append->file = file;
    append->seq = log->next_seq++;
    append->header_block = file->used_blocks;
    append->first = locator_log(file->number, file->used_blocks + 1);
    file->used_blocks += 1 + append->payload_blocks;
    append->durable = log->durable_seq;
    append->complete = false;
    append->next = NULL;
    *log->in_flight_tail = append;
    log->in_flight_tail = &append->next;
    append->header = log->header_count > 0 ? log->header_pool[--log->header_count] : NULL;
}

enum admission { ADMIT_GO, ADMIT_WAIT, ADMIT_ROTATE, ADMIT_STALE, ADMIT_NO_SPACE };

static enum admission admit_locked(struct log *log, struct log_append *append)
{
    if (log->failed != 0)
        return ADMIT_STALE;
    if (log->rotation != ROTATION_IDLE)
        return ADMIT_WAIT;
    enum log_claim claim = claim_locked(log, append);
    bool rotate;
    bool room = has_room_locked(log, append, claim, &rotate);
    if (room && !rotate)
        return ADMIT_GO;
    if (room && spare_expected_locked(log, claim))
        return ADMIT_ROTATE;
    if (log->config.pressure != NULL)
        log->config.pressure(log->config.context);
    bool wait = append->kind < RECORD_OPEN && !append->hurried && relief_expected_locked(log, claim);
    return wait ? ADMIT_WAIT : ADMIT_NO_SPACE;
}

static struct log_append *queue_take_locked(struct log *log)
{
    struct log_append *append = log->queue;
    log->queue = append->next;
    if (log->queue == NULL)
        log->queue_tail = &log->queue;
    return append;
}

void log_pump_locked(struct log *log, struct log_append **start)
{
    struct log_append **tail = start;
    if (log->cut != NULL && log->failed != 0)
        log_cut_finish_locked(log, -ESTALE);
    if (log->cut != NULL && log->rotation == ROTATION_IDLE)
        log->rotation = ROTATION_DRAIN;
    while (log->queue != NULL) {
        enum admission admission = admit_locked(log, log->queue);
        if (admission == ADMIT_ROTATE)
            log->rotation = ROTATION_DRAIN;
        if (admission == ADMIT_ROTATE || admission == ADMIT_WAIT)
            break;
        struct log_append *append = queue_take_locked(log);
        if (admission != ADMIT_GO) {
            int stale = log->read_only ? -EROFS : -ESTALE;
            log_deliver_locked(log, append, admission == ADMIT_STALE ? stale : -ENOSPC);
            continue;
        }
        take_place_locked(log, append);
        append->work_next = NULL;
        *tail = append;
        tail = &append->work_next;
    }
    log_kick_rotation_locked(log);
    if (log->queue != NULL && log->rotation == ROTATION_IDLE && !log->retiring)
        log_kick_retire(log);
}

// ---- Write ----

static void advance_locked(struct log *log)
{
    while (log->in_flight != NULL && log->in_flight->complete) {
        struct log_append *append = log->in_flight;
        log->in_flight = append->next;
        if (log->in_flight == NULL)
            log->in_flight_tail = &log->in_flight;
        if (append->result < 0)
            log->broken = true;
        if (!log->broken)
            log->acknowledged_seq = append->seq;
        if (append->kind <= RECORD_TXN)
            log->changed_seq = append->seq;
        if (append->kind != RECORD_IMAGE)
            log_deliver_locked(log, append, append->result < 0 ? append->result : log->broken ? -ESTALE : 0);
        else
            free(append); // the log's own; its payload was freed with it
    }
    log_cut_advance_locked(log);
    log_kick_rotation_locked(log);
}

// -ENOSPC means to callers that nothing has happened; a write or sync that fails for lack of room leaves its
// records in doubt as any other failure does.
static int in_doubt(int64_t result)
{
    return result == -ENOSPC ? -EIO : (int)result;
}

static void write_done(struct io_full *full, int result)
{
    struct log_append *append = (struct log_append *)((char *)full - offsetof(struct log_append, write));
    struct log *log = append->log;
    result = in_doubt(result);
    struct log_append *start = NULL;
    pthread_mutex_lock(&log->lock);
    if (log->header_count < log->header_capacity)
        log->header_pool[log->header_count++] = append->header;
    else
        io_buffer_free(append->header);
    append->header = NULL;
    if (append->kind == RECORD_IMAGE && append->payload != NULL)
        io_buffer_free(append->payload);
    append->complete = true;
    append->result = result;
    append->file->dirty = true;
    if (result < 0)
        log_fail_locked(log, result);
    advance_locked(log);
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

static void encode_header(struct log *log, struct log_append *append)
{
    uint64_t *sums = &append->file->sums[locator_log_block(append->first)];
    for (uint32_t i = 0; i < append->payload_blocks; i++)
        sums[i] = digest_block((const char *)append->payload + (size_t)i * BLOCK_SIZE);
    struct record record = {
            .kind = append->kind,
            .file = append->file->number,
            .seq = append->seq,
            .durable = append->durable,
            .incarnation = log->incarnation,
            .previous = append->kind == RECORD_OPEN || append->kind == RECORD_IMAGE
                                ? log->previous_incarnation
                                : 0,
            .volume = append->volume,
            .epoch = append->epoch,
            .extent_count = append->extent_count,
            .payload_blocks = append->payload_blocks,
            .body_bytes = append->body_bytes,
            .body_blocks = append->body_blocks,
            .part = append->part,
            .parts = append->parts,
            .extents = append->extents,
            .sums = sums,
            .inline_body = append->body,
    };
    record_encode(&record, log->config.seed, append->header);
}

static void start_write(struct log *log, struct log_append *append)
{
    append->log = log;
    if (append->header == NULL)
        append->header = io_buffer_alloc(BLOCK_SIZE);
    encode_header(log, append);
    size_t payload = (size_t)append->payload_blocks * BLOCK_SIZE;
    struct iovec iov[2] = {{append->header, BLOCK_SIZE}, {append->payload, payload}};
    atomic_fetch_add_explicit(&log->written_bytes, BLOCK_SIZE + payload, memory_order_relaxed);
    io_full_submit(append->loop, &append->write, IO_WRITE, append->file->fd, iov, payload > 0 ? 2 : 1,
            append->header_block * BLOCK_SIZE, write_done);
}

static void start_posted(struct loop_work *work)
{
    struct log_append *append = (struct log_append *)((char *)work - offsetof(struct log_append, work));
    start_write(append->log, append);
}

void log_start_writes(struct log *log, struct log_append *start)
{
    for (struct log_append *append = start, *next; append != NULL; append = next) {
        next = append->work_next;
        if (append->loop == loop_current()) {
            start_write(log, append);
            continue;
        }
        append->log = log;
        append->work.run = start_posted;
        loop_post(append->loop, &append->work);
    }
}

void log_append(struct log *log, struct log_append *append)
{
    struct log_append *start = NULL;
    if (append->kind == RECORD_ROOTS) { // what makes room must not wait behind what waits for room
        log_append_first(log, append);
        return;
    }
    append->log = log;
    pthread_mutex_lock(&log->lock);
    log_enqueue_locked(log, append);
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

void log_append_first(struct log *log, struct log_append *append)
{
    struct log_append *start = NULL;
    append->log = log;
    append->hurried = false;
    pthread_mutex_lock(&log->lock);
    append->next = log->queue;
    if (log->queue == NULL)
        log->queue_tail = &append->next;
    log->queue = append;
    log_pump_locked(log, &start);
    pthread_mutex_unlock(&log->lock);
    log_start_writes(log, start);
}

void log_fail_locked(struct log *log, int result)
{
    if (log->failed == 0)
        log->failed = result;
}

// ---- Sync ----

static void sync_start_locked(struct log *log, struct loop *loop);

static void sync_posted(struct loop_work *work)
{
    struct log *log = (struct log *)((char *)work - offsetof(struct log, sync_work));
    pthread_mutex_lock(&log->lock);
    log->sync_scheduled = false;
    if (!log->sync_running && log->syncs != NULL)
        sync_start_locked(log, log->loops[0]);
    pthread_mutex_unlock(&log->lock);
}

static void sync_finish_locked(struct log *log)
{
    struct log_sync_run *run = &log->sync_run;
    log->sync_running = false;
    if (run->result < 0)
        log_fail_locked(log, run->result);
    else if (run->covers > log->durable_seq)
        log->durable_seq = run->covers;
    struct log_sync *waiting = log->syncs;
    log->syncs = NULL;
    log->syncs_tail = &log->syncs;
    for (struct log_sync *sync = waiting, *next; sync != NULL; sync = next) {
        next = sync->next;
        if (log->failed != 0) {
            deliver_sync_locked(log, sync, run->result < 0 ? run->result : -ESTALE);
        } else if (sync->target <= log->durable_seq) {
            deliver_sync_locked(log, sync, 0);
        } else {
            sync->next = NULL;
            *log->syncs_tail = sync;
            log->syncs_tail = &sync->next;
        }
    }
    if (log->syncs != NULL && !log->sync_scheduled) {
        log->sync_scheduled = true;
        loop_post(log->loops[0], &log->sync_work);
    }
}

static void sync_op_done(struct io_op *op, int64_t result)
{
    struct log *log = ((struct log_sync_op *)op)->log;
    pthread_mutex_lock(&log->lock);
    if (result < 0 && log->sync_run.result == 0)
        log->sync_run.result = in_doubt(result);
    if (--log->sync_run.left == 0) {
        free(log->sync_run.ops);
        log->sync_run.ops = NULL;
        sync_finish_locked(log);
    }
    pthread_mutex_unlock(&log->lock);
}

static void sync_start_locked(struct log *log, struct loop *loop)
{
    struct log_sync_run *run = &log->sync_run;
    unsigned count = log->dir_dirty ? 1 : 0;
    for (struct log_file *file = log->oldest; file != NULL; file = file->next)
        count += file->dirty ? 1 : 0;
    *run = (struct log_sync_run){.loop = loop, .covers = log->acknowledged_seq, .left = count};
    log->sync_running = true;
    if (count == 0) {
        sync_finish_locked(log);
        return;
    }
    run->ops = calloc(count, sizeof *run->ops);
    if (run->ops == NULL)
        abort();
    unsigned i = 0;
    for (struct log_file *file = log->oldest; file != NULL; file = file->next) {
        if (!file->dirty)
            continue;
        file->dirty = false;
        run->ops[i++].op = (struct io_op){.code = IO_FDATASYNC, .fd = file->fd};
    }
    if (log->dir_dirty)
        run->ops[i++].op = (struct io_op){.code = IO_FSYNC_DIR, .path = log->directory};
    log->dir_dirty = false;
    atomic_fetch_add_explicit(&log->sync_count, count, memory_order_relaxed);
    for (i = 0; i < count; i++) {
        run->ops[i].op.done = sync_op_done;
        run->ops[i].log = log;
        loop_submit(loop, &run->ops[i].op);
    }
}

void log_sync(struct log *log, struct log_sync *sync)
{
    pthread_mutex_lock(&log->lock);
    sync->target = log->acknowledged_seq;
    sync->next = NULL;
    if (log->failed != 0 && !log->read_only) {
        deliver_sync_locked(log, sync, -ESTALE);
    } else if (log->read_only || sync->target <= log->durable_seq) {
        deliver_sync_locked(log, sync, 0);
    } else {
        *log->syncs_tail = sync;
        log->syncs_tail = &sync->next;
        if (!log->sync_running)
            sync_start_locked(log, sync->loop);
    }
    pthread_mutex_unlock(&log->lock);
}

static void init_acks(struct log *log)
{
    for (unsigned i = 0; i < log->loop_count; i++) {
        struct log_ack_queue *acks = &log->acks[i];
        acks->tail = &acks->head;
        acks->sync_tail = &acks->sync_head;
        acks->work.run = run_acks;
        acks->log = log;
        acks->loop = log->loops[i];
    }
}

int log_state_init(struct log *log, struct loop **loops, unsigned loop_count)
{
    log->loops = malloc(loop_count * sizeof *loops);
    log->acks = calloc(loop_count, sizeof *log->acks);
    log->header_capacity = 256;
    log->header_pool = calloc(log->header_capacity, sizeof *log->header_pool);
    if (log->loops == NULL || log->acks == NULL || log->header_pool == NULL)
        return -ENOMEM;
    memcpy(log->loops, loops, loop_count * sizeof *loops);
    log->loop_count = loop_count;
    pthread_mutex_init(&log->lock, NULL);
    log->in_flight_tail = &log->in_flight;
    log->queue_tail = &log->queue;
    log->syncs_tail = &log->syncs;
    log->sync_work.run = sync_posted;
    init_acks(log);
    return 0;
}

void log_stat(struct log *log, struct log_stat *ret_stat)
{
    pthread_mutex_lock(&log->lock);
    *ret_stat = (struct log_stat){
            .used_bytes = log->used_files * log->config.file_bytes,
            .spare_bytes = log->spare_files * log->config.file_bytes,
            .budget_bytes = log->budget_files * log->config.file_bytes,
            .written_bytes = atomic_load(&log->written_bytes),
            .sync_count = atomic_load(&log->sync_count),
            .appended_seq = log->next_seq - 1,
            .acknowledged_seq = log->acknowledged_seq,
            .durable_seq = log->durable_seq,
            .recovered_records = log->recovered_records,
            .recovered_bytes = log->recovered_bytes,
            .changed_seq = log->changed_seq,
            .oldest_file = log->oldest->number,
            .current_file = log->current->number,
            .checkpoint_file = log->checkpoint_file,
            .used_files = log->used_files,
            .budget_files = log->budget_files,
            .failed = log->read_only ? 0 : log->failed,
    };
    for (struct log_file *file = log->oldest; file != NULL; file = file->next)
        ret_stat->live_refs += atomic_load(&file->refs);
    pthread_mutex_unlock(&log->lock);
}
