// SPDX-License-Identifier: Apache-2.0
// See log_check.h. Each file is walked by itself, window by window; where the walk meets something that is
// no record although records must follow, it looks for the next one, says what lies between, and goes on.
#include "blockstore/log_check.h"

#include "blockstore/digest.h"
#include "blockstore/log_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_BLOCKS = 1024, NAME_MAX_BYTES = 32 };
_Static_assert(WINDOW_BLOCKS > RECORD_PAYLOAD_MAX + 1, "a whole record fits");

struct checked_file {
    uint64_t number;
    char name[NAME_MAX_BYTES];
    struct log_file *held;       // of an open log
    bool head;                   // begins with a record of this file
    uint64_t first_seq, end_seq; // of its records, gaps within included
    uint64_t oldest_claim, retire_claim, durable;
    uint64_t incarnation; // of its last record
    bool gap;             // something in it is no record though records follow
    bool cut;             // shorter than every log file is
    uint64_t end_block;   // behind the last whole record
};

struct walker {
    struct task *task;
    struct log_check *check;
    struct error *err;
    struct checked_file *files;
    unsigned count, room;
    uint64_t file_blocks;
    uint64_t limit_seq;    // records after it may be in flight
    uint64_t must_seq;     // records up to it have to be there
    uint64_t first_number; // of an open log's files at the beginning, also those that retire
    struct record_arrays arrays;
    uint8_t inline_body[BLOCK_SIZE]; // of the present record
    int fd;
    uint8_t *window;
    uint64_t window_at, window_count;
    bool silent; // counting only: the first pass
};

__attribute__((format(printf, 4, 5))) static void report(struct walker *self, const struct checked_file *file,
        struct log_damage *damage, const char *format, ...)
{
    char text[400], sentence[512];
    va_list args;
    if (self->silent)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(sentence, sizeof sentence, "log/%s: %s", file->name, text);
    damage->file = file->number;
    damage->sentence = sentence;
    if (!damage->leftover)
        self->check->damages++;
    self->check->damaged(self->check->context, damage);
}

// ---- Reading ----

// Reads as much as there is; what lies behind the end is not counted.
static int read_window(struct walker *self, uint64_t block)
{
    size_t want = (size_t)WINDOW_BLOCKS * BLOCK_SIZE, done = 0;
    self->window_at = block;
    self->window_count = 0;
    while (done < want) {
        struct iovec iov = {self->window + done, want - done};
        struct io_op op = {.code = IO_READ,
                .fd = self->fd,
                .iov = &iov,
                .iov_count = 1,
                .offset = block * BLOCK_SIZE + done};
        int64_t n = task_io(self->task, &op);
        if (n < 0)
            return (int)n;
        done += (size_t)n;
        if (n == 0 || n % BLOCK_SIZE != 0)
            break;
    }
    self->window_count = done / BLOCK_SIZE;
    self->check->bytes += self->silent ? 0 : done;
    return 0;
}

// `count` blocks from `block`: *ret_bytes NULL when the file ends before.
static int blocks_at(struct walker *self, uint64_t block, uint64_t count, const uint8_t **ret_bytes)
{
    bool inside = block >= self->window_at && block + count <= self->window_at + self->window_count;
    if (!inside) {
        int r = read_window(self, block);
        if (r < 0)
            return r;
    }
    *ret_bytes = self->window_count >= count && block == self->window_at ? self->window
                 : inside ? self->window + (block - self->window_at) * BLOCK_SIZE
                          : NULL;
    return 0;
}

static int file_open(struct walker *self, const struct checked_file *file)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", self->check->directory, file->name) < 0)
        abort();
    struct io_op op = {.code = IO_OPEN, .path = path, .flags = O_RDONLY | O_DIRECT};
    int64_t fd = task_io(self->task, &op);
    if (fd == -EINVAL) { // no direct reads on this file system
        op.flags = O_RDONLY;
        fd = task_io(self->task, &op);
    }
    free(path);
    self->fd = (int)fd;
    self->window_count = 0;
    return fd < 0 ? (int)fd : 0;
}

static void file_close(struct walker *self)
{
    struct io_op op = {.code = IO_CLOSE, .fd = self->fd};
    if (self->fd >= 0)
        task_io(self->task, &op);
    self->fd = -1;
}

