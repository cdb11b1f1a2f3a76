// SPDX-License-Identifier: Apache-2.0
#include "blockstore/superblock.h"

#include "blockstore/cursor.h"
#include "blockstore/digest.h"
#include "blockstore/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUPERBLOCK_VERSION = 1, SUPERBLOCK_COPIES = 2, CHECK_BLOCKS = 3, CHECKSUM_AT = 32 };
static const char MAGIC[8] = "RAMETST1";

static uint64_t checksum(const uint8_t *block)
{
    uint8_t copy[BLOCK_SIZE];
    memcpy(copy, block, sizeof copy);
    memset(copy + CHECKSUM_AT, 0, 8);
    return digest_bytes(copy, sizeof copy, 0);
}

static void encode(const struct superblock *sb, uint8_t *block)
{
    memset(block, 0, BLOCK_SIZE);
    struct cursor c = cursor_make(block, BLOCK_SIZE);
    cursor_put_bytes(&c, MAGIC, sizeof MAGIC);
    cursor_put_u32(&c, sb->version);
    cursor_put_u32(&c, sb->must_features);
    cursor_put_bytes(&c, sb->uuid, sizeof sb->uuid);
    cursor_put_u64(&c, 0);
    cursor_put_u64(&c, sb->may_features);
    cursor_put_u64(&c, sb->log_file_bytes);
    cursor_put_u64(&c, sb->log_budget_bytes);
    cursor_put_u32(&c, sb->spare_log_files);
    cursor_put_u32(&c, 0);
    cursor_put_bytes(&c, sb->secret, sizeof sb->secret);
    cursor_put_u64(&c, sb->created_wall_ns);
    struct cursor at = cursor_make(block + CHECKSUM_AT, 8);
    cursor_put_u64(&at, checksum(block));
}

