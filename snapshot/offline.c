// SPDX-License-Identifier: Apache-2.0
#include "snapshot/offline.h"

#include "snapshot/store_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t CACHE_BYTES = UINT64_C(16) << 20;

char *offline_path(const struct offline *offline, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", offline->directory, name) < 0)
        abort();
    return path;
}

int offline_open(
        struct loop *loop, const char *directory, bool write, struct offline *ret_offline, struct error *err)
{
    struct offline offline = {.loop = loop, .directory = directory, .lock_fd = -1};
    int r = store_lock(loop, directory, !write, &offline.lock_fd, err);
    if (r < 0) {
        log_close_fd(loop, offline.lock_fd);
        return r;
    }
    offline.has_superblock = superblock_read(loop, directory, &offline.superblock, err) == 0;
    if (offline.has_superblock) {
        struct store store = {.lock_fd = offline.lock_fd, .loops = &loop, .directory = (char *)directory};
        memcpy(store.uuid, offline.superblock.uuid, sizeof store.uuid);
        if (store_end_read(&store, NULL) == 0)
            offline.end_seq = store.end_seq;
        char *segments = offline_path(&offline, "segments");
        struct segments_config config = {.directory = segments,
                .seed = store_seed(offline.superblock.uuid),
                .index_cache_bytes = CACHE_BYTES,
                .frame_cache_bytes = CACHE_BYTES,
                .read_only = true};
        memcpy(config.secret, offline.superblock.secret, sizeof config.secret);
        offline.segments = segments_new(&config);
        free(segments);
    }
    *ret_offline = offline;
    return 0;
}

void offline_close(struct offline *offline)
{
    if (offline->segments != NULL)
        segments_free(offline->segments, offline->loop);
    log_close_fd(offline->loop, offline->lock_fd);
}

struct offline_task {
    int (*run)(struct task *task, void *context);
    void *context;
    int result;
    bool ended;
};

static void task_main(struct task *task, void *context)
{
    struct offline_task *offline = context;
    offline->result = offline->run(task, offline->context);
}

static void task_ended(void *context)
{
    struct offline_task *offline = context;
    offline->ended = true;
}

int offline_run(struct offline *offline, int (*run)(struct task *task, void *context), void *context)
{
    struct offline_task task = {.run = run, .context = context};
    task_start(offline->loop, task_main, task_ended, &task);
    while (!task.ended)
        if (offline->loop->ops->run_once(offline->loop, true) < 0)
            return -EIO;
    return task.result;
}