// 1 and the record, 0: none there; < 0: cannot read. A record of another file is none.
static int record_at(
        struct walker *self, const struct checked_file *file, uint64_t block, struct record *ret_record)
{
    const uint8_t *bytes;
    if (block >= self->file_blocks)
        return 0;
    int r = blocks_at(self, block, 1, &bytes);
    if (r < 0 || bytes == NULL)
        return r;
    r = record_decode(bytes, self->check->seed, &self->arrays, ret_record);
    if (r == -EPROTO && ret_record->file == file->number)
        return r;
    return r == 0 && ret_record->file == file->number &&
           block + 1 + ret_record->payload_blocks <= self->file_blocks;
}

// ---- Walking one file ----

static void report_payload(struct walker *self, const struct checked_file *file, const struct record *record,
        uint64_t block, uint64_t from, uint64_t count)
{
    struct log_damage damage = {.block = block + 1 + from, .count = count, .volume = record->volume};
    static const char *const kinds[] = {[RECORD_WRITE] = "data",
            [RECORD_TXN] = "a transaction",
            [RECORD_IMAGE] = "the image of the catalog",
            [RECORD_ROOTS] = "the copy of the checkpoint"};
    const char *what = record->kind < sizeof kinds / sizeof kinds[0] ? kinds[record->kind] : NULL;
    if (record->kind != RECORD_WRITE)
        damage.volume = 0;
    report(self, file, &damage,
            "bytes %" PRIu64 " to %" PRIu64 " do not match their checksums (%s of record %" PRIu64 ")",
            (block + 1 + from) * BLOCK_SIZE, (block + 1 + from + count) * BLOCK_SIZE - 1,
            what != NULL ? what : "payload", record->seq);
}

// 1: whole. 0: not; it has been reported.
static int check_payload(struct walker *self, struct checked_file *file, const struct record *record,
        uint64_t block, const uint8_t **ret_payload)
{
    uint32_t count = record->payload_blocks, bad_from = 0;
    bool whole = true, in_bad = false;
    *ret_payload = NULL;
    if (count == 0)
        return 1;
    int r = blocks_at(self, block + 1, count, ret_payload);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i <= count; i++) {
        bool there = *ret_payload != NULL || self->window_count > i;
        const uint8_t *at = *ret_payload != NULL ? *ret_payload : self->window;
        bool bad = i < count && (!there || digest_block(at + (size_t)i * BLOCK_SIZE) != record->sums[i]);
        if (bad && !in_bad)
            bad_from = i;
        if (!bad && in_bad)
            report_payload(self, file, record, block, bad_from, i - bad_from);
        in_bad = bad;
        whole = whole && !bad;
    }
    return whole;
}

static int take_record(
        struct walker *self, struct checked_file *file, struct record *record, uint64_t block, bool *ret_torn)
{
    const uint8_t *payload;
    bool may_be_torn = record->seq > self->must_seq;
    *ret_torn = false;
    if (record->body_blocks == 0) // reading the payload may move the window away from the header
        memcpy(self->inline_body, record->inline_body, record->body_bytes);
    bool silent = self->silent;
    self->silent = silent || may_be_torn;
    int r = check_payload(self, file, record, block, &payload);
    self->silent = silent;
    if (r < 0)
        return r;
    if (r == 0) {
        *ret_torn = may_be_torn;
        return 0;
    }
    if (self->silent)
        return 0;
    self->check->records++;
    const void *body = record->body_blocks > 0 ? payload : self->inline_body;
    return self->check->record == NULL ? 0 : self->check->record(self->check->context, record, body);
}

// Records of a life that ended may lie behind; only the first pass takes them: they know what was durable.
static bool follows(const struct walker *self, const struct checked_file *file, const struct record *record)
{
    uint64_t last = file->end_seq > self->must_seq ? file->end_seq : self->must_seq;
    bool same_life = self->silent || record->incarnation == file->incarnation ||
                     (record->kind == RECORD_OPEN && record->previous == file->incarnation);
    return file->end_seq == 0 || (same_life && record->seq >= file->end_seq && record->seq <= last);
}

