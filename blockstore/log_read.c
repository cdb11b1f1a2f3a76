// SPDX-License-Identifier: Apache-2.0
// Reads by locator, checked. A buffered read that meets a page which was read ahead before the block was
// written would see old bytes: a mismatch is read once more past the page cache before it is called damage.
#include "blockstore/log_private.h"

#include "blockstore/digest.h"

#include <errno.h>
#include <string.h>

static struct log_file *file_of(struct log *log, locator_t locator)
{
    uint64_t number = locator_log_file(locator);
    struct log_file *file = atomic_load_explicit(&log->table[number % LOG_TABLE_SIZE], memory_order_acquire);
    return file != NULL && file->number == number ? file : NULL;
}

static void unpin(struct log *log, struct log_file *file)
{
    if (atomic_fetch_sub(&file->pins, 1) == 1 && atomic_load(&file->refs) == 0)
        log_kick_retire(log);
}

static bool sums_match(struct log_read *read, const void *bytes)
{
    uint64_t block = locator_log_block(read->first);
    for (uint32_t i = 0; i < read->count; i++)
        if (digest_block((const char *)bytes + (size_t)i * BLOCK_SIZE) != read->file->sums[block + i])
            return false;
    return true;
}

static void read_submit(struct log_read *read, bool direct);

static void read_finish(struct log_read *read, int result)
{
    if (read->bounce != NULL) {
        if (result == 0)
            memcpy(read->buffer, read->bounce, (size_t)read->count * BLOCK_SIZE);
        io_buffer_free(read->bounce);
        read->bounce = NULL;
    }
    struct log_file *file = read->file;
    struct log *log = read->log;
    read->done(read, result);
    unpin(log, file);
}

static void read_done(struct io_full *io, int result)
{
    struct log_read *read = (struct log_read *)((char *)io - offsetof(struct log_read, io));
    const void *bytes = read->bounce != NULL ? read->bounce : read->buffer;
    if (result == 0 && sums_match(read, bytes)) {
        read_finish(read, 0);
        return;
    }
    if (!read->retried) {
        read->retried = true;
        read_submit(read, true);
        return;
    }
    read_finish(read, result == 0 || result == -ENODATA ? -EBADMSG : result);
}

static void read_submit(struct log_read *read, bool direct)
{
    size_t size = (size_t)read->count * BLOCK_SIZE;
    if (direct && ((uintptr_t)read->buffer & (BLOCK_SIZE - 1)) != 0 && read->bounce == NULL)
        read->bounce = io_buffer_alloc(size);
    struct iovec iov = {read->bounce != NULL ? read->bounce : read->buffer, size};
    int fd = direct ? read->file->fd : read->file->read_fd;
    io_full_submit(read->loop, &read->io, IO_READ, fd, &iov, 1, locator_log_block(read->first) * BLOCK_SIZE,
            read_done);
}

void log_read(struct log *log, struct log_read *read)
{
    read->log = log;
    read->file = file_of(log, read->first);
    read->bounce = NULL;
    read->retried = read->direct;
    atomic_fetch_add(&read->file->pins, 1);
    read_submit(read, read->direct);
}

void log_ref(struct log *log, locator_t locator, uint64_t count)
{
    atomic_fetch_add_explicit(&file_of(log, locator)->refs, count, memory_order_relaxed);
}

void log_unref(struct log *log, locator_t locator, uint64_t count)
{
    struct log_file *file = file_of(log, locator);
    if (atomic_fetch_sub(&file->refs, count) == count)
        log_kick_retire(log);
}

bool log_holds(struct log *log, locator_t locator)
{
    return locator_is_log(locator) && file_of(log, locator) != NULL;
}
