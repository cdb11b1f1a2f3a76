// SPDX-License-Identifier: Apache-2.0
// Recovery. First every file's headers are walked by themselves; then the files are chained; then the records
// of the chain are applied in order. The log ends at the first record that is not whole, but only if nothing
// says that it had been durable: each header carries how far the log was durable when it was written, so
// damage inside the durable part is reported and never taken for the end.
//
// A file follows another when its head continues the sequence numbers and carries the same incarnation: stale
// files and stale records after the end, of an earlier life or of a process that died, fail one of the two.
#include "blockstore/log_recovery.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_BLOCKS = 64, WINDOW_SMALL = 2 }; // small after a jump: headers of large records lie far apart
static const uint64_t HALF_SPARE = UINT64_C(1)
                                   << 63; // in recovery.spares: the writing of its zeros was cut short

static void note_name(void *context, const char *name)
{
    struct recovery *self = context;
    bool half = strncmp(name, "new.", 4) == 0, spare = half || strncmp(name, "spare.", 6) == 0;
    const char *digits = half ? name + 4 : spare ? name + 6 : name;
    char *end;
    if (!isdigit((unsigned char)*digits))
        return;
    uint64_t number = strtoull(digits, &end, 10);
    if (*end != 0)
        return;
    unsigned *count = spare ? &self->spare_count : &self->count;
    unsigned *capacity = spare ? &self->spare_capacity : &self->capacity;
    if (*count == *capacity) {
        *capacity = *capacity == 0 ? 16 : *capacity * 2;
        if (spare)
            self->spares = realloc(self->spares, *capacity * sizeof *self->spares);
        else
            self->files = realloc(self->files, *capacity * sizeof *self->files);
        if ((spare ? (void *)self->spares : (void *)self->files) == NULL)
            abort();
    }
    if (spare)
        self->spares[(*count)++] = number | (half ? HALF_SPARE : 0);
    else
        self->files[(*count)++] = (struct found_file){.number = number};
}