// The next record of this file behind something that is none; 0 when there is none.
static int find_next(
        struct walker *self, const struct checked_file *file, uint64_t block, uint64_t *ret_block)
{
    struct record record;
    for (*ret_block = 0; block < self->file_blocks; block++) {
        int r = record_at(self, file, block, &record);
        if (r < 0)
            return r;
        if (r > 0 && record.seq <= self->must_seq && follows(self, file, &record)) {
            *ret_block = block;
            return 0;
        }
    }
    return 0;
}

static void note_header(struct checked_file *file, const struct record *record)
{
    if (file->end_seq == 0) {
        file->first_seq = record->seq;
        file->head = record->kind == RECORD_IMAGE && record->part == 0;
        file->oldest_claim = record->volume;
    }
    if (record->durable > file->durable)
        file->durable = record->durable;
    if (record->kind == RECORD_RETIRE && !file->gap && record->volume > file->retire_claim)
        file->retire_claim = record->volume;
    file->end_seq = record->seq + 1;
    file->incarnation = record->incarnation;
}

// What lies at `block` is no record. *ret_block: where it goes on, 0 = nowhere.
static int step_over(struct walker *self, struct checked_file *file, uint64_t block, uint64_t *ret_block)
{
    int r = find_next(self, file, block + 1, ret_block);
    if (r < 0)
        return r;
    if (*ret_block == 0 && (file->end_seq == 0 || file->end_seq > self->must_seq))
        return 0;
    if (*ret_block != 0) {
        file->gap = true;
        struct log_damage damage = {.block = block, .count = *ret_block - block};
        report(self, file, &damage,
                "bytes %" PRIu64 " to %" PRIu64 " are not the record that was there (records follow)",
                block * BLOCK_SIZE, *ret_block * BLOCK_SIZE - 1);
    }
    return 0;
}

static int walk_records(struct walker *self, struct checked_file *file)
{
    struct record record;
    uint64_t block = 0;
    while (block < self->file_blocks) {
        int r = record_at(self, file, block, &record);
        if (r < 0)
            return r;
        if (r > 0 && record.seq > self->limit_seq)
            break; // in flight
        if (r == 0 || !follows(self, file, &record)) {
            uint64_t next;
            r = step_over(self, file, block, &next);
            if (r < 0)
                return r;
            if (next == 0)
                break;
            block = next;
            continue;
        }
        struct checked_file before = *file;
        note_header(file, &record);
        bool torn;
        uint64_t end = block + 1 + record.payload_blocks;
        r = take_record(self, file, &record, block, &torn);
        if (r < 0)
            return r;
        if (torn) {
            *file = before;
            break;
        }
        block = file->end_block = end;
    }
    return 0;
}

static int walk(struct walker *self, struct checked_file *file)
{
    int r = walk_records(self, file);
    if (r != -EPROTO)
        return r;
    struct log_damage damage = {.block = file->end_block, .count = self->file_blocks - file->end_block};
    report(self, file, &damage,
            "from byte %" PRIu64 " on there are records of a newer version than this program knows; use that "
            "one",
            file->end_block * BLOCK_SIZE);
    return 0;
}

// Whether the file has bytes at `offset`.
static int has_bytes_at(struct walker *self, uint64_t block, bool *ret_has)
{
    struct iovec iov = {self->window, BLOCK_SIZE};
    struct io_op op = {
            .code = IO_READ, .fd = self->fd, .iov = &iov, .iov_count = 1, .offset = block * BLOCK_SIZE};
    self->window_count = 0;
    int64_t n = task_io(self->task, &op);
    *ret_has = n > 0;
    return n < 0 ? (int)n : 0;
}

static int check_size(struct walker *self, struct checked_file *file)
{
    bool last = false, more = false;
    int r = has_bytes_at(self, self->file_blocks - 1, &last);
    if (r == 0)
        r = has_bytes_at(self, self->file_blocks, &more);
    if (r < 0)
        return r;
    struct log_damage damage = {0};
    file->cut = !last;
    if (!last)
        report(self, file, &damage, "the file is shorter than %" PRIu64 " bytes, which every log file has",
                self->check->file_bytes);
    else if (more)
        report(self, file, &damage,
                "the file is longer than %" PRIu64 " bytes, which every log file has; what follows is not "
                "read",
                self->check->file_bytes);
    return 0;
}

