// SPDX-License-Identifier: Apache-2.0
// A full log that waits for a checkpoint: what the checkpoint itself waits for goes first, all else goes on
// waiting and is not refused.
#include "blockstore/io_ring.h"
#include "blockstore/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILE_BLOCKS = 64, FILES = 6, BLOCKS = 8 };

struct place {
    char directory[32];
    struct loop *loop;
    struct log *log;
    void *payload;
    bool pressed;
    unsigned answers;
};

struct writing {
    struct log_append append; // first
    struct record_extent extent;
    struct place *place;
    bool done;
    int result;
    unsigned answer; // its number in the order of answers
};

static void pressure(void *context)
{
    ((struct place *)context)->pressed = true;
}

static void empty_image(void *context, void **ret_bytes, size_t *ret_size)
{
    *ret_bytes = NULL;
    *ret_size = 0;
}

static int take_image(void *context, const void *bytes, size_t size, struct error *err)
{
    return 0;
}

static int take_record(
        void *context, const struct record *record, const void *body, locator_t first, struct error *err)
{
    return 0;
}

static int setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    struct error err = {0};
    strcpy(place->directory, "test_log_hurry.XXXXXX");
    if (place == NULL || mkdtemp(place->directory) == NULL || io_ring_loop_create(0, 64, &place->loop) < 0)
        return -1;
    place->payload = io_buffer_alloc(BLOCKS * BLOCK_SIZE);
    memset(place->payload, 5, BLOCKS * BLOCK_SIZE);
    struct log_config config = {.directory = place->directory,
            .file_bytes = FILE_BLOCKS * BLOCK_SIZE,
            .budget_bytes = FILES * FILE_BLOCKS * BLOCK_SIZE,
            .spare_files = 1,
            .image = empty_image,
            .pressure = pressure,
            .context = place};
    struct log_replay replay = {.image = take_image, .record = take_record, .context = place};
    *state = place;
    if (log_create(place->loop, &config, &err) < 0 ||
            log_open(&place->loop, 1, &config, &replay, &place->log, &err) < 0)
        fprintf(stderr, "%s\n", err.text);
    return place->log == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    struct place *place = *state;
    char command[64];
    log_close(place->log);
    io_ring_loop_destroy(place->loop);
    io_buffer_free(place->payload);
    snprintf(command, sizeof command, "rm -rf %s", place->directory);
    free(place);
    return system(command);
}

static void written(struct log_append *append, int result)
{
    struct writing *writing = (struct writing *)append;
    writing->done = true;
    writing->result = result;
    writing->answer = ++writing->place->answers;
}

static struct writing *begin(struct place *place, enum record_kind kind, uint64_t volume, uint32_t epoch)
{
    struct writing *writing = calloc(1, sizeof *writing);
    assert_non_null(writing);
    writing->place = place;
    writing->extent = (struct record_extent){0, BLOCKS};
    writing->append = (struct log_append){
            .loop = place->loop, .kind = kind, .volume = volume, .epoch = epoch, .done = written};
    if (kind == RECORD_WRITE) {
        writing->append.extents = &writing->extent;
        writing->append.extent_count = 1;
        writing->append.payload = place->payload;
        writing->append.payload_blocks = BLOCKS;
    } else {
        writing->append.body = "body";
        writing->append.body_bytes = 4;
    }
    log_append(place->log, &writing->append);
    return writing;
}

static void drive_until(struct place *place, const bool *what, const bool *or_what)
{
    while (!*what && !*or_what)
        assert_true(place->loop->ops->run_once(place->loop, true) >= 0);
}

static void expect(struct writing *writing, int result)
{
    drive_until(writing->place, &writing->done, &writing->done);
    assert_int_equal(writing->result, result);
    free(writing);
}

// Writes until one waits; that one.
static struct writing *fill(struct place *place, uint64_t volume, uint32_t epoch)
{
    for (unsigned i = 0; i < FILES * FILE_BLOCKS; i++) {
        struct writing *writing = begin(place, RECORD_WRITE, volume, epoch);
        drive_until(place, &writing->done, &place->pressed);
        if (!writing->done)
            return writing;
        expect(writing, 0);
    }
    fail_msg("the log never became full");
    return NULL;
}

static void who_holds_up_a_checkpoint_goes_first(void **state)
{
    struct place *place = *state;
    struct writing *other = fill(place, 2, 1);
    struct writing *mine = begin(place, RECORD_WRITE, 1, 5), *later = begin(place, RECORD_WRITE, 1, 6);
    log_begin_hurry(place->log, &(struct log_hurry){.volume = 1, .epoch = 5}, 1);
    expect(mine, 0);
    expect(begin(place, RECORD_WRITE, 1, 5), 0); // one that comes now, too
    expect(begin(place, RECORD_TXN, 0, 0), 0);
    log_end_hurry(place->log);
    struct writing *last = begin(place, RECORD_WRITE, 1, 5), *txn = begin(place, RECORD_TXN, 0, 0);
    assert_false(other->done || later->done || last->done || txn->done);
    log_set_relief(place->log, LOG_RELIEF_NONE); // now they are refused, in their order
    drive_until(place, &txn->done, &txn->done);
    assert_true(other->answer < later->answer && later->answer < last->answer && last->answer < txn->answer);
    expect(other, -ENOSPC);
    expect(later, -ENOSPC);
    expect(last, -ENOSPC);
    expect(txn, -ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(who_holds_up_a_checkpoint_goes_first, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
