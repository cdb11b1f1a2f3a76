// SPDX-License-Identifier: Apache-2.0
// See check.h. The order: what the store's own files say about it (superblock, checkpoint), the log, the
// segments, the trees; then whom the damage touches.
#include "snapshot/check_private.h"

#include "blockstore/log_check.h"
#include "blockstore/superblock.h"
#include "snapshot/background.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- What is found ----

static void keep(struct check *check, locator_t first, uint64_t count, bool leftover, const char *text)
{
    struct store_check_result *result = check->result;
    uint64_t *total = leftover ? &result->leftovers : &result->damages;
    (*total)++;
    if (check->damage_count == CHECK_DAMAGES_MAX) { // so many: without saying whom they touch
        check->damaged(check->context, text);
        return;
    }
    struct check_damage *damage = &check->damages[check->damage_count++];
    *damage = (struct check_damage){.sentence = strdup(text), .leftover = leftover};
    if (damage->sentence == NULL)
        abort();
    if (first != 0) {
        damage->first = check_key(first);
        damage->end = damage->first + count;
    }
}

void check_report(struct check *check, locator_t first, uint64_t count, const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(check, first, count, false, text);
}

void check_report_leftover(struct check *check, const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(check, 0, 0, true, text);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct check_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

void check_ranges(struct check *check)
{
    size_t count = 0, apart = 0;
    free(check->ranges);
    check->ranges = calloc(check->damage_count + 1, sizeof *check->ranges);
    if (check->ranges == NULL)
        abort();
    for (size_t i = 0; i < check->damage_count; i++)
        if (check->damages[i].first < check->damages[i].end)
            check->ranges[count++] = (struct check_range){check->damages[i].first, check->damages[i].end};
    if (count > 1)
        qsort(check->ranges, count, sizeof *check->ranges, compare_ranges);
    for (size_t i = 0; i < count; i++) {
        struct check_range *last = apart > 0 ? &check->ranges[apart - 1] : NULL;
        if (last == NULL || check->ranges[i].first > last->end)
            check->ranges[apart++] = check->ranges[i];
        else if (check->ranges[i].end > last->end)
            last->end = check->ranges[i].end;
    }
    check->range_count = apart;
}

bool check_is_damaged(const struct check *check, locator_t locator)
{
    uint64_t key = check_key(locator);
    size_t low = 0, high = check->range_count;
    while (low < high) { // the first range that ends behind the key
        size_t middle = (low + high) / 2;
        if (check->ranges[middle].end <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < check->range_count && check->ranges[low].first <= key;
}

static char *touched_text(const struct check *check, const struct check_damage *damage)
{
    char *text = NULL;
    for (unsigned i = 0; i < damage->touched_count; i++) {
        char *name = check_root_name(check, &check->roots[damage->touched[i]]), *longer = NULL;
        if (asprintf(&longer, "%s%s%s", text != NULL ? text : "", text != NULL ? ", " : "", name) < 0)
            abort();
        free(name);
        free(text);
        text = longer;
    }
    return text;
}

static void tell(struct check *check)
{
    for (size_t i = 0; i < check->damage_count; i++) {
        struct check_damage *damage = &check->damages[i];
        char *touched = touched_text(check, damage), *text = NULL;
        int r;
        if (touched != NULL && damage->touched_more > 0)
            r = asprintf(
                    &text, "%s; it touches %s and %u more", damage->sentence, touched, damage->touched_more);
        else if (touched != NULL)
            r = asprintf(&text, "%s; it touches %s", damage->sentence, touched);
        else
            r = asprintf(&text, "%s%s", damage->sentence,
                    damage->first != damage->end ? "; nothing that exists refers to it" : "");
        if (r < 0)
            abort();
        check->damaged(check->context, text);
        free(touched);
        free(text);
        free(damage->sentence);
    }
    free(check->damages);
}

// ---- Superblock and checkpoint ----

static void superblock_found(void *context, const char *sentence)
{
    check_report(context, 0, 0, "%s", sentence);
}

static int check_rows(struct check *check)
{
    struct store *store = check->store;
    struct checkpoint_db *db = NULL;
    struct checkpoint_rows rows;
    struct error err = {0};
    char *directory = NULL;
    if (asprintf(&directory, "%s/catalog", store->directory) < 0)
        abort();
    int r = checkpoint_db_open(store->loops[0], directory, true, 0, &db, &err);
    if (r == 0)
        r = checkpoint_rows_read(db, &rows, &err);
    checkpoint_db_close(db);
    free(directory);
    if (r == -ENOENT && store->checkpoint->rows.meta.start_file == 0)
        return 0;
    if (r < 0) {
        check_report(check, 0, 0, "%s", err.text);
        return r == -ECANCELED ? r : 0;
    }
    // These two run ahead in memory: numbers of seals that failed, and a scrub that gave way.
    const struct checkpoint_meta *meta = &store->checkpoint->rows.meta;
    if (rows.meta.next_segment < meta->next_segment)
        rows.meta.next_segment = meta->next_segment;
    rows.meta.scrub_segment = meta->scrub_segment;
    void *now, *then;
    size_t now_size, then_size;
    checkpoint_rows_encode(&rows, &then, &then_size);
    checkpoint_rows_encode(&store->checkpoint->rows, &now, &now_size);
    if (rows.meta.count != store->checkpoint->rows.meta.count ||
            (rows.meta.start_file != 0 && (now_size != then_size || memcmp(now, then, now_size) != 0)))
        check_report(check, 0, 0,
                "catalog/data.mdb: it is not what the running store has written (checkpoint %" PRIu64
                " instead of %" PRIu64 "); the next checkpoint writes it anew",
                rows.meta.count, store->checkpoint->rows.meta.count);
    free(now);
    free(then);
    checkpoint_rows_free(&rows);
    return 0;
}

// ---- Log ----

static void log_found(void *context, const struct log_damage *damage)
{
    struct check *check = context;
    if (damage->leftover)
        check_report_leftover(check, "%s", damage->sentence);
    else if (damage->count > 0 && damage->file < LOCATOR_FILE_MAX)
        check_report(check, locator_log(damage->file, damage->block), damage->count, "%s", damage->sentence);
    else
        check_report(check, 0, 0, "%s", damage->sentence);
}

static int log_record(void *context, const struct record *record, const void *body)
{
    struct check *check = context;
    if (task_stopping(check->task))
        return -ECANCELED;
    return check_image_record(check, record, body);
}

static int check_log(struct check *check)
{
    struct store *store = check->store;
    char *directory = NULL;
    if (asprintf(&directory, "%s/log", store->directory) < 0)
        abort();
    struct log_check log = {.directory = directory,
            .file_bytes = store->config.log_file_bytes,
            .seed = store_seed(store->uuid),
            .start_file = store->checkpoint->rows.meta.start_file,
            .log = store->log,
            .damaged = log_found,
            .record = log_record,
            .context = check};
    int r = log_check(check->task, &log, check->err);
    check->result->log_records = log.records;
    free(directory);
    return r;
}

// ---- Segments ----

static void add_segment(void *context, const struct segment_row *row)
{
    struct check *check = context;
    if (check->segment_count == check->segment_room) {
        check->segment_room = check->segment_room * 2 + 64;
        check->segments = realloc(check->segments, check->segment_room * sizeof *check->segments);
        if (check->segments == NULL)
            abort();
    }
    check->segments[check->segment_count++] = (struct check_segment){.row = *row};
}

static int compare_segments(const void *a, const void *b)
{
    const struct check_segment *x = a, *y = b;
    return x->row.number < y->row.number ? -1 : x->row.number > y->row.number;
}

const struct check_segment *check_segment_find(const struct check *check, uint64_t number)
{
    struct check_segment key = {.row.number = number};
    return check->segment_count == 0
                   ? NULL
                   : bsearch(&key, check->segments, check->segment_count, sizeof key, compare_segments);
}

static void segment_found(
        void *context, uint64_t number, uint32_t first_slot, uint32_t count, const char *sentence)
{
    check_report(context, count > 0 ? locator_segment(number, first_slot) : 0, count, "%s", sentence);
}

static int note_slot(void *context, locator_t locator, struct fingerprint fingerprint)
{
    struct check_segment *segment = context;
    uint32_t slot = locator_segment_slot(locator);
    segment->present[slot / 64] |= UINT64_C(1) << slot % 64;
    return 0;
}

static int check_segment(struct check *check, struct check_segment *segment)
{
    struct store *store = check->store;
    const struct segment_row *row = &segment->row;
    int r = segment_verify(store->segments, check->task, row->number, segment_found, check);
    if (r == -ECANCELED)
        return r;
    if (r < 0)
        check_report(check, locator_segment(row->number, 0), row->slots,
                "segment file %s/segments/%08" PRIu64 ".%u cannot be read: %s", store->directory, row->number,
                row->generation, strerror(-r));
    segment->present = calloc(SEGMENT_BITMAP_WORDS, sizeof *segment->present);
    if (segment->present == NULL)
        abort();
    r = segment_slots_task(store->segments, check->task, row->number, note_slot, segment);
    if (r < 0) { // said above; its locators are damaged as such
        free(segment->present);
        segment->present = NULL;
    }
    if (row->number >= store->checkpoint->rows.meta.next_segment)
        check_report(check, 0, 0,
                "catalog: segment %" PRIu64 " is there, and its number is to be given again", row->number);
    return r == -ECANCELED ? r : 0;
}

static void stray_file(void *context, const char *name)
{
    struct check *check = context;
    char expected[64];
    unsigned long long number = strtoull(name, NULL, 10);
    const struct check_segment *segment = check_segment_find(check, number);
    if (name[0] == '.')
        return;
    snprintf(expected, sizeof expected, "%08llu.%u", number, segment != NULL ? segment->row.generation : 0);
    if (segment == NULL || strcmp(expected, name) != 0)
        check_report_leftover(check,
                "segments/%s: no damage: nothing names this file; the next opening of the store removes it",
                name);
}

static int check_segments(struct check *check)
{
    struct store *store = check->store;
    char *directory = NULL;
    int r = 0;
    segments_list(store->segments, add_segment, check);
    if (check->segment_count > 1)
        qsort(check->segments, check->segment_count, sizeof *check->segments, compare_segments);
    for (size_t i = 0; r == 0 && i < check->segment_count; i++)
        r = check_segment(check, &check->segments[i]);
    check->result->segments = check->segment_count;
    if (asprintf(&directory, "%s/segments", store->directory) < 0)
        abort();
    struct loop *loop = task_loop(check->task);
    if (r == 0 && (r = loop->ops->list_dir(loop, directory, stray_file, check)) < 0)
        error_set(check->err, r, "cannot list %s: %s", directory, strerror(-r));
    free(directory);
    return r;
}

// ---- All of it ----

static void count_roots(struct check *check)
{
    for (size_t i = 0; i < check->root_count; i++) {
        enum checkpoint_kind kind = check->roots[i].kind;
        check->result->volumes += kind == CHECKPOINT_VOLUME;
        check->result->bases += kind == CHECKPOINT_BASE;
        check->result->docs += kind == CHECKPOINT_DOC;
    }
}

static int run(struct check *check)
{
    struct store *store = check->store;
    int r = superblock_check(check->task, store->directory, superblock_found, check, check->err);
    if (r == 0)
        r = check_rows(check);
    if (r == 0)
        r = check_log(check);
    if (r == 0 && store->read_only)
        check_image_end(check);
    if (r == 0)
        r = check_segments(check);
    check_ranges(check);
    if (r == 0)
        r = check_trees(check);
    check_ranges(check);
    if (r == 0 && check->result->damages > 0)
        check_touch(check);
    return r;
}

int check_run(struct task *task, struct store *store, void (*damaged)(void *context, const char *sentence),
        void *context, struct store_check_result *ret_result, struct error *err)
{
    struct store_check_result result = {0};
    struct check check = {.task = task,
            .store = store,
            .damaged = damaged,
            .context = context,
            .result = &result,
            .err = err,
            .damages = calloc(CHECK_DAMAGES_MAX, sizeof *check.damages),
            .image = check_image_new(store)};
    if (check.damages == NULL)
        abort();
    check_roots_take(&check);
    count_roots(&check);
    int r = run(&check);
    tell(&check);
    check_roots_drop(&check);
    check_image_free(check.image);
    for (size_t i = 0; i < check.segment_count; i++)
        free(check.segments[i].present);
    free(check.segments);
    free(check.ranges);
    free(check.memo.entries);
    if (r == -ECANCELED)
        return error_set(err, r, "the store is closing");
    if (r == 0)
        *ret_result = result;
    return r;
}
