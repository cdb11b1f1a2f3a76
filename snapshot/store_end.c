// SPDX-License-Identifier: Apache-2.0
// The mark of a clean end: how far the log went when the store was closed. The log itself says how far it was
// durable, but its newest file says so only about itself: were that file lost, nothing would tell. The mark
// stands in the file of the lock:
//
//   off  size  field
//     0     8  magic "RAMETEND"
//     8     4  version (1)
//    12     4  zero
//    16    16  uuid of the store
//    32     8  sequence number of the last record, which is durable
//    40     8  checksum (XXH3-64 of the 40 bytes before, seeded with the store)
//
// It is a lower bound: it may be old, or empty, or something else's (of an older version, of another store,
// by somebody who keeps a number of a process there). Then nothing is known.
#include "snapshot/store_private.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"

#include <errno.h>
#include <string.h>

enum { END_BYTES = 48, END_SUM_AT = 40, END_VERSION = 1 };
static const char END_MAGIC[8] = "RAMETEND";

static uint64_t end_decode(const struct store *store, uint8_t *bytes)
{
    struct cursor c = cursor_make(bytes, END_BYTES);
    char magic[sizeof END_MAGIC];
    uint8_t uuid[16];
    cursor_get_bytes(&c, magic, sizeof magic);
    uint32_t version = cursor_get_u32(&c);
    cursor_get_u32(&c);
    cursor_get_bytes(&c, uuid, sizeof uuid);
    uint64_t seq = cursor_get_u64(&c), sum = cursor_get_u64(&c);
    bool ours = memcmp(magic, END_MAGIC, sizeof magic) == 0 && version == END_VERSION &&
                memcmp(uuid, store->uuid, sizeof uuid) == 0 &&
                sum == digest_bytes(bytes, END_SUM_AT, store_seed(store->uuid));
    return ours ? seq : 0;
}

int store_end_read(struct store *store, struct error *err)
{
    uint8_t bytes[END_BYTES];
    store->end_seq = 0;
    int r = store->lock_fd < 0 ? -ENODATA
                               : io_sync_full(store->loops[0], IO_READ, store->lock_fd, bytes, END_BYTES, 0);
    if (r == 0)
        store->end_seq = end_decode(store, bytes);
    if (r == -ENODATA)
        r = 0;
    return r < 0 ? error_set(err, r, "cannot read %s/lock: %s", store->directory, strerror(-r)) : 0;
}

struct end_wait {
    struct log_sync sync;
    bool finished;
    int result;
};

static void synced(struct log_sync *sync, int result)
{
    struct end_wait *wait = (struct end_wait *)sync;
    wait->result = result;
    wait->finished = true;
}

// Drives the loops. Without the mark nothing is lost but knowledge: failures are not told.
void store_end_write(struct store *store)
{
    struct loop *loop = store->loops[0];
    struct end_wait wait = {.sync = {.loop = loop, .done = synced}};
    struct log_stat stat;
    log_stat(store->log, &stat);
    if (store->read_only || stat.failed != 0)
        return;
    log_sync(store->log, &wait.sync);
    while (!wait.finished)
        for (unsigned i = 0; i < store->loop_count; i++)
            if (store->loops[i]->ops->run_once(store->loops[i], false) < 0)
                return;
    log_stat(store->log, &stat);
    if (wait.result < 0 || stat.durable_seq <= store->end_seq)
        return;
    uint8_t bytes[END_BYTES] = {0};
    struct cursor c = cursor_make(bytes, END_BYTES);
    cursor_put_bytes(&c, END_MAGIC, sizeof END_MAGIC);
    cursor_put_u32(&c, END_VERSION);
    cursor_put_u32(&c, 0);
    cursor_put_bytes(&c, store->uuid, sizeof store->uuid);
    cursor_put_u64(&c, stat.durable_seq);
    cursor_put_u64(&c, digest_bytes(bytes, END_SUM_AT, store_seed(store->uuid)));
    int r = io_sync_full(loop, IO_WRITE, store->lock_fd, bytes, END_BYTES, 0);
    struct io_op sync = {.code = IO_FDATASYNC, .fd = store->lock_fd};
    if (r == 0)
        io_sync(loop, &sync);
}