static int compare_files(const void *a, const void *b)
{
    const struct found_file *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

// One block of a file, or NULL with *ret_result 0 beyond its end and -errno on an error.
static const void *block_at(struct recovery *self, struct log_file *file, uint64_t block, int *ret_result)
{
    *ret_result = 0;
    if (block >= self->log->file_blocks)
        return NULL;
    if (self->window_file != file || block < self->window_at ||
            block >= self->window_at + self->window_count) {
        bool jumped = block > self->window_at + self->window_count + WINDOW_SMALL;
        uint64_t left = self->log->file_blocks - block, want = jumped ? WINDOW_SMALL : WINDOW_BLOCKS;
        want = want < left ? want : left;
        self->window_file = NULL;
        int r = io_sync_full(
                self->loop, IO_READ, file->read_fd, self->window, want * BLOCK_SIZE, block * BLOCK_SIZE);
        if (r == -ENODATA && want > 1) { // a short file: block by block
            want = 1;
            r = io_sync_full(
                    self->loop, IO_READ, file->read_fd, self->window, BLOCK_SIZE, block * BLOCK_SIZE);
        }
        if (r == -ENODATA)
            return NULL;
        if (r < 0) {
            *ret_result = r;
            return NULL;
        }
        self->window_file = file;
        self->window_at = block;
        self->window_count = want;
    }
    return self->window + (block - self->window_at) * BLOCK_SIZE;
}

// 1 and the record, 0 when there is none at that place, -errno when the file cannot be read.
int log_record_at(struct recovery *self, struct log_file *file, uint64_t number, uint64_t block,
        struct record *ret_record)
{
    int r;
    const void *bytes = block_at(self, file, block, &r);
    if (bytes == NULL)
        return r;
    r = record_decode(bytes, self->log->config.seed, &self->arrays, ret_record);
    if (r == -EBADMSG || ret_record->file != number)
        return 0;
    if (r < 0)
        return r;
    return block + 1 + ret_record->payload_blocks <= self->log->file_blocks;
}

// Whether `record` may follow in a file whose walk stands at `f`.
static bool continues(const struct found_file *f, const struct record *record)
{
    if (record->seq != f->end_seq)
        return false;
    return record->incarnation == f->last_incarnation ||
           (record->kind == RECORD_OPEN && record->previous == f->last_incarnation);
}

int log_cannot_read(const struct log_file *file, int result, struct error *err)
{
    if (result == -EPROTO)
        return error_set(err, result,
                "log file %s holds a record that was written by a newer version than this program knows; use "
                "that one",
                file->path);
    return error_set(err, result, "cannot read log file %s: %s", file->path, strerror(-result));
}

static int walk_file(struct recovery *self, struct found_file *f)
{
    struct record record;
    while (f->end_block < f->limit_block) {
        int r = log_record_at(self, f->file, f->number, f->end_block, &record);
        if (r <= 0)
            return r;
        if (f->end_block == 0) {
            if (record.kind != RECORD_IMAGE || record.part != 0)
                return 0;
            f->head_valid = true;
            f->oldest_claim = record.volume;
            f->first_seq = f->end_seq = record.seq;
            f->first_incarnation = f->last_incarnation = record.incarnation;
            f->first_previous = record.previous;
        }
        if (!continues(f, &record))
            return 0;
        if (record.durable > f->durable)
            f->durable = record.durable;
        if (record.kind == RECORD_OPEN)
            f->last_incarnation = record.incarnation;
        if (record.kind == RECORD_RETIRE) {
            f->retire_claim = record.volume;
        }
        f->end_seq++;
        f->end_block += 1 + record.payload_blocks;
    }
    return 0;
}

// Looks for later headers behind the end of the walk: evidence of what had been durable.
static int scan_rest(struct recovery *self, struct found_file *f)
{
    struct record record;
    for (uint64_t block = f->end_block; block < self->log->file_blocks; block++) {
        int r = log_record_at(self, f->file, f->number, block, &record);
        if (r < 0)
            return r;
        if (r > 0 && record.durable > f->durable)
            f->durable = record.durable;
    }
    return 0;
}

// The chain that starts at files[start]: marks how far it goes. Returns the index after the last file;
// order[] gets indices.
static unsigned chain_from(struct recovery *self, unsigned start, unsigned *order)
{
    unsigned count = 0, at = start;
    order[count++] = at;
    for (unsigned next = at + 1; next < self->count; next++) {
        const struct found_file *f = &self->files[at], *n = &self->files[next];
        bool same_life =
                n->first_incarnation == f->last_incarnation || n->first_previous == f->last_incarnation;
        if (!n->head_valid || n->first_seq != f->end_seq || !same_life)
            continue;
        at = next;
        order[count++] = at;
    }
    return count;
}

static uint64_t durable_claim(struct recovery *self)
{
    uint64_t durable = self->log->config.durable_seq;
    for (unsigned i = 0; i < self->count; i++)
        if (self->files[i].durable > durable)
            durable = self->files[i].durable;
    return durable;
}

// Which file the chain says is the oldest that counts.
static uint64_t chain_claim(struct recovery *self, const unsigned *order, unsigned count)
{
    uint64_t claim = self->log->config.start_file; // what a checkpoint covers does not count, retired or not
    for (unsigned i = 0; i < self->count; i++)
        if (self->files[i].head_valid && self->files[i].oldest_claim > claim)
            claim = self->files[i].oldest_claim;
    for (unsigned i = 0; i < count; i++)
        if (self->files[order[i]].retire_claim > claim)
            claim = self->files[order[i]].retire_claim;
    return claim;
}

int log_damaged(struct recovery *self, const struct found_file *f, struct error *err)
{
    return error_set(err, -EBADMSG,
            "log file %s/%08" PRIu64 " is damaged at byte %" PRIu64 ": record %" PRIu64
            " was durable and cannot be read%s; restore the file from a copy, or the store from a backup",
            self->log->directory, f->number, f->end_block * BLOCK_SIZE, f->end_seq,
            f == &self->files[self->count - 1] ? ", here or in a later file that is missing" : "");
}

// Finds the chain. *ret_order is malloc'ed.
static int find_chain(struct recovery *self, unsigned **ret_order, unsigned *ret_count, struct error *err)
{
    unsigned *order = calloc(self->count + 1, sizeof *order), stuck = UINT32_MAX;
    if (order == NULL)
        abort();
    for (int round = 0; round < 2; round++) {
        uint64_t durable = durable_claim(self);
        for (unsigned start = 0; start < self->count; start++) {
            if (!self->files[start].head_valid)
                continue;
            unsigned count = chain_from(self, start, order);
            struct found_file *last = &self->files[order[count - 1]];
            if (self->files[start].number != chain_claim(self, order, count))
                continue;
            if (round == 0) { // the end must stand against what lies behind it
                int r = scan_rest(self, last);
                for (unsigned i = 0; r == 0 && i < self->count; i++)
                    if (!self->files[i].head_valid && self->files[i].number > last->number)
                        r = scan_rest(self, &self->files[i]);
                if (r < 0) {
                    free(order);
                    return log_cannot_read(last->file, r, err);
                }
                durable = durable_claim(self);
            }
            if (last->end_seq > durable) {
                self->durable = durable;
                *ret_order = order;
                *ret_count = count;
                return 0;
            }
            stuck = order[count - 1];
        }
    }
    free(order);
    if (stuck != UINT32_MAX)
        return log_damaged(self, &self->files[stuck], err);
    if (self->log->config.start_file != 0)
        return error_set(err, -EBADMSG,
                "the log in %s does not fit the catalog, which says that it goes on with file %08" PRIu64
                ": that file is missing or damaged, or the catalog is of another time; restore the file, or "
                "run "
                "'ramet store check --rebuild-catalog'",
                self->log->directory, self->log->config.start_file);
    return error_set(err, -EBADMSG,
            "the log in %s has no readable beginning: a log file is missing or its first block is damaged; "
            "restore it from a copy",
            self->log->directory);
}

bool log_payload_right(struct recovery *self, struct log_file *file, const struct record *record,
        uint64_t block, int *ret_result)
{
    *ret_result = io_sync_full(self->loop, IO_READ, file->read_fd, self->payload,
            (size_t)record->payload_blocks * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
    if (*ret_result == -ENODATA)
        *ret_result = -EBADMSG;
    if (*ret_result < 0)
        return false;
    for (uint32_t i = 0; i < record->payload_blocks; i++)
        if (digest_block(self->payload + (size_t)i * BLOCK_SIZE) != record->sums[i])
            return false;
    return true;
}

// Checks the payloads that nothing says were durable. 1 = the log is shorter than the headers said.
static int verify_tail(struct recovery *self, const unsigned *order, unsigned count, struct error *err)
{
    struct record record;
    for (unsigned i = 0; i < count; i++) {
        struct found_file *f = &self->files[order[i]];
        for (uint64_t block = 0; f->end_seq - 1 > self->durable && block < f->end_block;
                block += 1 + record.payload_blocks) {
            int r = log_record_at(self, f->file, f->number, block, &record);
            if (r <= 0)
                return error_set(
                        err, r < 0 ? r : -EBADMSG, "log file %s changed while it was read", f->file->path);
            if (record.seq <= self->durable || record.payload_blocks == 0 ||
                    log_payload_right(self, f->file, &record, block, &r))
                continue;
            if (r < 0 && r != -EBADMSG)
                return log_cannot_read(f->file, r, err);
            for (unsigned later = i + 1; later < count; later++)
                self->files[order[later]].head_valid = false;
            struct log_file *file = f->file;
            *f = (struct found_file){.number = f->number, .file = file, .limit_block = block};
            r = walk_file(self, f);
            return r < 0 ? r : 1;
        }
    }
    return 0;
}

static int open_found(struct recovery *self, struct error *err)
{
    uint64_t highest = 0;
    for (unsigned i = 0; i < self->count; i++) {
        struct found_file *f = &self->files[i];
        f->file = log_file_new(self->log->file_blocks, log_path(self->log->directory, "", f->number));
        f->limit_block = self->log->file_blocks;
        int r = log_file_open(self->loop, f->file->path, self->log->read_only ? O_RDONLY : O_RDWR, f->file);
        if (r == 0)
            r = walk_file(self, f);
        if (r < 0)
            return log_cannot_read(f->file, r, err);
        highest = f->number > highest ? f->number : highest;
    }
    self->log->next_file_number = highest + 1;
    return 0;
}

// Every file was zero-written and synced to its full size before it got its number. One that is shorter has
// lost something: it must not pass for the rest of a rotation that was cut short.
static int check_sizes(struct recovery *self, uint64_t first, struct error *err)
{
    for (unsigned i = 0; i < self->count; i++) {
        struct found_file *f = &self->files[i];
        if (f->number < first)
            continue;
        self->window_file = NULL;
        int r = io_sync_full(self->loop, IO_READ, f->file->read_fd, self->window, BLOCK_SIZE,
                (self->log->file_blocks - 1) * BLOCK_SIZE);
        if (r == -ENODATA)
            return error_set(err, -EBADMSG,
                    "log file %s is shorter than the %" PRIu64
                    " bytes that it must have: it has been cut; restore it from a copy, or the store from a "
                    "backup",
                    f->file->path, self->log->file_blocks * BLOCK_SIZE);
        if (r < 0)
            return log_cannot_read(f->file, r, err);
    }
    return 0;
}

void log_close_fd(struct loop *loop, int fd)
{
    struct io_op op = {.code = IO_CLOSE, .fd = fd};
    if (fd >= 0)
        io_sync(loop, &op);
}

// Files outside the chain: they may go once what was recovered is durable (a RETIRE that allows it may not be
// yet).
static char **take_leftovers(struct recovery *self)
{
    char **paths = calloc(self->count + 1, sizeof *paths);
    if (paths == NULL)
        abort();
    unsigned count = 0;
    for (unsigned i = 0; i < self->count; i++) {
        struct log_file *file = self->files[i].file;
        if (file == NULL)
            continue;
        log_close_fd(self->loop, file->fd);
        log_close_fd(self->loop, file->read_fd);
        paths[count++] = file->path;
        file->path = NULL;
        self->files[i].file = log_file_free(file);
    }
    return paths;
}

static void adopt_spares(struct recovery *self)
{
    struct log *log = self->log;
    for (unsigned i = 0; i < self->spare_count; i++) {
        uint64_t number = self->spares[i] & ~HALF_SPARE;
        bool half = (self->spares[i] & HALF_SPARE) != 0;
        if (number >= log->next_spare_number)
            log->next_spare_number = number + 1;
        struct log_file *file =
                log_file_new(log->file_blocks, log_path(log->directory, half ? "new." : "spare.", number));
        uint8_t *last = self->window;
        bool whole = !half && log->spare_files < log->config.spare_files &&
                     log->used_files + log->spare_files < log->budget_files &&
                     log_file_open(self->loop, file->path, O_RDWR, file) == 0 &&
                     io_sync_full(self->loop, IO_READ, file->read_fd, last, BLOCK_SIZE,
                             (log->file_blocks - 1) * BLOCK_SIZE) == 0;
        if (whole) {
            file->next = log->spares;
            log->spares = file;
            log->spare_files++;
            continue;
        }
        log_close_fd(self->loop, file->fd);
        log_close_fd(self->loop, file->read_fd);
        struct io_op op = {.code = IO_UNLINK, .path = file->path};
        io_sync(self->loop, &op);
        log_file_free(file);
    }
}

static void recovery_free(struct recovery *self, bool failed)
{
    for (unsigned i = 0; i < self->count; i++) {
        if (failed && self->files[i].file != NULL) {
            log_close_fd(self->loop, self->files[i].file->fd);
            log_close_fd(self->loop, self->files[i].file->read_fd);
            log_file_free(self->files[i].file);
        }
    }
    free(self->files);
    free(self->spares);
    free(self->image);
    free(self->roots);
    io_buffer_free(self->window);
    io_buffer_free(self->payload);
}

int log_recover(struct log *log, const struct log_replay *replay, char ***ret_leftovers, struct error *err)
{
    struct recovery self = {.log = log, .loop = log->loops[0]};
    self.window = io_buffer_alloc(WINDOW_BLOCKS * BLOCK_SIZE);
    self.payload = io_buffer_alloc((size_t)RECORD_PAYLOAD_MAX * BLOCK_SIZE);
    unsigned *order = NULL, count = 0;
    log->next_spare_number = 1;
    int r = log->loops[0]->ops->list_dir(log->loops[0], log->directory, note_name, &self);
    if (r < 0)
        error_set(err, r, "cannot list %s: %s", log->directory, strerror(-r));
    if (r == 0 && self.count > 1)
        qsort(self.files, self.count, sizeof *self.files, compare_files);
    if (r == 0)
        r = open_found(&self, err);
    int shorter = 1;
    while (r == 0 && shorter > 0) {
        free(order);
        order = NULL;
        r = find_chain(&self, &order, &count, err);
        if (r == 0)
            r = check_sizes(&self, self.files[order[0]].number, err);
        shorter = r == 0 ? verify_tail(&self, order, count, err) : 0;
        if (shorter < 0)
            r = shorter;
    }
    if (r == 0 && log->config.only_by_checkpoint && log->config.start_file == 0 &&
            self.files[order[0]].number != 1)
        r = error_set(err, -EBADMSG,
                "the log in %s begins with file %08" PRIu64
                ", so there was a checkpoint, but the catalog has none: it "
                "is lost; put it back, or run 'ramet store check --rebuild-catalog'",
                log->directory, self.files[order[0]].number);
    if (r == 0)
        r = log_apply_chain(&self, order, count, replay, err);
    if (r == 0) {
        *ret_leftovers = take_leftovers(&self);
        if (!log->read_only)
            adopt_spares(&self);
    }
    free(order);
    recovery_free(&self, r < 0);
    return r;
}
