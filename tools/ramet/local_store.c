// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/local_store.h"

#include "blockstore/io_ring.h"
#include "snapshot/store.h"
#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

bool local_store_exists(const char *directory)
{
    DIR *dir = opendir(directory);
    bool found = false;
    if (dir == NULL)
        return false;
    for (struct dirent *entry = readdir(dir); entry != NULL && !found; entry = readdir(dir))
        found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return found;
}

static int make_loop(const struct verb *verb, struct loop **ret_loop)
{
    int r = io_ring_loop_create(0, 64, ret_loop);
    return r < 0 ? cli_fail(verb, "an io_uring cannot be made: %s", strerror(-r)) : CLI_DONE;
}

int local_store_init(
        const struct verb *verb, const char *directory, uint64_t log_file_bytes, uint64_t log_budget_bytes)
{
    struct store_config config = {.log_file_bytes = log_file_bytes, .log_budget_bytes = log_budget_bytes};
    struct error err = {0};
    struct loop *loop;
    int r = make_loop(verb, &loop);
    if (r != CLI_DONE)
        return r;
    r = store_init(loop, directory, log_file_bytes == 0 && log_budget_bytes == 0 ? NULL : &config, &err);
    io_ring_loop_destroy(loop);
    return r < 0 ? cli_fail(verb, "%s", err.text) : CLI_DONE;
}

static void note_line(void *context, const char *sentence)
{
    cli_note("%s", sentence);
}

int local_store_rebuild(const struct verb *verb, const char *directory)
{
    struct error err = {0};
    struct loop *loop;
    int r = make_loop(verb, &loop);
    if (r != CLI_DONE)
        return r;
    r = store_rebuild_catalog(loop, directory, note_line, NULL, &err);
    io_ring_loop_destroy(loop);
    return r < 0 ? cli_fail(verb, "%s", err.text) : CLI_DONE;
}

// Sentences come from another thread, while this one waits.
static void take_damage(void *context, const char *sentence)
{
    json_array_append_new(context, json_fields_text(sentence, strlen(sentence)));
}

static json_t *result_json(const struct store_check_result *result, json_t *damaged)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "volumes",
            (json_int_t)result->volumes, "bases", (json_int_t)result->bases, "docs", (json_int_t)result->docs,
            "nodes", (json_int_t)result->nodes, "blocks", (json_int_t)result->blocks, "segments",
            (json_int_t)result->segments, "log_records", (json_int_t)result->log_records, "leftovers",
            (json_int_t)result->leftovers, "damages", (json_int_t)result->damages, "damaged", damaged);
}

// The loop's thread runs only for the check.
static int check_open(struct loop *loop, struct store *store, json_t *damaged,
        struct store_check_result *result, struct error *err)
{
    struct progress progress = {.what = "checking"};
    int r = io_ring_thread_start(loop);
    if (r < 0)
        return error_set(err, r, "no thread for the check: %s", strerror(-r));
    progress_text(&progress, store_directory(store));
    r = store_check(store, take_damage, damaged, result, err);
    progress_end(&progress);
    io_ring_thread_stop(loop);
    return r;
}

// A store that cannot be opened is looked at file by file: why it cannot is a damage of its own.
static int check_files(struct loop *loop, const char *directory, json_t *damaged,
        struct store_check_result *result, struct error *err)
{
    char why[sizeof err->text];
    snprintf(why, sizeof why, "%s", err->text);
    int r = store_check_files(loop, directory, take_damage, damaged, result, err);
    if (r < 0)
        return r;
    json_array_insert_new(damaged, 0, json_fields_text(why, strlen(why)));
    result->damages++;
    return 0;
}

int local_store_check(const struct verb *verb, const char *directory, json_t **ret_json)
{
    struct store_config config = {.read_only = true};
    struct store_check_result result = {0};
    struct error err = {0};
    struct store *store = NULL;
    struct loop *loop;
    json_t *damaged = json_array();
    int status = make_loop(verb, &loop);
    int r = status != CLI_DONE ? -EIO : store_open(&loop, 1, directory, &config, &store, &err);
    if (status == CLI_DONE && r == 0) {
        r = check_open(loop, store, damaged, &result, &err);
        store_close(store);
    } else if (r == -EBADMSG || r == -EIO) {
        r = status == CLI_DONE ? check_files(loop, directory, damaged, &result, &err) : r;
    }
    if (status == CLI_DONE)
        io_ring_loop_destroy(loop);
    if (r == 0) {
        *ret_json = result_json(&result, damaged);
        return CLI_DONE;
    }
    json_decref(damaged);
    return status == CLI_DONE ? cli_fail(verb, "%s", err.text) : status;
}
