// SPDX-License-Identifier: Apache-2.0
#include "snapshot/space.h"

#include "blockstore/segment.h"

static const uint64_t DEFAULT_RESERVE_BYTES = UINT64_C(64) << 20;

uint64_t space_counted_bytes(struct store *store)
{
    struct log_stat log;
    struct segments_stat segments;
    log_stat(store->log, &log);
    segments_stat(store->segments, &segments);
    return log.used_bytes + log.spare_bytes + segments.file_bytes + segments.leaving_bytes;
}

bool space_may_grow(void *context)
{
    struct store *store = context;
    struct loop *loop = store->loops[0];
    uint64_t reserve = store->config.reserve_bytes != 0 ? store->config.reserve_bytes : DEFAULT_RESERVE_BYTES;
    struct log_stat log;
    log_stat(store->log, &log);
    uint64_t file_bytes = log.budget_bytes / log.budget_files;
    uint64_t unsealed =
            log.live_refs * BLOCK_SIZE < log.used_bytes ? log.live_refs * BLOCK_SIZE : log.used_bytes;
    if (store->config.quota_bytes != 0 &&
            space_counted_bytes(store) + unsealed + file_bytes > store->config.quota_bytes)
        return false;
    if (loop->ops->free_bytes == NULL)
        return true;
    uint64_t free_bytes = loop->ops->free_bytes(loop, store->directory);
    return free_bytes >= reserve + unsealed + file_bytes;
}
