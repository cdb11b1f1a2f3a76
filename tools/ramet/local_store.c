// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/local_store.h"

#include "blockstore/io_ring.h"
#include "snapshot/store.h"

#include <dirent.h>
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

int local_store_init(
        const struct verb *verb, const char *directory, uint64_t log_file_bytes, uint64_t log_budget_bytes)
{
    struct store_config config = {.log_file_bytes = log_file_bytes, .log_budget_bytes = log_budget_bytes};
    struct error err = {0};
    struct loop *loop;
    int r = io_ring_loop_create(0, 64, &loop);
    if (r < 0)
        return cli_fail(verb, "an io_uring cannot be made: %s", strerror(-r));
    r = store_init(loop, directory, log_file_bytes == 0 && log_budget_bytes == 0 ? NULL : &config, &err);
    io_ring_loop_destroy(loop);
    return r < 0 ? cli_fail(verb, "%s", err.text) : CLI_DONE;
}
