// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/local_store.h"

#include "blockstore/io_ring.h"
#include "snapshot/store.h"
#include "tools/ramet/output.h"
#include "vmglue/json_fields.h"

#include <dirent.h>
#include <pthread.h>
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

// Sentences come from another thread, while this one waits.
static void take_damage(void *context, const char *sentence)
{
    json_array_append_new(context, json_fields_text(sentence, strlen(sentence)));
}

// The loop's thread runs only for the check.
static int check_open(const struct verb *verb, struct loop *loop, struct store *store, json_t **ret_json)
{
    struct store_check_result result;
    struct error err = {0};
    struct progress progress = {.what = "checking"};
    json_t *damaged = json_array();
    int r = io_ring_thread_start(loop);
    if (r < 0) {
        json_decref(damaged);
        return cli_fail(verb, "no thread for the check: %s", strerror(-r));
    }
    progress_text(&progress, store_directory(store));
    r = store_check(store, take_damage, damaged, &result, &err);
    progress_end(&progress);
    io_ring_thread_stop(loop);
    if (r < 0) {
        json_decref(damaged);
        return cli_fail(verb, "%s", err.text);
    }
    *ret_json = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "volumes",
            (json_int_t)result.volumes, "bases", (json_int_t)result.bases, "docs", (json_int_t)result.docs,
            "nodes", (json_int_t)result.nodes, "blocks", (json_int_t)result.blocks, "segments",
            (json_int_t)result.segments, "log_records", (json_int_t)result.log_records, "damages",
            (json_int_t)result.damages, "damaged", damaged);
    return CLI_DONE;
}

int local_store_check(const struct verb *verb, const char *directory, json_t **ret_json)
{
    struct store_config config = {.read_only = true};
    struct error err = {0};
    struct store *store;
    struct loop *loop;
    int status = make_loop(verb, &loop);
    if (status != CLI_DONE)
        return status;
    int r = store_open(&loop, 1, directory, &config, &store, &err);
    if (r < 0) {
        status = cli_fail(verb, "%s", err.text);
    } else {
        status = check_open(verb, loop, store, ret_json);
        store_close(store);
    }
    io_ring_loop_destroy(loop);
    return status;
}