static int check_file(struct walker *self, struct checked_file *file, bool silent)
{
    self->silent = silent;
    *file = (struct checked_file){.number = file->number, .held = file->held};
    snprintf(file->name, sizeof file->name, "%08" PRIu64, file->number);
    int r = file_open(self, file);
    if (r == 0)
        r = walk(self, file);
    if (r == 0)
        r = check_size(self, file);
    if (r < 0 && r != -ECANCELED) {
        struct log_damage damage = {.count = self->file_blocks};
        report(self, file, &damage, "cannot read the file: %s", strerror(-r));
        r = 0;
    }
    file_close(self);
    return r;
}

// ---- The list of files ----

static struct checked_file *add_file(struct walker *self)
{
    if (self->count == self->room) {
        self->room = self->room * 2 + 16;
        self->files = realloc(self->files, self->room * sizeof *self->files);
        if (self->files == NULL)
            abort();
    }
    struct checked_file *file = &self->files[self->count++];
    *file = (struct checked_file){0};
    return file;
}

static void hold_files(struct walker *self)
{
    struct log *log = self->check->log;
    pthread_mutex_lock(&log->lock);
    self->first_number = log->oldest->number;
    for (struct log_file *held = log->oldest; held != NULL; held = held->next) {
        if (log->retiring && held->number < log->retire_to)
            continue; // is going already
        struct checked_file *file = add_file(self);
        atomic_fetch_add(&held->pins, 1);
        file->number = held->number;
        file->held = held;
    }
    self->limit_seq = self->must_seq = log->acknowledged_seq;
    pthread_mutex_unlock(&log->lock);
}

static void let_go(struct walker *self)
{
    for (unsigned i = 0; i < self->count; i++) {
        struct log_file *held = self->files[i].held;
        if (held != NULL && atomic_fetch_sub(&held->pins, 1) == 1 && atomic_load(&held->refs) == 0)
            log_kick_retire(self->check->log);
    }
}

// Of an open log also what it has given up since it was looked at, or has begun.
static bool known_file(const struct walker *self, uint64_t number)
{
    struct log *log = self->check->log;
    if (log != NULL) {
        pthread_mutex_lock(&log->lock);
        uint64_t last = log->rotation == ROTATION_RUN ? log->next_file_number : log->current->number;
        pthread_mutex_unlock(&log->lock);
        return number >= self->first_number && number <= last;
    }
    for (unsigned i = 0; i < self->count; i++)
        if (self->files[i].number == number)
            return true;
    return false;
}

static void note_name(void *context, const char *name)
{
    struct walker *self = context;
    bool spare = strncmp(name, "spare.", 6) == 0 || strncmp(name, "new.", 4) == 0;
    const char *digits = spare ? strchr(name, '.') + 1 : name;
    char *end = NULL;
    uint64_t number = strtoull(digits, &end, 10);
    bool ours = *digits >= '0' && *digits <= '9' && *end == 0 && strlen(name) < NAME_MAX_BYTES;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (ours && spare))
        return;
    if (ours && known_file(self, number))
        return;
    if (ours && self->check->log == NULL) {
        add_file(self)->number = number;
        return;
    }
    struct checked_file stranger = {.number = ours ? number : 0};
    struct log_damage damage = {.leftover = true};
    snprintf(stranger.name, sizeof stranger.name, "%s", name);
    report(self, &stranger, &damage, "no damage: the file does not belong to the log%s",
            ours ? "; the next opening of the store removes it" : "");
}