int superblock_decode(const void *block, struct superblock *ret_superblock)
{
    struct superblock *sb = ret_superblock;
    struct cursor c = cursor_make((void *)block, BLOCK_SIZE);
    char magic[sizeof MAGIC];
    cursor_get_bytes(&c, magic, sizeof magic);
    if (memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return -EBADMSG;
    sb->version = cursor_get_u32(&c);
    sb->must_features = cursor_get_u32(&c);
    cursor_get_bytes(&c, sb->uuid, sizeof sb->uuid);
    uint64_t sum = cursor_get_u64(&c);
    sb->may_features = cursor_get_u64(&c);
    sb->log_file_bytes = cursor_get_u64(&c);
    sb->log_budget_bytes = cursor_get_u64(&c);
    sb->spare_log_files = cursor_get_u32(&c);
    cursor_get_u32(&c);
    cursor_get_bytes(&c, sb->secret, sizeof sb->secret);
    sb->created_wall_ns = cursor_get_u64(&c);
    if (checksum(block) != sum)
        return -EBADMSG;
    if (sb->version == 0)
        return -EBADMSG;
    return sb->version > SUPERBLOCK_VERSION || sb->must_features != 0 ? -EPROTO : 0;
}

static char *path_of(const char *directory, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        abort();
    return path;
}

static int write_copies(struct loop *loop, const char *path, const struct superblock *superblock)
{
    struct io_op open = {.code = IO_OPEN, .path = path, .flags = O_RDWR | O_CREAT, .mode = 0600};
    int64_t fd = io_sync(loop, &open);
    if (fd < 0)
        return (int)fd;
    struct superblock sb = *superblock;
    sb.version = SUPERBLOCK_VERSION;
    uint8_t *block = io_buffer_alloc(BLOCK_SIZE);
    encode(&sb, block);
    int r = 0;
    for (int i = 0; i < SUPERBLOCK_COPIES && r == 0; i++)
        r = io_sync_full(loop, IO_WRITE, (int)fd, block, BLOCK_SIZE, (uint64_t)i * BLOCK_SIZE);
    struct io_op sync = {.code = IO_FDATASYNC, .fd = (int)fd}, shut = {.code = IO_CLOSE, .fd = (int)fd};
    if (r == 0)
        r = (int)io_sync(loop, &sync);
    io_sync(loop, &shut);
    io_buffer_free(block);
    return r;
}

// Under another name first, so that a store without a whole superblock is never seen.
int superblock_write(
        struct loop *loop, const char *directory, const struct superblock *superblock, struct error *err)
{
    char *path = path_of(directory, "superblock"), *temporary = path_of(directory, "superblock.new");
    int r = write_copies(loop, temporary, superblock);
    struct io_op move = {.code = IO_RENAME, .path = temporary, .path2 = path};
    struct io_op sync = {.code = IO_FSYNC_DIR, .path = directory};
    if (r == 0)
        r = (int)io_sync(loop, &move);
    if (r == 0)
        r = (int)io_sync(loop, &sync);
    if (r < 0)
        error_set(err, r, "cannot write %s: %s", path, strerror(-r));
    free(path);
    free(temporary);
    return r;
}

static int read_copies(struct loop *loop, int fd, struct superblock *ret_superblock)
{
    uint8_t *block = io_buffer_alloc(BLOCK_SIZE);
    int r = -EBADMSG, failed = 0;
    for (int i = 0; i < SUPERBLOCK_COPIES && r != 0 && r != -EPROTO; i++) {
        r = io_sync_full(loop, IO_READ, fd, block, BLOCK_SIZE, (uint64_t)i * BLOCK_SIZE);
        if (r == 0)
            r = superblock_decode(block, ret_superblock);
        else if (r != -ENODATA)
            failed = r;
    }
    io_buffer_free(block);
    return r == -ENODATA ? -EBADMSG : r == -EBADMSG && failed < 0 ? failed : r;
}

int superblock_read(
        struct loop *loop, const char *directory, struct superblock *ret_superblock, struct error *err)
{
    char *path = path_of(directory, "superblock");
    struct io_op open = {.code = IO_OPEN, .path = path, .flags = O_RDONLY};
    int64_t fd = io_sync(loop, &open);
    int r = (int)fd;
    if (fd >= 0) {
        r = read_copies(loop, (int)fd, ret_superblock);
        struct io_op shut = {.code = IO_CLOSE, .fd = (int)fd};
        io_sync(loop, &shut);
    }
    if (r == -ENOENT)
        error_set(err, r,
                "%s is not a Ramet store (it has no superblock); make one with: ramet store init %s",
                directory, directory);
    else if (r == -EPROTO)
        error_set(err, r,
                "store %s has format version %u, newer than this program knows (%d); use a newer Ramet",
                directory, ret_superblock->version, SUPERBLOCK_VERSION);
    else if (r == -EBADMSG)
        error_set(err, r,
                "both copies of %s are damaged, or it is something else's file; restore it from a copy",
                path);
    else if (r < 0)
        error_set(err, r, "cannot read %s: %s", path, strerror(-r));
    free(path);
    return r;
}

// ---- Checking ----

// Bytes of the file, at most three blocks; the rest of `blocks` is zero.
static int read_all(struct task *task, const char *path, uint8_t *blocks, size_t *ret_size)
{
    struct io_op open = {.code = IO_OPEN, .path = path, .flags = O_RDONLY};
    int64_t fd = task_io(task, &open), n = 0;
    size_t done = 0;
    if (fd < 0)
        return (int)fd;
    memset(blocks, 0, CHECK_BLOCKS * BLOCK_SIZE);
    do {
        struct iovec iov = {blocks + done, CHECK_BLOCKS * BLOCK_SIZE - done};
        struct io_op op = {.code = IO_READ, .fd = (int)fd, .iov = &iov, .iov_count = 1, .offset = done};
        n = task_io(task, &op);
        done += n > 0 ? (size_t)n : 0;
    } while (n > 0 && done < CHECK_BLOCKS * BLOCK_SIZE);
    struct io_op shut = {.code = IO_CLOSE, .fd = (int)fd};
    task_io(task, &shut);
    *ret_size = done;
    return n < 0 ? (int)n : 0;
}

int superblock_check(struct task *task, const char *directory,
        void (*damaged)(void *context, const char *sentence), void *context, struct error *err)
{
    char *path = path_of(directory, "superblock"), text[300];
    uint8_t *blocks = io_buffer_alloc(CHECK_BLOCKS * BLOCK_SIZE);
    size_t size = 0;
    struct superblock sb;
    int r = read_all(task, path, blocks, &size), state[SUPERBLOCK_COPIES] = {0};
    for (unsigned i = 0; r == 0 && i < SUPERBLOCK_COPIES; i++) {
        state[i] = superblock_decode(blocks + i * BLOCK_SIZE, &sb);
        snprintf(text, sizeof text, "superblock: copy %u (bytes %u to %u) is %s", i + 1, i * BLOCK_SIZE,
                (i + 1) * BLOCK_SIZE - 1, state[i] == -EPROTO ? "of a newer format" : "damaged");
        if (state[i] < 0)
            damaged(context, text);
    }
    if (r == 0 && state[0] == 0 && state[1] == 0 && memcmp(blocks, blocks + BLOCK_SIZE, BLOCK_SIZE) != 0)
        damaged(context, "superblock: its two copies (bytes 0 to 8191) are not the same");
    if (r == 0 && size > SUPERBLOCK_COPIES * BLOCK_SIZE)
        damaged(context, "superblock: the file is longer than the 8192 bytes that it must have");
    if (r < 0 && r != -ECANCELED) {
        snprintf(text, sizeof text, "superblock: cannot read it: %s", strerror(-r));
        damaged(context, text);
        r = 0;
    }
    free(path);
    io_buffer_free(blocks);
    return r;
}