static int compare_files(const void *a, const void *b)
{
    const struct checked_file *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

// ---- All files together ----

// Without an open log: how far the headers say that the log was durable, and which file is the oldest.
static int survey(struct walker *self, uint64_t *ret_oldest)
{
    uint64_t oldest = self->check->start_file;
    self->limit_seq = self->must_seq = UINT64_MAX; // every record that is there has something to say
    for (unsigned i = 0; i < self->count; i++) {
        int r = check_file(self, &self->files[i], true);
        if (r < 0)
            return r;
    }
    self->must_seq = self->check->durable_seq;
    for (unsigned i = 0; i < self->count; i++) {
        const struct checked_file *file = &self->files[i];
        if (file->head && file->oldest_claim > oldest)
            oldest = file->oldest_claim;
        if (file->head && file->retire_claim > oldest)
            oldest = file->retire_claim;
        if (file->durable > self->must_seq)
            self->must_seq = file->durable;
    }
    *ret_oldest = oldest;
    return 0;
}

static void report_missing(struct walker *self, uint64_t number, const char *why)
{
    struct checked_file missing = {.number = number};
    struct log_damage damage = {.count = self->file_blocks};
    snprintf(missing.name, sizeof missing.name, "%08" PRIu64, number);
    report(self, &missing, &damage, "the file is missing (%s)", why);
}

// Between two files that count, and at the end: is everything there that must be?
static void check_seam(struct walker *self, const struct checked_file *file, uint64_t *seq)
{
    struct log_damage damage = {.block = file->end_block, .count = self->file_blocks - file->end_block};
    if (file->end_seq == 0 && *seq > self->must_seq)
        return; // a rotation that has just begun
    if (file->end_seq == 0) {
        damage.block = 0;
        damage.count = self->file_blocks;
        report(self, file, &damage,
                "the file does not begin with a record of this store and number: it is empty, damaged, or a "
                "copy of something else");
    } else if (*seq != 0 && file->first_seq != *seq && file->head) {
        report(self, file, &damage,
                "the file begins with record %" PRIu64 ", the one before ends before record %" PRIu64,
                file->first_seq, *seq);
    }
    if (file->end_seq != 0)
        *seq = file->end_seq;
}

static void check_end(struct walker *self, const struct checked_file *file, uint64_t next_first)
{
    uint64_t must = next_first != 0 ? next_first - 1 : self->must_seq;
    if (file->end_seq == 0 || file->end_seq > must)
        return;
    struct log_damage damage = {.block = file->end_block, .count = self->file_blocks - file->end_block};
    report(self, file, &damage,
            "at byte %" PRIu64 " the records %" PRIu64 " to %" PRIu64 " cannot be read, which were durable",
            file->end_block * BLOCK_SIZE, file->end_seq, must);
}

// Behind the last file that has records a whole one may be left from a rotation that was cut short.
static bool counts(const struct walker *self, unsigned at, uint64_t oldest)
{
    const struct checked_file *file = &self->files[at];
    bool later = file->end_seq != 0 || file->cut;
    for (unsigned i = at + 1; !later && i < self->count; i++)
        later = self->files[i].end_seq != 0;
    return self->check->log != NULL ? file->held != NULL : file->number >= oldest && later;
}

static int check_files(struct walker *self, uint64_t oldest)
{
    uint64_t seq = 0;
    struct checked_file *last = NULL;
    if (self->check->log == NULL && oldest != 0 && !known_file(self, oldest))
        report_missing(self, oldest, "the log begins with it");
    for (unsigned i = 0; i < self->count; i++) {
        struct checked_file *file = &self->files[i];
        int r = counts(self, i, oldest) ? check_file(self, file, false) : 1;
        if (r < 0)
            return r;
        self->silent = false;
        if (r > 0) {
            struct log_damage damage = {.leftover = true};
            report(self, file, &damage, "no damage: the file does not belong to the log (any more)");
            continue;
        }
        if (self->check->files++ == 0)
            self->check->oldest = file->number;
        if (last != NULL)
            check_end(self, last, file->first_seq);
        check_seam(self, file, &seq);
        last = file;
    }
    if (last != NULL)
        check_end(self, last, 0);
    return 0;
}

int log_check(struct task *task, struct log_check *check, struct error *err)
{
    struct walker self = {.task = task,
            .check = check,
            .err = err,
            .file_blocks = check->file_bytes / BLOCK_SIZE,
            .fd = -1,
            .window = io_buffer_alloc((size_t)WINDOW_BLOCKS * BLOCK_SIZE)};
    struct loop *loop = task_loop(task);
    uint64_t oldest = 0;
    check->files = check->records = check->bytes = check->damages = check->oldest = 0;
    if (check->log != NULL)
        hold_files(&self);
    int r = loop->ops->list_dir(loop, check->directory, note_name, &self);
    if (r < 0)
        error_set(err, r, "cannot list %s: %s", check->directory, strerror(-r));
    if (self.count > 1)
        qsort(self.files, self.count, sizeof *self.files, compare_files);
    if (r == 0 && check->log == NULL)
        r = survey(&self, &oldest);
    if (r == 0)
        r = check_files(&self, oldest);
    let_go(&self);
    free(self.files);
    io_buffer_free(self.window);
    return r;
}
